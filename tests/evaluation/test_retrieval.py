"""Retrieval: the metrics against loops and the reference libraries, the readers, the command."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from minisbert.commands.evaluate import main
from minisbert.core import InputError, losses
from minisbert.evaluation.metrics import METRICS
from minisbert.evaluation.retrieval import (
    REPORTED,
    Retrieval,
    load_retrieval,
    load_retrieval_folder,
    ranked_grades,
    retrieval_from_pairs,
    retrieval_scores,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import main as train
from tests import toys

# -------------------------------------------------------------------------------------------
# formulas


@pytest.mark.parametrize(
    ("ranked", "judged", "k", "message"),
    [
        ([1, 0], [[1]], 1, "ranked"),
        (np.ones((0, 2)), np.ones((0, 2)), 1, "ranked"),
        ([[1]], [[1]], 0, "k"),
        ([[0], [math.nan]], [[1], [1]], 1, "ranked"),
        ([[0, 0], [1, 2]], [[1], [1]], 2, "query 1"),
    ],
)
def test_input_without_a_metric_is_refused(ranked, judged, k, message):
    for metric in METRICS.values():
        with pytest.raises(ValueError, match=message):
            metric(ranked, judged, k)


def test_a_ranking_without_its_own_document_still_has_the_largest_cutoff():
    """All documents at one place; the first query is the first of them, the second the last."""
    task = Retrieval(["q", "q"], ["d"] * 4, [{2: 1}, {2: 1}], [0, 3])
    ones = np.ones((4, 2))
    assert ranked_grades(task, ones[:2], ones, depth=2).tolist() == [[0, 1], [0, 0]]
    alone = Retrieval(["q"], ["d"], [{0: 1}], [0])  # its only document
    assert ranked_grades(alone, ones[:1], ones[:1], depth=2).tolist() == [[0]]


# ---------------------------------------------------------------------------------- files and
# command

QUERIES = [("q1", "the cat"), ("q2", "a small dog"), ("q3", "music"), ("q4", "rain")]
CORPUS = [
    ("d1", "", "a cat sits on the mat"),
    ("d2", "the dog", "a small dog is running"),
    ("d3", "", "snow and rain"),
    ("d4", "the guitar", "a man plays"),
    ("q4", "", "rain"),
    ("d5", "", "the dog eats"),
]
QRELS = (
    "query-id\tcorpus-id\tscore\nq1\td1\t2\nq2\td2\t1\nq2\td5\t3\nq2\td1\t0\nq4\td3\t1\nq3\td4\t0\n"
)


@pytest.fixture
def texts(tmp_path) -> tuple[str, str, str]:
    """The three files; q3 has no relevant document."""
    rows = [{"_id": name, "text": text, "metadata": {}} for name, text in QUERIES]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [
        {"_id": name, "text": text} | ({"title": title} if title else {})
        for name, title, text in CORPUS
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "qrels.tsv").write_text(QRELS)
    return tuple(str(tmp_path / name) for name in ("queries.jsonl", "corpus.jsonl", "qrels.tsv"))


def test_what_the_files_hold(texts):
    found = load_retrieval(*texts)
    assert found.queries == ["the cat", "a small dog", "rain"]
    assert found.corpus[:2] == ["a cat sits on the mat", "the dog a small dog is running"]
    assert found.grades == [{0: 2}, {1: 1, 5: 3, 0: 0}, {2: 1}]
    assert (found.skipped, found.unjudged) == ([None] * 3, 1)
    assert load_retrieval(*texts, ignore_identical_ids=True).skipped == [None, None, 4]
    rows = QRELS.partition("\n")[2].replace("\n", "\r\n")
    Path(texts[2]).write_bytes(rows.encode())
    assert load_retrieval(*texts) == found  # without a header, with carriage returns
    Path(texts[2]).write_bytes(f"query\tdocument\tweight\n{rows}".encode())
    with pytest.raises(InputError, match="weight"):
        load_retrieval(*texts)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("corpus", "\n\n", "empty"),
        ("corpus", '{"_id": "d", "text": "a", "title": 3}\n', "line 1.*title"),
        ("corpus", '{"_id": "d", "text": "a"}\n' * 2, "line 2.*'d'"),
        ("corpus", '{"_id": "d", "text": "\\ud800"}\n', "line 1.*surrogate"),
        (
            "qrels",
            "1048585\twhat is paula deen's brother\n",
            "line 1.*columns.*queries",
        ),  # MS MARCO's queries.tsv
        ("qrels", "query\tanswer\tscore\n", "line 1.*answer"),
        ("qrels", "q1 d1 1\n", "line 1: 1 columns.*tabs"),
        ("qrels", "q1\td1\t1\n\nq2 0 d2 1\n", "line 3: 4 columns.*3"),
        ("qrels", "q1 d1 1 0.7\n", "line 1: the second of four columns is 'd1'.*TREC"),
        ("qrels", "q1\titer\td1\t1\n", "line 1: the second of four columns is 'iter'"),
        ("qrels", "q1\tx1\t1\nq2\tx2\t1\n", "none of the 2 judged documents is in .*corpus"),
        ("qrels", "q9\td1\t1\n", "line 1.*'q9'"),
        ("qrels", "q1\td1\t0.5\n", "line 1.*'0.5'"),
        ("qrels", "q1\td1\t1\nq1\td1\t1\n", "line 2.*'d1'"),
        ("qrels", "", "relevant"),
    ],
)
def test_bad_files_are_named_with_their_line(texts, tmp_path, file, text, message):
    suffix = "tsv" if file == "qrels" else "jsonl"
    (tmp_path / f"{file}.{suffix}").write_text(text)
    with pytest.raises(InputError, match=message):
        load_retrieval(*texts)
    if "queries" in message:
        with pytest.raises(InputError, match=r"qrels\.tsv is a table.*_id"):
            load_retrieval(texts[2], *texts[1:])


@pytest.mark.parametrize("line", ["{} 0 {} {}", "{}\tQ0\t{}\t{}", "{}  4.5  {}  {}"])
def test_qrels_of_trec(texts, line):
    """Four columns between tabs or blanks, as NIST, MS MARCO and pyserini have them."""
    expected = load_retrieval(*texts)
    rows = [row.split("\t") for row in QRELS.splitlines()[1:]]
    Path(texts[2]).write_text("\n".join(line.format(*row) for row in rows))
    assert load_retrieval(*texts) == expected


def test_a_corpus_by_anserinis_and_langchains_names(texts):
    expected = load_retrieval(*texts)
    for path, key in ((texts[0], "page_content"), (texts[1], "contents")):
        content = Path(path).read_text()
        Path(path).write_text(content.replace('"_id"', '"id"').replace('"text"', f'"{key}"'))
    assert load_retrieval(*texts) == expected


def test_a_judged_document_that_the_corpus_lacks_counts_as_never_found(texts, tiny, capsys):
    """As in trec_eval: q1 has one more relevant document, so its recall is halved and its nDCG has
    a larger ideal.
    """
    before = retrieval_scores(
        SentenceEncoder.load(tiny), load_retrieval(*texts), show_progress_bar=False
    )
    with Path(texts[2]).open("a") as file:
        file.write("q1\tgone\t1\nq3\tlost\t1\n")
    task = load_retrieval(*texts)
    assert (
        "qrels.tsv: 2 judged documents are not in the corpus; they count as never found"
        in capsys.readouterr().err
    )
    assert (len(task.corpus), task.queries) == (6, ["the cat", "a small dog", "music", "rain"])
    found = retrieval_scores(SentenceEncoder.load(tiny), task, show_progress_bar=False)
    assert before["recall@10"] == 1.0  # there are six documents
    assert found["recall@10"] == pytest.approx((1 / 2 + 1 + 0 + 1) / 4, abs=1e-12)


def test_pairs_are_a_search_among_all_positives():
    """Equal anchors are one query, equal positives one document; negatives are not searched."""
    rows = [("a", "x", "n"), ("b", "y", "z"), ("a", "y", "n"), ("a", "x", "n")]
    assert retrieval_from_pairs(rows) == Retrieval(
        ["a", "b"], ["x", "y"], [{0: 1, 1: 1}, {1: 1}], [None, None]
    )


def flags(texts: tuple[str, str, str]) -> list[str]:
    return [
        f"--{name}={text}" for name, text in zip(("queries", "corpus", "qrels"), texts, strict=True)
    ]


def test_the_command_prints_json_and_a_table(tiny, texts, capsys):
    task, encoder = load_retrieval(*texts, ignore_identical_ids=True), SentenceEncoder.load(tiny)
    scores = retrieval_scores(encoder, task, show_progress_bar=False)
    main(["--model", str(tiny), *flags(texts), "--ignore-identical-ids", "--json"])
    found = json.loads(capsys.readouterr().out)
    about = {f"cosine_{name}": value for name, value in scores.items()}
    about |= {
        "queries": texts[0],
        "ignore_identical_ids": True,
        "evaluated_queries": 3,
        "documents": 6,
    }
    assert found | about | {"pooling": "mean"} == found
    main(["--model", str(tiny), *flags(texts), "--ignore-identical-ids"])
    out = capsys.readouterr().out
    assert "data      3 queries (1 more have no relevant document), 6 documents" in out
    cells = out.splitlines()[-2].split()
    assert cells == ["@10", *(f"{100 * found[f'cosine_{name}@10']:.2f}" for name in METRICS)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queries", "q", "--qrels", "r"], "--corpus"),
        (["--data", "stsb", "--queries", "q", "--corpus", "c", "--qrels", "r"], "--data"),
        (["--suite", "sts", "--data", "stsb"], "--suite"),
        (["--suite", "sts", "--split", "test"], "--split"),
        (["--ignore-identical-ids"], "--ignore-identical-ids"),
        (["--rerank", "any"], "--rerank"),
        (["--queries", "none.jsonl", "--corpus", "c", "--qrels", "r"], "none.jsonl"),
        (["--data", "none.tsv"], "none.tsv"),
    ],
)
def test_options_that_do_not_go_together(arguments, message):
    with pytest.raises(InputError, match=message):
        main(arguments)


@pytest.mark.reference
def test_scores_equal_those_of_sentence_transformers(tiny):
    """With cutoffs and a width of the caller's."""
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    queries = {"q1": "a cat", "q2": "rain"}
    corpus = {
        "d1": "A cat sits.",
        "d2": "It rains.",
        "d3": "Rain falls on the roof.",
        "d4": "Shares fell.",
    }
    relevant = {"q1": {"d1"}, "q2": {"d2", "d3"}}
    evaluator = evaluation.InformationRetrievalEvaluator(
        queries, corpus, relevant, ndcg_at_k=[2, 4], truncate_dim=12
    )
    expected = evaluator(reference.SentenceTransformer(str(tiny), device="cpu"))
    task = Retrieval([*queries.values()], [*corpus.values()], [{0: 1}, {1: 1, 2: 1}], [None, None])
    cutoffs = (1, 2, 3, 4, 5, 10, 100)
    found = retrieval_scores(
        SentenceEncoder.load(tiny), task, False, cutoffs=cutoffs, truncate_dim=12
    )
    wanted = {name.removeprefix("cosine_"): float(value) for name, value in expected.items()}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-5)


