"""Devices and dtype: what ``auto`` chooses, what is refused and why; threads and memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minisbert.core import InputError
from minisbert.system import devices
from minisbert.system.devices import (
    bfloat16_hardware,
    choose_device,
    choose_dtype,
    fastest_products,
    move_to,
    use_threads,
)
from tests.conftest import ROOT

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta", "", "hpu", "cpu:-1"])
def test_a_device_that_cannot_be_used_is_an_error(name):
    """For some names torch lists all its backends, which the message leaves out."""
    with pytest.raises(InputError, match=f"device '{name}' cannot be used: .") as error:
        choose_device(name)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_cuda_then_apples_gpu_then_the_cpu(cuda, mps, chosen, monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device: empty(*size))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto") == torch.device(chosen)


class OnApple(torch.nn.Linear):
    """A stand-in for a model that Apple's GPU computes with an error; it remembers its place."""

    def __init__(self, error: float):
        super().__init__(1, 4)
        self.error = error
        self.place = CPU

    def to(self, place):
        self.place = torch.device(place)
        return self

    def forward(self, ids, mask):
        hidden = ids[:, :, None] + 1.0
        if self.place.type == "mps":
            hidden = hidden * (1 + self.error)
        return hidden


@pytest.mark.parametrize(
    ("error", "name", "place"),
    [
        (1e-6, "auto", "mps"),
        (1e-6, "mps", "mps"),
        (0.1, "auto", "cpu"),
        (float("nan"), "auto", "cpu"),
        (0.1, "cpu", "cpu"),
    ],
)
def test_apples_gpu_is_used_only_if_it_computes_what_the_cpu_does(
    error, name, place, monkeypatch, capsys
):
    """Wrong vectors would look like good ones."""
    chosen = {"auto": "mps", "mps": "mps", "cpu": "cpu"}
    monkeypatch.setattr(devices, "choose_device", lambda name: torch.device(chosen[name]))
    model = OnApple(error)
    assert move_to(model, model, name).place == torch.device(place)
    message = capsys.readouterr().err
    assert ("Apple" in message) == (name != "cpu")
    assert ("using the CPU" in message) == (name == "auto" and place == "cpu")


def test_apples_gpu_by_name_with_other_numbers_is_an_error(monkeypatch):
    monkeypatch.setattr(devices, "choose_device", torch.device)
    model = OnApple(0.1)
    with pytest.raises(InputError, match=r"Apple's GPU .* 1e-01 .*: choose device cpu"):
        move_to(model, model, "mps")


# The flags of a CPU, the library that multiplies float32, the dtype that auto chooses, and whether
# bfloat16 may be asked for.
CPUS = [
    ("GenuineIntel avx2 avx512f avx512_bf16 amx_bf16", "BLAS", torch.bfloat16, True),
    ("GenuineIntel avx2 avx512f avx512_bf16", "BLAS", torch.float32, True),
    ("GenuineIntel avx2 avx512f", "BLAS", torch.float32, False),
    ("AuthenticAMD avx2 avx512f avx512_bf16", "oneDNN", torch.bfloat16, True),
    ("AuthenticAMD avx2 avx512f", "oneDNN", torch.float32, False),
    ("AuthenticAMD avx2", "BLAS", torch.float32, False),
    ("asimd bf16", "BLAS", torch.float32, True),  # ARM
    ("bf160", "BLAS", torch.float32, False),
    ("", "BLAS", torch.float32, False),  # cannot be read
]


@pytest.mark.parametrize(("flags", "library", "dtype", "able"), CPUS)
def test_vendor_and_flags_decide_what_multiplies(flags, library, dtype, able, monkeypatch):
    monkeypatch.setattr(devices, "cpu_flags", lambda: set(flags.split()))
    assert fastest_products() == (library, dtype)
    assert choose_dtype("auto", CPU)[0] == dtype
    assert choose_dtype("float32", CPU)[0] == torch.float32
    assert bfloat16_hardware(CPU)[0] == able
    if able:
        assert choose_dtype("bfloat16", CPU)[0] == torch.bfloat16
    else:
        with pytest.raises(InputError, match="bfloat16"):
            choose_dtype("bfloat16", CPU)
    assert devices.instruction_sets()


