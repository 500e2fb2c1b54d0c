"""Rows of operators that draw random numbers, and of loops that draw them in each iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, elements, number, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import dtypes_of, row
from tests.random_graphs.tensors import DTYPES, FLOATS, Fill

LARGEST = 10.0
"""No normal number of these graphs is larger: the 64 bits of one end at 9.4."""
TRIPS = 4


def _element(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _seed(maker: Maker) -> float | None:
    """For a part of the nodes, one of few: some have the same."""
    return maker.draws.pick((1.0, 2.5)) if maker.draws.chance(0.2) else None


def _distribution(maker: Maker, op: str) -> tuple[float, float, dict[str, Any]]:
    """Between which numbers elements are, and the attributes that say so."""
    names = ("mean", "scale") if "Normal" in op else ("low", "high")
    pairs = ((0.0, 1.0), (-1.5, 0.25), (2.0, 3.0))
    given: dict[str, Any] = {}
    first, second = pairs[0]
    if maker.draws.chance(0.5):
        first, second = maker.draws.pick(pairs)
        given = dict(zip(names, (first, second), strict=True))
    given["seed"] = _seed(maker)
    if "Normal" in op:
        return first - LARGEST * second, first + LARGEST * second, given
    return first, second, given


def _of_shape(op: str) -> None:
    @row(op, 0.2)
    def make(maker: Maker) -> None:
        rank = maker.draws.pick((2, 1, 3))
        shape = [static(number(maker.draws, large=0.0)) for _ in range(rank)]
        low, high, given = _distribution(maker, op)
        dtype = maker.dtype(FLOATS)
        given["shape"] = [e.at[0] for e in shape]
        if dtype != "float32" or maker.draws.chance(0.3):
            given["dtype"] = _element(dtype)
        maker.node(op, [], [maker.new(shape, dtype, low, high)], **given)


def _like(op: str) -> None:
    @row(op, 0.3)
    def make(maker: Maker) -> None:
        x = maker.operand(dtypes_of(maker, op, DTYPES))
        low, high, given = _distribution(maker, op)
        dtype = x.dtype
        if not x.floating or maker.draws.chance(0.3):
            dtype = maker.dtype(FLOATS)
            given["dtype"] = _element(dtype)
        maker.node(op, [x], [maker.new(x.shape, dtype, low, high)], **given)


for _kind in ("Normal", "Uniform"):
    _of_shape(f"Random{_kind}")
    _like(f"Random{_kind}Like")


@row("Bernoulli", 0.3, since=15)
def _bernoulli(maker: Maker) -> None:
    p = maker.tamed(maker.operand(FLOATS), 0.0, 1.0)
    to = maker.dtype(DTYPES) if maker.draws.chance(0.5) else None
    result = maker.new(p.shape, to or p.dtype, 0, 1)
    maker.node("Bernoulli", [p], [result], seed=_seed(maker), dtype=_element(to) if to else None)


@row("Multinomial", 0.3)
def _multinomial(maker: Maker) -> None:
    x = maker.tamed(maker.operand(FLOATS, (2,)), -30.0, 30.0)
    count = maker.draws.pick((1, 2, 7, 33))
    classes = x.shape[1]
    if min(classes.at) < 1:
        raise DeclinedError("no classes")
    maker.spend(tuple(count * n for n in elements(x.shape)))
    to = maker.draws.pick(("int32", "int64"))
    result = maker.new((x.shape[0], static(count)), to, 0, classes.most)
    maker.node(
        "Multinomial", [x], [result], sample_size=count, seed=_seed(maker), dtype=_element(to)
    )


@row("Dropout", 0.5)
def _dropout(maker: Maker) -> None:
    x = maker.operand(FLOATS)
    if maker.opset < 12:
        # It is not said what a mask holds where nothing is dropped.
        maker.moved("Dropout", x, x.shape, ratio=0.25)
        return
    drops = maker.draws.chance(0.4)
    most = 10.0 if drops else 1.0
    result = maker.new(x.shape, x.dtype, min(0.0, most * x.low), max(0.0, most * x.high))
    mask = maker.new(x.shape, "bool", 0, 1) if maker.draws.chance(0.3) else None
    ratio = None
    kind = maker.draws.pick(("none", "constant", "input"))
    if kind == "constant":
        ratio = maker.constant(np.float32(maker.draws.pick((0.25, 0.5, 0.0))))
    elif kind == "input":
        ratio = maker.input((), "float32", Fill("uniform", (0.0,) * BINDINGS, (0.9,) * BINDINGS))
    training = None
    if drops or maker.draws.chance(0.3):
        training = maker.constant(np.array(drops))
    seed = maker.draws.pick((1, -3)) if drops and maker.draws.chance(0.2) else None
    maker.node("Dropout", [x, ratio, training], [result, mask], seed=seed)


def _noise(maker: Maker, x: str, y: str) -> list[onnx.NodeProto]:
    noise = maker.name("b")
    op = maker.draws.pick(("RandomNormalLike", "RandomUniformLike"))
    seed = _seed(maker)
    given = {} if seed is None else {"seed": seed}
    return [helper.make_node(op, [x], [noise], **given), helper.make_node("Add", [x, noise], [y])]


def _choice(maker: Maker, x: str, y: str) -> list[onnx.NodeProto]:
    half, chosen = maker.name("b"), maker.name("b")
    return [
        helper.make_node("Sigmoid", [x], [half]),
        helper.make_node("Bernoulli", [half], [chosen]),
        helper.make_node("Mul", [x, chosen], [y]),
    ]


@row("loop that draws", 0.2, since=15, idiom=True)
def _loop(maker: Maker) -> None:
    """Adds noise in each iteration, or drops elements, and may stack what it has."""
    x = maker.operand(dtypes_of(maker, "Tanh", FLOATS), (1, 2, 3))
    at, go, begun, carried, flat, after, out = (maker.name("b") for _ in range(7))
    draw: Callable[[Maker, str, str], list[onnx.NodeProto]] = maker.draws.pick((_noise, _choice))
    nodes = [
        helper.make_node("Identity", [go], [begun]),
        helper.make_node("Tanh", [carried], [flat]),
        *draw(maker, flat, after),
        helper.make_node("Neg", [after], [out]),
    ]
    element = _element(x.dtype)
    tensors = [helper.make_tensor_value_info(n, element, [None] * x.rank)
               for n in (carried, after, out)]  # fmt: skip
    inputs = [helper.make_tensor_value_info(at, TensorProto.INT64, []),
              helper.make_tensor_value_info(go, TensorProto.BOOL, []), tensors[0]]  # fmt: skip
    outputs = [helper.make_tensor_value_info(begun, TensorProto.BOOL, []), *tensors[1:]]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    maker.spend(tuple(TRIPS * n for n in elements(x.shape)))
    bound = 1 + LARGEST
    last = maker.new(x.shape, x.dtype, min(-bound, x.low), max(bound, x.high))
    if maker.draws.chance(0.5):
        trips = maker.draws.pick((TRIPS, 1))
        every = maker.new((static(trips), *x.shape), x.dtype, -bound, bound)
        maker.node("Loop", [maker.constant(np.int64(trips)), None, x], [last, every], body=body)
        return
    fill = Fill("uniform", (0.0,) * BINDINGS, (float(TRIPS),) * BINDINGS)
    maker.node("Loop", [maker.input((), "int64", fill), None, x], [last], body=body)
    # Data tells its first extent, so that nothing reads it.
    maker.ends.append(maker.name())
    maker.nodes[-1].output.append(maker.ends[-1])
