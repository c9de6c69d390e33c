"""The trace command: equal sides pass, the first divergence is found, a planted mistake is named."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lessons.mistakes import MISTAKES, planted
from minisbert.core import InputError
from minisbert.diagnosis import tracing
from minisbert.diagnosis.tracing import huggingface, inputs_of
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.trace import TEXTS, main
from tests.conftest import ROOT, exit_code_without_a_reader
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


@pytest.fixture
def written(tiny, tmp_path) -> Path:
    """Our own numbers for the built-in texts."""
    path = tmp_path / "ours.safetensors"
    main(["--model", str(tiny), "--write", str(path)])
    return path


def changed(path: Path, **tensors: torch.Tensor | None) -> Path:
    """A copy with some tensors replaced (``layers_0`` for layers.0); those given as None are left out."""
    named = {name.replace("_0", ".0").replace("_1", ".1"): value for name, value in tensors.items()}
    kept = {name: value for name, value in (load_file(path) | named).items() if value is not None}
    copy = path.with_name("yours.safetensors")
    save_file(kept, copy)
    return copy


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
    rows = [
        line
        for line in out.splitlines()
        if line.startswith(("embeddings ", "layers.", "pool", "vector ")) and " x " in line
    ]
    return {line.split()[0]: line.rpartition(")")[2].strip() for line in rows}


# ------------------------------------------------------------------------------------------- writing


def test_write_contains_every_tensor(written):
    found = load_file(written)
    assert set(found) == {"ids", "mask", "token_types", *STATES}
    real = found["mask"].sum(dim=1).tolist()
    assert len(set(real)) == len(TEXTS) == 3, "texts of different length, so there is padding"
    assert found["layers.0.attention"].shape == (3, 3, max(real), max(real))
    assert found["layers.1"].dtype == torch.float32


def test_written_vectors_are_those_of_encode(tiny, written):
    vectors = torch.from_numpy(SentenceEncoder.load(tiny).encode(TEXTS))
    torch.testing.assert_close(load_file(written)["vector"], vectors, atol=1e-6, rtol=0)


# -------------------------------------------------------------------------------- equal and not equal


@pytest.mark.parametrize("double", [[], ["--double"]])
def test_our_own_file_is_equal(tiny, tmp_path, capsys, double):
    path = tmp_path / "ours.safetensors"
    main(["--model", str(tiny), "--write", str(path), *double])
    code, out = run(capsys, "--model", tiny, "--against", path, *double)
    assert code == 0
    assert verdicts(out) == dict.fromkeys(STATES, "ok")
    assert ("1e-10" if double else "2e-05") in out
    assert out.splitlines()[-1].startswith("Equal: all 8 tensors agree")


def test_golden_states_of_the_reference_are_equal(tiny, tmp_path, capsys):
    """The committed reference numbers, with both token types: there is no ``vector`` then."""
    reference = golden("bert")
    names = [name for name in STATES if name in reference]
    tensors = {name: reference[name] for name in ["ids", "mask", "token_types", *names]}
    save_file(tensors | {"pooled": reference["pooled.mean"]}, tmp_path / "golden.safetensors")
    code, out = run(capsys, "--model", tiny, "--double", "--against", tmp_path / "golden.safetensors")
    assert code == 0
    assert verdicts(out) == dict.fromkeys(STATES[:-1], "ok")


def test_first_divergence_is_marked_and_later_ones_are_listed(tiny, written, capsys):
    states = load_file(written)
    spoiled = states["layers.0"].clone()
    spoiled[1, 2, 3] += 0.01
    code, out = run(
        capsys, "--model", tiny, "--against", changed(written, layers_0=spoiled, pooled=states["pooled"] * 1.1)
    )
    assert code == 1
    found = verdicts(out)
    assert found["layers.0.attention"] == "ok"
    assert found["layers.0"] == "FIRST DIVERGENCE"
    assert found["layers.1"] == "ok"
    assert found["pooled"] == "differs"
    assert "(1, 2, 3)" in out
    last = out.splitlines()[-1]
    assert "no known mistake" in last
    assert "between layers.0.attention, which agrees, and layers.0: values" in last


def test_the_exit_code_survives_a_closed_pipe(tiny, written):
    spoiled = changed(written, pooled=load_file(written)["pooled"] * 1.1)
    assert exit_code_without_a_reader("minisbert.trace", "--model", str(tiny), "--against", str(spoiled)) == 1


def test_a_gap_in_the_file_widens_the_search(tiny, written, capsys):
    spoiled = changed(
        written, layers_0=load_file(written)["layers.0"] + 0.01, **{"layers_0.attention": None, "vector": None}
    )
    code, out = run(capsys, "--model", tiny, "--against", spoiled)
    assert code == 1
    assert "the other side has no such tensor: layers.0.attention, vector" in out
    assert "between embeddings, which agrees, and layers.0: queries and keys" in out.splitlines()[-1]


def test_pads_are_not_compared(tiny, written, capsys):
    states = load_file(written)
    pads = ~states["mask"]
    hidden = states["layers.1"].masked_fill(pads[:, :, None], float("nan"))
    probabilities = states["layers.1.attention"].masked_fill(pads[:, None, :, None], 7.0)
    spoiled = changed(written, **{"layers_1": hidden, "layers_1.attention": probabilities})
    assert run(capsys, "--model", tiny, "--against", spoiled)[0] == 0


def test_attention_of_a_real_token_to_a_pad_is_compared(tiny, written, capsys):
    states = load_file(written)
    to_pads = states["mask"][:, None, :, None] & ~states["mask"][:, None, None, :]
    spoiled = changed(written, **{"layers_1.attention": states["layers.1.attention"].masked_fill(to_pads, 1e-3)})
    code, out = run(capsys, "--model", tiny, "--against", spoiled)
    assert (code, verdicts(out)["layers.1.attention"]) == (1, "FIRST DIVERGENCE")


def test_nan_at_a_real_token_is_a_divergence(tiny, written, capsys):
    vector = load_file(written)["vector"]
    vector[2, 5] = float("nan")
    spoiled = changed(written, vector=vector)
    code, out = run(capsys, "--model", tiny, "--against", spoiled)
    assert (code, verdicts(out)["vector"]) == (1, "FIRST DIVERGENCE")
    assert "(2, 5)" in out
    code, out = run(capsys, "--model", tiny, "--against", spoiled, "--json")
    assert json.loads(out)["tensors"][-1]["difference"] is None


# ----------------------------------------------------------------------------------- mistakes by name


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("positions from 1", "embeddings"),
        ("LayerNorm eps 1e-5", "embeddings"),
        ("no attention mask", "layers.0.attention"),
        ("1/sqrt(D)", "layers.0.attention"),
        ("heads merged without transposing", "layers.0"),
        ("tanh GELU", "layers.0"),
        ("attention's residual forgotten", "layers.0"),
        ("pooler without tanh", "pooler"),
        ("mean over pads", "pooled"),
        ("first and last summed", "pooled"),
        ("one layer short", "pooler"),
    ],
)
def test_a_planted_mistake_is_named(tiny, tmp_path, capsys, name, first):
    path = tmp_path / "yours.safetensors"
    pooling = ["--pooling", "first-last" if "first" in name else "mean"]
    with planted(MISTAKES[name]):
        main(["--model", str(tiny), *pooling, "--write", str(path)])
    code, out = run(capsys, "--model", tiny, *pooling, "--against", path)
    assert code == 1
    assert verdicts(out)[first] == "FIRST DIVERGENCE"
    mistake = MISTAKES[name]
    cause = f"these are exactly the numbers you get when {mistake.meaning} ({name}, {mistake.target})."
    assert out.splitlines()[-1] == f"{first} is the first to differ: {cause}"


def test_two_mistakes_at_once(tiny, tmp_path, capsys):
    """The first is named, and so is the first tensor that the second changes."""
    path = tmp_path / "yours.safetensors"
    with planted(MISTAKES["1/K"]), planted(MISTAKES["mean over pads"]):
        main(["--model", str(tiny), "--write", str(path)])
    code, out = run(capsys, "--model", tiny, "--against", path, "--json")
    report = json.loads(out)
    assert code == 1
    assert report["first_divergence"] == "layers.0.attention"
    assert report["mistakes"] == []
    assert report["mistakes_in_part"] == {"1/K": "pooled"}
    assert "(1/K, bert.attention). But that is not all" in report["verdict"]
    assert "pooled still differs" in report["verdict"]


# ------------------------------------------------------------------------------- files that do not fit


def test_unknown_names_are_listed(tiny, written, capsys):
    code, out = run(capsys, "--model", tiny, "--against", changed(written, layer3=torch.zeros(2)))
    assert code == 0
    assert "not compared because we have no such tensor: layer3" in out


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"ids": None}, "no ids: copy ids and mask"),
        ({"ids": None, "mask": None}, "no ids and no mask"),
        ({"ids": torch.zeros(3, 4, 5, dtype=torch.long)}, r"ids must be \(B, T\).*not \(3, 4, 5\)"),
        ({"mask": torch.ones(2, 2, dtype=torch.bool)}, r"mask must be \(B, T\), B = 3, T = 16, not \(2, 2\)"),
        ({"mask": torch.ones(3, 16)}, "mask must be whole numbers"),
        ({"layers_0": torch.zeros(3, 16, 25)}, r"\n  layers.0 is \(3, 16, 25\), should be \(3, 16, 24\)"),
        ({"pooled": torch.zeros(3, 24).half()}, "pooled is torch.float16, float32 or float64 is needed"),
        ({"ids": torch.full((3, 16), 999)}, "vocabulary"),
        ({"mask": torch.zeros(3, 16, dtype=torch.bool)}, "row 0 of the mask has no real token"),
        (dict.fromkeys(name.replace(".", "_", 1) for name in STATES), "has none of the tensors that are compared"),
    ],
)
def test_files_that_do_not_fit_are_refused(tiny, written, tensors, message):
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), "--against", str(changed(written, **tensors))])


def test_double_needs_float64(tiny, written):
    with pytest.raises(InputError, match=r"embeddings is torch.float32, --double needs float64"):
        main(["--model", str(tiny), "--double", "--against", str(changed(written))])


def test_another_models_file(written, tiny, tmp_path, capsys):
    """Same sizes, other weights: different from the start, and no mistake is named."""
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    weights = load_file(other / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 0.05 * torch.arange(24) % 0.3
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    code, out = run(capsys, "--model", other, "--against", written)
    assert (code, verdicts(out)["embeddings"]) == (1, "FIRST DIVERGENCE")
    assert "Look before embeddings: the word table" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "nowhere.safetensors"], "nowhere.safetensors does not exist; .*--write FILE"),
        (["--against", str(ROOT / "tests")], "tests is not a file; .*--write FILE"),
        (["--against", str(ROOT / "pyproject.toml")], "is not a safetensors file"),
        (["--write", "ours.npz"], r"must end in \.safetensors"),
        (["--against", "yours.safetensors", "a cat"], "give none here"),
    ],
)
def test_arguments_that_cannot_be_used(tiny, arguments, message):
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), *arguments])


def test_without_transformers_or_its_script_the_error_says_what_to_do(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install '\.\[reference\]'; or compare with a file: --against FILE"):
        main(["--model", str(tiny)])
    monkeypatch.setattr(tracing, "__file__", str(tmp_path / "site-packages" / "minisbert" / "diagnosis" / "tracing.py"))
    with pytest.raises(InputError, match=r"needs reference_states\.py: install minisbert again"):
        main(["--model", str(tiny)])


def install(folder: Path, monkeypatch) -> None:
    """Make ``tracing`` find its script as the wheel's files lie: beside it, without a checkout."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    for source, target in wheel["wheel"]["force-include"].items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, folder / target)
    monkeypatch.setattr(tracing, "__file__", str(folder / "minisbert" / "diagnosis" / "tracing.py"))