@pytest.mark.parametrize("name", ["float16", "int8"])
def test_a_dtype_that_no_eager_model_has(name):
    with pytest.raises(InputError, match=name):
        choose_dtype(name, CPU)


def test_flags_are_read_from_linuxs_file(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("vendor_id : AuthenticAMD\nflags : fpu avx2\n")
    monkeypatch.setattr(devices, "CPU_INFO", tmp_path / "cpuinfo")
    assert {"AuthenticAMD", "avx2"} <= devices.cpu_flags.__wrapped__()


def test_a_system_without_that_file_has_no_flags(tmp_path, monkeypatch):
    """Then float32 is used."""
    monkeypatch.setattr(devices, "CPU_INFO", tmp_path / "cpuinfo")
    assert devices.cpu_flags.__wrapped__() == frozenset()


def test_bfloat16_of_an_unknown_device():
    able, _ = bfloat16_hardware(torch.device("mps"))
    assert not able


@pytest.mark.parametrize(("capability", "able"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_has_bfloat16_from_compute_capability_8(monkeypatch, capability, able):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert bfloat16_hardware(torch.device("cuda"))[0] == able


HUGE = """
import re
import torch
import minisbert.train  # all that training imports: a tensor made on the way would be too early
from minisbert.system.devices import save_training_memory
save_training_memory()
gradient = torch.zeros(30_522, 384)
print(re.search(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps_rollup").read())[1])
"""


@pytest.mark.slow
def test_a_large_tensor_gets_huge_pages():
    """There are none if torch read the variable too early. The system may be short of them."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip(f"huge pages are not on request here: see {setting}")
    environment = dict(os.environ)
    environment.pop("THP_MEM_ALLOC_ENABLE", None)
    command = [sys.executable, "-c", HUGE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0  # kB


@pytest.fixture
def two_cores(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")  # so that it is restored
    del os.environ["RAYON_NUM_THREADS"]


@pytest.mark.parametrize(("count", "warned"), [(1, False), (2, False), (3, True)])
def test_threads_are_used_and_more_than_cores_are_named(two_cores, count, warned, capsys):
    use_threads(count)
    assert torch.get_num_threads() == count
    assert os.environ["RAYON_NUM_THREADS"] == str(count)
    assert ("3 threads are slower than 2" in capsys.readouterr().err) == warned


CHOSEN = {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}
LIST = ["-m", "minisbert", "assets", "list"]


# Python imports this at its start: at its end the process prints how its threads wait.
PRINT_AT_EXIT = """
import atexit, json, os, sys

def print_variables():
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    print(json.dumps(variables), file=sys.stderr)

atexit.register(print_variables)
"""


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["-u", *LIST], {}, CHOSEN),
        (LIST, {"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
        (["-mtheirs"], {}, {}),
    ],
)
def test_only_a_command_chooses_how_threads_wait_and_only_if_the_user_did_not(
    arguments, variables, expected, tmp_path
):
    """``theirs`` is another package's command that imports minisbert."""
    (tmp_path / "sitecustomize.py").write_text(PRINT_AT_EXIT)
    (tmp_path / "theirs").mkdir()
    for file in ("__init__", "__main__"):
        (tmp_path / "theirs" / f"{file}.py").write_text("import minisbert\n")
    environment = dict(os.environ)
    for name in ("OMP_WAIT_POLICY", *CHOSEN):
        environment.pop(name, None)
    environment |= variables
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr) == expected


CALLS = """
import sys
import torch
import minisbert

called = []

def recorded(name):
    def function(x, out):
        called.append((name, x.dtype, x.numel()))
    return function

for name in ("erf", "exp", "log", "sqrt", "tanh"):
    setattr(torch, name, recorded(name))
minisbert.load(sys.argv[1], device="cpu")
print(len(set(called)), {size for _, _, size in called})
"""


def test_functions_of_mkl_are_called_by_one_thread_before_a_model_is_computed(tiny):
    """Threads that call one for the first time at once may get one of low precision."""
    command = [sys.executable, "-c", CALLS, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "10 {1}"
