"""What is known is folded, small integers are followed as dims, and errors say where."""

from collections.abc import Callable
from inspect import Parameter, signature
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S, T, graph_of, inputs_of, reference

from ftuner.core.dim import Dim, maximum, quotient, remainder, symbol
from ftuner.core.dtype import BOOL, FLOAT32, INT32, INT64, TENSOR_DTYPES
from ftuner.core.evaluation import evaluate
from ftuner.errors import (
    FTunerError,
    GraphError,
    IndexRangeError,
    ShapeError,
    UnsupportedOperatorError,
)
from ftuner.graph.builder import Builder
from ftuner.graph.folding import MAX_FOLDED_BYTES, Folding
from ftuner.graph.ir import Value
from ftuner.graph.known_values import MAX_FOLLOWED
from ftuner.graph.operator import misfit
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.reference import run_reference


def shape_tensor(builder: Builder, *dims: Dim) -> Value:
    return builder.dims(dims)


# Folding.


def test_operators_on_constants_leave_no_nodes() -> None:
    maker = Maker()
    x = maker.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = maker.add("add", maker.add("exp", x), maker.number(1))
    z = maker.add("transpose", y, perm=(1, 0))
    total = maker.add("reduce", z, kind="sum", axes=(0,))
    values, positions = maker.add_many("top_k", x, axis=1, k=2, largest=True)
    steps = maker.add("iota", shape=(5,), axis=0)
    assert maker.nodes == []
    assert x.constant is not None
    expected = (np.exp(x.constant) + 1).T
    assert z.constant is not None
    assert np.array_equal(z.constant, expected)
    assert total.constant is not None
    assert np.allclose(total.constant, expected.sum(0))
    assert values.constant is not None
    assert positions.constant is not None
    assert values.constant.tolist() == [[2, 1], [5, 4]]
    assert positions.constant.tolist() == [[2, 1], [2, 1]]
    assert steps.constant is not None
    assert steps.constant.tolist() == [0, 1, 2, 3, 4]


