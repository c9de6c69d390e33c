"""The tokenizer of a folder as transformers 5 builds it: from ``tokenizer.json`` or a vocabulary, and its class."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.encoder_settings import (
    CONFIG,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    TokenizerSettings,
    unsupported,
)
from minisbert.checkpoints.layout import ModelFolder
from minisbert.core import InputError, one_line, reading
from minisbert.system.files import listed, read_text

Files = list[tuple[Path, dict[str, Any]]]  # a file and its contents; a later one overrides those before it


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: tokenizers.Tokenizer, files: Files, defaults: dict[str, str]):
        self.backend = backend
        self.values: dict[str, Any] = dict(defaults)
        self.paths = dict.fromkeys(defaults, files[0][0])
        for path, content in files:
            listed = isinstance(self.values.get("additional_special_tokens"), list)
            for key, value in content.items():
                if path.name == SPECIAL_TOKENS and key == "additional_special_tokens" and listed:
                    continue  # tokenizer_config.json has the last word
                self.values[key], self.paths[key] = value, path

    def content(self, key: str) -> str:
        """A token's text; an empty string if the files do not name one."""
        token = added_token(self.values[key])
        return "" if token is None else token.content

    def __getitem__(self, key: str) -> tuple[str, int]:
        """A token and its id."""
        token = self.content(key)
        i = self.backend.token_to_id(token)
        if i is None:
            raise InputError(f"{self.paths[key]}: {key} {one_line(self.values[key])} is not a token of the vocabulary")
        return token, i

    def named(self) -> list[tokenizers.AddedToken]:
        """Every token that the files name, under keys of its own or in a list."""
        values = [value for key, value in self.values.items() if key.endswith("_token")]
        more = self.values.get("extra_special_tokens")
        if isinstance(more, dict):  # by names of their own
            values += more.values()
            more = None
        more = more or self.values.get("additional_special_tokens")
        if isinstance(more, list):
            values += more
        tokens = map(added_token, values)
        return [token for token in tokens if token is not None]

    def listed(self) -> set[str]:
        """The tokens that are found in texts as a whole."""
        return {token.content for token in self.backend.get_added_tokens_decoder().values()}

    def check_decoder(self, decoder: dict[str, dict], rebuilt: bool) -> None:
        """Raise ``InputError`` if ``added_tokens_decoder`` lists tokens that ``tokenizer.json`` lacks.

        For a rebuilt tokenizer it is the last word, and must not lack one either.
        """
        listed, tokens = self.listed(), map(added_token, decoder.values())
        decoded = {token.content for token in tokens if token is not None}
        other = decoded - listed
        if rebuilt:
            other |= listed - decoded - {token.content for token in self.named()}
        if other:
            reason = f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
            raise unsupported(self.paths["added_tokens_decoder"], "added_tokens_decoder", decoder, reason)

    def add(self, rows: int) -> None:
        """Have named tokens found in texts as a whole, like those that ``tokenizer.json`` lists.

        A token that is not in the vocabulary gets the next id if the embedding table, of ``rows`` rows, has one for it.
        """
        listed = {token.content: token for token in self.backend.get_added_tokens_decoder().values()}
        for token in self.named():
            if token.content in listed:
                token = listed[token.content]
                token.special = True
                self.backend.add_special_tokens([token])
            elif self.backend.token_to_id(token.content) is not None or self.backend.get_vocab_size() < rows:
                self.backend.add_special_tokens([token])


def added_token(value: Any) -> tokenizers.AddedToken | None:
    """A token as the files state it: a string, or an object with the string as ``content``; None if it is neither."""
    if isinstance(value, str):
        return tokenizers.AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {name: value[name] for name in ("lstrip", "rstrip", "single_word") if isinstance(value.get(name), bool)}
    return tokenizers.AddedToken(value["content"], special=True, **flags)


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


TOKENIZER = "tokenizer.json"


def build_backend(folder: ModelFolder, settings: TokenizerSettings, files: Files, rows: int) -> tuple[Backend, str]:
    """The library's tokenizer with what its class in transformers gives it, and the name of the class.

    ``files`` have the special tokens, the embedding table has ``rows`` rows. Raises ``InputError`` for what is not
    supported.
    """
    backend, name = read_backend(folder), tokenizer_class(folder, settings)
    if settings.added_tokens_decoder is None:  # older files
        files = [*files, (folder.path / SPECIAL_TOKENS, folder.json(SPECIAL_TOKENS))]
    if name == BACKEND and not folder.has(TOKENIZER):
        name = "BertTokenizer"
    if name == BACKEND:
        special = SpecialTokens(backend, files, {})
    else:
        tokenizer = CLASSES[name]
        if not isinstance(backend.model, tokenizer.model):
            backend = with_model(folder, backend, tokenizer.model)
        special = SpecialTokens(backend, files, tokenizer.tokens)
        if tokenizer.model is models.Unigram:
            unknown = 3 if name == "XLMRobertaTokenizer" else backend.token_to_id(special.content("unk_token")) or 0
            backend = special.backend = with_unknown(folder, backend, unknown)
        tokenizer.rebuild(backend, settings, special)
    if settings.added_tokens_decoder is not None:
        special.check_decoder(settings.added_tokens_decoder, rebuilt=name != BACKEND)
    special.add(rows)
    backend.encode_special_tokens = settings.split_special_tokens
    return backend, name


