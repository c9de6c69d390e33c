"""scikit-learn: ``make_pipeline(MinisbertVectorizer(), LogisticRegression())``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from minisbert.core.checks import check_texts
from minisbert.integrations.opening import check_named, check_names, open_once, split_options
from minisbert.models.text_encoder import TextEncoder


class MinisbertVectorizer(TransformerMixin, BaseEstimator):
    """Texts to vectors as a step of a pipeline.

    It holds the model's name or folder, not the model: a clone, a pickle or a worker of ``n_jobs``
    costs nothing, and a process loads each model once. The other options are those of ``load`` and
    ``encode``; None is the model's own. ``other_names`` are errors: scikit-learn needs an argument
    for each option.
    """

    def __init__(
        self,
        model: str | Path = "all-MiniLM-L6-v2",
        *,
        device: str = "auto",
        truncate_dim: int | None = None,
        max_seq_length: int | None = None,
        pooling: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        normalize_embeddings: bool = False,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        dtype: str | None = None,
        compiled: bool | str = False,
        **other_names: Any,
    ):
        self.model = model
        self.device = device
        self.truncate_dim = truncate_dim
        self.max_seq_length = max_seq_length
        self.pooling = pooling
        self.prompts = prompts
        self.default_prompt_name = default_prompt_name
        self.prompt = prompt
        self.prompt_name = prompt_name
        self.normalize_embeddings = normalize_embeddings
        self.batch_size = batch_size
        self.show_progress_bar = show_progress_bar
        self.dtype = dtype
        self.compiled = compiled
        check_names("MinisbertVectorizer", other_names, self.get_params())

    def open(self) -> tuple[TextEncoder, dict[str, Any]]:
        """Return the model, which this process loads once, and the options of ``encode``."""
        options = self.get_params()  # the arguments of __init__
        model = options.pop("model")
        check_named("MinisbertVectorizer", model)
        # __init__ has refused all names but these.
        known = options.keys()
        load_options, encode_options = split_options("MinisbertVectorizer", model, options, known)
        return open_once(model, load_options), encode_options

    @property
    def encoder(self) -> TextEncoder:
        """The model, which this process loads once."""
        encoder, _ = self.open()
        return encoder

    def fit(self, texts: Sequence[str], y: Any = None) -> "MinisbertVectorizer":
        """Nothing is learned."""
        return self

    def transform(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, D)."""
        encoder, encode_options = self.open()
        return encoder.encode(check_texts(texts), **encode_options)

    def get_feature_names_out(self, names: Any = None) -> np.ndarray:
        """Name the columns: minisbert0, minisbert1, ..."""
        width = self.encoder.get_embedding_dimension()
        columns = [f"minisbert{column}" for column in range(width)]
        return np.array(columns, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True
