"""What the rules of exported spellings write, and what only looks like one of these."""

import math

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Body,
    Function,
    Maker,
    S,
    T,
    applied,
    assert_close,
    assert_left_alone,
    assert_runs,
    graph_of,
    inputs_of,
    of_x,
    ops,
    reference,
    titles,
)

from ftuner.core.dim import Dim, Shape, minimum
from ftuner.core.dtype import FLOAT32, INT64, DType
from ftuner.graph.algebra import apply, concat, exp, log, sin, sqrt, zero_padded
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.rewrite import rules
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

# The normal form.

H, D = 3, 4
SPECIAL = (0.0, -0.0, 1e30, -1e30, 1e-30, math.inf, -math.inf, math.nan, 1.5, -2.0)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(2, ["multiply"]), (3, ["multiply", "multiply"]), (-1, ["divide"])],
)  # fmt: skip
def test_powers(exponent: float, expected: list[str]) -> None:
    before = graph_of(of_x(lambda x: x**exponent, S))
    after = applied(rules.normal_form, before)
    assert ops(after) == expected
    x = np.array(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        (wanted,), (found,) = (run_reference(graph, [x]) for graph in (before, after))
    np.testing.assert_array_max_ulp(found, wanted, 2)
    assert np.array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize(
    "body",
    [
        of_x(lambda x: x**0.5),
        of_x(lambda x: x**-0.5),
        of_x(lambda x: x**4),
        lambda g: g.given("x", S, dtype=INT64) ** 2,
        lambda g: g.number(2) ** g.given("x", S),
    ],
)
def test_powers_that_stay(body: Body) -> None:
    assert_left_alone(rules.normal_form, body)


def turned(merged: Shape, perm: tuple[int, ...], apart: Shape) -> Body:
    return of_x(lambda x: x.reshape(merged).transpose(perm).reshape(apart), B, H, T, D)


def test_transpositions_of_merged_axes() -> None:
    graph = applied(rules.normal_form, graph_of(turned((B * H, T, D), (0, 2, 1), (B, H, D, T))))
    assert ops(graph) == ["transpose"]
    assert graph.nodes[0].attributes == {"perm": (0, 1, 3, 2)}


@pytest.mark.parametrize(
    "body",
    [turned((B * H, T, D), (0, 2, 1), (H, B, D, T)), turned((B * H, D, T), (0, 2, 1), (B, H, T, D)),
     turned((B * H, T, D), (2, 1, 0), (D, T, B, H)), turned((B, H * T, D), (0, 2, 1), (B, D, H, T)),
    ],
)  # fmt: skip
def test_other_transpositions(body: Body) -> None:
    assert_left_alone(rules.normal_form, body)


def test_reshapes_in_a_row_are_one() -> None:
    def function(x: Value) -> Value:
        return x.reshape((B, T, H * D)).reshape((B * T, H * D)).reshape((B * T * H, D))

    before = graph_of(of_x(function, B, T, H, D))
    after = applied(rules.normal_form, before)
    assert ops(after) == ["reshape"]
    assert after.nodes[0].output.shape == before.nodes[-1].output.shape


# Norms.

WIDTH, EPSILON = 8, 1e-6


def root(x: Value, count: float = WIDTH) -> Value:
    """Of the mean of squares, as a power, a sum and a division."""
    return sqrt((x**2).reduce("sum", (x.rank - 1,)) / count + EPSILON)


def of_rows(function: Function) -> Body:
    return of_x(function, B, S, WIDTH)


with_reciprocal = of_rows(lambda x: x * (1 / root(x)))
"""As torch.rsqrt is exported."""
NORMS: tuple[tuple[Body, int], ...] = (
    # What, its operands.
    (with_reciprocal, 1),
    (of_rows(lambda x: 1 / root(x) * x), 1),
    (of_rows(lambda x: x / root(x)), 1),
    (lambda g: g.weight(WIDTH) * with_reciprocal(g), 2),
    # As Gemma scales it: above one.
    (lambda g: with_reciprocal(g) * (g.number(1) + g.given("scale", WIDTH)), 2),
)


@pytest.mark.parametrize(("body", "operands"), NORMS)
def test_rms_norms(body: Body, operands: int) -> None:
    graph = applied(rules.norms, graph_of(body))
    (node,) = [n for n in graph.nodes if n.op != "add"]
    assert node.op == "norm"
    assert len(node.inputs) == operands
    assert node.attributes["rms"]
    assert node.attributes["epsilon"] == pytest.approx(EPSILON)


@pytest.mark.parametrize(
    "body",
    [
        lambda g: g.given("y", B, S, WIDTH) * (1 / root(g.given("x", B, S, WIDTH))),
        of_rows(lambda x: x * (2 / root(x))),
        of_rows(lambda x: x / root(x, WIDTH - 1)),
        of_rows(lambda x: x + 1 / root(x)),
    ],
)
def test_what_is_no_norm(body: Body) -> None:
    assert_left_alone(rules.norms, body)


@pytest.mark.parametrize("part", ["root", "reciprocal"])
def test_norms_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, WIDTH)
        below = root(x)
        inverse = 1 / below
        return [x * inverse, {"root": below, "reciprocal": inverse}[part]]

    assert "norm" not in ops(applied(rules.norms, graph_of(body)))


