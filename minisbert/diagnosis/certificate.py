"""Judge vectors of another engine: equal to the model's, rounded, explained by a cause, or
unexplained.

``certify`` computes the right vectors of all texts. If the others differ by more than rounding, it
recomputes a dozen texts in every way in which another engine may have computed them, and names a
cause only if it gives the vectors of all of them. A way is a choice of tokens (cut elsewhere,
cased, with another prompt) and of a pooling of their states. The model's own tokens are also tried
with pads that count where they should not.
"""

import copy
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.encoder import cosine, cosine_matrix, normalize
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.loading import Encoder, uncompiled
from minisbert.models.batching import chunks
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.properties import choose_prompt, with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say
from minisbert.system.files import open_bytes
from minisbert.system.reading import reading

FLOAT32 = 2e-6  # the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
HALF = 0.02  # arithmetic in float16 or bfloat16 stays below it
LOOKED_UP = 128  # rows that are looked up among the others
LIMITS = (
    8,
    16,
    32,
    64,
    128,
    256,
    384,
    512,
)  # that engines cut at, and fixed lengths that they pad to
USUAL_PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
)  # of E5, Nomic and others
REQUEST_TEXTS = 16  # texts of a request
ANSWER_SECONDS = 60.0  # without a byte
ANSWER_BYTES = 64 * 2**20  # many times what 16 vectors take
KEY_VARIABLE = "MINISBERT_API_KEY"

Clue = tuple[
    str, str
]  # a difference from the model's own way: its key among the causes, and a clause that says it
Way = tuple[
    list[Clue], Iterator[Tensor]
]  # the clues; for each text its vectors (C, D) before scaling
Pool = Callable[[list[Tensor]], Tensor]  # of the layers' outputs, (1, T, D) each -> (1, D)


@dataclass(frozen=True)
class Certificate:
    """The verdict, and the numbers that show it. Rows count from 0, differences are relative to a
    vector's length.
    """

    verdict: str  # equal, rounded, explained or unexplained
    meaning: str
    causes: tuple[str, ...]
    difference: float  # the largest
    row: int  # where it is
    cosine: float  # the smallest
    differing: list[int]  # rows beyond rounding
    checked: int = 0  # rows that were recomputed
    left: float | None = None  # the largest difference under the explanation

    @property
    def harmless(self) -> bool:
        return self.verdict in ("equal", "rounded")

    @property
    def digits(self) -> int:
        """Decimal digits to which the vectors agree."""
        return min(16, int(-math.log10(max(self.difference, 1e-16))))


