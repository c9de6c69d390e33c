"""The trace command: equal sides pass, and the first divergence is found."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.commands.trace_ import EXAMPLE_TEXTS, main
from minisbert.core import InputError
from minisbert.diagnosis.tracing import huggingface
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import golden

STATES = [
    "embeddings",
    "layers.0.attention",
    "layers.0",
    "layers.1.attention",
    "layers.1",
    "pooler",
    "pooled",
    "vector",
]


@pytest.fixture(scope="module")
def ours(tiny, tmp_path_factory) -> dict[str, torch.Tensor]:
    """Our own numbers for the built-in texts, as ``--write`` writes them."""
    path = tmp_path_factory.mktemp("trace") / "ours.safetensors"
    main(["--model", str(tiny), "--write", str(path)])
    return load_file(path)


@pytest.fixture
def against(tiny, ours, tmp_path, capsys):
    """Exit code and output of a comparison with ours after some changes; None removes a tensor."""

    def run_against(
        changes: dict[str, torch.Tensor | None], *options: str, model: Path = tiny
    ) -> tuple[int, str]:
        path = tmp_path / "yours.safetensors"
        changed = ours | changes
        save_file({name: value for name, value in changed.items() if value is not None}, path)
        return run(capsys, "--model", model, "--against", path, *options)

    return run_against


def run(capsys, *arguments: object) -> tuple[int, str]:
    """Exit code and standard output."""
    capsys.readouterr()
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().out


def verdicts(out: str) -> dict[str, str]:
    """The last column of the table, by tensor."""
    found = {}
    for line in out.splitlines():
        name = line.partition(" ")[0]
        if name in STATES and " x " in line:
            found[name] = line.rpartition(")")[2].strip()
    return found


def test_write_contains_every_tensor_and_the_vectors_of_encode(tiny, ours):
    """Somebody else's code is compared with this file, so nothing may be missing."""
    assert set(ours) == {"ids", "mask", "token_types", *STATES}
    real = ours["mask"].sum(dim=1).tolist()
    assert len(set(real)) == len(EXAMPLE_TEXTS) == 3, "different lengths, so there is padding"
    assert ours["layers.0.attention"].shape == (3, 3, max(real), max(real))
    assert ours["layers.1"].dtype == torch.float32
    vectors = torch.from_numpy(SentenceEncoder.load(tiny).encode(EXAMPLE_TEXTS))
    torch.testing.assert_close(ours["vector"], vectors, atol=1e-6, rtol=0)


# ---------------------------------------------------------------------------- equal and not equal


def test_our_own_file_is_equal(against):
    """What ``--write`` wrote agrees with the same model, within the documented tolerances."""
    code, out = against({})
    assert (code, verdicts(out)) == (0, dict.fromkeys(STATES, "ok"))
    assert "tolerance  2e-05, for the final vector 2e-06" in out
    assert out.splitlines()[-1].startswith("Equal: all 8 tensors agree")


def test_golden_states_of_the_reference_are_equal(tiny, tmp_path, capsys):
    """The committed reference numbers, with both token types: there is no ``vector`` then."""
    reference = golden("bert")
    tensors = {name: reference[name] for name in ["ids", "mask", "token_types", *STATES[:-2]]}
    tensors["pooled"] = reference["pooled.mean"]
    path = tmp_path / "golden.safetensors"
    save_file(tensors, path)
    code, out = run(capsys, "--model", tiny, "--double", "--against", path)
    assert (code, verdicts(out)) == (0, dict.fromkeys(STATES[:-1], "ok"))


def test_first_divergence_is_marked_and_later_ones_are_listed(ours, against):
    """The first row that differs says where to look; later ones follow from it."""
    spoiled = ours["layers.0"].clone()
    spoiled[1, 2, 3] += 0.01
    code, out = against({"layers.0": spoiled, "pooled": ours["pooled"] * 1.1})
    assert code == 1
    expected = dict.fromkeys(STATES, "ok") | {"layers.0": "FIRST DIVERGENCE", "pooled": "differs"}
    assert verdicts(out) == expected
    assert "(1, 2, 3)" in out
    last = out.splitlines()[-1]
    assert last.startswith("layers.0 is the first to differ")
    assert "between layers.0.attention, which agrees, and layers.0: values" in last


def test_a_gap_in_the_file_widens_the_search(ours, against):
    """Without a tensor in between, the mistake may be on either side of it."""
    changes = {"layers.0": ours["layers.0"] + 0.01, "layers.0.attention": None, "vector": None}
    code, out = against(changes)
    assert code == 1
    assert "the other side has no such tensor: layers.0.attention, vector" in out
    where = "between embeddings, which agrees, and layers.0: queries and keys"
    assert where in out.splitlines()[-1]


