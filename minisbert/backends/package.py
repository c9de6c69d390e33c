"""Compile a module to a package, one ``.pt2`` file, and run it.

It is made by ``torch.export`` and AOTInductor. PyTorch's compiler fuses the operations between two
matrix products, and lays the weights out for the CPU once. The file holds native code, weights
included, and loading it runs that code: load only files that you, or somebody you trust, compiled.
A package belongs to one model, dtype, version of torch and kind of CPU; ``About`` says which.
Some hold a second graph of the same model, for few tokens. ``graphs.py`` makes the modules. Imports
the rooms up to ``models``.
"""

import hashlib
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock
from torch import Tensor, nn

from minisbert.checkpoints.layout import (
    EncoderSettings,
    JsonSettings,
    ModelFolder,
    find_model,
    read_folder,
)
from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import InputError, one_line
from minisbert.models.batching import (
    BATCH_TOKENS,
    LONG_TOKENS,
    PackedBatch,
    Tokens,
    packed_batches,
)
from minisbert.models.pair_model import PairScorer
from minisbert.models.properties import check_choice
from minisbert.models.text_encoder import DenseEncoder
from minisbert.system.assets import file_hash, home
from minisbert.system.console import warn
from minisbert.system.devices import (
    choose_dtype,
    cpu_flags,
    instruction_sets,
    mkl_multiplies,
    products_attend,
)
from minisbert.system.few_rows import chosen_layout
from minisbert.system.files import atomic_file, check_owner
from minisbert.system.reading import reading
from minisbert.system.torch_internals import add_graph, graph_names, package_runner

# The oldest torch known to compile our models: 2.6 fails, 2.7 and 2.8 are untested.
OLDEST = "2.9"
RECOMPILE_ADVICE = "compile the model again: minisbert compile"
COMPILERS = ["g++", "clang++"]
if sys.platform == "win32":
    COMPILERS.append("cl")
else:
    COMPILERS.append("c++")
COMPILER_ADVICE = (
    "Debian, Ubuntu: apt install g++; macOS: xcode-select --install; Windows: Visual Studio's "
    "build tools"
)
INDUCTOR = {
    "freezing": True,  # weights are constants
    "cpp.enable_concat_linear": True,  # query, key and value are one product
    "cpp.dynamic_threads": True,  # as many as the process has that runs the package
    # Precompiled headers lie in $TMPDIR/torchinductor_$USER whatever the cache folder is, and
    # anybody on the machine can take that name first and put code into our package. For a single
    # compilation they save no time.
    "aot_inductor.precompile_headers": False,
}
# CPUs that multiply int8 with signed activations, and with unsigned ones; others go number by
# number.
SIGNED = "avx512_vnni"
UNSIGNED = "avx2"
# The name of the graph for few tokens, and the largest number of tokens that it computes. That is
# less than ``MOST_ROWS`` of ``system/few_rows.py``: a package's other graph is fast, too. On a Zen
# 4 held to AVX2 with two threads, the graph for few tokens is 1.5 times as fast with 14 tokens and
# 1.2 times with 28; with one thread, 1.25 and 1.03 times, and slower with more tokens. It was not
# measured on Intel's CPUs.
FEW = "few"
FEW_TOKENS = 32
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # names the folder that the compiler writes to
# The files of a module from which its graph is made.
GRAPH_FILES = ("config.json", "modules.json", "head.json", "*.safetensors*")
CODE_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True)
class About:
    """What a package says about itself."""

    # What ``package_identity`` says of its model.
    kind: str = ""  # SentenceEncoder or PairModel
    dtype: str = ""
    weights: str = ""  # a hash
    minisbert: str = ""  # a hash
    pooling: str = ""
    # Where it was made, and from what.
    model: str = "another model"  # the folder's name
    torch: str = ""
    cpu: list[str] = field(default_factory=list)
    # For an encoder: the columns of a vector, and of a token's hidden state.
    width: int = 0
    hidden_size: int = 0
    # For a PairModel.
    task: str = ""
    labels: list[str] = field(default_factory=list)
    types: bool = False  # the two texts of a row are told apart


