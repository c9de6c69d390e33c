"""While a submission runs, it reads Python's code and nothing else.

A model on disk has a configuration, a vocabulary and weights. Whichever loader opens it, the
package's, the book's or torch's, one of these files is opened by Python, and Python tells its audit
hooks. Nothing of the package is replaced. Native code opens files unseen, so the few names that
lead to such code are refused in the submission's text. It keeps honest people honest: read what
you run.
"""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.core import InputError

CODE = {".py", ".pyc", ".so", ".pyd", ".dll", ".dylib"}
SYSTEM = ("/dev/", "/proc/", "/sys/")  # random numbers, the number of cores
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"}
NETWORK = {"socket.connect", "socket.getaddrinfo"}

# Native code behind these opens a file that the hook does not see.
UNSEEN = {"safetensors", "safe_open", "load_file", "read_safetensors", "from_file", "ctypes"}

closed = False  # True while a submission runs
installed = False  # a hook stays until the process ends, so there is one


def refuse_other_files(event: str, arguments: tuple) -> None:
    """The audit hook: raise ``InputError`` for a file that is no code, a program, the network."""
    if not closed:
        return
    if event == "open":
        refuse_unless_code(arguments[0])
    elif event in PROGRAMS:
        raise InputError("a submission starts no program: its files and seconds could not be seen")
    elif event in NETWORK:
        raise InputError("a submission uses no network: it begins from random weights")


def refuse_unless_code(path: object) -> None:
    if not isinstance(path, str | bytes):
        return  # a file that is open already, by its number
    name = path.decode(errors="replace") if isinstance(path, bytes) else path
    if Path(name).suffix in CODE or name.startswith(SYSTEM):
        return
    raise InputError(
        f"a submission begins from random weights, and reads Python's code alone, not {name}"
    )


@contextmanager
def only_code_is_read() -> Iterator[None]:
    """Refuse to open anything but code, to start programs and to use the network."""
    global closed, installed
    if not installed:
        sys.addaudithook(refuse_other_files)
        installed = True
    closed = True
    try:
        yield
    finally:
        closed = False


def look(path: Path) -> None:
    """Refuse a submission that names what opens files unseen, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Name):
            names = [node.id]
        for name in names:
            refused = UNSEEN & set(name.split("."))
            if refused:
                raise InputError(
                    f"{path}, line {node.lineno}: {refused.pop()} opens files unseen: a submission "
                    "begins from random weights, and reads Python's code alone"
                )
