"""Pairs of sentences to scores: an encoder and a head (``heads.py``) in one object, saved in one folder.

model = PairModel(encoder, siamese(encoder.width))
model.scores(["A cat sits."], ["A kitten is sitting."])  # (1,) on the scale of 0 to 5, after training
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line, read_json
from minisbert.core.heads import ConcatHead, Head, JointHead
from minisbert.core.tokenizer import Encoded, check_texts, pad_batch
from minisbert.core.weights import fill
from minisbert.fast.batching import budgeted_batches
from minisbert.fast.fused import evaluating
from minisbert.models.checkpoint import read_safetensors, write_safetensors
from minisbert.models.cross_encoder import check_writable, is_cross_encoder, read_cross_encoder, write_cross_encoder
from minisbert.models.folders import check_files, model_folder
from minisbert.models.more_heads import PAIR_HEADS, BatchCrossHead, ClassifierHead
from minisbert.models.sentence_encoder import BATCH_TOKENS, SentenceEncoder
from minisbert.models.settings import WIDEST, stated
from minisbert.system.console import Progress
from minisbert.system.files import write_json

MAX_SCORE = 5.0  # the STS scale: 0 nothing in common, 5 the same meaning

TASKS = ("regression", "binary", "classes", "logit")
BLOCK = 4096  # pairs that a head gets at a time


class PairModel(nn.Module):
    """An encoder and a head: pairs of sentences to scores.

    ``task`` says what the outputs are: ``regression``, one number, similarity on the scale of 0 to 1; ``binary``, the
    logit of "yes"; ``classes``, a logit for each of ``labels``; ``logit``, a number on a scale of its own, as some
    CrossEncoders give it. Raises ``ValueError`` if the parts do not fit.

    In a batch, ids (R, T) hold R = B joined pairs for the joint head. For the others R = 2B: the first B rows are the
    first sentences, the last B rows the second ones.
    """

    def __init__(self, encoder: SentenceEncoder, head: Head, task: str = "regression", labels: Sequence[str] = ()):
        super().__init__()
        self.encoder, self.head, self.task, self.labels = encoder, head, task, tuple(labels)
        self.joint = isinstance(head, JointHead)
        self.truncated = 0  # texts, or joined pairs, that the last ``scores`` had to cut
        outputs, width = head.settings["outputs"], head.settings["width"]
        needed = encoder.width if isinstance(head, ConcatHead) else encoder.bert.config.hidden_size
        if width != needed:
            raise ValueError(f"a head for width {width} gets {needed} from this encoder")
        for parameter in self.parameters():
            # subtle: loaded weights lie anywhere in their file, and numbers at another offset from a multiple of 64
            # bytes may be summed in another order; with memory of their own, load gives the bits that save had
            parameter.data = parameter.data.clone()
        if isinstance(head, ClassifierHead):
            check_writable(encoder)  # before a training, not after it
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}: choose from {', '.join(TASKS)}")
        if task == "classes" and (outputs < 2 or len(self.labels) != outputs):
            raise ValueError(f"{outputs} outputs for the classes {list(self.labels)}: each class needs one")
        if task != "classes" and (outputs != 1 or self.labels):
            raise ValueError(f"{task} has one output and no labels, not {outputs} and {list(self.labels)}")

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        precision: torch.dtype = torch.float32,
    ) -> Tensor:
        """A batch, (R, T) each -> what the losses take: (B,), or logits (B, C) for classes.

        ``precision`` is that of the encoder's matrix products, as in ``SentenceEncoder.hidden``.
        """
        if self.joint:
            outputs = self.head(self.encoder.hidden(ids, mask, token_types, precision))
        elif len(ids) % 2:
            raise ValueError(f"{len(ids)} rows cannot be split into first and second sentences")
        elif isinstance(self.head, ConcatHead):
            outputs = self.head(*self.encoder.unscaled(ids, mask, precision).chunk(2))  # u and v, (B, D) each
        else:
            masks = (None, None) if mask is None else mask.chunk(2)
            outputs = self.head(*self.encoder.hidden(ids, mask, None, precision).chunk(2), *masks)
        return outputs if self.task == "classes" else outputs.squeeze(-1)

    def tokenize(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """N pairs to N joined rows, or to 2N: all first sentences, then all second ones. Raises ``InputError``."""
        tokenizer = self.encoder.tokenizer
        if self.joint:
            return tokenizer.encode_pairs(firsts, seconds)
        a, b = tokenizer.encode(firsts), tokenizer.encode(seconds)
        check_pairs(len(a), len(b))
        return Encoded(a.ids + b.ids, a.token_types + b.token_types, a.truncated + b.truncated)

    def lengths(self, encoded: Encoded) -> list[int]:
        """The tokens that each pair takes in a batch of pairs like it."""
        if self.joint:
            return [len(ids) for ids in encoded.ids]
        half = len(encoded) // 2
        return [2 * max(len(a), len(b)) for a, b in zip(encoded.ids[:half], encoded.ids[half:], strict=True)]

    def batch(self, encoded: Encoded, rows: Sequence[int]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Ids, mask and token types (R, T) of the pairs ``rows``, on the model's device; None as in ``Bert``."""
        pad, half = self.encoder.tokenizer.pad_id, len(encoded) // 2
        chosen = rows if self.joint else [*rows, *(half + row for row in rows)]
        ids, mask = pad_batch([encoded.ids[row] for row in chosen], pad)
        types = None
        if self.joint and self.encoder.bert.config.type_vocab_size > 1:  # DistilBERT has none, RoBERTa only one
            types = pad_batch([encoded.token_types[row] for row in chosen], 0)[0]
        device = self.encoder.device
        return ids.to(device), None if mask is None else mask.to(device), None if types is None else types.to(device)

    def scores(
        self,
        firsts: Sequence[str],
        seconds: Sequence[str],
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
    ) -> np.ndarray:
        """Pair i's score in row i: (N,) on the scale of 0 to 5, or of probabilities; (N, C) for classes.

        A regression may go slightly beyond 0 and 5: it is not clamped, because equal scores have no rank.
        Raises ``InputError`` for anything but pairs of valid strings.
        """
        compute = self._of_vectors if isinstance(self.head, ConcatHead) else self._of_batches
        with evaluating(self.head if isinstance(self.head, ConcatHead) else self):
            outputs = compute(firsts, seconds, batch_tokens, progress)
        if not outputs.isfinite().all():
            raise InputError("a score is NaN or infinite: the model's weights are too large")
        return self.readable(outputs).numpy()

    def _of_vectors(self, firsts: Sequence[str], seconds: Sequence[str], batch_tokens: int, progress: bool) -> Tensor:
        """``forward``'s outputs, on the CPU, for a head that reads two vectors: each distinct sentence once."""
        firsts, seconds = check_texts(firsts), check_texts(seconds)
        check_pairs(len(firsts), len(seconds))
        texts = [*firsts, *seconds]
        whole = {"normalize": False, "truncate_dim": self.encoder.width, "prompt": ""}  # as ``forward`` has them
        vectors = self.encoder.encode(texts, batch_tokens, progress, convert="tensor", **whole)  # (2N, D)
        self.truncated = self.encoder.truncated
        blocks = zip(*(side.to(self.encoder.device).split(BLOCK) for side in vectors.chunk(2)), strict=True)
        outputs = torch.cat([self.head(u, v) for u, v in blocks]).cpu()
        return outputs if self.task == "classes" else outputs.squeeze(-1)

    def _of_batches(self, firsts: Sequence[str], seconds: Sequence[str], batch_tokens: int, progress: bool) -> Tensor:
        """``forward``'s outputs, on the CPU, for the other heads: in batches of like length.

        In the order of the pairs for ``BatchCrossHead``, because there the scores depend on who is in a batch.
        """
        encoded = self.tokenize(firsts, seconds)
        self.truncated = encoded.truncated
        lengths = self.lengths(encoded)
        shape = (len(lengths), len(self.labels)) if self.task == "classes" else (len(lengths),)
        outputs = torch.empty(shape, dtype=self.head.mlp[-1].weight.dtype)
        with Progress(len(lengths), progress) as line:
            line.expect(len(lengths), sum(lengths))
            grouped = not isinstance(self.head, BatchCrossHead)
            for rows in budgeted_batches(lengths, batch_tokens) if grouped else self.head.batches(len(lengths)):
                outputs[rows] = self(*self.batch(encoded, rows)).cpu()
                line.done(sum(lengths[row] for row in rows))
        return outputs

    def readable(self, outputs: Tensor) -> Tensor:
        """The outputs of ``forward`` on the scale that people read: 0 to 5, or probabilities."""
        if self.task == "logit":
            return outputs
        if self.task == "regression":
            return MAX_SCORE * outputs
        return outputs.sigmoid() if self.task == "binary" else outputs.softmax(dim=-1)

    def save(self, folder: str | Path) -> None:
        """The encoder as ``SentenceEncoder.save`` writes it, ``head.json`` and ``head.safetensors`` beside it.

        With a ``ClassifierHead`` the folder is a CrossEncoder of sentence-transformers.
        """
        if isinstance(self.head, ClassifierHead):
            with model_folder(folder) as partial:
                write_cross_encoder(self.encoder, self.head, self.task, partial)
            return
        name = next(name for name, kind in PAIR_HEADS.items() if type(self.head) is kind)
        with model_folder(folder) as partial:
            self.encoder.write(partial)
            about = {"head": name, "task": self.task, "labels": list(self.labels), "settings": self.head.settings}
            write_json(partial / "head.json", about)
            tensors = {name: tensor.float() for name, tensor in self.head.state_dict().items()}
            write_safetensors(tensors, partial / "head.safetensors")

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu", limit: int | None = None) -> "PairModel":
        """A folder that ``save`` wrote, or a CrossEncoder, in eval mode, with its own limit of tokens or ``limit``.

        ``InputError`` for anything missing, unknown or misshapen.
        """
        folder = Path(folder)
        path = folder / "head.json"
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder with a model in it")
        check_files(folder)
        if not path.is_file() and is_cross_encoder(folder):
            return cls(*read_cross_encoder(folder, limit)).to(device).eval()
        if not path.is_file():
            raise InputError(f"{folder} has no head.json: it holds an encoder, but no head that was trained on pairs")
        name, settings, task, labels = read_head(path)
        encoder = SentenceEncoder.load(folder, limit=limit)
        try:
            with torch.device("meta"):  # the weights are replaced at once
                head = PAIR_HEADS[name](**settings)
            if head.settings != settings:  # a setting that is left out must not fall back to a default
                raise ValueError(f"{one_line(settings)} must state each of {', '.join(head.settings)}")
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: settings: {error}") from error
        file = folder / "head.safetensors"
        fill(head, read_safetensors(file), file)
        try:
            return cls(encoder, head, task, labels).to(device).eval()
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error


def read_head(path: Path) -> tuple[str, dict[str, Any], str, list[str]]:
    """The head's name and settings, the task and the labels in ``head.json``; ``InputError`` for other types."""
    about = read_json(path)
    name, task = (stated(about, key, str, path, "null") for key in ("head", "task"))
    if name not in PAIR_HEADS:
        raise InputError(f"{path}: head {one_line(name)} is not one of {', '.join(PAIR_HEADS)}")
    settings, labels = stated(about, "settings", dict, path, {}), about.get("labels", [])
    for key in ("width", "hidden", "outputs", "heads"):
        if not stated(settings, key, int, path, 0) <= WIDEST:
            raise InputError(f"{path}: {key} must be at most {WIDEST}, not {settings[key]}")
    for key in ("concat", "variant"):
        stated(settings, key, str, path)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"{path}: labels must be a list of strings, not {one_line(labels)}")
    return name, settings, task, labels


def check_pairs(firsts: int, seconds: int) -> None:
    """Raise ``InputError`` unless the two numbers of sentences are equal."""
    if firsts != seconds:
        raise InputError(f"{firsts} first and {seconds} second sentences do not make pairs")
