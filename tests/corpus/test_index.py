"""An index is reused while model and texts are the same, rebuilt otherwise, and never replaces another file.

In its place a folder of shards is read, or refused by name; it is never changed.
"""

import errno
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minisbert.commands import encode, mine, pairs, search
from minisbert.core import InputError
from minisbert.corpus.hashes import corpus_hash, model_hash
from minisbert.corpus.index import indexed_vectors
from minisbert.corpus.shard_vectors import find_shards
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.search.dense import top_k

TEXTS = ["a small dog", "the moon", "rain and snow " * 9]


@pytest.fixture
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.safetensors"


def test_an_index_is_reused_and_any_safetensors_reader_opens_it(encoder, path, tiny, once, capsys):
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    said = capsys.readouterr().err
    assert f"kept 3 vectors of width 24 in {path}" in said
    assert "1 of 3 texts were longer than 16 tokens and were cut" in said
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == ["vectors"]
        assert {*file.metadata()} == {"format", "minisbert", "model", "corpus", "vectors"}
    once()
    np.testing.assert_array_equal(indexed_vectors(SentenceEncoder.load(tiny), TEXTS, path), expected)
    assert capsys.readouterr().err == ""
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "reason"),
    [("texts", "another corpus"), ("model", "another model"), ("both", "another model and another corpus")],
)
def test_a_stale_index_is_rebuilt_and_reported(encoder, path, once, capsys, change, reason):
    indexed_vectors(encoder, TEXTS, path)
    texts = TEXTS if change == "model" else [*TEXTS, "a cat"]
    if change != "texts":
        with torch.no_grad():
            encoder.bert.embeddings.word.weight[7, 3] += 0.5
    capsys.readouterr()
    expected = encoder.encode(texts)
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)
    assert f"{path} was made with {reason}: rebuilding it" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)


def flipped(vectors: torch.Tensor) -> torch.Tensor:
    """One bit of one number is another."""
    vectors.view(torch.uint8)[1, 5] ^= 1
    return vectors


@pytest.mark.parametrize(
    ("damage", "name", "lacking"),
    [
        (flipped, "vectors", ""), (lambda rows: rows[:1], "vectors", ""), (torch.Tensor.double, "vectors", ""),
        (torch.Tensor.flatten, "vectors", ""), (lambda rows: rows[:0], "vectors", ""),
        (torch.Tensor.clone, "states", ""), (torch.Tensor.clone, "vectors", "vectors"),  # of an older version
    ],
)  # fmt: skip
def test_a_damaged_index_is_rebuilt_and_reported(encoder, path, once, capsys, damage, name, lacking):
    expected = indexed_vectors(encoder, TEXTS, path).copy()
    with safe_open(path, "pt") as file:
        metadata, vectors = file.metadata(), file.get_tensor("vectors").clone()
    metadata.pop(lacking, None)
    save_file({name: damage(vectors).contiguous()}, path, metadata)
    capsys.readouterr()
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert f"{path} is damaged or has no hash: rebuilding it" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)