def read_backend(folder: ModelFolder) -> Backend:
    """The library's tokenizer in ``tokenizer.json``, or of BERT's or RoBERTa's vocabulary if there is none."""
    if folder.has(TOKENIZER):
        with reading(folder.path / TOKENIZER):
            return Backend.from_buffer(folder.read(TOKENIZER))
    if folder.has("vocab.txt"):
        return wordpiece(folder.path / "vocab.txt")
    if folder.has("vocab.json") and folder.has("merges.txt"):
        with reading(folder.path / "merges.txt"):
            return Backend(models.BPE.from_file(str(folder.path / "vocab.json"), str(folder.path / "merges.txt")))
    names = "neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt"
    advice = "write one of them with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    raise InputError(f"{folder.path} has {names}: {advice}")


def wordpiece(vocab: Path) -> Backend:
    """BERT's WordPiece from a bare list of word pieces; ``rebuild_bert`` adds the rest."""
    # subtle: not splitlines(), which also splits at U+0085 and U+2028 and would shift every id after them
    pieces = read_text(vocab).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    with reading(vocab):  # of a file that is no BERT vocabulary
        special = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if ids[piece] >= 0]
    if "[MASK]" in ids:
        special.append("[MASK]")
    backend = Backend(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.add_special_tokens(special)
    return backend


def tokenizer_class(folder: ModelFolder, settings: TokenizerSettings) -> str:
    """The class with which transformers would read the folder, without ``Fast``."""
    default = DEFAULT_CLASSES[folder.model.model_type]
    stated = settings.tokenizer_class or folder.model.tokenizer_class
    if stated is None or default == BACKEND:
        return default
    name = stated.removesuffix("Fast")
    if name in BACKEND_NAMES:
        return BACKEND
    if name not in CLASSES:
        path = folder.path / (TOKENIZER_CONFIG if settings.tokenizer_class else CONFIG)
        known = ", ".join([*CLASSES, *BACKEND_NAMES])
        reason = f"{known} are; if {TOKENIZER} is complete, write PreTrainedTokenizerFast"
        raise unsupported(path, "tokenizer_class", stated, reason)
    if name == "LlamaTokenizer" and folder.has(TOKENIZER) and b'"ByteLevel"' in folder.read(TOKENIZER):
        return BACKEND  # Llama 3's is another tokenizer
    return name


def with_model(folder: ModelFolder, backend: Backend, kind: type) -> Backend:
    """The tokenizer with a model of another kind over the same vocabulary, as transformers makes one."""
    if kind is models.Unigram or not folder.has(TOKENIZER):
        found = f"{folder.path / TOKENIZER} holds a {type(backend.model).__name__} model"
        raise InputError(f"{found}, tokenizer_class needs {kind.__name__}: PreTrainedTokenizerFast takes any model")
    content = json.loads(folder.read(TOKENIZER))
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram's, with scores
        vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
    model: dict[str, Any] = {"type": kind.__name__, "vocab": vocabulary}
    if kind is models.BPE:
        model["merges"] = content["model"].get("merges", [])
    else:
        model.update(unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100)
    return Backend.from_str(json.dumps(content | {"model": model}))


def with_unknown(folder: ModelFolder, backend: Backend, unknown: int) -> Backend:
    """A Unigram tokenizer whose unknown token has this id, whatever ``tokenizer.json`` says of it."""
    try:
        found = [token.id for token in backend.model.tokenize("\U0010fffd")]  # no vocabulary has this character
    except Exception:  # the library's own, without an unknown token
        found = []
    if found == [unknown]:
        return backend
    content = json.loads(folder.read(TOKENIZER))
    content["model"].update(unk_id=unknown, byte_fallback=False)
    return Backend.from_str(json.dumps(content))


def prepend_lowercase(backend: Backend) -> None:
    """Lower-case texts before the tokenizer's own normalizer sees them, unless that does it already."""
    own = stages(backend.normalizer)
    if not any(isinstance(stage, normalizers.Lowercase) for stage in own):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def check_vocabulary(backend: Backend, rows: int, folder: ModelFolder, pad_id: int = 0) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    ids = backend.get_vocab() | {"pad_token_id": pad_id}
    beyond = sorted((i, token) for token, i in ids.items() if i >= rows)
    if beyond:
        found = listed([f"{token} ({i})" for i, token in beyond])
        reason = "tokenizer and weights do not belong together"
        sizes = f"the embedding table has {rows:,} rows, and the tokenizer has {found}"
        raise InputError(f"{folder.path}: {sizes}: {reason}")
