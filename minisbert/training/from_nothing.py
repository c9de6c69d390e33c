"""A model from nothing: a vocabulary trained on texts, and an encoder of random weights over it.

tokenizer = train_vocabulary(texts, 6000)
model = new_model(tokenizer, layers=3, width=256)
"""

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.core.weights import BertConfig
from minisbert.models.masked_language_model import MaskedHead, MaskedLanguageModel
from minisbert.models.pooling import Pooling
from minisbert.models.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALPHABET = 200  # characters, the most frequent; a word with another one is unknown
HEAD_WIDTH = 64  # as in BERT


def train_vocabulary(texts: Sequence[str], size: int, max_length: int = 128) -> Tokenizer:
    """BERT's uncased WordPiece tokenizer with ``size`` pieces: single characters, then what the texts need most.

    The same texts give the same vocabulary. Raises ``InputError`` if ``size`` has no room for the characters.
    """
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(backend.normalizer.normalize_str(text))
    del counts[" "]
    alphabet = sorted(character for character, _ in counts.most_common(ALPHABET))
    pieces = SPECIAL + alphabet + [f"##{character}" for character in alphabet]
    if size < len(pieces):
        raise InputError(f"a vocabulary of {size} has no room for the {len(pieces)} pieces of one character")
    # subtle: the trainer numbers pieces as it meets them, in an order that changes from run to run, and breaks ties by
    # number; given as special tokens they have their numbers before it starts
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=pieces,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    trained = Backend(models.WordPiece(backend.get_vocab(), unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # their places in SPECIAL
    trained.add_special_tokens(SPECIAL)
    return Tokenizer(trained, max_length)


def new_model(tokenizer: Tokenizer, layers: int, width: int, dropout: float = 0.1) -> MaskedLanguageModel:
    """Random weights as ``Bert`` draws them, heads of 64 columns, mean pooling, vectors of length 1."""
    config = BertConfig(
        vocab_size=tokenizer.backend.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        intermediate_size=4 * width,
        max_position_embeddings=tokenizer.limit,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    bert = Bert(config, pooler=False)
    head = MaskedHead(width, config.vocab_size, config.layer_norm_eps)
    nn.init.normal_(head.dense.weight, std=config.initializer_range)
    nn.init.zeros_(head.dense.bias)
    head.words = bert.embeddings.word.weight  # tied
    return MaskedLanguageModel(head, tokenizer, bert, Pooling("mean", width), True).eval()
