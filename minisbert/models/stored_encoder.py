"""Encoders that are folders of weights: opened, moved to a device, saved with their card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from minisbert.checkpoints.card import base_model_of, write_card
from minisbert.checkpoints.layout import (
    HEAD_FILE,
    LARGEST_SIZE,
    ModelFolder,
    check_opened_by,
    find_model,
    read_folder,
)
from minisbert.core.heads import JointHead
from minisbert.models.pair_heads import HEAD_NAMES
from minisbert.models.properties import SimilarityName
from minisbert.models.text_encoder import TextEncoder
from minisbert.replacements import LOAD, SAVE, explained
from minisbert.system.console import warn
from minisbert.system.devices import choose_device
from minisbert.system.files import atomic_folder

# How a model card names the result for a text, by the encoder's ``vectors_are``.
VECTOR_NAMES = {"dense": "a vector", "sparse": "a sparse vector", "per token": "a vector per token"}


def holds_cross_encoder(folder: ModelFolder) -> bool:
    """Return whether a head reads both texts of a pair together.

    The encoder under it was trained for that alone. Under a head that compares two vectors it is an
    encoder like any other.
    """
    if folder.classifier:
        return True
    if not folder.holds_pair_model:
        return False
    return folder.json(HEAD_FILE).get("head") == HEAD_NAMES[JointHead]


class StoredEncoder(TextEncoder):
    """``load`` and ``save``. A kind defines ``from_folder`` and ``write``."""

    # The class that a folder must name. A user's subclass opens the same folders.
    folder_class: ClassVar[str]
    base_model: str | None = None  # the Hub's name of what was loaded, for the model card

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        """Open the encoder in a folder, on the CPU."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        raise NotImplementedError

    def on_device(self, device: str | torch.device | None) -> Self:
        """Move the encoder to a device by name. A kind that is fastest on the CPU stays there."""
        return self

    @classmethod
    @explained(LOAD)
    def load(
        cls,
        model: str | Path,
        *,
        pooling: str | None = None,
        device: str | torch.device | None = "auto",
        max_seq_length: int | None = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: SimilarityName | None = None,
    ) -> Self:
        """Open a model in eval mode: a name (downloaded if it is missing) or a folder.

        A folder has sentence-transformers' layout. Arguments that are not None override its
        settings: ``pooling``; ``max_seq_length`` in tokens; ``truncate_dim`` columns; ``prompts``,
        added to the folder's; ``default_prompt_name``; ``similarity_fn_name``. A plain BERT states
        no pooling and gets the mean. ``device`` is "auto" or None (CUDA, else Apple's GPU, else the
        CPU), "cpu", "cuda" or "mps". ``minisbert.load`` opens models of any class, and compiled
        ones. Raises ``InputError`` for anything missing, damaged or not supported.
        """
        choose_device(device)  # an error before the model is downloaded
        return cls.load_folder(
            read_folder(find_model(model)),
            device=device,
            pooling=pooling,
            max_seq_length=max_seq_length,
            truncate_dim=truncate_dim,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            similarity_fn_name=similarity_fn_name,
        )

    @classmethod
    def load_folder(
        cls,
        folder: ModelFolder,
        *,
        device: str | torch.device | None = "auto",
        pooling: str | None = None,
        max_seq_length: int | None = None,
        **settings: Any,
    ) -> Self:
        """Open a model whose folder has been read.

        ``settings`` are the arguments of ``configured``.
        """
        choose_device(device)  # an error before the weights are read
        check_opened_by(folder, cls.folder_class)
        if holds_cross_encoder(folder):
            warn(
                f"{folder.path} holds a cross-encoder, which scores pairs: only its encoder is "
                f"opened, and nobody has trained its vectors to be compared; minisbert.load opens "
                f"the whole model"
            )
        encoder = cls.from_folder(folder, pooling, max_seq_length)
        encoder.base_model = base_model_of(folder.path)
        encoder.configured(**settings)
        return encoder.on_device(device)

    @explained(SAVE)
    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that sentence-transformers opens too, complete or not at all.

        A model there is replaced; ``InputError`` if that would lose another file. A ``README.md``
        there that you wrote or edited is kept; otherwise the model's card is written.
        """
        with atomic_folder(folder) as partial:
            self.write(partial)
            self.write_card(partial, former=Path(folder))

    save_pretrained = save

    def write_card(self, folder: Path, training: str = "", former: Path | None = None) -> None:
        """Write the model card into a saved folder, unless the user wrote one.

        The user's may be there, or in the ``former`` folder.
        """
        limit = ""
        if self.max_seq_length < LARGEST_SIZE:
            limit = f" of at most {self.max_seq_length:,} tokens"
        scaled = ""
        if self.normalize:
            scaled = ", scaled to length 1"
        description = (
            f"It turns a text{limit} into {VECTOR_NAMES[self.vectors_are]} of {self.width:,} "
            f"numbers ({self.pooling_mode} pooling{scaled})."
        )
        prompts = [f"`{text}` ({name})" for name, text in self.settings.prompts.items() if text]
        if prompts:
            description += f" It was made with prompts before the texts: {', '.join(prompts)}."

        kind = self.folder_class
        if kind in ("SentenceEncoder", "StaticEncoder"):
            kind = "SentenceTransformer"
        in_both = "attention" not in self.pooling_mode  # sentence-transformers has no such pooling
        write_card(folder, kind, description, self.base_model, training, former, in_both=in_both)
