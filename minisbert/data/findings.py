"""Faults of a file of training data: name, level, meaning and remedy."""

from dataclasses import dataclass, field

from minisbert.core import one_line

PROBLEM, WARNING, NOTE = "problem", "warning", "note"  # cannot be trained on, may spoil the result, harmless
MOST_EXAMPLES = 3  # of a fault

FAULTS = {
    # ---- bytes and lines
    "damaged": (PROBLEM, "the file cannot be read to its end", "copy or compress it again"),
    "not-utf8": (PROBLEM, "bytes that are not UTF-8", "convert it: iconv -f LATIN1 -t UTF-8 (or -f UTF-16)"),
    "nul-bytes": (WARNING, "NUL bytes, as in UTF-16 or a damaged copy", "remove them: tr -d '\\000'"),
    "byte-order-mark": (NOTE, "a byte order mark before the first line", "nothing: it is skipped"),
    "crlf": (NOTE, "lines end in CRLF, as on Windows", "nothing: the carriage return is dropped"),
    # ---- columns and keys
    "wrong-delimiter": (PROBLEM, "an unsupported delimiter", "write tabs or commas between the columns"),
    "stray-quotes": (PROBLEM, "a stray quotation mark", 'double it ("") or write a .tsv'),
    "quoted-tabs": (WARNING, "quotation marks around a cell, which a .tsv keeps as text", "write it without quoting"),
    "ragged": (PROBLEM, "a different number of columns", "give each row the same columns; quote commas in texts"),
    "one-column": (WARNING, "a table of one column: no pairs, no labels", "for simcse write a .txt; else add a column"),
    "one-text": (PROBLEM, "a label and a single text", "all objectives with labels need two texts"),
    "column-order": (PROBLEM, "columns in the wrong order", "write label, sentence1, sentence2"),
    "nli-table": (PROBLEM, "NLI labels in a table", "write .jsonl with gold_label, sentence1, sentence2"),
    "index-column": (PROBLEM, "a column of running numbers, as pandas writes it", "drop it: to_csv(..., index=False)"),
    "unknown-header": (PROBLEM, "unknown column names in the header", "rename the columns, or delete the line"),
    "header-inside": (PROBLEM, "a repeated header, as after cat a.csv b.csv", "delete the line"),
    "not-json": (PROBLEM, "a line that is not JSON", "write one object per line, not one list over all lines"),
    "json-form": (PROBLEM, "labels or sentences in JSON", "write a .tsv of label, sentence1, sentence2, or a .txt"),
    "missing-key": (PROBLEM, "a missing key, or a value that is not a string", "give every object the same keys"),
    "number-texts": (PROBLEM, "numbers in the first text column, as of scores or labels", "name or drop that column"),
    "no-rows": (PROBLEM, "no row can be read", "see the findings about its lines"),
    # ---- labels
    "label-unreadable": (PROBLEM, "a label that cannot be read", "write a number, or for NLI one of the three words"),
    "label-off-scale": (PROBLEM, "labels off the scale", "correct them, or pass --scale"),
    "other-scale": (WARNING, "the labels are not on the default scale of 0 to 5", "train with --scale, as below"),
    "constant-label": (PROBLEM, "all rows have the same label", "add rows with others, or train on the pairs with mnr"),
    "imbalance": (WARNING, "one label is rare", "add rows with it, or weigh it (--pos-weight with binary)"),
    "no-gold-label": (NOTE, "rows without a gold label", "nothing: they are skipped"),
    "contradictions": (WARNING, "the same two texts, in any order, with different labels", "correct one or drop both"),
    "identical-low": (WARNING, "two identical texts with a low label", "correct the label or drop the row"),
    # ---- texts
    "empty-text": (WARNING, "empty texts", "fill them or drop the rows; they are skipped, or refused as scored pairs"),
    "short-text": (WARNING, "texts of fewer than two letters or digits", "check whether a column was cut off"),
    "html": (WARNING, "remains of HTML", "strip the tags and unescape: html.unescape"),
    "mojibake": (WARNING, "UTF-8 decoded as Latin-1, or lost characters", "export it again, or use ftfy"),
    "surrogate": (PROBLEM, "an incomplete character (a lone surrogate)", "export it again as UTF-8"),
    "duplicates": (WARNING, "rows that repeat an earlier one", "drop them: as in-batch negatives they are wrong"),
    "whitespace-twins": (WARNING, "rows that differ from another only in white space", "collapse it, drop them"),
    "same-negative": (WARNING, "a negative equal to the anchor or the positive", "drop the row or the negative"),
    "same-positive": (WARNING, "a positive equal to its anchor", "drop the row: there is nothing to learn from it"),
    "too-long": (WARNING, "texts longer than the model's limit", "split them, or raise --max-length if possible"),
    "unknown-script": (WARNING, "words of a script unknown to the model ([UNK])", "use a multilingual model: --model"),
    "too-few": (PROBLEM, "too few rows to hold some out as dev and test", "add rows, or give files for dev and test"),
    # ---- several files
    "other-form": (PROBLEM, "a format that does not fit the first file", "write it in the format named here"),
    "scale-differs": (PROBLEM, "labels on a different scale from the first file's", "convert them to the same scale"),
    "overlap": (WARNING, "rows that are also in another file", "drop them from train, or the score is too high"),
    "overlap-normalised": (WARNING, "the same apart from case, white space and punctuation", "drop them from train"),
}


@dataclass
class Finding:
    """The number of times that a fault occurs, and the first places."""

    name: str
    level: str
    what: str
    remedy: str
    count: int = 0
    places: list[str] = field(default_factory=list)


class Findings(dict[str, Finding]):
    """The faults of one file by name."""

    def add(self, name: str, line: int | str = "", text: object = None, *, level: str = "", count: int = 1) -> None:
        """Count a fault; ``line`` is a line number or a place in words, ``text`` is quoted, ``level`` overrides."""
        given, what, remedy = FAULTS[name]
        finding = self.setdefault(name, Finding(name, level or given, what, remedy))
        finding.count += count
        if line and len(finding.places) < MOST_EXAMPLES:
            place = f"line {line}" if isinstance(line, int) else line
            finding.places.append(place if text is None else f"{place}: {one_line(text, 60)}")

    @property
    def usable(self) -> bool:
        return all(finding.level != PROBLEM for finding in self.values())
