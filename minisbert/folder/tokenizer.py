"""The tokenizer of a folder as transformers 5 builds it: from ``tokenizer.json`` or a vocabulary, and its class."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers

from minisbert.core import InputError, reading
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import CONFIG, SPECIAL_TOKENS, TOKENIZER_CONFIG, TokenizerSettings, unsupported
from minisbert.folder.special_tokens import Files, SpecialTokens
from minisbert.folder.tokenizer_classes import BACKEND, BACKEND_NAMES, CLASSES, DEFAULT_CLASSES, stages
from minisbert.system.files import listed, read_text

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
