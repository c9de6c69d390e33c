"""A model trained for dot products is searched, evaluated and mined by them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from minisbert import SentenceEncoder
from minisbert.commands import encode, evaluate, mine, pairs, search
from minisbert.core import InputError
from tests.architectures.tiny import alter

CORPUS = [
    "a small dog",
    "the moon is in the sky",
    "the sun",
    "rain and snow over the garden",
    "music",
    "the cat",
]
QUERIES = ["the dog", "snow"]


@pytest.fixture
def folder(tiny, tmp_path):
    """The tiny model with dot products as its similarity.

    It lacks the last module, so that the lengths of vectors differ.
    """
    model = shutil.copytree(tiny, tmp_path / "model")
    modules = json.loads((model / "modules.json").read_text())
    (model / "modules.json").write_text(json.dumps(modules[:2]))
    return alter(model, "config_sentence_transformers.json", similarity_fn_name="dot")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS), encoding="utf-8")
    return path


def scores_of(name: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """All scores (Q, N) in float64."""
    u = u.astype(np.float64)
    v = v.astype(np.float64)
    if name == "cosine":
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
    if name in ("cosine", "dot"):
        return u @ v.T
    order = {"euclidean": 2, "manhattan": 1}[name]
    return -np.linalg.norm(u[:, None] - v[None], axis=2, ord=order)


@pytest.mark.parametrize("chosen", [None, "cosine", "manhattan"])
def test_search_ranks_and_names_the_similarity(folder, corpus, chosen, capsys):
    """Without ``--similarity`` the model's own."""
    arguments = [str(corpus), "--model", str(folder), "--top", "6", "--json"]
    for query in QUERIES:
        arguments += ["--query", query]
    if chosen:
        arguments += ["--similarity", chosen]
    search.main(arguments)
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    name = chosen or "dot"
    assert content["similarity"] == name
    assert f"scored by {name}" in printed.err

    encoder = SentenceEncoder.load(folder)
    expected = scores_of(name, encoder.encode(QUERIES), encoder.encode(CORPUS))
    for result, row in zip(content["results"], expected, strict=True):
        best_first = np.argsort(-row)
        assert [hit["index"] for hit in result["hits"]] == best_first.tolist()
        scores = [hit["score"] for hit in result["hits"]]
        assert scores == pytest.approx(row[best_first].tolist(), rel=1e-5)


def test_an_index_serves_every_similarity(folder, corpus, tmp_path, monkeypatch, capsys):
    """The vectors are the same: encoding them again would cost an hour for nothing."""
    index = ["--model", str(folder), "--index", str(tmp_path / "i.safetensors"), "--json"]
    pairs.main([str(corpus), *index])
    assert json.loads(capsys.readouterr().out)["similarity"] == "dot"

    def encode_again(*_: object, **options: object) -> None:
        pytest.fail("the texts were encoded again")

    monkeypatch.setattr(SentenceEncoder, "encode", encode_again)
    pairs.main([str(corpus), *index, "--similarity", "cosine"])
    assert json.loads(capsys.readouterr().out)["similarity"] == "cosine"


def test_bits_have_no_length(folder, corpus, tmp_path, capsys):
    """Only the cosine ranks them, whatever the model's similarity is."""
    out = str(tmp_path / "bits.safetensors")
    encode.main(
        ["--file", str(corpus), "--model", str(folder), "--quantize", "binary", "--out", out]
    )
    capsys.readouterr()
    arguments = [str(corpus), "--model", str(folder), "--index", out, "--query", "snow", "--json"]
    search.main(arguments)
    assert json.loads(capsys.readouterr().out)["similarity"] == "cosine"
    with pytest.raises(InputError, match="--similarity"):
        search.main([*arguments, "--similarity", "dot"])


@pytest.fixture
def retrieval(folder, tmp_path) -> list[str]:
    """Files whose relevant documents are the best by dot product and not the best by cosine."""
    encoder = SentenceEncoder.load(folder)
    texts = [f"{first} {second}" for first in CORPUS for second in CORPUS]
    queries = encoder.encode(QUERIES)
    documents = encoder.encode(texts)
    best = scores_of("dot", queries, documents).argmax(axis=1)
    assert (best != scores_of("cosine", queries, documents).argmax(axis=1)).all()

    write_texts(tmp_path / "queries.jsonl", QUERIES)
    write_texts(tmp_path / "corpus.jsonl", texts)
    qrels = "".join(f"{i}\t{row}\t1\n" for i, row in enumerate(best))
    (tmp_path / "qrels.tsv").write_text(qrels)
    return [
        "--model",
        str(folder),
        "--queries",
        str(tmp_path / "queries.jsonl"),
        "--corpus",
        str(tmp_path / "corpus.jsonl"),
        "--qrels",
        str(tmp_path / "qrels.tsv"),
    ]


def write_texts(path: Path, texts: list[str]) -> None:
    """Write texts as BEIR has them, with their numbers as ids."""
    rows = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join(rows))


def test_retrieval_is_perfect_by_the_models_own_similarity(retrieval, capsys):
    """The files were made so that dot products find everything."""
    evaluate.main([*retrieval, "--json"])
    assert json.loads(capsys.readouterr().out)["dot_ndcg@10"] == 1


def test_retrieval_by_another_similarity_is_worse(retrieval, capsys):
    """``--similarity`` changes the search, and the names of the results."""
    evaluate.main([*retrieval, "--similarity", "cosine", "--json"])
    assert json.loads(capsys.readouterr().out)["cosine_ndcg@10"] < 1


def test_the_table_of_retrieval_names_the_similarity(retrieval, capsys):
    """A score without it cannot be compared."""
    evaluate.main(retrieval)
    assert "exact search by dot" in capsys.readouterr().out


def test_negatives_are_those_of_the_similarity(folder, corpus, tmp_path, capsys):
    """The two documents with the largest dot products, apart from the positive."""
    path = tmp_path / "pairs.tsv"
    path.write_text("anchor\tpositive\nthe dog\ta small dog\n")
    out = tmp_path / "triplets.jsonl"
    files = ["--pairs", str(path), "--corpus", str(corpus), "--out", str(out)]
    mine.main(["--model", str(folder), *files, "--num-negatives", "2", "--json"])
    content = json.loads(capsys.readouterr().out)

    encoder = SentenceEncoder.load(folder)
    scores = scores_of("dot", encoder.encode(["the dog"]), encoder.encode(CORPUS))[0]
    best = [row for row in np.argsort(-scores) if row != 0][:2]
    negatives = [json.loads(line)["negative"] for line in out.read_text().splitlines()]
    assert negatives == [CORPUS[row] for row in best]
    assert content["similarity"] == "dot"
    means = {"positives": scores[0], "negatives": scores[best].mean()}
    assert content["mean_score"] == pytest.approx(means, rel=1e-5)
