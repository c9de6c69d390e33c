"""The certify command: right vectors pass in every precision, wrong ones are named, bad files are refused."""

import copy
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import numpy

from lessons.mistakes import MISTAKES, planted
from minisbert.certify import main
from minisbert.core import InputError, bert
from minisbert.diagnosis.certificate import certify
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT, exit_code_without_a_reader
from tests.parity import REFERENCE
from tests.toys import NOUNS

# ragged, several of them full (16 tokens), one of one word, some with capitals
TEXTS = [
    "the cat sits on the mat",
    "A Dog",
    "a happy man plays a guitar and a small bird sings to it in the park",
    "rain",
    "the small bird sang ; nobody listened to it",
    " ".join(f"the {noun} and" for noun in NOUNS[:14]),
    "the boy is happy , the girl is sad",
    "A Woman and a Man are in the Park , a dog runs to the boy and the girl plays",
    "the dog runs",
]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder.load(ROOT / "weights" / "tiny")


def ids_of(encoder: SentenceEncoder, texts: list[str] = TEXTS) -> list[list[int]]:
    return encoder.tokenizer.encode(texts).ids


@torch.no_grad()
def states(encoder: SentenceEncoder, ids: list[int], pads: int = 0, masked: bool = True) -> np.ndarray:
    """The last layer's states (T + pads, D) of one text."""
    row = torch.tensor([ids + [0] * pads])
    mask = torch.arange(row.shape[1])[None] < len(ids)
    return encoder.bert(row, mask if masked else None)[0].double().numpy()


def unit(rows: list[np.ndarray] | np.ndarray) -> np.ndarray:
    rows = np.stack(list(rows))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def means(encoder: SentenceEncoder, rows: list[list[int]]) -> list[np.ndarray]:
    return [states(encoder, ids).mean(axis=0) for ids in rows]


