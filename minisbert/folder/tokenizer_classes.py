"""The classes of tokenizers in transformers: what ``tokenizer_config.json`` changes in ``tokenizer.json``.

transformers rebuilds the tokenizers of BERT, RoBERTa, XLM-R and MPNet from their vocabulary: lower-casing, accents, the
leading space and the special tokens around a text come from ``tokenizer_config.json`` or from defaults, not from
``tokenizer.json``. Vectors are only equal if we do the same. A tokenizer of any other class is used as it is.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_rule
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import CONFIG, SPECIAL_TOKENS, TOKENIZER_CONFIG, TokenizerSettings, unsupported
from minisbert.system.files import listed, read_text

BERT_CLASSES = "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"
XLM_CLASSES = "XLMRobertaTokenizer", "CamembertTokenizer"
FILE_CLASSES = "PreTrainedTokenizer", "TokenizersBackend", "Qwen2Tokenizer", "GemmaTokenizer"  # tokenizer.json as it is
TYPED_CLASSES = {None, *BERT_CLASSES} - {"DistilBertTokenizer"}  # those that tell the texts of a pair apart
DEFAULT_CLASSES = {
    **{"bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "mpnet": "MPNetTokenizer"},
    **{"roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"},
    **{"qwen3": "Qwen2Tokenizer", "modernbert": "PreTrainedTokenizer", "gemma3_text": "GemmaTokenizer"},
}

Files = list[tuple[Path, dict[str, Any]]]  # a file and its contents; a later one overrides those before it


def read_backend(folder: ModelFolder) -> Backend:
    """The library's tokenizer in ``tokenizer.json``, or of BERT's or RoBERTa's vocabulary if there is none."""
    if folder.has("tokenizer.json"):
        with reading(folder.path / "tokenizer.json"):
            return Backend.from_buffer(folder.read("tokenizer.json"))
    if folder.has("vocab.txt"):
        return wordpiece(folder.path / "vocab.txt")
    if folder.has("vocab.json") and folder.has("merges.txt"):
        with reading(folder.path / "merges.txt"):
            return Backend(models.BPE.from_file(*(str(folder.path / name) for name in ("vocab.json", "merges.txt"))))
    names = "neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt"
    advice = "write one of them with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    raise InputError(f"{folder.path} has {names}: {advice}")


def build_backend(folder: ModelFolder, settings: TokenizerSettings, files: Files) -> tuple[Backend, str | None]:
    """The library's tokenizer with what its class in transformers gives it, and the class if anything says which.

    ``files`` have the special tokens. Raises ``InputError`` for what is not supported.
    """
    backend = read_backend(folder)
    kind, complete = tokenizer_class(folder, settings), folder.has("tokenizer.json")
    if settings.added_tokens_decoder is None:  # older files
        files = [*files, (folder.path / SPECIAL_TOKENS, folder.json(SPECIAL_TOKENS))]
    model, tokens, rebuild = REBUILT.get(kind or "", (type(backend.model), {}, None) if complete else WORDPIECE)
    if not isinstance(backend.model, model):
        found = f"{folder.path / 'tokenizer.json'} holds a {type(backend.model).__name__} model, tokenizer_class needs"
        raise InputError(f"{found} {model.__name__}: PreTrainedTokenizerFast takes any model")
    special = SpecialTokens(backend, files, tokens)
    if kind in XLM_CLASSES:
        # transformers sets this id, whatever the file says; no vocabulary has this character
        unknown = 3 if kind == "XLMRobertaTokenizer" else special["unk_token"][1]
        found = " ".join(str(token.id) for token in backend.model.tokenize("\U0010fffd"))
        check_rule("unk_id of tokenizer.json", found, str(unknown))
    if rebuild is not None:
        rebuild(backend, settings, special)
    special.add(settings.added_tokens_decoder, rebuilt=kind not in FILE_CLASSES)
    backend.encode_special_tokens = settings.split_special_tokens
    return backend, kind


def tokenizer_class(folder: ModelFolder, settings: TokenizerSettings) -> str | None:
    """The class of transformers that would read the folder; None if nothing says which."""
    name, known = settings.tokenizer_class or folder.model.tokenizer_class, (*REBUILT, *FILE_CLASSES)
    if name is None:
        return DEFAULT_CLASSES.get(folder.model.model_type)
    if name.removesuffix("Fast") not in known:
        reason = f"{', '.join(known)} are; if tokenizer.json is complete, write PreTrainedTokenizerFast"
        path = folder.path / (TOKENIZER_CONFIG if settings.tokenizer_class else CONFIG)
        raise unsupported(path, "tokenizer_class", name, reason)
    return name.removesuffix("Fast")


