"""The search command: the sentences of each query, as text and JSON, reranked, and with codes."""

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
    """The cosine of two vectors in Python's own floats."""
    u = u.tolist()
    v = v.tolist()
    dot = math.fsum(x * y for x, y in zip(u, v, strict=True))
    return dot / math.hypot(*u) / math.hypot(*v)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    return path


def expected_hits(tiny, query: str, k: int) -> list[tuple[float, int]]:
    """(cosine, index) of the k best; equal ones, to five digits, in the order of the corpus."""
    encoder = SentenceEncoder.load(tiny)
    vector = encoder.encode([query])[0]
    hits = []
    for i, row in enumerate(encoder.encode(CORPUS)):
        hits.append((slow_cosine(vector, row), i))
    return sorted(hits, key=lambda hit: (-round(hit[0], 5), hit[1]))[:k]


def test_the_command_prints_each_query_and_its_sentences(tiny, corpus, capsys):
    """A block for each query, with an empty line between two."""
    main([str(corpus), "--model", str(tiny), "--query", "a dog", "--query", "snow", "--top", "3"])
    blocks = []
    for query in ("a dog", "snow"):
        block = f"{query}\n"
        for score, i in expected_hits(tiny, query, 3):
            block += f"{score:8.4f}  {CORPUS[i]}\n"
        blocks.append(block)
    assert capsys.readouterr().out == "\n".join(blocks)


def test_the_command_as_json(tiny, corpus, tmp_path, capsys):
    """With queries from a compressed file, whose empty line is skipped."""
    queries = tmp_path / "queries.txt.gz"
    queries.write_bytes(gzip.compress(b"the dog\n\nsnow\n"))
    main([str(corpus), "--model", str(tiny), "--queries", str(queries), "--top", "2", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["model"] == str(tiny)
    assert content["corpus"] == 5
    assert [result["query"] for result in content["results"]] == ["the dog", "snow"]
    for result in content["results"]:
        expected = expected_hits(tiny, result["query"], 2)
        for hit, (score, i) in zip(result["hits"], expected, strict=True):
            assert hit["index"] == i
            assert hit["text"] == CORPUS[i]
            # in other batches the last digits of a vector differ
            assert hit["score"] == pytest.approx(score, abs=1e-6)


# -------------------------------------------------------------------------------------------
# a reranker


@pytest.fixture
def reranker(tiny, tmp_path):
    """A cross-encoder with random weights, whose order is another one."""
    torch.manual_seed(3)
    model = PairModel(SentenceEncoder.load(tiny), JointHead(24)).eval()
    torch.nn.init.normal_(next(model.head.parameters()))
    model.save(tmp_path / "reranker")
    return tmp_path / "reranker"


@pytest.mark.parametrize(
    ("flags", "candidates", "top"),
    [
        ([], 5, 5),
        (["--candidates", "3", "--top", "2"], 3, 2),
        (["--candidates", "1"], 5, 5),  # at least as many as are shown
    ],
)
def test_a_reranker_sorts_the_candidates(tiny, corpus, capsys, reranker, flags, candidates, top):
    """The scores are the reranker's, and only of so many candidates."""
    model = PairModel.load(reranker)
    queries = ["--query", "a dog", "--query", "snow"]
    named = ["--model", str(tiny), "--rerank", str(reranker)]
    main([str(corpus), *named, *queries, "--json", *flags])
    printed = capsys.readouterr()
    assert f"{candidates} candidates" in printed.err
    for result in json.loads(printed.out)["results"]:
        query = result["query"]
        indices = [i for _, i in expected_hits(tiny, query, candidates)]
        scores = model.predict([(query, CORPUS[i]) for i in indices]).tolist()
        hits = [(hit["index"], hit["score"]) for hit in result["hits"]]
        check_ranking(hits, dict(zip(indices, scores, strict=True)), top)


def test_an_encoder_is_no_reranker(tiny, corpus):
    """It has no head that scores pairs."""
    with pytest.raises(InputError, match="has no head"):
        main([str(corpus), "--model", str(tiny), "--query", "a dog", "--rerank", str(tiny)])


def test_cut_candidates_of_a_reranker_are_counted(tiny, tmp_path, capsys, reranker):
    """Of ``[CLS] a dog [SEP] cat ... [SEP]`` two texts are beyond the limit."""
    limit = PairModel.load(reranker).tokenizer.limit
    texts = ["cat " * (limit - 5), "cat " * (limit - 4), "dog " * limit]
    path = tmp_path / "long.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    message = f"2 of 3 texts were longer than {limit} tokens"
    main([str(path), "--model", str(tiny), "--query", "a dog", "--rerank", str(reranker)])
    assert message in capsys.readouterr().err
    main([str(path), "--model", str(tiny), "--query", "a dog"])
    assert message not in capsys.readouterr().err


# -------------------------------------------------------------------------------------------
# the session of docs/search.md


SMALL_THINGS = [f"a small {noun}" for noun in toys.NOUNS]


def documented_session() -> list[list[str]]:
    """The commands of the docs that train a model of short vectors and search with its codes.

    The arguments of each command, for 8 columns and another query.
    """
    page = (ROOT / "docs" / "search.md").read_text("utf-8")
    block = re.search(r"```bash\n([^`]*runs/matryoshka/[^`]*)```", page)[1]
    block = block.replace("\\\n", "")  # a command that goes on in the next line
    block = block.replace("64", "8").replace("A guitar.", "the dog")
    return [shlex.split(line) for line in block.splitlines()]


@pytest.fixture
def trained(tiny, tmp_path, monkeypatch) -> SentenceEncoder:
    """The session's model, trained in the current folder; a corpus is beside it."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"the {noun}\ta {noun} in the park\n" for noun in toys.NOUNS)
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\n" + rows)
    (tmp_path / "corpus.txt").write_text("\n".join(SMALL_THINGS))
    options = "--loss ranking --matryoshka 8 --data pairs.tsv --device cpu --out runs/matryoshka"
    train([*options.split(), "--model", str(tiny)])
    return SentenceEncoder.load(tmp_path / "runs" / "matryoshka" / "model")


@pytest.mark.parametrize(("form", "tolerance"), [("int8", 0.01), ("binary", 1e-4)])
def test_the_session_of_the_docs_from_training_to_search(trained, capsys, form, tolerance):
    """The scores are those of cut vectors in few bytes, computed here."""
    for _, name, *arguments in documented_session():  # minisbert NAME ...
        arguments = [word.replace("int8", form) for word in arguments]
        if name == "encode":
            encode(arguments)
        else:
            main(arguments)
    out = capsys.readouterr().out
    hits = re.findall(r"^ +(\d\.\d{4})  (a small .*)$", out, re.MULTILINE)
    assert len(hits) == 5

    vectors = trained.encode(SMALL_THINGS, truncate_dim=8).astype(np.float64)
    if form == "binary":
        vectors = np.where(vectors > 0, 1.0, -1.0)
    query = trained.encode(["the dog"], truncate_dim=8)[0]
    cosines = [slow_cosine(query, vector) for vector in vectors]
    best = sorted(cosines, reverse=True)[:5]
    for (score, text), expected in zip(hits, best, strict=True):
        assert float(score) == pytest.approx(cosines[SMALL_THINGS.index(text)], abs=tolerance)
        assert float(score) == pytest.approx(expected, abs=tolerance)


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
    """One line says what to give instead."""
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
    scores = [hit["score"] for hit in hits]
    np.testing.assert_allclose(scores, [0.8115, 0.7502, 0.7279, 0.4647], atol=6e-5, rtol=0)