@pytest.mark.parametrize("kind", ["text", "empty", "model", "own vectors", "cut short"])
def test_a_file_that_is_not_an_index_is_not_replaced(encoder, path, tiny, once, kind):
    if kind == "model":
        shutil.copy(tiny / "model.safetensors", path)
    elif kind == "own vectors":
        save_file({"vectors": torch.ones(3, 24)}, path, metadata={"model": "mine", "corpus": "mine"})
    elif kind == "cut short":
        indexed_vectors(encoder, TEXTS, path)
        path.write_bytes(path.read_bytes()[:-10])
    else:
        path.write_text("my diary\n" if kind == "text" else "")
    content = path.read_bytes()
    once()
    with pytest.raises(InputError, match="is not an index, or is damaged, and is not replaced"):
        indexed_vectors(encoder, TEXTS, path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_written_fails_before_the_work(encoder, tmp_path, once):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    getattr(os, "mkfifo", Path.mkdir)(tmp_path / "pipe.safetensors")  # some systems have no named pipes
    once()
    for name in ("file/i.safetensors", "folder.safetensors", "pipe.safetensors"):
        with pytest.raises((InputError, OSError)):
            indexed_vectors(encoder, TEXTS, tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_index(encoder, path, monkeypatch, failure):
    indexed_vectors(encoder, TEXTS, path)
    content = path.read_bytes()

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(SentenceEncoder, "encode", fail)
    with pytest.raises(type(failure)):
        indexed_vectors(encoder, TEXTS[:2], path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_everything_that_changes_the_vectors_changes_the_hash_of_the_model(encoder, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "copy")
    assert model_hash(SentenceEncoder.load(tmp_path / "copy")) == model_hash(encoder)  # its content only

    def weight(changed: SentenceEncoder) -> None:
        with torch.no_grad():
            changed.bert.layers[1].attention.query.bias[5] += 1e-6

    changes = [
        weight,
        torch.nn.Module.double,
        lambda changed: setattr(changed, "normalize", not changed.normalize),
        lambda changed: setattr(changed, "tokenizer", Tokenizer.load(tiny, limit=9)),
        lambda changed: changed.tokenizer.backend.add_tokens(["the moon"]),
    ]
    hashes = {model_hash(encoder), model_hash(encoder, "query: "), model_hash(SentenceEncoder.load(tiny, "cls"))}
    for change in changes:
        changed = SentenceEncoder.load(tiny)
        change(changed)
        hashes.add(model_hash(changed))
    assert len(hashes) == 3 + len(changes)


def test_the_hash_of_texts_depends_on_order_and_boundaries():
    kinds = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab\nc"], ["ab", "c", ""], ['ab"', "c"], ["äb", "c"]]
    assert len({corpus_hash(texts) for texts in kinds}) == len(kinds)


# ------------------------------------------------------------------------------------------ a folder of shards

LINES = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "a dog", "  the sun", "a bird"]
LINES += ["rain and snow", "the moon", "a cat in the rain", "snow"]  # three shards of four rows, the last of three


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def shards(tiny, text, tmp_path) -> Callable[..., Path]:
    """A function that encodes the text in shards of ``rows``; their folder."""

    def run(*flags: str, rows: int = 4) -> Path:
        folder = tmp_path / "shards"
        named = ["--file", str(text), "--out", str(folder), "--shard-rows", str(rows)]
        encode.main(["--model", str(tiny), *named, *flags])
        return folder

    return run


@pytest.fixture
def hits(tiny, text, capsys) -> Callable[..., list[dict]]:
    """A function that searches in a folder; of two options alike the last counts."""

    def run(folder: Path, *flags: str, file: Path = text, model: Path = tiny) -> list[dict]:
        capsys.readouterr()
        named = ["--model", str(model), "--query", "a dog", "--index", str(folder), "--json"]
        search.main([str(file), *named, *flags])
        return json.loads(capsys.readouterr().out)["results"][0]["hits"]

    return run


@pytest.mark.parametrize(("rows", "top"), [(1, 3), (4, 1), (4, 11), (11, 3), (50, 11)])
def test_a_search_of_shards_is_that_of_the_merged_vectors(tiny, shards, tmp_path, encoded, hits, rows, top):
    """Bit by bit, also with more results than a shard has rows."""
    folder = shards(rows=rows)
    encode.main(["merge", str(folder), "--out", str(tmp_path / "v.npy")])
    encoded.clear()
    found = hits(folder, "--top", str(top))
    assert encoded == ["a dog"]
    scores, indices = top_k(SentenceEncoder.load(tiny).encode(["a dog"]), np.load(tmp_path / "v.npy"), top)
    assert [(hit["score"], hit["index"]) for hit in found] == [*zip(scores[0], indices[0], strict=True)]
    assert [hit["text"] for hit in found] == [LINES[i].strip() for i in indices[0]]
    assert indices[0, :2].tolist() == [1, 4][:top]


@pytest.mark.parametrize("corpus", ["with duplicates", "without", "with all positives"])
def test_mining_in_shards_gives_the_triplets_of_mining_without(tiny, text, shards, tmp_path, encoded, capsys, corpus):
    """Duplicates in the corpus, and positives that it lacks; of the documents only these are encoded."""
    if corpus != "with duplicates":
        lines = [*dict.fromkeys(LINES), *(["a kitten", "sky"] if corpus == "with all positives" else [])]
        text.write_text("\n".join(lines))
    (tmp_path / "pairs.tsv").write_text("the cat\ta kitten\na small dog\ta dog\nstars\tsky\nstars\tthe sun\n")
    command = ["--pairs", str(tmp_path / "pairs.tsv"), "--corpus", str(text), "--model", str(tiny)]
    command += ["--range-max", "9", "--num-negatives", "9", "--json"]
    mine.main([*command, "--out", str(tmp_path / "plain.jsonl")])
    folder = shards()
    encoded.clear()
    capsys.readouterr()
    mine.main([*command, "--out", str(tmp_path / "out.jsonl"), "--index", str(folder)])
    lacking = [] if corpus == "with all positives" else ["a kitten", "sky"]
    assert encoded == [*lacking, "the cat", "a small dog", "stars"]
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "plain.jsonl").read_text()
    assert json.loads(capsys.readouterr().out)["documents"] == 12


def test_options_that_change_no_cosine_are_accepted(shards, hits):
    expected = hits(shards())
    for flags in (["--normalize"], ["--no-normalize"], ["--truncate-dim", "24"]):
        found = hits(shards("--overwrite", *flags))
        assert [hit["text"] for hit in found] == [hit["text"] for hit in expected]
        scores = [[hit["score"] for hit in some] for some in (found, expected)]
        np.testing.assert_allclose(*scores, atol=2e-6, rtol=0)


def best(vectors: np.ndarray) -> float:
    """The highest cosine of the first vector with another one."""
    unit = vectors.astype(float) / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    return (unit[1:] @ unit[0]).max()


def test_a_corpus_prompt_that_the_shards_have(tiny, text, shards, hits, once, capsys):
    folder = shards("--prompt", "the sun ")
    with pytest.raises(InputError, match="with prompt 'the sun ', not '': give what it was made with"):
        hits(folder)
    (hit,) = hits(folder, "--corpus-prompt", "the sun ", "--top", "1")
    vectors = SentenceEncoder.load(tiny).encode(["a dog", *(f"the sun {line}" for line in LINES)])
    assert hit["score"] == pytest.approx(best(vectors), abs=2e-6, rel=0)
    once()
    pairs.main([str(text), "--model", str(tiny), "--index", str(folder), "--prompt", "the sun ", "--json"])
    assert json.loads(capsys.readouterr().out)["pairs"][0]["indices"] == [1, 4]  # "a dog" twice


def test_shards_of_a_model_that_states_its_width(tiny, shards, tmp_path, hits):
    short = shutil.copytree(tiny, tmp_path / "short")
    path = short / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 5}))
    (hit,) = hits(shards("--model", str(short)), "--top", "1", model=short)
    vectors = SentenceEncoder.load(tiny).encode(["a dog", *LINES], truncate_dim=5)
    assert hit["score"] == pytest.approx(best(vectors), abs=2e-6, rel=0)


