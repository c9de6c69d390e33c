"""Is a model better for a search after training on pairs, and on pairs with mined negatives?

    python -m benchmarks.retrieval                     STS Benchmark, three seeds, about 6 minutes
    python -m benchmarks.retrieval --file wiki_sentences.txt.gz
    python -m benchmarks.retrieval --seeds 1 --out runs/search

STS Benchmark: a pair with a score of 4 or more is a query and a relevant document, of grade 1, and
2 for a score of 5. A file holds sentences in reading order, such as those of Wikipedia articles:
every 5th is a query (of train, every 20th), the next sentence has grade 2, the one after it 1. The
documents are all other sentences of dev and test together; a sentence that is relevant to some
query is never one itself, or it would find itself. Training pairs come from other sentences in the
same way, and their negatives are mined among those. Dev's nDCG@10 chooses the checkpoint, the table
is of test. The commands are those of docs/retrieval.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from minisbert.core import InputError
from minisbert.data.rows import SPLITS, every_text, load_scored_pairs
from minisbert.evaluation.retrieval import REPORTED
from minisbert.system.console import run_command, say

ALIKE = 4.0  # the lowest score of a query and a document that answers it
STRIDE = {"train": 20, "dev": 5, "test": 5}  # sentences of a file from one query to the next
SENTENCES = {"train": 20_000, "dev": 1_500, "test": 1_500}  # of a file
PAIRS = "pairs.jsonl"
MINED = "mined.jsonl"
MINING = ["--relative-margin", "0.05"]
TRAINING = ["--loss", "ranking", "--batch-size", "64", "--epochs", "1", "--lr", "2e-5"]

Scores = dict[str, float]
Grades = dict[str, dict[str, int]]  # query -> document -> grade


def of_stsb(split: str) -> tuple[Grades, list[str]]:
    """The queries of a split with their relevant documents, and all its sentences."""
    pairs = load_scored_pairs("stsb", split)
    alike = [pair for pair in pairs if pair.score >= ALIKE and pair.sentence1 != pair.sentence2]
    relevant = {pair.sentence2 for pair in alike}
    grades: Grades = {}
    for pair in alike:
        if pair.sentence1 not in relevant:
            grades.setdefault(pair.sentence1, {})[pair.sentence2] = int(pair.score) - int(ALIKE) + 1
    texts = []
    for pair in pairs:
        texts += [pair.sentence1, pair.sentence2]
    return grades, texts


def of_sentences(texts: list[str], stride: int) -> tuple[Grades, list[str]]:
    """The same of sentences in reading order, no two of them equal."""
    grades: Grades = {}
    for i in range(0, len(texts) - 2, stride):
        grades[texts[i]] = {texts[i + 1]: 2, texts[i + 2]: 1}
    return grades, texts


def read_splits(file: str | None) -> dict[str, tuple[Grades, list[str]]]:
    if not file:
        return {split: of_stsb(split) for split in SPLITS}
    texts = iter(dict.fromkeys(list(every_text(file))))
    parts = {split: list(islice(texts, count)) for split, count in SENTENCES.items()}
    if len(parts["test"]) < SENTENCES["test"]:
        raise InputError(f"{file}: {sum(SENTENCES.values()):,} different sentences are needed")
    return {split: of_sentences(part, STRIDE[split]) for split, part in parts.items()}


def write_search(folder: Path, splits: dict[str, tuple[Grades, list[str]]]) -> None:
    """Queries and qrels of dev and test, and one corpus, in BEIR's layout."""
    grades: Grades = {}
    texts: list[str] = []
    for split in ("dev", "test"):
        of_split, texts_of_split = splits[split]
        grades |= of_split
        texts += texts_of_split

    # A relevant document is no query: it would find itself.
    relevant = set()
    for found in grades.values():
        relevant.update(found)
    grades = {query: found for query, found in grades.items() if query not in relevant}
    documents = dict.fromkeys(text for text in texts if text not in grades)
    query_ids = {text: f"q{number}" for number, text in enumerate(grades)}
    document_ids = {text: f"d{number}" for number, text in enumerate(documents)}
    (folder / "qrels").mkdir(parents=True)
    write_texts(folder / "queries.jsonl", query_ids)
    write_texts(folder / "corpus.jsonl", document_ids)
    for split in ("dev", "test"):
        queries = [query for query in splits[split][0] if query in grades]
        lines = ["query-id\tcorpus-id\tscore"]
        for query in queries:
            for document, grade in grades[query].items():
                lines.append(f"{query_ids[query]}\t{document_ids[document]}\t{grade}")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        count = f"{len(lines) - 1:,} relevant documents of {len(documents):,}"
        say(f"{split}: {len(queries):,} queries, {count}")


