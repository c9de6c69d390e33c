"""The only file that uses private parts of torch: oneDNN's linear layers, a module's parts, writes to a tensor.

The linear operations are what ``torch.compile`` chooses for the same layer. Torch may rename them: if they are missing,
or on another device or dtype, the public functions compute the same, less fast. Without copy-on-write tensors
``watch`` watches nothing, and no copies of weights are kept.
"""

import sys
from collections.abc import Collection, Iterable, Sequence
from operator import is_

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import gelu

ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)
COPY_ON_WRITE = hasattr(Tensor, "_lazy_clone") and all(
    hasattr(torch._C, name) for name in ("_is_cow_tensor", "_data_address", "_storage_Use_Count")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor, with_gelu: bool = False) -> Tensor:
    """x W^T + b, and the exact GELU of it if asked: x (..., in), weight (out, in), bias (out,) -> (..., out)."""
    if ONEDNN and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16):
        post, algorithm = ("gelu", "none") if with_gelu else ("none", "")  # "none": not the tanh approximation
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, post, [], algorithm)
    x = nn.functional.linear(x, weight, bias)
    return gelu(x) if with_gelu else x


def laid_out(weight: Tensor) -> Tensor:
    """A matrix (out, in) on the CPU as oneDNN reads it fastest, for ``linear`` only; itself if oneDNN does not run."""
    if ONEDNN and weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16):
        return torch.ops.mkldnn._reorder_linear_weight(weight)
    return weight


# ------------------------------------------------------------------------------------ was it changed?


def has_hooks(module: nn.Module) -> bool:
    """Does somebody listen to this module's forward, or replace it?"""
    own = vars(module)
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own)


def hooks_everywhere() -> bool:
    """Is there a hook for the forward of all modules (``register_module_forward_hook``)?"""
    return any(getattr(nn.modules.module, f"_global_forward_{kind}", None) for kind in ("hooks", "pre_hooks"))


class Parts:
    """A model's modules and parameters at one moment; ``unchanged`` until one is added, removed or replaced, or hooked.

    Every call checks it, so it is made to be quick: no walk through ``model.modules()``.
    """

    def __init__(self, model: nn.Module):
        modules = list(model.modules())
        self.found = [(module, type(module), vars(module), len(vars(module))) for module in modules]
        self.slots = [slots for module in modules for slots in (module._modules, module._parameters)]
        self.names = [name for slots in self.slots for name in (*slots, None)]  # None: the end of a module's
        self.values = [value for slots in self.slots for value in slots.values()]

    def unchanged(self) -> bool:
        for module, kind, own, size in self.found:
            if type(module) is not kind or len(own) != size or has_hooks(module):
                return False
        values = [value for slots in self.slots for value in slots.values()]
        same = len(values) == len(self.values) and all(map(is_, values, self.values))
        return same and not hooks_everywhere() and self.names == [n for slots in self.slots for n in (*slots, None)]


_marks: dict[int, int] = {}  # how often each parameter was marked, by its id: two models may share it


def watch(parameters: Sequence[nn.Parameter], files: Collection[StorageWeakRef] = ()) -> bool:
    """Have torch mark the memory of these parameters: ``memory_state`` shows any later write. Returns success.

    Torch's copy-on-write tensors do it: a tensor and its lazy clone share memory until somebody asks for a pointer to
    write through, by whatever view of the memory, and the mark is gone. The clone is dropped at once, so nothing is
    ever copied. Memory of the ``files`` that the weights were loaded from cannot be marked: it is replaced first.

    False for memory that can be written without torch's knowledge: on other devices, or shared with any other tensor,
    NumPy array or process. During the call nobody may compute with the parameters by oneDNN.
    """
    if not COPY_ON_WRITE or not all(map(is_private, parameters)):
        return False
    with torch.inference_mode(mode=False), torch.no_grad():
        for parameter in parameters:
            if StorageWeakRef(parameter.untyped_storage()) in files:
                parameter.data = parameter.detach().clone()
            if not torch._C._is_cow_tensor(parameter):
                _marks[id(parameter)] = _marks.get(id(parameter), 0) + 1
            try:
                parameter.detach()._lazy_clone()
            except RuntimeError:  # the memory is a NumPy array's, or another library's
                unwatch(parameters)
                return False
    return all(map(is_private, parameters))  # another thread may have begun to write through a view


def unwatch(parameters: Sequence[nn.Parameter]) -> None:
    """Remove the marks. oneDNN would, when it reads, but two threads must not remove a mark at the same time."""
    for parameter in parameters:
        if COPY_ON_WRITE and torch._C._is_cow_tensor(parameter):
            parameter.data_ptr()


def is_private(parameter: nn.Parameter) -> bool:
    """Is the memory of a parameter on the CPU its own, without another tensor or array that reads or writes it?"""
    if type(parameter) is not nn.Parameter or parameter.device.type != "cpu" or parameter.is_inference():
        return False
    return not parameter.is_shared() and holders(parameter) == holders(torch.empty(1))


def holders(tensor: Tensor) -> tuple[int, int]:
    """How many tensors have this memory, and how many Python names its storage object has."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def memory_state(parameters: Sequence[nn.Parameter]) -> list[tuple]:
    """What shows that parameters have been written to since ``watch``, or given other memory, when it differs.

    The version, too: another thread's operation in place, begun before ``watch``, counts it up when it is done.
    """
    marked, address, times = torch._C._is_cow_tensor, torch._C._data_address, _marks.get
    return [
        (marked(p), address(p), times(id(p)), p.is_inference() or p._version, p.shape, p.stride()) for p in parameters
    ]


def storages(parameters: Iterable[nn.Parameter]) -> set[StorageWeakRef]:
    """The memory of parameters, to be recognised later without keeping it."""
    return {StorageWeakRef(parameter.untyped_storage()) for parameter in parameters}