@pytest.mark.parametrize(
    ("made", "flags", "message"),
    [
        (
            [],
            ["--pooling", "cls"],
            r"shards was made from 'texts\.txt' with pooling 'mean', not 'cls': give what it was",
        ),
        ([], ["--max-length", "8"], "with max_length 16, not 8"),
        ([], ["--corpus-prompt", "x "], "with prompt '', not 'x '"),
        (["--truncate-dim", "5"], [], "with width 5, not 24"),
        (["--pooling", "cls"], [], "with pooling 'cls', not 'mean'"),
        ([], ["--model", "OTHER"], "with another model: give what it was made with"),
    ],
)
def test_shards_of_another_option_are_refused_by_name(
    tiny, text, shards, tmp_path, encoded, hits, made, flags, message
):
    encoder = SentenceEncoder.load(tiny)
    with torch.no_grad():
        encoder.bert.embeddings.word.weight[7, 3] += 0.5
    encoder.save(tmp_path / "other")
    folder = shards(*made)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    encoded.clear()
    with pytest.raises(InputError, match=message) as error:
        hits(folder, *(flag.replace("OTHER", str(tmp_path / "other")) for flag in flags))
    assert f"minisbert encode --file {text} --out FOLDER --shard-rows 4" in str(error.value)
    assert encoded == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_same_lines_with_other_ends_or_compressed_are_the_same_text(text, shards, hits):
    folder, content = shards(), text.read_bytes()
    expected = hits(folder)
    packed = text.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(content))
    assert hits(folder, file=packed) == expected
    crlf, blank = content.replace(b"\n", b"\r\n"), content.replace(b"moon\n", b"moon\n \n", 1)
    for same in (crlf, content + b"\n\n", content[:-1], blank, b"\xef\xbb\xbf" + content):
        text.write_bytes(same)
        assert hits(folder) == expected