def package_identity(folder: ModelFolder, dtype: str, pooling: str | None = None) -> dict[str, str]:
    """Return the package's identity: hashes of the files and of the code that make its graph.

    ``kind`` is PairModel for a folder with a head for pairs, which has no ``pooling``.
    """
    # The tokenizer and the prompts are read from the folder at run time, so they may change without
    # a new package.
    folders = [folder.path]
    for _, place in folder.modules:
        folders.append(folder.path / place)
    paths: set[Path] = set()
    for module_folder in folders:
        for name in GRAPH_FILES:
            paths.update(module_folder.glob(name))
    digest = hashlib.sha256()
    for path in sorted(paths):
        line = f"{path.relative_to(folder.path)} {file_hash(path)}\n"
        digest.update(line.encode(errors="surrogateescape"))

    identity = {"dtype": dtype, "weights": digest.hexdigest(), "minisbert": code_hash()}
    if not folder.holds_pair_model:
        return identity | {"kind": "SentenceEncoder", "pooling": folder.choose_pooling(pooling)}
    if pooling:
        raise InputError(
            f"pooling {pooling}: {folder.path} holds a head for pairs, which chooses what it reads"
        )
    return identity | {"kind": "PairModel"}


def cache_path(expected: dict[str, str]) -> Path:
    """Return the place of a package in the cache folder, for this version of torch and this CPU."""
    # One folder may serve several environments and, on a shared disk, several kinds of CPU.
    parts = [*sorted(expected.items()), torch.__version__, instruction_sets()]
    if has_few_graph(expected["dtype"]):
        parts.append(FEW)  # MINISBERT_LAID_OUT may have been 0 when another one was compiled
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return home() / "compiled" / f"{expected['kind']}-{digest[:16]}.pt2"


def package_dtype(name: str) -> str:
    """Return the dtype of a package; ``InputError`` for one that the CPU has no hardware for."""
    if name != "int8":
        dtype, _ = choose_dtype(name, torch.device("cpu"))
        return str(dtype).removeprefix("torch.")
    if cpu_flags().isdisjoint((SIGNED, UNSIGNED)):
        raise InputError(
            f"int8 needs a CPU with {SIGNED} or {UNSIGNED}; choose float32 or bfloat16"
        )
    return name


def has_few_graph(dtype: str) -> bool:
    """Return whether a package that is compiled here gets a second graph, for few tokens.

    It does where MKL multiplies many rows fastest, and few rows gain by weights that are laid out.
    """
    return dtype == "float32" and mkl_multiplies() and chosen_layout() is not None


