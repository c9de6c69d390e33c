"""Distillation: a student learns the vectors of a teacher, or a cross-encoder's scores."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from minisbert.checkpoints.layout import find_model, read_folder
from minisbert.core import InputError
from minisbert.core.data import TextColumns
from minisbert.core.encoder import cosine, normalize
from minisbert.core.heads import ConcatHead
from minisbert.data.columns import PAIRS, Columns
from minisbert.models.batching import BATCH_SIZE
from minisbert.models.pair_model import TASKS_WITH_LABELS, PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as formulas
from minisbert.training.base_loss import (
    SCORED,
    Loss,
    Network,
    RowNetwork,
    VectorNetwork,
    check_encoder,
    columns_of,
)
from minisbert.training.distributed import is_first, say_once
from minisbert.training.head_losses import candidate_pairs
from minisbert.training.scores import Evaluation, evaluate_encoder

SCALE = 20.0  # from a student's cosine to the range of a cross-encoder's logits


@dataclass
class Distillation(Loss):
    """Learn what a teacher says, computed once for each row before the training.

    Use it to make a model smaller or faster, to teach a second language, or to pass on what a
    cross-encoder knows. The kind of teacher decides:

    - an encoder, and rows of a sentence and maybe its translation: both learn the teacher's vector
      of the sentence, by squared error (Reimers and Gurevych 2020, section 1). If the student
      scales its vectors to length 1, the targets are scaled too; if it is narrower than its
      teacher, they are the teacher's principal columns. sentence-transformers: ``MSELoss``
    - a cross-encoder, and rows of a query, a positive and negatives: the student's scaled cosines
      learn its scores. With one negative the difference by squared error (Hofstätter et al. 2020),
      with several the softmax by KL divergence. sentence-transformers: ``MarginMSELoss`` and
      ``DistillKLDivLoss``
    """

    columns: ClassVar[tuple[Columns, ...]] = (Columns(1), PAIRS)
    default_data: ClassVar[str | None] = "stsb"
    judged_by: ClassVar[tuple[Columns, ...]] = (SCORED, PAIRS)
    teacher: str | SentenceEncoder | PairModel | None = None

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        check_encoder(model, "distillation")
        if self.teacher is None:
            raise InputError("loss distillation needs a teacher: --teacher MODEL")
        if isinstance(self.teacher, str):
            name = self.teacher
            teacher = load_teacher(name, model.device)
        else:
            name = "the teacher"
            teacher = self.teacher

        # A resumed run must have the same targets. It compares this hash and not the targets, whose
        # last bits may change with the number of threads.
        texts = [list(row) for row in rows]
        self.taught = content_hash(teacher.state_dict(), {"texts": texts})
        if isinstance(teacher, PairModel):
            self.prepare_scores(teacher, rows, name)
        else:
            self.prepare_vectors(model, teacher, rows, name)
        return VectorNetwork(model, TextColumns(model.tokenizer, columns_of(rows)))

    def prepare_vectors(
        self, student: SentenceEncoder, teacher: SentenceEncoder, rows: Sequence[tuple], name: str
    ) -> None:
        """Compute the teacher's vectors of the first texts, as wide as the student's."""
        if len(rows[0]) > 2:
            raise InputError(
                f"rows of {len(rows[0])} texts; a teacher's vectors need a sentence and a "
                "translation"
            )
        texts = [row[0] for row in rows]
        say_once(f"teacher {name}: vectors of {len(texts):,} sentences")
        vectors = teacher.encode(texts, show_progress_bar=is_first(), convert_to_tensor=True)
        if vectors.shape[1] != student.width:
            say_once(f"its {vectors.shape[1]} columns are turned into {student.width}")
        targets = formulas.principal_columns(vectors, student.width)  # (N, D)
        if student.normalize:
            targets = normalize(targets)
        self.targets = targets.cpu()
        self.teaches_scores = False

    def prepare_scores(self, teacher: PairModel, rows: Sequence[tuple], name: str) -> None:
        """Compute the teacher's scores of each query with its positive and its negatives."""
        candidates = len(rows[0]) - 1
        if candidates < 2:
            raise InputError(
                f"rows of {len(rows[0])} texts: a cross-encoder teaches rows with a negative; "
                "minisbert mine finds them"
            )
        say_once(f"teacher {name}: scores of {len(rows) * candidates:,} pairs")
        firsts, seconds = candidate_pairs(rows)
        with teacher.computing():  # in eval mode, without gradients
            outputs = teacher.outputs(firsts, seconds, BATCH_SIZE, progress=is_first())  # (N C,)
        # A score of regression goes up to 1, as the student's cosines do: both are scaled alike.
        if teacher.task == "regression":
            outputs = SCALE * outputs
        self.targets = outputs.view(-1, candidates)  # (N, C)
        self.teaches_scores = True

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        vectors = network(batch)  # (B, n, D)
        targets = self.targets[batch].to(vectors)
        if self.teaches_scores:
            query, *candidates = vectors.unbind(dim=1)  # (B, D) each
            cosines = [cosine(query, candidate) for candidate in candidates]
            student = SCALE * torch.stack(cosines, dim=1)  # (B, C)
            if len(candidates) == 2:
                return formulas.margin_mse_loss(student, targets)
            return formulas.kl_divergence_loss(student, targets)

        # The sentence and its translation have the same target.
        repeated = targets.repeat_interleave(vectors.shape[1], dim=0)  # (B n, D)
        return formulas.distillation_loss(vectors.flatten(0, 1), repeated)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        return evaluate_encoder(model, rows)


def load_teacher(name: str, device: torch.device) -> SentenceEncoder | PairModel:
    """Open a teacher: an encoder, or a cross-encoder that gives one score for a pair."""
    folder = read_folder(find_model(name))
    if not folder.holds_pair_model:
        return SentenceEncoder.load(folder.path, device=device)
    teacher = PairModel.load(folder.path, device=device)
    # Its head compares two vectors, and they are what it has to teach.
    if isinstance(teacher.head, ConcatHead):
        return teacher.encoder
    if teacher.task in TASKS_WITH_LABELS:
        raise InputError(
            f"--teacher {name} gives classes; a cross-encoder with one score for a pair is needed"
        )
    return teacher


def content_hash(tensors: dict[str, Tensor], content: dict[str, Any]) -> str:
    """Hash JSON and every tensor: name, dtype, shape and bytes (sha256)."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        header = [name, str(tensor.dtype), list(tensor.shape)]
        digest.update(json.dumps(header).encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()