def test_shards_of_another_text_are_refused(text, shards, hits, no_model):
    folder, content = shards(), text.read_text()
    no_model()
    for other in (content + "a cat\n", content.replace("moon\n", "moon \n", 1), "\n".join(LINES[:-1])):
        text.write_text(other)
        with pytest.raises(InputError, match=r"was made from 'texts\.txt' with another text of 11 lines: give what"):
            hits(folder)
    text.write_text(content)
    with pytest.raises(InputError, match="another text of 11 lines"):  # it has changed after it was read
        find_shards(folder, str(text), 10)


def test_missing_shards_are_named_with_the_command_that_completes_them(shards, hits, no_model):
    folder = shards(rows=3)
    for name in ("part-00001.json", "part-00003.npy"):
        (folder / name).unlink()
    no_model()
    with pytest.raises(InputError, match=r"lacks 2 of 4 shards, 'part-00001\.npy', 'part-00003\.npy': enc") as error:
        hits(folder)
    assert f"minisbert encode --file 'texts.txt' --out {folder} --shard-rows 3 and" in str(error.value)


def test_shards_of_a_former_text_do_not_count(text, shards, hits, monkeypatch):
    """Rank 0 of 2 replaces its shards; those of rank 1 are there still, of the right size."""
    folder = shards()
    text.write_text("\n".join(reversed(LINES)))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    shards("--overwrite")
    with pytest.raises(InputError, match=r"lacks 1 of 3 shards, 'part-00001\.npy'"):
        hits(folder)


def resized(by: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size + by)


@pytest.mark.parametrize(
    "damage",
    [
        resized(-5), resized(5), lambda path: os.truncate(path, 0), lambda path: path.write_bytes(b"PK\x03\x04 zip"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{{descr'")),
        lambda path: np.save(path, np.load(path).astype(float)), lambda path: np.save(path, np.load(path).T),
    ],
)  # fmt: skip
def test_damaged_shards_are_refused(shards, hits, no_model, damage):
    folder = shards()
    damage(folder / "part-00001.npy")
    no_model()
    with pytest.raises(InputError, match=r"part-00001\.npy is damaged or cut short: run encode again"):
        hits(folder)


def replaced(folder: Path) -> None:
    for end in ("json", "npy"):
        (folder / f"new.{end}").write_bytes((folder / f"part-00001.{end}").read_bytes())
        (folder / f"new.{end}").replace(folder / f"part-00001.{end}")


@pytest.mark.parametrize(
    "change",
    [
        replaced, lambda folder: resized(-5)(folder / "part-00001.npy"),
        lambda folder: (folder / "manifest.json").unlink(), lambda folder: (folder / "part-00001.npy").unlink(),
        lambda folder: os.utime(folder / "part-00002.npy"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("moment", ["before the first read", "after the first", "after the last"])
def test_shards_that_change_while_they_are_read(shards, hits, monkeypatch, capsys, change, moment):
    """Not one result is printed, and a file that is cut short is no bus error."""
    folder = shards()

    def changing(queries: np.ndarray, corpus: np.ndarray, *rest: object, **options: object) -> tuple:
        found = top_k(queries, corpus, *rest, **options) if moment == "after the last" else None
        if moment == "after the first":
            corpus[:]
        change(folder)
        return found or top_k(queries, corpus, *rest, **options)

    monkeypatch.setattr(SentenceEncoder, "top_k", staticmethod(changing))
    reasons = ["shards changed while it was being read", r"manifest\.json was replaced", r"part-00001\.npy"]
    with pytest.raises((InputError, OSError), match="|".join(reasons)):
        hits(folder)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("corpus", [[], ["--corpus", "corpus.jsonl"]])
def test_mining_in_shards_needs_their_text(tiny, shards, tmp_path, corpus):
    command = ["--pairs", "pairs.tsv", "--out", str(tmp_path / "o.jsonl"), "--model", str(tiny)]
    with pytest.raises(InputError, match=r"shards is a folder: it needs --corpus FILE with the texts of its shards"):
        mine.main([*command, *corpus, "--index", str(shards())])