def test_constants_that_would_be_huge_wait() -> None:
    maker = Maker()
    huge = maker.add("broadcast", maker.number(1), shape=(MAX_FOLDED_BYTES // 4 + 1,))
    assert huge.constant is None
    assert [node.op for node in maker.nodes] == ["broadcast"]


def test_equal_nodes_are_one() -> None:
    maker = Maker()
    x = maker.given("x", B, S)
    assert maker.add("exp", x) is maker.add("exp", x)
    first = maker.add("reduce", x, kind="sum", axes=(0,))
    assert maker.add("reduce", x, axes=(0,), kind="sum") is first
    assert maker.add("reduce", x, kind="sum", axes=(1,)) is not first
    assert len(maker.nodes) == 3


def test_operands_of_one_sum_may_be_exchanged() -> None:
    maker = Maker()
    x, y = maker.given("x", B, S), maker.given("y", B, S)
    for op in ("add", "multiply", "equal"):
        assert maker.add(op, x, y) is maker.add(op, y, x)
    for op in ("subtract", "divide", "less"):
        assert maker.add(op, x, y) is not maker.add(op, y, x)


def test_unknown_operators_are_refused() -> None:
    builder = Builder()
    builder.where = "line 3"
    with pytest.raises(UnsupportedOperatorError, match="line 3: ftuner has no operator 'mean'"):
        builder.add("mean", builder.constant(np.ones(3)))


@pytest.mark.parametrize(
    ("op", "attributes", "says"),
    [
        ("reduce", {"kind": "sum", "axes": (1,), "keepdims": True}, "'keepdims'; it takes x, kind"),
        ("reduce", {"kind": "sum"}, "missing a required argument: 'axes'"),
        ("exp", {"dtype": FLOAT32}, "unexpected keyword argument 'dtype'; it takes x1"),
        ("erf", {"axis": 0}, "unexpected keyword argument 'axis'"),
        ("softmax", {"axis": 1, "log": False, "epsilon": 0.0}, "'epsilon'"),
    ],
)
def test_attributes_that_an_operator_does_not_have_are_refused(
    op: str, attributes: dict[str, Any], says: str
) -> None:
    maker = Maker()
    maker.where = "line 3"
    with pytest.raises(GraphError, match=f"^line 3: operator {op!r}: .*{says}"):
        maker.add(op, maker.given("x", B, S), **attributes)


def test_every_operator_names_its_attributes() -> None:
    """A reference that takes any attribute would hide a misspelt one. NumPy's own functions have a
    signature only since NumPy 2.4."""
    for operator in OPERATORS.values():
        if not isinstance(operator.reference, np.ufunc):
            function = getattr(operator.reference, "func", operator.reference)
            assert isinstance(function, FunctionType), operator.name
            kinds = [p.kind for p in signature(operator.reference).parameters.values()]
            assert Parameter.VAR_KEYWORD not in kinds, operator.name


def test_what_no_output_needs_is_left_out() -> None:
    maker = Maker()
    x = maker.given("x", B)
    maker.add("exp", x)
    assert [node.op for node in maker.made(maker.add("negative", x)).nodes] == ["negative"]


@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
def test_constants_keep_their_dtype(dtype: str) -> None:
    value = Builder().constant(np.ones(3, dtype))
    assert value.dtype == TENSOR_DTYPES[dtype]
    assert value.constant is not None
    assert value.constant.dtype == np.dtype(dtype)


def test_constants_of_other_dtypes_are_refused() -> None:
    with pytest.raises(GraphError, match="complex64"):
        Builder().constant(np.ones(3, np.complex64))


# Dims.

FOLLOWED: tuple[tuple[Callable[[Builder, Value], Value], tuple[Dim, ...]], ...] = (
    # What is done to the tensor (B, S, 8), and the elements of the result.
    (lambda b, x: b.add("add", x, b.constant(np.int64(1))), (B + 1, S + 1, 9)),
    (lambda b, x: b.add("multiply", x, x), (B * B, S * S, 64)),
    (lambda b, x: b.add("subtract", x, x), (0, 0, 0)),
    (lambda b, x: b.add("negative", x), (-B, -S, -8)),
    (lambda b, x: b.add("divide", x, b.constant(np.array([2, 2, 2]))),
     (quotient(B, 2), quotient(S, 2), 4)),
    (lambda b, x: b.add("remainder", x, b.constant(np.array([3, 3, 3]))),
     (remainder(B, 3), remainder(S, 3), 2)),
    (lambda b, x: b.add("maximum", x, b.constant(np.int64(5))), (maximum(B, 5), maximum(S, 5), 8)),
    (lambda b, x: b.add("minimum", x, b.constant(np.int64(0))), (0, 0, 0)),
    (lambda b, x: b.add("gather", x, b.constant(np.array([2, 0, -2])), axis=0), (8, B, S)),
    (lambda b, x: b.add("slice", x, starts=(2,), steps=(-1,), shape=(3,)), (8, S, B)),
    (lambda b, x: b.add("concat", x, b.constant(np.array([7])), axis=0), (B, S, 8, 7)),
    (lambda b, x: b.add("reduce", x, kind="product", axes=(0,)), (8 * B * S,)),
    (lambda b, x: b.add("reduce", x, kind="sum", axes=(0,)), (B + S + 8,)),
    (lambda b, x: b.add("cast", b.add("cast", x, to=INT32), to=INT64), (B, S, 8)),
    (lambda b, x: b.add("reshape", b.add("reshape", x, shape=(3, 1)), shape=(3,)), (B, S, 8)),
    (lambda b, x: b.add("tile", x, repeats=(2,)), (B, S, 8, B, S, 8)),
    (lambda b, x: b.add("where", b.add("equal", x, b.constant(np.array([-1, -1, 8]))),
                        b.constant(np.int64(3)), x), (B, S, 3)),
    (lambda b, x: b.add("where", b.add("less", x, b.constant(np.int64(0))), x,
                        b.constant(np.int64(1))), (1, 1, 1)),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(FOLLOWED)))
def test_arithmetic_on_shapes_ends_in_dims(number: int) -> None:
    body, expected = FOLLOWED[number]
    builder = Builder()
    found = body(builder, shape_tensor(builder, B, S, 8))
    assert found.dims == expected
    assert builder.nodes == []


def test_what_is_not_certain_is_computed() -> None:
    """Whether S is 5 is known when S is: the shape's elements become a node."""
    maker = Maker()
    x = maker.given("x", S)
    test = maker.add("equal", shape_tensor(maker, S), maker.constant(np.array([5])))
    assert test.dims is None
    graph = maker.made(maker.add("where", test, x, maker.add("negative", x)))
    assert "dims" in [node.op for node in graph.nodes]
    for n, sign in ((5, 1), (4, -1)):
        array = np.arange(n, dtype=np.float32)
        assert np.array_equal(run_reference(graph, [array])[0], sign * array)


def test_dims_expanded_to_an_extent_that_only_run_time_tells() -> None:
    maker = Maker()
    maker.given("x", B, S)
    maker.given("z", T)
    found = maker.add("broadcast", maker.dims([B, S, B + S]), shape=(T,))
    graph = maker.made(found)
    assert found.shape == (3,)
    (result,) = reference(graph, inputs_of(graph, {"B": 2, "S": 5, "T": 3}))
    assert result.tolist() == [2, 5, 7]
    with pytest.raises(ShapeError):
        reference(graph, inputs_of(graph, {"B": 2, "S": 5, "T": 4}))


def filled(maker: Maker, value: object, *shape: Dim) -> Value:
    return maker.add("broadcast", maker.constant(np.asarray(value)), shape=shape)


def test_tensors_of_equal_elements_are_filled_once() -> None:
    """`ones(B, S) * 2 == 2`, of another shape, where it holds."""
    maker = Maker()
    x = maker.given("x", B, S)
    twice = maker.add("multiply", filled(maker, np.float32(1), B, S), maker.number(2))
    holds = maker.add("equal", twice, filled(maker, np.float32([2]), S))
    turned = maker.add("transpose", maker.add("reshape", holds, shape=(B, S, 1)), perm=(1, 2, 0))
    assert turned.shape == (S, 1, B)
    element = maker.known.element(turned)
    assert element is not None
    assert element.constant is not None
    assert (element.shape, element.constant.item()) == ((), True)
    assert maker.add("where", holds, x, filled(maker, np.float32(7), B, S)) is x
    assert {node.op for node in maker.nodes} == {"broadcast"}


def test_equal_elements_without_a_budget_of_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folding, "folded", lambda *_: None)
    maker = Maker()
    numbers = (np.float32(2), np.float32([3]))
    total = maker.add("add", *(maker.constant(np.asarray(n)) for n in numbers))
    assert (total.shape, total.constant) == ((1,), None)
    assert [node.op for node in maker.nodes] == ["add"]
    more = maker.add("add", filled(maker, numbers[0], B), maker.constant(numbers[1]))
    assert (more.shape, maker.known.element(more)) == ((B,), None)


