"""The certify command: right vectors pass in every precision, wrong ones are named, bad files are refused."""

import copy
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import numpy

from lessons.mistakes import MISTAKES, planted
from minisbert.commands.certify import main
from minisbert.core import InputError, bert
from minisbert.diagnosis.certificate import certify
from minisbert.models.sentence_encoder import SentenceEncoder
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
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


def ids_of(encoder: SentenceEncoder) -> list[list[int]]:
    return encoder.tokenizer.encode(TEXTS).ids


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


def right(encoder: SentenceEncoder) -> np.ndarray:
    return unit(means(encoder, ids_of(encoder)))


def pooled(encoder: SentenceEncoder, pool: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.stack([pool(states(encoder, ids)) for ids in ids_of(encoder)])


def padded_means(encoder: SentenceEncoder, masked: bool, every: bool) -> np.ndarray:
    """Batches of eight texts, padded to the longest, with pads where they do not belong."""
    rows, found = ids_of(encoder), []
    for i, ids in enumerate(rows):
        longest = max(map(len, rows[i // 8 * 8 : i // 8 * 8 + 8]))
        hidden = states(encoder, ids, longest - len(ids), masked)
        found.append((hidden if every else hidden[: len(ids)]).mean(axis=0))
    return unit(found)


def cut_at_8(encoder: SentenceEncoder) -> list[list[int]]:
    return [ids[:7] + ids[-1:] * (len(ids) > 7) for ids in ids_of(encoder)]


WRONG: dict[str, tuple[str, Callable[[SentenceEncoder], np.ndarray]]] = {
    # name: what the verdict must say, how the vectors come about
    "[CLS]": ("[CLS], the first token, was taken", lambda e: unit(pooled(e, lambda x: x[0]))),
    "max": ("the largest value of each column", lambda e: unit(pooled(e, lambda x: x.max(axis=0)))),
    "last token": ("the last token", lambda e: unit(pooled(e, lambda x: x[-1]))),
    "inner mean": ("the mean without [CLS] and [SEP]", lambda e: unit(pooled(e, lambda x: x[1:-1].mean(axis=0)))),
    "pads pooled": ("pads were pooled with the tokens", lambda e: padded_means(e, masked=True, every=True)),
    "no mask": ("attention mask was left out", lambda e: padded_means(e, masked=False, every=False)),
    "no mask at all": ("pads were pooled too", lambda e: padded_means(e, masked=False, every=True)),
    "not normalised": ("not scaled to length 1", lambda e: np.stack(means(e, ids_of(e)))),
    "[CLS], raw": ("[CLS], the first token, was taken", lambda e: pooled(e, lambda x: x[0])),
    "cut": ("cut at 8 tokens, not at 16", lambda e: unit(means(e, cut_at_8(e)))),
    "no special tokens": ("[CLS] and [SEP] are missing", lambda e: unit(means(e, [x[1:-1] for x in ids_of(e)]))),
    "doubled": ("were added twice", lambda e: unit(means(e, [[x[0], *x, x[-1]] for x in ids_of(e)]))),
    "prompt": ("the prompt 'query: ' was added", lambda e: e.encode(["query: " + text for text in TEXTS])),
    "reversed": ("reverse order", lambda e: right(e)[::-1]),
    "sorted": ("by length, longest first", lambda e: unit(means(e, sorted(ids_of(e), key=len, reverse=True)))),
    "shifted": ("shifted by 1", lambda e: np.roll(right(e), -1, axis=0)),
    "one pair swapped": ("another order", lambda e: right(e)[[0, 1, 3, 2, 4, 5, 6, 7, 8]]),
    "truncated": ("the first 12 columns were kept", lambda e: right(e)[:, :12]),
    "truncated, scaled": ("scaled to length 1", lambda e: unit(right(e)[:, :12])),
    "other lengths": ("the directions are right", lambda e: right(e) * np.arange(3, 12)[:, None]),
    "other texts": ("another model's vectors", lambda e: np.random.default_rng(3).normal(size=(9, 24))),
    "noise": ("no known cause: half of", lambda e: right(e) + np.random.default_rng(3).normal(0, 0.05, (9, 24))),
    "a zero row": ("1 of 9 vectors are all zeros", lambda e: right(e) * (np.arange(9) != 4)[:, None]),
}


def run(capsys, vectors: Path, *options: object) -> tuple[int, str]:
    """Exit code and standard output."""
    path = vectors.with_name("texts.txt")
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    capsys.readouterr()
    try:
        main([str(vectors), "--texts", str(path), "--threads", "1", *map(str, options)])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().out


# -------------------------------------------------------------------------------------- equal vectors


def write(path: Path, content: object) -> Path:
    """A file of vectors in the format of its name, or of any text."""
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, dict):
        numpy.save_file(content, path)
    elif path.suffix == ".npy":
        np.save(path, content)
    elif path.suffix == ".csv":
        header = ",".join(f"d{i}" for i in range(content.shape[1]))
        path.write_text("\n".join([header, *(",".join(map(repr, row.tolist())) for row in content)]))
    else:
        path.write_text("".join(json.dumps({"id": 1, "embedding": row.tolist()}) + "\n" for row in content))
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".csv", ".jsonl"])
def test_right_vectors_are_equal_in_every_format(encoder, tiny, tmp_path, capsys, suffix):
    vectors = right(encoder)
    path = write(tmp_path / f"v{suffix}", {"vectors": vectors} if suffix == ".safetensors" else vectors)
    code, out = run(capsys, path, "--model", tiny)
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
    found = certify(encoder, TEXTS, ROUNDED[name](right(encoder)).astype(np.float64))
    assert (found.verdict, found.harmless) == ("rounded", True)
    assert name.removesuffix(" as float32") in found.meaning


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_arithmetic_in_half_precision_is_harmless(encoder, dtype):
    found = certify(encoder, TEXTS, right(copy.deepcopy(encoder).to(dtype)))
    assert found.verdict == "rounded"
    assert found.difference > 2e-5
    assert "float16 arithmetic" in found.meaning


def test_normalised_twice_is_equal(encoder):
    assert certify(encoder, TEXTS, unit(right(encoder))).verdict == "equal"


# -------------------------------------------------------------------------------------- wrong vectors


@pytest.mark.parametrize(
    ("name", "stored"), [(name, np.float64) for name in WRONG] + [("pads pooled", np.float16), ("reversed", np.float16)]
)
def test_wrong_vectors_are_named(encoder, name, stored):
    said, make = WRONG[name]
    found = certify(encoder, TEXTS, make(encoder).astype(stored).astype(np.float64))
    assert said in found.meaning
    assert not found.harmless


def test_a_cause_under_the_rounding_of_half_precision(encoder):
    """Vectors computed in bfloat16 and cut as well: the rest is not taken for equal."""
    found = certify(encoder, TEXTS, unit(means(copy.deepcopy(encoder).bfloat16(), cut_at_8(encoder))))
    assert found.causes == ("cut",)
    assert "bfloat16 arithmetic" in found.meaning
    assert not found.harmless


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("", "quick GELU"),
        ("architectures/tiny-qwen3", "rotation interleaved"),
        ("architectures/tiny-qwen3", "rotary base 10,000"),
        ("architectures/tiny-qwen3", "causal mask forgotten"),
        ("architectures/tiny-qwen3", "RMSNorm with a mean"),
        ("architectures/tiny-modernbert", "rotary base 10,000"),
        ("architectures/tiny-modernbert", "causal mask left in"),
        ("architectures/tiny-modernbert", "rotated backwards"),
        ("architectures/tiny-gemma", "causal mask left in"),
        ("architectures/tiny-mpnet", "quick GELU"),
        ("tiny-roberta", "positions forgotten"),
    ],
)
@pytest.mark.exact("a mistake is named if its own vectors are the given ones, closer than what the mode adds to both")
def test_a_mistake_of_the_catalogue_is_found_in_the_vectors_alone(tiny, name, cause, monkeypatch):
    encoder = SentenceEncoder.load(REFERENCE / name if name else tiny)
    with monkeypatch.context() as patch, planted(MISTAKES[cause]):
        patch.setattr(bert, "FUSED", False)
        wrong = encoder.encode(TEXTS)
    assert certify(encoder, TEXTS, wrong.astype(np.float64)).causes == (cause,)
    assert certify(encoder, TEXTS, encoder.encode(TEXTS)).verdict == "equal"


