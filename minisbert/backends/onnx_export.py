"""Export an encoder to ONNX, from token ids to vectors, for programs without PyTorch.

The graph has the names and the layout of sentence-transformers: ``onnx/model.onnx`` in the model's folder, which opens
there with ``backend="onnx"``. Pooling, dense layers and scaling are inside, so nobody has to write them again. Imports
the rooms up to ``models``.
"""

import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.core import encoder as book
from minisbert.core.tokenizer import pad_batch
from minisbert.models.guards import evaluating
from minisbert.models.sentence_encoder import SentenceEncoder

OPSET = 18
ONNX_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
ONNX_OUTPUTS = ("last_hidden_state", "sentence_embedding")
SAMPLE_TEXTS = ("A cat sits.", "An older man with a grey hat plays the guitar in front of a house.", "")  # to compare


class OnnxGraph(nn.Module):
    """Padded token ids to hidden states and vectors."""

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids, mask (1 for real tokens) and token types, (B, T) int64 -> (B, T, D) and (B, W)."""
        mask = attention_mask != 0  # (B, T)
        trace: dict[str, Tensor] | None = {} if self.encoder.pools_more else None
        hidden = self.encoder.bert(input_ids, mask, token_type_ids, trace)  # (B, T, D)
        states, given = hidden, None
        if trace is not None:
            given = self.encoder.given(hidden, mask, trace["layers.0"])
        if {"cls", "weightedmean"} & {*self.encoder.pooling.names}:
            # these count from the left, where another program's tokenizer may have put the pads: they go to the right
            places = torch.arange(mask.shape[1]) + mask.int().argmax(dim=1, keepdim=True)  # (B, T)
            places = torch.where(places < mask.shape[1], places, places - mask.shape[1])  # %, which has no export
            states, mask = hidden.gather(1, places.unsqueeze(-1).expand_as(hidden)), mask.gather(1, places)
        vectors = book.SentenceEncoder.vectors(self.encoder, states, mask, given)  # (B, W)
        return hidden, vectors[:, : self.encoder.settings.truncate_dim]


def export_onnx(encoder: SentenceEncoder, path: Path) -> None:
    """Write the graph of an encoder to ``path``, for batches and lengths of any size.

    Raises ``InputError`` for a model that the graph cannot express.
    """
    if not encoder.settings.include_prompt:
        raise InputError("include_prompt false cannot be exported: the graph does not know where a prompt ends")
    # sizes 0 and 1 would be exported as constants
    ids = torch.ones(2, 5, dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=encoder.tokenizer.limit)}
    graph = OnnxGraph(encoder)
    # it warns about every package that it does not find
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with evaluating(graph), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (ids, ids.clone(), torch.zeros_like(ids)),
            path,
            input_names=ONNX_INPUTS,
            output_names=ONNX_OUTPUTS,
            dynamic_shapes=(sizes, sizes, sizes),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )


def quantize_onnx(path: Path, quantized: Path) -> None:
    """Write a copy with int8 weights; activations are quantized at run time (dynamic quantization)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # per channel: one scale for a whole matrix costs accuracy
    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, per_channel=True)


def onnx_vectors(encoder: SentenceEncoder, path: Path, texts: tuple[str, ...] = SAMPLE_TEXTS) -> np.ndarray:
    """Compute vectors (N, W) by ONNX Runtime with a file, from texts that our tokenizer encodes."""
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
    feed = {}
    for each in session.get_inputs():  # without token types if the model has none
        feed[each.name] = inputs[each.name].numpy()
    return session.run(["sentence_embedding"], feed)[0]
