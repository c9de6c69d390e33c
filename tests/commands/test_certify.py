"""The certify command: right vectors pass in every precision, wrong ones are named or unexplained,
never misnamed.
"""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer

from lessons.mistakes import MISTAKES, planted
from minisbert.commands.certify import main
from minisbert.core import InputError
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
def states(
    encoder: SentenceEncoder, ids: list[int], pads: int = 0, masked: bool = True
) -> np.ndarray:
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


def padded_means(encoder: SentenceEncoder, masked: bool, every: bool, size: int = 8) -> np.ndarray:
    """Batches of ``size`` texts, padded to the longest, with pads where they do not belong."""
    rows, found = ids_of(encoder), []
    for i, ids in enumerate(rows):
        longest = max(map(len, rows[i // size * size : i // size * size + size]))
        hidden = states(encoder, ids, longest - len(ids), masked)
        found.append((hidden if every else hidden[: len(ids)]).mean(axis=0))
    return unit(found)


def cut_at(limit: int, encoder: SentenceEncoder) -> list[list[int]]:
    return [ids[: limit - 1] + ids[-1:] * (len(ids) >= limit) for ids in ids_of(encoder)]


@torch.no_grad()
def layer(e: SentenceEncoder, number: int) -> list[np.ndarray]:
    return [
        e.bert.hidden_states(torch.tensor([ids]))[number][0].mean(dim=0).numpy()
        for ids in ids_of(e)
    ]


def with_mistake(e: SentenceEncoder, name: str) -> np.ndarray:
    with planted(MISTAKES[name]):
        return right(e)


def uncut(encoder: SentenceEncoder) -> SentenceEncoder:
    other = copy.copy(encoder)
    other.tokenizer = copy.copy(encoder.tokenizer)
    other.tokenizer.limit = 32
    return other


def capitals(encoder: SentenceEncoder) -> SentenceEncoder:
    """The model with a tokenizer that does not lower-case."""
    other = uncut(encoder)
    other.tokenizer.limit = 16
    other.tokenizer.backend = Tokenizer.from_str(encoder.tokenizer.backend.to_str())
    other.tokenizer.backend.normalizer = BertNormalizer(lowercase=False)
    return other


NOISE = np.random.default_rng(3).normal(size=(9, 24))
WRONG: dict[str, tuple[str, Callable[[SentenceEncoder], np.ndarray]]] = {
    # name: the causes, how the vectors come about
    "[CLS]": ("cls pooling", lambda e: unit(pooled(e, lambda x: x[0]))),
    "max": ("max pooling", lambda e: unit(pooled(e, lambda x: x.max(axis=0)))),
    "last token": ("lasttoken pooling", lambda e: unit(pooled(e, lambda x: x[-1]))),
    "inner mean": ("inner pooling", lambda e: unit(pooled(e, lambda x: x[1:-1].mean(axis=0)))),
    "another layer": ("layer", lambda e: unit(layer(e, 1))),
    "first and last layer": (
        "first-last pooling",
        lambda e: unit(np.add(layer(e, 1), layer(e, 2))),
    ),
    "pads pooled": ("pads pooled", lambda e: padded_means(e, masked=True, every=True)),
    "pads pooled in threes": (
        "pads pooled",
        lambda e: padded_means(e, masked=True, every=True, size=3),
    ),
    "no mask": ("pads attended", lambda e: padded_means(e, masked=False, every=False)),
    "no mask at all": (
        "pads attended and pooled",
        lambda e: padded_means(e, masked=False, every=True),
    ),
    "not normalised": ("not normalised", lambda e: np.stack(means(e, ids_of(e)))),
    "[CLS], raw": ("cls pooling, not normalised", lambda e: pooled(e, lambda x: x[0])),
    "cut": ("cut", lambda e: unit(means(e, cut_at(8, e)))),
    "not cut": ("cut", lambda e: uncut(e).encode(TEXTS)),
    "capitals": ("lower-casing missing", lambda e: capitals(e).encode(TEXTS)),
    "prompt": ("prompt added", lambda e: e.encode(["query: " + text for text in TEXTS])),
    "reversed": ("order", lambda e: right(e)[::-1]),
    "one pair swapped": ("order", lambda e: right(e)[[0, 1, 3, 2, 4, 5, 6, 7, 8]]),
    # no cause is named
    "cut elsewhere": ("", lambda e: unit(means(e, cut_at(11, e)))),
    "no special tokens": ("", lambda e: unit(means(e, [x[1:-1] for x in ids_of(e)]))),
    "one vector for all": ("", lambda e: right(e)[[0] * 9]),
    "other lengths": ("", lambda e: right(e) * np.arange(3, 12)[:, None]),
    "other texts": ("", lambda e: NOISE),
    "noise": ("", lambda e: right(e) + 0.05 * NOISE),
    "a zero row": ("", lambda e: right(e) * (np.arange(9) != 4)[:, None]),
    "tanh GELU": ("", lambda e: with_mistake(e, "tanh GELU")),
    "bfloat16 arithmetic": ("", lambda e: right(copy.deepcopy(e).bfloat16())),
    "int8 codes": ("", lambda e: np.round(127 * right(e))),
    "signs": ("", lambda e: np.sign(right(e))),
}


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        *((name, np.float64) for name in WRONG),
        ("pads pooled", np.float16),
        ("reversed", np.float16),
    ],
)
def test_wrong_vectors_are_named_or_have_no_cause(written_out, encoder, name, stored):
    causes, make = WRONG[name]
    found = certify(encoder, TEXTS, make(encoder).astype(stored).astype(np.float64))
    assert (found.verdict, ", ".join(found.causes)) == (
        "explained" if causes else "unexplained",
        causes,
    )


def test_lower_cased_though_the_model_has_capitals(encoder):
    assert certify(capitals(encoder), TEXTS, right(encoder).astype(np.float64)).causes == (
        "lower-cased",
    )


def test_duplicates_and_a_wrong_row_are_no_other_order(encoder):
    texts = [*TEXTS, TEXTS[0]]
    vectors = encoder.encode(texts).astype(np.float64)
    vectors[3] *= -1
    assert certify(encoder, texts, vectors).verdict == "unexplained"
    assert certify(encoder, texts, encoder.encode(texts)[::-1].astype(np.float64)).causes == (
        "order",
    )


ROUNDED = {
    "float16": lambda x: x.astype(np.float16),
    "bfloat16": lambda x: torch.from_numpy(x).bfloat16().float().numpy(),
    "4 decimals": lambda x: np.round(x, 4),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_vectors_are_harmless(encoder, name):
    found = certify(encoder, TEXTS, ROUNDED[name](right(encoder)).astype(np.float64))
    assert (found.verdict, found.harmless, found.causes) == ("rounded", True, (name,))


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
    found = certify(model, TEXTS, right(encoder).astype(np.float64), prompt)
    assert found.causes == (cause,)
    assert not prompt or f"{prompt!r}" in found.meaning


def test_a_prompt_that_should_not_be_pooled(encoder):
    model = copy.deepcopy(encoder)
    model.settings = replace(model.settings, include_prompt=False)
    vectors = encoder.encode(TEXTS, prompt="the cat ").astype(np.float64)
    assert certify(model, TEXTS, vectors, "the cat ").causes == ("prompt pooled",)


@pytest.mark.parametrize(
    "name", ["tiny-qwen3", "tiny-modernbert", "tiny-gemma", "tiny-mpnet", "../tiny-distiluse"]
)
def test_models_of_other_architectures(name):
    model = SentenceEncoder.load(REFERENCE / "architectures" / name)
    vectors = model.encode(TEXTS).astype(np.float64)
    assert certify(model, TEXTS, vectors).verdict == "equal"
    assert certify(model, TEXTS, 0.9 * vectors).verdict == "unexplained"
    lowered = model.encode([text.lower() for text in TEXTS]).astype(np.float64)
    assert certify(model, TEXTS, lowered).causes in [
        ("lower-cased",),
        (),
    ]  # equal if the model lower-cases


# ---------------------------------------------------------------------------------------- the
# command


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


def write(path: Path, content: object) -> Path:
    """A file of vectors, or of any text."""
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    return path


def test_right_vectors_are_equal(encoder, tiny, tmp_path, capsys):
    code, out = run(capsys, write(tmp_path / "v.npy", right(encoder)), "--model", tiny)
    assert code == 0
    assert re.search(r"^Equal, to [67] digits\.$", out, re.MULTILINE)


def test_the_report_shows_the_numbers_of_a_cut(encoder, tiny, tmp_path, capsys):
    code, out = run(capsys, write(tmp_path / "v.npy", WRONG["cut"][1](encoder)), "--model", tiny)
    assert code == 1
    longer = [i + 1 for i, ids in enumerate(ids_of(encoder)) if len(ids) > 8]
    assert f"texts that differ   {len(longer)} of 9: lines {', '.join(map(str, longer))}\n" in out
    assert "cut at 8 tokens, not at 16" in out
    assert float(re.search(r"differ from yours by at most (\S+)\.\n", out)[1]) < 2e-6 < 1e-3
    assert float(re.search(r"largest difference  (\S+),", out)[1]) > 1e-2


def test_json(encoder, tiny, tmp_path, capsys):
    code, out = run(
        capsys, write(tmp_path / "v.npy", right(encoder)[::-1]), "--model", tiny, "--json"
    )
    found = json.loads(out)
    assert code == 1
    assert (found["verdict"], found["causes"], found["shape"]) == ("explained", ["order"], [9, 24])
    assert found["differing"] == [0, 1, 2, 3, 5, 6, 7, 8]  # the middle row is where it was


BAD = [
    # the file's name, its content, what the error names
    ("v.npy", np.ones((2, 24)), "2 vectors for 9 texts"),
    ("v.npy", np.full((9, 23), 0.3), "23 columns"),
    ("v.npy", np.where(np.arange(9)[:, None] == 3, np.nan, np.ones((9, 24))), "row 4"),
    ("v.npy", np.ones(24), r"\(24,\)"),
    ("v.npy", np.ones((9, 24)) * 1j, "v.npy"),
    ("v.npy", np.array([[None]], dtype=object), "allow_pickle"),
    ("v.npy", "not an array", "v.npy"),
    ("v.csv", "1,2", "numpy.save"),
    ("no.npy", None, "does not exist"),
]


@pytest.mark.parametrize(("file", "content", "said"), BAD)
def test_bad_files_are_refused_by_name(tiny, tmp_path, capsys, file, content, said):
    path = tmp_path / file if content is None else write(tmp_path / file, content)
    with pytest.raises(InputError, match=said) as error:
        run(capsys, path, "--model", tiny)
    assert file in str(error.value)
    assert "\n" not in str(error.value)