def test_sums_of_equal_integers_are_dims() -> None:
    maker = Maker()
    ones = maker.add("cast", filled(maker, True, B, S, 4), to=INT64)
    assert maker.add("reduce", ones, kind="sum", axes=(0, 1, 2)).dims == (4 * B * S,)
    assert maker.add("reduce", ones, kind="sum", axes=(0, 1)).dims == (B * S,) * 4
    assert maker.add("reduce", ones, kind="sum", axes=(2,)).dims is None
    assert maker.add("reduce", ones, kind="maximum", axes=(0, 1, 2)).dims is None


def test_what_is_not_equal_everywhere_is_computed() -> None:
    maker = Maker()
    x = maker.given("x", B)
    y = maker.add("add", x, filled(maker, np.float32(1), B))
    assert maker.known.element(y) is None
    joined = maker.add("concat", filled(maker, np.float32(1), B), x, axis=0)
    assert maker.known.element(joined) is None


def test_tensors_without_elements_that_have_a_symbol_are_not_followed() -> None:
    builder = Builder()
    empty = builder.add("broadcast", builder.constant(np.array(True)), shape=(0, S))
    assert empty.dims is None
    assert builder.add("logical_not", empty).shape == (0, S)


def test_large_tensors_are_not_followed() -> None:
    builder = Builder()
    many = shape_tensor(builder, *[S] * MAX_FOLLOWED)
    assert builder.add("add", many, many).dims is not None
    more = shape_tensor(builder, *[S] * (MAX_FOLLOWED + 1))
    assert builder.add("add", more, more).dims is None


