"""A tiny Qwen3 in the layout of Qwen3-Embedding, random in every parameter: bfloat16, last token,
pads on the left.
"""

from pathlib import Path

import torch
import transformers
from sentence_transformers.sentence_transformer import modules
from tokenizers import processors
from torch import nn
from transformers.models.qwen3 import modeling_qwen3

from tests.reference.make_reference import byte_level_bpe, vocab_and_merges, write_sentence_model

NAME = "tiny-qwen3"
QUERY = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
# heads of queries 6, of keys and values 2, head width 10, width 24, feed-forward 29, layers 3: all
# different
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 29,
    "max_position_embeddings": 160,
    "rope_theta": 1000.0,
    "rms_norm_eps": 1e-3,
}


def randomise(model: nn.Module, seed: int) -> None:
    """Every parameter random, as bfloat16 can hold it; the norms' weights around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_((1 + noise if "norm" in name else noise).bfloat16())


def qwen_tokenizer() -> transformers.Qwen2Tokenizer:
    """Byte-level BPE; <|endoftext|>, which is not eos_token, comes after each text, and pads before
    it.
    """
    end, more = "<|endoftext|>", ["<|im_start|>", "<|im_end|>"]
    tokenizer = transformers.Qwen2Tokenizer(
        **vocab_and_merges(byte_level_bpe([])),
        eos_token="<|im_end|>",
        pad_token=end,
        extra_special_tokens=more,
        padding_side="left",
    )
    whole = f"$A:0 {end}:0"
    template = processors.TemplateProcessing(
        single=whole,
        pair=f"{whole} $B:1 {end}:1",
        special_tokens=[(end, tokenizer.convert_tokens_to_ids(end))],
    )
    byte_level = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer._tokenizer.post_processor = processors.Sequence([byte_level, template])
    return tokenizer


def write(folder: Path) -> None:
    """bfloat16, the last token's state scaled to length 1, and a prompt for queries."""
    tokenizer = qwen_tokenizer()
    config = transformers.Qwen3Config(vocab_size=len(tokenizer), **SIZES)
    model = transformers.Qwen3Model(config)
    randomise(model, seed=21)
    rest = [modules.Pooling(SIZES["hidden_size"], "lasttoken"), modules.Normalize()]
    prompts, options = (
        {"query": QUERY, "document": ""},
        {"max_seq_length": 130, "model_kwargs": {"dtype": "bfloat16"}},
    )
    write_sentence_model(folder, model.bfloat16(), tokenizer, rest, prompts, **options)


FOLDERS = {NAME: write}
MODELING, LAYERS = modeling_qwen3, (0, 2)  # whose states are in the golden file
