"""Pairs of sentences to scores: an encoder and a head (``core/heads.py``) in one object, saved in one folder.

model = PairModel(encoder, siamese(encoder.width))
model.scores(["A cat sits."], ["A kitten is sitting."])  # (1,) on the scale of 0 to 5, after training
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.heads import ConcatHead, CrossHead, Head, JointHead
from minisbert.core.weights import fill
from minisbert.folder.find import find_model
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.overwrite import model_folder
from minisbert.folder.settings import CONFIG, HEAD_FILE, PairHeadSettings
from minisbert.folder.weights import Unfilled, read_weights, write_safetensors
from minisbert.models.cross_encoder import ClassifierHead, check_writable, read_cross_encoder, write_cross_encoder
from minisbert.models.guards import evaluating
from minisbert.models.pair_scorer import SEVERAL, PairScorer, check_pairs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.devices import choose_device
from minisbert.system.files import write_json
from minisbert.system.torch_internals import fastest_linear

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
    about = folder.parse(HEAD_FILE, PairHeadSettings)
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
