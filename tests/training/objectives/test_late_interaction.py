"""Training on a vector per token: the losses written out, in parts, the reference's, whole runs, and bad input."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from minisbert.core import InputError
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.gradient_cache import GradientCache
from minisbert.training.objectives import Objective
from minisbert.training.objectives.encoders import LateInteraction, TokenNetwork
from minisbert.training.settings import parse
from minisbert.training.train import load_trainable, main, make_objective
from tests import toys
from tests.models.test_multi_vector_encoder import EXPANSIONS, write
from tests.parity import GRADIENT, PIECE, assert_parity

ROWS = [7, 0, 3, 12, 5]


@pytest.fixture
def make(files, tmp_path):
    """``make("triplets")`` -> the objective on a model that fills queries up and skips punctuation, in float64."""

    def build(form: str, *flags: str, expansion: str = "fixed") -> Objective:
        folder = tmp_path / expansion
        model = folder if folder.exists() else write(folder, EXPANSIONS[expansion])
        data = ["--data", files[form], "--dev", files["dev"], "--test", files["test"]]
        options = parse(["--model", str(model), *data, *(flags or ["--objective", "late-interaction"])])
        task = make_objective(options, load_trainable(options, torch.device("cpu")))
        task.model.double().eval()
        return task

    return build


def columns(files: dict[str, str], form: str) -> list[list[str]]:
    lines = Path(files[form]).read_text().splitlines()[1:]
    return [*map(list, zip(*(lines[row].split("\t") for row in ROWS), strict=True))]


def best_matches(query: np.ndarray, document: np.ndarray) -> float:
    return sum(max(float(a @ b) for b in document) for a in query)


def tables(task: Objective, texts: list[list[str]]) -> list[np.ndarray]:
    """Of each column of documents the scores with all queries, (B, B), in loops over matrices encoded alone."""
    queries = task.model.encode(texts[0], query=True)
    found = []
    for column in texts[1:]:
        documents = task.model.encode(column, prompt_name="document")
        found.append(np.array([[best_matches(queries[i], documents[j]) for j in range(5)] for i in range(5)]))
    return found


@pytest.mark.parametrize(("form", "expansion"), [("triplets", "fixed"), ("several", "none"), ("several", "attended")])
def test_the_loss_ranks_each_positive_above_all_texts_of_the_batch(make, files, form, expansion):
    task = make(form, expansion=expansion)
    scores = torch.from_numpy(np.concatenate(tables(task, columns(files, form)), axis=1))  # (5, 5 C)
    expected = functional.cross_entropy(scores, torch.arange(5))
    assert_parity("loss", task.loss(task.network, ROWS), expected, PIECE)


def test_a_batch_in_parts_has_the_gradients_of_the_whole(make):
    task, found = make("several"), []
    for network in (task.network, GradientCache(task.network, lambda rows: [rows[:2], rows[2:3], rows[3:]])):
        task.network.zero_grad()
        task.loss(network, ROWS).backward()
        found.append({name: p.grad.clone() for name, p in task.network.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert "model.projection.linear.weight" in found[0]
    for name, gradient in found[0].items():
        assert_parity(name, found[1][name], gradient, GRADIENT)


@pytest.mark.parametrize("form", ["triplets", "several"])
def test_a_cross_encoders_scores_are_learned_by_best_matches(make, files, tiny, tmp_path, form):
    torch.manual_seed(0)
    PairModel(SentenceEncoder.load(tiny), ClassifierHead(24, dropout=0.0), "logit").save(tmp_path / "teacher")
    task = make(form, "--teacher", str(tmp_path / "teacher"))
    first, *others = columns(files, form)
    teacher = PairModel.load(tmp_path / "teacher")
    scored = [teacher.predict([*zip(first, other, strict=True)]) for other in others]
    wanted = torch.tensor(np.stack(scored, axis=1)).double()  # (B, C)
    scores = torch.from_numpy(np.stack([table.diagonal() for table in tables(task, columns(files, form))], axis=1))
    if form == "triplets":
        expected = functional.mse_loss(scores[:, 0] - scores[:, 1], wanted[:, 0] - wanted[:, 1])
    else:
        logs = scores.log_softmax(dim=1), wanted.log_softmax(dim=1)
        expected = functional.kl_div(*logs, log_target=True, reduction="batchmean")
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-5)  # float32 logits


@pytest.mark.reference
@pytest.mark.parametrize("expansion", ["fixed", "attended", "none"])
def test_loss_and_gradients_equal_the_references(make, files, tmp_path, expansion):
    from sentence_transformers import MultiVectorEncoder as Reference
    from sentence_transformers.multi_vector_encoder import losses

    task, texts = make("several", expansion=expansion), columns(files, "several")
    theirs = Reference(str(tmp_path / expansion), device="cpu").double().eval()
    sides = [("query", theirs.prompts["query"])] + [("document", theirs.prompts["document"])] * 3
    features = [
        theirs.preprocess([prompt + text for text in column], task=side) | {"task": side}
        for column, (side, prompt) in zip(texts, sides, strict=True)
    ]
    expected = losses.MultiVectorMultipleNegativesRankingLoss(theirs)(features)
    found = task.loss(task.network, ROWS)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)  # the reference's scores are float32
    found.backward()
    expected.backward()
    gradient = dict(theirs.named_parameters())["1.linear.weight"].grad
    torch.testing.assert_close(task.model.projection.linear.weight.grad, gradient, rtol=0, atol=1e-5)


def test_pairs_are_scored_by_the_mean_best_match(make, files):
    task = make("triplets")
    pairs = [(row.sentence1, row.sentence2, row.score) for row in task.rows["dev"]]
    values = []
    for first, second, _ in pairs:
        query, document = (task.model.encode([text], query=side)[0] for text, side in ((first, True), (second, False)))
        values.append(best_matches(query, document) / len(query))
    expected = np.corrcoef(values, [score for *_, score in pairs])[0, 1]
    assert task.evaluate("dev")["pearson"] == pytest.approx(expected, abs=1e-9)


def test_a_plain_encoder_learns_and_a_stopped_run_resumes_to_the_same_bits(tiny, files, tmp_path):
    flags = ["--model", str(tiny), *toys.flags(files, "late-interaction"), "--batch-size", "10", "--epochs", "12"]
    flags += ["--lr", "5e-3", "--dtype", "float32", "--log-every", "1", "--device", "cpu"]
    main([*flags, "--out", str(tmp_path / "whole")])
    losses = toys.losses(tmp_path / "whole")
    assert np.mean(losses[:3]) > 2.8  # at random one of 20 texts: log 20 = 3.0
    assert np.mean(losses[-3:]) < 2.5
    trained = MultiVectorEncoder.load(tmp_path / "whole" / "model").encode(["a cat"], query=True)[0]
    assert trained.shape == (4, 128)
    np.testing.assert_allclose(np.linalg.norm(trained, axis=1), 1, atol=1e-6)
    with pytest.raises(InputError, match=r"MultiVectorEncoder\.load opens it"):
        SentenceEncoder.load(tmp_path / "whole" / "model")
    toys.stop_at(5, (TokenNetwork, "forward"), main, [*flags, "--out", str(tmp_path / "run")])
    main(["--resume", str(tmp_path / "run")])
    first, second = (tmp_path / run / "model" / "model.safetensors" for run in ("whole", "run"))
    assert first.read_bytes() == second.read_bytes()


def test_what_a_model_with_a_vector_per_token_cannot_learn(make, tiny):
    with pytest.raises(InputError, match="a MultiVectorEncoder is not trained by objective mnr"):
        make("triplets", "--objective", "mnr")
    with pytest.raises(InputError, match="gives vectors; a cross-encoder with one score a pair is needed"):
        make("triplets", "--teacher", str(tiny))


def test_the_length_of_a_row_is_that_in_a_batch_of_rows_like_it(make):
    task = make("triplets")
    assert isinstance(task, LateInteraction)
    longest = [max(len(column.ids[row]) for column in task.encoded) for row in ROWS]
    assert [task.lengths[row] for row in ROWS] == [3 * length for length in longest]