@pytest.mark.parametrize("pads", [1, 3])
def test_pads_after_a_text_whose_last_token_counts(pads):
    encoder = SentenceEncoder.load(REFERENCE / "architectures" / "tiny-qwen3")
    wrong = unit([states(encoder, ids, pads)[-1] for ids in ids_of(encoder)])
    assert certify(encoder, TEXTS, wrong.astype(np.float64)).causes == ("pads pooled",)


@pytest.mark.parametrize(
    ("pooling", "scaled", "prompt", "cause"),
    [
        ("cls", True, None, "mean pooling"),
        ("max", True, None, "mean pooling"),
        ("mean", False, None, "normalised"),
        ("mean", True, "the cat ", "prompt missing"),
    ],
)
def test_plain_means_though_the_model_asks_for_more(encoder, tiny, pooling, scaled, prompt, cause):
    model = SentenceEncoder.load(tiny, pooling=pooling)
    model.normalize = scaled
    found = certify(model, TEXTS, right(encoder), prompt)
    assert found.causes == (cause,)
    assert not prompt or f"{prompt!r}" in found.meaning


def test_a_prompt_that_should_not_be_pooled(encoder):
    model = copy.deepcopy(encoder)
    model.settings = replace(model.settings, include_prompt=False)
    assert certify(model, TEXTS, encoder.encode(TEXTS, prompt="the cat "), "the cat ").causes == ("prompt pooled",)


