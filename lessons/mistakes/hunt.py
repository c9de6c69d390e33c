"""Which known mistake gives these numbers? Plant each one on our side until both sides agree.

Lessons 07 and 14 look for a mistake in somebody's port this way.
"""

from collections.abc import Callable

from lessons.mistakes import vectors
from lessons.mistakes.planting import MISTAKES, planted
from minisbert.diagnosis.tracing import Stage, first_divergence, unfused


def suspects(
    rows: list[Stage], again: Callable[[], list[Stage]]
) -> tuple[list[str], dict[str, str]]:
    """Plant each mistake that vectors show on our side and compare ``again``.

    Returns the mistakes that make everything equal; and those that remove at least the first
    divergence of ``rows``, each with the first one left. Of the latter, only those whose remaining
    divergence comes last.
    """
    order = [row.name for row in rows]
    first = order.index(first_divergence(rows).name)
    whole: list[str] = []
    part: dict[str, str] = {}
    for mistake in MISTAKES.values():
        if mistake.stand_in.__module__ != vectors.__name__:
            continue
        try:
            # the formulas written out, because a fused operation contains what a mistake replaces
            with unfused(), planted(mistake):
                compared = again()
        except Exception:  # of any kind: a mistake that breaks the code explains no numbers
            continue
        # a mistake that leaves out a tensor (the pooler, say) proves nothing
        if [row.name for row in compared] != order:
            continue
        left = first_divergence(compared)
        if left is None:
            whole.append(mistake.name)
        elif order.index(left.name) > first:
            part[mistake.name] = left.name

    furthest = max(map(order.index, part.values()), default=0)
    return whole, {name: left for name, left in part.items() if order.index(left) == furthest}


def verdict(rows: list[Stage], whole: list[str], part: dict[str, str]) -> str:
    """Say in words what ``suspects`` found."""
    text = f"{first_divergence(rows).name} is the first to differ"
    if not whole and not part:
        return f"{text}, and no known mistake explains it."

    causes = []
    for name in whole or part:
        causes.append(f"{MISTAKES[name].meaning} ({name}, {MISTAKES[name].target})")
    text += f": these are exactly the numbers you get when {', or when '.join(causes)}."
    if not whole:
        left = next(iter(part.values()))
        text += f" But that is not all: with the same mistake on our side {left} still differs."
    return text
