"""Score pairs of sentences: an encoder and a head (``core/heads.py``) in one object, saved in one
folder.

model = PairModel(encoder, siamese(encoder.width))
model.predict([("A cat sits.", "A kitten is sitting.")])  # (1,) from 0 to 1, after training
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.checkpoints.card import base_model_of, write_card
from minisbert.checkpoints.layout import CONFIG, HEAD_FILE, ModelFolder, find_model, has_file
from minisbert.checkpoints.weights import read_weights, unfilled, write_safetensors
from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.heads import ConcatHead, CrossHead, Head, JointHead
from minisbert.core.tokenizer import Encoded, Tokenizer, pad_batch
from minisbert.core.weights import fill
from minisbert.models.batching import budgeted_batches, check_tokens
from minisbert.models.cross_encoder import (
    ClassifierHead,
    check_writable,
    read_cross_encoder,
    write_cross_encoder,
)
from minisbert.models.properties import as_array, check_count
from minisbert.models.sentence_encoder import (
    BATCH_SIZE,
    TEXT_TOKENS,
    NotFinite,
    SentenceEncoder,
    evaluating,
)
from minisbert.system.devices import move_to
from minisbert.system.files import atomic_folder, write_json
from minisbert.system.progress import bar_of
from minisbert.system.torch_internals import fastest_linear

SEVERAL = ("classes", "labels")  # tasks with an output for each label
TASKS = ("regression", "binary", "logit", *SEVERAL)
# the heads by their names in ``head.json``; the siamese head is a ``ConcatHead`` with other
# features
PAIR_HEADS = {"cross-encoder": JointHead, "concat": ConcatHead, "cross-attention": CrossHead}
HEAD_PAIRS = 4096  # vectors that a head gets at a time


class PairScorer:
    """Score pairs of texts in batches."""

    tokenizer: Tokenizer
    device: torch.device
    dtype: torch.dtype  # of the outputs
    joint: bool  # both texts in one row
    types: bool  # the encoder tells the two texts of a row apart
    task: str
    labels: tuple[str, ...]
    activation_fn: Callable[[Tensor], Tensor] | None  # in place of the task's, for ``predict``
    truncated = 0  # texts, or joined pairs, that the last call had to cut
    __call__: Callable[..., Tensor]  # a ``batch`` -> (B,), or (B, C) logits

    def computing(self) -> AbstractContextManager:
        """Return the context in which scores are computed."""
        return torch.inference_mode()

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a row, special tokens included; longer texts or pairs are
        cut.
        """
        return self.tokenizer.limit

    def predict(
        self,
        pairs: Sequence[tuple[str, str]] | tuple[str, str],
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        num_workers: int | None = None,
    ) -> Any:
        """Score pairs of texts -> (N,), or logits (N, C) of classes; one pair -> its score (as
        sentence-transformers).

        A regression's scores are 0 to 1, but not clamped, because equal scores have no rank. Those
        of "yes" or "no", and of labels that may all be true, are probabilities. ``apply_softmax``
        makes probabilities of classes. ``activation_fn`` gets the head's outputs (N, 1) or (N, C)
        instead, such as ``torch.nn.Identity()``; by default ``self.activation_fn``, which ``load``
        sets. ``batch_size`` as in ``TextEncoder.encode``. ``convert_to_tensor`` gives a tensor on
        the CPU, ``convert_to_numpy=False`` a list of them. ``num_workers`` is ignored, as there.
        Raises ``InputError`` for anything but pairs of valid strings.
        """
        single = (
            isinstance(pairs, list | tuple)
            and len(pairs) == 2
            and all(isinstance(text, str) for text in pairs)
        )
        rows: Any = [pairs] if single else pairs
        if isinstance(rows, str) or not isinstance(rows, Iterable):
            raise InputError(f"predict takes pairs of texts, not {one_line(rows)}")
        firsts, seconds = [], []
        for pair in rows:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise InputError(f"predict takes pairs of texts, not {one_line(pair)}")
            firsts.append(pair[0])
            seconds.append(pair[1])
        activation = activation_fn or self.activation_fn
        if activation is not None and not callable(activation):
            raise InputError(
                f"activation_fn must be a function of a tensor, not {one_line(activation)}"
            )
        scores = self.outputs(
            firsts, seconds, batch_size, bool(show_progress_bar)
        )  # (N,) or (N, C)
        if activation is not None:
            # the caller's sees what it would see in sentence-transformers, (N, 1) for a single
            # score
            with torch.no_grad():  # it may be a layer with weights
                scores = activation(
                    scores.reshape(len(scores), max(1, len(self.labels)))
                )  # (N, 1) or (N, C)
            if self.task not in SEVERAL:
                scores = scores.squeeze(-1)
        elif self.task in ("binary", "labels"):
            scores = scores.sigmoid()
        # as in sentence-transformers, where only the sigmoid of labels stands in the place of a
        # softmax
        if apply_softmax and (
            self.task == "classes" or (self.task == "labels" and activation is not None)
        ):
            scores = scores.softmax(dim=-1)
        if convert_to_tensor or (single and not convert_to_numpy):
            return scores[0] if single else scores
        if not convert_to_numpy:
            return list(scores)
        array = as_array(scores)
        return array[0] if single else array

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        batch_size: int = BATCH_SIZE,
        show_progress_bar: bool | None = False,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
        num_workers: int | None = None,
    ) -> list[dict[str, Any]]:
        """Sort the documents by their score with the query, best first: ``[{"corpus_id": 2,
        "score": 0.97}, ...]``.

        ``return_documents`` adds the "text" of each. Ties by number. ``top_k`` None ranks all.
        ``activation_fn`` and ``num_workers`` as in ``predict``.
        """
        if self.task in SEVERAL:
            raise InputError(f"a model of {len(self.labels)} {self.task} gives no score to rank by")
        documents = check_texts(documents)
        if top_k is not None:
            check_count("top_k", top_k)
        pairs = [(query, text) for text in documents]
        scores = self.predict(
            pairs,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            activation_fn=activation_fn,
        )
        ranked = []
        # Stable, so that of equal scores the first document comes first.
        for row in np.argsort(-scores, kind="stable")[:top_k].tolist():
            result: dict[str, Any] = {
                "corpus_id": row,
                "score": float(scores[row]),
            }  # json cannot write NumPy's
            if return_documents:
                result["text"] = documents[row]
            ranked.append(result)
        return ranked

    def outputs(
        self,
        firsts: Sequence[str],
        seconds: Sequence[str],
        batch_size: int = BATCH_SIZE,
        progress: bool = False,
    ) -> Tensor:
        """Return the outputs that the losses take, on the CPU: (N,), or logits (N, C) for several
        labels.

        Raises ``InputError`` for texts that do not make pairs, and if an output is not finite.
        """
        check_count("batch_size", batch_size)
        if len(firsts) != len(seconds):
            raise InputError(
                f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs"
            )
        with self.computing():
            outputs = self._outputs(firsts, seconds, batch_size, progress)
        if not outputs.isfinite().all():
            raise NotFinite("a score is NaN or infinite: the model's weights are too large")
        return outputs

    def _outputs(
        self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool
    ) -> Tensor:
        # All pairs are tokenized before the first is computed: batches are of pairs of similar
        # length.
        encoded = self.tokenize(firsts, seconds)
        self.truncated = sum(encoded.truncated)
        lengths = self.lengths(encoded)
        shape = (len(lengths), len(self.labels)) if self.task in SEVERAL else (len(lengths),)
        outputs = torch.empty(shape, dtype=self.dtype)
        with bar_of(progress, len(lengths), " pairs") as bar:
            for rows in budgeted_batches(lengths, TEXT_TOKENS * batch_size):
                outputs[rows] = self(*self.batch(encoded, rows)).cpu()
                if bar is not None:
                    bar.update(len(rows))
        return outputs

    def tokenize(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """Tokenize N pairs to N joined rows, or to 2N: all first sentences, then all second
        ones.
        """
        if self.joint:
            return check_tokens(self.tokenizer.encode_pairs(firsts, seconds), firsts)
        a, b = (check_tokens(self.tokenizer.encode(texts), texts) for texts in (firsts, seconds))
        return Encoded(a.ids + b.ids, a.token_types + b.token_types, a.truncated + b.truncated)

    def lengths(self, encoded: Encoded) -> list[int]:
        """Return the padded token count of each pair, in one row or two."""
        if self.joint:
            return [len(ids) for ids in encoded.ids]
        half = len(encoded) // 2
        # Both texts of a pair are padded to the longer one, because they are rows of the same
        # batch.
        return [
            2 * max(len(a), len(b))
            for a, b in zip(encoded.ids[:half], encoded.ids[half:], strict=True)
        ]

    def batch(
        self, encoded: Encoded, rows: Sequence[int]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids, mask and token types (R, T) of the pairs ``rows``, on the model's device;
        None as in ``Bert``.
        """
        chosen = list(rows)
        # The second sentences follow all first ones, as ``forward`` splits them.
        if not self.joint:
            chosen += [len(encoded) // 2 + row for row in rows]
        ids, mask = pad_batch([encoded.ids[row] for row in chosen], self.tokenizer.pad_id)
        types = None
        if self.joint and self.types:
            types, _ = pad_batch([encoded.token_types[row] for row in chosen], 0)
            types = types.to(self.device)
        if mask is not None:
            mask = mask.to(self.device)
        return ids.to(self.device), mask, types


class PairModel(PairScorer, nn.Module):
    """An encoder and a head: pairs of sentences to scores.

    ``task`` says what the outputs are: ``regression``, a similarity from 0 to 1; ``binary``, the
    logit of "yes"; ``classes``, a logit for each of ``labels``, of which one is true; ``labels``,
    the same if several may be; ``logit``, a number on any scale, as of some CrossEncoders. The head
    moves to the encoder's device. Raises ``ValueError`` if the parts do not fit.

    In a batch, ids (R, T) hold R = B joined pairs for the joint head. For the others R = 2B: the
    first B rows are the first sentences, the last B rows the second ones.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        head: Head,
        task: str = "regression",
        labels: Sequence[str] = (),
    ):
        super().__init__()
        if not isinstance(head, tuple(PAIR_HEADS.values())):
            raise InputError(
                f"head must be a JointHead, ConcatHead or CrossHead, not {one_line(head)}"
            )
        self.encoder, self.head, self.activation_fn = encoder, head.to(encoder.device), None
        self.task, self.labels = task, tuple(check_texts(labels))
        self.tokenizer, self.joint = encoder.tokenizer, isinstance(head, JointHead)
        self.types = (
            encoder.bert.config.type_vocab_size > 1
        )  # DistilBERT has no token types, RoBERTa only one
        width = encoder.bert.config.hidden_size
        if isinstance(head, ConcatHead):  # reads vectors, not hidden states
            width = encoder.width
        if head.settings["width"] != width:
            raise ValueError(
                f"a head for width {head.settings['width']} gets {width} from this encoder"
            )
        if self.joint and getattr(encoder.bert, "causal", False):
            raise ValueError(
                "a joint head reads the first token, but in a decoder that token attends to "
                "nothing else"
            )
        if isinstance(head, ClassifierHead):
            check_writable(encoder, head)  # before a training, not after it
        outputs = cast(int, head.settings["outputs"])
        if task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, not {one_line(task)}")
        fits, rule = outputs == 1 and not self.labels, "one, without a label"
        if task in SEVERAL:
            fits, rule = (
                outputs > 1 and len(self.labels) == outputs,
                "two or more, each with a label",
            )
        if not fits:
            raise ValueError(
                f"{task} with {outputs} outputs and labels {list(self.labels)}: {rule}"
            )

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
            outputs = self.head(
                *self.encoder.unscaled(ids, mask, dtype).chunk(2)
            )  # u and v, (B, D) each
        else:
            masks = (None, None) if mask is None else mask.chunk(2)
            outputs = self.head(*self.encoder.hidden(ids, mask, None, dtype).chunk(2), *masks)
        return outputs if self.task in SEVERAL else outputs.squeeze(-1)  # (B, C), or (B, 1) -> (B,)

    @contextmanager
    def computing(self) -> Iterator[None]:
        with evaluating(self), fastest_linear():
            yield

    @PairScorer.max_length.setter  # type: ignore[attr-defined]  # mypy looks for it in this class
    def max_length(self, tokens: int) -> None:
        self.encoder.max_seq_length = tokens
        self.tokenizer = self.encoder.tokenizer

    max_seq_length = max_length  # its name since sentence-transformers 6

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # of its parts, which may be moved
        return self.encoder.device

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return next(self.head.parameters()).dtype

    def _outputs(
        self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool
    ) -> Tensor:
        if not isinstance(self.head, ConcatHead):
            return super()._outputs(firsts, seconds, batch_size, progress)
        # This head reads two vectors, so that each distinct sentence is encoded once, however many
        # pairs it is in.
        encoder = copy.copy(self.encoder)
        encoder.normalize = False  # as in ``forward``
        vectors = encoder.encode(  # (2N, D)
            [*firsts, *seconds],
            prompt="",
            truncate_dim=encoder.width,
            batch_size=batch_size,
            show_progress_bar=progress,
            convert_to_tensor=True,
        )
        self.truncated = encoder.truncated
        u, v = vectors.to(self.device).chunk(2)
        # In blocks, because the features of all pairs at once would take several times as much
        # memory as the vectors.
        outputs = [
            self.head(*block)
            for block in zip(u.split(HEAD_PAIRS), v.split(HEAD_PAIRS), strict=True)
        ]
        scores = torch.cat(outputs).cpu()
        return scores if self.task in SEVERAL else scores.squeeze(-1)

    def save(self, folder: str | Path) -> None:
        """Write the encoder as ``SentenceEncoder.save`` does, ``head.json`` and
        ``head.safetensors`` beside it.

        With a ``ClassifierHead`` the folder is a CrossEncoder of sentence-transformers.
        """
        with atomic_folder(folder) as partial:
            self.write_card(partial, former=Path(folder))
            if isinstance(self.head, ClassifierHead):
                write_cross_encoder(self.encoder, self.head, self.task, self.labels, partial)
                return
            self.encoder.write(partial)
            name = next(name for name, kind in PAIR_HEADS.items() if type(self.head) is kind)
            about = {
                "head": name,
                "task": self.task,
                "labels": list(self.labels),
                "settings": self.head.settings,
            }
            write_json(partial / HEAD_FILE, about)
            tensors = {name: tensor.float() for name, tensor in self.head.state_dict().items()}
            write_safetensors(tensors, partial / "head.safetensors")

    def write_card(self, folder: Path, training: str = "", former: Path | None = None) -> None:
        """Write the model card into a saved folder, unless the user wrote one there, or in the
        ``former`` folder.
        """
        joint = isinstance(self.head, ClassifierHead)  # as a CrossEncoder has it
        results = f"{len(self.labels)} {self.task}" if self.labels else "a score"
        about = f"It reads a pair of texts and gives {results}."
        kind = "CrossEncoder" if joint else "PairModel"
        write_card(folder, kind, about, self.encoder.base_model, training, former, in_both=joint)

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        device: str | torch.device = "auto",
        max_length: int | None = None,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
    ) -> Self:
        """Open a folder that ``save`` wrote, or a CrossEncoder's folder or name on the Hub, in eval
        mode.

        ``max_length`` in tokens, of both texts together if the head reads them joined; ``device``
        as for ``SentenceEncoder.load``; ``activation_fn`` as for ``predict``. ``InputError`` for
        anything missing, unknown or misshapen.
        """
        folder = ModelFolder(find_model(model))
        if has_file(folder.path / HEAD_FILE):
            file, parts = HEAD_FILE, read_pair_model(folder, max_length)
        elif folder.classifier:
            file, parts = CONFIG, read_cross_encoder(folder, max_length)
        else:
            advice = "name a CrossEncoder, or train a head (train --head cross-encoder)"
            raise InputError(
                f"{folder.path} has no {HEAD_FILE}, no head that was trained on pairs: {advice}"
            )
        with reading(folder.path / file):  # parts that do not fit
            model = cls(*parts)
        model.activation_fn, model.encoder.base_model = activation_fn, base_model_of(folder.path)
        return move_to(model.eval(), model.encoder.bert, device)


