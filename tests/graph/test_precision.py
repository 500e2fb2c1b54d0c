"""What is held in half the bits, and what is not."""

import numpy as np
import pytest
from tests.graph.graphs import B, Body, Maker, S, graph_of, layer

from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, INT64
from ftuner.graph.algebra import apply, cos, gather, sin, sqrt, where
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.precision import held_types
from ftuner.schedules.attention.step import AttentionStep
from ftuner.schedules.product.step import ProductStep

LEAST = float(np.finfo(np.float32).min)


def is_held(graph: Graph) -> list[bool]:
    """Of each output."""
    held = held_types(graph, BFLOAT16)
    return [value in held for _, value in graph.outputs]


def test_nothing_without_a_type() -> None:
    assert held_types(optimised(layer()), None) == {}


def test_a_layer_multiplies_halves() -> None:
    graph = optimised(layer())
    lowered = lower(graph, held_types(graph, FLOAT16))
    products = [step for step in lowered.steps if isinstance(step, ProductStep)]
    assert len(products) == 4
    for step in products:
        matrices = [step.a, step.b, step.c, *(v for v in step.operands if v.shape[0] != 1)]
        assert {v.layout.dtype for v in matrices} == {FLOAT16}
        # Numbers for columns are added as they are.
        assert {v.layout.dtype for v in step.operands if v.shape[0] == 1} == {FLOAT32}
    (attention,) = [step for step in lowered.steps if isinstance(step, AttentionStep)]
    assert {v.layout.dtype for v in (attention.q, attention.k, attention.v, attention.out)} == {
        FLOAT16
    }
    assert attention.mask is not None
    assert attention.mask.layout.dtype == FLOAT32
    assert [b.dtype for b in lowered.inputs] == [FLOAT32, FLOAT32]
    assert [v.layout.dtype for v in lowered.outputs] == [FLOAT32]


def positions(g: Maker) -> Value:
    """As floats, from integers that are given."""
    return g.given("positions", B, S, dtype=INT64).cast(FLOAT32)


def angles(g: Maker) -> Value:
    return positions(g).unsqueeze([2]) @ g.constant(np.ones((1, 4), np.float32))


def shown(g: Maker) -> Value:
    return g.given("mask", B, S, dtype=INT64).cast(FLOAT32)


def product(g: Maker) -> Value:
    return g.given("x", B, S, 4) @ g.weight(4, 1)


def squares(g: Maker) -> Value:
    x = g.linear(g.given("x", B, S, 4), 8)
    return (x * x).reduce("sum", (2,), keep=False)


def read_by(function: str, angle: Value) -> Value:
    """What a periodic function is asked of."""
    apply(function, angle)
    return angle


def turned(g: Maker, function: str) -> Value:
    return read_by(function, g.given("t", B, 1) @ g.weight(1, 8))


def looked_up(g: Maker, *table: int) -> Value:
    return gather(g.weight(*table), g.given("i", B, S, dtype=INT64))


