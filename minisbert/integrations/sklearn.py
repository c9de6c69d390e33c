"""scikit-learn: ``make_pipeline(MinisbertVectorizer(), LogisticRegression())``."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from minisbert.core.checks import check_texts
from minisbert.loading import Encoder, load_dense

load_once = lru_cache(maxsize=2)(load_dense)


class MinisbertVectorizer(TransformerMixin, BaseEstimator):
    """Texts to vectors as a step of a pipeline.

    It holds the model's name or folder, not the model: a clone, a pickle or a worker of ``n_jobs``
    costs nothing, and a process loads each model once. The other options are those of ``load``.
    """

    def __init__(
        self,
        model: str = "all-MiniLM-L6-v2",
        *,
        device: str = "auto",
        truncate_dim: int | None = None,
        max_seq_length: int | None = None,
    ):
        self.model = model
        self.device = device
        self.truncate_dim = truncate_dim
        self.max_seq_length = max_seq_length

    @property
    def encoder(self) -> Encoder:
        """The model, which this process loads once."""
        return load_once(**self.get_params())  # the arguments of __init__

    def fit(self, texts: Sequence[str], y: Any = None) -> "MinisbertVectorizer":
        """Nothing is learned."""
        return self

    def transform(self, texts: Sequence[str]) -> np.ndarray:
        """N texts -> (N, D)."""
        return self.encoder.encode(check_texts(texts))

    def get_feature_names_out(self, names: Any = None) -> np.ndarray:
        """Name the columns: minisbert0, minisbert1, ..."""
        columns = [f"minisbert{column}" for column in range(self.encoder.width)]
        return np.array(columns, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True
