"""Fixtures that the newer architectures share."""

from tests.architectures.conftest import copy, formulas

__all__ = ["copy", "formulas"]
