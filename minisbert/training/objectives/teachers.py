"""Train with a teacher: a student learns its vectors, or its scores of a query with several texts."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minisbert.checkpoints.layout import ModelFolder, find_model
from minisbert.core import InputError
from minisbert.core.encoder import cosine, normalize
from minisbert.core.heads import ConcatHead
from minisbert.data.datasets import translation_rows, triplet_rows
from minisbert.models.encoder import BATCH_SIZE
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import SEVERAL, PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.by_tokens import max_sim_matrix
from minisbert.training.distributed import is_first, say_once
from minisbert.training.losses import distillation_loss, kl_divergence_loss, margin_mse_loss, principal_columns
from minisbert.training.objectives.base import Network, sources_of
from minisbert.training.objectives.encoders import TokenNetwork, UnscoredRows, query_and_documents
from minisbert.training.objectives.pairs import candidate_pairs
from minisbert.training.run_folder import content_hash
from minisbert.training.settings import RunSettings

SCALE = 20.0  # from a student's cosine to the range of a cross-encoder's logits; that of the ranking losses


def distillation(options: RunSettings, encoder: SentenceEncoder) -> "Distillation":
    """Make the objective for the kind of teacher: a cross-encoder teaches scores, any other model vectors."""
    if options.teacher is None:
        raise InputError("objective distillation needs --teacher MODEL")
    teacher = load_teacher(options.teacher, encoder.device)
    needed = "a cross-encoder with one score a pair is needed"
    if isinstance(teacher, PairModel):
        if teacher.task in SEVERAL:
            raise InputError(f"--teacher {options.teacher} gives classes; {needed}")
        if isinstance(encoder, MultiVectorEncoder):
            return LateDistillation(options, encoder, teacher)
        return ScoreDistillation(options, encoder, teacher)
    if isinstance(encoder, MultiVectorEncoder):
        raise InputError(f"--teacher {options.teacher} gives vectors; {needed}")
    return VectorDistillation(options, encoder, teacher)


def load_teacher(model: str, device: torch.device) -> SentenceEncoder | PairModel:
    """Load a model whose head reads the tokens of a pair, or an encoder; of a head over two vectors its encoder."""
    folder = ModelFolder(find_model(model))
    if not folder.holds_pair_model:
        return SentenceEncoder.load(folder.path, device=device)
    pair_model = PairModel.load(folder.path, device=device)
    if isinstance(pair_model.head, ConcatHead):
        return pair_model.encoder
    return pair_model


class Distillation(UnscoredRows):
    """Learn targets that the teacher computes once for each row, before the training."""

    separable, geometry = True, False

    def __init__(
        self, options: RunSettings, encoder: SentenceEncoder, rows: list[tuple], note: str, teacher: nn.Module
    ):
        columns = list(zip(*rows, strict=True))
        super().__init__(options, encoder, columns, note)
        weights = {name: tensor.cpu().contiguous() for name, tensor in teacher.state_dict().items()}
        # for the fingerprint, instead of the targets: a teacher's last bits may change with the number of threads
        self.taught = content_hash(weights, {"texts": columns})


class VectorDistillation(Distillation):
    """Learn the teacher's vector of a sentence, for the sentence and for its translation if there is one.

    By squared error (Reimers and Gurevych 2020, section 1). If the student scales its vectors to length 1, the targets
    are scaled too; if it is narrower than its teacher, they are the teacher's principal columns.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, teacher: SentenceEncoder):
        rows, note = translation_rows(sources_of(options))
        super().__init__(options, encoder, rows, note, teacher)
        say_once(f"teacher {options.teacher}: vectors of {len(rows):,} sentences")
        texts = [row[0] for row in rows]
        vectors = teacher.encode(texts, show_progress_bar=is_first(), convert_to_tensor=True)  # (N, the teacher's D)
        targets = principal_columns(vectors, encoder.width)  # (N, D)
        if encoder.normalize:
            targets = normalize(targets)
        self.targets = targets.numpy()  # no Tensor, which would be part of the fingerprint
        self.notes["train"] += f", taught the vectors of {options.teacher}"
        if vectors.shape[1] != encoder.width:
            self.notes["train"] += f", its {vectors.shape[1]} columns turned into {encoder.width}"

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        vectors = network(rows)  # (B, n, D)
        targets = torch.from_numpy(self.targets[rows]).to(vectors)  # (B, D)
        return distillation_loss(vectors.flatten(0, 1), targets.repeat_interleave(vectors.shape[1], dim=0))


class ScoreDistillation(Distillation):
    """Learn a cross-encoder's scores of a query with a positive and negatives by the student's scaled cosines.

    With one negative the margin by squared error (Hofstätter et al. 2020), with several the softmax over them by KL
    divergence. The teacher's scores are its logits; of a regression, whose outputs are 0 to 1, scaled as the cosines.
    """

    def __init__(self, options: RunSettings, encoder: SentenceEncoder, teacher: PairModel):
        rows, note = triplet_rows(sources_of(options))
        candidates = len(rows[0]) - 1
        if candidates < 2:
            raise InputError(f"{note}: a cross-encoder teaches rows with a negative; minisbert mine finds them")
        super().__init__(options, encoder, rows, note, teacher)
        say_once(f"teacher {options.teacher}: scores of {len(rows) * candidates:,} pairs")
        with teacher.computing():
            outputs = teacher.outputs(*candidate_pairs(rows), BATCH_SIZE, progress=is_first())  # (N C,)
        if teacher.task == "regression":
            outputs = SCALE * outputs
        self.targets = outputs.view(-1, candidates).numpy()  # (N, C)
        self.formula, by = kl_divergence_loss, "KL divergence"
        if candidates == 2:
            self.formula, by = margin_mse_loss, "margin MSE"
        self.notes["train"] += f", taught the scores of {options.teacher} by {by}"

    def loss(self, network: Network, rows: Sequence[int]) -> Tensor:
        scores = self.student_scores(network, rows)
        return self.formula(scores, torch.from_numpy(self.targets[rows]).to(scores))

    def student_scores(self, network: Network, rows: Sequence[int]) -> Tensor:
        """Score each row's query with its C texts by the student, (B, C)."""
        query, *others = network(rows).unbind(dim=1)  # (B, D) each
        return SCALE * torch.stack([cosine(query, other) for other in others], dim=1)


class LateDistillation(ScoreDistillation):
    """Learn the same scores by ``max_sim`` instead of the scaled cosine."""

    network: TokenNetwork

    def student_scores(self, network: Network, rows: Sequence[int]) -> Tensor:
        # (B, T, K), (B, C, T, K), (B, C, T)
        queries, documents, real = query_and_documents(self.network, network, rows)
        return torch.vmap(max_sim_matrix)(queries.unsqueeze(1), documents, real).squeeze(1)
