"""The certify command: right vectors pass, wrong ones are named or unexplained, never misnamed."""

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
from minisbert.diagnosis.certificate import Certificate, certify
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.parity import REFERENCE
from tests.toys import NOUNS

# of many lengths, several of them full (16 tokens), one of one word, some with capitals
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


# ------------------------------------------------------------------ how vectors go wrong, in NumPy


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
    """Rows scaled to length 1, in float32."""
    rows = np.stack(list(rows))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def means(encoder: SentenceEncoder, rows: list[list[int]]) -> np.ndarray:
    """The mean over the tokens of each text."""
    return np.stack([states(encoder, ids).mean(axis=0) for ids in rows])


def right(encoder: SentenceEncoder) -> np.ndarray:
    return unit(means(encoder, ids_of(encoder)))


def first_tokens(encoder: SentenceEncoder) -> np.ndarray:
    return np.stack([states(encoder, ids)[0] for ids in ids_of(encoder)])


def last_tokens(encoder: SentenceEncoder) -> np.ndarray:
    return np.stack([states(encoder, ids)[-1] for ids in ids_of(encoder)])


def maxima(encoder: SentenceEncoder) -> np.ndarray:
    return np.stack([states(encoder, ids).max(axis=0) for ids in ids_of(encoder)])


def inner_means(encoder: SentenceEncoder) -> np.ndarray:
    return np.stack([states(encoder, ids)[1:-1].mean(axis=0) for ids in ids_of(encoder)])


def padded_means(
    encoder: SentenceEncoder, attended: bool, pooled: bool, size: int = 8
) -> np.ndarray:
    """Batches of ``size`` texts, padded to the longest, with pads where they do not belong."""
    rows = ids_of(encoder)
    vectors = []
    for i, ids in enumerate(rows):
        start = i // size * size
        longest = max(len(row) for row in rows[start : start + size])
        hidden = states(encoder, ids, longest - len(ids), masked=not attended)
        if not pooled:
            hidden = hidden[: len(ids)]
        vectors.append(hidden.mean(axis=0))
    return unit(vectors)


def cut_at(limit: int, encoder: SentenceEncoder) -> np.ndarray:
    """The means of texts that are cut at another limit; the last token stays [SEP]."""
    rows = []
    for ids in ids_of(encoder):
        if len(ids) > limit:
            ids = [*ids[: limit - 1], ids[-1]]
        rows.append(ids)
    return unit(means(encoder, rows))


def without_special_tokens(encoder: SentenceEncoder) -> np.ndarray:
    return unit(means(encoder, [ids[1:-1] for ids in ids_of(encoder)]))


@torch.no_grad()
def layer(encoder: SentenceEncoder, number: int) -> np.ndarray:
    """The means of a layer's output."""
    vectors = []
    for ids in ids_of(encoder):
        hidden = encoder.bert.hidden_states(torch.tensor([ids]))[number]  # (1, T, D)
        vectors.append(hidden[0].mean(dim=0).numpy())
    return np.stack(vectors)


def with_mistake(encoder: SentenceEncoder, name: str) -> np.ndarray:
    with planted(MISTAKES[name]):
        return right(encoder)


def uncut(encoder: SentenceEncoder) -> SentenceEncoder:
    """The model with a limit beyond the longest text."""
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
ZERO_ROW = np.array([1, 1, 1, 1, 0, 1, 1, 1, 1])[:, None]
WRONG: dict[str, tuple[str, Callable[[SentenceEncoder], np.ndarray]]] = {
    # name: the causes, how the vectors come about
    "[CLS]": ("cls pooling", lambda e: unit(first_tokens(e))),
    "max": ("max pooling", lambda e: unit(maxima(e))),
    "last token": ("lasttoken pooling", lambda e: unit(last_tokens(e))),
    "inner mean": ("inner pooling", lambda e: unit(inner_means(e))),
    "another layer": ("layer", lambda e: unit(layer(e, 1))),
    "first and last layer": ("first-last pooling", lambda e: unit(layer(e, 1) + layer(e, 2))),
    "pads pooled": ("pads pooled", lambda e: padded_means(e, False, True)),
    "pads pooled in threes": ("pads pooled", lambda e: padded_means(e, False, True, size=3)),
    "no mask": ("pads attended", lambda e: padded_means(e, True, False)),
    "no mask at all": ("pads attended and pooled", lambda e: padded_means(e, True, True)),
    "not normalised": ("not normalised", lambda e: means(e, ids_of(e))),
    "[CLS], raw": ("cls pooling, not normalised", first_tokens),
    "cut": ("cut", lambda e: cut_at(8, e)),
    "not cut": ("cut", lambda e: uncut(e).encode(TEXTS)),
    "capitals": ("lower-casing missing", lambda e: capitals(e).encode(TEXTS)),
    "prompt": ("prompt added", lambda e: e.encode(TEXTS, prompt="query: ")),
    "reversed": ("order", lambda e: right(e)[::-1]),
    "one pair swapped": ("order", lambda e: right(e)[[0, 1, 3, 2, 4, 5, 6, 7, 8]]),
    # no cause is named
    "cut elsewhere": ("", lambda e: cut_at(11, e)),
    "no special tokens": ("", without_special_tokens),
    "one vector for all": ("", lambda e: right(e)[[0] * 9]),
    "other lengths": ("", lambda e: right(e) * np.arange(3, 12)[:, None]),
    "other texts": ("", lambda e: NOISE),
    "noise": ("", lambda e: right(e) + 0.05 * NOISE),
    "a zero row": ("", lambda e: right(e) * ZERO_ROW),
    "tanh GELU": ("", lambda e: with_mistake(e, "tanh GELU")),
    "bfloat16 arithmetic": ("", lambda e: right(copy.deepcopy(e).bfloat16())),
    "int8 codes": ("", lambda e: np.round(127 * right(e))),
    "signs": ("", lambda e: np.sign(right(e))),
}


