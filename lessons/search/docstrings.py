"""A corpus that every machine has: the docstrings of Python's standard library.

A query is the name of a class, function or method, split into words; its document is the first
sentence of its docstring: ``zip file extract all`` and *Extract all members from the archive to the
current working directory.*
"""

import ast
import re
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SKIPPED = {"test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip"}
SKIPPED |= {"site-packages", "dist-packages"}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Entry(NamedTuple):
    module: str  # of the top level: email, not email.message
    name: str  # zipfile.ZipFile.extractall
    query: str  # zip file extract all
    document: str


def words_of(name: str) -> str:
    """``words_of("HTTPServer.get_request") = "http server get request"``."""
    return " ".join(WORD.findall(name)).lower()


def terms(text: str) -> list[str]:
    """The words of a text for BM25: ``terms("Read a .tar.gz!") = ["read", "a", "tar", "gz"]``."""
    return re.findall(r"[a-z0-9]+", text.lower())


def first_sentence(docstring: str) -> str:
    """The first sentence of the first paragraph, in one line."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


def split_of(module: str) -> str:
    """``train``, ``dev`` or ``test``, by a checksum of the module's name, on every machine."""
    share = zlib.crc32(module.encode()) % 10
    if share < 3:
        return "test"
    return "dev" if share == 3 else "train"


def read_entries(folder: str | Path | None = None) -> list[Entry]:
    """All entries of a folder of Python source; no query and no document twice.

    Documents of fewer than four words are left out, and so are special methods: nobody searches for
    ``__init__``.
    """
    root = Path(folder or sysconfig.get_path("stdlib"))
    found = []
    queries = set()
    documents = set()
    for path in sorted(root.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(root).parts):
            for entry in entries_of(path, root):
                document = tuple(terms(entry.document))
                if len(document) >= 4 and entry.query not in queries and document not in documents:
                    found.append(entry)
                    queries.add(entry.query)
                    documents.add(document)
    return found


def entries_of(path: Path, root: Path) -> Iterator[Entry]:
    """The entries of one file; none if it cannot be parsed, as some tests' files cannot."""
    place = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for outer, node in definitions(tree):
        docstring = ast.get_docstring(node)
        query = words_of(f"{outer}{node.name}")
        if docstring and query and not node.name.startswith("__"):
            name = f"{place}.{outer}{node.name}"
            yield Entry(place.split(".")[0], name, query, first_sentence(docstring))


def definitions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every class, function and method with its class's name, not what is inside of functions."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield outer, node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node, f"{outer}{node.name}.")


def read_sentences(*folders: str | Path) -> list[str]:
    """Every sentence of 4 to 40 words in the docstrings of some folders, each once, in order."""
    found: dict[str, None] = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            if SKIPPED.isdisjoint(path.relative_to(folder).parts):
                for docstring in docstrings_of(path):
                    found |= dict.fromkeys(sentences_of(docstring))
    return list(found)


def docstrings_of(path: Path) -> Iterator[str]:
    """The docstrings of a file: its own, and those of everything in it."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def sentences_of(docstring: str) -> Iterator[str]:
    """Its sentences of 4 to 40 words, without code; one that is mostly signs is no sentence."""
    for paragraph in docstring.split("\n\n"):
        if ">>>" in paragraph or "::" in paragraph or "---" in paragraph:
            continue
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
            words = re.findall(r"[A-Za-z]+", sentence)
            letters = sum(character.isalpha() or character == " " for character in sentence)
            if 4 <= len(words) <= 40 and letters > 0.85 * len(sentence):
                yield sentence


def read_questions(folders: dict[str, str | Path]) -> list[Entry]:
    """Long documents with a question each: docstrings without the first sentence, which asks.

    ``folders`` of Python source by name; the name is the first part of the module, "" for none. No
    question and no beginning of a document twice.
    """
    found = []
    seen: set[str | tuple[str, ...]] = set()
    for name, folder in folders.items():
        for path in sorted(Path(folder).rglob("*.py")):
            place = path.relative_to(folder)
            if not SKIPPED.isdisjoint(place.parts):
                continue
            module = place.with_suffix("").parts[0]
            if name:
                module = f"{name}.{module}"
            for docstring in docstrings_of(path):
                question = first_sentence(docstring)
                document = " ".join(docstring.split())[len(question) :].strip()
                words = terms(document)
                if not 4 <= len(terms(question)) <= 25 or len(words) < 60:
                    continue
                start = tuple(words[:30])
                if question in seen or start in seen:
                    continue
                seen |= {question, start}
                found.append(Entry(module, str(place), question, document))
    return found
