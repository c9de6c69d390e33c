"""How equal is every piece to its reference? Prints, for each check, the tensor that comes nearest
to its tolerance.
"""

import argparse

from minisbert.diagnosis.tracing import unfused
from tests.parity.checks import CHECKS


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.parity_report", description=__doc__).parse_args()
    with unfused():  # the formulas as the book has them
        for name, check in CHECKS.items():
            compared = list(check())
            worst = max(compared, key=lambda each: (not each.used <= 1, each.used))  # NaN first
            print(f"{name}: {len(compared)} tensors; {worst}")


if __name__ == "__main__":
    main()
