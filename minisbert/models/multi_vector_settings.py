"""Settings of a ``MultiVectorEncoder``'s folder, in three layouts: sentence-transformers', PyLate's and Stanford's.

sentence-transformers keeps lengths with the encoder and skipped words in a separate module. PyLate has both in
``config_sentence_transformers.json``, and a marker before each text that is one token. ColBERT's first authors have
them in ``artifact.metadata``, and the projection among the encoder's weights. The last two are converted to the first,
in which every model is saved.
"""

import string
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from tokenizers import AddedToken

from minisbert.core import InputError, reading
from minisbert.core.bert import Bert
from minisbert.core.weights import Size, fill
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.modules import STANFORD
from minisbert.folder.settings import (
    CONFIG,
    MODULES_FILE,
    SENTENCE,
    TEXT_FILES,
    WRITTEN,
    DenseSettings,
    EncoderSettings,
    VectorModule,
    parse_settings,
)
from minisbert.folder.weights import fill_bert, load_transformer, read_encoder
from minisbert.models.layout import load_dense
from minisbert.models.pooling import Dense
from minisbert.models.tokenizer import Tokenizer

METADATA, PROJECTION = "artifact.metadata", "linear.weight"  # of Stanford's folders
QUERY_LENGTH = 32  # of a filled query, unless the folder says otherwise
Length = Annotated[int | None, "an integer from 1"]


@dataclass(frozen=True)
class Expansion:
    """``query_expansion``: queries are filled up to ``length`` tokens, and with the strategy ``fixed`` cut to it.

    ``attend`` lets the query's own tokens see those added.
    """

    length: Size
    strategy: Annotated[str, "fixed|min"] = "fixed"
    attend: bool = False
    token: str | None = None  # [MASK] if none is named


@dataclass(frozen=True)
class LateSettings(EncoderSettings):
    """``config_sentence_transformers.json``, and the settings of two more files."""

    similarity_fn_name: Annotated[str, "maxsim"] = "maxsim"
    model_type: Annotated[str, "MultiVectorEncoder|ColBERT|SentenceTransformer"] = "MultiVectorEncoder"
    # of sentence_bert_config.json
    query_length: Length = None
    document_length: Length = None
    query_expansion: dict = field(default_factory=dict)
    # of MultiVectorMask's config.json: tokens that are not compared
    skiplist_words: list[str] = field(default_factory=list)
    skiplist_tasks: list[str] = field(default_factory=lambda: ["document"])
    keep_only_token_ids: Annotated[list | None, "nothing"] = None


@dataclass(frozen=True)
class PyLateSettings(LateSettings):
    """``config_sentence_transformers.json`` of PyLate, in which the similarity has other names."""

    similarity_fn_name: str = "maxsim"
    query_prefix: str = ""
    document_prefix: str = ""
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool = False
    skiplist_words: list[str] = field(default_factory=lambda: [*string.punctuation])

    @property
    def markers(self) -> dict[str, str]:
        return {"query": self.query_prefix, "document": self.document_prefix}

    def converted(self) -> LateSettings:
        """Markers become the beginning of prompts, and queries are filled up to what was their maximum length."""
        prompts = {name: mark + self.prompts.get(name, "").removeprefix(mark) for name, mark in self.markers.items()}
        kept = {item.name: getattr(self, item.name) for item in fields(LateSettings)}
        kept |= {"similarity_fn_name": "maxsim", "model_type": "MultiVectorEncoder", "prompts": self.prompts | prompts}
        if self.do_query_expansion and not self.query_expansion:
            expansion = {"length": self.query_length or QUERY_LENGTH, "attend": self.attend_to_expansion_tokens}
            kept |= {"query_length": None, "query_expansion": {"strategy": "fixed"} | expansion}
        return LateSettings(**kept)


# the keys by which PyLate's folders are known
PYLATE_KEYS = {item.name for item in fields(PyLateSettings)} - {item.name for item in fields(EncoderSettings)}


@dataclass(frozen=True)
class StanfordSettings:
    """``artifact.metadata``."""

    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"
    query_maxlen: Length = None
    doc_maxlen: Length = None
    attend_to_mask_tokens: bool = False
    mask_punctuation: bool = True
    similarity: Annotated[str, "cosine"] = "cosine"

    def as_pylate(self) -> dict[str, Any]:
        return {
            "query_prefix": f"{self.query_token_id} ",
            "document_prefix": f"{self.doc_token_id} ",
            "query_length": self.query_maxlen,
            "document_length": self.doc_maxlen,
            "attend_to_expansion_tokens": self.attend_to_mask_tokens,
            "skiplist_words": None if self.mask_punctuation else [],
        }


@dataclass(frozen=True)
class TokenModule(VectorModule):
    module_input_name: Annotated[str, "token_embeddings"] = "token_embeddings"
    module_output_name: Annotated[str | None, "token_embeddings"] = "token_embeddings"


@dataclass(frozen=True, kw_only=True)
class TokenDense(TokenModule, DenseSettings):
    """A dense layer over the tokens' states."""


def read_late(folder: ModelFolder) -> tuple[LateSettings, dict[str, str], bool]:
    """A folder's settings, its markers if it is of an older layout, and whether vectors are scaled to length 1.

    Raises ``InputError`` by file and key for settings that are not supported.
    """
    normalize = folder.places("Normalize")
    for place in normalize:
        folder.parse(f"{place}/{CONFIG}", TokenModule)
    texts = next((name for name in TEXT_FILES if folder.encoder.json(name)), TEXT_FILES[0])
    masks = [f"{place}/{CONFIG}" for place in folder.places("MultiVectorMask")]
    files = [(folder.path / SENTENCE, folder.json(SENTENCE)), (folder.encoder.path / texts, folder.encoder.json(texts))]
    files += [(folder.path / name, folder.json(name)) for name in masks]
    others = {name: x for name, x in folder.json(SENTENCE).items() if name not in PYLATE_KEYS | {*WRITTEN}}
    if is_stanford(folder):
        files.insert(0, (folder.path / METADATA, folder.parse(METADATA, StanfordSettings).as_pylate()))
    elif not folder.json(SENTENCE).keys() & PYLATE_KEYS:
        if not masks:
            raise InputError(f"{folder.path / MODULES_FILE} has no MultiVectorMask, and {SENTENCE} nothing of PyLate's")
        return replace(parse_settings(LateSettings, *files), others=others), {}, bool(normalize)
    old = replace(parse_settings(PyLateSettings, *files), others=others)
    return old.converted(), old.markers, True


def is_stanford(folder: ModelFolder) -> bool:
    return folder.model.architectures[:1] == [STANFORD]


def load_parts(folder: ModelFolder) -> tuple[Bert, Dense]:
    """The encoder and the projection."""
    if not is_stanford(folder):
        return load_transformer(folder.encoder), load_dense(folder, folder.places("Dense")[0], TokenDense)
    path, found = read_encoder(folder)
    with reading(path):
        weight = found.pop(PROJECTION)
        width, hidden_size = weight.shape
    dense = Dense(hidden_size, width, bias=False, activation="identity")
    fill(dense, {PROJECTION: weight}, path)
    return fill_bert(folder, path, found), dense


def add_markers(tokenizer: Tokenizer, markers: dict[str, str]) -> None:
    """Make each marker that the vocabulary holds a single token, regardless of the text after it."""
    backend = tokenizer.backend
    for marker in filter(str.strip, markers.values()):
        token = next((token for token in (marker, marker.split()[0]) if backend.token_to_id(token) is not None), None)
        if token is not None and backend.encode(token, add_special_tokens=False).tokens != [token]:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
