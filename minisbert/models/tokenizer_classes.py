"""The classes of tokenizers in transformers: what ``tokenizer_config.json`` changes in ``tokenizer.json``.

transformers rebuilds the tokenizers of BERT, RoBERTa, XLM-R and MPNet from their vocabulary: lower-casing, accents, the
leading space and the special tokens around a text come from ``tokenizer_config.json`` or from defaults, whatever
``tokenizer.json`` says. Vectors are only equal if we do the same. A tokenizer of no such class is used as it is.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.core import InputError, one_line, reading
from minisbert.models.folders import SENTENCEPIECE, ModelFolder
from minisbert.models.settings import CONFIG, OPTIONS, SPECIAL, TokenizerSettings, unsupported
from minisbert.system.files import listed, read_text

BERT_CLASSES = "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"
ROBERTA_CLASSES = "RobertaTokenizer", "BartTokenizer"
XLM_CLASSES = "XLMRobertaTokenizer", "CamembertTokenizer"
MPNET_CLASSES = ("MPNetTokenizer",)
MODELS = {BERT_CLASSES + MPNET_CLASSES: models.WordPiece, ROBERTA_CLASSES: models.BPE, XLM_CLASSES: models.Unigram}
FILE_CLASSES = "PreTrainedTokenizer", "TokenizersBackend", "Qwen2Tokenizer", "GemmaTokenizer"  # tokenizer.json as it is
TYPED_CLASSES = {None, *BERT_CLASSES} - {"DistilBertTokenizer"}  # those that tell the texts of a pair apart
DEFAULT_CLASSES = {"bert": "BertTokenizer", "distilbert": "BertTokenizer"}
DEFAULT_CLASSES |= {"roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}
DEFAULT_CLASSES |= {"camembert": "CamembertTokenizer", "electra": "BertTokenizer", "mpnet": "MPNetTokenizer"}
DEFAULT_CLASSES |= {"qwen3": "Qwen2Tokenizer", "modernbert": "PreTrainedTokenizer", "gemma3_text": "GemmaTokenizer"}
BERT_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
ROBERTA_TOKENS = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
ROBERTA_TOKENS |= {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "mask")}

Files = list[tuple[Path, dict[str, Any]]]  # a file and its contents; a later one overrides those before it


def read_backend(folder: ModelFolder) -> Backend:
    """The library's tokenizer in ``tokenizer.json``, or of BERT's or RoBERTa's vocabulary if there is none."""
    path = folder.path / "tokenizer.json"
    if folder.has(path.name):
        with reading(path):
            return Backend.from_buffer(folder.read(path.name))
    if folder.has("vocab.txt"):
        return wordpiece(folder.path / "vocab.txt")
    if folder.has("vocab.json") and folder.has("merges.txt"):
        with reading(folder.path / "merges.txt"):
            return Backend(models.BPE.from_file(*(str(folder.path / name) for name in ("vocab.json", "merges.txt"))))
    if folder.has(SENTENCEPIECE):
        advice = "write one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        raise InputError(f"{folder.path / SENTENCEPIECE} is not read, and there is no tokenizer.json: {advice}")
    names = "neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt"
    raise InputError(f"{folder.path} has {names}: a model needs one of them")


def set_up(backend: Backend, folder: ModelFolder, settings: TokenizerSettings, files: Files) -> str | None:
    """Give the library's tokenizer what its class in transformers gives it; the class, None if nothing says which.

    ``files`` have the special tokens. Raises ``InputError`` for what is not supported.
    """
    kind = tokenizer_class(folder, settings)
    if settings.added_tokens_decoder is None:  # older files
        files = [*files, (folder.path / SPECIAL, folder.json(SPECIAL))]
    special = SpecialTokens(backend, files)
    needed = next((model for classes, model in MODELS.items() if kind in classes), type(backend.model))
    needed = needed if folder.has("tokenizer.json") or kind in ROBERTA_CLASSES else models.WordPiece
    if not isinstance(backend.model, needed):
        found = f"{folder.path / 'tokenizer.json'} holds a {type(backend.model).__name__} model, tokenizer_class needs"
        raise InputError(f"{found} {needed.__name__}: PreTrainedTokenizerFast takes any model")
    if kind in ROBERTA_CLASSES:
        rebuild_roberta(backend, settings, special.over(ROBERTA_TOKENS))
    elif kind in XLM_CLASSES:
        unknown = 3 if kind == "XLMRobertaTokenizer" else special.over(ROBERTA_TOKENS)["unk_token"][1]
        rebuild_xlm_roberta(backend, settings, special.over(ROBERTA_TOKENS), unknown)
    elif kind in MPNET_CLASSES:
        special.over(ROBERTA_TOKENS | {"unk_token": BERT_TOKENS["unk_token"]})
        rebuild_bert(backend, settings, special)
        backend.post_processor = processors.RobertaProcessing(special["sep_token"], special["cls_token"])
    elif kind in BERT_CLASSES or not folder.has("tokenizer.json"):
        rebuild_bert(backend, settings, special.over(BERT_TOKENS))
    special.add(settings.added_tokens_decoder, rebuilt=kind not in FILE_CLASSES)
    backend.encode_special_tokens = settings.split_special_tokens
    return kind


