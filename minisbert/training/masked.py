"""Train on masked words, which needs nothing but texts: the masks, the loss, and new models."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.data import TextColumns
from minisbert.core.losses import check_vectors
from minisbert.core.tokenizer import pad_batch
from minisbert.core.weights import BertConfig
from minisbert.data.columns import Columns
from minisbert.models.masked_language_model import MaskedHead, MaskedLanguageModel
from minisbert.models.pooling import Pooling
from minisbert.models.transformer_encoder import evaluating
from minisbert.training.base_loss import SCORED, Loss, Network, RowNetwork, VectorNetwork
from minisbert.training.losses import mlm_losses
from minisbert.training.scores import Evaluation, evaluate_encoder, mean_of

CHOSEN = 0.15  # fraction of tokens to predict
MASKED = 0.8 * CHOSEN  # of these, 80 % become [MASK]
REPLACED = 0.9 * CHOSEN  # and 10 % a random token; 10 % stay
DEV_BATCH = 64  # texts
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALPHABET = 200  # characters, the most frequent; a word with another one is unknown
HEAD_WIDTH = 64  # as in BERT

# -----------------------------------------------------------------------------
# masks


def mask_tokens(
    ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """Hide 15 % of a batch's words: return inputs (B, T), and which tokens to predict, boolean (B,
    T).

    ids (B, T); words (B, T), True where a token may be chosen: not [CLS], [SEP] or a pad;
    ``chance`` (B, T), drawn evenly from 0..1; ``other`` (B, T), random ids. A word is chosen where
    chance is below 0.15: below 0.12 it becomes [MASK], below 0.135 ``other``, else it stays,
    because later there is no [MASK] in a text. ids [5, 6, 7, 8] with chance [.11, .13, .14, .5] and
    mask_id 4 give [4, other, 7, 8]; all but the last are chosen.
    """
    check_vectors(ids=ids, words=words, chance=chance, other=other)
    chosen = words.bool() & (chance < CHOSEN)
    inputs = torch.where(chosen & (chance < REPLACED), other, ids)
    inputs = torch.where(chosen & (chance < MASKED), mask_id, inputs)
    return inputs, chosen


def draw_masks(
    ids: Tensor,
    words: Tensor,
    mask_id: int,
    vocabulary: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Call ``mask_tokens`` with random draws; other words are any of the ``vocabulary``'s."""
    # drawn on the CPU: a GPU's generator would give another run
    chance = torch.rand(ids.shape, generator=generator)
    other = torch.randint(vocabulary, ids.shape, generator=generator)
    return mask_tokens(ids, words, mask_id, chance.to(ids.device), other.to(ids.device))


# -----------------------------------------------------------------------------
# the loss


class MaskedNetwork(VectorNetwork):
    """Apply a ``MaskedLanguageModel`` to texts in which other words are hidden every time."""

    def forward(self, rows: Sequence[int]) -> Tensor:
        """The sum of each row's losses of hidden words, and their number: (B, 2)."""
        ids, mask = self.columns.batch(rows)
        losses, _, chosen = guess(self.model, ids, mask, dtype=self.dtype)
        # sums and not means, so that parts of a batch and processes add up
        each = torch.zeros(chosen.shape, device=losses.device)
        each = each.masked_scatter(chosen, losses)  # (B, T)
        return torch.stack([each.sum(dim=1), chosen.sum(dim=1)], dim=1)


