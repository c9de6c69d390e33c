"""A folder's files to the library's tokenizer, with what ``tokenizer_config.json`` changes in ``tokenizer.json``.

transformers rebuilds the tokenizers of BERT, RoBERTa and XLM-R from their vocabulary: lower-casing, accents, the
leading space and the special tokens around a text come from ``tokenizer_config.json`` or from defaults, whatever
``tokenizer.json`` says. Vectors are only equal if we do the same. A tokenizer of no such class is used as it is.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.core import InputError, one_line, read_json
from minisbert.models.settings import stated, unsupported
from minisbert.system.files import listed, read_text

BERT_CLASSES = "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"
ROBERTA_CLASSES = "RobertaTokenizer", "BartTokenizer"
XLM_CLASSES = ("XLMRobertaTokenizer",)
FILE_CLASSES = "PreTrainedTokenizer", "TokenizersBackend"  # tokenizer.json as it is
SPECIAL_FILE = "special_tokens_map.json"
SENTENCEPIECE = "sentencepiece.bpe.model"  # XLM-R's vocabulary in the format of another library
DEFAULT_CLASSES = {"bert": "BertTokenizer", "distilbert": "BertTokenizer"}
DEFAULT_CLASSES |= {"roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}
ROBERTA_TOKENS = {"bos_token": "s", "cls_token": "s", "eos_token": "/s", "sep_token": "/s"}
ROBERTA_TOKENS |= {f"{name}_token": name for name in ("unk", "pad", "mask")}


@dataclass(frozen=True)
class Options:
    """``tokenizer_config.json``, and over it the arguments that ``sentence_bert_config.json`` has for the tokenizer."""

    path: Path
    stated: dict[str, Any] = field(default_factory=dict)
    above_path: Path | None = None
    above: dict[str, Any] = field(default_factory=dict)
    special: dict[str, Any] = field(default_factory=dict)  # special tokens in ``special_tokens_map.json``

    def path_of(self, key: str) -> Path:
        """The file that has the last word on ``key``."""
        if key in self.special:
            return self.path.with_name(SPECIAL_FILE)
        return self.above_path if key in self.above else self.path

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of ``key``, checked as ``stated`` does."""
        return stated(self.above if key in self.above else self.stated, key, kind, self.path_of(key), default)


def load_backend(folder: Path, files: dict[str, bytes], options: Options, kind: str | None) -> Backend:
    """The tokenizer in ``files``, as the class ``kind`` of transformers sets it up.

    Raises ``InputError`` if there is no tokenizer, and for options that are not supported.
    """
    if "tokenizer.json" in files:
        try:
            backend = Backend.from_str(files["tokenizer.json"].decode())
        except Exception as error:  # the library raises a bare Exception
            raise InputError(f"{folder / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from error
    elif "vocab.txt" in files:
        backend = wordpiece(folder / "vocab.txt")
    elif (folder / SENTENCEPIECE).is_file():
        advice = "write one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        raise InputError(f"{folder / SENTENCEPIECE} is not read, and there is no tokenizer.json: {advice}")
    else:
        raise InputError(f"{folder} has neither tokenizer.json nor vocab.txt: a model needs one of them")
    special = options.stated | options.above
    stored = read_json(folder / SPECIAL_FILE) if SPECIAL_FILE in files else {}
    if "added_tokens_decoder" not in special:  # older files
        options = replace(options, special=stored)
        special |= stored
    if kind in ROBERTA_CLASSES + XLM_CLASSES:
        special = {name: f"<{token}>" for name, token in ROBERTA_TOKENS.items()} | special
        (rebuild_roberta if kind in ROBERTA_CLASSES else rebuild_xlm_roberta)(backend, options, special)
    elif kind in BERT_CLASSES or "tokenizer.json" not in files:
        special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")} | special
        rebuild_bert(backend, options, special)
    add_special_tokens(backend, special, options, rebuilt=kind not in FILE_CLASSES)
    backend.encode_special_tokens = options.get("split_special_tokens", bool, False)
    return backend


def tokenizer_class(folder: Path, options: Options) -> str | None:
    """The class of transformers that would read the folder; None if nothing says which."""
    config = folder / "config.json"
    raw = read_json(config) if config.is_file() else {}
    name, path = options.get("tokenizer_class", str), options.path_of("tokenizer_class")
    if name is None:
        name, path = stated(raw, "tokenizer_class", str, config), config
    if name is None:
        return DEFAULT_CLASSES.get(stated(raw, "model_type", str, config))
    known = BERT_CLASSES + ROBERTA_CLASSES + XLM_CLASSES + FILE_CLASSES
    if name.removesuffix("Fast") not in known:
        reason = f"{', '.join(known)} are; if tokenizer.json is complete, write PreTrainedTokenizerFast"
        raise unsupported(path, "tokenizer_class", name, reason)
    return name.removesuffix("Fast")


def wordpiece(vocab: Path) -> Backend:
    """BERT's WordPiece from a bare list of word pieces; ``rebuild_bert`` adds the rest."""
    # subtle: not splitlines(), which also splits at U+0085 and U+2028 and would shift every id after them
    pieces = read_text(vocab).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    missing = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if piece not in ids]
    if missing:
        raise InputError(f"{vocab} has no {', '.join(missing)}: is it a BERT vocabulary, one word piece per line?")
    backend = Backend(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.add_special_tokens([piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in ids])
    return backend


def rebuild_bert(backend: Backend, options: Options, special: dict[str, Any]) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP]; the defaults are those of uncased BERT."""
    check_model(backend, models.WordPiece, options.path)
    cls = special_token(backend, special, "cls_token", options)
    sep = special_token(backend, special, "sep_token", options)
    backend.model.unk_token = special_token(backend, special, "unk_token", options)[0]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=options.get("do_lower_case", bool, True),
        strip_accents=options.get("strip_accents", bool),
        handle_chinese_chars=options.get("tokenize_chinese_chars", bool, True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}",
        pair=f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )


def rebuild_roberta(backend: Backend, options: Options, special: dict[str, Any]) -> None:
    """Byte-level BPE without a normalizer, <s> and </s>; a space before the text only if the options ask for it."""
    check_model(backend, models.BPE, options.path)
    cls = special_token(backend, special, "cls_token", options)
    sep = special_token(backend, special, "sep_token", options)
    space = options.get("add_prefix_space", bool, False)
    backend.model.dropout = backend.model.unk_token = None
    backend.model.fuse_unk = backend.model.byte_fallback = backend.model.ignore_merges = False
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)


def rebuild_xlm_roberta(backend: Backend, options: Options, special: dict[str, Any]) -> None:
    """SentencePiece's Unigram after a split at spaces; of the file's normalizer only the table of characters stays."""
    check_model(backend, models.Unigram, options.path)
    bos = special_token(backend, special, "bos_token", options)
    eos = special_token(backend, special, "eos_token", options)
    tables = [stage for stage in stages(backend.normalizer) if isinstance(stage, normalizers.Precompiled)]
    backend.normalizer = tables[0] if tables else None
    scheme = "always" if options.get("add_prefix_space", bool, True) else "never"
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    backend.post_processor = processors.TemplateProcessing(
        single=[bos[0], "$A", eos[0]],
        pair=[bos[0], "$A", eos[0], eos[0], "$B", eos[0]],
        special_tokens=[bos, eos],
    )


def check_model(backend: Backend, needed: type, path: Path) -> None:
    """Raise ``InputError`` unless the model in ``tokenizer.json`` is the one that its class needs."""
    if not isinstance(backend.model, needed):
        found = f"{path.with_name('tokenizer.json')} holds a {type(backend.model).__name__} model"
        raise InputError(f"{found}, tokenizer_class needs {needed.__name__}: PreTrainedTokenizerFast takes any model")


def special_token(backend: Backend, special: dict[str, Any], key: str, options: Options) -> tuple[str, int]:
    """A special token and its id."""
    token = added_token(special.get(key))
    found = None if token is None else backend.token_to_id(token.content)
    if found is None:
        raise InputError(f"{options.path_of(key)}: {key} {one_line(special.get(key))} is not a token of the vocabulary")
    return token.content, found


def added_token(value: Any) -> AddedToken | None:
    """A token as the files state it: a string, or an object with the string as ``content``; None if it is neither."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {name: value[name] for name in ("lstrip", "rstrip", "single_word") if isinstance(value.get(name), bool)}
    return AddedToken(value["content"], special=True, **flags)


