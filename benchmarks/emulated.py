"""Run a benchmark as on a CPU with AVX2 and nothing beyond it, as most laptops have.

    python -m benchmarks.emulated benchmarks.encode_speed --what rates --texts stsb long \\
        --peers ctranslate2
    python -m benchmarks.emulated benchmarks.encode_speed --what latency --texts-a-call 1 4 16 \\
        --peers ctranslate2

torch, MKL, oneDNN and CTranslate2 are kept from AVX-512, VNNI and AMX by their own variables,
torch's compiler by its vector length, and minisbert's own choices by a list of instruction sets
without them. ONNX Runtime and OpenVINO have no such variable: their figures would be those of this
CPU. One thread, unless ``OMP_NUM_THREADS`` says otherwise. The clock, the caches and the memory are
this CPU's: ratios tell more than times.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from minisbert.core import InputError
from minisbert.system.console import run_command
from minisbert.system.devices import CPU_INFO

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
# what Python runs before anything else in each process, those of packages that are compiled, too
START = """\
import sys
from pathlib import Path
from minisbert.system import devices
devices.CPU_INFO = Path({info!r})
if "minisbert.backends.graphs" in sys.orig_argv:
    from torch._inductor import config
    config.cpp.simdlen = 256
"""


def kept_from(flags: str) -> str:
    """Leave out of a CPU's flags what came after AVX2."""
    return re.sub(r"\b(avx512\w*|avx_\w+|avx10\w*|amx\w*)\b ?", "", flags)


def main(arguments: list[str] | None = None) -> None:
    module, *more = sys.argv[1:] if arguments is None else arguments or [""]
    if module in ("", "-h", "--help"):
        print(__doc__)
        return
    if not CPU_INFO.exists() or "avx2" not in CPU_INFO.read_text(encoding="utf-8"):
        raise InputError("AVX2 is emulated on Linux, on a CPU that has it")
    with tempfile.TemporaryDirectory() as place:
        info = Path(place) / "cpuinfo"
        info.write_text(kept_from(CPU_INFO.read_text(encoding="utf-8")), encoding="utf-8")
        (Path(place) / "sitecustomize.py").write_text(
            START.format(info=str(info)), encoding="utf-8"
        )
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | VARIABLES
        environment["PYTHONPATH"] = f"{place}{os.pathsep}{os.getcwd()}"
        done = subprocess.run([sys.executable, "-m", module, *more], env=environment)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    run_command(main)
