"""Build what transformers 5 builds for each class of tokenizer, and read the special tokens that files name.

Imports ``core``, and the settings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.encoder_settings import SPECIAL_TOKENS, JsonSettings, unsupported
from minisbert.core import InputError, one_line

GENERIC_CLASS = "TokenizersBackend"  # takes tokenizer.json as it is
GENERIC_NAMES = (GENERIC_CLASS, "PreTrainedTokenizer")
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
    "modernbert": GENERIC_CLASS,
    "gemma3_text": "GemmaTokenizer",
}
TYPED_CLASSES = ("BertTokenizer", "ElectraTokenizer")  # give the second text of a pair the token type 1
LEFT_CLASSES = ("GemmaTokenizer",)  # pad before a text unless the files say otherwise

Files = list[tuple[Path, dict[str, Any]]]  # a file and its contents; a later one overrides those before it


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: Backend, files: Files, defaults: dict[str, str]):
        self.backend = backend
        self.values: dict[str, Any] = dict(defaults)
        self.paths = dict.fromkeys(defaults, files[0][0])
        for path, content in files:
            has_list = isinstance(self.values.get("additional_special_tokens"), list)
            for key, value in content.items():
                if path.name == SPECIAL_TOKENS and key == "additional_special_tokens" and has_list:
                    continue  # tokenizer_config.json has the last word
                self.values[key], self.paths[key] = value, path

    def text(self, key: str) -> str:
        """Return a token's text; an empty string if the files do not name one."""
        token = added_token(self.values[key])
        return "" if token is None else token.content

    def __getitem__(self, key: str) -> tuple[str, int]:
        """Return a token and its id."""
        token = self.text(key)
        i = self.backend.token_to_id(token)
        if i is None:
            raise InputError(f"{self.paths[key]}: {key} {one_line(self.values[key])} is not a token of the vocabulary")
        return token, i

    def named(self) -> list[AddedToken]:
        """List every token that the files name, by a key or in a list."""
        values = [value for key, value in self.values.items() if key.endswith("_token")]
        more = self.values.get("extra_special_tokens")
        if isinstance(more, dict):  # each has a name, such as image_token
            values.extend(more.values())
            more = None
        more = more or self.values.get("additional_special_tokens")
        if isinstance(more, list):
            values.extend(more)
        tokens = map(added_token, values)
        return [token for token in tokens if token is not None]

    def check_decoder(self, decoder: dict[str, dict], rebuilt: bool) -> None:
        """Raise ``InputError`` if ``added_tokens_decoder`` lists tokens that ``tokenizer.json`` lacks.

        For a rebuilt tokenizer it is the last word, and must not lack one either.
        """
        in_backend = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        tokens = map(added_token, decoder.values())
        decoded = {token.content for token in tokens if token is not None}
        other = decoded - in_backend
        if rebuilt:
            other |= in_backend - decoded - {token.content for token in self.named()}
        if other:
            reason = f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
            raise unsupported(self.paths["added_tokens_decoder"], "added_tokens_decoder", decoder, reason)

    def add(self, rows: int) -> None:
        """Register the named tokens as special so that they are never split.

        A token that is not in the vocabulary gets the next id if the embedding table, of ``rows`` rows, has one for it.
        """
        in_backend = {token.content: token for token in self.backend.get_added_tokens_decoder().values()}
        for token in self.named():
            if token.content in in_backend:
                token = in_backend[token.content]  # with its flags, such as lstrip
                token.special = True
                self.backend.add_special_tokens([token])
            elif self.backend.token_to_id(token.content) is not None or self.backend.get_vocab_size() < rows:
                self.backend.add_special_tokens([token])