def test_pads_are_not_compared(ours, against):
    """Two right implementations may differ at a pad, whose state nobody reads."""
    pads = ~ours["mask"]
    hidden = ours["layers.1"].masked_fill(pads[:, :, None], float("nan"))
    probabilities = ours["layers.1.attention"].masked_fill(pads[:, None, :, None], 7.0)
    code, _ = against({"layers.1": hidden, "layers.1.attention": probabilities})
    assert code == 0


def test_names_that_we_lack_are_listed(against):
    """A misspelled name would otherwise look like a tensor that agrees."""
    code, out = against({"layer3": torch.zeros(2)})
    assert code == 0
    assert "not compared because we have no such tensor: layer3" in out


def test_attention_of_a_real_token_to_a_pad_is_compared(ours, against):
    """A mask that leaks a little shows there first."""
    to_pads = ours["mask"][:, None, :, None] & ~ours["mask"][:, None, None, :]
    leaking = ours["layers.1.attention"].masked_fill(to_pads, 1e-3)
    code, out = against({"layers.1.attention": leaking})
    assert (code, verdicts(out)["layers.1.attention"]) == (1, "FIRST DIVERGENCE")


def test_nan_at_a_real_token_is_a_divergence(ours, against):
    """NaN is larger than every tolerance, and JSON has no infinity."""
    vector = ours["vector"].clone()
    vector[2, 5] = float("nan")
    code, out = against({"vector": vector}, "--json")
    report = json.loads(out)
    assert (code, report["first_divergence"]) == (1, "vector")
    row = report["tensors"][-1]
    assert (row["name"], row["ok"], row["at"], row["difference"]) == ("vector", False, [2, 5], None)


def test_another_models_file(tiny, tmp_path, against):
    """Same sizes, other weights: different from the start."""
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 0.05 * torch.arange(24) % 0.3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    code, out = against({}, model=other)
    assert (code, verdicts(out)["embeddings"]) == (1, "FIRST DIVERGENCE")
    assert "Look before embeddings: the word table" in out.splitlines()[-1]


# -------------------------------------------------------------------------- files that do not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": torch.zeros(3, 16, 24).half()}, "embeddings is torch.float16"),
        ({"mask": None}, "'mask'"),
        ({"ids": torch.zeros(3, 4, 5, dtype=torch.long)}, r"\(3, 4, 5\)"),
        ({"mask": torch.ones(2, 2, dtype=torch.bool)}, r"\(2, 2\)"),
        ({"mask": torch.ones(3, 16)}, "mask"),
        (
            {"layers.0": torch.zeros(3, 16, 25)},
            r"layers.0 is \(3, 16, 25\), should be \(3, 16, 24\)",
        ),
        ({"ids": torch.full((3, 16), 999)}, "vocabulary"),
        ({"mask": torch.zeros(3, 16, dtype=torch.bool)}, "row 0"),
        (dict.fromkeys(STATES), "none of the tensors"),
    ],
)
def test_files_that_do_not_fit_are_refused(against, changes, message):
    """The error names the tensor and what it should be."""
    with pytest.raises(InputError, match=message):
        against(changes)


def test_double_needs_float64(against):
    """float32 tensors can never agree within float64's tolerance."""
    with pytest.raises(InputError, match="--double"):
        against({}, "--double")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--against", str(ROOT / "pyproject.toml")], "pyproject.toml"),
        (["--write", "ours.npz"], "--write"),
        (["--against", "yours.safetensors", "a cat"], "texts"),
    ],
)
def test_arguments_that_cannot_be_used(tiny, arguments, message):
    """A wrong argument is named before anything is computed."""
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), *arguments])


# --------------------------------------------------------------------- live against the reference


def test_without_transformers_the_error_says_what_to_do(tiny, monkeypatch):
    """transformers is an extra: the error names it, and the way to do without."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'\.\[reference\]'.*--against FILE"):
        main(["--model", str(tiny)])


@pytest.mark.reference
@pytest.mark.parametrize("precision", [[], ["--double"]])
def test_huggingface_in_another_process_is_equal_on_tiny(
    precision, tiny, tmp_path, monkeypatch, capsys
):
    """From a folder of the user's, in both precisions."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    texts = ["the dog runs", "a kitten sleeps on the small red mat"]
    code, out = run(capsys, "--model", tiny, *precision, *texts)
    assert (code, verdicts(out)) == (0, dict.fromkeys(STATES, "ok"))


@pytest.mark.reference
def test_a_folder_that_transformers_cannot_read_is_refused(tmp_path):
    """What transformers says is handed on in one line."""
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match="transformers could not run"):
        huggingface(tmp_path, {"ids": torch.ones(1, 2, dtype=torch.long)}, double=False)
