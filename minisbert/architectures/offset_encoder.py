"""The encoder of BERT's relatives: the book's layers, and positions that may start at an offset.

RoBERTa, DistilBERT and MPNet are made of it; each says in its file what else it changes. Imports
``core`` and the forward that all encoders of this folder share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minisbert.architectures.modern import ModernEncoder
from minisbert.core.bert import Layer, LayerNorm
from minisbert.core.checks import check_integer
from minisbert.core.weights import BertConfig


@dataclass(frozen=True)
class OffsetConfig(BertConfig):
    """The book's settings, and where positions start.

    If ``type_vocab_size`` is 0, the encoder has no table of token types.
    """

    position_offset: int = 0  # rows at the start of the position table that no token uses

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("position_offset", self.position_offset, least=0)
        if self.positions < 1:
            rows = f"max_position_embeddings {self.max_position_embeddings}"
            raise ValueError(f"{rows} leaves no position for a token")

    @property
    def positions(self) -> int:
        """The largest number of tokens that one text can have."""
        return self.max_position_embeddings - self.position_offset


class OffsetEmbeddings(nn.Module):
    """What the token is, plus its position, plus the sentence it belongs to, if there is a table.

    As the book's ``Embeddings``, at positions that are given and start at an offset.
    """

    def __init__(self, config: OffsetConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = None
        if config.type_vocab_size:
            self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.offset = config.position_offset
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, token_types: Tensor | None, positions: Tensor) -> Tensor:
        """ids (B, T), positions (B or 1, T) that count from 0 -> (B, T, D).

        token_types (B, T) are all 0 if they are None.
        """
        x = self.word(ids) + self.position(positions + self.offset)  # (B, T, D)
        if self.token_type is not None:
            if token_types is None:
                token_types = torch.zeros_like(ids)
            x = x + self.token_type(token_types)  # (B, T, D)
        return self.dropout(self.norm(x))  # (B, T, D)


class OffsetEncoder(ModernEncoder):
    """BERT with ``OffsetEmbeddings``.

    Its layers are the book's; a subclass may give it others, which are called in the same way.
    """

    def __init__(
        self, config: OffsetConfig, pooler: bool = True, layers: Iterable[nn.Module] | None = None
    ):
        if layers is None:
            layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        super().__init__(config, OffsetEmbeddings(config), layers, pooler=pooler)

    def view(
        self, mask: Tensor | None, positions: Tensor, dtype: torch.dtype
    ) -> Sequence[Tensor | None]:
        """Return the mask (B, 1, 1 or T, T) for each layer; positions are in the embeddings."""
        return [mask] * len(self.layers)