def added_token(value: Any) -> AddedToken | None:
    """Read a token from a file's value: a string, or an object with the string as ``content``; None for others."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {name: value[name] for name in ("lstrip", "rstrip", "single_word") if isinstance(value.get(name), bool)}
    return AddedToken(value["content"], special=True, **flags)


def rebuild_bert(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP]; the defaults are those of uncased BERT."""
    backend.model.unk_token = special["unk_token"][0]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=options.get("do_lower_case", bool, True),
        strip_accents=options.get("strip_accents", bool),
        handle_chinese_chars=options.get("tokenize_chinese_chars", bool, True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = special["cls_token"], special["sep_token"]
    pair = f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1"
    backend.post_processor = processors.TemplateProcessing(f"{cls[0]} $A {sep[0]}", pair, [cls, sep])


def rebuild_mpnet(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """BERT's pieces between <s> and </s>."""
    rebuild_bert(backend, options, special)
    backend.post_processor = processors.RobertaProcessing(special["sep_token"], special["cls_token"])


def rebuild_bpe(backend: Backend, unknown: str | None = None) -> None:
    """Set up the BPE model: by default bytes, none of which is unknown; with ``unknown`` SentencePiece's."""
    model = backend.model
    model.dropout, model.unk_token = None, unknown
    model.continuing_subword_prefix = model.end_of_word_suffix = ""
    model.fuse_unk = model.byte_fallback = unknown is not None
    model.ignore_merges = False
    backend.normalizer = None


def rebuild_roberta(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Byte-level BPE without a normalizer between <s> and </s>; a space before the text only if the options ask."""
    rebuild_bpe(backend)
    space = options.get("add_prefix_space", bool, False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    sep, cls = special["sep_token"], special["cls_token"]
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)


# (?i:...): English endings; then words, single digits, marks, line ends, other spaces
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def rebuild_qwen2(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """Byte-level BPE of composed characters (NFC), split by ``QWEN_WORDS``."""
    rebuild_bpe(backend)
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated")
    space = options.get("add_prefix_space", bool, False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    # they lose their flags, such as lstrip
    named = {token.content for token in special.named()}
    backend.add_special_tokens([AddedToken(token) for token in sorted(named & backend.get_vocab().keys())])


def rebuild_gemma(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """SentencePiece's BPE: a space is a character like others, what is unknown becomes bytes."""
    rebuild_bpe(backend, special["unk_token"][0])
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")


def rebuild_xlm_roberta(backend: Backend, options: JsonSettings, special: SpecialTokens) -> None:
    """SentencePiece's Unigram after a split at spaces; of the file's normalizer only the table of characters stays."""
    tables = [stage for stage in normalizer_stages(backend) if isinstance(stage, normalizers.Precompiled)]
    backend.normalizer = tables[0] if tables else None
    scheme = "always" if options.get("add_prefix_space", bool, True) else "never"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    # subtle: not cls and sep, which have the same texts unless somebody has changed one of them
    bos, eos = special["bos_token"], special["eos_token"]
    pair = [bos[0], "$A", eos[0], eos[0], "$B", eos[0]]
    backend.post_processor = processors.TemplateProcessing([bos[0], "$A", eos[0]], pair, [bos, eos])


def normalizer_stages(backend: Backend) -> list[normalizers.Normalizer]:
    """List the normalizers that a text goes through, in order."""
    if backend.normalizer is None:
        return []
    if isinstance(backend.normalizer, normalizers.Sequence):
        return list(backend.normalizer)
    return [backend.normalizer]


@dataclass(frozen=True)
class TokenizerClass:
    """The library's model, the special tokens unless the files name others, and what rebuilds the rest."""

    model: type
    tokens: dict[str, str]
    rebuild: Callable[[Backend, JsonSettings, SpecialTokens], None]


def tokens_named(**texts: str) -> dict[str, str]:
    """``tokens_named(unk="[UNK]") = {"unk_token": "[UNK]"}``."""
    return {f"{name}_token": text for name, text in texts.items()}


BERT_TOKENS = tokens_named(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
ROBERTA_TOKENS = tokens_named(unk="<unk>", pad="<pad>", mask="<mask>", bos="<s>", cls="<s>", eos="</s>", sep="</s>")
QWEN_TOKENS = tokens_named(unk="<|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>")
GEMMA_TOKENS = tokens_named(unk="<unk>", pad="<pad>", mask="<mask>", bos="<bos>", eos="<eos>")
BERT_CLASS = TokenizerClass(models.WordPiece, BERT_TOKENS, rebuild_bert)
XLM_ROBERTA_CLASS = TokenizerClass(models.Unigram, ROBERTA_TOKENS, rebuild_xlm_roberta)
TOKENIZER_CLASSES = {
    "BertTokenizer": BERT_CLASS,
    "DistilBertTokenizer": BERT_CLASS,
    "ElectraTokenizer": BERT_CLASS,
    "MPNetTokenizer": TokenizerClass(models.WordPiece, ROBERTA_TOKENS | {"unk_token": "[UNK]"}, rebuild_mpnet),
    "RobertaTokenizer": TokenizerClass(models.BPE, ROBERTA_TOKENS, rebuild_roberta),
    "XLMRobertaTokenizer": XLM_ROBERTA_CLASS,
    "CamembertTokenizer": XLM_ROBERTA_CLASS,
    "Qwen2Tokenizer": TokenizerClass(models.BPE, QWEN_TOKENS, rebuild_qwen2),
    "GemmaTokenizer": TokenizerClass(models.BPE, GEMMA_TOKENS, rebuild_gemma),
}
