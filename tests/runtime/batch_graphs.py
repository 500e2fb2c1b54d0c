"""Graphs of models that run batches of requests, and such batches."""

from collections.abc import Sequence
from typing import Any

from tests.graph.graphs import B, Maker, S, T, builds, inputs_of

from ftuner.core.dtype import INT64
from ftuner.graph.ir import Graph


@builds
def encoder_of(g: Maker, layers: int, tail: int) -> Any:
    """Layers after an embedding and its positions; then a vector of each sentence."""
    at, mask = g.given("at", B, S, dtype=INT64), g.given("mask", B, S)
    x = g.add("gather", g.weight(3, 64), at, axis=0)
    for _ in range(layers):
        y = g.linear(g.self_attention(x, mask, 2), 64) + x
        x = g.add("norm", y, g.weight(64), g.weight(64), axis=2, epsilon=1e-5, rms=False)
        x = g.linear(g.gelu(g.linear(x, 128)), 64) + x
    return x, g.linear(x.mean([1], keep=False), tail), x.reduce("maximum", [2])


@builds
def translator(g: Maker) -> Any:
    """Two layers of a decoder, whose texts are of another length than those it reads."""
    x, at = g.linear(g.given("x", B, S, 64), 64), g.given("at", B, T, dtype=INT64)
    y = g.add("gather", g.weight(3, 64), at, axis=0)
    for _ in range(2):
        for read in (None, x):
            norm = g.add("norm", y, g.weight(64), g.weight(64), axis=2, epsilon=1e-5,
                         rms=False)  # fmt: skip
            other = norm if read is None else read
            q, k, v = g.linear(norm, 64), g.linear(other, 64), g.linear(other, 64)
            seen = g.attention(
                g.heads(q, 2, (0, 2, 1, 3)), g.heads(k, 2, (0, 2, 3, 1)),
                g.heads(v, 2, (0, 2, 1, 3)), 0.2, None,
            )  # fmt: skip
            seen = g.add("reshape", seen.transpose((0, 2, 1, 3)), shape=y.shape)
            # Row-wise between attention and what reads its result.
            y = g.add("erf", g.linear(y, 64)) + y
            y = g.linear(seen, 64) + y
    return y


@builds
def biased(g: Maker) -> Any:
    """An attention whose scores depend on distances, which a program computes in its first run."""
    x = g.linear(g.given("x", B, S, 64), 64)
    at = g.add("iota", shape=(S,), axis=0).cast(x.dtype)
    rows, keys = (g.add("reshape", at, shape=shape) for shape in ((S, 1), (S,)))
    bias = g.add("reshape", g.add("tanh", rows - keys), shape=(1, 1, S, S))
    q, v = g.heads(x, 2, (0, 2, 1, 3)), g.heads(x, 2, (0, 2, 1, 3))
    seen = g.attention(q, g.heads(x, 2, (0, 2, 3, 1)), v, 0.2, bias)
    return g.linear(g.add("reshape", seen.transpose((0, 2, 1, 3)), shape=x.shape), 64)


def requests(graph: Graph, lengths: Sequence[int], batch: int = 1) -> list[dict[str, Any]]:
    return [inputs_of(graph, {"B": batch, "S": n}, seed) for seed, n in enumerate(lengths)]


def assert_equal(together: Sequence[Sequence[Any]], alone: Sequence[Sequence[Any]]) -> None:
    for number, (found, wanted) in enumerate(zip(together, alone, strict=True)):
        for x, y in zip(found, wanted, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert x.tobytes() == y.tobytes(), number
