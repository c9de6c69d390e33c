"""What the folder of a ``MultiVectorEncoder`` states, in three layouts: sentence-transformers', PyLate's, Stanford's.

sentence-transformers keeps lengths with the encoder and skipped words in a module of their own. PyLate has both in
``config_sentence_transformers.json`` and a marker before each text that is one token; ColBERT's first authors have them
in ``artifact.metadata``, and the projection among the encoder's weights. The last two are read as sentence-transformers
reads them, and saved in its own layout.
"""

import string
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated

from tokenizers import AddedToken

from minisbert.core import InputError, reading
from minisbert.core.bert import Bert
from minisbert.core.weights import Size, fill
from minisbert.models.checkpoint import fill_bert, load_transformer, read_encoder
from minisbert.models.folders import ModelFolder
from minisbert.models.kinds import STANFORD
from minisbert.models.layout import load_dense
from minisbert.models.poolings import Dense
from minisbert.models.settings import (
    CONFIG,
    MODULES_FILE,
    SENTENCE,
    TEXT_FILES,
    DenseSettings,
    EncoderSettings,
    VectorModule,
)
from minisbert.models.tokenizer import Tokenizer

METADATA, LINEAR = "artifact.metadata", "linear.weight"  # of Stanford's folders
QUERY_LENGTH = 32  # of a filled query, unless the folder says otherwise
Length = Annotated[int | None, "an integer from 1"]


@dataclass(frozen=True)
class LateSettings(EncoderSettings):
    """``config_sentence_transformers.json``."""

    similarity_fn_name: Annotated[str, "maxsim"] = "maxsim"
    model_type: Annotated[str, "MultiVectorEncoder|ColBERT|SentenceTransformer"] = "MultiVectorEncoder"


@dataclass(frozen=True)
class PyLateSettings(LateSettings):
    """The same, where the similarity had other names."""

    similarity_fn_name: str = "maxsim"


@dataclass(frozen=True)
class Expansion:
    """``query_expansion`` of ``sentence_bert_config.json``: queries are filled up to ``length`` tokens.

    With the strategy ``fixed`` longer ones are cut to it. ``attend`` lets the real tokens see those added.
    """

    length: Size
    strategy: Annotated[str, "fixed|min"] = "fixed"
    attend: bool = False
    token: str | None = None  # [MASK] if none is named


@dataclass(frozen=True)
class Lengths:
    """What ``sentence_bert_config.json`` states for queries and for documents."""

    query_length: Length = None
    document_length: Length = None
    query_expansion: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Skipped:
    """``MultiVectorMask``'s ``config.json``: tokens that are not compared."""

    skiplist_words: list[str] = field(default_factory=list)
    skiplist_tasks: list[str] = field(default_factory=lambda: ["document"])
    keep_only_token_ids: Annotated[list | None, "nothing"] = None


@dataclass(frozen=True)
class TokenModule(VectorModule):
    module_input_name: Annotated[str, "token_embeddings"] = "token_embeddings"
    module_output_name: Annotated[str | None, "token_embeddings"] = "token_embeddings"


@dataclass(frozen=True, kw_only=True)
class TokenDense(TokenModule, DenseSettings):
    """A dense layer over the tokens' states."""


@dataclass(frozen=True)
class PyLate:
    """What PyLate adds to ``config_sentence_transformers.json``."""

    query_prefix: str = ""
    document_prefix: str = ""
    query_length: Length = None
    document_length: Length = None
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool = False
    skiplist_words: list[str] = field(default_factory=lambda: [*string.punctuation])


PYLATE = {item.name for item in fields(PyLate)}


@dataclass(frozen=True)
class Stanford:
    """``artifact.metadata``."""

    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"
    query_maxlen: Length = None
    doc_maxlen: Length = None
    attend_to_mask_tokens: bool = False
    mask_punctuation: bool = True
    similarity: Annotated[str, "cosine"] = "cosine"

    def as_pylate(self) -> PyLate:
        lengths, words = (self.query_maxlen, self.doc_maxlen), [*string.punctuation] if self.mask_punctuation else []
        markers = (f"{self.query_token_id} ", f"{self.doc_token_id} ")
        return PyLate(*markers, *lengths, True, self.attend_to_mask_tokens, words)


