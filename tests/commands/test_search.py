"""The search command: each query's sentences, as text and JSON, with an index; what it refuses."""

import gzip
import json
import math
import re
import shlex

import numpy as np
import pytest
import torch

from minisbert.commands.encode import main as encode
from minisbert.commands.search import main
from minisbert.core import InputError
from minisbert.core.heads import JointHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import main as train
from tests import toys
from tests.conftest import ROOT
from tests.ranking import check_ranking

CORPUS = ["a small dog", "the moon is in the sky", "the dog", "rain and snow", "the dog"]


def slow_cosine(u: np.ndarray, v: np.ndarray) -> float:
    u, v = u.tolist(), v.tolist()
    return math.fsum(x * y for x, y in zip(u, v, strict=True)) / math.hypot(*u) / math.hypot(*v)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    return path


def expected_hits(tiny, query: str, k: int) -> list[tuple[float, int]]:
    encoder = SentenceEncoder.load(tiny)
    exact = [slow_cosine(encoder.encode([query])[0], vector) for vector in encoder.encode(CORPUS)]
    return sorted(
        ((score, i) for i, score in enumerate(exact)), key=lambda hit: (-round(hit[0], 5), hit[1])
    )[:k]


def test_the_command_prints_each_query_and_its_sentences(tiny, corpus, capsys):
    main([str(corpus), "--model", str(tiny), "--query", "a dog", "--query", "snow", "--top", "3"])
    out = capsys.readouterr().out
    blocks = []
    for query in ("a dog", "snow"):
        hits = expected_hits(tiny, query, 3)
        blocks.append(
            "".join([f"{query}\n", *(f"{score:8.4f}  {CORPUS[i]}\n" for score, i in hits)])
        )
    assert out == "\n".join(blocks)


