"""The tokenizer that models hold: the book's, with what models need beyond BERT.

It may cut the start of a text in place of its end, refuses a token that has no position, may give
an encoder no token types, and knows the files that it was read from, so that a model can be saved.
Of a text of many pages it reads only the beginning, if that gives the same ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import (
    Encoded,
    assemble,
    backend_ids,
    check_limit,
    check_pairs,
    longest_first,
    special_tokens,
    template,
)
from minisbert.system.reading import printable, reading

# So many characters of a long text are read first for each token that is kept. English has four or
# five characters a token, so this is most often enough, and takes little time if it is not.
CHARACTERS_PER_TOKEN = 16


@dataclass
class TokenizerSource:
    """What a tokenizer was read from, for ``write_tokenizer``: the folder may be gone by then."""

    content: bytes | None  # tokenizer.json; None if the tokenizer was made here
    settings: dict[str, dict]  # the contents of the other files, by their names
    text_settings: dict[str, Any]  # what sentence_bert_config.json has beside the limit


class ModelTokenizer:
    """Texts or pairs of texts to ids, with the special tokens of any model and cut to a limit.

    ``limit`` is the largest number of tokens of a text, special tokens included. If ``cut_start``,
    a long text loses its start, not its end. ``forbidden`` is an id that no text may contain:
    RoBERTa's pad has no position. If not ``token_types``, both texts of a pair have the type 0.
    """

    def __init__(
        self,
        backend: Backend,
        limit: int,
        pad_id: int = 0,
        *,
        cut_start: bool = False,
        forbidden: int | None = None,
        token_types: bool = True,
        source: TokenizerSource | None = None,
    ):
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.pad_id = pad_id
        self.cut_start = cut_start
        self.forbidden = forbidden
        self.source = source
        self.single_template = template(backend, pair=False)  # [CLS] 0 [SEP]
        self.pair_template = template(backend, pair=True)  # [CLS] 0 [SEP] 1 [SEP]
        if not token_types:
            self.single_template = [slot._replace(token_type=0) for slot in self.single_template]
            self.pair_template = [slot._replace(token_type=0) for slot in self.pair_template]
        check_limit(limit, self.single_template)
        self.limit = limit
        # Whether the ids of a text begin with those of its beginning, and nothing after it counts.
        self.reads_beginnings = words_are_independent(backend) and not cut_start
        if forbidden is not None:  # it may stand anywhere in a text, so the whole text is read
            self.reads_beginnings = False

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Frame each text with the special tokens, cut to ``limit`` tokens.

        Raises ``InputError`` for anything but a list of strings, for a string that is not valid
        Unicode, and for a text that the tokenizer cannot encode or the model cannot take.
        """
        keep = self.limit - special_tokens(self.single_template)
        encoded = Encoded([], [], [])
        for sentence in self.first_ids(check_texts(texts), keep):
            ids, types = assemble(self.single_template, [self.cut(sentence, keep)])
            encoded.ids.append(ids)
            encoded.token_types.append(types)
            encoded.truncated.append(len(sentence) > keep)
        return encoded

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """Frame each pair with the special tokens; if it does not fit, the longer text is cut.

        Raises ``InputError`` as ``encode`` does, if the two lists differ in length, and for a limit
        that leaves no room for a token of each text.
        """
        firsts, seconds = check_pairs(firsts, seconds)
        check_limit(self.limit, self.pair_template)
        keep = self.limit - special_tokens(self.pair_template)
        encoded = Encoded([], [], [])
        # The texts are read whole: which of two is cut depends on the lengths of both.
        first_sentences = self.whole_ids(firsts)
        second_sentences = self.whole_ids(seconds)
        for first, second in zip(first_sentences, second_sentences, strict=True):
            keep_first, keep_second = longest_first(len(first), len(second), keep)
            sentences = [self.cut(first, keep_first), self.cut(second, keep_second)]
            ids, types = assemble(self.pair_template, sentences)
            encoded.ids.append(ids)
            encoded.token_types.append(types)
            encoded.truncated.append(len(first) + len(second) > keep)
        return encoded

    def frame(self, sentence: Sequence[int]) -> list[int]:
        """Put the special tokens around the ids of one text, cut to ``limit``."""
        keep = self.limit - special_tokens(self.single_template)
        ids, _ = assemble(self.single_template, [self.cut(sentence, keep)])
        return ids

    def cut(self, sentence: Sequence[int], keep: int) -> Sequence[int]:
        """Take the first ``keep`` ids, or the last ones if texts lose their start."""
        if self.cut_start:
            return sentence[max(0, len(sentence) - keep) :]
        return sentence[:keep]

    def first_ids(self, texts: Sequence[str], keep: int) -> list[list[int]]:
        """Turn texts into ids, without special tokens: at least ``keep`` + 1 if a text has so many.

        A text of many pages takes a hundred times as long as the part of it that is kept, so its
        beginning is tried first.
        """
        if not self.reads_beginnings:
            return self.whole_ids(texts)

        beginnings = [beginning(text, keep * CHARACTERS_PER_TOKEN) for text in texts]
        sentences = self.whole_ids(beginnings)
        for i, text in enumerate(texts):
            was_cut = len(beginnings[i]) < len(text)
            # subtle: no number of characters is always enough, since [UNK] alone stands for a word
            # of any length; with ``keep`` + 1 ids it is known that the text has too many
            if was_cut and len(sentences[i]) <= keep:
                [sentences[i]] = self.whole_ids([text])
        return sentences

    def whole_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn each whole text into ids, without special tokens."""
        first_text = f"{texts[:1]!r:.90}"  # at most 90 characters of it
        with reading(f"the tokenizer cannot encode {first_text} or a text after it"):
            sentences = backend_ids(self.backend, texts)
        if self.forbidden is not None:
            for text, sentence in zip(texts, sentences, strict=True):
                if self.forbidden in sentence:
                    token = printable(str(self.backend.id_to_token(self.forbidden)))
                    raise InputError(
                        f"the text {one_line(text)} contains {token}, which has no position: "
                        f"remove it"
                    )
        return sentences

    def tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Name the word pieces that ids stand for."""
        return [self.backend.id_to_token(i) for i in ids]


def beginning(text: str, characters: int) -> str:
    """Cut a text before the last space among its first characters; a short text stays whole.

    ``beginning("the cat sits", 9)`` is "the cat". A text without a space there stays whole, too.
    """
    if len(text) <= characters:
        return text
    space = text.rfind(" ", 0, characters)
    if space <= 0:
        return text
    return text[:space]


def words_are_independent(backend: Backend) -> bool:
    """Whether the ids of "a text" are always those of "a" and then those of "text".

    So it is in BERT: the normalizer changes one character at a time, the pre-tokenizer splits at
    every space, and WordPiece sees one word at a time. Byte-level BPE, SentencePiece and chains of
    stages are not looked at: False.
    """
    if not (
        isinstance(backend.model, models.WordPiece)
        and isinstance(backend.normalizer, normalizers.BertNormalizer)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    ):
        return False
    # Without [UNK], an unknown word after the beginning is an error, which must not be missed.
    if backend.token_to_id(backend.model.unk_token) is None:
        return False

    # An added token is found before the text is split, so one with a space may reach over it. Some
    # are compared after the normalizer, which puts spaces around Chinese characters.
    for token in backend.get_added_tokens_decoder().values():
        normalized = backend.normalizer.normalize_str(token.content)
        if any(character.isspace() for character in token.content + normalized):
            return False
    return True
