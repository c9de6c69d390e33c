"""A tiny ModernBERT, random in every parameter, like modernbert-embed-base; texts are longer than
its window.
"""

import tempfile
from pathlib import Path

import transformers
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import processors
from transformers.models.modernbert import modeling_modernbert

from tests.reference.architectures.qwen3 import randomise
from tests.reference.make_reference import byte_level_bpe, write_sentence_model

NAME = "tiny-modernbert"
# heads 3, head width 8, width 24, feed-forward 29, layers 4 of which 0 and 3 are global, window 2
# to each side
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 90,
    "local_attention": 4,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 700.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    },
}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE with the special tokens of BERT, as the published tokenizers have it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    bpe = byte_level_bpe(special)
    bpe.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    inputs = ["input_ids", "attention_mask"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(bpe.to_str())
        return transformers.PreTrainedTokenizerFast(
            tokenizer_file=f"{folder}/tokenizer.json",
            model_max_length=80,
            model_input_names=inputs,
            **names,
        )


def write(folder: Path) -> None:
    """Mean pooling, normalised, prompts: the modules of nomic-ai/modernbert-embed-base."""
    words = tokenizer()
    special = {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "eos_token_id": 3,
        "sep_token_id": 3,
    }
    model = transformers.ModernBertModel(
        transformers.ModernBertConfig(vocab_size=len(words), **SIZES, **special)
    )
    randomise(model, seed=31)
    prompts = {"query": "search_query: ", "document": "search_document: "}
    write_sentence_model(
        folder, model, words, [Pooling(SIZES["hidden_size"], "mean"), Normalize()], prompts
    )


FOLDERS = {NAME: write}
MODELING, LAYERS = modeling_modernbert, (1, 3)  # whose states are in the golden file
