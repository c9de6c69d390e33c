"""The peers of the encoding benchmarks: sentence-transformers and ONNX Runtime over the same weights.

Each is a function from texts to vectors (N, D). Both are used as recommended: texts sorted by length, the fastest of a
few batch sizes, as many threads as torch. ONNX Runtime computes the graph that its own tools make of Hugging Face's
model: exported by ``torch.onnx``, fused by ``onnxruntime.transformers``, and for int8 quantized by
``quantize_dynamic``. Needs the ``reference`` extra.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

Encode = Callable[[Sequence[str]], np.ndarray]
BATCH_SIZES = (8, 16, 32, 64, 128)


def sentence_transformers(model: Path, precision: str, batch_size: int = 32) -> Encode:
    """``SentenceTransformer.encode``; ``bfloat16`` is set by ``model_kwargs``, as documented."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer

    kwargs = {"dtype": torch.bfloat16} if precision == "bfloat16" else {}
    peer = SentenceTransformer(str(model), device="cpu", model_kwargs=kwargs)

    def encode(texts: Sequence[str]) -> np.ndarray:
        vectors = peer.encode(list(texts), batch_size=batch_size, convert_to_tensor=True)
        return vectors.float().numpy()  # numpy has no bfloat16

    return encode


def export(model: Path, folder: Path) -> dict[str, Path]:
    """ONNX files of a BERT folder: ``float32`` and dynamic ``int8``, operators fused."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    wrapped = States()
    config = wrapped.model.config
    files = {name: folder / f"{name}.onnx" for name in ("plain", "float32", "int8")}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = torch.ones(2, 8, dtype=torch.int64)
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, "states"]}
    torch.onnx.export(
        wrapped,
        (example,) * 3,
        files["plain"],
        input_names=names,
        output_names=["states"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,  # the fusions know the graphs of this exporter
    )
    fused = optimize_model(
        str(files["plain"]), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1
    )
    fused.save_model_to_file(str(files["float32"]))
    untyped = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # for outputs of fused operators, which have no type
    quantize_dynamic(files["float32"], files["int8"], weight_type=QuantType.QInt8, extra_options=untyped)
    return {"float32": files["float32"], "int8": files["int8"]}


def onnxruntime(file: Path, tokenizer_folder: Path, batch_size: int = 32, limit: int = 256) -> Encode:
    """Token ids sorted by length, padded to the longest of the batch; mean over real tokens, length 1."""
    import onnxruntime as ort
    from tokenizers import Tokenizer

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    tokenizer.enable_truncation(limit)
    tokenizer.no_padding()

    def encode(texts: Sequence[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        vectors = None
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            longest = len(ids[rows[0]])
            batch = np.array([ids[row] + [0] * (longest - len(ids[row])) for row in rows])  # (B, T)
            mask = (np.arange(longest) < np.array([[len(ids[row])] for row in rows])).astype(np.int64)
            feed = {"input_ids": batch, "attention_mask": mask, "token_type_ids": np.zeros_like(batch)}
            states = session.run(None, feed)[0]  # (B, T, D)
            pooled = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)  # (B, D)
            if vectors is None:
                vectors = np.empty((len(ids), pooled.shape[1]), np.float32)
            vectors[rows] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors

    return encode


def best_batch_size(make: Callable[[int], Encode], texts: Sequence[str]) -> int:
    """The one of ``BATCH_SIZES`` that encodes these texts fastest, by the better of two runs each."""

    def seconds(batch_size: int) -> float:
        encode, times = make(batch_size), []
        for _ in range(2):
            started = time.perf_counter()
            encode(texts)
            times.append(time.perf_counter() - started)
        return min(times)

    return min(BATCH_SIZES, key=seconds)
