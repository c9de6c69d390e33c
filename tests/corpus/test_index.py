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

from minisbert import encode, mine, pairs, search
from minisbert.core import InputError
from minisbert.corpus.hashes import corpus_hash, model_hash
from minisbert.corpus.index import indexed_vectors
from minisbert.corpus.manifest import MANIFEST
from minisbert.corpus.shard_vectors import find_shards
from minisbert.fast.search import closest_pairs, top_k
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer

TEXTS = ["a small dog", "the moon", "rain and snow"]


@pytest.fixture
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.safetensors"


@pytest.fixture
def once(monkeypatch):
    """A function that forbids further encoding."""
    return lambda: monkeypatch.setattr(SentenceEncoder, "encode", lambda *_, **__: pytest.fail("it was encoded again"))


def test_an_index_is_reused(encoder, path, tiny, once, capsys):
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert f"kept 3 vectors of width 24 in {path}" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(SentenceEncoder.load(tiny), TEXTS, path), expected)
    assert capsys.readouterr().err == ""
    assert list(path.parent.iterdir()) == [path]


def test_any_safetensors_reader_opens_it(encoder, path):
    indexed_vectors(encoder, TEXTS, path)
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == ["vectors"]
        assert file.get_tensor("vectors").shape == (3, 24)
        assert {*file.metadata()} == {"format", "minisbert", "model", "corpus", "vectors"}


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
    assert f"{path} was built from {reason}: rebuilding it" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)


def flipped(vectors: torch.Tensor) -> torch.Tensor:
    """One bit of one number is another."""
    vectors.view(torch.uint8)[1, 5] ^= 1
    return vectors


@pytest.mark.parametrize(
    "damage",
    [
        flipped, torch.zeros_like, lambda vectors: vectors[:1], lambda vectors: vectors[:, :12], torch.Tensor.double,
        lambda vectors: vectors.flip(0), lambda vectors: vectors.view(torch.int32), lambda vectors: vectors.flatten(),
        lambda vectors: vectors[:0],
    ],
)  # fmt: skip
def test_a_damaged_index_is_rebuilt_and_reported(encoder, path, once, capsys, damage):
    expected = indexed_vectors(encoder, TEXTS, path).copy()
    with safe_open(path, "pt") as file:
        metadata, vectors = file.metadata(), file.get_tensor("vectors").clone()
    save_file({"vectors": damage(vectors).contiguous()}, path, metadata)
    capsys.readouterr()
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert f"{path} is damaged or has no hash: rebuilding it" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)


@pytest.mark.parametrize("lacking", ["the hash", "the tensor"])
def test_an_index_of_an_older_version_is_rebuilt(encoder, path, capsys, lacking):
    expected = indexed_vectors(encoder, TEXTS, path).copy()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    if lacking == "the hash":
        del metadata["vectors"]
    save_file({"vectors" if lacking == "the hash" else "states": torch.from_numpy(expected)}, path, metadata)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert "is damaged or has no hash: rebuilding it" in capsys.readouterr().err


