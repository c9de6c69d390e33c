"""How equal is every piece to its reference?

Prints, for each check, the tensor that comes nearest to its tolerance.
"""

import argparse
import math

from minisbert.diagnosis.tracing import unfused
from tests.parity import Comparison
from tests.parity.checks import CHECKS


def share(result: Comparison) -> float:
    """The share of the tolerance that is used, where NaN counts as more than any number."""
    return math.inf if math.isnan(result.used) else result.used


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.parity_report", description=__doc__).parse_args()
    with unfused():  # the formulas as the book has them
        for name, check in CHECKS.items():
            results = list(check())
            print(f"{name}: {len(results)} tensors; {max(results, key=share)}")


if __name__ == "__main__":
    main()