@torch.no_grad()
def certify(
    encoder: Encoder,
    texts: Sequence[str],
    values: np.ndarray,
    prompt: str | None = None,
    name: object = "the vectors",
) -> Certificate:
    """Compare ``values`` (N, D), float64, with the vectors of N texts. Errors call them ``name``.

    Raises ``InputError`` for another number of rows or columns.
    """
    # before minutes of encoding
    if len(values) != len(texts):
        numbers = f"{len(values):,} vectors for {len(texts):,} texts"
        raise InputError(f"{name}: {numbers}: one for each, in the same order, is needed")
    width = encoder.encode(texts[:1], prompt=prompt).shape[1]
    if values.shape[1] != width:
        widths = f"the vectors have {values.shape[1]} columns, the model's have {width}"
        raise InputError(
            f"{name}: {widths}: another model's, or without its dense layer, or cut "
            f"(--truncate-dim)?"
        )
    ours = encoder.encode(texts, show_progress_bar=True, prompt=prompt).astype(np.float64)  # (N, D)

    # from the numbers alone
    precision, rounding = stored_precision(values)
    gaps, differences = (
        row_differences(ours, values, rounding),
        row_differences(ours, values),
    )  # (N,) both
    cosines = cosine(torch.from_numpy(ours), torch.from_numpy(values))
    worst = int(differences.argmax())
    differing = np.flatnonzero(~(gaps <= FLOAT32)).tolist()  # NaN differs, too
    found = Certificate(
        "unexplained", "", (), float(differences[worst]), worst, float(cosines.min()), differing
    )
    if not differing:
        if found.difference <= FLOAT32:
            return replace(found, verdict="equal")
        return replace(
            found, verdict="rounded", meaning=f"stored as {precision}", causes=(precision,)
        )
    # if each of them is one of the right vectors of these rows, they are in another order
    others = values[differing][:LOOKED_UP]
    nearest = (
        cosine_matrix(torch.from_numpy(others), torch.from_numpy(ours[differing]))
        .argmax(dim=1)
        .numpy()
    )
    if (
        row_differences(ours[differing][nearest], others, rounding[differing][:LOOKED_UP])
        <= FLOAT32
    ).all():
        line = differing[nearest[0]] + 1
        meaning = (
            f"the rows are in another order: row {differing[0] + 1} is the vector of line {line}"
        )
        return replace(found, verdict="explained", meaning=meaning, causes=("order",))

    # by recomputing the worst, the longest, and some across the file; the worst first, because most
    # causes fail there. stable, so that the same file is judged by the same texts on every machine
    model, prompt = uncompiled(encoder), choose_prompt(encoder.settings, prompt)
    if isinstance(model, SentenceEncoder):  # a static model has no layers
        longest = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        across = np.linspace(0, len(texts) - 1, 4).astype(int).tolist()
        rows = list(
            dict.fromkeys([*np.argsort(-gaps, kind="stable").tolist()[:4], *longest[:4], *across])
        )
        say(f"not equal: {len(rows)} texts are computed again in every known way")
        found = replace(found, checked=len(rows))
        for clues, vectors in ways(model, [texts[row] for row in rows], prompt, texts):
            scaled, left = better_scaling(model.normalize, vectors, values[rows], rounding[rows])
            if scaled and not model.normalize:
                clues.append(("normalised", "the vectors were scaled to length 1"))
            if model.normalize and not scaled:
                clues.append(("not normalised", "the vectors were not scaled to length 1"))
            if left <= FLOAT32 and clues:
                meaning, causes = (
                    ", and ".join(clause for _, clause in clues),
                    tuple(cause for cause, _ in clues),
                )
                return replace(
                    found, verdict="explained", meaning=meaning, causes=causes, left=left
                )

    typical = float(cosines.median())
    meaning = f"no cause found: half of the cosines are below {typical:.4f}"
    if typical < 0.5:
        meaning += ", as with another model's vectors, or those of other texts"
    if found.difference < HALF:
        meaning += ". Arithmetic in float16 or bfloat16 can differ as much: compare vectors computed in float32"
    return replace(found, meaning=meaning)


def better_scaling(
    normalizes: bool, vectors: Iterable[Tensor], values: np.ndarray, rounding: np.ndarray
) -> tuple[bool, float]:
    """Return whether the computed vectors, (C, D) for each text, fit better scaled, and the largest
    difference then.

    ``values`` and ``rounding`` (S, W) are those of the texts. Stops at the first text that fits in
    neither way.
    """
    left = np.zeros(2)  # not scaled, scaled
    for candidates, value, rounded in zip(vectors, values, rounding, strict=False):
        both = torch.stack([candidates, normalize(candidates)])[:, :, : len(value)]  # (2, C, W)
        left = np.maximum(
            left, row_differences(both.double().cpu().numpy(), value, rounded).min(axis=1)
        )
        if not (left <= FLOAT32).any():  # NaN does not fit
            break
    # the model's own way if both fit
    scaled = normalizes if left[int(normalizes)] <= FLOAT32 else not normalizes
    return scaled, float(left[int(scaled)])


