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
from minisbert.models.pooling import ModelPooling
from minisbert.models.transformer_encoder import evaluating
from minisbert.training.base_loss import SCORED, Loss, Network, RowNetwork
from minisbert.training.losses import mlm_losses
from minisbert.training.scores import Evaluation, evaluate_encoder, mean_of

# A token is chosen to be predicted if its chance, drawn from 0 to 1, is below ``CHOSEN``.
CHOSEN = 0.15
MASKED = 0.8 * CHOSEN  # below this it becomes [MASK]: 80 % of the chosen ones
REPLACED = 0.9 * CHOSEN  # below this a random token: 10 %; the last 10 % stay
DEV_BATCH = 64  # texts
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALPHABET = 200  # characters, the most frequent; a word with another one is unknown
HEAD_WIDTH = 64  # as in BERT

# -----------------------------------------------------------------------------
# masks


def mask_tokens(
    ids: Tensor, words: Tensor, mask_id: int, chance: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """Hide 15 % of a batch's words: return inputs (B, T), and which tokens to predict, (B, T).

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
    # They are drawn on the CPU: a GPU's generator would give another run.
    chance = torch.rand(ids.shape, generator=generator)
    other = torch.randint(vocabulary, ids.shape, generator=generator)
    return mask_tokens(ids, words, mask_id, chance.to(ids.device), other.to(ids.device))


# -----------------------------------------------------------------------------
# the loss


class MaskedNetwork(RowNetwork):
    """Apply a ``MaskedLanguageModel`` to texts in which other words are hidden every time."""

    def __init__(self, model: MaskedLanguageModel, columns: TextColumns):
        super().__init__()
        self.model = model
        self.columns = columns
        self.encoded = columns.encoded
        self.lengths = columns.lengths

    def forward(self, rows: Sequence[int]) -> Tensor:
        """The sum of each row's losses of hidden words, and their number: (B, 2).

        They are sums and not means, so that those of a batch's parts, or processes, can be added.
        """
        ids, mask = self.columns.batch(rows)
        losses, _, chosen = guess(self.model, ids, mask, dtype=self.dtype)
        token_losses = torch.zeros(chosen.shape, device=losses.device)
        token_losses = token_losses.masked_scatter(chosen, losses)  # (B, T), 0 if not hidden
        return torch.stack([token_losses.sum(dim=1), chosen.sum(dim=1)], dim=1)


def guess(
    model: MaskedLanguageModel,
    ids: Tensor,
    mask: Tensor | None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hide words of ids (B, T), and let the model guess them.

    Returns the loss of each of the N hidden words (N,), whether it was guessed (N,), and which
    tokens they are (B, T).
    """
    ids = ids.to(model.device)
    if mask is not None:
        mask = mask.to(model.device)
    words = ~torch.isin(ids, torch.tensor(model.special_ids, device=model.device))
    inputs, chosen = draw_masks(ids, words, model.mask_id, len(model.head.bias), generator)
    logits = model.logits(inputs, mask, chosen, dtype)  # (N, V)
    targets = ids[chosen]
    # The texts of a small batch may have no word to hide. A sum over the empty logits has a graph,
    # so that ``backward`` can be called.
    if len(targets) == 0:
        no_losses = logits.sum(dim=1)  # (0,)
        return no_losses, targets.bool(), chosen
    guessed = logits.argmax(dim=1) == targets
    return mlm_losses(logits, targets), guessed, chosen


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
        # If no word was hidden, there is nothing to learn, and the loss is 0 / 1.
        return sums.sum() / counts.sum().clamp_min(1)

    def evaluate(self, model: Any, rows: Any) -> Evaluation:
        """The share of hidden words that is guessed; with scores also the correlation."""
        # Each text once, in the order of the rows.
        texts: dict[str, None] = {}
        for row in rows:
            for value in row:
                if isinstance(value, str):
                    texts[value] = None
        ids = model.tokenizer.encode(list(texts)).ids

        generator = torch.Generator().manual_seed(0)  # hides the same words every time
        guessed_in_batches: list[Tensor] = []
        with evaluating(model):
            for start in range(0, len(ids), DEV_BATCH):
                batch, mask = pad_batch(ids[start : start + DEV_BATCH], model.tokenizer.pad_id)
                _, guessed, _ = guess(model, batch, mask, generator)
                guessed_in_batches.append(guessed)
        # The mean is computed on the CPU, because Apple's GPU has no float64.
        hits = torch.cat(guessed_in_batches).cpu().double().numpy()
        if len(hits) == 0:
            raise InputError("no word of dev or test was chosen to be guessed; give more rows")

        scores = {"masked_accuracy": float(hits.mean())}
        if not isinstance(rows[0][-1], str):
            scores |= evaluate_encoder(model, rows).scores
        return mean_of(scores, "masked_accuracy", hits)


# -----------------------------------------------------------------------------
# a new model


def train_vocabulary(texts: Sequence[str], size: int, max_length: int = 128) -> ModelTokenizer:
    """Train BERT's uncased WordPiece tokenizer of ``size`` pieces.

    They are the single characters, then what the texts need most. The same texts give the same
    vocabulary. Raises ``InputError`` if ``size`` has no room for the characters.
    """
    texts = check_texts(texts)
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    # The alphabet: spaces separate words and are in none.
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
    # and breaks ties by number; as special tokens they have their numbers before it starts
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=pieces,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)

    # In the trained tokenizer the single characters are special tokens, so a new one is made of its
    # vocabulary. The ids of [SEP] and [CLS] are their places in SPECIAL.
    trained = Backend(models.WordPiece(backend.get_vocab(), unk_token="[UNK]"))
    trained.normalizer = backend.normalizer
    trained.pre_tokenizer = backend.pre_tokenizer
    trained.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    trained.add_special_tokens(SPECIAL)
    return ModelTokenizer(trained, max_length)


def new_model(
    tokenizer: ModelTokenizer, layers: int, width: int, dropout: float = 0.1
) -> MaskedLanguageModel:
    """Make a model of random weights as ``Bert`` draws them.

    It has attention heads of 64 columns, mean pooling, and vectors of length 1.
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
    # The table of words is the embeddings', one parameter. (torch declares it as a Tensor.)
    head.words = cast(nn.Parameter, bert.embeddings.word.weight)
    pooling = ModelPooling("mean", width)
    return MaskedLanguageModel(head, tokenizer, bert, pooling, normalize=True).eval()
