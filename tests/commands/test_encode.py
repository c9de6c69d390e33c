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
    rows = [line.split(maxsplit=len(out.splitlines())) for line in out.splitlines()[1:]]
    return np.array([[float(cell) for cell in row[1:-1]] for row in rows]), [
        row[-1] for row in rows
    ]


# ---------------------------------------------------------------------------------- where texts
# come from


def test_a_few_texts_give_a_matrix(tiny, capsys):
    """A long text is cut for the model, and shortened to one line for the table."""
    texts = [*TEXTS, "a cat\nand\ta dog", "moon " * 15]
    main(["--model", str(tiny), *texts])
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["cosine", "1", "2", "3", "4", "5", "6"]
    matrix, names = printed_matrix(captured.out)
    assert names == [*TEXTS, "a cat and a dog", ("moon " * 15)[:57] + "..."]
    np.testing.assert_allclose(
        matrix, cosine_matrix(tiny, texts), atol=0.00051, rtol=0
    )  # three digits are shown
    assert "1 of 6 texts were longer than 16 tokens and were cut\n" in captured.err


def test_a_line_of_json_for_each_text(tiny, lines, capsys):
    for given in (TEXTS, ["--file", str(lines)]):
        main(["--model", str(tiny), "--json", *given])
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["text"] for row in rows] == TEXTS
        assert set(map(tuple, rows)) == {("text", "vector")}
        found = np.array([row["vector"] for row in rows], dtype=np.float32)
        np.testing.assert_allclose(
            found, SentenceEncoder.load(tiny).encode(TEXTS), atol=2e-6, rtol=0
        )


@pytest.mark.parametrize(
    "other", [["--out", "a.npy"], ["--heatmap", "a.png"], ["--quantize", "int8"]]
)
def test_json_goes_to_the_screen_and_is_one_vector_per_text(tiny, other):
    with pytest.raises(InputError, match=r"--json|--out"):
        main(["--model", str(tiny), "--json", "a cat", *other])


# ---------------------------------------------------------------------------------- where vectors
# go


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_the_file_holds_the_vectors_in_the_texts_order(tiny, lines, tmp_path, capsys, suffix):
    out = tmp_path / "new" / f"vectors{suffix}"
    main(["--model", str(tiny), "--file", str(lines), "--out", str(out)])
    vectors = np.load(out) if suffix == ".npy" else load_file(out)["vectors"]
    np.testing.assert_array_equal(vectors, SentenceEncoder.load(tiny).encode(TEXTS))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"wrote 4 vectors of width 24 to {out}" in captured.err
    assert list(out.parent.iterdir()) == [out]
    lines.with_name("new file").touch()
    assert (
        out.stat().st_mode == lines.with_name("new file").stat().st_mode
    )  # safetensors' own is for its owner only


def test_a_long_file_is_streamed_in_chunks(tiny, lines, tmp_path, monkeypatch):
    """In chunks of one or two texts: the file is the same as from one call with all texts."""
    sizes = []

    def in_parts(texts: Iterable[str]) -> Iterator[list[str]]:
        for chunk in batching.chunks(texts, 20):
            sizes.append(len(chunk))
            yield chunk

    monkeypatch.setattr("minisbert.models.text_encoder.chunks", in_parts)
    main(["--model", str(tiny), "--file", str(lines), "--out", str(tmp_path / "v.npy")])
    assert sizes == [1, 2, 1]
    vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, SentenceEncoder.load(tiny).encode(TEXTS), atol=1e-6, rtol=0)


def test_a_file_that_changes_meanwhile_is_an_error_and_nothing_is_written(
    tiny, lines, tmp_path, monkeypatch
):
    load = SentenceEncoder.load_folder

    def slow_load(*arguments: object, **options: object) -> SentenceEncoder:
        with open(lines, "a", encoding="utf-8") as file:
            file.write("a bird\n")
        return load(*arguments, **options)

    monkeypatch.setattr(SentenceEncoder, "load_folder", slow_load)
    with pytest.raises(
        InputError, match="4 texts were counted, but 5 encoded: has the file changed"
    ):
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
def test_flags_are_the_options_of_encode(tiny, lines, tmp_path, flags, options):
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "a bird "}}')
    encoder = SentenceEncoder.load(tiny, pooling="cls" if "cls" in flags else None)
    for source in (["--file", str(lines)], TEXTS):
        main(["--model", str(folder), "--out", str(tmp_path / "v.npy"), *flags, *source])
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), encoder.encode(TEXTS, **options))


def test_bfloat16_by_flag(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"avx2"})
    command = [
        "--model",
        str(tiny),
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
        "--out",
        str(tmp_path / "v.npy"),
    ]
    with pytest.raises(InputError, match="bfloat16 cannot be used: the CPU has none of"):
        main([*command, *TEXTS])
    assert not (tmp_path / "v.npy").exists()
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"avx512_bf16"})
    main([*command, *TEXTS])
    assert (
        0 < abs(np.load(tmp_path / "v.npy") - SentenceEncoder.load(tiny).encode(TEXTS)).max() < 0.03
    )


def test_a_heat_map_is_drawn_of_the_matrix(tiny, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    drawn = []
    monkeypatch.setattr(plots, "draw_heatmap", lambda *given: drawn.append(given) or Figure())
    main(["--model", str(tiny), "--heatmap", str(tmp_path / "new" / "map.png"), *TEXTS])
    captured = capsys.readouterr()
    assert printed_matrix(captured.out)[1] == TEXTS
    assert captured.err.endswith(f"wrote {tmp_path / 'new' / 'map.png'}\n")
    ((texts, matrix, similarity),) = drawn
    assert (texts, similarity) == (TEXTS, "cosine")
    np.testing.assert_allclose(
        matrix, cosine_matrix(tiny, TEXTS), atol=4e-6, rtol=0
    )  # 2e-6 for each vector
    main(["--model", str(tiny), "--heatmap", str(tmp_path / "many.png"), *["moon"] * 13])
    assert capsys.readouterr().out == ""  # too many for the terminal
    assert drawn[-1][1].shape == (13, 13)


class Figure:
    """As much of a figure as is saved."""

    def savefig(self, path: Path, **_: object) -> None:
        path.write_bytes(b"png")


# ---------------------------------------------------------------------------------- what cannot be
# used


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
    monkeypatch.setattr(
        SentenceEncoder, "load_folder", lambda *_: pytest.fail("the model was loaded first")
    )
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), *arguments])


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no /dev/fd")
def test_a_pipe_of_the_shell_can_be_the_file(tiny, tmp_path):
    """``--file <(sort texts.txt)`` can be read only once, though the header of .npy needs the
    number of texts.
    """
    reader, writer = os.pipe()
    os.write(writer, "\n".join(TEXTS).encode())
    os.close(writer)
    main(["--model", str(tiny), "--file", f"/dev/fd/{reader}", "--out", str(tmp_path / "v.npy")])
    os.close(reader)
    np.testing.assert_array_equal(
        np.load(tmp_path / "v.npy"), SentenceEncoder.load(tiny).encode(TEXTS)
    )
