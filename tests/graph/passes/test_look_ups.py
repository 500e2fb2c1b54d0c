"""Look-ups and writes at the positions of all rows become what they look up or write, look-ups of
strings that are moved become one, and chains of pointwise functions between levels of 8 bits become
tables, with the same results."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Function,
    Maker,
    S,
    applied,
    assert_left_alone,
    assert_runs,
    graph_of,
    ops,
)

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.dtype import FLOAT32, INT8, INT64, STRING, UINT8, DType
from ftuner.frontends.onnx.quantised import levels_of, quantised
from ftuner.graph.algebra import apply, concat, constant, exp, gather, iota, sigmoid, tanh
from ftuner.graph.ir import Value
from ftuner.graph.ops.learning import Words
from ftuner.graph.passes.look_ups import level_tables, share_words, whole_indices
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.verify import verify
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.reference import run_reference

# All rows.


def grid(*shape: Dim, turned: bool = False) -> Value:
    """The positions of all elements of a shape, one in each row, the last index first if
    `turned`."""
    rows = [
        iota(extent, axis, len(shape)).broadcast(shape).reshape((1, product(shape)))
        for axis, extent in enumerate(shape)
    ]
    return concat(rows[::-1] if turned else rows, 0).swapped()


def scattered(g: Maker, shape: Shape, at: Value, rows: Shape, kind: str = "none") -> Value:
    x, y = g.given("x", *shape), g.given("y", *rows)
    return apply("scatter_nd", x, at, y, kind=kind, node="")


def by_positions(g: Maker) -> Value:
    at = iota(B).reshape((1, B)).swapped()
    return exp(apply("gather_nd", g.given("x", B, S, 4), at, batch_dims=0, node=""))


def nowhere(g: Maker) -> Value:
    return exp(scattered(g, (B, S, 4), g.constant(np.zeros((0, 1), np.int64)), (0, S, 4)))


WHOLE: dict[str, Body] = {
    "rows in order": lambda g: exp(gather(g.given("x", B, S, 4), iota(S), axis=1)),
    "first rows by positions": by_positions,
    "written everywhere": lambda g: exp(scattered(g, (B, S, 4), grid(B, S, 4), (B * S * 4,))),
    "rows written": lambda g: exp(scattered(g, (B, S, 4), grid(B, S), (B * S, 4))),
    "written nowhere": nowhere,
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_whole(body: Body, widest: CpuBackend) -> None:
    found = applied(whole_indices, graph_of(body))
    assert not {"gather", "gather_nd", "scatter_nd", "iota"} & set(ops(found))
    assert_runs(found, widest, *({"B": b, "S": s} for b, s in ((2, 3), (1, 1), (0, 2), (3, 0))))


OTHERS: dict[str, Body] = {
    "of a part": lambda g: gather(g.given("x", B, S, 4), iota(B), axis=1),
    "in another order": lambda g: scattered(g, (S, S), grid(S, S, turned=True), (S * S,)),
    "added": lambda g: scattered(g, (B, S), grid(B, S), (B * S,), "add"),
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_others(body: Body) -> None:
    assert_left_alone(whole_indices, body)


# Strings.

FIRST = Words(("a", "b", "a"), np.array([10, 20, 30, -1]))
SECOND = Words(("c", "b"), np.array([0.5, 1.5, 2.5], np.float32))
NAMES = np.array([["a", "b", "x"], ["b", "c", ""], ["c", "x", "b"], ["\0", "a", "a"]], object)


def strings(g: Maker) -> Value:
    return g.given("x", B, 3, dtype=STRING)


def looked_up(x: Value, words: Words) -> Value:
    return apply("translated", x, words=words)


def column(x: Value, at: int) -> Value:
    return x.slice(1, at, 1)


def moved(g: Maker) -> Sequence[Value]:
    """Slices, one of them reshaped, and what numbers of an input gather."""
    x, at = strings(g), g.given("at", B, dtype=INT64)
    return [
        looked_up(column(x, 0), FIRST),
        looked_up(column(x, 2).reshape((B,)), SECOND),
        looked_up(gather(x, at), SECOND),
    ]


def test_one_look_up() -> None:
    graph = graph_of(moved)
    found = share_words(graph)
    verify(found)
    assert ops(found).count("translated") == 1
    assert all(v.dtype != STRING for node in found.nodes for v in node.outputs)
    inputs = [NAMES, np.array([3, 0, 2, 2])]
    for x, wanted in zip(run_reference(found, inputs), run_reference(graph, inputs), strict=True):
        assert x.dtype == wanted.dtype
        assert x.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "body",
    [
        # All strings would be looked up instead of a third.
        lambda g: looked_up(column(strings(g), 1), FIRST),
        lambda g: [looked_up(x, words) for x in (strings(g),) for words in (FIRST, SECOND)],
        lambda g: looked_up(
            strings(g).reshape((B * 3,)), Words(("a",), np.array(["b", "c"], object))
        ),
    ],
    ids=["one of many", "not moved", "to strings"],
)
def test_strings_that_are_left_alone(body: Body) -> None:
    graph = graph_of(body)
    assert ops(share_words(graph)) == ops(graph)


# Levels.

SCALE = 0.037


def widened(x: Value, scale: float = SCALE) -> Value:
    zero = constant(np.array(7, x.dtype.name))
    return levels_of(x, zero, FLOAT32) * scale


def rounded(x: Value, dtype: DType = UINT8, scale: float = SCALE) -> Value:
    return quantised(x, x.like(scale).reshape(()), constant(np.array(9, dtype.name)), dtype)


def gelu(x: Value) -> Value:
    """As quantisers write it: each function gives levels."""
    error = rounded(apply("erf", widened(x) / 1.4142135), INT8, 0.0079)
    lifted = rounded(widened(error, 0.0079) + 1, UINT8, 0.0079)
    return rounded(widened(x) * widened(lifted, 0.0079))


CHAINS: dict[str, Function] = {
    "sigmoid": lambda x: rounded(sigmoid(widened(x)), INT8, 0.004),
    "gelu": gelu,
    "in floats": lambda x: widened(rounded(tanh(widened(rounded(widened(x) * 1.5))))) + 0.25,
}


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("name", CHAINS)
def test_tables(backend: CpuBackend, name: str, dtype: DType) -> None:
    graph = graph_of(lambda g: CHAINS[name](g.given("x", B, S, dtype=dtype)))
    found = optimised(graph, halves=False)
    assert ops(found).count("look_up") == 1
    assert not {"erf", "tanh", "sigmoid"} & {*ops(found)}
    run = CompiledGraph(found, backend, Options(threads=2)).run
    limits = np.iinfo(dtype.name)
    everything = np.arange(limits.min, limits.max + 1, dtype=dtype.name)
    for rows, width in ((0, 3), (3, 0), (1, 1), (3, 15), (2, 64), (5, 131), (9, 256)):
        x = np.resize(np.random.default_rng(width).permutation(everything), (rows, width))
        np.testing.assert_array_equal(run([x])[0], run_reference(graph, [x])[0], f"{rows} {width}")


def levels(g: Maker, name: str = "x") -> Value:
    return g.given(name, 5, dtype=UINT8)


def columns() -> Value:
    return constant(np.linspace(0.5, 1, 5, dtype=np.float32))


NO_TABLES: dict[str, Body] = {
    "one rounding is as fast": lambda g: rounded(widened(levels(g)) * 2),
    "a number for each column": lambda g: rounded(sigmoid(widened(levels(g)) * columns())),
    "another shape": lambda g: rounded(sigmoid(widened(levels(g)).unsqueeze([0]))),
    "no 8-bit result": lambda g: sigmoid(widened(levels(g))),
    "two tensors": lambda g: rounded(sigmoid(widened(levels(g)) + widened(levels(g, "y")))),
}


@pytest.mark.parametrize("body", NO_TABLES.values(), ids=NO_TABLES)
def test_what_is_no_table(body: Body) -> None:
    graph = graph_of(body)
    assert level_tables(graph) is graph
