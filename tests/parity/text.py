"""Text to ids beside the ``tokenizers`` library, and parameter names beside saved checkpoints."""

from collections.abc import Iterator
from dataclasses import replace

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.core import read_json, tokenizer
from minisbert.core.weights import read_safetensors
from tests.parity import PIECE, REFERENCE, ROOT, Comparison, compare
from tests.parity.comparison import padded, same
from tests.reference.texts import SENTENCES, TEXTS

VOCABULARY = read_json(ROOT / "weights" / "tiny" / "tokenizer.json")["model"]["vocab"]

GREEDY = [
    "abcd",
    "abc",
    "abbcd",
    "abx",
]  # "a ##bcd" spells abcd, but after abc, the longest, there is no ##d

WORDS = [
    "cat",
    "playing",
    "runs",
    "guitars",
    "a",
    "z",
    "kittenish",
    "hausboot",
    "dogs",
    "é",
    "unplayé",
    "##a",
    "a##b",
]


def split_words() -> Iterator[Comparison]:
    """The characters of every word, against the library's normalizer and splitter."""
    normalizer, splitter = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    for text in (*SENTENCES, *TEXTS):
        expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        words = tokenizer.split_words(text)
        sides = ["\n".join(words), "\n".join(expected)]
        value, reference = (padded([ord(c) for c in side], len(sides[1]) + 20) for side in sides)
        compared = compare(f"words of {text!r}"[:60], value, reference, PIECE)
        yield replace(compared, ours=words, reference=expected)  # words, for the message


def word_pieces() -> Iterator[Comparison]:
    """Ids against the library's WordPiece."""
    greedy = {
        piece: i for i, piece in enumerate(["[UNK]", "ab", "abc", "a", "##c", "##bcd", "##b"])
    }
    for vocabulary, words in ((VOCABULARY, WORDS), (greedy, GREEDY)):
        library = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        for word in words:
            pieces, expected = tokenizer.word_pieces(word, vocabulary), library.encode(word)
            ids = [vocabulary.get(piece, -2) for piece in pieces]
            compared = compare(
                f"pieces of {word}", padded(ids, 12), padded(expected.ids, 12), PIECE
            )
            yield replace(
                compared, ours=pieces, reference=expected.tokens
            )  # pieces, for the message


def name_tables() -> Iterator[Comparison]:
    """For each family: every name in a checkpoint saved by the reference, once, and no other
    name.
    """
    folders = (ROOT / "weights" / "tiny", REFERENCE / "tiny-distiluse", REFERENCE / "tiny-roberta")
    for family, folder in zip(("bert", "distilbert", "roberta"), folders, strict=True):
        layers = read_json(folder / "config.json").get("n_layers", 2)
        expected = sorted(read_safetensors(folder / "model.safetensors"))
        names = ENCODER_FAMILIES[family].names(layers, family != "distilbert")
        found = list(names.values())
        counts = [*map(found.count, expected), len(found)]
        yield same(f"names of {family}", counts, [1] * len(expected) + [len(expected)])
        # both names of a pair have the same ending and the same layer
        agree = [facts_of(ours) == facts_of(file) for ours, file in names.items()]
        yield same(f"names of {family}, both sides", [all(agree), len(agree)], [1, len(expected)])


def facts_of(name: str) -> list[str]:
    """What our name and the file's name have in common: the layer's number, and weight or bias."""
    return [part for part in name.split(".") if part.isdigit() or part in ("weight", "bias")]