# -------------------------------------------------------------------------------------------
# training


@pytest.fixture
def folder(texts, tmp_path) -> str:
    """The files as BEIR lays them out, for dev only."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels.tsv").rename(tmp_path / "qrels" / "dev.tsv")
    return str(tmp_path)


def test_a_run_is_judged_by_its_search(tiny, folder, tmp_path, capsys):
    """The best model by nDCG@10 is saved, and its scores are those of the command."""
    files = toys.write_all(tmp_path)
    words = ["--loss", "ranking", "--data", files["triplets"], "--retrieval", folder]
    words += ["--max-steps", "2", "--batch-size", "5", "--lr", "1e-3", "--eval-every", "1"]
    train(["--model", str(tiny), *words, "--dtype", "float32", "--out", str(tmp_path / "run")])
    captured = capsys.readouterr()
    assert f"the search in {folder}: 3 queries" in captured.err
    dev = [line["dev"] for line in toys.metrics(tmp_path / "run") if "dev" in line]
    results = toys.results(tmp_path / "run")
    assert (len(dev), results["before"]["dev"]) == (3, dev[0])
    assert results["after"]["dev"]["ndcg@10"] == max(scores["ndcg@10"] for scores in dev)
    assert "test" not in results["after"]
    best = 100 * results["after"]["dev"]["ndcg@10"]
    assert re.search(rf"\nndcg@10 +\d+\.\d\d -> {best:.2f} ", captured.out)
    names = ("queries.jsonl", "corpus.jsonl", "qrels/dev.tsv")
    paths = flags([f"{folder}/{name}" for name in names])
    main(["--model", str(tmp_path / "run" / "model"), *paths, "--json"])
    found = json.loads(capsys.readouterr().out)
    for name in REPORTED:
        assert results["after"]["dev"][name] == found[f"cosine_{name}"]


def test_a_test_split_is_read_if_it_is_there(folder):
    assert load_retrieval_folder(folder)["test"] is None
    (Path(folder) / "qrels" / "test.tsv").write_text("q3\td1\t1\n")
    splits = load_retrieval_folder(folder)
    assert (splits["dev"].queries[0], splits["test"].queries) == ("the cat", ["music"])


def test_other_documents_make_another_run(tiny, folder, tmp_path):
    """What --resume compares."""
    files = toys.write_all(tmp_path)
    given = ["--model", str(tiny), *toys.flags(files, "cosine"), "--retrieval", folder]
    given += ["--batch-size", "8", "--out", str(tmp_path / "run")]
    toys.stop_at(2, (losses, "cosine_mse_loss"), train, given)
    rows = [json.dumps({"_id": name, "text": "snow"}) + "\n" for name, _, _ in CORPUS]
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    with pytest.raises(InputError, match="dev, the model or the settings have changed"):
        train(["--resume", str(tmp_path / "run")])