@dataclass(frozen=True)
class Stated:
    """What a folder says of queries and documents, whatever its layout."""

    settings: LateSettings
    lengths: Lengths
    skipped: Skipped
    normalize: bool
    markers: tuple[str, ...] = ()  # prompts that are one token of the vocabulary, or begin with one


def read_stated(folder: ModelFolder) -> Stated:
    """The settings of a folder; ``InputError`` by file and key for those that are not supported."""
    for place in folder.places("Normalize"):
        folder.parse(f"{place}/{CONFIG}", TokenModule)
    name = next((name for name in TEXT_FILES if folder.encoder.json(name)), TEXT_FILES[0])
    lengths, masks = folder.encoder.parse(name, Lengths), folder.places("MultiVectorMask")
    skipped = folder.parse(f"{masks[0]}/{CONFIG}", Skipped) if masks else None
    if is_stanford(folder):
        return from_old(folder.parse(METADATA, Stanford).as_pylate(), LateSettings(), lengths, skipped)
    if folder.json(SENTENCE).keys() & PYLATE:
        settings = folder.settings_as(PyLateSettings)
        return from_old(folder.parse(SENTENCE, PyLate), settings, lengths, skipped)
    if skipped is None:
        raise InputError(f"{folder.path / MODULES_FILE} has no MultiVectorMask, and {SENTENCE} nothing of PyLate's")
    return Stated(folder.settings_as(LateSettings), lengths, skipped, bool(folder.places("Normalize")))


def from_old(old: PyLate, settings: LateSettings, lengths: Lengths, skipped: Skipped | None) -> Stated:
    """A marker becomes the beginning of a prompt, and the length of queries that to which they are filled up."""
    markers = {"query": old.query_prefix, "document": old.document_prefix}
    prompts = {name: marker + settings.prompts.get(name, "").removeprefix(marker) for name, marker in markers.items()}
    document, query = lengths.document_length or old.document_length, lengths.query_length or old.query_length
    more = lengths.query_expansion
    if old.do_query_expansion and not more:
        attend = old.attend_to_expansion_tokens
        query, more = None, {"strategy": "fixed", "attend": attend, "length": query or QUERY_LENGTH}
    others = {name: value for name, value in settings.others.items() if name not in PYLATE}
    changed = {"similarity_fn_name": "maxsim", "model_type": "MultiVectorEncoder", "others": others}
    settings = replace(settings, prompts=settings.prompts | prompts, **changed)
    return Stated(
        settings, Lengths(query, document, more), skipped or Skipped(old.skiplist_words), True, (*markers.values(),)
    )


def is_stanford(folder: ModelFolder) -> bool:
    return folder.model.architectures[:1] == [STANFORD]


def load_parts(folder: ModelFolder) -> tuple[Bert, Dense]:
    """The encoder and the projection."""
    if not is_stanford(folder):
        return load_transformer(folder.encoder), load_dense(folder, folder.places("Dense")[0], TokenDense)
    path, found = read_encoder(folder)
    with reading(path):
        weight = found.pop(LINEAR)
        width, hidden_size = weight.shape
    dense = Dense(hidden_size, width, bias=False, activation="identity")
    fill(dense, {LINEAR: weight}, path)
    return fill_bert(folder, path, found), dense


def load_tokenizer(folder: ModelFolder, stated: Stated, limit: int | None) -> Tokenizer:
    """The encoder's tokenizer, for which each marker that its vocabulary holds is one token, whatever follows."""
    tokenizer = Tokenizer.load(folder.encoder, limit)
    backend = tokenizer.backend
    for marker in filter(str.strip, stated.markers):
        token = next((token for token in (marker, marker.split()[0]) if backend.token_to_id(token) is not None), None)
        if token is not None and backend.encode(token, add_special_tokens=False).tokens != [token]:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
    tokenizer.kept |= {name: value for name, value in asdict(stated.lengths).items() if value}
    return tokenizer
