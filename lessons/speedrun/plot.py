"""Draw the records of ``lessons/SPEEDRUN.md``'s old table: ``python -m lessons.speedrun.plot`` writes records.svg."""

import math
import re
from itertools import pairwise
from pathlib import Path

from lessons.drawings.pen import Pen
from minisbert.system.console import run_command

PAGE = Path(__file__).parents[1] / "SPEEDRUN.md"
ROW = re.compile(r"^\| (\d{4}-\d\d-\d\d) \| .+ \| (\w+) \| ([\d.]+) ± ([\d.]+) \| (\d+) \|$", re.MULTILINE)
LEFT, RIGHT, TOP, BOTTOM = 60, 500, 30, 270  # the frame, in the drawing's units
LOW, HIGH, SECONDS = 70, 80, 1000  # STS-B dev from below to above, CPU seconds from 1 to the right


def records() -> list[tuple[str, float, float, int]]:
    """Submission, score, standard deviation and CPU seconds of each record, in the table's order."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return [(name, float(score), float(spread), int(seconds)) for _, name, score, spread, seconds in rows]


def place(score: float, seconds: float) -> tuple[float, float]:
    """Where a record is drawn: seconds on a logarithmic axis."""
    across = math.log(max(seconds, 1)) / math.log(SECONDS)
    up = (score - LOW) / (HIGH - LOW)
    return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def draw() -> str:
    """The SVG: a dot for each record, its seeds' spread as a line, and steps from one record to the next."""
    found = records()
    told = ", then ".join(f"{name} with {score} in {seconds} CPU seconds" for name, score, _, seconds in found)
    pen = Pen(520, 320, "The speedrun's records by CPU seconds and score", f"Each record beats the last: {told}.")
    pen.line((LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM))
    for seconds in (1, 10, 100, 1000):
        pen.text(place(LOW, seconds)[0], BOTTOM + 20, f"{seconds:,}", "small soft")
    pen.text((LEFT + RIGHT) / 2, BOTTOM + 42, "CPU seconds of the slowest seed", "soft")
    for score in range(LOW, HIGH + 1, 2):
        pen.text(LEFT - 10, place(score, 1)[1] + 5, str(score), "small soft", "end")
    pen.text(LEFT - 40, TOP - 10, "STS-B dev", "soft", "start")
    for one, other in pairwise(found):
        start, end = place(one[1], one[3]), place(other[1], other[3])
        # the arrow ends at the rim of the dot, not in its middle
        share = 1 - 6 / math.dist(start, end)
        pen.arrow(start, (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])))
    for name, score, spread, seconds in found:
        x, y = place(score, seconds)
        pen.line((x, place(score - spread, seconds)[1]), (x, place(score + spread, seconds)[1]), look="force")
        pen.dot(x, y, 5, look="lit")
        pen.text(x + 10, y + 18, name, "small", "start" if x < RIGHT - 100 else "end")
    return pen.svg()


def main() -> None:
    Path(__file__).with_name("records.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
