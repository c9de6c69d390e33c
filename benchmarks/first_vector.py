"""How long a new process takes to its first vector, and its peak memory: one script per library.

``encode_speed --what start`` runs them, in float32 unless the name says otherwise. The files are
those of ``conversion.convert``, and minisbert's packages are in the cache folder; converting and
compiling are not counted.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.peers import turns

SENTENCE = "A man is playing a guitar on the stage."
IMPORT = "import torch alone"  # the least that a library on torch takes
START = {
    "minisbert": """
from minisbert.models.sentence_encoder import SentenceEncoder
vector = SentenceEncoder.load("{files}/model").encode([{sentence!r}])
""",
    "minisbert compiled": """
from minisbert.backends.package import CompiledEncoder
vector = CompiledEncoder.load("{files}/model").encode([{sentence!r}])
""",
    "minisbert compiled bfloat16": """
from minisbert.backends.package import CompiledEncoder
vector = CompiledEncoder.load("{files}/model", dtype="bfloat16").encode([{sentence!r}])
""",
    "sentence-transformers": """
import os; os.environ["HF_HUB_OFFLINE"] = "1"
from sentence_transformers import SentenceTransformer
vector = SentenceTransformer("{files}/model", device="cpu").encode([{sentence!r}])
""",
    "onnxruntime": """
import onnxruntime
session = onnxruntime.InferenceSession("{files}/float32.onnx")
states = session.run(None, dict(input_ids=ids, attention_mask=mask, token_type_ids=types))[0]
""",
    "openvino": """
import sys; sys.modules["openvino_telemetry"] = None
import openvino
exact = dict(INFERENCE_PRECISION_HINT="f32")  # it would choose bfloat16
states = openvino.Core().compile_model("{files}/openvino.xml", "CPU", exact)([ids, mask, types])[0]
""",
    "ctranslate2": """
import ctranslate2
encoder = ctranslate2.Encoder("{files}/ctranslate2")
states = np.asarray(encoder.forward_batch(ids.tolist()).last_hidden_state)
""",
    IMPORT: "import torch",
}
OURS = ("minisbert", "minisbert compiled", "minisbert compiled bfloat16")
WHOLE = (*OURS, "sentence-transformers", IMPORT)  # the others get a tokenizer and pooling
TOKENIZE = """
import numpy as np
from tokenizers import Tokenizer
ids = np.array([Tokenizer.from_file("{files}/model/tokenizer.json").encode({sentence!r}).ids])
mask, types = np.ones_like(ids), np.zeros_like(ids)
"""
POOL = "vector = states.mean(axis=1)"
# subtle: not ru_maxrss, which a child process on Linux inherits from its parent
PEAK = """
import re
from pathlib import Path
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def measure(libraries: Sequence[str], files: Path, rounds: int) -> dict:
    """Median seconds of a process that computes one vector, and its median peak memory in MiB."""
    ours = OURS if "bfloat16" in machine.precisions() else OURS[:-1]
    sides = (*ours, *libraries, IMPORT)
    found: dict[str, dict] = {name: {"seconds": [], "mebibytes": []} for name in sides}
    measured = machine.measure()
    for _, name, _ in turns("start", rounds, dict.fromkeys(found)):
        code = START[name] if name in WHOLE else TOKENIZE + START[name] + POOL
        code = code.format(files=files, sentence=SENTENCE) + PEAK
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
        )
        found[name]["seconds"].append(time.perf_counter() - started)
        found[name]["mebibytes"].append(float(done.stdout))
    medians: dict[str, dict[str, float]] = {}
    for name, side in found.items():
        medians[name] = {what: statistics.median(values) for what, values in side.items()}
    return {"machine": measured, "sides": medians}
