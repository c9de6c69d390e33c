"""MTEB: ``mteb.evaluate(MinisbertEncoder("all-MiniLM-L6-v2"), tasks)``."""

import os
from typing import Any

import numpy as np
from mteb.models.model_meta import ModelMeta

from minisbert.core import InputError, one_line
from minisbert.integrations.opening import EMBEDDER_OPTIONS, check_names, open_dense
from minisbert.system.assets import is_hub_name

# Texts that are neither queries nor documents get the default prompt.
MTEB_OPTIONS = (*EMBEDDER_OPTIONS, "default_prompt_name", "similarity_fn_name")
# The options of ``encode`` that ``mteb.evaluate(encode_kwargs=...)`` may give.
CALL_OPTIONS = ("batch_size", "normalize_embeddings", "show_progress_bar", "dtype")
# The options that change no score.
OPTIONS_OF_SPEED = ("device", "batch_size", "show_progress_bar")


class MinisbertEncoder:
    """MTEB's encoder protocol, with the model's prompts for queries and documents.

    ``revision`` is that of a model on the Hub; of a folder it is only a note in the results. The
    other options are those of ``load`` and ``encode``; those that change the vectors are part of
    the results' name.
    """

    def __init__(
        self,
        model_name: str = "all-MiniLM-L6-v2",
        revision: str | None = None,
        *,
        device: str | None = None,
        **options: Any,
    ):
        model = model_name
        if revision is not None and is_hub_name(model) and not os.path.isdir(model):
            model = f"{model_name}@{revision}"
        options["device"] = device or "auto"
        self.encoder, self.encode_options = open_dense(
            "MinisbertEncoder", model, options, MTEB_OPTIONS
        )

        name = model_name
        if "/" not in name:  # MTEB wants an organisation before it
            name = f"minisbert/{name}"
        experiment = {}
        for option, value in options.items():
            if option not in OPTIONS_OF_SPEED:
                experiment[option] = value
        description = {
            "name": name,
            "revision": revision or "local",
            "loader": type(self),
            "framework": ["PyTorch"],
            "embed_dim": self.encoder.get_embedding_dimension(),
            "max_tokens": self.encoder.max_seq_length,
            "experiment_kwargs": experiment or None,
        }
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=description)

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any = None,
        hf_split: Any = None,
        hf_subset: Any = None,
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Encode the texts of a data loader's batches: (N, D).

        MTEB also says of which task they are, which nothing here depends on. ``options`` are those
        of ``encode``.
        """
        check_names("MinisbertEncoder.encode", options, CALL_OPTIONS)
        options = self.encode_options | options
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise InputError(f"a model of texts cannot encode a batch of {', '.join(batch)}")
            texts += batch["text"]
        role = getattr(prompt_type, "value", prompt_type)  # an enumeration's member, a text or None
        if role is None:
            return self.encoder.encode(texts, **options)
        if role == "query":
            return self.encoder.encode_query(texts, **options)
        if role == "document":
            return self.encoder.encode_document(texts, **options)
        raise InputError(f"prompt_type is query or document, not {one_line(role)}")

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Compare every vector (N, D) with every other one (M, D): (N, M)."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Compare the vectors of each row, (N, D) twice: (N,)."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)
