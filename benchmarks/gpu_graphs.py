"""Small graphs that a GPU's nests and products are checked with, made without a model file."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu_bench import Bench, finite
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

Array = npt.NDArray[Any]
ROWS, WIDTH, HEADS, HIDDEN, VOCABULARY = symbol("S"), 24, 2, 40, 50
EXTENTS = (1, 7, 9, 130, 150)
"""Those of one kernel run together with the bits that they have alone."""
DRY_EXTENTS = (3, 2)
TOLERANCE = 1e-4
"""Of what sums of a few dozen float32 terms, divided by their spread, may err by."""


class _Maker(Builder):
    """A builder with weights."""

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(0)

    def weight(self, *shape: int) -> Value:
        array = self._random.standard_normal(shape) / shape[0] ** 0.5
        return self.constant(array.astype(np.float32))

    def number(self, value: float) -> Value:
        return self.constant(np.float32(value))


def _pointwise(b: _Maker, x: Value) -> Value:
    y = b.add("add", b.add("sigmoid", x), b.add("tanh", b.add("multiply", x, b.number(0.5))))
    return b.add("where", b.add("less", x, b.number(0.0)), b.add("exp", x), y)


def _softmax(b: _Maker, x: Value) -> Value:
    return b.add("softmax", x, axis=1, log=False)


def _norm(b: _Maker, x: Value) -> Value:
    return b.add("norm", x, b.weight(WIDTH), b.weight(WIDTH), axis=1, epsilon=1e-5, rms=False)


def _transposed(b: _Maker, x: Value) -> Value:
    return b.add("softmax", b.add("transpose", x, perm=(1, 0)), axis=1, log=False)


def _layers(b: _Maker, x: Value) -> Value:
    hidden = b.add("gelu", b.add("matmul", x, b.weight(WIDTH, HIDDEN)))
    return b.add("add", b.add("matmul", hidden, b.weight(HIDDEN, WIDTH)), x)


def _attending(causal: bool) -> Callable[[_Maker, Value], Value]:
    def made(b: _Maker, x: Value) -> Value:
        q, k, v = (
            b.add("transpose", b.add("reshape", y, shape=(ROWS, HEADS, WIDTH // HEADS)), perm=perm)
            for y, perm in zip(
                [b.add("matmul", x, b.weight(WIDTH, WIDTH)) for _ in range(3)],
                ((1, 0, 2), (1, 2, 0), (1, 0, 2)), strict=True,
            )
        )  # fmt: skip
        softmax = AttentionSoftmax(0.3, 0 if causal else None)
        of_keys = b.add(
            "reshape", b.add("reduce", x, kind="maximum", axes=(1,)), shape=(1, 1, ROWS)
        )
        y = b.add("attention", q, k, v, *[of_keys] * (not causal), **vars(softmax))
        y = b.add("reshape", b.add("transpose", y, perm=(1, 0, 2)), shape=(ROWS, WIDTH))
        return b.add("matmul", y, b.weight(WIDTH, WIDTH))

    return made


GRAPHS: dict[str, Callable[[_Maker, Value], Value]] = {
    "pointwise": _pointwise,
    "softmax": _softmax,
    "norm": _norm,
    "transpose and softmax": _transposed,
    "two layers": _layers,
    "attention with a mask": _attending(False),
    "causal attention": _attending(True),
}


def made(name: str) -> Graph:
    """A graph of rows of numbers, or of rows that are gathered from a table."""
    builder = _Maker()
    tokens = builder.input("tokens", INT64, (ROWS,))
    x = builder.input("x", FLOAT32, (ROWS, WIDTH))
    rows = builder.add("gather", builder.weight(VOCABULARY, WIDTH), tokens, axis=0)
    y = GRAPHS[name](builder, builder.add("add", rows, x))
    return builder.graph([tokens, x], [("y", y)])


def run_graph(bench: Bench, backend: GpuBackend, name: str) -> float:
    """The largest error of a graph, at several extents, over what rounding explains; infinite where
    a batch of all has other bits."""
    graph = made(name)
    model = Model(optimised(graph), backend)
    random = np.random.default_rng(1)
    batch, expected = [], []
    for rows in DRY_EXTENTS if bench.dry else EXTENTS:
        tokens = random.integers(0, VOCABULARY, rows)
        x = random.standard_normal((rows, WIDTH)).astype(np.float32)
        feeds = {"tokens": torch.from_numpy(tokens), "x": torch.from_numpy(x)}
        batch.append({key: value.to(bench.device) for key, value in feeds.items()})
        expected += run_reference(graph, [tokens, x])
    alone = [model.run(feeds)[0] for feeds in batch]
    together = [y for (y,) in model.run_batch(batch)]
    if not all(map(torch.equal, alone, together)):
        return float("inf")
    joined = [y for (y,) in model.run_batch(batch, exact=False)]
    worst = 0.0
    for y, wanted in zip((*alone, *joined), (*expected, *expected), strict=True):
        error = np.abs(y.cpu().numpy() - wanted) / (TOLERANCE * (1.0 + np.abs(wanted)))
        worst = max(worst, finite(torch.from_numpy(error).max()))
    return worst
