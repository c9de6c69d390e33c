"""Private parts of torch, each behind a check, with a fallback."""

import importlib
import shutil
import zipfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minisbert.core import InputError
from minisbert.system.devices import fastest_products

# oneDNN's linear layer, which ``torch.compile`` chooses on a CPU: on AMD's with AVX-512 it is twice
# as fast as torch's own.
ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)

# oneDNN's linear layer of unsigned activations and signed weights. It is vectorised also on a CPU
# without avx512_vnni.
QLINEAR = (
    ONEDNN
    and hasattr(torch.ops.onednn, "qlinear_prepack")
    and hasattr(torch.ops.onednn, "qlinear_pointwise")
)


def prepacked_like(weight: Tensor, sizes: Any) -> Tensor:
    """Return a tensor of the shape that ``qlinear_prepack`` gives a weight: the transposed one."""
    return weight.mT


if QLINEAR:
    # To export a model, torch must know the shape of each result, and does not know that of
    # ``qlinear_prepack``. A later version does, and raises RuntimeError.
    with suppress(RuntimeError):
        torch.library.register_fake("onednn::qlinear_prepack")(prepacked_like)


def products(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (R, D) with the rows of b (C, D): (R, C), in float32 on the CPU.

    b may be ``laid_out``.
    """
    with torch.autocast("cpu", enabled=False):
        if ONEDNN:
            return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return a @ b.mT


def laid_out(matrix: Tensor) -> Tensor:
    """Lay out a float32 matrix (C, D) for oneDNN; without oneDNN it is unchanged.

    Only ``products`` reads the result.
    """
    if ONEDNN:
        return torch.ops.mkldnn._reorder_linear_weight(matrix)
    return matrix


# MKL's linear layer of a packed weight.
MKL_PACKED = (
    torch.backends.mkl.is_available()
    and hasattr(torch.ops.mkl, "_mkl_linear")
    and hasattr(torch.ops.mkl, "_mkl_reorder_linear_weight")
)
# The number of rows that MKL packs a weight for. On Intel's CPUs one for 64 rows serves 3 to 256
# rows two to three times as fast as an unpacked one; one for 2,048 rows is slow with few.
PACKED_ROWS = 64


@dataclass(frozen=True)
class Layout:
    """A library's own order of a weight's numbers, and its linear layer of such weights."""

    name: str
    lay_out: Callable[[Tensor], Tensor]
    # ``multiply(x, copy, weight, bias)``: MKL takes the weight itself for numbers of rows that the
    # copy was not made for
    multiply: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def multiply_by_onednn(x: Tensor, copy: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x (..., D) by the ``laid_out`` copy of a weight (C, D): (..., C)."""
    return torch.ops.mkldnn._linear_pointwise(x, copy, bias, "none", [], "")


def pack_for_mkl(weight: Tensor) -> Tensor:
    """Pack a float32 weight (C, D); only ``multiply_by_mkl`` reads the result."""
    return torch.ops.mkl._mkl_reorder_linear_weight(weight, PACKED_ROWS)


def multiply_by_mkl(x: Tensor, copy: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply x (..., D) by the packed copy of a weight (C, D): (..., C)."""
    # subtle: torch takes the packed weight only if the last argument is the number of rows
    rows = x.numel() // x.shape[-1]
    return torch.ops.mkl._mkl_linear(x, copy, weight, bias, rows)


LAYOUTS: dict[str, Layout] = {}
if ONEDNN:
    LAYOUTS["oneDNN"] = Layout("oneDNN", laid_out, multiply_by_onednn)
if MKL_PACKED:
    LAYOUTS["MKL"] = Layout("MKL", pack_for_mkl, multiply_by_mkl)


class OneDNNLinear(TorchFunctionMode):
    """Route float32 linear layers on the CPU to oneDNN while gradients are disabled."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        # ``nn.Linear`` passes its bias, or None, by position; other calls stay as they are.
        if function is nn.functional.linear and len(arguments) == 3:
            x, weight, bias = arguments
            if onednn_may_multiply(x, weight):
                return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return function(*arguments, **(options or {}))


def onednn_may_multiply(x: Tensor, weight: Tensor) -> bool:
    """Return whether ``OneDNNLinear`` may multiply x (..., D) and weight (C, D)."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    on_cpu = x.device.type == weight.device.type == "cpu"
    return on_cpu and x.dtype == weight.dtype == torch.float32


def fastest_linear() -> AbstractContextManager:
    """Return a context in which linear layers without gradients are oneDNN's where it is faster."""
    library, _ = fastest_products()
    if ONEDNN and library == "oneDNN":
        return OneDNNLinear()
    return nullcontext()


def int8_products(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (R, D) with the rows of b (C, D), both int8 on the CPU: (R, C) int32.

    With avx512_vnni oneDNN does it.
    """
    if hasattr(torch, "_int_mm"):
        return torch._int_mm(a, b.mT)
    return a.int() @ b.mT.int()


def unsigned_products(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Multiply a (R, D) uint8 with the rows of b (C, D) int8, times ``scale`` (C,), on the CPU.

    The result (R, C) is float32. It is exact for b from -64 to 64: AVX2 without VNNI adds pairs of
    products in 16 bits.
    """
    if not QLINEAR:
        return (a.float() @ b.float().mT) * scale
    packed = torch.ops.onednn.qlinear_prepack(b, None)
    offsets = torch.zeros(len(b), dtype=torch.int32)
    # In this order: a with its scale and offset, b with those of each row, no bias, the scale and
    # offset of the result, its dtype, and no function that follows.
    return torch.ops.onednn.qlinear_pointwise(
        a, 1.0, 0, packed, scale, offsets, None, 1.0, 0, torch.float32, "none", [], "none"
    )


# The name that AOTInductor gives to the graph of a package, and the folder of its files in there.
GRAPH = "model"
GRAPH_FOLDER = "/data/aotinductor/"


def package_runner(path: Path, graph: str = GRAPH) -> Callable[..., Sequence[Tensor]]:
    """Load a graph of a package of AOTInductor: a function from its inputs to its outputs.

    The function for users does the same, but imports the whole compiler first, which takes seconds.
    """
    try:
        # In this order: the path, the graph's name in the package, whether all runs are in one
        # thread, how many may run at once, and the index of the device, -1 for the default.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), graph, False, 1, -1)
    except (AttributeError, TypeError):  # another version of torch
        load = importlib.import_module("torch._inductor.package").load_package
        package = load(str(path), graph)

        def run_public(*inputs: Tensor) -> Sequence[Tensor]:
            # The package returns a tensor if that is the only output.
            return torch.utils._pytree.tree_leaves(package(*inputs))

        return run_public

    def run(*inputs: Tensor) -> Sequence[Tensor]:
        # subtle: OpenMP keeps a number of threads for each thread that calls it. In a new thread
        # torch sets it when it is first asked for it, which the package alone would never do.
        torch.get_num_threads()
        return loader.boxed_run(list(inputs))

    return run


def add_graph(package: Path, other: Path, name: str) -> None:
    """Write the graph of the package ``other`` into ``package``, under a name of its own.

    Raises ``InputError`` if ``other`` has none in the folder where torch puts it.
    """
    folder = f"{GRAPH_FOLDER}{GRAPH}/"
    with zipfile.ZipFile(package, "a") as ours, zipfile.ZipFile(other) as theirs:
        members = [member for member in theirs.infolist() if folder in member.filename]
        if not members:
            raise InputError(
                f"torch {torch.__version__} puts a package's graph elsewhere than in {folder}: "
                "compile with MINISBERT_LAID_OUT=0"
            )
        for member in members:
            renamed = zipfile.ZipInfo(member.filename.replace(folder, f"{GRAPH_FOLDER}{name}/"))
            # A member of more than 2 GiB has another form, which is chosen by this size.
            renamed.file_size = member.file_size
            with theirs.open(member) as source, ours.open(renamed, "w") as target:
                shutil.copyfileobj(source, target)


def graph_names(package: Path) -> set[str]:
    """Return the names of the graphs in a package."""
    names = set()
    with zipfile.ZipFile(package) as archive:
        for member in archive.namelist():
            _, separator, rest = member.partition(GRAPH_FOLDER)
            if separator:
                names.add(rest.split("/")[0])
    return names


def ragged_attention(query: Tensor) -> Callable[..., Tensor] | None:
    """Return attention within texts that follow each other in a row, or None.

    It is a function of query, key, value, the texts' edges (N + 1,) int32 and the longest text, to
    (S, H, K), for a query (S, H, K) like this one; S counts the tokens of all texts.

    The kernel is for half precision on a GPU from Ampere on, and for heads whose width is a
    multiple of 8; torch 2.10 has a function for it, older versions the operation behind it.
    """
    if query.dtype not in (torch.bfloat16, torch.float16) or query.device.type != "cuda":
        return None
    if query.shape[-1] % 8:
        return None
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        return None
    try:
        varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except ImportError:
        return ragged_operation

    def ragged_function(
        query: Tensor, key: Tensor, value: Tensor, edges: Tensor, longest: int
    ) -> Tensor:
        return varlen_attn(query, key, value, edges, edges, longest, longest)

    return ragged_function


def ragged_operation(
    query: Tensor, key: Tensor, value: Tensor, edges: Tensor, longest: int
) -> Tensor:
    """Compute the attention of ``ragged_attention`` by the operation of older versions of torch."""
    # The last three: no dropout, each token sees all of its text, and no mask to debug with.
    results = torch.ops.aten._flash_attention_forward(
        query, key, value, edges, edges, longest, longest, 0.0, False, False
    )
    return results[0]
