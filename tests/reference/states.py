"""Every intermediate result of transformers and sentence-transformers for given ids, under
minisbert's names.

    python -m tests.reference.states MODEL INPUTS.safetensors OUTPUT.safetensors [--double]

MODEL is a folder; INPUTS contains ``ids``, ``mask`` and ``token_types`` (B, T). ``minisbert trace``
runs this script; the wheel has it as ``minisbert/diagnosis/reference_states.py``. It imports
nothing of minisbert.
"""

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class Wide:
    """torch, but for what it calls float32."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def in_double(*modules: ModuleType) -> Iterator[None]:
    """Inside, modeling modules of transformers take float64 wherever they say float32: build and
    run models in it.
    """
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    for module in modules:
        module.torch = Wide()
    try:
        yield
    finally:
        torch.Tensor.float = narrow
        for module in modules:
            module.torch = torch


def encoder_states(
    folder: Path, inputs: dict[str, Tensor], dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor]:
    """Embeddings, every layer's attention and output, and the pooler's if there is one; and the
    last hidden state.
    """
    import transformers  # here, because tests take ``in_double`` without it

    kind = transformers.MODEL_MAPPING[type(transformers.AutoConfig.from_pretrained(folder))]
    given = {"input_ids": inputs["ids"], "attention_mask": inputs["mask"].long()}
    if "token_type_ids" in inspect.signature(kind.forward).parameters:  # DistilBERT has none
        given["token_type_ids"] = inputs["token_types"]
    with in_double(sys.modules[kind.__module__]) if dtype == torch.float64 else nullcontext():
        model = transformers.AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype=dtype
        ).eval()
        out = model(**given, output_hidden_states=True, output_attentions=True)
    states = {"embeddings": out.hidden_states[0]}
    for i, (hidden, probabilities) in enumerate(
        zip(out.hidden_states[1:], out.attentions, strict=True)
    ):
        states |= {f"layers.{i}.attention": probabilities, f"layers.{i}": hidden}
    if getattr(out, "pooler_output", None) is not None:
        states["pooler"] = out.pooler_output
    return states, out.last_hidden_state


def sentence_states(folder: Path, inputs: dict[str, Tensor], hidden: Tensor) -> dict[str, Tensor]:
    """What sentence-transformers computes from the last hidden state: after the pooling, and after
    all modules.
    """
    import sentence_transformers  # here, because a plain encoder does not need it

    model = (
        sentence_transformers.SentenceTransformer(str(folder), device="cpu").to(hidden.dtype).eval()
    )
    features = {"token_embeddings": hidden, "attention_mask": inputs["mask"].long()}
    states = {}
    for module in list(model)[1:]:
        features = module(features)
        if type(module).__name__ == "Pooling":
            states["pooled"] = features["sentence_embedding"]
    return states | {"vector": features["sentence_embedding"]}


def main() -> None:
    folder, given, made = map(Path, sys.argv[1:4])
    dtype = torch.float64 if "--double" in sys.argv[4:] else torch.float32
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the folder has everything
    inputs, listed = load_file(given), folder / "modules.json"
    modules = (
        json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    )  # of a plain encoder
    places = [module["path"] for module in modules if module["type"].endswith("Transformer")]
    with torch.no_grad():
        states, hidden = encoder_states(folder / places[0] if places else folder, inputs, dtype)
        if modules:
            states |= sentence_states(folder, inputs, hidden)
    save_file({name: value.contiguous().clone() for name, value in (inputs | states).items()}, made)


if __name__ == "__main__":
    main()