# Softmax.


def shifted(x: Value, axis: int, keep: bool = True) -> Value:
    return x - x.reduce("maximum", (axis,), keep)


def shares(power: Value, axis: int = 1, keep: bool = True) -> Value:
    return power / power.reduce("sum", (axis,), keep)


def softmax(x: Value, axis: int, keep: bool = True) -> Value:
    return shares(exp(shifted(x, axis, keep)), axis, keep)


def plain(x: Value, axis: int = 1) -> Value:
    return apply("softmax", x, axis=axis, log=False)


def log_softmax(x: Value) -> Value:
    above = shifted(x, 2)
    return above - log(exp(above).reduce("sum", (2,)))


SOFTMAXES: tuple[tuple[Body, int, bool], ...] = (
    # What, its axis, whether it is the logarithm.
    (of_x(lambda x: softmax(x, 2), B, S, T), 2, False),
    (of_x(lambda x: softmax(x, 1), B, S, T), 1, False),
    (of_x(lambda x: softmax(x, 1), B, 7), 1, False),
    # The first axis need not be kept to broadcast.
    (of_x(lambda x: softmax(x, 0, keep=False), S, T), 0, False),
    (of_x(log_softmax, B, S, T), 2, True),
)


@pytest.mark.parametrize(("body", "axis", "log"), SOFTMAXES)
def test_softmax(body: Body, axis: int, log: bool) -> None:
    graph = applied(rules.softmax, graph_of(body))
    assert ops(graph) == ["softmax"]
    assert graph.nodes[0].attributes == {"axis": axis, "log": log}


def test_softmax_of_a_result() -> None:
    graph = graph_of(of_x(lambda x: exp(softmax(sin(x), 1))))
    assert ops(applied(rules.softmax, graph)) == ["sin", "softmax", "exp"]


without_the_maximum = of_x(lambda x: shares(exp(x)))


def the_other_way_around(x: Value) -> Value:
    power = exp(shifted(x, 1))
    return power.reduce("sum", (1,)) / power


def over(power: Value, kind: str, *axes: int) -> Value:
    return power / power.reduce(kind, axes)


NO_SOFTMAX: dict[str, Body] = {
    "without the maximum": without_the_maximum,
    "less the minimum": of_x(lambda x: shares(exp(x - x.reduce("minimum", (1,))))),
    "less the maximum of another": lambda g: shares(
        exp(g.given("x", B, S) - g.given("y", B, S).reduce("maximum", (1,)))
    ),
    "over two axes": of_x(
        lambda x: over(exp(x - x.reduce("maximum", (1, 2))), "sum", 1, 2), B, S, T
    ),
    "over the largest": of_x(lambda x: over(exp(shifted(x, 1)), "maximum", 1)),
    "the other way around": of_x(the_other_way_around),
    "over one axis and another": of_x(lambda x: shares(exp(shifted(x, 1)), 2), B, S, T),
    # Not kept, the last axis broadcasts along the first.
    "of a square": of_x(lambda x: softmax(x, 1, keep=False), 3, 3),
    "logarithm of the powers": of_x(lambda x: shifted(x, 1) - log(exp(shifted(x, 1)))),
}


@pytest.mark.parametrize("body", NO_SOFTMAX.values(), ids=NO_SOFTMAX)
def test_what_is_no_softmax(body: Body) -> None:
    assert_left_alone(rules.softmax, body)


@pytest.mark.parametrize(("divided", "factor"), [(1, 1), (32, 32), (5, 5), (4, 0.5), (1, 0.5)])
def test_softmax_of_what_is_above_the_largest(divided: float, factor: float) -> None:
    """As LayoutLMv3 has it: divided by 32, less the largest, times 32."""

    def function(x: Value) -> Value:
        above = shifted(x if divided == 1 else x / divided, 2)
        return plain(above if factor == 1 else above * factor, 2)

    found = applied(rules.plain_softmax, graph_of(of_x(function, B, S, T)))
    (softmax,) = (n for n in found.nodes if n.op == "softmax")
    assert "reduce" not in ops(found)
    if divided == factor:
        assert softmax.inputs == found.inputs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: plain(shifted(x, 0)),  # Above the largest along another axis.
        lambda x: plain(shifted(x, 1) * -2),
        lambda x: plain(shifted(x, 1) * 2),  # Elements that are multiplied first may overflow.
    ],
)
def test_softmax_that_is_not_plain(function: Function) -> None:
    assert_left_alone(rules.plain_softmax, of_x(function))


@pytest.mark.parametrize("part", ["power", "total"])
def test_softmax_whose_parts_somebody_reads(part: str) -> None:
    def body(g: Maker) -> list[Value]:
        power = exp(shifted(g.given("x", B, S), 1))
        total = power.reduce("sum", (1,))
        return [power / total, {"power": power, "total": total}[part]]

    assert "softmax" not in ops(applied(rules.softmax, graph_of(body)))


