"""The search that is live in the gallery: Python's docstrings and a static table of tokens.

A Sphinx extension. The build writes ``_static/docstrings.js`` (4 MB), which the page loads when it
is asked to. The model itself would be 23 MB in int8, a byte for each parameter, and need a runtime
besides.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from play_data import packed

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import distill
from minisbert.system.assets import ensure

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 64


def data(encoder: SentenceEncoder, names: list[str], texts: list[str]) -> dict[str, Any]:
    """Distill a table of ``COLUMNS`` columns: int8, scales, the vocabulary, names, texts, ids."""
    static = distill(encoder, COLUMNS)
    table = static.embedding.weight.detach().numpy()  # (V, D)
    # Each row has a scale, because the vectors of frequent tokens are a thousand times shorter.
    scales = np.maximum(np.abs(table).max(axis=1), 1e-12).astype(np.float32) / np.float32(127)
    ids = static.tokenizer.encode(texts).ids
    joined = np.concatenate([np.array(row, dtype=np.uint16) for row in ids])
    vocabulary = static.tokenizer.backend.get_vocab()
    return {
        "columns": table.shape[1],
        "codes": packed(np.rint(table / scales[:, None]).astype(np.int8)),
        "scales": packed(scales),
        "vocabulary": sorted(vocabulary, key=vocabulary.get),
        "ids": packed(joined),
        "lengths": [len(row) for row in ids],
        "names": names,
        "texts": texts,
    }


def write(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    if "docs/gallery" not in app.env.found_docs:
        return
    from lessons.search.docstrings import read_entries

    entries = read_entries()
    encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))
    found = data(encoder, [entry.name for entry in entries], [entry.document for entry in entries])
    text = f"const DOCSTRINGS = {json.dumps(found, separators=(',', ':'))};\n"
    (Path(app.outdir) / "_static" / "docstrings.js").write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    sys.path.append(str(ROOT))  # for the lessons, which are in no wheel
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