def test_dims_that_are_outputs_exist_at_run_time() -> None:
    maker = Maker()
    x = maker.given("x", B, S)
    shape = shape_tensor(maker, *x.shape)
    narrow = maker.add("cast", shape, to=INT32)
    square = maker.add("reshape", shape_tensor(maker, B, S, T, 1), shape=(2, 2))
    maker.given("t", T)
    graph = maker.made(shape, narrow, square)
    bindings = {"B": 3, "S": 4, "T": 5}
    first, second, third = reference(graph, inputs_of(graph, bindings))
    assert first.tolist() == second.tolist() == [3, 4]
    assert [x.dtype.name for x in (first, second)] == ["int64", "int32"]
    assert third.tolist() == [[3, 4], [5, 1]]


@given(st.lists(st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "divide",
                                 "remainder", "equal", "less", "less_equal"]), min_size=1,
                max_size=4), st.integers(0, 6), st.integers(0, 6), st.data())  # fmt: skip
def test_followed_or_computed_the_result_is_the_same(
    ops: list[str], b: int, s: int, data: st.DataObject
) -> None:
    """Arithmetic on small integers, by dims as far as they go, and by NumPy."""
    maker = Maker()
    maker.given("x", B, S)
    tensors = [shape_tensor(maker, B, S), maker.constant(np.array([2, 3]))]
    arrays: list[Any] = [np.array([b, s]), np.array([2, 3])]
    for op in ops:
        i, j = (data.draw(st.integers(0, len(tensors) - 1)) for _ in range(2))
        if op == "divide" and not np.all(arrays[j]):
            continue
        if op == "remainder" and not np.all(arrays[j]):
            continue
        value = maker.add(op, tensors[i], tensors[j])
        if value.dtype == BOOL:
            value = maker.add("cast", value, to=INT64)
        with np.errstate(all="ignore"):
            from_numpy: Any = {
                "divide": lambda x, y: np.trunc(x / y).astype(np.int64), "remainder": np.mod,
            }.get(op) or getattr(np, op)  # fmt: skip
            arrays.append(np.asarray(from_numpy(arrays[i], arrays[j])).astype(np.int64))
        tensors.append(value)
    graph = maker.made(*tensors)
    found = run_reference(graph, [np.zeros((b, s), np.float32)])
    for x, y in zip(found, arrays, strict=True):
        assert np.array_equal(x, y), (ops, b, s)


# Constraints.


def test_extents_that_may_be_equal_are_checked_at_run_time() -> None:
    graph = graph_of(lambda g: g.add("matmul", g.given("x", S, T), g.given("y", B, 5)))
    (constraint,) = graph.constraints
    assert {constraint.x, constraint.y} == {T, B}
    with pytest.raises(ShapeError, match=r"T is 3.*B is 4"):
        run_reference(graph, [np.zeros((2, 3), "f"), np.zeros((4, 5), "f")])