def test_large_numbers_without_the_maximum_stay_as_written() -> None:
    """The sum overflows, and with it all of the result is zero."""
    graph = optimised(graph_of(without_the_maximum))
    x = np.full((1, 3), 88.5, np.float32)
    assert not np.any(run_reference(graph, [x])[0])


def test_attention_with_a_softmax_written_out() -> None:
    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, 2, S, 4), g.given("k", B, 2, 4, T), g.given("v", B, 2, T, 4)
        return softmax(q @ k * 0.5 + g.given("mask", S, T), 3) @ v

    assert ops(applied(optimised, graph_of(body))) == ["attention"]


# Products over one element.


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [FLOAT32, INT64], ids=str)
@pytest.mark.parametrize(
    ("x", "y"),
    [((S, 1), (1, T)), ((B, S, 1), (1, T)), ((S, 1), (B, 1, T)), ((B, 3, S, 1), (B, 1, 1, T))],
)
def test_multiplied(x: Shape, y: Shape, dtype: DType, backend: CpuBackend) -> None:
    graph = graph_of(lambda g: g.given("x", *x, dtype=dtype) @ g.given("y", *y, dtype=dtype))
    found = applied(rules.outer_product, graph)
    assert ops(found) == ["multiply"]
    model = Model(found, backend)
    for bindings in ({"B": 2, "S": 5, "T": 3}, {"B": 1, "S": 1, "T": 17}, {"B": 3, "S": 0, "T": 4}):
        inputs = inputs_of(graph, bindings)
        assert_close(model.run(inputs), reference(graph, inputs))


def test_angles_end_in_their_cosines(backend: CpuBackend) -> None:
    def body(g: Maker) -> Value:
        at = g.given("at", B, S, dtype=INT64).cast(FLOAT32).unsqueeze([2])
        return apply("cos", at @ g.weight(1, 4))

    graph = optimised(graph_of(body))
    (title,) = titles(graph)
    assert title.endswith("multiply + cos")
    assert_runs(graph, backend, {"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 0, "S": 3})


@pytest.mark.parametrize("shape", [(T, 3), (1, 3)])
def test_axes_that_are_longer_or_may_be_one_are_left_alone(shape: Shape) -> None:
    graph = graph_of(lambda g: g.given("x", S, T) @ g.given("y", *shape))
    assert ops(rules.outer_product(graph)) == ["matmul"]


# Parts of an axis in exchanged order.


def joined(x: Value, axis: int, *parts: tuple[Dim, Dim]) -> Value:
    """Parts of an axis: where they begin, and their extents."""
    return concat([x.slice(axis, start, extent) for start, extent in parts], axis)


def rolled(x: Value, axis: int, start: Dim, by: Dim) -> Value:
    """`by` is what is left of `start` on a short axis."""
    return joined(x, axis, (start, x.shape[axis] - by), (0, by))


def backwards(x: Value) -> Value:
    first, second = S - minimum(3, S), T - minimum(2, T)
    return rolled(rolled(x, 1, first, first), 2, second, second)


ROLLED: dict[str, Body] = {
    "forwards": of_x(
        lambda x: exp(rolled(rolled(x, 1, 3, minimum(3, S)), 2, 2, minimum(2, T))), B, S, T, 4
    ),
    "backwards": of_x(backwards, B, S, T, 4),
    # What is rolled is read where it is rolled.
    "padded": of_x(lambda x: rolled(zero_padded(x, (0, 0, 0), (0, 2, 0)), 1, 2, 2), B, S, 4),
}


@pytest.mark.parametrize("body", ROLLED.values(), ids=ROLLED)
def test_rolled(body: Body, widest: CpuBackend) -> None:
    found = applied(rules.roll, graph_of(body))
    assert not {"slice", "concat"} & set(ops(found))
    runs = [{"B": 2, "S": s, "T": t} for s, t in ((5, 3), (3, 2), (2, 1), (1, 7), (0, 4))]
    assert_runs(found, widest, *runs)


NOT_ROLLED: dict[str, Body] = {
    "in order": of_x(
        lambda x: joined(x, 1, (0, minimum(3, S)), (minimum(3, S), S - minimum(3, S))), B, S, 4
    ),
    "along the last axis": of_x(lambda x: rolled(x, 1, 2, 2), B, 4),
    "of two": lambda g: concat(
        [g.given("x", B, 4, S).slice(1, 1, 3), g.given("y", B, 4, S).slice(1, 0, 1)], 1
    ),
    "overlapping": of_x(lambda x: joined(x, 1, (1, 3), (0, 2)), B, 5, S),
    "along another axis": of_x(
        lambda x: concat([x.slice(2, 2, 2), x.slice(2, 0, 2)], 1), B, 4, 4, S
    ),
}


@pytest.mark.parametrize("body", NOT_ROLLED.values(), ids=NOT_ROLLED)
def test_what_rolls_nothing(body: Body) -> None:
    assert_left_alone(rules.roll, body)
