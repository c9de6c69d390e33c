"""A search to train on that every machine has: names of Python's standard library and the first sentences about them.

    python docs/examples/docstrings.py FOLDER

writes pairs.tsv, a name and its sentence in each row, from six modules of ten, and in BEIR's format a search in the
others. A module is in one split as a whole, so that no test query is a variant of a training row.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the checkout: lessons are in no wheel

from lessons.search.docstrings import read_entries, split_of


def write(folder: Path) -> dict[str, int]:
    """The files; the number of entries of each split."""
    entries = [(split_of(entry.module), entry) for entry in read_entries()]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    pairs = [f"{entry.query}\t{entry.document}\n" for split, entry in entries if split == "train"]
    (folder / "pairs.tsv").write_text("anchor\tpositive\n" + "".join(pairs), encoding="utf-8")
    held_out = [(split, entry) for split, entry in entries if split != "train"]
    for name in ("queries", "corpus"):
        texts = [entry.query if name == "queries" else entry.document for _, entry in held_out]
        rows = [json.dumps({"_id": str(number), "text": text}) + "\n" for number, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    for wanted in ("dev", "test"):
        rows = [f"{number}\t{number}\t1\n" for number, (split, _) in enumerate(held_out) if split == wanted]
        text = "query-id\tcorpus-id\tscore\n" + "".join(rows)
        (folder / "qrels" / f"{wanted}.tsv").write_text(text, encoding="utf-8")
    return {name: sum(split == name for split, _ in entries) for name in ("train", "dev", "test")}


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