def test_broadcast_extents_may_be_one() -> None:
    graph = graph_of(lambda g: g.add("add", g.given("x", S), g.given("y", T)))
    for s, t in ((3, 3), (1, 3), (3, 1), (1, 1), (0, 1)):
        (found,) = run_reference(graph, [np.zeros(s, "f"), np.zeros(t, "f")])
        assert evaluate(graph.outputs[0][1].shape[0], {"S": s, "T": t}) == found.shape[0]
    with pytest.raises(ShapeError):
        run_reference(graph, [np.zeros(2, "f"), np.zeros(3, "f")])


def test_reshape_keeps_the_count() -> None:
    def body(g: Maker) -> Value:
        g.given("t", T)
        return g.add("reshape", g.given("x", S, 6), shape=(T, 4))

    graph = graph_of(body)
    x = np.zeros((2, 6), "f")
    assert run_reference(graph, [np.zeros(3, "f"), x])[0].shape == (3, 4)
    with pytest.raises(ShapeError):
        run_reference(graph, [np.zeros(2, "f"), x])


def sliced(builder: Builder, x: Value, start: Dim, step: int, count: Dim) -> Value:
    return builder.add("slice", x, starts=(start,), steps=(step,), shape=(count,))


@pytest.mark.parametrize(
    ("start", "step", "count", "right"),
    [
        (0, 1, 5, True), (0, 1, 6, False), (4, 1, 1, True), (5, 1, 1, False), (-1, 1, 2, False),
        (0, 2, 3, True), (1, 2, 3, False), (4, -1, 5, True), (4, -1, 6, False), (5, -1, 1, False),
        (4, -2, 3, True), (0, 1, -1, False), (9, 1, 0, True), (-3, -1, 0, True), (0, 0, 5, False),
    ],
)  # fmt: skip
def test_slices_stay_within_their_axis(start: int, step: int, count: int, right: bool) -> None:
    """Of five elements; decided at once where the axis is known, otherwise when it is bound."""
    maker = Maker()
    if right:
        sliced(maker, maker.weight(5), start, step, count)
    else:
        with pytest.raises(ShapeError):
            sliced(maker, maker.weight(5), start, step, count)
    if step == 0 or count < 0:
        return

    def run() -> list[float]:
        graph = graph_of(lambda g: sliced(g, g.given("x", S), start, step, count))
        found: list[float] = run_reference(graph, [np.arange(5, dtype=np.float32)])[0].tolist()
        return found

    if right:
        assert run() == [start + step * i for i in range(count)]
    else:
        with pytest.raises(ShapeError, match="slice"):
            run()


@pytest.mark.parametrize(
    ("start", "step", "count", "asked"),
    [
        (0, 1, S, []), (S - 1, -1, S, []), (1, 1, S - 1, ["-min(1, S) + 1"]),
        (S - 1, 1, 1, ["-min(1, S) + 1"]), (1, 2, 3, ["-min(6, S) + 6"]),
    ],
)  # fmt: skip
def test_slices_ask_at_run_time_what_is_not_certain(
    start: Dim, step: int, count: Dim, asked: list[str]
) -> None:
    graph = graph_of(lambda g: sliced(g, g.given("x", S), start, step, count))
    assert [str(c.x) for c in graph.constraints if c.y == 0] == asked


def test_one_symbol_is_one_extent() -> None:
    graph = graph_of(lambda g: g.add("concat", g.given("x", S), g.given("y", S), axis=0))
    with pytest.raises(ShapeError, match="S is 2"):
        run_reference(graph, [np.zeros(2, "f"), np.zeros(3, "f")])


# Errors.

