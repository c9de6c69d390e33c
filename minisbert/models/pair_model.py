"""Score pairs of sentences: an encoder and a head (``core/heads.py``), saved in one folder.

model = PairModel(encoder, siamese(encoder.width))
model.predict([("A cat sits.", "A kitten is sitting.")])  # (1,) from 0 to 1, after training
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.card import base_model_of, write_card
from minisbert.checkpoints.layout import (
    CONFIG,
    HEAD_FILE,
    ModelFolder,
    find_model,
    has_file,
    read_folder,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.weights import fill, read_weights, unfilled, write_safetensors
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.heads import ConcatHead, JointHead
from minisbert.core.tokenizer import Encoded, pad_batch
from minisbert.models.batching import BATCH_SIZE, TEXT_TOKENS, budgeted_batches, check_tokens
from minisbert.models.cross_encoder import (
    ClassifierHead,
    check_writable,
    read_cross_encoder,
    write_cross_encoder,
)
from minisbert.models.encode_types import typed_predict
from minisbert.models.pair_heads import (
    HEAD_NAMES,
    Head,
    head_settings,
    make_head,
)
from minisbert.models.properties import CutTexts, as_array, check_count
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import NotFinite
from minisbert.models.transformer_encoder import ChangedBetweenCalls, evaluating
from minisbert.replacements import ENCODE, LOAD, SAVE, explained, takes_parts
from minisbert.system.devices import move_to
from minisbert.system.files import atomic_folder, write_json
from minisbert.system.progress import bar_of
from minisbert.system.reading import reading
from minisbert.system.torch_internals import fastest_linear

# The tasks that have an output for each of several labels.
TASKS_WITH_LABELS = ("classes", "labels")
TASKS = ("regression", "binary", "logit", "classes", "labels")
HEAD_WEIGHTS = "head.safetensors"
HEAD_PAIRS = 4096  # pairs of vectors that a head gets at a time


class PairScorer(CutTexts):
    """Score pairs of texts in batches.

    A subclass has a tokenizer and says in ``compute_outputs`` how pairs become outputs. If it does
    so by ``outputs_of_rows``, it also needs ``__call__``, which computes a batch. ``truncated``
    counts the texts, or the joined pairs, that the last call of this thread had to cut.
    """

    tokenizer: ModelTokenizer
    joint: bool  # both texts of a pair are in one row of tokens
    types: bool  # the encoder tells the two texts of a row apart
    task: str
    labels: tuple[str, ...]
    # Turns outputs into scores in ``predict``; None for the task's own function.
    activation_fn: Callable[[Tensor], Tensor] | None
    __call__: Callable[..., Tensor]  # computes (B,), or logits (B, C), from what ``batch`` returns

    @property
    def device(self) -> torch.device:
        """The device that a batch is computed on."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The type of the outputs."""
        raise NotImplementedError

    def computing(self) -> AbstractContextManager:
        """Return the context in which scores are computed."""
        return torch.inference_mode()

    def compute_outputs(
        self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool
    ) -> Tensor:
        """Compute the outputs of N pairs, on the CPU, and count the cut texts; in ``computing``."""
        raise NotImplementedError

    @property
    def max_length(self) -> int:
        """The most tokens that a row may have, special ones included. Longer rows are cut."""
        return self.tokenizer.limit

    @typed_predict
    @explained(ENCODE)
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
        """Score pairs of texts -> (N,), or logits (N, C) of classes; one pair -> its score.

        A regression's scores are 0 to 1, but not clamped, because equal scores have no rank. Those
        of "yes" or "no", and of labels that may all be true, are probabilities. ``apply_softmax``
        makes probabilities of classes. ``activation_fn`` gets the head's outputs (N, 1) or (N, C)
        instead, such as ``torch.nn.Identity()``; by default ``self.activation_fn``, which ``load``
        sets. ``batch_size`` as in ``TextEncoder.encode``. ``convert_to_tensor`` gives a tensor on
        the CPU, ``convert_to_numpy=False`` a list of them. ``num_workers`` is ignored, as there.
        Raises ``InputError`` for anything but pairs of valid strings.
        """
        single = is_pair(pairs)
        if single:
            firsts, seconds = split_pairs([pairs])
        else:
            firsts, seconds = split_pairs(pairs)
        activation = activation_fn or self.activation_fn
        if activation is not None and not callable(activation):
            raise InputError(
                f"activation_fn must be a function of a tensor, not {one_line(activation)}"
            )

        outputs = self.outputs(firsts, seconds, batch_size, bool(show_progress_bar))
        scores = to_scores(outputs, self.task, activation, bool(apply_softmax))

        # As in sentence-transformers, a tensor wins over an array.
        results: Any = scores
        if convert_to_numpy and not convert_to_tensor:
            results = as_array(scores)
        if single:
            return results[0]
        if not convert_to_numpy and not convert_to_tensor:
            return list(results)
        return results

    @explained(ENCODE)
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
        """Sort the documents by their score with the query, best first.

        ``[{"corpus_id": 2, "score": 0.97}, ...]``; ``return_documents`` adds the "text" of each.
        Equal scores are in the order of the documents. ``top_k`` None ranks all. ``activation_fn``
        and ``num_workers`` as in ``predict``.
        """
        if self.task in TASKS_WITH_LABELS:
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
        # Stable, so that of equal scores the first document comes first.
        order = np.argsort(-scores, kind="stable")[:top_k]
        ranked = []
        for row in order.tolist():
            # A float of Python, because json cannot write NumPy's.
            result: dict[str, Any] = {"corpus_id": row, "score": float(scores[row])}
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
        """Return what the losses take, on the CPU: (N,), or logits (N, C) for several labels.

        Raises ``InputError`` for texts that do not make pairs, and if an output is not finite.
        """
        check_count("batch_size", batch_size)
        if len(firsts) != len(seconds):
            raise InputError(
                f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs"
            )
        with self.computing():
            outputs = self.compute_outputs(firsts, seconds, batch_size, progress)
        if not outputs.isfinite().all():
            raise NotFinite("a score is NaN or infinite: the model's weights are too large")
        return outputs

    def outputs_of_rows(
        self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool
    ) -> Tensor:
        """Compute the outputs of N pairs from rows of tokens."""
        # All pairs are tokenized before the first is computed, because a batch is of pairs of
        # similar length.
        encoded = self.tokenize(firsts, seconds)
        self.truncated = sum(encoded.truncated)
        lengths = self.lengths(encoded)

        count = len(lengths)
        shape = [count]
        if self.task in TASKS_WITH_LABELS:
            shape = [count, len(self.labels)]
        outputs = torch.empty(shape, dtype=self.dtype)
        with bar_of(progress, count, " pairs") as bar:
            for rows in budgeted_batches(lengths, TEXT_TOKENS * batch_size):
                outputs[rows] = self(*self.batch(encoded, rows)).cpu()
                if bar is not None:
                    bar.update(len(rows))
        return outputs

    def tokenize(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """Tokenize N pairs to N joined rows, or to 2N: all first texts, then all second ones."""
        if self.joint:
            return check_tokens(self.tokenizer.encode_pairs(firsts, seconds), firsts)
        a = check_tokens(self.tokenizer.encode(firsts), firsts)
        b = check_tokens(self.tokenizer.encode(seconds), seconds)
        return Encoded(a.ids + b.ids, a.token_types + b.token_types, a.truncated + b.truncated)

    def lengths(self, encoded: Encoded) -> list[int]:
        """Return the padded token count of each pair, in one row or two."""
        if self.joint:
            return [len(ids) for ids in encoded.ids]
        half = len(encoded) // 2
        # The two texts of a pair are rows of one batch, so both are padded to the longer one.
        lengths = []
        for a, b in zip(encoded.ids[:half], encoded.ids[half:], strict=True):
            lengths.append(2 * max(len(a), len(b)))
        return lengths

    def batch(
        self, encoded: Encoded, rows: Sequence[int]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids, mask and token types (R, T) of the pairs ``rows``, on the model's device.

        The mask is None if all rows are equally long; the types are None if the encoder has none.
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


def is_pair(pairs: object) -> bool:
    """True for one pair of texts; False for a collection of pairs, and for what is neither."""
    if not isinstance(pairs, list | tuple) or len(pairs) != 2:
        return False
    return isinstance(pairs[0], str) and isinstance(pairs[1], str)


def split_pairs(pairs: Any) -> tuple[list[str], list[str]]:
    """N pairs to N first and N second texts. ``InputError`` for anything but pairs."""
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise InputError(f"predict takes pairs of texts, not {one_line(pairs)}")
    firsts = []
    seconds = []
    for pair in pairs:
        # subtle: a text of two characters has the length of a pair
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"predict takes pairs of texts, not {one_line(pair)}")
        firsts.append(pair[0])
        seconds.append(pair[1])
    return firsts, seconds


def outputs_of_task(outputs: Tensor, task: str) -> Tensor:
    """Return a head's outputs (N, C) as the losses take them: (N,) if a pair has one number."""
    if task in TASKS_WITH_LABELS:
        return outputs
    return outputs.squeeze(-1)  # (N, 1) -> (N,)


def to_scores(
    outputs: Tensor, task: str, activation: Callable[[Tensor], Tensor] | None, softmax: bool
) -> Tensor:
    """Turn the outputs of a head, (N,) or logits (N, C), into scores of the same shape.

    ``activation`` takes the place of the task's own function; ``softmax`` is done last.
    """
    if activation is not None:
        with torch.no_grad():  # it may be a layer with weights
            # It gets what it would get in sentence-transformers: (N, 1) if a pair has one score.
            if task in TASKS_WITH_LABELS:
                scores = activation(outputs)  # (N, C)
            else:
                scores = activation(outputs.unsqueeze(-1)).squeeze(-1)  # (N,)
    elif task in ("binary", "labels"):
        scores = outputs.sigmoid()
    else:
        scores = outputs

    # As in sentence-transformers, labels that may all be true have a sigmoid in place of a softmax;
    # with the caller's own activation they have the softmax.
    if task == "labels" and activation is None:
        softmax = False
    if softmax and task in TASKS_WITH_LABELS:
        scores = scores.softmax(dim=-1)
    return scores


def compare_in_blocks(head: ConcatHead, u: Tensor, v: Tensor, pairs: int = HEAD_PAIRS) -> Tensor:
    """The head's outputs for N pairs of vectors, (N, D) each -> (N, C), a block at a time.

    The features of all pairs at once would take several times as much memory as the vectors.
    """
    outputs = []
    for u_block, v_block in zip(u.split(pairs), v.split(pairs), strict=True):
        outputs.append(head(u_block, v_block))
    return torch.cat(outputs)


class PairModel(PairScorer, ChangedBetweenCalls):
    """An encoder and a head: pairs of sentences to scores.

    ``task`` says what the outputs are: ``regression``, a similarity from 0 to 1; ``binary``, the
    logit of "yes"; ``classes``, a logit for each of ``labels``, of which one is true; ``labels``,
    the same if several may be; ``logit``, a number on any scale, as of some CrossEncoders. The head
    moves to the encoder's device. Raises ``ValueError`` if the parts do not fit.

    In a batch, ids (R, T) hold R = B joined pairs for the joint head. For the others R = 2B: the
    first B rows are the first sentences, the last B rows the second ones.
    """

    @takes_parts
    def __init__(
        self,
        encoder: SentenceEncoder,
        head: Head,
        task: str = "regression",
        labels: Sequence[str] = (),
    ):
        super().__init__()
        if not isinstance(head, Head):
            raise InputError(
                f"head must be a JointHead, ConcatHead or CrossHead, not {one_line(head)}"
            )
        self.encoder = encoder
        self.head = head.to(encoder.device)
        self.task = task
        self.labels = tuple(check_texts(labels))
        self.activation_fn = None
        self.tokenizer = encoder.tokenizer
        self.joint = isinstance(head, JointHead)
        # DistilBERT has no token types, and RoBERTa has only one.
        self.types = encoder.bert.config.type_vocab_size > 1

        check_head_fits(encoder, head)
        check_task(task, self.labels, head_settings(head)["outputs"])

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
        if not self.joint and len(ids) % 2:
            raise ValueError(f"{len(ids)} rows cannot be split into first and second sentences")
        if isinstance(self.head, JointHead):
            states = self.encoder.hidden(ids, mask, token_types, dtype)  # (B, T, D)
            if isinstance(self.head, ClassifierHead):
                outputs = self.head(states, mask)  # one of ModernBERT may average the real tokens
            else:
                outputs = self.head(states)
        elif isinstance(self.head, ConcatHead):
            u, v = self.encoder.unscaled(ids, mask, dtype).chunk(2)  # (B, D) each
            outputs = self.head(u, v)
        else:
            a, b = self.encoder.hidden(ids, mask, None, dtype).chunk(2)  # (B, T, D) each
            mask_a = None
            mask_b = None
            if mask is not None:
                mask_a, mask_b = mask.chunk(2)  # (B, T) each
            outputs = self.head(a, b, mask_a, mask_b)
        return outputs_of_task(outputs, self.task)

    @contextmanager
    def computing(self) -> Iterator[None]:
        with evaluating(self), fastest_linear():
            yield

    @property
    def max_length(self) -> int:
        """The most tokens that a row may have, special ones included. Longer rows are cut."""
        return self.tokenizer.limit

    @max_length.setter
    def max_length(self, tokens: int) -> None:
        self.encoder.max_seq_length = tokens
        self.tokenizer = self.encoder.tokenizer

    max_seq_length = max_length  # its name since sentence-transformers 6

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.head.parameters()).dtype

    def compute_outputs(
        self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool
    ) -> Tensor:
        if isinstance(self.head, ConcatHead):
            return self.outputs_of_vectors(self.head, firsts, seconds, batch_size, progress)
        return self.outputs_of_rows(firsts, seconds, batch_size, progress)

    def outputs_of_vectors(
        self,
        head: ConcatHead,
        firsts: Sequence[str],
        seconds: Sequence[str],
        batch_size: int,
        progress: bool,
    ) -> Tensor:
        """Compute the outputs of N pairs with a head that reads two vectors.

        Each distinct sentence is encoded once, however many pairs it is in.
        """
        # As in ``forward``, the vectors are not scaled to length 1.
        encoder = copy.copy(self.encoder)
        encoder.normalize = False
        vectors = encoder.encode(  # (2N, D)
            [*firsts, *seconds],
            prompt="",
            truncate_dim=encoder.width,
            batch_size=batch_size,
            show_progress_bar=progress,
            convert_to_tensor=True,
        )
        self.truncated = encoder.truncated
        u, v = vectors.to(self.device).chunk(2)  # (N, D) each
        outputs = compare_in_blocks(head, u, v).cpu()  # (N, C)
        return outputs_of_task(outputs, self.task)

    @explained(SAVE)
    def save(self, folder: str | Path) -> None:
        """Write the encoder as ``SentenceEncoder.save`` does, and the head beside it.

        The head is in ``head.json`` and ``head.safetensors``. With a ``ClassifierHead`` the folder
        is a CrossEncoder of sentence-transformers.
        """
        with atomic_folder(folder) as partial:
            self.write_card(partial, former=Path(folder))
            if isinstance(self.head, ClassifierHead):
                write_cross_encoder(self.encoder, self.head, self.task, self.labels, partial)
                return
            self.encoder.write(partial)
            description = {
                "head": HEAD_NAMES[type(self.head)],
                "task": self.task,
                "labels": list(self.labels),
                "settings": head_settings(self.head),
            }
            write_json(partial / HEAD_FILE, description)
            tensors = {name: tensor.float() for name, tensor in self.head.state_dict().items()}
            write_safetensors(tensors, partial / HEAD_WEIGHTS)

    save_pretrained = save

    def write_card(self, folder: Path, training: str = "", former: Path | None = None) -> None:
        """Write the model card into a saved folder, unless there is one that the user wrote.

        ``former`` is the folder that this one takes the place of: its card counts too.
        """
        results = "a score"
        if self.labels:
            results = f"{len(self.labels)} {self.task}"
        description = f"It reads a pair of texts and gives {results}."
        # sentence-transformers opens a CrossEncoder as well, so its card shows both libraries.
        in_both = isinstance(self.head, ClassifierHead)
        kind = "CrossEncoder" if in_both else "PairModel"
        base_model = self.encoder.base_model
        write_card(folder, kind, description, base_model, training, former, in_both=in_both)

    @classmethod
    @explained(LOAD)
    def load(
        cls,
        model: str | Path,
        *,
        device: str | torch.device | None = "auto",
        max_length: int | None = None,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
    ) -> Self:
        """Open a folder that ``save`` wrote, or a CrossEncoder's folder or name, in eval mode.

        ``max_length`` in tokens, of both texts together if the head reads them joined; ``device``
        as for ``SentenceEncoder.load``; ``activation_fn`` as for ``predict``. ``InputError`` for
        anything missing, unknown or misshapen.
        """
        folder = read_folder(find_model(model))
        return cls.load_folder(
            folder, device=device, max_length=max_length, activation_fn=activation_fn
        )

    @classmethod
    def load_folder(
        cls,
        folder: ModelFolder,
        *,
        device: str | torch.device | None = "auto",
        max_length: int | None = None,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
    ) -> Self:
        """Open a model whose folder has been read, as ``load`` does."""
        if has_file(folder.path / HEAD_FILE):
            file = HEAD_FILE
            encoder, head, task, labels = read_pair_model(folder, max_length)
        elif folder.classifier:
            file = CONFIG
            encoder, head, task, labels = read_cross_encoder(folder, max_length)
        else:
            advice = "name a CrossEncoder, or train a head (train --head cross-encoder)"
            raise InputError(
                f"{folder.path} has no {HEAD_FILE}, no head that was trained on pairs: {advice}"
            )
        with reading(folder.path / file):  # an error of parts that do not fit names the file
            model = cls(encoder, head, task, labels)
        model.activation_fn = activation_fn
        model.encoder.base_model = base_model_of(folder.path)
        return move_to(model.eval(), model.encoder.bert, device)