def test_the_command_as_json(tiny, corpus, tmp_path, capsys):
    queries = tmp_path / "queries.txt.gz"
    queries.write_bytes(gzip.compress(b"the dog\n\nsnow\n"))
    main([str(corpus), "--model", str(tiny), "--queries", str(queries), "--top", "2", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert (content["model"], content["corpus"]) == (str(tiny), 5)
    assert [result["query"] for result in content["results"]] == ["the dog", "snow"]
    for result in content["results"]:
        expected = expected_hits(tiny, result["query"], 2)
        assert [(hit["index"], hit["text"]) for hit in result["hits"]] == [
            (i, CORPUS[i]) for _, i in expected
        ]
        # in other batches the last digits of a vector differ
        np.testing.assert_allclose(
            [hit["score"] for hit in result["hits"]], [s for s, _ in expected], atol=1e-6
        )


@pytest.fixture
def reranker(tiny, tmp_path):
    """A cross-encoder with random weights, whose order is another one."""
    torch.manual_seed(3)
    model = PairModel(SentenceEncoder.load(tiny), JointHead(24)).eval()
    torch.nn.init.normal_(next(model.head.parameters()))
    model.save(tmp_path / "reranker")
    return tmp_path / "reranker"


def test_a_reranker_sorts_the_candidates(tiny, corpus, capsys, reranker):
    model = PairModel.load(reranker)
    named = [str(corpus), "--model", str(tiny), "--rerank", str(reranker), "--json"]
    named += ["--query", "a dog", "--query", "snow"]
    for flags, count, top in (
        ([], 5, 5),
        (["--candidates", "3", "--top", "2"], 3, 2),
        (["--candidates", "1"], 5, 5),
    ):
        main([*named, *flags])
        for result in json.loads(capsys.readouterr().out)["results"]:
            candidates = [i for _, i in expected_hits(tiny, result["query"], count)]
            scores = model.predict([(result["query"], CORPUS[i]) for i in candidates]).tolist()
            hits = [(hit["index"], hit["score"]) for hit in result["hits"]]
            check_ranking(hits, dict(zip(candidates, scores, strict=True)), top)
    with pytest.raises(InputError, match="has no head"):
        main([*named, "--rerank", str(tiny)])


def test_cut_candidates_of_a_reranker_are_counted(tiny, tmp_path, capsys, reranker):
    limit = PairModel.load(reranker).tokenizer.limit
    path = tmp_path / "long.txt"
    # [CLS] a dog [SEP] cat ... [SEP]: two texts are beyond the limit
    path.write_text(
        "\n".join(["cat " * (limit - 5), "cat " * (limit - 4), "dog " * limit]), encoding="utf-8"
    )
    main([str(path), "--model", str(tiny), "--query", "a dog", "--rerank", str(reranker)])
    assert f"2 of 3 texts were longer than {limit} tokens" in capsys.readouterr().err
    main([str(path), "--model", str(tiny), "--query", "a dog"])
    assert f"2 of 3 texts were longer than {limit} tokens" not in capsys.readouterr().err


SESSION = re.search(
    r"```bash\n([^`]*runs/matryoshka/[^`]*)```",
    (ROOT / "docs" / "search.md").read_text("utf-8"),
    re.DOTALL,
)[1]


def test_the_session_of_the_docs_from_training_to_search(tiny, tmp_path, monkeypatch, capsys):
    """The scores are those of cut vectors in few bytes, computed here."""
    rows = "".join(f"the {noun}\ta {noun} in the park\n" for noun in toys.NOUNS)
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\n" + rows)
    texts = [f"a small {noun}" for noun in toys.NOUNS]
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    commands = [
        shlex.split(line)
        for line in SESSION.replace("64", "8").replace("A guitar.", "the dog").splitlines()
    ]
    monkeypatch.chdir(tmp_path)
    options = [
        "--loss",
        "ranking",
        "--matryoshka",
        "8",
        "--data",
        "pairs.tsv",
        "--device",
        "cpu",
        "--out",
        "runs/matryoshka",
        "--model",
    ]
    train([*options, str(tiny)])
    commands += [[word.replace("int8", "binary") for word in words] for words in commands]
    for _, name, *arguments in commands:  # minisbert NAME ...
        {"encode": encode, "search": main}[name](arguments)
    encoder = SentenceEncoder.load(tmp_path / "runs" / "matryoshka" / "model")
    vectors, query = (
        encoder.encode(texts, truncate_dim=8),
        encoder.encode(["the dog"], truncate_dim=8)[0],
    )
    lines = re.findall(r"^ +(\d\.\d{4})  (a small .*)$", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) == 10
    for found, decoded, tolerance in (
        (lines[:5], vectors, 0.01),
        (lines[5:], np.where(vectors > 0, 1, -1), 1e-4),
    ):
        cosines = [slow_cosine(query, row) for row in decoded.astype(np.float64)]
        for (score, text), best in zip(found, sorted(cosines, reverse=True), strict=False):
            assert float(score) == pytest.approx(cosines[texts.index(text)], abs=tolerance)
            assert float(score) == pytest.approx(best, abs=tolerance)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --query TEXT, once or several times, or --queries FILE"),
        (["--query", "a dog", "--queries", "q.txt"], "give either --query"),
        (["--query", "a dog", "--query", " "], "an empty query"),
        (["--queries", "no.txt"], "no.txt does not exist"),
        (
            ["--query", "a dog", "--index", "i.npy"],
            r"--index i.npy: the name must end in \.safetensors",
        ),
    ],
)
def test_invalid_arguments_are_errors(tiny, corpus, arguments, message):
    with pytest.raises(InputError, match=message):
        main([str(corpus), "--model", str(tiny), *arguments])


@pytest.mark.weights
def test_the_red_planet(minilm, tmp_path, capsys):
    """The scores that sentence-transformers prints for these sentences, to four digits."""
    sentences = [
        "Venus is often called Earth's twin because of its similar size and proximity.",
        "Mars, known for its reddish appearance, is often referred to as the Red Planet.",
        "Jupiter, the largest planet in our solar system, has a prominent red spot.",
        "Saturn, famous for its rings, is sometimes mistaken for the Red Planet.",
    ]
    (tmp_path / "planets.txt").write_text("\n".join(sentences))
    query = "Which planet is known as the Red Planet?"
    main([str(tmp_path / "planets.txt"), "--model", str(minilm), "--query", query, "--json"])
    hits = json.loads(capsys.readouterr().out)["results"][0]["hits"]
    assert [hit["index"] for hit in hits] == [1, 3, 2, 0]
    np.testing.assert_allclose(
        [hit["score"] for hit in hits], [0.8115, 0.7502, 0.7279, 0.4647], atol=6e-5, rtol=0
    )
