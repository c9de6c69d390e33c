"""A model trained for dot products is searched, evaluated and mined by them: by hand and against
the reference.
"""

import json
import shutil

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
NAMES = ("cosine", "dot", "euclidean", "manhattan")


@pytest.fixture
def folder(tiny, tmp_path):
    """The tiny model without its last module, so that lengths differ, and with dot products as its
    similarity.
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
    u, v = u.astype(np.float64), v.astype(np.float64)
    if name == "cosine":
        u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
    if name in ("cosine", "dot"):
        return u @ v.T
    return -np.linalg.norm(u[:, None] - v[None], axis=2, ord={"euclidean": 2, "manhattan": 1}[name])


@pytest.mark.parametrize("chosen", [None, "cosine", "manhattan"])
def test_search_ranks_and_names_the_similarity(folder, corpus, chosen, capsys):
    arguments = [str(corpus), "--model", str(folder), "--top", "6", "--json"]
    for query in QUERIES:
        arguments += ["--query", query]
    if chosen:
        arguments += ["--similarity", chosen]
    search.main(arguments)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    name = chosen or "dot"
    assert found["similarity"] == name
    assert f"scored by {name}" in printed.err
    encoder = SentenceEncoder.load(folder)
    expected = scores_of(name, encoder.encode(QUERIES), encoder.encode(CORPUS))
    for result, row in zip(found["results"], expected, strict=True):
        assert [hit["index"] for hit in result["hits"]] == np.argsort(-row).tolist()
        assert [hit["score"] for hit in result["hits"]] == pytest.approx(
            np.sort(row)[::-1].tolist(), rel=1e-5
        )


def test_an_index_serves_every_similarity(folder, corpus, tmp_path, monkeypatch, capsys):
    index = ["--model", str(folder), "--index", str(tmp_path / "i.safetensors"), "--json"]
    pairs.main([str(corpus), *index])
    assert json.loads(capsys.readouterr().out)["similarity"] == "dot"
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda *_, **__: pytest.fail("it was encoded again")
    )
    pairs.main([str(corpus), *index, "--similarity", "cosine"])
    assert json.loads(capsys.readouterr().out)["similarity"] == "cosine"


def test_bits_have_no_length(folder, corpus, tmp_path, capsys):
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
    """Files whose relevant document is the best by dot product and not the best by cosine, for both
    queries.
    """
    encoder = SentenceEncoder.load(folder)
    texts = [f"{first} {second}" for first in CORPUS for second in CORPUS]
    vectors = encoder.encode(texts)
    best = {
        name: scores_of(name, encoder.encode(QUERIES), vectors).argmax(axis=1).tolist()
        for name in NAMES
    }
    assert all(dot != cosine for dot, cosine in zip(best["dot"], best["cosine"], strict=True))
    lines = {"queries": QUERIES, "corpus": texts}
    arguments = ["--model", str(folder)]
    for name, its_texts in lines.items():
        rows = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(its_texts)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
        arguments += [f"--{name}", str(tmp_path / f"{name}.jsonl")]
    (tmp_path / "qrels.tsv").write_text(
        "".join(f"{i}\t{row}\t1\n" for i, row in enumerate(best["dot"]))
    )
    return [*arguments, "--qrels", str(tmp_path / "qrels.tsv")]


def test_retrieval_is_perfect_by_the_models_own_similarity_alone(retrieval, capsys):
    evaluate.main([*retrieval, "--json"])
    assert json.loads(capsys.readouterr().out)["dot_ndcg@10"] == 1
    evaluate.main([*retrieval, "--similarity", "cosine", "--json"])
    assert json.loads(capsys.readouterr().out)["cosine_ndcg@10"] < 1
    evaluate.main(retrieval)
    assert "exact search by dot" in capsys.readouterr().out


def test_negatives_are_those_of_the_similarity(folder, corpus, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\nthe dog\ta small dog\n")
    out = tmp_path / "triplets.jsonl"
    arguments = [
        "--model",
        str(folder),
        "--pairs",
        str(tmp_path / "pairs.tsv"),
        "--corpus",
        str(corpus),
    ]
    mine.main([*arguments, "--num-negatives", "2", "--out", str(out), "--json"])
    found = json.loads(capsys.readouterr().out)
    encoder = SentenceEncoder.load(folder)
    scores = scores_of("dot", encoder.encode(["the dog"]), encoder.encode(CORPUS))[0]
    ranked = [row for row in np.argsort(-scores) if row != 0][:2]
    assert [json.loads(line)["negative"] for line in out.read_text().splitlines()] == [
        CORPUS[row] for row in ranked
    ]
    means = {"positives": scores[0], "negatives": scores[ranked].mean()}
    assert (found["similarity"], found["mean_score"]) == ("dot", pytest.approx(means, rel=1e-5))