class CrossEncoder(PairModel):
    """A ``PairModel`` whose head reads both texts together, under sentence-transformers' name.

    model = CrossEncoder.load("cross-encoder/ms-marco-MiniLM-L6-v2")
    model.predict([("a query", "a document")])
    """

    @takes_parts
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


def check_head_fits(encoder: SentenceEncoder, head: Head) -> None:
    """Raise ``ValueError`` if the encoder does not give what the head reads."""
    expected = encoder.bert.config.hidden_size
    if isinstance(head, ConcatHead):  # it reads vectors, not hidden states
        expected = encoder.width
    width = head_settings(head)["width"]
    if width != expected:
        raise ValueError(f"a head for width {width} gets {expected} from this encoder")
    if isinstance(head, JointHead) and getattr(encoder.bert, "causal", False):
        raise ValueError(
            "a joint head reads the first token, but in a decoder that token attends to nothing "
            "else"
        )
    if isinstance(head, ClassifierHead):
        check_writable(encoder, head)  # before a training, not after it


def check_task(task: str, labels: Sequence[str], outputs: int) -> None:
    """Raise ``ValueError`` unless there are as many outputs and labels as the task has."""
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, not {one_line(task)}")
    if task in TASKS_WITH_LABELS:
        fits = outputs > 1 and len(labels) == outputs
        rule = "two or more, each with a label"
    else:
        fits = outputs == 1 and not labels
        rule = "one, without a label"
    if not fits:
        raise ValueError(f"{task} with {outputs} outputs and labels {list(labels)}: {rule}")


def read_pair_model(
    folder: ModelFolder, limit: int | None
) -> tuple[SentenceEncoder, Head, str, list[str]]:
    """Read the encoder, the head, the task and the labels of a folder of ``PairModel.save``.

    The model's constructor checks the task and the labels.
    """
    description = folder.json_settings(HEAD_FILE)
    name = description.get("head", str)
    task = description.get("task", str)
    settings = description.get("settings", dict, {})
    labels = description.get("labels", list, [], items=str)
    encoder = SentenceEncoder.from_folder(folder, limit=limit)

    with reading(folder.path / HEAD_FILE), unfilled():  # the weights are replaced at once
        head = make_head(name, settings)
    weights = folder.path / HEAD_WEIGHTS
    fill(head, read_weights(weights), weights)
    return encoder, head, task, labels
