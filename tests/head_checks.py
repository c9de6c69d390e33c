"""The parity checks of heads and learned pooling: values and gradients against ``heads.safetensors``.

Importing this module enters them into ``checks.CHECKS``. ``reference/heads_reference.py`` says whose values they are.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from minisbert.core import heads
from minisbert.core.bert import Bert
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.checks import check
from tests.parity import GRADIENT, PIECE, ROOT, Comparison, compare, golden
from tests.reference.heads_reference import CONCATS, HIDDEN, SECONDS, WIDTH
from tests.reference.texts import SENTENCES


def with_golden(
    name: str, module: nn.Module, run: Callable[..., Tensor], inputs: dict[str, Tensor]
) -> Iterator[Comparison]:
    """``run`` with the golden parameters in ``module``: its value, then the gradient of inputs and parameters."""
    reference = golden("heads")
    module.double().load_state_dict({key: reference[f"{name}.param.{key}"] for key in module.state_dict()})
    value = run()
    yield compare(name, value, reference[f"{name}.value"].reshape(value.shape), PIECE)
    tensors = inputs | dict(module.named_parameters())
    pull = reference[f"{name}.pull"].reshape(value.shape)
    gradients = torch.autograd.grad(value, list(tensors.values()), pull, allow_unused=True)
    for key, gradient in zip(tensors, gradients, strict=True):
        expected = reference[f"{name}.grad.{key}"]
        # an input that was left out has no gradient: that is a zero that must not be
        gradient = torch.zeros_like(expected) if gradient is None else gradient
        yield compare(f"{name}, gradient of {key}", gradient, expected, GRADIENT)


@check
def concat_heads() -> Iterator[Comparison]:
    """SBERT's seven combinations and the siamese one; with and without a hidden layer, one output and three."""
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
        yield from with_golden(variant, head, lambda head=head: head(a, b, *masks), {"a": a, "b": b})


def tiny(pooling: str | None = None) -> SentenceEncoder:
    return SentenceEncoder.load(ROOT / "weights" / "tiny", pooling).double()


def watched(bert: Bert) -> dict[str, Tensor]:
    return {"embeddings": bert.embeddings.norm.weight}


def pair_model(name: str, head: heads.Head, task: str = "regression", labels: tuple = ()) -> Iterator[Comparison]:
    """Texts in, scores out: through the tokenizer, batches with pads, the encoder and the head."""
    model = PairModel(tiny(), head, task, labels)
    encoded = model.tokenize(SENTENCES, SECONDS)
    batch = model.batch(encoded, range(len(SENTENCES)))
    yield from with_golden(f"pair.{name}", head, lambda: model(*batch), watched(model.encoder.bert))
    scores = torch.from_numpy(model.scores(SENTENCES, SECONDS, batch_tokens=40))  # several batches, sorted by length
    value = golden("heads")[f"pair.{name}.value"]
    expected = value.softmax(dim=-1) if task == "classes" else 5 * value.squeeze(-1)
    yield compare(f"pair.{name}, scores", scores, expected, PIECE)


@check
def pair_models() -> Iterator[Comparison]:
    """Each head behind the tiny encoder."""
    yield from pair_model("siamese", heads.siamese(24, hidden=HIDDEN))
    yield from pair_model("concat", heads.ConcatHead(24, outputs=3), "classes", ("a", "b", "c"))
    yield from pair_model("joint", heads.JointHead(24, hidden=HIDDEN))
    yield from pair_model("published", heads.CrossHead(24, "published", hidden=HIDDEN))
    yield from pair_model("compare", heads.CrossHead(24, "compare", hidden=HIDDEN))


@check
def more_poolings() -> Iterator[Comparison]:
    """Attention, first-last average and BERT's pooler, through the encoder, before the vectors are scaled."""
    for name in ("attention", "first-last", "pooler"):
        encoder = tiny(name)
        encoded = encoder.tokenizer.encode(SENTENCES)
        longest = max(map(len, encoded.ids))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in encoded.ids])
        mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in encoded.ids])
        run = lambda encoder=encoder, ids=ids, mask=mask: encoder.unscaled(ids, mask)  # noqa: E731
        yield from with_golden(f"pool.{name}", encoder.pooling, run, watched(encoder.bert))
