"""Pairs of sentences to scores: an encoder and a head (``core/heads.py``) in one object, saved in one folder.

model = PairModel(encoder, siamese(encoder.width))
model.scores(["A cat sits."], ["A kitten is sitting."])  # (1,) on the scale of 0 to 5, after training
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.checkpoints.encoder_settings import CONFIG, HEAD_FILE, PairHeadSettings
from minisbert.checkpoints.layout import ModelFolder, find_model
from minisbert.checkpoints.save import model_folder
from minisbert.checkpoints.weights import Unfilled, read_weights, write_safetensors
from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.heads import ConcatHead, CrossHead, Head, JointHead
from minisbert.core.tokenizer import Encoded, pad_batch
from minisbert.core.weights import fill
from minisbert.models.batching import budgeted_batches
from minisbert.models.cross_encoder import ClassifierHead, check_writable, read_cross_encoder, write_cross_encoder
from minisbert.models.encoder import BATCH_SIZE, TEXT_TOKENS
from minisbert.models.guards import PerThread, check_count, evaluating
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.similarity import MAX_SCORE, as_array
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.devices import choose_device
from minisbert.system.files import write_json
from minisbert.system.progress import Progress
from minisbert.system.torch_internals import fastest_linear

SEVERAL = ("classes", "labels")  # tasks with an output for each label


class PairScorer:
    """Pairs of texts to scores, in batches. A subclass is called with a ``batch``: (B,), or (B, C) logits."""

    tokenizer: Tokenizer
    device: torch.device
    dtype: torch.dtype  # of the outputs
    joint: bool  # both texts in one row
    types: bool  # the encoder tells the two texts of a row apart
    task: str
    labels: tuple[str, ...]
    truncated = PerThread()  # texts, or joined pairs, that the last ``scores`` had to cut

    def computing(self) -> AbstractContextManager:
        """The context in which ``scores`` computes."""
        return torch.inference_mode()

    def tokenize(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """N pairs to N joined rows, or to 2N: all first sentences, then all second ones. Raises ``InputError``."""
        if self.joint:
            return self.tokenizer.encode_pairs(firsts, seconds)
        a, b = map(self.tokenizer.encode, check_pairs(firsts, seconds))
        return Encoded(a.ids + b.ids, a.token_types + b.token_types, a.truncated + b.truncated)

    def lengths(self, encoded: Encoded) -> list[int]:
        """``lengths[i]``: padded token count of pair i, in one row or two."""
        if self.joint:
            return [len(ids) for ids in encoded.ids]
        half = len(encoded) // 2
        return [2 * max(len(a), len(b)) for a, b in zip(encoded.ids[:half], encoded.ids[half:], strict=True)]

    def batch(self, encoded: Encoded, rows: Sequence[int]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Ids, mask and token types (R, T) of the pairs ``rows``, on the model's device; None as in ``Bert``."""
        chosen = list(rows)
        if not self.joint:
            chosen += [len(encoded) // 2 + row for row in rows]
        ids, mask = pad_batch([encoded.ids[row] for row in chosen], self.tokenizer.pad_id)
        types = None
        if self.joint and self.types:
            types, _ = pad_batch([encoded.token_types[row] for row in chosen], 0)
        return tuple(x if x is None else x.to(self.device) for x in (ids, mask, types))

    def scores(
        self,
        firsts: Sequence[str],
        seconds: Sequence[str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Pair i's score in row i: (N,) on the scale of 0 to 5, or of probabilities; (N, C) for several labels.

        A regression may go slightly beyond 0 and 5: it is not clamped, because equal scores have no rank.
        ``batch_size`` as in ``TextEncoder.encode``. Raises ``InputError`` for anything but pairs of valid strings.
        """
        return as_array(self.readable(self.checked_outputs(firsts, seconds, batch_size, show_progress_bar)))

    def predict(
        self,
        pairs: Sequence[tuple[str, str]] | tuple[str, str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
        apply_softmax: bool = False,
        convert_to_tensor: bool = False,
    ) -> Any:
        """Pairs of texts to scores (N,), or logits (N, C) of classes; one pair to its score. As sentence-transformers.

        A regression's scores are 0 to 1, those of "yes" or "no", or of labels that may all be true, probabilities.
        ``apply_softmax`` makes probabilities of classes. ``convert_to_tensor`` gives a tensor on the CPU.
        """
        single = isinstance(pairs, Sequence) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        rows = [pairs] if single else list(pairs)
        for row in rows:
            if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != 2:
                raise InputError(f"predict takes pairs of texts, not {one_line(row)}")
        firsts, seconds = [row[0] for row in rows], [row[1] for row in rows]
        outputs = self.checked_outputs(firsts, seconds, batch_size, bool(show_progress_bar))
        if self.task in ("binary", "labels"):
            outputs = outputs.sigmoid()
        if self.task == "classes" and apply_softmax:
            outputs = outputs.softmax(dim=-1)
        found = outputs if convert_to_tensor else as_array(outputs)
        return found[0] if single else found

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
    ) -> list[dict[str, Any]]:
        """The documents by their score with the query, best first: ``[{"corpus_id": 2, "score": 0.97}, ...]``.

        ``return_documents`` adds the "text" of each. Ties by number. ``top_k`` None ranks all.
        """
        if self.task in SEVERAL:
            raise InputError(f"a model of {len(self.labels)} {self.task} gives no score to rank by")
        documents = check_texts(documents)
        if top_k is not None:
            check_count("top_k", top_k)
        scores = self.predict(
            [(query, text) for text in documents], batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        found = []
        for row in np.argsort(-scores, kind="stable")[:top_k].tolist():
            result: dict[str, Any] = {"corpus_id": row, "score": scores[row]}
            if return_documents:
                result["text"] = documents[row]
            found.append(result)
        return found

    def checked_outputs(self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """``outputs`` in eval mode; ``InputError`` if one is not finite."""
        check_count("batch_size", batch_size)
        with self.computing():
            outputs = self.outputs(firsts, seconds, batch_size, progress)
        if not outputs.isfinite().all():
            raise InputError("a score is NaN or infinite: the model's weights are too large")
        return outputs

    def outputs(self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """What the losses take, on the CPU: (N,), or logits (N, C) for several labels."""
        encoded = self.tokenize(firsts, seconds)
        self.truncated = encoded.truncated
        lengths = self.lengths(encoded)
        shape = [len(lengths)]
        if self.task in SEVERAL:
            shape.append(len(self.labels))
        outputs = torch.empty(shape, dtype=self.dtype)
        with Progress(len(lengths), progress) as line:
            line.expect(len(lengths), sum(lengths))
            for rows in budgeted_batches(lengths, TEXT_TOKENS * batch_size):
                outputs[rows] = self(*self.batch(encoded, rows)).cpu()
                line.update(sum(lengths[row] for row in rows))
        return outputs

    def readable(self, outputs: Tensor) -> Tensor:
        """The outputs of ``forward`` on the scale that people read: 0 to 5, or probabilities."""
        if self.task == "classes":
            return outputs.softmax(dim=-1)
        if self.task in ("binary", "labels"):
            return outputs.sigmoid()
        if self.task == "regression":
            return MAX_SCORE * outputs
        return outputs


def check_pairs(firsts: Sequence[str], seconds: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both as lists. Raises ``InputError`` unless they have the same number of valid texts."""
    firsts, seconds = check_texts(firsts), check_texts(seconds)
    if len(firsts) != len(seconds):
        raise InputError(f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs")
    return firsts, seconds


TASKS = ("regression", "binary", "logit", *SEVERAL)
# the heads by their names in ``head.json``; the siamese head is a ``ConcatHead`` with other features
PAIR_HEADS = {"cross-encoder": JointHead, "concat": ConcatHead, "cross-attention": CrossHead}
HEAD_PAIRS = 4096  # that a head gets at a time


class PairModel(PairScorer, nn.Module):
    """An encoder and a head: pairs of sentences to scores.

    ``task`` says what the outputs are: ``regression``, a similarity from 0 to 1; ``binary``, the logit of "yes";
    ``classes``, a logit for each of ``labels``, of which one is true; ``labels``, the same if several may be;
    ``logit``, a number on any scale, as of some CrossEncoders. The head moves to the encoder's device. Raises
    ``ValueError`` if the parts do not fit.

    In a batch, ids (R, T) hold R = B joined pairs for the joint head. For the others R = 2B: the first B rows are the
    first sentences, the last B rows the second ones.
    """

    def __init__(self, encoder: SentenceEncoder, head: Head, task: str = "regression", labels: Sequence[str] = ()):
        super().__init__()
        if not isinstance(head, tuple(PAIR_HEADS.values())):
            raise InputError(f"head must be a JointHead, ConcatHead or CrossHead, not {one_line(head)}")
        self.encoder, self.head = encoder, head.to(encoder.device)
        self.task, self.labels = task, tuple(check_texts(labels))
        self.tokenizer, self.joint = encoder.tokenizer, isinstance(head, JointHead)
        self.types = encoder.bert.config.type_vocab_size > 1  # DistilBERT has no token types, RoBERTa only one
        width = encoder.width if isinstance(head, ConcatHead) else encoder.bert.config.hidden_size
        if head.settings["width"] != width:
            raise ValueError(f"a head for width {head.settings['width']} gets {width} from this encoder")
        if self.joint and getattr(encoder.bert, "causal", False):
            raise ValueError("this head reads the first token of a pair, which in a decoder has seen nothing else")
        if isinstance(head, ClassifierHead):
            check_writable(encoder, head)  # before a training, not after it
        check_task(task, head.settings["outputs"], self.labels)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """A batch, (R, T) each -> what the losses take: (B,), or logits (B, C) for several labels.

        ``dtype`` is that of the encoder's matrix products, as in ``SentenceEncoder.hidden``.
        """
        if self.joint:
            outputs = self.head(self.encoder.hidden(ids, mask, token_types, dtype))
        elif len(ids) % 2:
            raise ValueError(f"{len(ids)} rows cannot be split into first and second sentences")
        elif isinstance(self.head, ConcatHead):
            outputs = self.head(*self.encoder.unscaled(ids, mask, dtype).chunk(2))  # u and v, (B, D) each
        else:
            masks = (None, None) if mask is None else mask.chunk(2)
            outputs = self.head(*self.encoder.hidden(ids, mask, None, dtype).chunk(2), *masks)
        return self.squeezed(outputs)

    def squeezed(self, outputs: Tensor) -> Tensor:
        """A head's outputs as the losses take them: (B, 1) -> (B,); (B, C) for several labels stays."""
        if self.task in SEVERAL:
            return outputs
        return outputs.squeeze(-1)

    @contextmanager
    def computing(self) -> Iterator[None]:
        with evaluating(self), fastest_linear():
            yield

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.mlp[-1].weight.dtype

    def outputs(self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool) -> Tensor:
        """What the losses take, on the CPU; for a head that reads two vectors, each distinct sentence once."""
        if not isinstance(self.head, ConcatHead):
            return super().outputs(firsts, seconds, batch_size, progress)
        firsts, seconds = check_pairs(firsts, seconds)
        encoder = copy.copy(self.encoder)
        encoder.normalize = False  # as ``forward`` has the vectors
        options = {"batch_size": batch_size, "show_progress_bar": progress, "convert_to_tensor": True}
        vectors = encoder.encode([*firsts, *seconds], prompt="", truncate_dim=encoder.width, **options)  # (2N, D)
        self.truncated = encoder.truncated
        u, v = (side.to(self.device).split(HEAD_PAIRS) for side in vectors.chunk(2))
        outputs = [self.head(*block) for block in zip(u, v, strict=True)]
        return self.squeezed(torch.cat(outputs).cpu())

    def save(self, folder: str | Path) -> None:
        """The encoder as ``SentenceEncoder.save`` writes it, ``head.json`` and ``head.safetensors`` beside it.

        With a ``ClassifierHead`` the folder is a CrossEncoder of sentence-transformers.
        """
        with model_folder(folder) as partial:
            if isinstance(self.head, ClassifierHead):
                write_cross_encoder(self.encoder, self.head, self.task, self.labels, partial)
                return
            self.encoder.write(partial)
            name = next(name for name, kind in PAIR_HEADS.items() if type(self.head) is kind)
            about = {"head": name, "task": self.task, "labels": list(self.labels), "settings": self.head.settings}
            write_json(partial / HEAD_FILE, about)
            tensors = {name: tensor.float() for name, tensor in self.head.state_dict().items()}
            write_safetensors(tensors, partial / "head.safetensors")

    @classmethod
    def load(cls, model: str | Path, *, device: str | torch.device = "auto", max_length: int | None = None) -> Self:
        """A folder that ``save`` wrote, or a CrossEncoder's folder or name on the Hub, in eval mode.

        ``max_length`` in tokens, of both texts together if the head reads them joined; ``device`` as for
        ``SentenceEncoder.load``. ``InputError`` for anything missing, unknown or misshapen.
        """
        folder = ModelFolder(find_model(model))
        if folder.has(HEAD_FILE):
            file, parts = HEAD_FILE, read_pair_model(folder, max_length)
        elif folder.model.classifier:
            file, parts = CONFIG, read_cross_encoder(folder, max_length)
        else:
            raise InputError(f"{folder.path} has no {HEAD_FILE}: its encoder has no head that was trained on pairs")
        with reading(folder.path / file):  # parts that do not fit
            model = cls(*parts)
        return model.to(choose_device(device)).eval()


class CrossEncoder(PairModel):
    """A ``PairModel`` whose head reads both texts together, under sentence-transformers' name.

    ``CrossEncoder.load("cross-encoder/ms-marco-MiniLM-L6-v2").predict([("a query", "a document")])``
    """

    def __init__(self, encoder: SentenceEncoder, head: Head, task: str = "regression", labels: Sequence[str] = ()):
        super().__init__(encoder, head, task, labels)
        if not self.joint:
            raise InputError(f"a CrossEncoder reads pairs together, a {type(head).__name__} does not: use PairModel")


def read_pair_model(folder: ModelFolder, limit: int | None) -> tuple[SentenceEncoder, Head, str, list[str]]:
    """The encoder, the head, the task and the labels of a folder that ``PairModel.save`` wrote."""
    about = PairHeadSettings.read(folder.json_settings(HEAD_FILE))
    encoder = SentenceEncoder.from_folder(folder, limit=limit)
    path = folder.path / "head.safetensors"
    with reading(folder.path / HEAD_FILE):
        if about.head not in PAIR_HEADS:
            raise ValueError(f"head must be one of {', '.join(PAIR_HEADS)}, not {one_line(about.head)}")
        with torch.device("meta"), Unfilled():  # the weights are replaced at once
            head = PAIR_HEADS[about.head](**about.settings)
        if head.settings != about.settings:  # a setting that is left out must not fall back to a default
            raise ValueError(f"settings {one_line(about.settings)} must state each of {', '.join(head.settings)}")
    fill(head, read_weights(path), path)
    return encoder, head, about.task, about.labels


def check_task(task: str, outputs: int, labels: Sequence[str]) -> None:
    """Raise ``ValueError`` unless a head with that many outputs can do the task."""
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, not {one_line(task)}")
    if task in SEVERAL:
        fits, rule = outputs > 1 and len(labels) == outputs, "two or more, each with a label"
    else:
        fits, rule = outputs == 1 and not labels, "one, without a label"
    if not fits:
        raise ValueError(f"{task} with {outputs} outputs and labels {list(labels)}: {rule}")