class SpecialTokens:
    """The special tokens that a folder's files name, by key: ``cls_token`` and so on."""

    def __init__(self, backend: Backend, files: Files, defaults: dict[str, str]):
        self.backend = backend
        stated = [(files[0][0], defaults), *files]
        self.stated = {key: (path, value) for path, content in stated for key, value in content.items()}

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
        more = [*more.values()] if isinstance(more, dict) else more if isinstance(more, list) else []
        stated = [*(value for key, value in values.items() if key.endswith("_token")), *more]
        named = [token for token in map(added_token, stated) if token]
        listed = {token.content for token in self.backend.get_added_tokens_decoder().values()}
        if decoder is not None:
            decoded = {token.content for token in map(added_token, decoder.values()) if token}
            other = decoded - listed | (listed - decoded - {token.content for token in named} if rebuilt else set())
            if other:
                reason = f"added_tokens of tokenizer.json differ in {', '.join(sorted(other))}"
                raise unsupported(self.stated["added_tokens_decoder"][0], "added_tokens_decoder", decoder, reason)
        for token in named:
            # a token that the vocabulary does not have has no row in the table either
            if token.content not in listed and self.backend.token_to_id(token.content) is not None:
                self.backend.add_special_tokens([token])


def wordpiece(vocab: Path) -> Backend:
    """BERT's WordPiece from a bare list of word pieces; ``rebuild_bert`` adds the rest."""
    # subtle: not splitlines(), which also splits at U+0085 and U+2028 and would shift every id after them
    pieces = read_text(vocab).removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    with reading(vocab):  # of a file that is no BERT vocabulary
        special = {piece: ids[piece] for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")}
    backend = Backend(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.add_special_tokens([*special, *({"[MASK]"} & ids.keys())])
    return backend


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


def rebuild_roberta(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """Byte-level BPE without a normalizer, <s> and </s>; a space before the text only if the options ask for it."""
    space = bool(settings.add_prefix_space)
    backend.model.dropout = backend.model.unk_token = None
    backend.model.fuse_unk = backend.model.byte_fallback = backend.model.ignore_merges = False
    backend.model.end_of_word_suffix = ""
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    ends = special["sep_token"], special["cls_token"]
    backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=space)


def rebuild_xlm_roberta(backend: Backend, settings: TokenizerSettings, special: SpecialTokens) -> None:
    """SentencePiece's Unigram after a split at spaces; of the file's normalizer only the table of characters stays."""
    tables = [stage for stage in stages(backend.normalizer) if isinstance(stage, normalizers.Precompiled)]
    backend.normalizer = tables[0] if tables else None
    scheme = "never" if settings.add_prefix_space is False else "always"
    split = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    bos, eos = special["bos_token"], special["eos_token"]
    pair = [bos[0], "$A", eos[0], eos[0], "$B", eos[0]]
    backend.post_processor = processors.TemplateProcessing([bos[0], "$A", eos[0]], pair, [bos, eos])


BERT_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
ROBERTA_TOKENS = {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "mask")}
ROBERTA_TOKENS |= {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
WORDPIECE: tuple = (models.WordPiece, BERT_TOKENS, rebuild_bert)
REBUILT: dict[str, tuple] = {  # by class: the model that it needs, its special tokens, and what rebuilds it
    **dict.fromkeys(BERT_CLASSES, WORDPIECE),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), (models.BPE, ROBERTA_TOKENS, rebuild_roberta)),
    **dict.fromkeys(XLM_CLASSES, (models.Unigram, ROBERTA_TOKENS, rebuild_xlm_roberta)),
    "MPNetTokenizer": (models.WordPiece, ROBERTA_TOKENS | {"unk_token": "[UNK]"}, rebuild_mpnet),
}


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


def check_vocabulary(backend: Backend, rows: int, folder: ModelFolder, pad_id: int = 0) -> None:
    """Raise ``InputError`` for tokens whose ids are beyond the embedding table of ``rows`` rows."""
    ids = backend.get_vocab() | {"pad_token_id": pad_id}
    beyond = sorted((i, token) for token, i in ids.items() if i >= rows)
    if beyond:
        found = listed([f"{token} ({i})" for i, token in beyond])
        reason = "tokenizer and weights do not belong together"
        raise InputError(
            f"{folder.path}: the embedding table has {rows:,} rows, and the tokenizer has {found}: {reason}"
        )
