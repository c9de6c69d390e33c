"""Golden files: written once, they judge an engine's vectors without the model."""

import json
import shutil

import numpy as np
import pytest

from minisbert.commands.certify import main
from minisbert.core import InputError
from minisbert.diagnosis.vector_sources import golden_texts, read_golden
from minisbert.models.sentence_encoder import SentenceEncoder


@pytest.fixture(scope="module")
def golden(tiny, tmp_path_factory):
    """A golden file whose model is gone, and the vectors of its texts."""
    folder = tmp_path_factory.mktemp("golden")
    shutil.copytree(tiny, folder / "model")
    main(["--write-golden", str(folder / "g.json"), "--model", str(folder / "model")])
    encoder = SentenceEncoder.load(folder / "model")
    shutil.rmtree(folder / "model")
    return folder / "g.json", encoder.encode(golden_texts())


CHANGES = {
    "equal": (lambda v: v, 0, "Equal, to "),
    "float16": (lambda v: v.astype(np.float16), 0, "stored as float16"),
    "signs": (lambda v: (v > 0).astype(np.float32), 0, "binary: the signs of the columns"),
    "reversed": (lambda v: v[::-1], 1, "the rows are in"),
    "longer": (lambda v: 3 * v, 1, "the directions are right, the lengths are not"),
    "zeros": (lambda v: v * (np.arange(len(v)) > 0)[:, None], 1, "1 of 20 vectors are all zeros, such as line 1"),
    "another": (lambda v: np.roll(v, 1, axis=1), 1, "another model's vectors"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_vectors_beside_a_golden_file(name, golden, tmp_path, capsys):
    path, vectors = golden
    change, code, said = CHANGES[name]
    np.save(tmp_path / "v.npy", change(vectors))
    arguments = [str(tmp_path / "v.npy"), "--golden", str(path)]
    if code:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == code
    else:
        main(arguments)
    assert said in capsys.readouterr().out


def test_the_file_holds_the_vectors_to_the_last_bit_of_float32(golden):
    path, vectors = golden
    found = read_golden(path)
    np.testing.assert_array_equal(found.vectors.astype(np.float32), vectors)
    assert found.about == "mean pooling, at most 16 tokens, scaled to length 1"
    assert len(set(found.texts)) == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"texts": []}, "not a golden file"),
        ({"minisbert": "golden vectors"}, "no key 'texts'"),
        ({"minisbert": "golden vectors", "texts": ["a", "b"], "vectors": [[1, 2]]}, "2 texts and 1 vectors"),
        ({"minisbert": "golden vectors", "texts": ["a"], "vectors": [[1, "x"]]}, "g.json: "),
    ],
    ids=str,
)
def test_another_file_is_refused(content, message, tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        main([str(tmp_path / "v.npy"), "--golden", str(tmp_path / "g.json")])


def test_vectors_of_another_width_or_number_are_refused(golden, tmp_path):
    path, vectors = golden
    for wrong, message in ((vectors[:, 1:], "columns, the golden file's"), (vectors[1:], "19 vectors for 20 texts")):
        np.save(tmp_path / "v.npy", wrong)
        with pytest.raises(InputError, match=message):
            main([str(tmp_path / "v.npy"), "--golden", str(path)])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("v.npy --golden g.json --texts t.txt", "--golden has the texts"),
        ("v.npy --write-golden g.json", "--write-golden compares nothing"),
        ("--write-golden g.txt", "must end in .json"),
        ("--golden g.json", "either VECTORS, a file, or --url"),
        ("v.npy", "--texts FILE or --golden F.json is needed"),
    ],
)
def test_options_that_do_not_fit(line, message):
    with pytest.raises(InputError, match=message):
        main(line.split())
