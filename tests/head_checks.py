"""Parity checks of heads and learned pooling: values and gradients against ``heads.safetensors``.

Importing this module adds them to ``checks.CHECKS``. The values come from
``reference/heads_reference.py``.
"""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

import minisbert
from minisbert.core import heads
from minisbert.core.bert import Bert
from minisbert.core.encoder import SentenceEncoder
from minisbert.core.tokenizer import pad_batch
from minisbert.models.pooling import Pooling, first_last_pool
from tests.checks import check, compare_gradients
from tests.parity import PIECE, ROOT, Comparison, compare, golden
from tests.reference.heads_reference import CONCATS, HIDDEN, SECONDS, WIDTH
from tests.reference.texts import SENTENCES


def with_golden(
    name: str, module: nn.Module, run: Callable[..., Tensor], inputs: dict[str, Tensor]
) -> Iterator[Comparison]:
    """``run`` with the golden parameters in ``module``: its value, then the gradients of inputs and
    parameters.
    """
    reference = golden("heads")
    module.double().load_state_dict(
        {key: reference[f"{name}.param.{key}"] for key in module.state_dict()}
    )
    value, tensors = run(), inputs | dict(module.named_parameters())
    expected, pull = (reference[f"{name}.{key}"].reshape(value.shape) for key in ("value", "pull"))
    gradients = [reference[f"{name}.grad.{key}"] for key in tensors]
    yield from compare_gradients(name, value, expected, tensors, gradients, pull)


@check
def concat_heads() -> Iterator[Comparison]:
    """SBERT's seven combinations and the siamese one, with and without a hidden layer, with one
    output and three.
    """
    reference = golden("heads")
    u, v = reference["u"].requires_grad_(), reference["v"].requires_grad_()
    for i, concat in enumerate(CONCATS):
        outputs = reference[f"concat.{i}.value"].shape[1]
        head = heads.ConcatHead(WIDTH, concat, hidden=HIDDEN * (i % 2), outputs=outputs)
        yield from with_golden(f"concat.{i}", head, lambda head=head: head(u, v), {"u": u, "v": v})


@check
def joint_head() -> Iterator[Comparison]:
    a = golden("heads")["a"].requires_grad_()
    head = heads.JointHead(WIDTH, hidden=HIDDEN)
    yield from with_golden("joint", head, lambda: head(a), {"a": a})


@check
def cross_heads() -> Iterator[Comparison]:
    """Both variants, with pads on both sides."""
    reference = golden("heads")
    a, b = reference["a"].requires_grad_(), reference["b"].requires_grad_()
    masks = reference["mask_a"], reference["mask_b"]
    for variant in ("published", "compare"):
        head = heads.CrossHead(WIDTH, variant, hidden=HIDDEN)
        yield from with_golden(
            variant, head, lambda head=head: head(a, b, *masks), {"a": a, "b": b}
        )


def full_tiny(pooling: str | None = None) -> minisbert.SentenceEncoder:
    """The tiny checkpoint as ``PairModel`` needs it, or with a pooling that the book does not
    have.
    """
    return minisbert.SentenceEncoder.load(ROOT / "weights" / "tiny", pooling=pooling).double()


def first_parameter(bert: Bert) -> dict[str, Tensor]:
    """The parameter that the gradient reaches last, through every layer."""
    return {"embeddings": bert.embeddings.norm.weight}


def pair_model(
    name: str, head: heads.Head, task: str = "regression", labels: tuple = ()
) -> Iterator[Comparison]:
    """From texts to scores: the tokenizer, padded batches, the encoder and the head."""
    model = minisbert.PairModel(full_tiny(), head, task, labels)
    encoded = model.tokenize(SENTENCES, SECONDS)
    batch = model.batch(encoded, range(len(SENTENCES)))
    yield from with_golden(
        f"pair.{name}", head, lambda: model(*batch), first_parameter(model.encoder.bert)
    )
    pairs = list(zip(SENTENCES, SECONDS, strict=True))
    scores = model.predict(
        pairs, batch_size=1, apply_softmax=True, convert_to_tensor=True
    )  # several batches
    value = golden("heads")[f"pair.{name}.value"]
    expected = value.softmax(dim=-1) if task == "classes" else value.squeeze(-1)
    yield compare(f"pair.{name}, scores", scores, expected, PIECE)


@check
def pair_models() -> Iterator[Comparison]:
    """Each head on the tiny encoder."""
    yield from pair_model("siamese", heads.siamese(24, hidden=HIDDEN))
    yield from pair_model("concat", heads.ConcatHead(24, outputs=3), "classes", ("a", "b", "c"))
    yield from pair_model("joint", heads.JointHead(24, hidden=HIDDEN))
    yield from pair_model("published", heads.CrossHead(24, "published", hidden=HIDDEN))
    yield from pair_model("compare", heads.CrossHead(24, "compare", hidden=HIDDEN))


@check
def more_poolings() -> Iterator[Comparison]:
    """Attention and BERT's pooler, through the encoder, before the vectors are scaled, and the
    first-last average.
    """
    full = full_tiny()
    attention = SentenceEncoder(
        full.tokenizer, full.bert, Pooling("attention", full.width), full.normalize
    )
    ids, mask = pad_batch(full.tokenizer.encode(SENTENCES).ids, full.tokenizer.pad_id)
    for name, encoder in (("attention", attention), ("pooler", full_tiny("pooler"))):
        run = lambda encoder=encoder: encoder.unscaled(ids, mask)  # noqa: E731
        yield from with_golden(f"pool.{name}", encoder.pooling, run, first_parameter(encoder.bert))

    def first_last() -> Tensor:
        _, first, *_, last = full.bert.hidden_states(ids, mask)
        return first_last_pool(last, mask, first)

    yield from with_golden("pool.first-last", nn.Module(), first_last, first_parameter(full.bert))
