"""The model card: ``README.md`` in a saved model's folder, which is its page on the Hugging Face
Hub.

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
from minisbert.system.files import naming

CARD = "README.md"
LAST_LINE = (
    "<!-- written by minisbert, {}: saving replaces this page as long as nobody edits it -->\n"
)
# on the Hub, by the class of sentence-transformers; it has none for other heads over pairs
TASKS = {
    "SentenceTransformer": "sentence-similarity",
    "SparseEncoder": "feature-extraction",
    "MultiVectorEncoder": "feature-extraction",
    "CrossEncoder": "text-ranking",
    "PairModel": "text-classification",
}
ENCODE = """vectors = model.encode(["A cat sits.", "A kitten is sitting."])
print(model.similarity(vectors, vectors))"""
PREDICT = 'print(model.predict([("A cat sits.", "A kitten is sitting.")]))'


def write_card(
    folder: Path,
    kind: str,
    about: str,
    base_model: str | None,
    training: str = "",
    former: Path | None = None,
    in_both: bool = True,
) -> None:
    """Write the card of the model in ``folder``, or keep one that the user wrote there or in the
    ``former`` folder.

    ``about`` says what the model computes; ``in_both`` if sentence-transformers opens it too.
    """
    for own in (folder / CARD, (former or folder) / CARD):
        if own.is_file() and not is_generated(own):
            if own.parent != folder:
                shutil.copyfile(own, folder / CARD)
            return
    library = "sentence-transformers" if in_both else "minisbert"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {TASKS[kind]}", "tags:"]
    # SparseEncoder -> sparse-encoder, as sentence-transformers writes it
    tag = (
        re.sub("(?<=[a-z])(?=[A-Z])", "-", kind)
        .lower()
        .replace("sentence-transformer", "sentence-similarity")
    )
    lines += [f"- {tag}" for tag in dict.fromkeys([library, tag, "minisbert"])]
    lines += [f"base_model: {base_model}"] * bool(base_model)
    lines += ["# license: as the data and the base model allow", "---", ""]
    lines += [
        f"# {TASKS[kind].capitalize()} model" + f" based on {base_model}" * bool(base_model),
        "",
        about,
    ]
    ways = [("minisbert", "load")]
    if in_both:
        ways.append(("sentence_transformers", kind))
    for package, call in ways:
        opening = f'model = {call}("path/to/this/folder")  # or owner/name on the Hub'
        calls = PREDICT if kind in ("CrossEncoder", "PairModel") else ENCODE
        lines += ["", "```python", f"from {package} import {call}", "", opening, calls, "```"]
    text = "\n".join([*lines, "", ""]) + training
    with naming(folder / CARD):
        (folder / CARD).write_text(
            text + LAST_LINE.format(digest(text)), encoding="utf-8", errors="backslashreplace"
        )


def training_section(
    command: str,
    notes: Sequence[str],
    scores: Mapping[str, tuple[dict, dict]],
    gain: str = "",
) -> str:
    """Describe a training run: its ``notes`` on the data, the scores before it and those of this
    model by split, and what the gain on test is worth.
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


def is_generated(path: Path) -> bool:
    """Return whether a card is as ``write_card`` wrote it."""
    content = path.read_text(encoding="utf-8", errors="replace")
    text, _, _ = content.rpartition(LAST_LINE[:20])
    return content == text + LAST_LINE.format(digest(text))


def base_model_of(folder: Path) -> str | None:
    """Return the Hub's name of the model in a folder, or what the folder's card says it was trained
    from.
    """
    for asset in assets().values():
        if asset.kind == "weights" and folder == asset.folder:
            return asset.sources[0].get("hub")
    for part in folder.parts:
        if part.startswith("models--"):  # in the cache of huggingface_hub
            return part.removeprefix("models--").replace("--", "/", 1)
    if (folder / CARD).is_file():
        stated = re.search(
            r"^base_model: (\S+)$", (folder / CARD).read_text("utf-8", "replace"), re.MULTILINE
        )
        return stated and stated[1]
    return None
