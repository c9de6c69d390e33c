"""The settings in a ``MultiVectorEncoder``'s folder, from three of its files."""

from dataclasses import dataclass, field, replace
from typing import Literal

from minisbert.core import InputError
from minisbert.core.weights import Size
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.settings import (
    CONFIG,
    SENTENCE,
    TEXT_FILES,
    WRITTEN,
    DenseSettings,
    EncoderSettings,
    parse_settings,
    unsupported,
)

# keys of config_sentence_transformers.json by which sentence-transformers knows, and converts, PyLate's folders
PYLATE_KEYS = {"query_prefix", "document_prefix", "query_length", "document_length", "query_expansion"}
PYLATE_KEYS |= {"do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words"}
TOKENS = "token_embeddings"


@dataclass(frozen=True)
class Expansion:
    """``query_expansion``: pad queries to ``length`` tokens; the strategy ``fixed`` also cuts longer ones.

    ``attend`` lets the query's own tokens attend to the added ones.
    """

    length: Size
    strategy: Literal["fixed", "min"] = "fixed"
    attend: bool = False
    token: str | None = None  # None for [MASK]


@dataclass(frozen=True)
class MultiVectorSettings(EncoderSettings):
    """``config_sentence_transformers.json``, the lengths in ``sentence_bert_config.json``, and MultiVectorMask's."""

    similarity_fn_name: Literal["maxsim"] = "maxsim"
    model_type: Literal["MultiVectorEncoder"] = "MultiVectorEncoder"
    query_length: Size | None = None
    document_length: Size | None = None
    query_expansion: dict = field(default_factory=dict)
    expansion: Expansion | None = None  # the same, parsed
    skiplist_words: list[str] = field(default_factory=list)
    skiplist_tasks: list[str] = field(default_factory=lambda: ["document"])
    keep_only_token_ids: None = None  # for images


@dataclass(frozen=True, kw_only=True)
class TokenDense(DenseSettings):
    """A dense layer over the tokens' states."""

    module_input_name: Literal["token_embeddings"] = "token_embeddings"
    module_output_name: Literal["token_embeddings"] | None = "token_embeddings"


def read_settings(folder: ModelFolder) -> MultiVectorSettings:
    """A folder's settings. Raises ``InputError`` by file and key for those that are not supported."""
    for key in folder.json(SENTENCE):
        if key in PYLATE_KEYS:
            raise other_layout(folder, f"{SENTENCE} has PyLate's {key}")
    masks = folder.places("MultiVectorMask")
    if not masks:
        raise other_layout(folder, "there is no MultiVectorMask")
    names = [name for name in TEXT_FILES if folder.encoder.json(name)]
    texts = names[0] if names else TEXT_FILES[0]
    stated = folder.path / SENTENCE, folder.json(SENTENCE)
    lengths = folder.encoder.path / texts, folder.encoder.json(texts)
    mask = folder.path / masks[0] / CONFIG, folder.json(f"{masks[0]}/{CONFIG}")
    settings = parse_settings(MultiVectorSettings, stated, lengths, mask)
    expansion = None
    if settings.query_expansion:
        expansion = parse_settings(Expansion, (lengths[0], settings.query_expansion))
        if settings.query_length is not None and settings.query_length < expansion.length:
            reason = f"query_expansion adds tokens up to {expansion.length}"
            raise unsupported(lengths[0], "query_length", settings.query_length, reason)
    others = {key: value for key, value in folder.json(SENTENCE).items() if key not in WRITTEN}
    return replace(settings, expansion=expansion, others=others)


def other_layout(folder: ModelFolder, reason: str) -> InputError:
    advice = "only sentence-transformers' layout is read: open the folder there and save it"
    return InputError(f"{folder.path} is not a MultiVectorEncoder's folder, {reason}; {advice}")


def normalizes_tokens(folder: ModelFolder) -> bool:
    """Whether a Normalize module scales the vectors of tokens.

    By default it scales the vector of a sentence, and leaves tokens as they are, as sentence-transformers does.
    """
    for place in folder.places("Normalize"):
        stated = folder.json(f"{place}/{CONFIG}")
        given = stated.get("module_input_name")
        if given == TOKENS and stated.get("module_output_name") in (None, TOKENS):
            return True
    return False
