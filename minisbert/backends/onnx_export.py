"""An encoder as an ONNX file: the whole way from token ids to vectors, for programs without PyTorch.

The graph has the names and the layout of sentence-transformers: ``onnx/model.onnx`` in the model's folder, which opens
there with ``backend="onnx"``. Pooling, dense layers and scaling are inside, so nobody has to write them again.
"""

import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import pad_batch
from minisbert.models.guards import evaluating
from minisbert.models.sentence_encoder import SentenceEncoder

OPSET = 18
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "sentence_embedding")
TEXTS = ("A cat sits.", "An older man with a grey hat plays the guitar in front of a house.", "")  # to compare


class OnnxGraph(nn.Module):
    """Token ids to hidden states and vectors, with padding, as ONNX's users have them."""

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids, mask (1 for real tokens) and token types, (B, T) int64 -> (B, T, D) and (B, W)."""
        mask = attention_mask != 0  # (B, T)
        trace = self.encoder.empty_trace()
        hidden = self.encoder.bert(input_ids, mask, token_type_ids, trace)  # (B, T, D)
        first = trace["layers.0"] if trace else None
        vectors = self.encoder.dense(self.encoder.pool(hidden, mask, first))  # (B, W)
        if self.encoder.normalize:
            vectors = normalize(vectors)
        return hidden, vectors[:, : self.encoder.settings.truncate_dim]


def export_onnx(encoder: SentenceEncoder, path: Path) -> None:
    """Write the graph of an encoder to ``path``, for batches and lengths of any size.

    Raises ``InputError`` for a model that the graph cannot express.
    """
    if not encoder.settings.include_prompt:
        raise InputError("include_prompt false cannot be exported: the graph does not know where a prompt ends")
    ids = torch.ones(2, 5, dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=encoder.tokenizer.limit)}
    graph = OnnxGraph(encoder)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about every package that it does not find
    with evaluating(graph), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (ids, ids.clone(), torch.zeros_like(ids)),
            path,
            input_names=INPUTS,
            output_names=OUTPUTS,
            dynamic_shapes=(sizes, sizes, sizes),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )


def quantize_onnx(path: Path, quantized: Path) -> None:
    """Write a copy with int8 weights, and activations that are quantized as they come (dynamic quantization)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, per_channel=True)


def onnx_vectors(encoder: SentenceEncoder, path: Path, texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    """The vectors (N, W) that ONNX Runtime computes with a file, for texts that our tokenizer encodes."""
    from onnxruntime import InferenceSession

    try:
        session = InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exception classes are private; most often an opset that it lacks
        raise InputError(f"{path}: ONNX Runtime cannot load it: {error}") from None
    encoded = encoder.tokenizer.encode(texts)
    ids, mask = pad_batch(encoded.ids, encoder.tokenizer.pad_id)
    if mask is None:
        mask = torch.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": torch.zeros_like(ids)}
    taken = {each.name for each in session.get_inputs()}
    feed = {name: tensor.numpy() for name, tensor in inputs.items() if name in taken}
    return session.run(["sentence_embedding"], feed)[0]