def certified(encoder: SentenceEncoder, vectors: np.ndarray, **options: object) -> Certificate:
    return certify(encoder, TEXTS, vectors.astype(np.float64), **options)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_vectors_are_named_or_have_no_cause(written_out, encoder, name):
    """A wrong name is worse than none: it sends its reader to the wrong place."""
    causes, make = WRONG[name]
    found = certified(encoder, make(encoder))
    assert found.verdict == ("explained" if causes else "unexplained")
    assert ", ".join(found.causes) == causes


@pytest.mark.parametrize("name", ["pads pooled", "reversed"])
def test_wrong_vectors_that_were_stored_in_float16(encoder, name):
    """Rounding hides no cause: it is allowed for in every comparison."""
    causes, make = WRONG[name]
    assert certified(encoder, make(encoder).astype(np.float16)).causes == (causes,)


def test_lower_cased_though_the_model_has_capitals(encoder):
    """The other way round than "lower-casing missing"."""
    assert certified(capitals(encoder), right(encoder)).causes == ("lower-cased",)


def test_a_wrong_row_among_duplicates_is_no_other_order(encoder):
    """Two equal texts have equal vectors, so each row of a pair is the other's."""
    texts = [*TEXTS, TEXTS[0]]
    vectors = encoder.encode(texts).astype(np.float64)
    vectors[3] *= -1
    assert certify(encoder, texts, vectors).verdict == "unexplained"


def test_another_order_among_duplicates(encoder):
    """A text that occurs twice has two right rows."""
    texts = [*TEXTS, TEXTS[0]]
    vectors = encoder.encode(texts)[::-1].astype(np.float64)
    assert certify(encoder, texts, vectors).causes == ("order",)


ROUNDED = {
    "float16": lambda x: x.astype(np.float16),
    "bfloat16": lambda x: torch.from_numpy(x).bfloat16().float().numpy(),
    "4 decimals": lambda x: np.round(x, 4),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_vectors_are_harmless(encoder, name):
    """Vectors are stored in few digits on purpose; that is no mistake."""
    found = certified(encoder, ROUNDED[name](right(encoder)))
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
    """An engine that ignores the model's settings takes the mean and scales it."""
    model = SentenceEncoder.load(tiny, pooling=pooling)
    model.normalize = scaled
    assert certified(model, right(encoder), prompt=prompt).causes == (cause,)


def test_a_missing_prompt_is_quoted(encoder):
    """A model may have several prompts."""
    found = certified(encoder, right(encoder), prompt="the cat ")
    assert "the prompt 'the cat ' is missing" in found.meaning


def test_a_prompt_that_should_not_be_pooled(encoder):
    """Few engines read ``include_prompt``."""
    model = copy.deepcopy(encoder)
    model.settings = replace(model.settings, include_prompt=False)
    vectors = encoder.encode(TEXTS, prompt="the cat ")
    assert certified(model, vectors, prompt="the cat ").causes == ("prompt pooled",)


@pytest.mark.parametrize(
    ("name", "lowered"),
    [
        ("tiny-qwen3", ("lower-cased",)),
        ("tiny-modernbert", ("lower-cased",)),
        ("tiny-gemma", ("lower-cased",)),
        ("tiny-mpnet", ()),
        ("../tiny-distiluse", ()),
    ],
)
def test_models_of_other_architectures(name, lowered):
    """Every way is tried with any encoder; a model that lower-cases does not notice it."""
    model = SentenceEncoder.load(REFERENCE / "architectures" / name)
    vectors = model.encode(TEXTS)
    assert certified(model, vectors).verdict == "equal"
    assert certified(model, 0.9 * vectors).verdict == "unexplained"
    lower_cased = model.encode([text.lower() for text in TEXTS])
    assert certified(model, lower_cased).causes == lowered


# -------------------------------------------------------------------------------------- the command


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
    """The verdict is one sentence, and exit code 0."""
    code, out = run(capsys, write(tmp_path / "v.npy", right(encoder)), "--model", tiny)
    assert code == 0
    assert re.search(r"^Equal, to [67] digits\.$", out, re.MULTILINE)


def test_the_report_shows_the_numbers_of_a_cut(encoder, tiny, tmp_path, capsys):
    """Which texts differ, by how much, and by how little under the explanation."""
    code, out = run(capsys, write(tmp_path / "v.npy", cut_at(8, encoder)), "--model", tiny)
    assert code == 1
    longer = [i for i, ids in enumerate(ids_of(encoder), 1) if len(ids) > 8]
    lines = ", ".join(map(str, longer))
    assert f"texts that differ   {len(longer)} of 9: lines {lines}\n" in out
    assert "cut at 8 tokens, not at 16" in out
    assert float(re.search(r"differ from yours by at most (\S+)\.\n", out)[1]) < 2e-6 < 1e-3
    assert float(re.search(r"largest difference  (\S+),", out)[1]) > 1e-2


def test_json(encoder, tiny, tmp_path, capsys):
    """One object with every number, for programs."""
    vectors = write(tmp_path / "v.npy", right(encoder)[::-1])
    code, out = run(capsys, vectors, "--model", tiny, "--json")
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


@pytest.mark.parametrize(("file", "content", "message"), BAD)
def test_bad_files_are_refused_by_name(tiny, tmp_path, capsys, file, content, message):
    """One line says which file, and what is wrong with it."""
    path = tmp_path / file
    if content is not None:
        write(path, content)
    with pytest.raises(InputError, match=message) as error:
        run(capsys, path, "--model", tiny)
    assert file in str(error.value)
    assert "\n" not in str(error.value)