def test_a_dense_layer_left_out():
    """github.com/huggingface/transformers.js/issues/230 and huggingface/text-embeddings-inference/issues/732."""
    model = SentenceEncoder.load(REFERENCE / "tiny-distiluse")
    vectors = unit(pooled(model, lambda x: np.concatenate([x.mean(axis=0), x[0]])))  # its pooling is mean and [CLS]
    assert vectors.shape[1] > model.width
    assert certify(model, TEXTS, vectors).causes == ("no dense",)


def test_the_report_shows_the_numbers_of_a_cut(encoder, tiny, tmp_path, capsys):
    code, out = run(capsys, write(tmp_path / "v.npy", WRONG["cut"][1](encoder)), "--model", tiny)
    assert code == 1
    longer = [i + 1 for i, ids in enumerate(ids_of(encoder)) if len(ids) > 8]
    assert f"texts that differ   {len(longer)} of 9: lines {', '.join(map(str, longer))}\n" in out
    assert f"in {len(longer)} of 9 texts, the longer ones" in out
    assert float(re.search(r"differ from yours by at most (\S+)\.\n", out)[1]) < 2e-6 < 1e-3
    assert float(re.search(r"largest difference  (\S+),", out)[1]) > 1e-2


def test_json(encoder, tiny, tmp_path, capsys):
    code, out = run(capsys, write(tmp_path / "v.npy", right(encoder)[::-1]), "--model", tiny, "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["verdict"], found["causes"], found["shape"]) == ("explained", ["order"], [9, 24])
    assert found["differing"] == [0, 1, 2, 3, 5, 6, 7, 8]  # the middle row is where it was


# ------------------------------------------------------------------------------------------ bad input

BAD = [
    # the file's name, its content, what the error names
    ("v.csv", "1,2\n3,4\n", "2 vectors for 9 texts"),
    ("v.npy", np.ones((9, 25)) * 0.3, "25 columns"),
    ("v.npy", np.full((9, 23), 0.3), "23 columns"),
    ("v.npy", np.where(np.arange(9)[:, None] == 3, np.nan, np.ones((9, 24))), "row 4: NaN .in 1 of 9"),
    ("v.csv", "1,inf\n", "row 1: infinity"),
    ("v.jsonl", f"[{10**400}]\n", "line 1"),
    ("v.csv", "", r"\(0,\)"),
    ("v.npy", np.ones(24), r"\(24,\)"),
    ("v.npy", np.array([["a"]]), "v.npy"),
    ("v.npy", np.ones((9, 24)) * 1j, "v.npy"),
    ("v.npy", np.array([[None]], dtype=object), "allow_pickle"),
    ("v.npy", "not an array", "v.npy"),
    ("v.safetensors", "not tensors", "v.safetensors"),
    ("v.safetensors", {"a": np.ones((2, 2)), "b": np.ones((2, 2))}, "'vectors'"),
    ("v.txt", "1,2", ".safetensors"),
    ("v.csv", "1,2\n3\n", "line 2"),
    ("v.csv", "1,2\n3,x\n", "line 2: .*'x'"),
    ("v.jsonl", "[1]\n\n[2]\n", "2 vectors for 9 texts"),  # blank lines are no rows
    ("v.jsonl", "[1]\n[2\n", "line 2"),
    ("v.jsonl", "[" * 100_000, "line 1"),
    ("v.jsonl", '{"text": "a"}\n', "'embedding'"),
    ("v.jsonl", "[1, true]\n", "'embedding'"),
    ("no.npy", None, "does not exist"),
]


@pytest.mark.parametrize(("file", "content", "said"), BAD)
def test_bad_files_are_refused_by_name(tiny, tmp_path, capsys, file, content, said):
    path = tmp_path / file if content is None else write(tmp_path / file, content)
    with pytest.raises(InputError, match=said) as error:
        run(capsys, path, "--model", tiny)
    assert file in str(error.value)
    assert "\n" not in str(error.value)


# --------------------------------------------------------------------- other engines, and public threads


class Engines:
    """The tiny model in sentence-transformers (``st``) and as an ONNX file."""

    def __init__(self, model: Path, file: Path):
        from sentence_transformers import SentenceTransformer

        from benchmarks.conversion import export_onnx

        export_onnx(model, file)
        self.st, self.file = SentenceTransformer(str(model), device="cpu"), file

    def inputs(self, limit: int | None = None, special: bool = True) -> dict[str, np.ndarray]:
        """All texts in one padded batch, as examples for ONNX Runtime have it."""
        options = {"max_length": limit, "add_special_tokens": special, "return_tensors": "np"}
        found = self.st.tokenizer(TEXTS, padding=True, truncation=True, **options)
        return {name: found[name].astype(np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}

    def states(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        import onnxruntime

        return onnxruntime.InferenceSession(str(self.file)).run(None, inputs)[0].astype(np.float64)  # (B, T, D)

    def means(self, masked: bool = True, **options: object) -> np.ndarray:
        inputs = self.inputs(**options)
        mask = inputs["attention_mask"]
        hidden = self.states(inputs | ({} if masked else {"attention_mask": np.ones_like(mask)}))
        return (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def engines(tiny, tmp_path_factory) -> Engines:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return Engines(tiny, tmp_path_factory.mktemp("onnx") / "tiny.onnx")


def capitals(e: Engines) -> np.ndarray:
    from tokenizers.normalizers import BertNormalizer

    e.st.tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    return e.st.encode(TEXTS)


def cut_elsewhere(e: Engines) -> np.ndarray:  # there at 512 tokens, not at 256
    e.st.max_seq_length = 24
    return e.st.encode(TEXTS)


PUBLIC = {
    # a thread at github.com: the causes, how the vectors come about
    "huggingface/text-embeddings-inference/issues/146": ("cut", cut_elsewhere),
    "martin-conur/quackformers/pull/83": ("cut", lambda e: unit(e.means(limit=8))),
    "huggingface/sentence-transformers/issues/2569": (
        *("pads pooled", lambda e: unit(e.states(e.inputs()).mean(axis=1))),
    ),
    "ksanman/AllMiniLML6v2Sharp/issues/6": ("pads attended", lambda e: unit(e.means(masked=False))),
    "nixiesearch/nixiesearch/issues/465": ("cls pooling", lambda e: unit(e.states(e.inputs())[:, 0])),  # or vice versa
    "run-llama/llama_index/pull/8145": ("not normalised", Engines.means),
    "qdrant/fastembed/issues/251": ("prompt added", lambda e: e.st.encode(TEXTS, prompt="passage: ")),  # there missing
    "vllm-project/vllm/pull/11815": ("lower-casing missing", capitals),
    "ollama/ollama/issues/6187": ("order", lambda e: e.st.encode(TEXTS)[[0, 1, 4, 3, 2, 5, 6, 8, 7]]),
    "aosama/astronomical/issues/596": ("no special tokens", lambda e: unit(e.means(special=False))),
    "ollama/ollama/pull/12242": (
        *("truncated, normalised after truncation", lambda e: unit(e.st.encode(TEXTS)[:, :16])),
    ),
}


@pytest.mark.reference
@pytest.mark.parametrize("thread", PUBLIC)
def test_causes_from_public_threads_are_named(encoder, engines, thread):
    causes, make = PUBLIC[thread]
    limit, normalizer = engines.st.max_seq_length, engines.st.tokenizer.backend_tokenizer.normalizer
    try:
        vectors = make(engines)
    finally:
        engines.st.max_seq_length, engines.st.tokenizer.backend_tokenizer.normalizer = limit, normalizer
    found = certify(encoder, TEXTS, np.asarray(vectors, dtype=np.float64))
    assert ", ".join(found.causes) == causes, found.meaning
    assert found.left < 2e-6


def openvino_means(e: Engines, **hint: str) -> np.ndarray:
    import openvino as ov

    inputs = e.inputs()
    hidden = ov.Core().compile_model(str(e.file), "CPU", hint)(inputs)[0].astype(np.float64)
    return (hidden * inputs["attention_mask"][:, :, None]).sum(axis=1)  # scaled later


OTHERS = {
    "sentence-transformers": lambda e: e.st.encode(TEXTS, batch_size=4),
    "float16": lambda e: copy.deepcopy(e.st).half().encode(TEXTS),
    "ONNX Runtime": lambda e: unit(e.means()),
    "OpenVINO": lambda e: unit(openvino_means(e)),  # in bfloat16 if the CPU has it
    "OpenVINO float32": lambda e: unit(openvino_means(e, INFERENCE_PRECISION_HINT="f32")),
}


@pytest.mark.reference
@pytest.mark.parametrize("engine", OTHERS)
def test_no_false_alarm_on_other_engines(encoder, engines, engine):
    found = certify(encoder, TEXTS, np.asarray(OTHERS[engine](engines), dtype=np.float64))
    assert found.harmless, found.meaning


@pytest.mark.reference
@pytest.mark.weights
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_no_false_alarm_on_the_real_model(minilm, half):
    from sentence_transformers import SentenceTransformer

    st = SentenceTransformer(str(minilm), device="cpu")
    texts = TEXTS[:2] if half else [*TEXTS, "A longer one. " * 100]  # float16 takes many CPUs minutes
    found = certify(SentenceEncoder.load(minilm), texts, (st.half() if half else st).encode(texts).astype(np.float64))
    assert found.verdict == ("rounded" if half else "equal"), found.meaning
