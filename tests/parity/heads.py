"""Heads and learned pooling: values and gradients beside ``heads.safetensors``.

The golden values come from ``reference/heads_reference.py``.
"""

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor, nn

import minisbert
from minisbert.core import heads
from minisbert.core.bert import Bert
from minisbert.core.tokenizer import pad_batch
from minisbert.models.pair_heads import ClsCrossHead, Head
from minisbert.models.pooling import ModelPooling, first_last_pool
from tests.parity import PIECE, ROOT, Comparison, compare, golden
from tests.parity.comparison import compare_gradients
from tests.reference.heads_reference import CONCATS, HIDDEN, SECONDS, WIDTH
from tests.reference.texts import SENTENCES


def with_golden(
    name: str, module: nn.Module, run: Callable[[], Tensor], inputs: dict[str, Tensor]
) -> Iterator[Comparison]:
    """``run`` with the golden parameters in ``module``: its value, then every gradient.

    The gradients are those of ``inputs``, by name, and of the module's parameters.
    """
    reference = golden("heads")
    parameters = {key: reference[f"{name}.param.{key}"] for key in module.state_dict()}
    module.double().load_state_dict(parameters)
    value = run()
    expected = reference[f"{name}.value"].reshape(value.shape)
    pull = reference[f"{name}.pull"].reshape(value.shape)
    tensors = inputs | dict(module.named_parameters())
    gradients = [reference[f"{name}.grad.{key}"] for key in tensors]
    yield from compare_gradients(name, value, expected, tensors, gradients, pull)


def concat_heads() -> Iterator[Comparison]:
    """SBERT's seven combinations and the siamese one, with and without a hidden layer.

    Some have one output, some three.
    """
    reference = golden("heads")
    u = reference["u"].requires_grad_()
    v = reference["v"].requires_grad_()
    for i, concat in enumerate(CONCATS):
        outputs = reference[f"concat.{i}.value"].shape[1]
        hidden = HIDDEN if i % 2 else 0
        features = concat.split(",")
        head = heads.ConcatHead(WIDTH, features, hidden=hidden, outputs=outputs)
        yield from with_golden(f"concat.{i}", head, partial(head, u, v), {"u": u, "v": v})


def joint_head() -> Iterator[Comparison]:
    a = golden("heads")["a"].requires_grad_()
    head = heads.JointHead(WIDTH, hidden=HIDDEN)
    yield from with_golden("joint", head, lambda: head(a), {"a": a})


def cross_heads() -> Iterator[Comparison]:
    """The book's and the notebook's, with pads on both sides."""
    reference = golden("heads")
    a = reference["a"].requires_grad_()
    b = reference["b"].requires_grad_()
    variants = {
        "published": ClsCrossHead(WIDTH, hidden=HIDDEN),
        "compare": heads.CrossHead(WIDTH, hidden=HIDDEN),
    }
    for variant, head in variants.items():
        run = partial(head, a, b, reference["mask_a"], reference["mask_b"])
        yield from with_golden(variant, head, run, {"a": a, "b": b})


def full_tiny(pooling: str | None = None) -> minisbert.SentenceEncoder:
    """The tiny checkpoint as ``PairModel`` needs it, or with a pooling that the book lacks."""
    return minisbert.SentenceEncoder.load(ROOT / "weights" / "tiny", pooling=pooling).double()


def first_parameter(bert: Bert) -> dict[str, Tensor]:
    """The parameter that the gradient reaches last, through every layer."""
    return {"embeddings": bert.embeddings.norm.weight}


def pair_models() -> Iterator[Comparison]:
    """Each head on the tiny encoder."""
    yield from pair_model("siamese", heads.siamese(24, hidden=HIDDEN))
    yield from pair_model("concat", heads.ConcatHead(24, outputs=3), "classes", ("a", "b", "c"))
    yield from pair_model("joint", heads.JointHead(24, hidden=HIDDEN))
    yield from pair_model("published", ClsCrossHead(24, hidden=HIDDEN))
    yield from pair_model("compare", heads.CrossHead(24, hidden=HIDDEN))


def pair_model(
    name: str, head: Head, task: str = "regression", labels: tuple = ()
) -> Iterator[Comparison]:
    """From texts to scores: the tokenizer, padded batches, the encoder and the head."""
    model = minisbert.PairModel(full_tiny(), head, task, labels)
    encoded = model.tokenize(SENTENCES, SECONDS)
    batch = model.batch(encoded, range(len(SENTENCES)))
    inputs = first_parameter(model.encoder.bert)
    yield from with_golden(f"pair.{name}", head, lambda: model(*batch), inputs)

    # and in several batches
    pairs = list(zip(SENTENCES, SECONDS, strict=True))
    scores = model.predict(pairs, batch_size=1, apply_softmax=True, convert_to_tensor=True)
    value = golden("heads")[f"pair.{name}.value"]
    expected = value.squeeze(-1)
    if task == "classes":
        expected = value.softmax(dim=-1)
    yield compare(f"pair.{name}, scores", scores, expected, PIECE)


def more_poolings() -> Iterator[Comparison]:
    """Attention and BERT's pooler, before vectors are scaled, and the first-last average."""
    full = full_tiny()
    ids, mask = pad_batch(full.tokenizer.encode(SENTENCES).ids, full.tokenizer.pad_id)

    pooling = ModelPooling("attention", full.width)
    attention = minisbert.SentenceEncoder(full.tokenizer, full.bert, pooling, full.normalize)
    for name, encoder in (("attention", attention), ("pooler", full_tiny("pooler"))):
        run = partial(encoder.unscaled, ids, mask)
        yield from with_golden(f"pool.{name}", encoder.pooling, run, first_parameter(encoder.bert))

    def first_last() -> Tensor:
        states = full.bert.hidden_states(ids, mask)
        return first_last_pool(states[-1], mask, states[1])

    yield from with_golden("pool.first-last", nn.Module(), first_last, first_parameter(full.bert))