@cache
def code_hash() -> str:
    """Hash all code of minisbert: nothing tells which files a graph imports."""
    digest = hashlib.sha256()
    for path in sorted(CODE_FOLDER.rglob("*.py")):
        digest.update(f"{path.relative_to(CODE_FOLDER)} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def check_compiler() -> None:
    """Raise ``InputError`` without a C++ compiler, or with a torch that is too old."""
    if torch.__version__ < OLDEST:  # torch compares its version as a version, not as text
        raise InputError(f"compiling needs torch {OLDEST} or newer, this is {torch.__version__}")
    names = list(COMPILERS)
    if os.environ.get("CXX"):
        names.append(os.environ["CXX"])
    if not any(shutil.which(name) for name in names):
        raise InputError(
            f"compiling needs a C++ compiler, found none ({COMPILER_ADVICE}); loading a package "
            f"needs none"
        )


def compile_package(
    module: nn.Module,
    examples: Sequence[Tensor],
    path: Path,
    about: dict[str, Any],
    prepack: bool = True,
) -> None:
    """Compile ``module`` for inputs like ``examples``, and write it to ``path`` atomically.

    The inputs may have any sizes. Those of the examples, (n, m) each, must differ from 0 and 1,
    which would be compiled as constants. The file contains ``about``, torch's version and the CPU.
    With ``prepack`` oneDNN multiplies, with weights laid out for it; without, MKL does in float32.
    Only the first call of a process can choose. Takes 20 to 90 seconds. Raises ``InputError``
    without a C++ compiler or torch 2.9, or if it fails.
    """
    check_compiler()
    about = about | {"torch": torch.__version__, "cpu": instruction_sets()}
    metadata = {"minisbert": json.dumps(about)}
    settings = INDUCTOR | {"cpp.weight_prepack": prepack, "aot_inductor.metadata": metadata}
    # AUTO: the exporter finds out which sizes are equal. Naming them would fail where a model fixes
    # one.
    auto = torch.export.Dim.AUTO
    sizes = [{0: auto, 1: auto}] * len(examples)
    with atomic_file(path) as partial, compiler_cache() as folder:
        try:
            exported = torch.export.export(module, tuple(examples), dynamic_shapes=sizes)
            package = torch._inductor.aoti_compile_and_package(
                exported,
                package_path=str(folder / "package.pt2"),
                inductor_configs=settings,
            )
        except (RuntimeError, OSError) as error:
            raise InputError(f"compiling {path.name} failed: {compiler_reason(error)}") from error
        shutil.copyfile(package, partial)
        # Nobody else may write to it, whatever the umask: ``check_owner`` refuses such a file.
        partial.chmod(partial.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def compiler_reason(error: Exception) -> str:
    """Return the line of the compiler's output that names the cause: the first with "error".

    Without one it is the first line.
    """
    lines = str(error).splitlines()
    for line in lines:
        if "error" in line.lower():
            return one_line(line.strip())
    if lines:
        return one_line(lines[0].strip())
    return type(error).__name__


@contextmanager
def compiler_cache() -> Iterator[Path]:
    """Let the compiler write to a temporary folder of this user alone, without its warnings.

    Not beside the package: the compiler fails at a path with a space.
    """
    before = os.environ.get(CACHE_VARIABLE)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
            os.environ[CACHE_VARIABLE] = folder
            warnings.simplefilter("ignore")
            yield Path(folder)
    finally:
        os.environ.pop(CACHE_VARIABLE, None)
        if before is not None:
            os.environ[CACHE_VARIABLE] = before


def read_about(path: Path) -> About:
    """Read what a package says about itself, without running it.

    Raises ``InputError`` for another file, and for a damaged one.
    """
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is a folder, a pipe or a device, not a package of minisbert compile"
        )
    with reading(path), zipfile.ZipFile(path) as package:
        # The checksums of all members, before any of its code runs.
        damaged = package.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        content = read_metadata(package)
        if not isinstance(content, dict):
            raise ValueError("not a package of minisbert compile")
    settings = JsonSettings((path, content))
    values = {}
    for item in fields(About):
        if item.name in ("cpu", "labels"):
            values[item.name] = settings.get(item.name, list, [], items=str)
        else:
            values[item.name] = settings.get(item.name, type(item.default), item.default)
    return About(**values)


def read_metadata(package: zipfile.ZipFile) -> Any:
    """Read what ``compile_package`` has written about a package into it; None without it."""
    for name in package.namelist():
        if re.search(r"/data/.*wrapper_metadata\.json$", name):
            # torch's metadata hold strings only: ours is JSON again.
            metadata = json.loads(package.read(name))
            if not isinstance(metadata, dict):
                return None
            return json.loads(str(metadata["minisbert"]))
    return None


def load_package(path: Path, expected: dict[str, str]) -> tuple[Callable, About]:
    """Load a compiled module and what it says about itself. This runs the code in the file.

    Raises ``InputError`` for a file that another user can write. If the package is of another model
    or version of torch than ``expected`` and this process have, or needs a CPU that this one is
    not, the error names the difference.
    """
    about = read_about(path)
    missing = sorted(set(about.cpu) - set(instruction_sets()))
    if missing:
        raise InputError(
            f"{path} was compiled for a CPU with {', '.join(missing)}, which this one lacks: "
            f"{RECOMPILE_ADVICE}"
        )
    for key, value in (expected | {"torch": torch.__version__}).items():
        if getattr(about, key) != value:
            raise other_package(path, about, key, value)
    check_owner(path)
    with reading(path):
        run = package_runner(path)
        if has_few_graph(about.dtype) and FEW in graph_names(path):
            run = chosen_by_tokens(run, package_runner(path, FEW))
        return run, about


def chosen_by_tokens(
    run: Callable[..., Sequence[Tensor]], run_few: Callable[..., Sequence[Tensor]]
) -> Callable[..., Sequence[Tensor]]:
    """Make one function of two graphs: the number of ids, its first input, chooses."""

    def run_either(ids: Tensor, *other_inputs: Tensor) -> Sequence[Tensor]:
        if ids.numel() <= FEW_TOKENS:
            return run_few(ids, *other_inputs)
        return run(ids, *other_inputs)

    return run_either


def other_package(path: Path, about: About, key: str, needed: str) -> InputError:
    """Make the error of a package that was compiled with another value of a field of ``About``."""
    difference = f"{key} {getattr(about, key)}, not {needed}"
    # Two hashes would say nothing.
    if key == "weights":
        difference = "other weights"
    if key == "minisbert":
        difference = "another version of minisbert"
    advice = RECOMPILE_ADVICE
    if key in ("dtype", "pooling"):
        advice += f" --{key} {needed}"
    return InputError(f"{path} was compiled from {about.model} with {difference}: {advice}")


class CompiledEncoder(DenseEncoder):
    """``encode`` and ``similarity`` of a compiled ``SentenceEncoder``."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, folder: ModelFolder, run: Callable, about: About, limit: int | None = None):
        super().__init__()
        self.folder = folder.path
        self.run = run
        # What a package says about itself is not signed: ``embed`` compares it with what comes out.
        self.about = about
        self.compiled_dtype = about.dtype
        self.width = max(about.width, 0)
        self.hidden_size = about.hidden_size
        self.tokenizer = read_tokenizer(folder.encoder, limit)
        self.settings = EncoderSettings.read(folder)
        self.normalize = folder.normalize
        _, self.config = folder.encoder.config
        self.long_tokens = math.inf  # the most tokens of a batch of long rows
        if about.dtype != "float32" and products_attend():
            self.long_tokens = LONG_TOKENS
            # subtle: glibc keeps as much freed memory as the largest block that was ever freed, so
            # one block of 32 MiB is freed here. Otherwise the system zeroes each layer's scores
            # again: long rows take 1.3 times as long
            torch.empty(2**25 - 2**13, dtype=torch.uint8)

    @property
    def pooling_mode(self) -> str:
        return self.about.pooling

    @property
    def most_tokens(self) -> int:
        return self.config.positions

    @classmethod
    def load(
        cls,
        model: str | Path,
        package: str | Path | bool = True,
        *,
        pooling: str | None = None,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
    ) -> Self:
        """Load a package that was compiled from ``model``, a name or a folder.

        ``package`` is its path; True for the one in the cache folder, which is compiled first if it
        is missing; "auto" for that one only if it is there. ``pooling`` and ``dtype`` are those
        that it was compiled for; one at a path may have any dtype, unless ``dtype`` says which. The
        other options are those of ``SentenceEncoder.load``. A package is a program: load only those
        that you trust. Raises ``InputError`` for anything missing, damaged or made from another
        model.
        """
        return cls.from_package(
            read_folder(find_model(model)),
            package,
            pooling=pooling,
            dtype=dtype,
            max_seq_length=max_seq_length,
            truncate_dim=truncate_dim,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            similarity_fn_name=similarity_fn_name,
        )

    @classmethod
    def from_package(
        cls,
        folder: ModelFolder,
        package: str | Path | bool,
        *,
        pooling: str | None = None,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        **settings: Any,
    ) -> Self:
        """Load a package of the model in a folder that has been read, as ``load`` does.

        ``settings`` are the arguments of ``configured``.
        """
        kind = folder.model_class
        if folder.holds_pair_model:
            kind = "PairModel"
        if kind != "SentenceEncoder":
            raise InputError(
                f"{folder.path} holds a {kind}: only a SentenceEncoder is compiled for encoding"
            )
        run, about = open_package(package, folder, dtype, pooling)
        encoder = cls(folder, run, about, max_seq_length)
        return encoder.configured(**settings)

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[torch.dtype]:
        if dtype not in (None, "auto", self.compiled_dtype):
            raise InputError(
                f"this encoder was compiled for dtype {self.compiled_dtype}, not {dtype}"
            )
        with torch.inference_mode():
            yield self.dtype  # which no batch reads: the package has its own

    def batches(self, tokens: Tokens, batch_tokens: int | None = None) -> Iterator[PackedBatch]:
        return packed_batches(tokens, batch_tokens or BATCH_TOKENS, self.long_tokens)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Run the package, which pools and scales, too: vectors (N, W)."""
        # The places of a prompt that is not pooled are left out.
        places = batch.places[:, batch.unpooled :].contiguous()
        vectors = self.run(batch.ids, batch.positions, batch.text_index, places)[0]
        if vectors.shape[1] != self.width:
            raise InputError(
                f"the package gives {vectors.shape[1]} columns and says {self.width}: "
                f"{RECOMPILE_ADVICE}"
            )
        return vectors


class CompiledPairModel(PairScorer):
    """``predict`` and ``rank`` of a compiled cross-encoder."""

    device = torch.device("cpu")
    dtype = torch.float32
    joint = True
    activation_fn = None

    def __init__(self, folder: ModelFolder, run: Callable, about: About, limit: int | None = None):
        self.folder = folder.path
        self.run = run
        self.compiled_dtype = about.dtype
        self.types = about.types
        self.tokenizer = read_tokenizer(folder.encoder, limit)
        self.task = about.task
        self.labels = tuple(about.labels)

    @classmethod
    def load(
        cls,
        model: str | Path,
        package: str | Path | bool = True,
        *,
        dtype: str | None = None,
        max_length: int | None = None,
    ) -> Self:
        """Load a package of a cross-encoder as ``CompiledEncoder.load`` does.

        That is a ``PairModel`` with a joint head, or a CrossEncoder.
        """
        folder = read_folder(find_model(model))
        return cls.from_package(folder, package, dtype=dtype, max_length=max_length)

    @classmethod
    def from_package(
        cls,
        folder: ModelFolder,
        package: str | Path | bool,
        *,
        dtype: str | None = None,
        max_length: int | None = None,
    ) -> Self:
        """Load a package of the model in a folder that has been read, as ``load`` does."""
        if not folder.holds_pair_model:
            raise InputError(
                f"{folder.path} holds an encoder, but no head that was trained on pairs"
            )
        run, about = open_package(package, folder, dtype)
        return cls(folder, run, about, max_length)

    def compute_outputs(
        self, firsts: Sequence[str], seconds: Sequence[str], batch_size: int, progress: bool
    ) -> Tensor:
        return self.outputs_of_rows(firsts, seconds, batch_size, progress)

    def __call__(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> Tensor:
        # The graph has no optional inputs.
        if mask is None:
            mask = torch.ones_like(ids)
        if types is None:
            types = torch.zeros_like(ids)
        return self.run(ids, mask.long(), types)[0]


def open_package(
    package: str | Path | bool, folder: ModelFolder, dtype: str | None, pooling: str | None = None
) -> tuple[Callable, About]:
    """Load the package at a path; for True the one in the cache folder.

    With True, that one is compiled first if it is missing or damaged; with "auto" it is an
    ``InputError`` then.
    """
    check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16", "int8"))
    if package is False:
        raise InputError('package False: give True, "auto" or the path of a compiled model')
    of_any_dtype = dtype in (None, "auto")
    if dtype == "auto":
        dtype = package_dtype(dtype)
    expected = package_identity(folder, dtype or "float32", pooling)
    if package is not True and package != "auto":  # a path
        if of_any_dtype:
            del expected["dtype"]  # whatever that one was compiled for
        # Unlike resolve(), realpath() is no error for a loop of links: reading it says so.
        return load_package(Path(os.path.realpath(package)), expected)
    # Not an error yet: with True, a package that is missing or damaged is compiled now.
    with suppress(InputError):
        return load_package(cache_path(expected), expected)
    if package == "auto":
        raise InputError("no package in the cache folder fits: minisbert compile makes one")
    return load_package(compile_to_cache(folder.path, expected), expected)


def compile_to_cache(folder: Path, expected: dict[str, str]) -> Path:
    """Compile a model to the cache folder, unless its package is there.

    A second process waits for the first one's.
    """
    path = cache_path(expected)
    with reading(f"{path.parent} (set MINISBERT_HOME, or compile with --out FILE.pt2)"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(f"{path}.lock"):
        with suppress(InputError):
            read_about(path)
            return path  # the process that held the lock has made it
        compile_apart(folder, expected["dtype"], expected.get("pooling"), path)
    return path


def compile_apart(folder: Path, dtype: str, pooling: str | None, path: Path) -> None:
    """Compile a model in other processes, one for each graph of the package (``has_few_graph``).

    Compiling takes memory, and nothing in this process can disturb it there. Raises ``InputError``
    with the reason that the other process gave.
    """
    check_compiler()  # here, too: starting the other process takes seconds
    if not has_few_graph(dtype):
        warn(f"compiling {folder.name} in {dtype} for this CPU, 20 to 90 seconds")
        compile_graph(folder, dtype, pooling, path)
        return

    warn(f"compiling {folder.name} in {dtype} for this CPU, two graphs, 40 to 180 seconds")
    # The package's place is opened first: if nothing can be written there, nothing is compiled.
    with atomic_file(path) as partial, tempfile.TemporaryDirectory() as scratch:
        # Both have the package's name, which an error of the compiler contains.
        graph = Path(scratch) / path.name
        few_graph = Path(scratch) / FEW / path.name
        few_graph.parent.mkdir()
        compile_graph(folder, dtype, pooling, graph)
        compile_graph(folder, dtype, pooling, few_graph, for_few_tokens=True)
        add_graph(graph, few_graph, FEW)
        shutil.copy(graph, partial)  # with its mode: nobody else may write to it


def compile_graph(
    folder: Path, dtype: str, pooling: str | None, path: Path, for_few_tokens: bool = False
) -> None:
    """Compile one graph of a model in a process of its own, to the package ``path``.

    A process can compile for one library only.
    """
    arguments = [str(folder.resolve()), dtype, pooling or "", str(path.resolve())]
    if for_few_tokens:
        arguments.append(FEW)
    # -P: without it, -m would import a module called torch from the current folder, which an empty
    # entry of PYTHONPATH names, too.
    command = [sys.executable, "-P", "-m", "minisbert.backends.graphs", *arguments]
    paths = [str(CODE_FOLDER.parent)]
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry:
            paths.append(entry)
    # The folder is new and belongs to this process. The variables are set before the other process
    # imports torch, which reads them once.
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": scratch,
            CACHE_VARIABLE: scratch,
        }
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
        )
    if done.returncode:
        reason = f"compiling {folder.name} ended with exit code {done.returncode}"
        # The last line with "error: ", from its first one on: the compiler's own message may have
        # another.
        for line in done.stderr.splitlines():
            if "error: " in line:
                reason = line.partition("error: ")[2]
        raise InputError(reason)
