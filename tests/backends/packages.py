"""What tests of compiled packages share."""

import os
import shutil
import zipfile
from pathlib import Path

from minisbert.backends.package import COMPILERS

TEXTS = [
    "the cat sits on the mat",
    "a dog",
    "a woman eats an apple",
    "moon",
    "the horse runs fast over snow",
]


def has_compiler() -> bool:
    """Whether there is a C++ compiler, by $CXX or one of the usual names."""
    names = [os.environ.get("CXX", ""), *COMPILERS]
    return any(shutil.which(name) for name in names if name)


COMPILER = has_compiler()


def generated_code(package: Path) -> str:
    """The C++ that the compiler wrote, which a package contains."""
    sources = []
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".cpp"):
                sources.append(archive.read(name).decode())
    return "\n".join(sources)
