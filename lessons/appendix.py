"""The appendix of the course: the lines of the book that no lesson steps through.

python -m lessons.appendix

How the files of a folder are read, and what is refused with which message; what a pair of texts
needs; the checks of arguments. Nothing later builds on it.
"""

from lessons.course import chapter
from lessons.parts import APPENDIX

if __name__ == "__main__":
    for name, definitions in APPENDIX.items():
        chapter(name, *definitions)
