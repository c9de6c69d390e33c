"""Mistakes in the sheets' pieces: limits, leaderboards, prompts, passages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessons.by_hand import leaderboard, limits, prompts
from lessons.mistakes.calls import calls
from lessons.search import passages

# ------------------------------------------------------------------------ a query for two documents


def query_with(
    a: Tensor, b: Tensor, *, sign: float = -1.0, half: float = 2.0, scaled: bool = True
) -> Tensor:
    columns = [a.cos() + b.cos(), a.sin() + b.sin()]
    columns += [sign * (a + b).cos() / half, sign * (a + b).sin() / half]
    query = torch.stack(columns, dim=1)
    return query / query.norm(dim=1, keepdim=True) if scaled else query


asked = calls(limits, "query_for_two", query_with)
asked("signs of the second circle", "the columns of 2t are added where they are taken away", sign=1)
asked(
    "second circle not halved", "the columns of 2t are twice as large as they should be", half=1.0
)
asked("query not of length 1", "the query is not scaled to length 1", scaled=False)

# ------------------------------------------------------------------------------------ leaderboards


def by_type_with(
    scores: Any, types: Sequence[str], *, weighted: bool = False, total: bool = False
) -> np.ndarray:
    """All tasks count alike if ``weighted``; the types are added if ``total``."""
    scores = np.asarray(scores, dtype=np.float64)
    if weighted:
        return scores.mean(axis=1)
    names = list(dict.fromkeys(types))
    means = []
    for name in names:
        of_type = np.array(types) == name
        means.append(scores[:, of_type].mean(axis=1))
    return np.sum(means, axis=0) / (1 if total else len(names))


typed = calls(leaderboard, "mean_by_type", by_type_with)
typed("mean by task", "all tasks count alike: the type with the most tasks decides", weighted=True)
typed(
    "types added", "the means of the types are added, and not divided by their number", total=True
)


def borda_with(scores: Any, *, sign: int = 1, ties: int = 0, mean: bool = False) -> np.ndarray:
    """``ties`` points for an equal score; the ``mean`` over the tasks in place of the sum."""
    scores = sign * np.asarray(scores, dtype=np.float64)
    points = (scores[:, None] > scores[None]).sum(axis=(1, 2))
    equal = (scores[:, None] == scores[None]).sum(axis=(1, 2)) - scores.shape[1]  # not with itself
    points = points + ties * equal
    if mean:
        points = points // scores.shape[1]
    return points


counted = calls(leaderboard, "borda_counts", borda_with)
counted("models above counted", "the models that are ahead are counted, not those behind", sign=-1)
counted("a point for equal scores", "equal scores give both models a point", ties=1)
counted("Borda divided by tasks", "the points are divided by the number of tasks", mean=True)

# --------------------------------------------------------------------------------- after the prompt


def after_with(
    hidden: Tensor,
    mask: Tensor,
    prompt_tokens: int,
    *,
    shift: int = 0,
    divisor: str = "own",
    pads: bool = False,
) -> Tensor:
    """``shift`` more tokens are left out; the sum is divided by the "own" tokens or by "all"."""
    real = mask.bool()
    own = torch.ones_like(real) if pads else real.clone()
    own[:, : max(0, prompt_tokens + shift)] = False
    counts = {"own": own.sum(1), "all": real.sum(1)}
    return hidden.masked_fill(~own[..., None], 0).sum(1) / counts[divisor][:, None]


own_tokens = calls(prompts, "mean_after_prompt", after_with)
own_tokens("prompt left in", "the prompt's tokens are in the mean", prompt_tokens=lambda _: 0)
own_tokens(
    "one token of the prompt left in", "the last token of the prompt is in the mean", shift=-1
)
own_tokens("one token too many left out", "the text's first token is left out as well", shift=1)
own_tokens(
    "prompt's tokens in the divisor",
    "the sum is divided by the number of all real tokens, the prompt's too",
    divisor="all",
)
own_tokens("pads in the mean after a prompt", "pads are in the mean", pads=True)

# ------------------------------------------------------------------------------------- the budget


def budget_with(
    holds: Any, tokens: Any, budget: float, *, skips: bool = False, strict: bool = False
) -> np.ndarray:
    """A passage that does not fit is left out and the next one tried, if ``skips``."""
    holds = np.asarray(holds, dtype=bool)
    tokens = np.asarray(tokens)
    found = np.zeros(len(holds))
    for q in range(len(holds)):
        used = 0
        for held, length in zip(holds[q], tokens[q], strict=True):
            too_long = used + length >= budget if strict else used + length > budget
            if too_long and not skips:
                break
            if not too_long:
                used += length
                found[q] = max(found[q], float(held))
    return found


kept = calls(passages, "recall_in_budget", budget_with)
kept(
    "a long passage skipped", "what does not fit is skipped, and a later passage taken", skips=True
)
kept("a full budget refused", "passages that fill the budget exactly do not fit", strict=True)
kept("no budget", "every passage is in the prompt", budget=lambda _: float("inf"))
