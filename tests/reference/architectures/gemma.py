"""A tiny EmbeddingGemma, random in every parameter: windows, two dense layers, prompts."""

from pathlib import Path

import transformers
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, models, normalizers, processors, trainers
from torch import nn
from transformers.models.gemma3 import modeling_gemma3

from tests.reference.make_reference import WORDS, randomise, vocab_and_merges, write_sentence_model

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
# heads 4 and 2, head width 6, width 16 (its root is exact in float32), feed-forward 19, layers 3, a
# window of 5
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 19,
    "max_position_embeddings": 70,
    "query_pre_attn_scalar": 9,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rms_norm_eps": 1e-3,
    "use_bidirectional_attention": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 900.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}


def gemma_tokenizer() -> transformers.GemmaTokenizer:
    """BPE over texts whose spaces are letters; <bos> text <eos>."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    bpe.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False)
    bpe.train_from_iterator([word for word in WORDS for _ in range(3)], trainer)
    spec = vocab_and_merges(bpe)
    spec["vocab"]["▁"] = len(spec["vocab"])
    tokenizer = transformers.GemmaTokenizer(**spec, padding_side="right")
    ends = [("<bos>", SPECIAL.index("<bos>")), ("<eos>", SPECIAL.index("<eos>"))]
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1", special_tokens=ends
    )
    return tokenizer


def write(folder: Path) -> None:
    """The modules of embeddinggemma-300m: mean, two dense layers without activation and bias,
    normalised.
    """
    words = gemma_tokenizer()
    model = transformers.Gemma3TextModel(
        transformers.Gemma3TextConfig(vocab_size=len(words), **SIZES)
    )
    randomise(
        model, seed=31
    )  # no norm is called LayerNorm: weights around 0, to which Gemma adds 1
    dense = [
        Dense(*sizes, bias=False, activation_function=nn.Identity())
        for sizes in ((16, 22), (22, 16))
    ]
    for seed, layer in enumerate(dense):
        randomise(layer, seed)
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    rest = [modules.Pooling(16, "mean"), *dense, modules.Normalize()]
    write_sentence_model(folder, model, words, rest, prompts, max_seq_length=60)


FOLDERS = {"tiny-gemma": write}
MODELING, LAYERS = modeling_gemma3, (0, 2)  # whose states are in the golden file
