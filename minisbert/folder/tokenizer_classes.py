"""The classes of tokenizers in transformers: what each makes of a vocabulary, whatever ``tokenizer.json`` says.

transformers 5 rebuilds a tokenizer of a known class: lower-casing, accents, the leading space and the special tokens
around a text come from the class, ``tokenizer_config.json`` or defaults. Vectors are only equal if we do the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.folder.settings import TokenizerSettings
from minisbert.folder.special_tokens import SpecialTokens

BACKEND = "TokenizersBackend"  # the class that takes tokenizer.json as it is
BACKEND_NAMES = (BACKEND, "PreTrainedTokenizer")
# by model_type; the hub's files for ModernBERT state wrong classes, and transformers does not read them
DEFAULT_CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "qwen3": "Qwen2Tokenizer",
    "modernbert": BACKEND,
    "gemma3_text": "GemmaTokenizer",
}
TYPED_CLASSES = {"BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"}  # of pairs' texts
LEFT_CLASSES = {"GemmaTokenizer", "LlamaTokenizer"}  # that pad before a text unless the files say otherwise


def rebuild_bert(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP]; the defaults are those of uncased BERT."""
    backend.model.unk_token = special["unk_token"][0]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.do_lower_case,
        strip_accents=settings.strip_accents,
        handle_chinese_chars=settings.tokenize_chinese_chars,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = special["cls_token"], special["sep_token"]
    pair = f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1"
    backend.post_processor = processors.TemplateProcessing(f"{cls[0]} $A {sep[0]}", pair, [cls, sep])


def rebuild_mpnet(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """BERT's pieces between <s> and </s>."""
    rebuild_bert(backend, settings, special)
    backend.post_processor = processors.RobertaProcessing(special["sep_token"], special["cls_token"])


def rebuild_bpe(backend: Backend, unknown: str | None = None) -> None:
    """The settings of the BPE model: by default bytes, none of which is unknown; with ``unknown`` SentencePiece's."""
    model = backend.model
    model.dropout, model.unk_token = None, unknown
    model.continuing_subword_prefix = model.end_of_word_suffix = ""
    model.fuse_unk = model.byte_fallback = unknown is not None
    model.ignore_merges = False
    backend.normalizer = None


def rebuild_gpt2(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """Byte-level BPE without a normalizer; a space before the text only if the options ask for it."""
    rebuild_bpe(backend)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.add_prefix_space))


def rebuild_roberta(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """GPT-2's between <s> and </s>."""
    rebuild_gpt2(backend, settings, special)
    space = bool(settings.add_prefix_space)
    ends = special["sep_token"], special["cls_token"]
    backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=space)


# (?i:...): English endings; then words, single digits, marks, line ends, other spaces
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def rebuild_qwen2(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """Byte-level BPE of composed characters (NFC), split by ``QWEN_WORDS``."""
    rebuild_bpe(backend)
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    space = bool(settings.add_prefix_space)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    named = {token.content for token in special.named()}  # they lose their flags, such as lstrip
    backend.add_special_tokens([AddedToken(token) for token in sorted(named & backend.get_vocab().keys())])


def rebuild_gemma(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """SentencePiece's BPE: a space is a character like others, what is unknown becomes bytes."""
    rebuild_bpe(backend, special["unk_token"][0])
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")


def rebuild_llama(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """SentencePiece's BPE with a space before the text."""
    rebuild_bpe(backend, special["unk_token"][0])
    backend.model.unk_token = None
    scheme = "always" if settings.legacy else "first"
    if settings.add_prefix_space is False:
        scheme = "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)


def rebuild_xlm_roberta(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """SentencePiece's Unigram after a split at spaces; of the file's normalizer only the table of characters stays."""
    tables = [stage for stage in stages(backend.normalizer) if isinstance(stage, normalizers.Precompiled)]
    backend.normalizer = tables[0] if tables else None
    scheme = "never" if settings.add_prefix_space is False else "always"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    bos, eos = special["bos_token"], special["eos_token"]
    pair = [bos[0], "$A", eos[0], eos[0], "$B", eos[0]]
    backend.post_processor = processors.TemplateProcessing([bos[0], "$A", eos[0]], pair, [bos, eos])


def stages(normalizer: normalizers.Normalizer | None) -> list[normalizers.Normalizer]:
    """The normalizers that a text goes through, in order."""
    if normalizer is None:
        return []
    return list(normalizer) if isinstance(normalizer, normalizers.Sequence) else [normalizer]


@dataclass(frozen=True)
class TokenizerClass:
    """The library's model, the special tokens unless the files name others, and what rebuilds the rest."""

    model: type
    tokens: dict[str, str]
    rebuild: Callable[[Backend, TokenizerSettings, SpecialTokens], None]


BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
ROBERTA_TOKENS = {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
}
GPT_TOKENS = {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
GEMMA_TOKENS = {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
}
LLAMA_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
BERT = TokenizerClass(models.WordPiece, BERT_TOKENS, rebuild_bert)
ROBERTA = TokenizerClass(models.BPE, ROBERTA_TOKENS, rebuild_roberta)
XLM_ROBERTA = TokenizerClass(models.Unigram, ROBERTA_TOKENS, rebuild_xlm_roberta)
CLASSES = {
    "BertTokenizer": BERT,
    "DistilBertTokenizer": BERT,
    "ElectraTokenizer": BERT,
    "MobileBertTokenizer": BERT,
    "SqueezeBertTokenizer": BERT,
    "RobertaTokenizer": ROBERTA,
    "BartTokenizer": ROBERTA,
    "XLMRobertaTokenizer": XLM_ROBERTA,
    "CamembertTokenizer": XLM_ROBERTA,
    "MPNetTokenizer": TokenizerClass(models.WordPiece, ROBERTA_TOKENS | {"unk_token": "[UNK]"}, rebuild_mpnet),
    "GPT2Tokenizer": TokenizerClass(models.BPE, GPT_TOKENS, rebuild_gpt2),
    "Qwen2Tokenizer": TokenizerClass(models.BPE, GPT_TOKENS | {"pad_token": "<|endoftext|>"}, rebuild_qwen2),
    "GemmaTokenizer": TokenizerClass(models.BPE, GEMMA_TOKENS, rebuild_gemma),
    "LlamaTokenizer": TokenizerClass(models.BPE, LLAMA_TOKENS, rebuild_llama),
}