def write_texts(path: Path, ids: dict[str, str]) -> None:
    """Write a line for each text: its id and itself."""
    lines = []
    for text, id_ in ids.items():
        lines.append(json.dumps({"_id": id_, "text": text}, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_pairs(folder: Path, grades: Grades, texts: list[str]) -> None:
    """The training pairs, and the sentences among which negatives are mined."""
    pairs = []
    for query, found in grades.items():
        for document in found:
            pairs.append({"anchor": query, "positive": document})
    documents = list(dict.fromkeys(text for text in texts if text not in grades))
    (folder / PAIRS).write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    (folder / "sentences.txt").write_text(
        "".join(f"{text}\n" for text in documents), encoding="utf-8"
    )
    say(f"train: {len(pairs):,} pairs, {len(documents):,} sentences")


def command(name: str, *arguments: str | Path) -> None:
    """Run one of minisbert's commands; its messages go to stderr."""
    full = [sys.executable, "-m", "minisbert", name, *map(str, arguments)]
    say(f"$ python {' '.join(full[1:])}")
    if subprocess.run(full, stdout=sys.stderr).returncode:
        raise InputError(f"minisbert {name} failed")


def compare(
    folder: Path, file: str | None, model: str, seeds: list[int]
) -> dict[str, list[Scores]]:
    """Test scores by training data, a dict for each seed; ``before`` has one."""
    splits = read_splits(file)
    write_search(folder / "search", splits)
    write_pairs(folder, *splits["train"])
    mining = ["--pairs", folder / PAIRS, "--corpus", folder / "sentences.txt"]
    command("mine", *mining, "--out", folder / MINED, "--model", model, *MINING)
    found: dict[str, list[Scores]] = {"before": [], "pairs": [], "mined negatives": []}
    for seed in seeds:
        for name, file in (("pairs", PAIRS), ("mined negatives", MINED)):
            run = folder / f"{Path(file).stem}-{seed}"
            data = ["--model", model, "--data", folder / file, "--retrieval", folder / "search"]
            command("train", *TRAINING, *data, "--seed", str(seed), "--out", run)
            results = json.loads((run / "results.json").read_text(encoding="utf-8"))
            found[name].append(results["after"]["test"])
            found["before"] = [results["before"]["test"]]
    return found


def show(found: dict[str, list[Scores]]) -> None:
    """Mean and standard deviation over the seeds, x 100."""
    print(f"{'x 100':<18}" + "".join(f"{name:>16}" for name in (*REPORTED, "STS-B")))
    for name, rows in found.items():
        cells = []
        for metric in (*REPORTED, "spearman"):
            values = [100 * row[metric] for row in rows]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        print(f"{name:<18}" + "".join(f"{cell:>16}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--file", help="sentences in reading order, .txt or .txt.gz (default: the STS Benchmark)"
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument("--seeds", default="1,2,3", help="default: %(default)s")
    parser.add_argument(
        "--out", help="keep files and runs in this new folder (default: a temporary one)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with the scores of all runs"
    )
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        found = compare(Path(options.out or temporary), options.file, options.model, seeds)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    run_command(main)
