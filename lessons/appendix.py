"""The appendix of the course: the lines of the book that no lesson steps through.

How the files of a folder are read, and what is refused with which message; what a pair of texts
needs; the checks of arguments. Nothing later builds on it.

    python -m lessons.appendix
"""

import argparse

from lessons.course import chapter
from lessons.parts import APPENDIX


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lessons.appendix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    for name, definitions in APPENDIX.items():
        chapter(name, *definitions)


if __name__ == "__main__":
    main()
