"""Compute every intermediate result of transformers, under minisbert's names.

    python -P transformers.py MODEL INPUTS.safetensors OUTPUT.safetensors [--double]

MODEL is a folder; INPUTS contains ``ids``, ``mask`` and ``token_types`` (B, T). ``minisbert trace``
runs this file in a process of its own. It imports transformers only where it calls it.
"""

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class Wide:
    """Stands in for the module ``torch``: its ``float32`` is float64, all else is torch's own."""

    float32 = torch.float64
    float = torch.float64  # torch's other name of float32

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def in_double(*modules: Any) -> Iterator[None]:
    """Within this context modeling modules of transformers take float64 where they say float32.

    Both building and running a model must happen in it.
    """
    tensor_class: Any = torch.Tensor
    to_float32 = tensor_class.float
    tensor_class.float = tensor_class.double
    for module in modules:
        module.torch = Wide()
    try:
        yield
    finally:
        tensor_class.float = to_float32
        for module in modules:
            module.torch = torch


def encoder_states(
    folder: Path, inputs: dict[str, Tensor], dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor]:
    """Compute what transformers gives inside the encoder, and the last hidden state (B, T, D).

    The states are the embeddings, every layer's attention and output, and the pooler's output if
    the model has a pooler.
    """
    import transformers  # here, because tests use in_double without it

    config = transformers.AutoConfig.from_pretrained(folder)
    kind: Any = transformers.MODEL_MAPPING[type(config)]
    arguments = {"input_ids": inputs["ids"], "attention_mask": inputs["mask"].long()}
    if "token_type_ids" in inspect.signature(kind.forward).parameters:  # DistilBERT has none
        arguments["token_type_ids"] = inputs["token_types"]

    precision: AbstractContextManager = nullcontext()
    if dtype == torch.float64:
        precision = in_double(sys.modules[kind.__module__])
    with precision:
        model = transformers.AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype
        )
        model.eval()
        out = model(**arguments, output_hidden_states=True, output_attentions=True)

    states = {"embeddings": out.hidden_states[0]}
    layers = zip(out.hidden_states[1:], out.attentions, strict=True)
    for i, (hidden, probabilities) in enumerate(layers):
        states[f"layers.{i}.attention"] = probabilities
        states[f"layers.{i}"] = hidden
    if getattr(out, "pooler_output", None) is not None:
        states["pooler"] = out.pooler_output
    return states, out.last_hidden_state


def main() -> None:
    folder = Path(sys.argv[1])
    inputs_file = Path(sys.argv[2])
    states_file = Path(sys.argv[3])
    dtype = torch.float32
    if "--double" in sys.argv[4:]:
        dtype = torch.float64
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the folder has everything
    inputs = load_file(inputs_file)

    # A plain encoder has no modules.json; one of sentence-transformers says where its encoder is.
    modules = []
    modules_file = folder / "modules.json"
    if modules_file.is_file():
        modules = json.loads(modules_file.read_text(encoding="utf-8"))
    encoder_folder = folder
    for module in modules:
        if module["type"].endswith("Transformer"):
            encoder_folder = folder / module["path"]
            break

    with torch.no_grad():
        states, hidden = encoder_states(encoder_folder, inputs, dtype)
        if modules:
            # Here, because a plain encoder does not need sentence-transformers. The package may be
            # a checkout that is not installed; it comes last, so it hides no library.
            sys.path.append(str(Path(__file__).parents[2]))
            from minisbert.integrations.sentence_transformers import sentence_states

            states |= sentence_states(folder, inputs, hidden)
    written = {}
    for name, value in (inputs | states).items():
        written[name] = value.contiguous().clone()  # a file may not hold one memory twice
    save_file(written, states_file)


if __name__ == "__main__":
    main()
