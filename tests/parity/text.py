"""Text to ids beside the ``tokenizers`` library, and parameter names beside saved checkpoints."""

from collections.abc import Iterator
from dataclasses import replace

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.core import read_json, tokenizer, weights
from minisbert.core.weights import read_safetensors
from tests.parity import REFERENCE, ROOT, Comparison
from tests.parity.comparison import same, same_lists, same_text
from tests.reference.texts import SENTENCES, TEXTS

VOCABULARY = read_json(ROOT / "weights" / "tiny" / "tokenizer.json")["model"]["vocab"]
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
# "a ##bcd" spells abcd, but after abc, the longest, there is no ##d
GREEDY_VOCABULARY = {"[UNK]": 0, "ab": 1, "abc": 2, "a": 3, "##c": 4, "##bcd": 5, "##b": 6}
GREEDY_WORDS = ["abcd", "abc", "abbcd", "abx"]


def split_words() -> Iterator[Comparison]:
    """The characters of every word, against the library's normalizer and splitter."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    for text in (*SENTENCES, *TEXTS):
        expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        yield same_text(f"words of {text!r}"[:60], tokenizer.split_words(text), expected)


def word_pieces() -> Iterator[Comparison]:
    """Ids against the library's WordPiece."""
    for vocabulary, words in ((VOCABULARY, WORDS), (GREEDY_VOCABULARY, GREEDY_WORDS)):
        library = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        for word in words:
            pieces = tokenizer.word_pieces(word, vocabulary)
            ids = [vocabulary.get(piece, -2) for piece in pieces]
            expected = library.encode(word)
            result = same_lists(f"pieces of {word}", ids, expected.ids, 12)
            yield replace(result, ours=pieces, reference=expected.tokens)  # for the message


def name_tables() -> Iterator[Comparison]:
    """For each family: every name in a checkpoint saved by the reference, once, and no other."""
    for family, folder in (
        ("bert", ROOT / "weights" / "tiny"),
        ("distilbert", REFERENCE / "tiny-distiluse"),
        ("roberta", REFERENCE / "tiny-roberta"),
    ):
        layers = read_json(folder / "config.json").get("n_layers", 2)
        expected = sorted(read_safetensors(folder / "model.safetensors"))
        names = ENCODER_FAMILIES[family].names(layers, family != "distilbert")
        if family == "bert":  # the book's
            names = weights.tensor_names(layers, pooler=True)
        found = list(names.values())
        counts = [found.count(name) for name in expected]
        right = [1] * len(expected)
        yield same(f"names of {family}", [*counts, len(found)], [*right, len(expected)])

        agree = [common_parts(ours) == common_parts(file) for ours, file in names.items()]
        right = [1, len(expected)]
        yield same(f"names of {family}, both sides", [all(agree), len(agree)], right)


def common_parts(name: str) -> list[str]:
    """What our name and the file's have in common: the layer's number, and weight or bias."""
    return [part for part in name.split(".") if part.isdigit() or part in ("weight", "bias")]