class CrossEncoder(PairModel):
    """A ``PairModel`` whose head reads both texts together, under sentence-transformers' name.

    ``CrossEncoder.load("cross-encoder/ms-marco-MiniLM-L6-v2").predict([("a query", "a
    document")])``
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        head: Head,
        task: str = "regression",
        labels: Sequence[str] = (),
    ):
        super().__init__(encoder, head, task, labels)
        if not self.joint:
            raise InputError(
                f"a CrossEncoder reads pairs together, a {type(head).__name__} does not: use "
                f"PairModel"
            )


def read_pair_model(
    folder: ModelFolder, limit: int | None
) -> tuple[SentenceEncoder, Head, str, list[str]]:
    """Read the encoder, the head, the task and the labels of a folder that ``PairModel.save``
    wrote.
    """
    about = folder.json_settings(HEAD_FILE)
    name, task, settings = (
        about.get("head", str),
        about.get("task", str),
        about.get("settings", dict, {}),
    )
    labels = about.get("labels", list, [], items=str)
    encoder = SentenceEncoder.from_folder(folder, limit=limit)
    path = folder.path / "head.safetensors"
    with reading(folder.path / HEAD_FILE):
        if name not in PAIR_HEADS:
            raise ValueError(f"head must be one of {', '.join(PAIR_HEADS)}, not {one_line(name)}")
        kind = PAIR_HEADS[name]
        needed = [*inspect.signature(kind).parameters]
        if set(settings) != set(
            needed
        ):  # a setting that is left out must not fall back to a default
            raise ValueError(
                f"settings {one_line(settings)} must state each of {', '.join(needed)}"
            )
        for key, value in settings.items():
            if not isinstance(value, str if key in ("concat", "variant") else int | float):
                raise ValueError(f"settings: {key} cannot be {one_line(value)}")
        with unfilled():  # the weights are replaced at once
            head = kind(**settings)
    fill(head, read_weights(path), path)
    return encoder, head, task, labels  # the model's constructor checks the latter two