EXACT: dict[str, Body] = {
    "positions": positions,
    "a product of positions and constants": angles,
    "a cosine": lambda g: cos(angles(g)),
    "a float that is asked a cosine of": lambda g: read_by("cos", g.given("t", B) * 0.1),
    "a mask": lambda g: shown(g) * LEAST,
    "a count": lambda g: shown(g).reduce("sum", (1,), keep=False),
    "the sum of squares of an activation": squares,
    "its root": lambda g: sqrt(squares(g) + 1e-12),
    "an activation beside the least number": lambda g: where(
        shown(g).cast(BOOL), product(g), LEAST
    ),
    "a float mask": lambda g: g.given("mask", B, S) * LEAST,
    "a mask of constants": lambda g: (
        g.given("x", B, 3, 3) + g.constant(np.triu(np.full((3, 3), LEAST, np.float32), 1))
    ),
    "an angle that a product gives": lambda g: turned(g, "sin"),
    "an angle of a tangent": lambda g: turned(g, "tan"),
    "an angle that a table has": lambda g: read_by("cos", looked_up(g, 40, 8) * 0.1),
}
HELD: dict[str, Body] = {
    "a product": lambda g: g.linear(g.given("x", B, S, 4), 8),
    "rows of a table": lambda g: looked_up(g, 9, 4),
    "a sum with what is exact": lambda g: g.given("x", B, S) + positions(g),
    "a sine of what may be huge": lambda g: sin(product(g) * LEAST),
    "a limit that nothing reaches": lambda g: g.given("x", B, S).at_least(LEAST),
    "a softmax of what was masked": lambda g: apply(
        "softmax", g.given("x", B, S) + LEAST, axis=1, log=False
    ),
    "a product of a mean": lambda g: g.linear(
        g.given("x", B, S, 4).reduce("sum", (1,), keep=False), 8
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    maker = Maker()
    with maker.writing():
        value = EXACT[name](maker)
    # What is done to it is an output, too.
    periodic = ("cos", "sin", "tan")
    functions = [n.output for n in maker.nodes if n.op in periodic and n.output is not value]
    assert not is_held(maker.made(value, *functions))[0]


@pytest.mark.parametrize("name", HELD)
def test_held(name: str) -> None:
    assert is_held(graph_of(HELD[name])) == [True]


def test_masks_of_attention_are_exact_and_what_hides_nothing_is_not() -> None:
    maker = Maker()
    q = maker.given("q", B, 2, S, 4)
    bias = maker.add("multiply", maker.given("bias", S, S), maker.number(2.0))
    y = maker.add("attention", q, maker.given("k", B, 2, 4, S), q, bias, scale=1.0)
    held = held_types(maker.made(y, bias), BFLOAT16)
    assert y in held
    assert bias not in held


@pytest.mark.parametrize(
    ("numbers", "is_huge"),
    [([1.0, np.inf], False), ([np.nan, 1.0], False), ([-np.inf, 7e4], True), ([np.nan, -7e4], True),
     ([], False), ([65504.0], False), ([65536.0], True)],
)  # fmt: skip
def test_infinities_are_no_large_numbers(numbers: list[float], is_huge: bool) -> None:
    maker = Maker()
    constant = maker.constant(np.array(numbers, np.float32))
    y = maker.add("add", maker.given("x", B, len(numbers)), constant)
    assert (y in held_types(maker.made(y), FLOAT16)) != is_huge


def test_tables_are_held_if_all_that_is_looked_up_is() -> None:
    for also in (False, True):
        maker = Maker()
        table, index = maker.weight(9, 4), maker.given("i", B, dtype=INT64)
        outputs = [maker.add("gather", table, index, axis=0)]
        if also:
            outputs.append(maker.add("add", table, maker.given("x", 9, 4)))
        assert (table in held_types(maker.made(*outputs), FLOAT16)) != also


def test_weights_of_integers_are_what_multiplies_them() -> None:
    maker = Maker()
    weight = maker.constant(np.ones((4, 4), np.int8))
    y = maker.add("narrow_matmul", maker.given("x", B, 4), weight)
    graph = maker.made(y)
    assert weight.dtype == INT8
    assert held_types(graph, None)[weight] == FLOAT32
    assert held_types(graph, FLOAT16)[weight] == FLOAT16


@pytest.mark.parametrize("read", [0, 1])
def test_one_result_of_two_is_read(read: int) -> None:
    """The other one lies in memory all the same, in half the bits."""
    maker = Maker()
    both = maker.add_many("top_k", maker.linear(maker.given("x", B, 8), 9), axis=1, k=4,
                          largest=True)  # fmt: skip
    graph = maker.made(both[read])
    lowered = lower(graph, held_types(graph, BFLOAT16))
    (step,) = [step for step in lowered.steps if step.title == "top_k"]
    values, positions, *_ = (buffer.dtype for buffer in step.writes)
    # An output is as the caller has it.
    assert values == (FLOAT32 if read == 0 else BFLOAT16)
    assert positions == INT64


def test_an_output_that_nobody_else_reads_is_not_rounded() -> None:
    graph = graph_of(lambda g: g.add("exp", g.given("x", B)))
    assert [step.title for step in lower(graph, held_types(graph, BFLOAT16)).steps] == ["exp"]