def add_special_tokens(backend: Backend, special: dict[str, Any], options: Options, rebuilt: bool) -> None:
    """Tokens that the options name are found in texts as a whole, like those that ``tokenizer.json`` lists.

    Raises ``InputError`` if ``added_tokens_decoder``, for a rebuilt tokenizer the last word, lists other tokens.
    """
    more = special.get("extra_special_tokens") or special.get("additional_special_tokens") or []
    more = [*more.values()] if isinstance(more, dict) else more
    named = [value for key, value in special.items() if key.endswith("_token")]
    named = [*filter(None, map(added_token, [*named, *(more if isinstance(more, list) else [])]))]
    listed = {token.content for token in backend.get_added_tokens_decoder().values()}
    decoder = options.get("added_tokens_decoder", dict)
    if decoder is not None:
        stated = {token.content for token in map(added_token, decoder.values()) if token}
        other = stated - listed | (listed - stated - {token.content for token in named} if rebuilt else set())
        if other:
            reason = f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
            raise unsupported(options.path_of("added_tokens_decoder"), "added_tokens_decoder", decoder, reason)
    for token in named:
        # a token that the vocabulary does not have has no row in the table either
        if token.content not in listed and backend.token_to_id(token.content) is not None:
            backend.add_special_tokens([token])


def stages(normalizer: normalizers.Normalizer | None) -> list[normalizers.Normalizer]:
    """The normalizers that a text goes through, in order."""
    if normalizer is None:
        return []
    return list(normalizer) if isinstance(normalizer, normalizers.Sequence) else [normalizer]


def prepend_lowercase(backend: Backend) -> None:
    """Lower-case texts before the tokenizer's own normalizer sees them, unless that does it already."""
    own = stages(backend.normalizer)
    if not any(isinstance(stage, normalizers.Lowercase) for stage in own):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def check_vocabulary(backend: Backend, rows: int, folder: Path) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    beyond = sorted((i, token) for token, i in backend.get_vocab().items() if i >= rows)
    if beyond:
        found = listed([f"{token} ({i})" for i, token in beyond])
        reason = "tokenizer and weights do not belong together"
        raise InputError(f"{folder}: the embedding table has {rows:,} rows, and the tokenizer has {found}: {reason}")


def cuts_start(backend: Backend, options: Options) -> bool:
    """Whether long texts lose their start and not their end; ``InputError`` for pads before a text.

    ``tokenizer_config.json`` comes first, then the sides stored in ``tokenizer.json``.
    """
    found = {}
    for key, stored in (("padding_side", backend.padding), ("truncation_side", backend.truncation)):
        found[key] = options.get(key, str) or (stored or {}).get("direction", "right").lower()
        if found[key] not in ("left", "right"):
            raise InputError(f"{options.path_of(key)}: {key} must be left or right, not {one_line(found[key])}")
    if found["padding_side"] == "left":
        reason = "pads before a text would move its positions; write right"
        raise unsupported(options.path_of("padding_side"), "padding_side", "left", reason)
    return found["truncation_side"] == "left"
