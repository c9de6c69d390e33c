"""What may be wrong with a file of training data: name, level, meaning and remedy."""

from dataclasses import dataclass, field

from minisbert.core import one_line

PROBLEM, WARNING, NOTE = "problem", "warning", "note"  # cannot be trained on, may spoil the result, harmless
MOST_EXAMPLES = 3  # of a fault

FAULTS = {
    # ---- one file
    "unreadable": (PROBLEM, "the file cannot be read to its end", "mend it as the message says"),
    "refused": (PROBLEM, "rows that training refuses", "correct or delete them"),
    "skipped": (WARNING, "rows with an empty text or without a gold label", "fill or drop them; training skips them"),
    "unread-columns": (NOTE, "columns that training does not read", "choose others with --columns, if they matter"),
    "off-scale": (PROBLEM, "scores off the scale", "correct them, or pass --scale"),
    "other-scale": (WARNING, "the scores are not on the default scale of 0 to 5", "train with --scale, as below"),
    "constant-label": (PROBLEM, "all rows have the same label", "add rows with others, or train on the pairs with mnr"),
    "duplicates": (WARNING, "rows that repeat an earlier one", "drop them: as in-batch negatives they are wrong"),
    "too-long": (WARNING, "texts longer than the model's limit", "split them, or raise --max-length if possible"),
    "too-few": (PROBLEM, "too few rows to hold some out as dev and test", "add rows, or give files for dev and test"),
    # ---- several files
    "other-form": (PROBLEM, "a format that does not fit the first file", "write it in the format named here"),
    "scale-differs": (PROBLEM, "scores on a different scale from the first file's", "convert them to the same scale"),
    "overlap": (WARNING, "rows that are also in another file", "drop them from train, or the score is too high"),
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
        if not line or len(finding.places) == MOST_EXAMPLES:
            return
        place = f"line {line}" if isinstance(line, int) else line
        if text is not None:
            place += f": {one_line(text, 60)}"
        finding.places.append(place)

    @property
    def usable(self) -> bool:
        return all(finding.level != PROBLEM for finding in self.values())
