"""The trace command: equal sides pass, the first divergence is found, a planted mistake is named."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lessons.mistakes import MISTAKES, planted
from minisbert.commands.trace_ import EXAMPLE_TEXTS, main
from minisbert.core import InputError
from minisbert.diagnosis import tracing
from minisbert.diagnosis.tracing import huggingface
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import REFERENCE, golden

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
    """Exit code and output of a comparison with ours, some of them replaced, and those given as
    None left out.
    """

    def run_against(
        changes: dict[str, torch.Tensor | None], *options: str, model: Path = tiny
    ) -> tuple[int, str]:
        path = tmp_path / "yours.safetensors"
        save_file(
            {name: value for name, value in (ours | changes).items() if value is not None}, path
        )
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
    rows = [line for line in out.splitlines() if " x " in line and line.split()[0] in STATES]
    return {line.split()[0]: line.rpartition(")")[2].strip() for line in rows}


def test_write_contains_every_tensor_and_the_vectors_of_encode(tiny, ours):
    assert set(ours) == {"ids", "mask", "token_types", *STATES}
    real = ours["mask"].sum(dim=1).tolist()
    assert len(set(real)) == len(EXAMPLE_TEXTS) == 3, (
        "texts of different length, so there is padding"
    )
    assert ours["layers.0.attention"].shape == (3, 3, max(real), max(real))
    assert ours["layers.1"].dtype == torch.float32
    vectors = torch.from_numpy(SentenceEncoder.load(tiny).encode(EXAMPLE_TEXTS))
    torch.testing.assert_close(ours["vector"], vectors, atol=1e-6, rtol=0)


# -------------------------------------------------------------------------------- equal and not
# equal


def test_our_own_file_is_equal(against):
    code, out = against({})
    assert (code, verdicts(out)) == (0, dict.fromkeys(STATES, "ok"))
    assert "tolerance  2e-05, for the final vector 2e-06" in out
    assert out.splitlines()[-1].startswith("Equal: all 8 tensors agree")


def test_golden_states_of_the_reference_are_equal(tiny, tmp_path, capsys):
    """The committed reference numbers, with both token types: there is no ``vector`` then."""
    reference = golden("bert")
    names = ["ids", "mask", "token_types", *(name for name in STATES if name in reference)]
    tensors = {name: reference[name] for name in names} | {"pooled": reference["pooled.mean"]}
    save_file(tensors, tmp_path / "golden.safetensors")
    code, out = run(
        capsys, "--model", tiny, "--double", "--against", tmp_path / "golden.safetensors"
    )
    assert (code, verdicts(out)) == (0, dict.fromkeys(STATES[:-1], "ok"))


def test_first_divergence_is_marked_and_later_ones_are_listed(ours, against):
    spoiled = ours["layers.0"].clone()
    spoiled[1, 2, 3] += 0.01
    code, out = against({"layers.0": spoiled, "pooled": ours["pooled"] * 1.1})
    assert code == 1
    expected = dict.fromkeys(STATES, "ok") | {"layers.0": "FIRST DIVERGENCE", "pooled": "differs"}
    assert verdicts(out) == expected
    assert "(1, 2, 3)" in out
    last = out.splitlines()[-1]
    assert "no known mistake" in last
    assert "between layers.0.attention, which agrees, and layers.0: values" in last


def test_a_gap_in_the_file_widens_the_search(ours, against):
    code, out = against(
        {"layers.0": ours["layers.0"] + 0.01, "layers.0.attention": None, "vector": None}
    )
    assert code == 1
    assert "the other side has no such tensor: layers.0.attention, vector" in out
    assert (
        "between embeddings, which agrees, and layers.0: queries and keys" in out.splitlines()[-1]
    )


def test_pads_are_not_compared_and_names_that_we_lack_are_listed(ours, against):
    pads = ~ours["mask"]
    hidden = ours["layers.1"].masked_fill(pads[:, :, None], float("nan"))
    probabilities = ours["layers.1.attention"].masked_fill(pads[:, None, :, None], 7.0)
    code, out = against(
        {"layers.1": hidden, "layers.1.attention": probabilities, "layer3": torch.zeros(2)}
    )
    assert code == 0
    assert "not compared because we have no such tensor: layer3" in out


def test_attention_of_a_real_token_to_a_pad_is_compared(ours, against):
    to_pads = ours["mask"][:, None, :, None] & ~ours["mask"][:, None, None, :]
    code, out = against(
        {"layers.1.attention": ours["layers.1.attention"].masked_fill(to_pads, 1e-3)}
    )
    assert (code, verdicts(out)["layers.1.attention"]) == (1, "FIRST DIVERGENCE")


def test_nan_at_a_real_token_is_a_divergence(ours, against):
    vector = ours["vector"].clone()
    vector[2, 5] = float("nan")
    code, out = against({"vector": vector}, "--json")
    report = json.loads(out)
    assert (code, report["first_divergence"]) == (1, "vector")
    row = report["tensors"][-1]
    assert (row["name"], row["ok"], row["at"], row["difference"]) == ("vector", False, [2, 5], None)


# ----------------------------------------------------------------------------------- mistakes by
# name


@pytest.mark.parametrize(
    ("name", "first", "options"),
    [
        ("positions from 1", "embeddings", []),
        ("LayerNorm eps 1e-5", "embeddings", []),
        ("no attention mask", "layers.0.attention", []),
        ("1/sqrt(D)", "layers.0.attention", []),
        ("heads merged without transposing", "layers.0", []),
        ("tanh GELU", "layers.0", []),
        ("attention's residual forgotten", "layers.0", []),
        ("pooler without tanh", "pooler", []),
        ("mean over pads", "pooled", []),
        ("one layer short", "pooler", []),
        ("no gamma", "embeddings", ["--model", str(REFERENCE / "tiny-roberta")]),
        ("no gamma", "embeddings", ["--model", str(REFERENCE / "tiny-distiluse")]),
    ],
)
def test_a_planted_mistake_is_named(tiny, tmp_path, capsys, name, first, options):
    path, mistake = tmp_path / "yours.safetensors", MISTAKES[name]
    with planted(mistake):
        main(["--model", str(tiny), *options, "--write", str(path)])
    code, out = run(capsys, "--model", tiny, *options, "--against", path)
    assert (code, verdicts(out)[first]) == (1, "FIRST DIVERGENCE")
    cause = (
        f"these are exactly the numbers you get when {mistake.meaning} ({name}, {mistake.target})."
    )
    assert out.splitlines()[-1] == f"{first} is the first to differ: {cause}"


def test_two_mistakes_at_once(tiny, tmp_path, capsys):
    """The first is named, and so is the first tensor that the second changes."""
    path = tmp_path / "yours.safetensors"
    with planted(MISTAKES["1/K"]), planted(MISTAKES["mean over pads"]):
        main(["--model", str(tiny), "--write", str(path)])
    code, out = run(capsys, "--model", tiny, "--against", path, "--json")
    report = json.loads(out)
    assert (code, report["first_divergence"]) == (1, "layers.0.attention")
    assert (report["mistakes"], report["mistakes_in_part"]) == ([], {"1/K": "pooled"})
    assert "(1/K, bert.attention). But that is not all" in report["verdict"]
    assert "pooled still differs" in report["verdict"]


def test_another_models_file(tiny, tmp_path, against):
    """Same sizes, other weights: different from the start, and no mistake is named."""
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 0.05 * torch.arange(24) % 0.3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    code, out = against({}, model=other)
    assert (code, verdicts(out)["embeddings"]) == (1, "FIRST DIVERGENCE")
    assert "Look before embeddings: the word table" in out.splitlines()[-1]


# ------------------------------------------------------------------------------- files that do not
# fit


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
    with pytest.raises(InputError, match=message):
        against(changes)


def test_double_needs_float64(against):
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
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), *arguments])


# ----------------------------------------------------------------------------- live against the
# reference


def install(folder: Path, monkeypatch) -> Path:
    """Make ``tracing`` find its script as the wheel's files lie: beside it, without a checkout."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]["targets"]
    for source, target in wheel["wheel"]["force-include"].items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, folder / target)
    monkeypatch.setattr(tracing, "__file__", str(folder / "minisbert" / "diagnosis" / "tracing.py"))
    return folder / "minisbert" / "diagnosis" / "reference_states.py"


def test_without_transformers_or_its_script_the_error_says_what_to_do(tiny, tmp_path, monkeypatch):
    assert tracing.reference_script() == ROOT / "tests" / "reference" / "states.py"
    assert install(tmp_path, monkeypatch) == tracing.reference_script()
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'\.\[reference\]'.*--against FILE"):
        main(["--model", str(tiny)])
    tracing.reference_script().unlink()
    with pytest.raises(InputError, match=r"reference_states\.py"):
        main(["--model", str(tiny)])


@pytest.mark.reference
@pytest.mark.parametrize("precision", [[], ["--double"]])
def test_huggingface_in_another_process_is_equal_on_tiny(
    precision, tiny, tmp_path, monkeypatch, capsys
):
    """As installed, from a folder of the user's."""
    pytest.importorskip("transformers")
    install(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    code, out = run(
        capsys, "--model", tiny, *precision, "the dog runs", "a kitten sleeps on the small red mat"
    )
    assert (code, verdicts(out)) == (0, dict.fromkeys(STATES, "ok"))


@pytest.mark.reference
def test_a_folder_that_transformers_cannot_read_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match="transformers could not run"):
        huggingface(tmp_path, {"ids": torch.ones(1, 2, dtype=torch.long)}, double=False)
