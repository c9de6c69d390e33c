"""The encode command: a matrix for a few texts, a file of vectors for many."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from minisbert.commands.encode import main
from minisbert.core import InputError
from minisbert.evaluation import plots
from minisbert.models import batching
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import devices

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple in the garden", "moon"]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """The texts above, one per line."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def cosine_matrix(tiny: Path, texts: list[str]) -> np.ndarray:
    vectors = SentenceEncoder.load(tiny).encode(texts)
    lengths = np.linalg.norm(vectors, axis=1)
    return vectors @ vectors.T / np.outer(lengths, lengths)


def printed_matrix(out: str) -> tuple[np.ndarray, list[str]]:
    """The numbers of the table, and the text after each row."""
    lines = out.splitlines()
    count = len(lines) - 1  # of texts, below the heading
    numbers = []
    labels = []
    for line in lines[1:]:
        _, *cells, label = line.split(maxsplit=count + 1)
        numbers.append([float(cell) for cell in cells])
        labels.append(label)
    return np.array(numbers), labels


# -------------------------------------------------------------------------------------------
# what is printed


def test_a_few_texts_give_a_matrix(tiny, capsys):
    """The first command of the README: cosines to three digits, a text beside each row."""
    main(["--model", str(tiny), *TEXTS])
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["cosine", "1", "2", "3", "4"]
    matrix, labels = printed_matrix(out)
    assert labels == TEXTS
    # three digits are shown
    np.testing.assert_allclose(matrix, cosine_matrix(tiny, TEXTS), atol=0.00051, rtol=0)


def test_a_text_beside_the_matrix_is_one_short_line(tiny, capsys):
    """Line breaks and long texts would destroy the table."""
    main(["--model", str(tiny), "a cat\nand\ta dog", "moon " * 15])
    _, labels = printed_matrix(capsys.readouterr().out)
    assert labels == ["a cat and a dog", ("moon " * 15)[:57] + "..."]


def test_texts_that_the_model_cuts_are_counted(tiny, capsys):
    """A vector of half a text is no error, but the user should know."""
    main(["--model", str(tiny), "a cat", "moon " * 17])
    assert "1 of 2 texts were longer than 16 tokens and were cut\n" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["arguments", "file"])
def test_a_line_of_json_for_each_text(tiny, lines, capsys, source):
    """For jq and other programs."""
    texts = TEXTS if source == "arguments" else ["--file", str(lines)]
    main(["--model", str(tiny), "--json", *texts])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    for row in rows:
        assert list(row) == ["text", "vector"]
    vectors = np.array([row["vector"] for row in rows], dtype=np.float32)
    expected = SentenceEncoder.load(tiny).encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    "other", [["--out", "a.npy"], ["--heatmap", "a.png"], ["--quantize", "int8"]]
)
def test_json_goes_to_the_screen_and_is_one_vector_per_text(tiny, other):
    """An option that --json would ignore is refused."""
    with pytest.raises(InputError, match=r"--json|--out"):
        main(["--model", str(tiny), "--json", "a cat", *other])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What is drawn instead of being drawn: texts, matrix and similarity of each heat map."""
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    calls: list[tuple] = []

    def draw(texts: list[str], matrix: np.ndarray, similarity: str) -> "Figure":
        calls.append((texts, matrix, similarity))
        return Figure()

    monkeypatch.setattr(plots, "draw_heatmap", draw)
    return calls


class Figure:
    """As much of a figure as is saved."""

    def savefig(self, path: Path, **_: object) -> None:
        path.write_bytes(b"png")


def test_a_heat_map_is_drawn_of_the_matrix(tiny, tmp_path, capsys, drawn):
    """The picture and the table show the same numbers."""
    path = tmp_path / "new" / "map.png"
    main(["--model", str(tiny), "--heatmap", str(path), *TEXTS])
    captured = capsys.readouterr()
    assert printed_matrix(captured.out)[1] == TEXTS
    assert captured.err.endswith(f"wrote {path}\n")
    ((texts, matrix, similarity),) = drawn
    assert texts == TEXTS
    assert similarity == "cosine"
    # 2e-6 for each of two vectors
    np.testing.assert_allclose(matrix, cosine_matrix(tiny, TEXTS), atol=4e-6, rtol=0)


def test_a_heat_map_may_have_more_texts_than_the_terminal_shows(tiny, tmp_path, capsys, drawn):
    """A row of 13 numbers and a text is broken by a terminal."""
    main(["--model", str(tiny), "--heatmap", str(tmp_path / "many.png"), *["moon"] * 13])
    assert capsys.readouterr().out == ""
    _, matrix, _ = drawn[0]
    assert matrix.shape == (13, 13)


# -------------------------------------------------------------------------------------------
# what is written


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_the_file_holds_the_vectors_in_the_texts_order(tiny, lines, tmp_path, capsys, suffix):
    """In a folder that is made, and nothing else is left there."""
    out = tmp_path / "new" / f"vectors{suffix}"
    main(["--model", str(tiny), "--file", str(lines), "--out", str(out)])
    vectors = np.load(out) if suffix == ".npy" else load_file(out)["vectors"]
    np.testing.assert_array_equal(vectors, SentenceEncoder.load(tiny).encode(TEXTS))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote 4 vectors of width 24 to {out}" in captured.err
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_the_file_has_the_usual_permissions(tiny, lines, tmp_path, suffix):
    """safetensors' own files can be read by their owner only."""
    out = tmp_path / f"vectors{suffix}"
    main(["--model", str(tiny), "--file", str(lines), "--out", str(out)])
    other = tmp_path / "new file"
    other.touch()
    assert out.stat().st_mode == other.stat().st_mode


