"""What a prompt holds of the passages that a search has ranked (sheet 34)."""

import numpy as np
from numpy.typing import ArrayLike


def recall_in_budget(holds: ArrayLike, tokens: ArrayLike, budget: float) -> np.ndarray:
    """Whether a question's answer stands in its prompt: (Q, N), (Q, N) -> (Q,) of 1 and 0, float64.

    holds[q, r] is true if the passage at rank r holds question q's answer, and tokens[q, r] is its
    length. Passages are taken from the best on while all of them together fit ``budget`` tokens:
    the first that does not fit ends the prompt. ``recall_in_budget([[False, True]], [[60, 50]],
    100)`` is ``[0]``: 60 and 50 are 110.
    """
    fits = np.cumsum(tokens, axis=1) <= budget  # (Q, N)
    return (np.asarray(holds, dtype=bool) & fits).any(axis=1).astype(np.float64)
