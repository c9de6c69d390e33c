"""A folder's files to the library's tokenizer, with what ``tokenizer_config.json`` changes in ``tokenizer.json``.

transformers rebuilds the tokenizers of BERT and RoBERTa from their vocabulary: lower-casing, accents, the leading space
and the special tokens around a text come from ``tokenizer_config.json`` or from defaults, whatever ``tokenizer.json``
says. Vectors are only equal if we do the same. Tokenizers of no particular class are used as they are in the file.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from minisbert.core import InputError, one_line, read_json
from minisbert.models.settings import refuse, stated
from minisbert.system.files import read_text

BERT_CLASSES = "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer"
ROBERTA_CLASSES = "RobertaTokenizer", "BartTokenizer"
FILE_CLASSES = "PreTrainedTokenizer", "TokenizersBackend", "XLMRobertaTokenizer"  # tokenizer.json as it is
DEFAULT_CLASSES = {"bert": "BertTokenizer", "distilbert": "BertTokenizer", "roberta": "RobertaTokenizer"}


def load_backend(folder: Path, files: dict[str, bytes], options: dict[str, Any]) -> Backend:
    """The tokenizer in ``files``, under ``options``, the contents of ``tokenizer_config.json``.

    Raises ``InputError`` if there is no tokenizer, and for options that are not supported.
    """
    path = folder / "tokenizer_config.json"
    kind = tokenizer_class(folder, options, path)
    if "tokenizer.json" in files:
        try:
            backend = Backend.from_str(files["tokenizer.json"].decode())
        except Exception as error:  # the library raises a bare Exception
            raise InputError(f"{folder / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from error
    elif "vocab.txt" in files:
        backend = wordpiece(folder / "vocab.txt")
    else:
        raise InputError(f"{folder} has neither tokenizer.json nor vocab.txt: a model needs one of them")
    special = dict(options)
    if "added_tokens_decoder" not in options and "special_tokens_map.json" in files:  # files of 2023 and before
        special |= read_json(folder / "special_tokens_map.json")
    if kind in BERT_CLASSES or (kind is None and "tokenizer.json" not in files):
        rebuild_bert(backend, options, special, path)
    elif kind in ROBERTA_CLASSES:
        rebuild_roberta(backend, options, special, path)
    elif not stated(options, "add_prefix_space", bool, path, True) and kind == "XLMRobertaTokenizer":
        raise refuse(path, "add_prefix_space", False, f"{kind} needs the space")
    backend.encode_special_tokens = stated(options, "split_special_tokens", bool, path, False)
    return backend


def tokenizer_class(folder: Path, options: dict[str, Any], path: Path) -> str | None:
    """The class of transformers that would read the folder; None if nothing says which."""
    config = folder / "config.json"
    raw = read_json(config) if config.is_file() else {}
    name = stated(options, "tokenizer_class", str, path) or stated(raw, "tokenizer_class", str, config)
    if name is None:
        return DEFAULT_CLASSES.get(stated(raw, "model_type", str, config))
    known = BERT_CLASSES + ROBERTA_CLASSES + FILE_CLASSES
    if name.removesuffix("Fast") not in known:
        reason = f"{', '.join(known)} are; if tokenizer.json is complete, write PreTrainedTokenizerFast"
        raise refuse(path if options.get("tokenizer_class") else config, "tokenizer_class", name, reason)
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


def rebuild_bert(backend: Backend, options: dict[str, Any], special: dict[str, Any], path: Path) -> None:
    """Clean, lower-case, split at punctuation, WordPiece, [CLS] and [SEP]; the defaults are those of uncased BERT."""
    if not isinstance(backend.model, models.WordPiece):
        raise wrong_model(path, backend, "WordPiece, as a BertTokenizer needs it")
    cls, sep, unknown = (
        special_token(backend, special, key, default, path)
        for key, default in (("cls_token", "[CLS]"), ("sep_token", "[SEP]"), ("unk_token", "[UNK]"))
    )
    backend.model.unk_token = unknown[0]
    backend.model.continuing_subword_prefix = "##"
    backend.model.max_input_chars_per_word = 100
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=stated(options, "do_lower_case", bool, path, True),
        strip_accents=stated(options, "strip_accents", bool, path),
        handle_chinese_chars=stated(options, "tokenize_chinese_chars", bool, path, True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}",
        pair=f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )


def rebuild_roberta(backend: Backend, options: dict[str, Any], special: dict[str, Any], path: Path) -> None:
    """Byte-level BPE without a normalizer, <s> and </s>; a space before the text only if the options ask for it."""
    if not isinstance(backend.model, models.BPE):
        raise wrong_model(path, backend, "BPE, as a RobertaTokenizer needs it")
    cls = special_token(backend, special, "cls_token", "<s>", path)
    sep = special_token(backend, special, "sep_token", "</s>", path)
    space = stated(options, "add_prefix_space", bool, path, False)
    backend.model.dropout = backend.model.unk_token = None
    backend.model.fuse_unk = backend.model.byte_fallback = backend.model.ignore_merges = False
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=space)


def special_token(backend: Backend, special: dict[str, Any], key: str, default: str, path: Path) -> tuple[str, int]:
    """A special token and its id. In the files it is a string, or an object with the string as ``content``."""
    value = special.get(key, default)
    if isinstance(value, dict):
        value = value.get("content")
    found = backend.token_to_id(value) if isinstance(value, str) else None
    if found is None:
        raise InputError(f"{path}: {key} {one_line(value)} is not a token of the vocabulary")
    return value, found


def wrong_model(path: Path, backend: Backend, needed: str) -> InputError:
    name = type(backend.model).__name__
    return InputError(f"{path.with_name('tokenizer.json')} holds a {name} model, not {needed}: check tokenizer_class")


def prepend_lowercase(backend: Backend) -> None:
    """Lower-case texts before the tokenizer's own normalizer sees them, unless that begins so already."""
    spec = json.loads(backend.to_str())["normalizer"] or {}
    if "Lowercase" not in {stage["type"] for stage in spec.get("normalizers", [spec]) if stage}:
        stages = [normalizers.Lowercase(), *filter(None, [backend.normalizer])]
        backend.normalizer = normalizers.Sequence(stages)


def sides(backend: Backend, options: dict[str, Any], path: Path) -> bool:
    """Whether long texts lose their beginning; ``InputError`` for padding before the text.

    ``tokenizer_config.json`` comes first, then the sides stored in ``tokenizer.json``.
    """
    found = {}
    for key, stored in (("padding_side", backend.padding), ("truncation_side", backend.truncation)):
        found[key] = stated(options, key, str, path, (stored or {}).get("direction", "right")).lower()
        if found[key] not in ("left", "right"):
            raise InputError(f"{path}: {key} must be left or right, not {one_line(found[key])}")
    if found["padding_side"] == "left":
        raise refuse(path, "padding_side", "left", "pads before a text would move its positions; set it to right")
    return found["truncation_side"] == "left"
