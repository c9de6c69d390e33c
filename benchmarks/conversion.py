"""One model's weights in the formats of the libraries it is compared with, without network.

onnxruntime            exported by ``torch.onnx``, fused by ``onnxruntime.transformers``; int8 by
                       ``quantize_dynamic``
openvino               the same export, unfused, as OpenVINO's own files: it fuses when it loads
                       them
ctranslate2            ``TransformersConverter``
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from minisbert.system.console import say


def convert(model: Path, files: Path, libraries: Sequence[str]) -> None:
    """Write the files that the libraries load, and a link ``model`` to the original."""
    (files / "model").symlink_to(model.resolve())
    if {"onnxruntime", "openvino"} & set(libraries):
        say("converting: ONNX")
        heads, width = export_onnx(model, files / "plain.onnx")
    if "onnxruntime" in libraries:
        fuse_onnx(files, heads, width)
    if "openvino" in libraries:
        say("converting: OpenVINO")
        import openvino as ov

        ov.save_model(
            ov.Core().read_model(files / "plain.onnx"),
            files / "openvino.xml",
            compress_to_fp16=False,
        )
    if "ctranslate2" in libraries:
        say("converting: CTranslate2")
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(model)).convert(str(files / "ctranslate2"))


def export_onnx(model: Path, file: Path) -> tuple[int, int]:
    """Write Hugging Face's graph, from ids (B, T) to hidden states (B, T, D); return H and D."""
    from transformers import AutoModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor
        ) -> torch.Tensor:
            return self.model(
                input_ids=ids, attention_mask=mask, token_type_ids=types
            ).last_hidden_state

    wrapped = Hidden()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        wrapped,
        (torch.ones(2, 8, dtype=torch.int64),) * 3,
        file,
        input_names=names,
        output_names=["states"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in [*names, "states"]},
        opset_version=17,
        dynamo=False,  # the fusions know the graphs of this exporter
    )
    return wrapped.model.config.num_attention_heads, wrapped.model.config.hidden_size


def fuse_onnx(files: Path, heads: int, width: int) -> None:
    """``float32.onnx``, operators fused, and ``int8.onnx``, quantized dynamically."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    fused = optimize_model(
        str(files / "plain.onnx"), "bert", num_heads=heads, hidden_size=width, opt_level=1
    )
    fused.save_model_to_file(str(files / "float32.onnx"))
    # Outputs of fused operators have no type, so they need a default.
    untyped = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(
        files / "float32.onnx",
        files / "int8.onnx",
        weight_type=QuantType.QInt8,
        extra_options=untyped,
    )
