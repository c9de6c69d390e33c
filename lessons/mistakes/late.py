"""Mistakes in late interaction: which side seeks, and what is summed up."""

from torch import Tensor

from minisbert.diagnosis.mistakes import mistake
from minisbert.search import by_tokens


@mistake(by_tokens, "max_sim", "sides exchanged", "each token of the document seeks its best in the query")
def _(query: Tensor, document: Tensor) -> Tensor:
    return (query @ document.T).max(dim=0).values.sum()


@mistake(by_tokens, "max_sim", "best matches averaged", "the mean of the best matches, not their sum")
def _(query: Tensor, document: Tensor) -> Tensor:
    return (query @ document.T).max(dim=1).values.mean()


@mistake(by_tokens, "max_sim", "no maximum over tokens", "all pairs of tokens are summed up")
def _(query: Tensor, document: Tensor) -> Tensor:
    return (query @ document.T).sum()


@mistake(by_tokens, "max_sim", "best matches below 0 dropped", "a token without a partner adds nothing")
def _(query: Tensor, document: Tensor) -> Tensor:
    return (query @ document.T).max(dim=1).values.clamp_min(0).sum()
