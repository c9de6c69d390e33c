"""The model card: ``README.md`` in a saved model's folder, its page on the Hugging Face Hub.

It says what the model is, how to load it, and, after training, on which data and with which scores.
Its last line holds a hash of what is above it: a page that somebody has written or edited does not
fit its hash, and is kept.
"""

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from minisbert.system.assets import assets
from minisbert.system.files import atomic_file, check_no_link

CARD = "README.md"
LAST_LINE = (
    "<!-- written by minisbert, {}: saving replaces this page as long as nobody edits it -->\n"
)
# What the Hub files a model under, by its class in sentence-transformers. Our ``PairModel`` has
# heads that no class there has.
PIPELINE_TAGS = {
    "SentenceTransformer": "sentence-similarity",
    "SparseEncoder": "feature-extraction",
    "MultiVectorEncoder": "feature-extraction",
    "CrossEncoder": "text-ranking",
    "PairModel": "text-classification",
}
# The same classes, as sentence-transformers writes them among the tags.
CLASS_TAGS = {
    "SentenceTransformer": "sentence-similarity",
    "SparseEncoder": "sparse-encoder",
    "MultiVectorEncoder": "multi-vector-encoder",
    "CrossEncoder": "cross-encoder",
    "PairModel": "pair-model",
}
ENCODE = """vectors = model.encode(["A cat sits.", "A kitten is sitting."])
print(model.similarity(vectors, vectors))"""
PREDICT = 'print(model.predict([("A cat sits.", "A kitten is sitting.")]))'


def write_card(
    folder: Path,
    kind: str,
    description: str,
    base_model: str | None,
    training: str = "",
    former: Path | None = None,
    in_both: bool = True,
) -> None:
    """Write the card of the model in ``folder``, unless the user wrote one.

    One that the user wrote there is kept; one in the ``former`` folder is copied. ``kind`` is a key
    of ``PIPELINE_TAGS``; ``description`` says what the model computes; ``training`` is the section
    about its training, or ""; ``in_both`` is True if sentence-transformers opens it too.
    """
    if keep_own_card(folder, former):
        return

    # The front matter, which the Hub reads.
    library = "sentence-transformers" if in_both else "minisbert"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {PIPELINE_TAGS[kind]}", "tags:"]
    # The library may be minisbert itself: no tag is written twice.
    for tag in dict.fromkeys([library, CLASS_TAGS[kind], "minisbert"]):
        lines.append(f"- {tag}")
    if base_model:
        lines.append(f"base_model: {base_model}")
    lines += ["# license: as the data and the base model allow", "---", ""]

    # The page: what the model is, and how to load it.
    title = f"# {PIPELINE_TAGS[kind].capitalize()} model"
    if base_model:
        title += f" based on {base_model}"
    lines += [title, "", description]
    lines += loading_section("minisbert", "load", kind)
    if in_both:
        lines += loading_section("sentence_transformers", kind, kind)
    text = "\n".join([*lines, "", ""]) + training

    text += LAST_LINE.format(digest(text))
    check_no_link(folder / CARD)
    # Complete or not at all: half a page would not fit its hash, and would count as the user's.
    with atomic_file(folder / CARD) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def keep_own_card(folder: Path, former: Path | None) -> bool:
    """Return whether the user wrote a card, in ``folder`` or in ``former``, and have it there."""
    if is_own(folder / CARD):
        return True
    if former is not None and is_own(former / CARD):
        shutil.copyfile(former / CARD, folder / CARD)
        return True
    return False


def loading_section(package: str, call: str, kind: str) -> list[str]:
    """Return the lines of a card that load the model with a function or class of a package."""
    opening = f'model = {call}("path/to/this/folder")  # or owner/name on the Hub'
    use = ENCODE
    if kind in ("CrossEncoder", "PairModel"):
        use = PREDICT
    return ["", "```python", f"from {package} import {call}", "", opening, use, "```"]


def training_section(
    command: str,
    notes: Sequence[str],
    scores: Mapping[str, tuple[dict, dict]],
    gain: str = "",
) -> str:
    """Return the section of a card that describes a training run.

    ``notes`` are about the data. ``scores`` are, for each split, those before the run and those of
    this model. ``gain`` says what the gain on test is worth.
    """
    lines = ["## Training", "", "```", command, "```", ""]
    lines += [f"- {note}" for note in notes]
    rows = []
    for split, (before, after) in scores.items():
        for name, value in before.items():
            rows.append(f"| {split} {name} | {value:.4f} | {after[name]:.4f} |")
    if rows:
        lines += ["", "| | before | after |", "|---|---|---|", *rows]
    if "dev" in scores:
        lines += ["", "dev chose the step, so its scores are too good."]
    if gain:
        lines += ["", f"Gain x 100: {gain}."]
    return "\n".join([*lines, "", ""])


def digest(text: str) -> str:
    """Hash the part of a card above its last line."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:12]


def is_own(path: Path) -> bool:
    """Return whether there is a card that somebody has written or edited."""
    if not path.is_file():
        return False
    content = path.read_text(encoding="utf-8", errors="replace")
    beginning_of_last_line, _, _ = LAST_LINE.partition("{}")
    text, _, _ = content.rpartition(beginning_of_last_line)
    # A page as it was written is this text and its hash. In an edited one the hash differs, and a
    # page without our last line has no text before it.
    as_written = text + LAST_LINE.format(digest(text))
    return content != as_written


def base_model_of(folder: Path) -> str | None:
    """Return the Hub's name of the model in a folder, or what its card says it was trained from."""
    for asset in assets().values():
        if asset.kind == "weights" and folder == asset.folder:
            return asset.sources[0].get("hub")

    # The cache of huggingface_hub has models--owner--name.
    for part in folder.parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)

    if (folder / CARD).is_file():
        card = (folder / CARD).read_text("utf-8", "replace")
        match = re.search(r"^base_model: (\S+)$", card, re.MULTILINE)
        if match is not None:
            return match[1]
    return None