def tokenizer_class(folder: ModelFolder, settings: TokenizerSettings) -> str | None:
    """The class of transformers that would read the folder; None if nothing says which."""
    name = settings.tokenizer_class or folder.model.tokenizer_class
    if name is None:
        return DEFAULT_CLASSES.get(folder.model.model_type)
    known = BERT_CLASSES + ROBERTA_CLASSES + XLM_CLASSES + MPNET_CLASSES + FILE_CLASSES
    if name.removesuffix("Fast") not in known:
        reason = f"{', '.join(known)} are; if tokenizer.json is complete, write PreTrainedTokenizerFast"
        raise unsupported(
            folder.path / (OPTIONS if settings.tokenizer_class else CONFIG), "tokenizer_class", name, reason
        )
    return name.removesuffix("Fast")


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: Backend, files: Files):
        self.backend = backend
        self.default = files[0][0]
        self.stated = {key: (path, value) for path, content in files for key, value in content.items()}

    def over(self, defaults: dict[str, str]) -> "SpecialTokens":
        """With defaults for what no file names."""
        self.stated = {key: (self.default, value) for key, value in defaults.items()} | self.stated
        return self

    def __getitem__(self, key: str) -> tuple[str, int]:
        """A token and its id."""
        path, value = self.stated[key]
        token = added_token(value)
        found = None if token is None else self.backend.token_to_id(token.content)
        if found is None:
            raise InputError(f"{path}: {key} {one_line(value)} is not a token of the vocabulary")
        return token.content, found

    def add(self, decoder: dict[str, dict] | None, rebuilt: bool) -> None:
        """Have named tokens found in texts as a whole, like those that ``tokenizer.json`` lists.

        Raises ``InputError`` if ``added_tokens_decoder``, for a rebuilt tokenizer the last word, lists other tokens.
        """
        values = {key: value for key, (_, value) in self.stated.items()}
        more = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
        more = [*more.values()] if isinstance(more, dict) else more
        named = [value for key, value in values.items() if key.endswith("_token")]
        named = [*filter(None, map(added_token, [*named, *(more if isinstance(more, list) else [])]))]
        listed = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        if decoder is not None:
            decoded = {token.content for token in map(added_token, decoder.values()) if token}
            other = decoded - listed | (listed - decoded - {token.content for token in named} if rebuilt else set())
            if other:
                path, key = self.stated["added_tokens_decoder"][0], "added_tokens_decoder"
                raise unsupported(
                    path, key, decoder, f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
                )
        for token in named:
            # a token that the vocabulary does not have has no row in the table either
            if token.content not in listed and self.backend.token_to_id(token.content) is not None:
                self.backend.add_special_tokens([token])


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


def rebuild_bert(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP]; the defaults are those of uncased BERT."""
    cls = special["cls_token"]
    sep = special["sep_token"]
    backend.model.unk_token = special["unk_token"][0]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.do_lower_case,
        strip_accents=settings.strip_accents,
        handle_chinese_chars=settings.tokenize_chinese_chars,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}",
        pair=f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )


def rebuild_roberta(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """Byte-level BPE without a normalizer, <s> and </s>; a space before the text only if the options ask for it."""
    cls = special["cls_token"]
    sep = special["sep_token"]
    space = bool(settings.add_prefix_space)
    backend.model.dropout = backend.model.unk_token = None
    backend.model.fuse_unk = backend.model.byte_fallback = backend.model.ignore_merges = False
    backend.model.end_of_word_suffix = ""
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)


def rebuild_xlm_roberta(backend: Backend, settings: TokenizerSettings, special: SpecialTokens, unknown: int) -> None:
    """SentencePiece's Unigram after a split at spaces; of the file's normalizer only the table of characters stays.

    ``unknown`` is the token that transformers gives the class, whatever the file says.
    """
    bos = special["bos_token"]
    eos = special["eos_token"]
    tables = [stage for stage in stages(backend.normalizer) if isinstance(stage, normalizers.Precompiled)]
    backend.normalizer = tables[0] if tables else None
    found = {token.id for token in backend.model.tokenize("\U0010fffd")}  # a character that no vocabulary has
    if found != {unknown}:
        raise ValueError(f"unk_id {found} of tokenizer.json must be {unknown}, or the class PreTrainedTokenizerFast")
    scheme = "never" if settings.add_prefix_space is False else "always"
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    backend.post_processor = processors.TemplateProcessing(
        single=[bos[0], "$A", eos[0]],
        pair=[bos[0], "$A", eos[0], eos[0], "$B", eos[0]],
        special_tokens=[bos, eos],
    )


def added_token(value: Any) -> AddedToken | None:
    """A token as the files state it: a string, or an object with the string as ``content``; None if it is neither."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    flags = {name: value[name] for name in ("lstrip", "rstrip", "single_word") if isinstance(value.get(name), bool)}
    return AddedToken(value["content"], special=True, **flags)


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


def check_vocabulary(backend: Backend, rows: int, folder: ModelFolder) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    beyond = sorted((i, token) for token, i in backend.get_vocab().items() if i >= rows)
    if beyond:
        found = listed([f"{token} ({i})" for i, token in beyond])
        reason = "tokenizer and weights do not belong together"
        raise InputError(
            f"{folder.path}: the embedding table has {rows:,} rows, and the tokenizer has {found}: {reason}"
        )