def test_a_name_that_safetensors_could_not_open_again(encoder, tmp_path):
    with pytest.raises(InputError, match="the name is not UTF-8"):
        indexed_vectors(encoder, TEXTS, tmp_path / "caf\udce9.safetensors")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_an_index(encoder, path):
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"--index .*index\.safetensors is a folder or a device, a file is needed"):
        indexed_vectors(encoder, TEXTS, path)


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
    with pytest.raises(InputError, match=r"is not an index and is not replaced|an index cannot replace it"):
        indexed_vectors(encoder, TEXTS, path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_written_fails_before_the_work(encoder, tmp_path, once):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    once()
    for name in ("file/i.safetensors", "folder.safetensors"):
        with pytest.raises((InputError, OSError)):
            indexed_vectors(encoder, TEXTS, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.safetensors"]


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


def test_truncated_texts_are_reported(encoder, path, capsys):
    indexed_vectors(encoder, ["dog " * 20, "a dog"], path)
    assert "1 of 2 texts were longer than 16 tokens and were cut" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ hashes


def test_the_hash_of_a_model_depends_on_its_content_only(encoder, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "copy")
    assert model_hash(SentenceEncoder.load(tmp_path / "copy")) == model_hash(encoder)
    assert len(model_hash(encoder)) == 64


@pytest.mark.parametrize("change", ["weight", "pooling", "normalize", "limit", "tokenizer", "float64"])
def test_whatever_changes_the_vectors_changes_the_hash(encoder, tiny, change):
    before = model_hash(encoder)
    if change == "weight":
        with torch.no_grad():
            encoder.bert.layers[1].attention.query.bias[5] += 1e-6
    elif change == "pooling":
        encoder = SentenceEncoder.load(tiny, pooling="cls")
    elif change == "normalize":
        encoder.normalize = not encoder.normalize
    elif change == "limit":
        encoder.tokenizer = Tokenizer.load(tiny, limit=9)
    elif change == "tokenizer":
        encoder.tokenizer.backend.add_tokens(["the moon"])
    else:
        encoder.double()
    assert model_hash(encoder) != before


def test_the_hash_of_texts_depends_on_order_and_boundaries():
    kinds = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab\nc"], ["ab", "c", ""], ['ab"', "c"], ["äb", "c"]]
    assert len({corpus_hash(texts) for texts in kinds}) == len(kinds)


# ------------------------------------------------------------------------------------------ a folder of shards

LINES = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "a dog", "  the sun", "a bird"]
LINES = [
    *LINES,
    "rain and snow",
    "the moon",
    "a cat in the rain",
    "snow",
]  # three parts of four rows, the last of three


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def parts(tiny, text, tmp_path) -> Callable[..., Path]:
    """A function that encodes the text in parts of ``rows``; their folder."""

    def run(*flags: str, rows: int = 4) -> Path:
        folder = tmp_path / "shards"
        encode.main(
            ["--model", str(tiny), "--file", str(text), "--out", str(folder), "--shard-rows", str(rows), *flags]
        )
        return folder

    return run


def queries(tiny, file: Path, folder: Path, *flags: str) -> list[str]:
    """A search; of two options alike the last counts."""
    return [str(file), "--model", str(tiny), "--query", "a dog", "--index", str(folder), "--json", *flags]


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The texts that are encoded from the first ``clear`` on."""
    texts, run = [], SentenceEncoder.encode
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda self, some, **more: texts.extend(some) or run(self, some, **more)
    )
    return texts


@pytest.mark.parametrize("rows", [1, 4, 11, 50])
@pytest.mark.parametrize("top", [1, 3, 11])
def test_a_search_of_parts_is_that_of_the_merged_vectors(tiny, text, parts, tmp_path, encoded, capsys, rows, top):
    """Bit by bit, also with more results than a part has rows."""
    folder = parts(rows=rows)
    encode.main(["merge", str(folder), "--out", str(tmp_path / "v.npy")])
    encoded.clear()
    search.main(queries(tiny, text, folder, "--top", str(top)))
    assert encoded == ["a dog"]
    (found,) = json.loads(capsys.readouterr().out)["results"]
    scores, indices = top_k(SentenceEncoder.load(tiny).encode(["a dog"]), np.load(tmp_path / "v.npy"), top)
    assert [(hit["score"], hit["index"]) for hit in found["hits"]] == [*zip(scores[0], indices[0], strict=True)]
    assert [hit["text"] for hit in found["hits"]] == [LINES[i].strip() for i in indices[0]]
    assert indices[0, :2].tolist() == [1, 4][:top]


def test_pairs_of_parts_are_those_of_the_merged_vectors(tiny, text, parts, tmp_path, once, capsys):
    folder = parts()
    encode.main(["merge", str(folder), "--out", str(tmp_path / "v.npy")])
    once()
    pairs.main([str(text), "--model", str(tiny), "--index", str(folder), "--top", "55", "--json"])
    found = json.loads(capsys.readouterr().out)["pairs"]
    scores, rows = closest_pairs(np.load(tmp_path / "v.npy"), 55)
    assert [pair["indices"] for pair in found] == rows.tolist()
    assert [pair["score"] for pair in found] == scores.tolist()
    assert (found[0]["indices"], found[0]["score"]) == ([1, 4], 1)


@pytest.mark.parametrize("corpus", ["with duplicates", "without", "with all positives"])
def test_mining_in_parts_gives_the_triplets_of_mining_without(tiny, text, parts, tmp_path, encoded, capsys, corpus):
    """Duplicates in the corpus, and positives that it lacks; of the documents only these are encoded."""
    if corpus != "with duplicates":
        lines = [*dict.fromkeys(LINES), *(["a kitten", "sky"] if corpus == "with all positives" else [])]
        text.write_text("\n".join(lines))
    (tmp_path / "pairs.tsv").write_text("the cat\ta kitten\na small dog\ta dog\nstars\tsky\nstars\tthe sun\n")
    command = ["--pairs", str(tmp_path / "pairs.tsv"), "--corpus", str(text), "--model", str(tiny)]
    command += ["--range-max", "9", "--num-negatives", "9", "--json"]
    mine.main([*command, "--out", str(tmp_path / "plain.jsonl")])
    folder = parts()
    encoded.clear()
    capsys.readouterr()
    mine.main([*command, "--out", str(tmp_path / "out.jsonl"), "--index", str(folder)])
    lacking = [] if corpus == "with all positives" else ["a kitten", "sky"]
    assert encoded == [*lacking, "the cat", "a small dog", "stars"]
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "plain.jsonl").read_text()
    assert json.loads(capsys.readouterr().out)["documents"] == 12


@pytest.mark.parametrize("flags", [["--normalize"], ["--no-normalize"], ["--truncate-dim", "24"]])
def test_options_that_change_no_cosine_are_accepted(tiny, text, parts, capsys, flags):
    search.main(queries(tiny, text, parts(*flags)))
    found = json.loads(capsys.readouterr().out)["results"][0]["hits"]
    search.main(queries(tiny, text, parts("--overwrite")))
    for ours, expected in zip(found, json.loads(capsys.readouterr().out)["results"][0]["hits"], strict=True):
        assert ours["text"] == expected["text"]
        assert ours["score"] == pytest.approx(expected["score"], abs=2e-6, rel=0)


def test_compressed_text_is_the_same_text(tiny, text, parts, capsys):
    packed = text.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(text.read_bytes()))
    search.main(queries(tiny, packed, parts()))
    assert len(json.loads(capsys.readouterr().out)["results"][0]["hits"]) == 5


def test_a_corpus_prompt_that_the_parts_have(tiny, text, parts, capsys):
    folder = parts("--prompt", "the sun ")
    with pytest.raises(InputError, match="shards was made with prompt 'the sun ', not '': give what it was made with"):
        search.main(queries(tiny, text, folder))
    capsys.readouterr()
    search.main(queries(tiny, text, folder, "--corpus-prompt", "the sun ", "--top", "1"))
    (hit,) = json.loads(capsys.readouterr().out)["results"][0]["hits"]
    vectors = SentenceEncoder.load(tiny).encode(["a dog", *(f"the sun {line}" for line in LINES)]).astype(float)
    scores = vectors[1:] @ vectors[0]
    assert hit["index"] == scores.argmax()
    assert hit["score"] == pytest.approx(scores.max(), abs=2e-6, rel=0)
    pairs.main([str(text), "--model", str(tiny), "--index", str(folder), "--prompt", "the sun ", "--json"])
    assert json.loads(capsys.readouterr().out)["sentences"] == len(LINES)


@pytest.mark.parametrize(
    ("made", "flags", "message"),
    [
        (
            [],
            ["--pooling", "cls"],
            "shards was made with pooling 'mean', not 'cls': give what it was made with, or encode",
        ),
        ([], ["--max-length", "8"], "with max_length 16, not 8"),
        ([], ["--corpus-prompt", "x "], "with prompt '', not 'x '"),
        (["--truncate-dim", "5"], [], "with width 5, not 24"),
        (["--pooling", "cls"], [], "with pooling 'cls', not 'mean'"),
    ],
)
def test_parts_of_another_option_are_refused_by_name(tiny, text, parts, encoded, made, flags, message):
    folder = parts(*made)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    encoded.clear()
    with pytest.raises(InputError, match=message) as error:
        search.main(queries(tiny, text, folder, *flags))
    assert f"python -m minisbert.encode --file {text} --out FOLDER --shard-rows 4" in str(error.value)
    assert encoded == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_parts_of_a_model_that_states_its_width(tiny, text, parts, tmp_path, capsys):
    short = shutil.copytree(tiny, tmp_path / "short")
    path = short / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 5}))
    folder = parts("--model", str(short))
    capsys.readouterr()
    search.main(queries(short, text, folder, "--top", "1"))
    (hit,) = json.loads(capsys.readouterr().out)["results"][0]["hits"]
    vectors = SentenceEncoder.load(tiny).encode(["a dog", *LINES], truncate_dim=5).astype(float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert hit["score"] == pytest.approx((vectors[1:] @ vectors[0]).max(), abs=2e-6, rel=0)


def test_parts_of_another_model_are_refused(tiny, text, parts, tmp_path):
    folder, encoder = parts(), SentenceEncoder.load(tiny)
    with torch.no_grad():
        encoder.bert.embeddings.word.weight[7, 3] += 0.5
    encoder.save(tmp_path / "other")
    with pytest.raises(InputError, match="shards was made with another model: give what it was made with"):
        search.main(queries(tmp_path / "other", text, folder))


@pytest.fixture
def no_model(monkeypatch) -> Callable[[], None]:
    """A function that forbids loading a model."""
    return lambda: monkeypatch.setattr(SentenceEncoder, "load", lambda *_, **__: pytest.fail("a model was loaded"))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"\n", b"\r\n"), lambda text: text + b"\n\n", lambda text: text[:-1],
        lambda text: text.replace(b"moon\n", b"moon\n \n", 1), lambda text: b"\xef\xbb\xbf" + text,
    ],
)  # fmt: skip
def test_the_same_lines_with_other_ends_are_the_same_text(tiny, text, parts, capsys, change):
    folder = parts()
    search.main(queries(tiny, text, folder))
    expected = capsys.readouterr().out
    text.write_bytes(change(text.read_bytes()))
    search.main(queries(tiny, text, folder))
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("change", ["another line", "a space more", "one less", "an edited line"])
def test_parts_of_another_text_are_refused(tiny, text, parts, no_model, change):
    folder = parts()
    content = text.read_text()
    lines = {"another line": content + "a cat\n", "a space more": content.replace("moon\n", "moon \n", 1)}
    lines |= {"one less": "\n".join(LINES[:-1]), "an edited line": content.replace("dog", "fox", 1)}
    text.write_text(lines[change])
    no_model()
    with pytest.raises(
        InputError, match=r"was made from 'texts\.txt' with 11 texts, and .*texts\.txt is a different text"
    ):
        search.main(queries(tiny, text, folder))


def test_a_text_that_changed_after_it_was_read(text, parts):
    with pytest.raises(InputError, match=r"texts\.txt had 10 texts when it was read, .*shards has 11: has it changed"):
        find_shards(parts(), str(text), 10)


@pytest.mark.parametrize("lacking", ["part-00001.npy", "part-00001.json"])
def test_missing_parts_are_named_with_the_command_that_completes_them(tiny, text, parts, no_model, lacking):
    folder = parts(rows=3)
    (folder / lacking).unlink()
    (folder / "part-00003.npy").unlink()
    no_model()
    with pytest.raises(InputError, match=r"lacks 2 of 4 shards, 'part-00001\.npy', 'part-00003\.npy': enc") as error:
        search.main(queries(tiny, text, folder))
    assert f"python -m minisbert.encode --file 'texts.txt' --out {folder} --shard-rows 3 and" in str(error.value)


def test_parts_of_a_former_text_do_not_count(tiny, text, parts, monkeypatch, capsys):
    """Rank 0 of 2 replaces its parts; those of rank 1 are there still, of the right size."""
    folder = parts()
    text.write_text("\n".join(reversed(LINES)))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    parts("--overwrite")
    with pytest.raises(InputError, match=r"lacks 1 of 3 shards, 'part-00001\.npy'"):
        search.main(queries(tiny, text, folder))


def with_header_of(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda path: np.save(path, change(np.load(path)))


def resized(by: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size + by)


@pytest.mark.parametrize(
    "damage",
    [
        resized(-5), resized(5), lambda path: os.truncate(path, 0), lambda path: path.write_bytes(b"PK\x03\x04 zip"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{{descr'")),
        with_header_of(np.float64), with_header_of(np.transpose), with_header_of(lambda rows: rows[:2]),
        with_header_of(np.ravel),
    ],
)  # fmt: skip
def test_damaged_parts_are_refused(tiny, text, parts, no_model, damage):
    folder = parts()
    damage(folder / "part-00001.npy")
    no_model()
    with pytest.raises(InputError, match=r"part-00001\.npy is damaged or cut short: run encode again"):
        search.main(queries(tiny, text, folder))


def replaced(folder: Path) -> None:
    for end in ("json", "npy"):
        (folder / f"new.{end}").write_bytes((folder / f"part-00001.{end}").read_bytes())
        (folder / f"new.{end}").replace(folder / f"part-00001.{end}")


@pytest.mark.parametrize(
    "change",
    [
        replaced, lambda folder: resized(-5)(folder / "part-00001.npy"), lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / "part-00001.npy").unlink(), lambda folder: os.utime(folder / "part-00002.npy"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("moment", ["before the first read", "after the last"])
def test_shards_that_change_while_they_are_read(tiny, text, parts, monkeypatch, capsys, change, moment):
    """Not one result is printed, and a file that is cut short is no bus error."""
    folder = parts()

    def changing(*arguments: object, **options: object) -> tuple:
        found = top_k(*arguments, **options) if moment == "after the last" else None
        change(folder)
        return found or top_k(*arguments, **options)

    monkeypatch.setattr(SentenceEncoder, "top_k", staticmethod(changing))
    message = r"shards changed while it was being read|part-00001\.npy is damaged|No such file.*part-00001\.npy"
    with pytest.raises((InputError, OSError), match=message):
        search.main(queries(tiny, text, folder))
    assert capsys.readouterr().out == ""


def test_nan_in_a_part_is_named(tiny, text, parts):
    folder = parts()
    vectors = np.load(folder / "part-00001.npy", mmap_mode="r+")
    vectors[2, 3] = np.nan
    vectors.flush()
    with pytest.raises(InputError, match="the corpus, row 6: NaN or infinity"):
        search.main(queries(tiny, text, folder))


def test_folders_that_are_no_parts(tiny, text, tmp_path, no_model):
    no_model()
    folder = tmp_path / "i.safetensors"
    folder.mkdir()
    with pytest.raises(InputError, match=r"i\.safetensors is a folder without manifest\.json: give one that"):
        search.main(queries(tiny, text, folder))
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"manifest\.json is not the manifest of a folder of shards: choose another f"):
        search.main(queries(tiny, text, folder))
    with pytest.raises(InputError, match=r"--index .*no: the name must end in \.safetensors, or be that of a folder"):
        search.main(queries(tiny, text, tmp_path / "no"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_text_that_can_be_read_only_once(text, parts, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        InputError, match=r"pipe can be read only once; with the shards in .*shards, give a regular file"
    ):
        find_shards(parts(), str(tmp_path / "pipe"), 11)


@pytest.mark.parametrize("corpus", [[], ["--corpus", "corpus.jsonl"]])
def test_mining_in_parts_needs_their_text(tiny, parts, tmp_path, corpus):
    command = ["--pairs", "pairs.tsv", "--out", str(tmp_path / "o.jsonl"), "--model", str(tiny)]
    with pytest.raises(InputError, match=r"shards is a folder: it needs --corpus FILE with the texts of its shards"):
        mine.main([*command, *corpus, "--index", str(parts())])