def padded_means(encoder: SentenceEncoder, masked: bool, pooled: bool) -> np.ndarray:
    """Batches of four texts, padded to the longest, with pads where they do not belong."""
    rows, found = ids_of(encoder), []
    for i, ids in enumerate(rows):
        longest = max(map(len, rows[i // 8 * 8 : i // 8 * 8 + 8]))
        hidden = states(encoder, ids, longest - len(ids), masked)
        found.append((hidden if pooled else hidden[: len(ids)]).mean(axis=0))
    return unit(found)


WRONG: dict[str, tuple[str, Callable[[SentenceEncoder], np.ndarray]]] = {
    # name: what the verdict must say, how the vectors come about
    "[CLS]": ("[CLS], the first token, was taken", lambda e: unit([states(e, ids)[0] for ids in ids_of(e)])),
    "max": ("the largest value of each column", lambda e: unit([states(e, ids).max(axis=0) for ids in ids_of(e)])),
    "last token": ("the last token", lambda e: unit([states(e, ids)[-1] for ids in ids_of(e)])),
    "inner mean": (
        "the mean without [CLS] and [SEP]",
        lambda e: unit([states(e, ids)[1:-1].mean(axis=0) for ids in ids_of(e)]),
    ),
    "pads pooled": ("pads were pooled with the tokens", lambda e: padded_means(e, masked=True, pooled=True)),
    "no mask": ("attention mask was left out", lambda e: padded_means(e, masked=False, pooled=False)),
    "no mask at all": ("pads were pooled too", lambda e: padded_means(e, masked=False, pooled=True)),
    "not normalised": ("not scaled to length 1", lambda e: np.stack(means(e, ids_of(e)))),
    "[CLS], raw": ("[CLS], the first token, was taken", lambda e: np.stack([states(e, ids)[0] for ids in ids_of(e)])),
    "cut": ("cut at 8 tokens, not at 16", lambda e: unit(means(e, [x[:7] + x[-1:] * (len(x) > 7) for x in ids_of(e)]))),
    "no special tokens": ("[CLS] and [SEP] are missing", lambda e: unit(means(e, [x[1:-1] for x in ids_of(e)]))),
    "doubled": (
        "[CLS] and [SEP] were added twice",
        lambda e: unit(means(e, [[x[0], *x, x[-1]] for x in ids_of(e)])),
    ),
    "prompt": ("the prompt 'query: ' was added", lambda e: e.encode(["query: " + text for text in TEXTS])),
    "reversed": ("reverse order", lambda e: unit(means(e, ids_of(e)))[::-1]),
    "sorted": (
        "sorted by length, longest first",
        lambda e: unit(means(e, sorted(ids_of(e), key=len, reverse=True))),
    ),
    "shifted": ("shifted by 1", lambda e: np.roll(unit(means(e, ids_of(e))), -1, axis=0)),
    "one pair swapped": ("another order", lambda e: unit(means(e, ids_of(e)))[[0, 1, 3, 2, 4, 5, 6, 7, 8]]),
    "truncated": ("the first 12 columns were kept", lambda e: unit(means(e, ids_of(e)))[:, :12]),
    "truncated, scaled": ("scaled to length 1", lambda e: unit(unit(means(e, ids_of(e)))[:, :12])),
    "other lengths": ("the directions are right", lambda e: unit(means(e, ids_of(e))) * np.arange(3, 12)[:, None]),
    "other texts": ("another model's vectors", lambda e: np.random.default_rng(3).normal(size=(9, 24))),
    "a zero row": (
        "1 of 9 vectors are all zeros",
        lambda e: unit(means(e, ids_of(e))) * (np.arange(9) != 4)[:, None],
    ),
}


def run(capsys, vectors: Path, *options: object, texts: list[str] = TEXTS) -> tuple[int, str]:
    """Exit code and standard output."""
    path = vectors.with_name("texts.txt")
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    capsys.readouterr()
    try:
        main([str(vectors), "--texts", str(path), "--threads", "1", *map(str, options)])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().out


# -------------------------------------------------------------------------------------- equal vectors


def written(folder: Path, vectors: np.ndarray, suffix: str) -> Path:
    path = folder / f"vectors{suffix}"
    if suffix == ".npy":
        np.save(path, vectors)
    elif suffix == ".safetensors":
        numpy.save_file({"vectors": vectors}, path)
    elif suffix == ".csv":
        header = ",".join(f"d{i}" for i in range(vectors.shape[1]))
        path.write_text("\n".join([header, *(",".join(map(repr, row.tolist())) for row in vectors)]))
    else:
        path.write_text("".join(json.dumps({"id": 1, "embedding": row.tolist()}) + "\n" for row in vectors))
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".csv", ".jsonl"])
def test_right_vectors_are_equal_in_every_format(encoder, tiny, tmp_path, capsys, suffix):
    vectors = unit(means(encoder, ids_of(encoder)))
    code, out = run(capsys, written(tmp_path, vectors, suffix), "--model", tiny)
    assert code == 0
    assert re.search(r"^Equal, to [67] digits\.$", out, re.MULTILINE)
    assert "smallest cosine     1.0000000" in out or "0.99999999" in out


def quantized(vectors: np.ndarray) -> np.ndarray:
    """int8 codes by each column's range, as sentence-transformers' ``quantize_embeddings`` computes them."""
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    return ((vectors - low) / ((high - low) / 255) - 128).astype(np.int8)


ROUNDED = {
    "float16": lambda x: x.astype(np.float16),
    "float16 as float32": lambda x: x.astype(np.float16).astype(np.float32),
    "bfloat16": lambda x: torch.from_numpy(x).bfloat16().float().numpy(),
    "4 decimals": lambda x: np.round(x, 4),
    "int8: each column": quantized,
    "int8: one scale": lambda x: np.round(x * 127).astype(np.int8),
    "ubinary": lambda x: np.packbits(x > 0, axis=1),
    "(binary": lambda x: (np.packbits(x > 0, axis=1).astype(int) - 128).astype(np.int8),
    "-1 and 1": lambda x: np.sign(x),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_vectors_are_harmless(encoder, name):
    found = certify(encoder, TEXTS, ROUNDED[name](unit(means(encoder, ids_of(encoder)))).astype(np.float64))
    assert (found.verdict, found.harmless) == ("rounded", True)
    assert name.removesuffix(" as float32") in found.meaning


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_arithmetic_in_half_precision_is_harmless(encoder, dtype):
    vectors = unit(means(copy.deepcopy(encoder).to(dtype), ids_of(encoder)))
    found = certify(encoder, TEXTS, vectors)
    assert found.verdict == "rounded"
    assert found.difference > 2e-5
    assert "float16 arithmetic" in found.meaning


# -------------------------------------------------------------------------------------- wrong vectors


@pytest.mark.parametrize("name", WRONG)
def test_wrong_vectors_are_named(encoder, name):
    said, make = WRONG[name]
    found = certify(encoder, TEXTS, make(encoder).astype(np.float64))
    assert said in found.meaning
    assert not found.harmless


@pytest.mark.parametrize("name", ["[CLS]", "pads pooled", "cut", "reversed"])
def test_a_cause_is_named_in_float16_too(encoder, name):
    said, make = WRONG[name]
    found = certify(encoder, TEXTS, make(encoder).astype(np.float16).astype(np.float64))
    assert said in found.meaning
    assert not found.harmless


def test_a_cause_under_the_rounding_of_half_precision(encoder):
    """Vectors computed in bfloat16 and cut as well: the rest is not taken for equal."""
    half = copy.deepcopy(encoder).bfloat16()
    rows = [ids[:7] + ids[-1:] * (len(ids) > 7) for ids in ids_of(encoder)]
    found = certify(encoder, TEXTS, unit(means(half, rows)).astype(np.float64))
    assert found.causes == ("cut",)
    assert "bfloat16 arithmetic" in found.meaning
    assert not found.harmless


def test_a_mistake_of_the_catalogue_is_found_in_the_vectors_alone(encoder):
    with planted(MISTAKES["quick GELU"]):
        wrong = unit(means(encoder, ids_of(encoder)))
    found = certify(encoder, TEXTS, wrong.astype(np.float64))
    assert found.causes == ("quick GELU",)


NEWER = [
    ("qwen3", "rotation interleaved"),
    ("qwen3", "rotary base 10,000"),
    ("qwen3", "causal mask forgotten"),
    ("qwen3", "RMSNorm with a mean"),
    ("modernbert", "rotary base 10,000"),
    ("modernbert", "causal mask left in"),
    ("modernbert", "rotated backwards"),
    ("gemma", "causal mask left in"),
    ("mpnet", "quick GELU"),
]


@pytest.mark.parametrize(("name", "cause"), NEWER)
def test_a_mistake_in_a_newer_encoder_is_found(name, cause, monkeypatch):
    encoder = SentenceEncoder.load(REFERENCE / "modern" / f"tiny-{name}")
    with monkeypatch.context() as patch, planted(MISTAKES[cause]):
        patch.setattr(bert, "FUSED", False)
        wrong = encoder.encode(TEXTS)
    found = certify(encoder, TEXTS, wrong.astype(np.float64))
    assert found.causes == (cause,)
    assert certify(encoder, TEXTS, encoder.encode(TEXTS)).verdict == "equal"


@pytest.mark.parametrize("pads", [1, 3])
def test_pads_after_a_text_whose_last_token_counts(pads):
    encoder = SentenceEncoder.load(REFERENCE / "modern" / "tiny-qwen3")
    wrong = unit([states(encoder, ids, pads)[-1] for ids in ids_of(encoder)])
    found = certify(encoder, TEXTS, wrong.astype(np.float64))
    assert found.causes == ("pads pooled",)


def test_normalised_twice_is_equal(encoder):
    assert certify(encoder, TEXTS, unit(unit(means(encoder, ids_of(encoder))))).verdict == "equal"


def test_normalised_though_the_model_does_not(encoder):
    plain = copy.deepcopy(encoder)
    plain.normalize = False
    found = certify(plain, TEXTS, unit(means(encoder, ids_of(encoder))))
    assert found.causes == ("normalised",)
    assert found.cosine > 1 - 1e-9


def test_a_missing_prompt(encoder):
    found = certify(encoder, TEXTS, encoder.encode(TEXTS), prompt="the cat ")
    assert found.causes == ("prompt missing",)
    assert "'the cat '" in found.meaning


@pytest.mark.parametrize("mode", ["cls", "max"])
def test_the_mean_though_the_model_pools_otherwise(encoder, tiny, mode):
    found = certify(SentenceEncoder.load(tiny, mode), TEXTS, unit(means(encoder, ids_of(encoder))))
    assert found.causes == ("mean pooling",)


def test_a_dense_layer_left_out():
    model = SentenceEncoder.load(ROOT / "tests" / "reference" / "tiny-distiluse")
    hidden = [states(model, ids) for ids in ids_of(model)]
    pooled = unit([np.concatenate([x.mean(axis=0), x[0]]) for x in hidden])  # its pooling is mean and [CLS]
    found = certify(model, TEXTS, pooled)
    assert pooled.shape[1] > model.width
    assert found.causes == ("no dense",)


def test_the_report_shows_the_numbers_of_a_cut(encoder, tiny, tmp_path, capsys):
    np.save(tmp_path / "vectors.npy", WRONG["cut"][1](encoder))
    code, out = run(capsys, tmp_path / "vectors.npy", "--model", tiny)
    assert code == 1
    longer = [i + 1 for i, ids in enumerate(ids_of(encoder)) if len(ids) > 8]
    assert f"texts that differ   {len(longer)} of 9: lines {', '.join(map(str, longer))}\n" in out
    assert f"in {len(longer)} of 9 texts, the longer ones" in out
    assert float(re.search(r"differ from yours by at most (\S+)\.\n", out)[1]) < 2e-6 < 1e-3
    assert float(re.search(r"largest difference  (\S+),", out)[1]) > 1e-2


def test_json(encoder, tiny, tmp_path, capsys):
    np.save(tmp_path / "vectors.npy", unit(means(encoder, ids_of(encoder)))[::-1])
    code, out = run(capsys, tmp_path / "vectors.npy", "--model", tiny, "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["verdict"], found["causes"], found["shape"]) == ("explained", ["order"], [9, 24])
    assert found["differing"] == [0, 1, 2, 3, 5, 6, 7, 8]  # the middle row is where it was


def test_the_exit_code_survives_a_closed_pipe(tiny, tmp_path):
    np.save(tmp_path / "vectors.npy", np.random.default_rng(3).normal(size=(9, 24)))
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    files = [str(tmp_path / "vectors.npy"), "--texts", str(tmp_path / "texts.txt")]
    assert exit_code_without_a_reader("minisbert.certify", *files, "--model", str(tiny)) == 1


# ------------------------------------------------------------------------------------------ bad input

BAD = {
    # name: the file's name, its content, what the error says
    "another count": ("v.csv", "1,2\n3,4\n", "v.csv: 2 vectors for 9 texts"),
    "too wide": ("v.npy", np.ones((9, 25)) * 0.3, "25 columns, the model's have 24"),
    "too narrow": ("v.npy", np.full((9, 23), 0.3), "23 columns, the model's have 24, and they are not its first"),
    "NaN": ("v.npy", np.where(np.arange(9)[:, None] == 3, np.nan, np.ones((9, 24))), "row 4: NaN .in 1 of 9 rows"),
    "infinite": ("v.csv", "1,inf\n", "row 1: infinity"),
    "too large": ("v.jsonl", f"[{10**400}]\n", "line 1: .*too large"),
    "empty": ("v.csv", "", r"v.csv: an array of shape \(0,\)"),
    "empty array": ("v.npy", np.ones((0, 24)), r"shape \(0, 24\)"),
    "no matrix": ("v.npy", np.ones(24), r"shape \(24,\)"),
    "no numbers": ("v.npy", np.array([["a"]]), "real numbers is needed, .*not <U1"),
    "objects": ("v.npy", np.array([[None]], dtype=object), "allow_pickle"),
    "damaged": ("v.npy", "not an array", "v.npy"),
    "damaged too": ("v.safetensors", "not tensors", "v.safetensors"),
    "another kind": ("v.txt", "1,2", "must end in .npy, .safetensors, .jsonl, .csv"),
    "ragged": ("v.csv", "1,2\n3\n", "line 2: 1 numbers, in the lines before it 2"),
    "words": ("v.csv", "1,2\n3,x\n", "line 2: .*'x'"),
    "a gap": ("v.jsonl", "[1]\n\n[2]\n", "2 vectors for 9 texts"),
    "no JSON": ("v.jsonl", "[1]\n[2\n", "line 2: not valid JSON"),
    "deep JSON": ("v.jsonl", "[" * 100_000, "line 1"),
    "no list": ("v.jsonl", '{"text": "a"}\n', "line 1: a list of numbers is needed"),
    "no number": ("v.jsonl", "[1, true]\n", "line 1: a list of numbers is needed"),
    "two tensors": ("v.safetensors", {"a": np.ones((2, 2)), "b": np.ones((2, 2))}, "one called vectors, not 'a', 'b'"),
    "missing": ("no.npy", None, "no.npy does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_name(tiny, tmp_path, capsys, name):
    file, content, said = BAD[name]
    if isinstance(content, np.ndarray):
        np.save(tmp_path / file, content)
    elif isinstance(content, dict):
        numpy.save_file(content, tmp_path / file)
    elif content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=said) as error:
        run(capsys, tmp_path / file, "--model", tiny)
    assert file in str(error.value)
    assert "\n" not in str(error.value)


# --------------------------------------------------------------------- other engines, and public threads


@pytest.fixture(scope="module")
def engines(tmp_path_factory) -> tuple:
    """The tiny model in sentence-transformers and as an ONNX file."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from sentence_transformers import SentenceTransformer

    from benchmarks.conversion import export_onnx

    model, file = ROOT / "weights" / "tiny", tmp_path_factory.mktemp("onnx") / "tiny.onnx"
    export_onnx(model, file)
    return SentenceTransformer(str(model), device="cpu"), file


def batch(tokenizer, special: bool = True) -> dict[str, np.ndarray]:
    """All texts in one padded batch, as examples for ONNX Runtime have it."""
    found = tokenizer(TEXTS, padding=True, truncation=True, add_special_tokens=special, return_tensors="np")
    return {name: found[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}


def onnx_states(file: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime

    return onnxruntime.InferenceSession(str(file)).run(None, inputs)[0].astype(np.float64)  # (B, T, D)


def masked_mean(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)


def cut_elsewhere(st, file):  # github.com/huggingface/text-embeddings-inference/issues/146: 512 tokens, not 256
    st.max_seq_length = 24
    return st.encode(TEXTS)


def cut_by_the_tokenizer_file(st, file):  # github.com/martin-conur/quackformers/pull/83: 128 in tokenizer.json
    inputs = st.tokenizer(TEXTS, padding=True, truncation=True, max_length=8, return_tensors="np")
    inputs = {name: inputs[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    return unit(masked_mean(onnx_states(file, inputs), inputs["attention_mask"]))


def pads_in_the_mean(st, file):  # github.com/huggingface/sentence-transformers/issues/2569
    return unit(onnx_states(file, batch(st.tokenizer)).mean(axis=1))


def no_attention_mask(st, file):  # github.com/ksanman/AllMiniLML6v2Sharp/issues/6
    inputs = batch(st.tokenizer)
    hidden = onnx_states(file, inputs | {"attention_mask": np.ones_like(inputs["attention_mask"])})
    return unit(masked_mean(hidden, inputs["attention_mask"]))


def cls_for_mean(st, file):  # the other way round: github.com/nixiesearch/nixiesearch/issues/465
    return unit(onnx_states(file, batch(st.tokenizer))[:, 0])


def no_normalising(st, file):  # github.com/run-llama/llama_index/pull/8145
    inputs = batch(st.tokenizer)
    return masked_mean(onnx_states(file, inputs), inputs["attention_mask"])


def prompt_unasked(st, file):  # missing there: github.com/qdrant/fastembed/issues/251
    return st.encode(TEXTS, prompt="passage: ")


def capitals(st, file):  # github.com/vllm-project/vllm/pull/11815
    from tokenizers.normalizers import BertNormalizer

    usual = st.tokenizer.backend_tokenizer.normalizer
    st.tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    try:
        return st.encode(TEXTS)
    finally:
        st.tokenizer.backend_tokenizer.normalizer = usual


def shuffled(st, file):  # github.com/ollama/ollama/issues/6187
    return st.encode(TEXTS)[[0, 1, 4, 3, 2, 5, 6, 8, 7]]


def no_special_tokens(st, file):  # github.com/aosama/astronomical/issues/596
    inputs = batch(st.tokenizer, special=False)
    return unit(masked_mean(onnx_states(file, inputs), inputs["attention_mask"]))


def truncated_and_scaled(st, file):  # the order of the two: github.com/ollama/ollama/pull/12242
    return unit(st.encode(TEXTS)[:, :16])


PUBLIC = {
    cut_elsewhere: ("cut",),
    cut_by_the_tokenizer_file: ("cut",),
    pads_in_the_mean: ("pads pooled",),
    no_attention_mask: ("pads attended",),
    cls_for_mean: ("cls pooling",),
    no_normalising: ("not normalised",),
    prompt_unasked: ("prompt added",),
    capitals: ("lower-casing missing",),
    shuffled: ("order",),
    no_special_tokens: ("no special tokens",),
    truncated_and_scaled: ("truncated", "normalised after truncation"),
}


@pytest.mark.reference
@pytest.mark.parametrize("cause", PUBLIC, ids=lambda cause: cause.__name__)
def test_causes_from_public_threads_are_named(encoder, engines, cause):
    st, file = engines
    usual = st.max_seq_length
    try:
        vectors = cause(st, file)
    finally:
        st.max_seq_length = usual
    found = certify(encoder, TEXTS, np.asarray(vectors, dtype=np.float64))
    assert found.causes == PUBLIC[cause], found.meaning
    assert found.left < 2e-6


@pytest.mark.reference
def test_the_dense_layer_that_servers_forget_is_named():
    """github.com/huggingface/transformers.js/issues/230 and huggingface/text-embeddings-inference/issues/732."""
    from sentence_transformers import SentenceTransformer

    folder = ROOT / "tests" / "reference" / "tiny-distiluse"
    whole = SentenceTransformer(str(folder), device="cpu")
    served = SentenceTransformer(modules=[whole[0], whole[1], whole[3]], device="cpu")
    found = certify(SentenceEncoder.load(folder), TEXTS, served.encode(TEXTS))
    assert found.causes == ("no dense",)


@pytest.mark.reference
@pytest.mark.parametrize("engine", ["sentence-transformers", "float16", "ONNX Runtime", "OpenVINO", "OpenVINO float32"])
def test_no_false_alarm_on_other_engines(encoder, engines, engine):
    st, file = engines
    inputs = batch(st.tokenizer)
    if engine == "sentence-transformers":
        vectors = st.encode(TEXTS, batch_size=4)
    elif engine == "float16":
        vectors = copy.deepcopy(st).half().encode(TEXTS)
    elif engine == "ONNX Runtime":
        vectors = unit(masked_mean(onnx_states(file, inputs), inputs["attention_mask"]))
    else:  # by default OpenVINO computes in bfloat16 where the CPU has it
        import openvino as ov

        hint = {} if engine == "OpenVINO" else {"INFERENCE_PRECISION_HINT": "f32"}
        hidden = ov.Core().compile_model(str(file), "CPU", hint)(inputs)[0]
        vectors = unit(masked_mean(hidden.astype(np.float64), inputs["attention_mask"]))
    found = certify(encoder, TEXTS, np.asarray(vectors, dtype=np.float64))
    assert found.harmless, found.meaning


@pytest.mark.reference
@pytest.mark.weights
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_no_false_alarm_on_the_real_model(minilm, half):
    from sentence_transformers import SentenceTransformer

    st = SentenceTransformer(str(minilm), device="cpu")
    texts = TEXTS[:4] if half else [*TEXTS, "A longer one. " * 100]  # float16 takes many CPUs minutes
    found = certify(SentenceEncoder.load(minilm), texts, (st.half() if half else st).encode(texts).astype(np.float64))
    assert found.verdict == ("rounded" if half else "equal"), found.meaning
