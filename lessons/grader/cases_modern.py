"""Hand examples and traps of lessons 19 and 23: rotation, RMSNorm, SwiGLU, MaxSim."""

from lessons.grader.cases import cases, d, example, t, trap
from minisbert.architectures import modern, qwen3
from minisbert.search import by_tokens


@cases("modern.rotate")
def _():
    quarter = d([0.0, 0.0]), d([1.0, 1.0])
    yield example(
        "(3, 4) by a quarter turn", d([-4.0, 3.0]), modern.rotate, d([3.0, 4.0]), *quarter
    )
    cos = d([0.0, 1.0, 0.0, 1.0])
    sin = d([1.0, 0.0, 1.0, 0.0])
    name = "the pair (1, 3) by a quarter turn, the pair (2, 4) not at all"
    x = d([1.0, 2.0, 3.0, 4.0])
    yield example(name, d([-3.0, 2.0, 1.0, 4.0]), modern.rotate, x, cos, sin)
    yield trap(
        "float32 stays float32",
        t([-4.0, 3.0]),
        modern.rotate,
        t([3.0, 4.0]),
        t([0.0, 0.0]),
        t([1.0, 1.0]),
    )


@cases("qwen3.rms_norm")
def _():
    yield example(
        "[1, 7], whose mean square is 25",
        d([0.2, 1.4]),
        qwen3.rms_norm,
        d([1.0, 7.0]),
        d(1.0, 1.0),
        0.0,
    )
    yield example("the weight", d([0.4, 0.7]), qwen3.rms_norm, d([1.0, 7.0]), d(2.0, 0.5), 0.0)
    yield trap("a vector of zeros", d([0.0, 0.0]), qwen3.rms_norm, d([0.0, 0.0]), d(1.0, 1.0), 1e-6)


@cases("qwen3.swiglu")
def _():
    yield example("gate 1, up 2", d(1.4621), qwen3.swiglu, d(1.0), d(2.0))
    yield example("gate -1, up 1", d(-0.26894), qwen3.swiglu, d(-1.0), d(1.0))
    yield trap("a gate far below 0", d(0.0, 0.0), qwen3.swiglu, d(-1000.0, -1e5), d(2.0, -3.0))
    yield trap("a gate far above 0", d(2000.0), qwen3.swiglu, d(1000.0), d(2.0))


QUERY = ([1.0, 0.0], [0.0, 1.0])
DOCUMENT = ([0.6, 0.8], [1.0, 0.0], [0.0, -1.0])


@cases("by_tokens.max_sim")
def _():
    yield example(
        "1 and the best of .8, 0 and -1", d(1.8)[0], by_tokens.max_sim, d(*QUERY), d(*DOCUMENT)
    )
    one = d([0.6, 0.8])
    other = d([0.8, 0.6])
    yield example("one token against one", d(0.96)[0], by_tokens.max_sim, one, other)
    opposite = d([-1.0, 0.0], [-0.6, -0.8])
    yield trap("the best may be below 0", d(-0.6)[0], by_tokens.max_sim, d([1.0, 0.0]), opposite)