def guess(
    model: MaskedLanguageModel,
    ids: Tensor,
    mask: Tensor | None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hide words of ids (B, T): the loss of each of N, whether it was guessed, (N,), and which,
    (B, T).
    """
    ids = ids.to(model.device)
    if mask is not None:
        mask = mask.to(model.device)
    words = ~torch.isin(ids, torch.tensor(model.special_ids, device=model.device))
    inputs, chosen = draw_masks(ids, words, model.mask_id, len(model.head.bias), generator)
    logits = model.logits(inputs, mask, chosen, dtype)  # (N, V)
    targets = ids[chosen]
    if len(targets) == 0:  # the texts of a small batch may have no word to hide
        return logits.sum(dim=1), targets.bool(), chosen
    return mlm_losses(logits, targets), logits.argmax(dim=1) == targets, chosen


@dataclass
class MaskedWords(Loss):
    """Guess 15 % of the words of a text from the others, BERT's first objective (section 3.1).

    Use it to teach a model the words of a new domain, or to train one from random weights.
    """

    columns: ClassVar[Columns] = Columns(1)
    default_data: ClassVar[str | None] = "stsb"
    judged_by: ClassVar[tuple[Columns, ...]] = (SCORED, Columns(1))
    compares_rows: ClassVar[bool] = True  # a row counts by the number of its hidden words

    def prepare(self, model: Any, rows: Sequence[tuple]) -> RowNetwork:
        if not isinstance(model, MaskedLanguageModel):
            advice = "load it with minisbert.models.masked_language_model.MaskedLanguageModel"
            raise InputError(f"the loss mlm trains a MaskedLanguageModel: {advice}")
        texts = [row[0] for row in rows]
        return MaskedNetwork(model, TextColumns(model.tokenizer, [texts]))

    def batch_loss(self, network: Network, batch: Sequence[int]) -> Tensor:
        sums, counts = network(batch).unbind(dim=1)  # (B,) each
        return sums.sum() / counts.sum().clamp_min(1)  # no word was hidden: nothing to learn

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """The share of hidden words that is guessed; with scores also the correlation."""
        texts: dict[str, None] = {}
        for row in rows:
            texts.update((text, None) for text in row if isinstance(text, str))
        ids = model.tokenizer.encode(list(texts)).ids
        generator = torch.Generator().manual_seed(0)  # the same words every time
        right: list[Tensor] = []
        with evaluating(model):
            for start in range(0, len(ids), DEV_BATCH):
                batch, mask = pad_batch(ids[start : start + DEV_BATCH], model.tokenizer.pad_id)
                _, guessed, _ = guess(model, batch, mask, generator)
                right.append(guessed)
        # on the CPU: Apple's GPU has no float64
        each = torch.cat(right).cpu().double().numpy()
        if not len(each):
            raise InputError("no word of dev or test was chosen to be guessed; give more rows")
        scores = {"masked_accuracy": float(each.mean())}
        if not isinstance(rows[0][-1], str):
            scores |= evaluate_encoder(model, rows).scores
        return mean_of(scores, "masked_accuracy", each)


# -----------------------------------------------------------------------------
# a new model


def train_vocabulary(texts: Sequence[str], size: int, max_length: int = 128) -> ModelTokenizer:
    """Train BERT's uncased WordPiece tokenizer of ``size`` pieces: single characters, then what the
    texts need most.

    The same texts give the same vocabulary. Raises ``InputError`` if ``size`` has no room for the
    characters.
    """
    texts = check_texts(texts)
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
        raise InputError(
            f"a vocabulary of {size} has no room for the {len(pieces)} pieces of one character"
        )
    # subtle: the trainer numbers pieces as it meets them, in an order that changes from run to run,
    # and breaks ties by number; given as special tokens they have their numbers before it starts
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=pieces,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    # a new tokenizer of the same vocabulary: in the trained one the single characters are special
    # tokens
    trained = Backend(models.WordPiece(backend.get_vocab(), unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trained.post_processor = processors.BertProcessing(
        ("[SEP]", 3), ("[CLS]", 2)
    )  # their places in SPECIAL
    trained.add_special_tokens(SPECIAL)
    return ModelTokenizer(trained, max_length)


def new_model(
    tokenizer: ModelTokenizer, layers: int, width: int, dropout: float = 0.1
) -> MaskedLanguageModel:
    """Make a model of random weights as ``Bert`` draws them: heads of 64 columns, mean pooling,
    vectors of length 1.
    """
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
    head.words = cast(nn.Parameter, bert.embeddings.word.weight)  # tied
    return MaskedLanguageModel(head, tokenizer, bert, Pooling("mean", width), True).eval()