WRONG: tuple[tuple[type[FTunerError], Callable[[Maker], Value]], ...] = (
    (ShapeError, lambda g: g.add("add", g.weight(3), g.weight(4))),
    (ShapeError, lambda g: g.add("add", g.given("x", S, 3), g.given("y", S, 4))),
    (ShapeError, lambda g: g.add("matmul", g.given("x", S, 3), g.weight(4, 5))),
    (ShapeError, lambda g: g.add("matmul", g.given("x", 3), g.weight(3, 5))),
    (ShapeError, lambda g: g.add("reshape", g.weight(6), shape=(5,))),
    (ShapeError, lambda g: g.add("transpose", g.weight(3, 4), perm=(0, 2))),
    (ShapeError, lambda g: g.add("concat", g.weight(3, 4), g.weight(3, 5), axis=0)),
    (ShapeError, lambda g: g.add("pad", g.weight(3), before=(-2,), after=(-2,), mode="edge")),
    (ShapeError, lambda g: g.add_many("top_k", g.weight(3), axis=0, k=4, largest=True)[0]),
    (GraphError, lambda g: g.add("add", g.weight(3), g.constant(np.arange(3)))),
    (GraphError, lambda g: g.add("exp", g.constant(np.arange(3)))),
    (GraphError, lambda g: g.add("where", g.weight(3), g.weight(3), g.weight(3))),
    (GraphError, lambda g: g.add("reduce", g.weight(3), kind="median", axes=(0,))),
    (GraphError, lambda g: g.add("pad", g.weight(3), before=(1,), after=(1,), mode="odd")),
    (GraphError, lambda g: g.add("gather", g.weight(3), g.weight(2), axis=0)),
    (IndexRangeError, lambda g: g.add("gather", g.weight(3), g.constant(np.array([3])), axis=0)),
)


def test_extents_of_more_than_64_bits_are_refused() -> None:
    maker = Maker()
    maker.where = "Node '/encoder/7'"
    n = maker.dims((S * (1 << 40) - S * (1 << 40) + (1 << 40),))
    for body in (lambda: maker.dims((1 << 80,)), lambda: maker.dims((1, -(1 << 63) - 1), (2,))):
        with pytest.raises(ShapeError, match="'/encoder/7': extents of more than 64 bits"):
            body()
    # Sums of tensors have the bits of their type.
    halves = maker.dims((S + (1 << 62),)), maker.dims((-S + (1 << 62),))
    total = maker.add("add", *halves).constant
    assert total is not None
    assert total.tolist() == [-(1 << 63)]
    assert maker.add("multiply", n, n).constant == 0


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors_name_the_node(number: int) -> None:
    kind, body = WRONG[number]
    maker = Maker()
    maker.where = "Node '/encoder/7'"
    with pytest.raises(kind) as error:
        body(maker)
    assert str(error.value).startswith("Node '/encoder/7': ")
    assert str(error.value).count("Node '/encoder/7'") == 1


def test_constraints_name_the_node_too() -> None:
    maker = Maker()
    maker.where = "Node '/encoder/7'"
    y = maker.add("matmul", maker.given("x", B, S), maker.given("w", T, 3))
    graph = maker.made(y)
    with pytest.raises(ShapeError, match=r"^Node '/encoder/7'"):
        run_reference(graph, [np.zeros((1, 2), "f"), np.zeros((4, 3), "f")])


def test_names_of_values_are_apart() -> None:
    maker = Maker()
    x = maker.given("x", symbol("N"), dtype=FLOAT32)
    values = [x]
    for _ in range(20):
        values.append(maker.add("exp", values[-1]))
    assert len({value.name for value in values}) == len(values)


@pytest.mark.parametrize("op", OPERATORS)
def test_operands_that_an_operator_does_not_take(op: str) -> None:
    """Whatever its shape rule makes of them, the error names the operator."""
    for count in range(8):
        builder = Builder()
        operands = [builder.input(f"x{i}", FLOAT32, ("n", 3)) for i in range(count)]
        if misfit(OPERATORS[op].reference, count, ()):
            with pytest.raises(GraphError, match=op):
                builder.add_many(op, *operands)