def stored_precision(values: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the coarsest precision that holds all values (N, D) exactly, and how much it may have
    rounded off each.
    """
    tensor, rounding, name = torch.from_numpy(values), np.zeros_like(values), "float32"
    if (tensor.half().double() == tensor).all():
        # the second part is that of subnormal numbers
        name, rounding = "float16", 2**-11 * np.abs(values) + 2**-25
    if (tensor.bfloat16().double() == tensor).all():
        name, rounding = "bfloat16", 2**-8 * np.abs(values)
    for digits in (6, 5, 4, 3):
        rounded = np.round(values, digits)
        # float32 numbers that were rounded to decimals are those decimals only after rounding to
        # float32 again
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            name, rounding = f"{digits} decimals", np.full_like(values, 0.5 * 10**-digits)
    return (
        name,
        1.001 * rounding,
    )  # a per mille more, for what was rounded by another rule than to the nearest


def row_differences(
    ours: np.ndarray, other: np.ndarray, rounding: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the largest difference beyond rounding of each row, (..., D) twice -> (...), relative
    to ours' length.
    """
    gap = (np.abs(ours - other) - rounding).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


# ------------------------------------------------------------------------------------------ the
# ways


def ways(
    encoder: SentenceEncoder, texts: Sequence[str], prompt: str, everything: Sequence[str]
) -> Iterator[Way]:
    """Yield every way to compute the ``texts``, which are a few of ``everything``, the model's own
    way first.

    The vectors of a way are computed text by text while they are read, so a reader should stop at
    the first that does not fit. C is 1, or the number of lengths to which a text may have been
    padded.
    """

    # poolings of the same tokens follow each other
    @lru_cache(maxsize=2 * len(texts))
    def layers(ids: tuple[int, ...]) -> list[Tensor]:
        return encoder.bert.hidden_states(torch.tensor([ids], device=encoder.device))[1:]

    tokens = list(tokenizations(encoder, texts, prompt))
    right, own_skip = tokens[0][1:]
    for clues, rows, skip in tokens:
        for more, pool in poolings(encoder, skip):
            yield clues + more, (encoder.dense(pool(layers(tuple(ids)))) for ids in rows)

    # last, because they need the most forward passes: rows of fixed lengths, and of those of the
    # other texts
    longest = min(encoder.bert.config.positions, LIMITS[-1])
    lengths = {limit for limit in (encoder.tokenizer.limit, *LIMITS) if limit <= longest}
    for chunk in chunks(
        prompt + text for text in everything
    ):  # all ids of a large corpus would not fit in memory
        lengths.update(map(len, encoder.tokenizer.encode(chunk).ids))
    for clue, masked, pooled in (
        (("pads pooled", "pads were pooled with the tokens"), True, True),
        (
            ("pads attended", "tokens attended to pads: the attention mask was left out"),
            False,
            False,
        ),
        (
            ("pads attended and pooled", "tokens attended to pads, and the pads were pooled too"),
            False,
            True,
        ),
    ):
        yield (
            [clue],
            (
                in_padded_rows(encoder, ids, sorted(lengths), masked, pooled, own_skip)
                for ids in right
            ),
        )


def tokenizations(
    encoder: SentenceEncoder, texts: Sequence[str], prompt: str
) -> Iterator[tuple[list[Clue], list[Sequence[int]], int]]:
    """Yield clues, the ids of each text, and how many tokens of the prompt are not pooled; the
    model's own first.
    """
    tokenizer, settings = encoder.tokenizer, encoder.settings
    usual, positions = tokenizer.limit, encoder.bert.config.positions
    prompted, skip = with_prompt(texts, settings, tokenizer, prompt, None)
    right = tokenizer.encode(prompted).ids
    yield [], right, skip
    if skip:
        yield [("prompt pooled", "the prompt's tokens were pooled too")], right, 0

    for limit in sorted({*LIMITS, positions}):
        if len(tokenizer.pair_template) <= limit <= positions:
            limited = copy.copy(tokenizer)
            limited.limit = limit
            ids = limited.encode(prompted).ids
            clause = f"texts were cut at {limit} tokens, not at {usual}"
            if limit > max(map(len, ids)):
                clause = f"texts were not cut at {usual} tokens"
            if ids != right:
                yield [("cut", clause)], ids, skip

    lower = tokenizer.encode([text.lower() for text in prompted]).ids
    if lower != right:
        yield (
            [("lower-cased", "the texts were lower-cased, and this model has capitals")],
            lower,
            skip,
        )
    other_case = copy.copy(tokenizer)
    other_case.backend = Backend.from_str(tokenizer.backend.to_str())
    if getattr(other_case.backend.normalizer, "lowercase", False):  # BERT's
        other_case.backend.normalizer.lowercase = False
        ids = other_case.encode(prompted).ids
        if ids != right:
            yield [("lower-casing missing", "the texts were not lower-cased")], ids, skip

    for other in dict.fromkeys(["", *settings.prompts.values(), *USUAL_PROMPTS]):
        if other == prompt:
            continue
        clue = ("another prompt", f"the prompt was {other!r}, not {prompt!r}")
        if not prompt:
            clue = ("prompt added", f"the prompt {other!r} was added")
        elif not other:
            clue = ("prompt missing", f"the prompt {prompt!r} is missing")
        others, unpooled = with_prompt(texts, settings, tokenizer, other, None)
        yield [clue], tokenizer.encode(others).ids, unpooled


def poolings(encoder: SentenceEncoder, skip: int) -> Iterator[tuple[list[Clue], Pool]]:
    """Yield the model's own pooling, which leaves out ``skip`` tokens, then the others and the
    other layers.
    """

    def own(layers: list[Tensor], number: int = -1) -> Tensor:
        if layers[number].shape[1] <= skip:  # another tokenization left nothing to pool
            return layers[number][:, 0] * torch.nan
        return encoder.pooling(layers[number][:, skip:])

    yield [], own
    last = len(encoder.bert.layers)
    for number in range(last - 1):
        yield (
            [("layer", f"layer {number + 1} was pooled, not layer {last}")],
            partial(own, number=number),
        )

    others: dict[str, tuple[str, Pool]] = {
        "mean": ("the mean over the tokens was taken", lambda x: mean_pool(x[-1])),
        "cls": ("[CLS], the first token, was taken", lambda x: cls_pool(x[-1])),
        "max": ("the largest value of each column was taken", lambda x: max_pool(x[-1])),
        "lasttoken": ("the last token was taken", lambda x: last_token_pool(x[-1])),
        "inner": (
            "the mean without the first and the last token was taken",
            lambda x: mean_pool(x[-1][:, 1:-1]),
        ),
        "first-last": (
            "the first and the last layer were averaged",
            lambda x: first_last_pool(x[-1], None, x[0]),
        ),
    }
    bert = encoder.bert
    if bert.pooler is not None:
        others["pooler"] = ("BERT's pooler output was taken", lambda x: bert.pool(x[-1]))
    # a dense layer fits other poolings only if they give vectors of the same width
    if len(encoder.pooling.names) == 1:
        for name, (meaning, pool) in others.items():
            if name != encoder.pooling_mode:
                yield (
                    [
                        (
                            f"{name} pooling",
                            f"{meaning}; the model has {encoder.pooling_mode} pooling",
                        )
                    ],
                    pool,
                )


def in_padded_rows(
    encoder: SentenceEncoder,
    ids: Sequence[int],
    sizes: Sequence[int],
    masked: bool,
    pooled: bool,
    skip: int,
) -> Tensor:
    """Pool a text in rows of each possible size -> (C, D); ``masked`` hides the pads, ``pooled``
    pools them too.
    """
    vectors = []
    for size in sizes:
        if size < len(ids):
            continue
        row = torch.tensor(
            [[*ids] + [encoder.tokenizer.pad_id] * (size - len(ids))], device=encoder.device
        )  # (1, P)
        mask = torch.arange(size, device=encoder.device)[None] < len(ids) if masked else None
        layers = encoder.bert.hidden_states(row, mask)[1:]
        kept = size if pooled else len(ids)
        vectors.append(encoder.pooling(layers[-1][:, skip:kept]))
    return encoder.dense(torch.cat(vectors))


# ------------------------------------------------------------------------------- where vectors come
# from


def read_vector_file(path: str | Path) -> np.ndarray:
    """Read the vectors (N, D) of a ``.npy`` file, one row for each text, as float64.

    Raises ``InputError`` for a file that is missing, damaged or of another kind, and for anything
    but a matrix of finite numbers.
    """
    with reading(path):
        if Path(path).suffix.lower() != ".npy":
            raise ValueError(
                'the vectors must be in a .npy file: numpy.save("vectors.npy", vectors) writes one'
            )
        with open_bytes(Path(path)) as file:
            return checked(np.lib.format.read_array(file, allow_pickle=False))


def openai_vectors(answer: Any) -> list[np.ndarray]:
    """Return the vectors of an answer in OpenAI's form, in the order of ``index``: any is
    allowed.
    """
    entries = answer["data"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("data must be a list of objects, each with an index and an embedding")
    if not all(type(entry["index"]) is int for entry in entries):
        raise ValueError("data: each index must be an integer")
    return [
        as_vector(entry["embedding"]) for entry in sorted(entries, key=lambda entry: entry["index"])
    ]


def as_vector(numbers: Any) -> np.ndarray:
    """Return a list of numbers as a vector (D,). Raises ``ValueError`` for base64, null and other
    things.
    """
    row = np.array(numbers if isinstance(numbers, list) else None)
    if row.ndim != 1 or row.dtype.kind not in "fiu" or bool in map(type, numbers):
        raise ValueError(
            f"an embedding must be a list of numbers, not {one_line(numbers)}: ask for floats, not "
            f"base64"
        )
    return row


def checked(array: np.ndarray) -> np.ndarray:
    """Return vectors (N, D) as float64. Raises ``ValueError`` for anything but a matrix of real,
    finite numbers.
    """
    if array.dtype.kind not in "fiub":
        raise ValueError(f"vectors must be real numbers, not {array.dtype}")
    values = array.astype(np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"vectors must be a matrix (N, D), not {values.shape}")
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise ValueError(f"row {finite.argmin() + 1} is not finite")
    return values


def fetch_vectors(url: str, texts: Sequence[str], model: str) -> np.ndarray:
    """Ask a server for the vectors (N, D) of the texts, in order.

    ``url`` is the server's address, with or without ``/v1``; ``model`` is the name that the server
    knows. A key in ``MINISBERT_API_KEY`` is sent as a bearer token. Raises ``InputError`` for
    anything but one vector for each text.
    """
    address = url.rstrip("/").removesuffix("/embeddings").removesuffix("/v1") + "/v1/embeddings"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--url {one_line(url)} must begin with http:// or https://")
    rows: list[np.ndarray] = []
    for start in range(0, len(texts), REQUEST_TEXTS):
        batch = list(texts[start : start + REQUEST_TEXTS])
        content = post(address, {"input": batch, "model": model, "encoding_format": "float"})
        try:
            vectors = openai_vectors(json.loads(content))
        except (ValueError, RecursionError, LookupError, TypeError) as error:
            shown = one_line(content[:200].decode(errors="replace"))
            why = (
                error
                if type(error) is ValueError
                else "data[].embedding and data[].index are needed"
            )
            raise InputError(
                f"{address} answered {shown}, not OpenAI's form of embeddings: {why}"
            ) from error
        if len(vectors) != len(batch):
            raise InputError(f"{address} gave {len(vectors)} vectors for {len(batch)} texts")
        rows += vectors
    try:
        return checked(np.array(rows))
    except ValueError as error:
        raise InputError(f"{address}: {error}") from error


class NoRedirect(HTTPRedirectHandler):
    """Makes a redirect an error: the texts and the key are for the server that the user has
    named.
    """

    def redirect_request(self, *_: Any) -> None:
        return None


def post(address: str, body: dict[str, Any]) -> bytes:
    """Post JSON and return the answer's body. Raises ``InputError`` for anything but status 200."""
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    if os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = (
            f"Bearer {os.environ[KEY_VARIABLE]}".encode()
        )  # a key may be any UTF-8
    try:
        request = Request(address, json.dumps(body).encode(), headers)
        with build_opener(NoRedirect).open(request, timeout=ANSWER_SECONDS) as response:
            content: bytes = response.read(ANSWER_BYTES)
            return content
    except HTTPError as error:
        about = error.headers.get("Location") or error.reason
        raise InputError(f"{address} answered {error.code}: {one_line(about)}") from error
    except (
        OSError,
        HTTPException,
        ValueError,
    ) as error:  # refused, timed out, cut off, or no address
        raise InputError(
            f"{address} cannot be asked: {one_line(str(error) or type(error).__name__)}"
        ) from error
