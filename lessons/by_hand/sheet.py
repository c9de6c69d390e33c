"""The bill of one training step, from the sizes of a model alone."""

from minisbert.core.weights import BertConfig


def training_step(config: BertConfig, B: int, T: int) -> dict[str, int]:
    """What a step of AdamW over B rows of T tokens costs a BERT without pooler: operations, and
    bytes in float32.

    ``forward`` and ``backward`` are floating-point operations of the matrix products, a
    multiplication and an addition for each pair of numbers; everything else is small beside them.
    ``weights``, ``gradients`` and ``moments`` (AdamW's m and v) are bytes, whatever B and T are;
    ``probabilities`` are the bytes of the attention probabilities of all layers, which backward
    needs. A model with V = 2, P = 3, D = 2, F = 4, one layer, one head, on B = 1, T = 3 has 96
    operations in its four D x D matrices, 96 in the feed-forward block, 72 between tokens: 264
    forward, 528 backward.
    """
    D = config.hidden_size
    F = config.intermediate_size
    L = config.num_hidden_layers
    V = config.vocab_size
    P = config.max_position_embeddings
    types = config.type_vocab_size
    tokens = B * T
    # Multiplications per token and layer: query, key, value, output; up and down.
    dense = 4 * D * D + 2 * D * F
    between = 2 * T * D  # scores, then contexts: D products with each of T tokens
    forward = 2 * L * tokens * (dense + between)
    # each matrix product has two factors, and each factor's gradient is a product of the same size
    backward = 2 * forward
    layer = dense + (4 * D + F + D) + 2 * 2 * D  # six matrices, their biases, two LayerNorms
    weights = 4 * ((V + P + types) * D + 2 * D + L * layer)
    probabilities = 4 * L * B * config.num_attention_heads * T * T
    return {
        "forward": forward,
        "backward": backward,
        "weights": weights,
        "gradients": weights,
        "moments": 2 * weights,
        "probabilities": probabilities,
    }