def test_the_wheel_contains_the_script_that_runs_transformers(tmp_path, monkeypatch):
    assert tracing.reference_script() == ROOT / "tests" / "reference" / "states.py"
    install(tmp_path, monkeypatch)
    assert tracing.reference_script() == tmp_path / "minisbert" / "diagnosis" / "reference_states.py"


# ----------------------------------------------------------------------------- live against the reference


@pytest.mark.reference
@pytest.mark.parametrize("double", [[], ["--double"]])
def test_huggingface_is_equal_on_tiny(tiny, tmp_path, monkeypatch, capsys, double):
    pytest.importorskip("transformers")
    if double:  # once as installed, from a folder of the user's
        install(tmp_path, monkeypatch)
        monkeypatch.chdir(tmp_path)
    code, out = run(capsys, "--model", tiny, *double, "the dog runs", "a kitten sleeps on the small red mat")
    assert code == 0
    assert verdicts(out) == dict.fromkeys(STATES, "ok")


@pytest.mark.reference
def test_a_wrong_eps_inside_the_reference_is_named(tiny, tmp_path, capsys):
    """The other side is transformers itself, with another eps in its config."""
    pytest.importorskip("transformers")
    spoiled = tmp_path / "spoiled"
    shutil.copytree(tiny, spoiled)
    config = json.loads((spoiled / "config.json").read_text())
    (spoiled / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    states = huggingface(spoiled, inputs_of(SentenceEncoder.load(tiny), TEXTS), double=True)
    save_file(states, tmp_path / "yours.safetensors")
    code, out = run(capsys, "--model", tiny, "--double", "--against", tmp_path / "yours.safetensors")
    assert (code, verdicts(out)["embeddings"]) == (1, "FIRST DIVERGENCE")
    assert "exactly the numbers you get when" in out
    assert "(LayerNorm eps 1e-5, bert.layer_norm)" in out


@pytest.mark.reference
def test_a_folder_that_transformers_cannot_read_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(InputError, match="transformers could not run"):
        huggingface(tmp_path, {"ids": torch.ones(1, 2, dtype=torch.long)}, double=False)


@pytest.mark.weights
@pytest.mark.reference
def test_huggingface_is_equal_on_the_real_model(minilm, capsys):
    pytest.importorskip("transformers")
    code, out = run(capsys, "--model", minilm)
    assert code == 0
    assert len(verdicts(out)) == 16
    assert set(verdicts(out).values()) == {"ok"}
    assert "Equal: all 16 tensors agree" in out