def test_a_long_file_is_streamed_in_chunks(tiny, lines, tmp_path, monkeypatch):
    """In chunks of one or two texts: the file is the same as from one call with all texts."""
    sizes = []

    def small_chunks(texts: Iterable[str]) -> Iterator[list[str]]:
        for chunk in batching.chunks(texts, 20):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr("minisbert.models.text_encoder.chunks", small_chunks)
    main(["--model", str(tiny), "--file", str(lines), "--out", str(tmp_path / "v.npy")])
    assert sizes == [1, 2, 1]
    vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, SentenceEncoder.load(tiny).encode(TEXTS), atol=1e-6, rtol=0)


def test_a_file_that_changes_meanwhile_is_an_error_and_nothing_is_written(
    tiny, lines, tmp_path, monkeypatch
):
    """The header of .npy would name another number of rows than the file has."""
    load = SentenceEncoder.load_folder

    def slow_load(*arguments: object, **options: object) -> SentenceEncoder:
        with open(lines, "a", encoding="utf-8") as file:
            file.write("a bird\n")
        return load(*arguments, **options)

    monkeypatch.setattr(SentenceEncoder, "load_folder", slow_load)
    with pytest.raises(InputError, match="4 texts were counted, but 5 encoded"):
        main(["--model", str(tiny), "--file", str(lines), "--out", str(tmp_path / "v.npy")])
    assert list(tmp_path.iterdir()) == [lines]


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--truncate-dim", "5"], {"truncate_dim": 5}),
        (["--truncate-dim", "5", "--normalize"], {"truncate_dim": 5, "normalize_embeddings": True}),
        (["--batch-size", "8"], {"batch_size": 8}),
        (["--prompt", "the sun "], {"prompt": "the sun "}),
        (["--prompt-name", "query"], {"prompt": "a bird "}),
        (["--pooling", "cls"], {}),
    ],
)
@pytest.mark.parametrize("source", ["arguments", "file"])
def test_flags_are_the_options_of_encode(tiny, lines, tmp_path, source, flags, options):
    """The command computes what the same call in Python does."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "a bird "}}')
    texts = TEXTS if source == "arguments" else ["--file", str(lines)]
    main(["--model", str(folder), "--out", str(tmp_path / "v.npy"), *flags, *texts])
    encoder = SentenceEncoder.load(tiny, pooling="cls" if "cls" in flags else None)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), encoder.encode(TEXTS, **options))


BFLOAT16 = ["--device", "cpu", "--dtype", "bfloat16"]


def test_bfloat16_needs_a_cpu_that_multiplies_it(tiny, tmp_path, monkeypatch):
    """On other CPUs it would be slower than float32."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"avx2"})
    out = tmp_path / "v.npy"
    with pytest.raises(InputError, match="bfloat16 cannot be used: the CPU has none of"):
        main(["--model", str(tiny), *BFLOAT16, "--out", str(out), *TEXTS])
    assert not out.exists()


def test_bfloat16_by_flag(tiny, tmp_path, monkeypatch):
    """Its vectors are near those of float32, and not equal to them."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"avx512_bf16"})
    out = tmp_path / "v.npy"
    main(["--model", str(tiny), *BFLOAT16, "--out", str(out), *TEXTS])
    difference = abs(np.load(out) - SentenceEncoder.load(tiny).encode(TEXTS)).max()
    assert 0 < difference < 0.03


# -------------------------------------------------------------------------------------------
# what cannot be used


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--file"),
        (["a cat", "--file", "texts.txt"], "--file"),
        (["a cat", ""], "empty text"),
        (["-"], "--file /dev/stdin"),
        (["--file", "no.txt"], "no.txt does not exist"),
        (["a cat", "--out", "vectors.csv"], r"\.safetensors"),
        (["a cat", "--heatmap", "map.png", "--out", "v.npy"], "--heatmap"),
        (["a cat"] * 13, "at most 12"),
        (["a cat"] * 61 + ["--heatmap", "map.png"], "at most 60"),
    ],
)
def test_invalid_arguments_are_errors_before_the_model_is_loaded(
    tiny, monkeypatch, arguments, message
):
    """A large model takes a minute to load."""

    def load_folder(*_: object) -> None:
        pytest.fail("the model was loaded first")

    monkeypatch.setattr(SentenceEncoder, "load_folder", load_folder)
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), *arguments])


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no /dev/fd")
def test_a_pipe_of_the_shell_can_be_the_file(tiny, tmp_path):
    """``--file <(sort texts.txt)`` can be read only once, though .npy needs the number of texts."""
    reader, writer = os.pipe()
    os.write(writer, "\n".join(TEXTS).encode())
    os.close(writer)
    out = tmp_path / "v.npy"
    main(["--model", str(tiny), "--file", f"/dev/fd/{reader}", "--out", str(out)])
    os.close(reader)
    np.testing.assert_array_equal(np.load(out), SentenceEncoder.load(tiny).encode(TEXTS))
