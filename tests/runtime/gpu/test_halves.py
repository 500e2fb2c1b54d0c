"""Models in half precision: what float32 is held in, and files that say so themselves.

Bounds are in unit roundoffs of what is held. Triton's interpreter cuts float32 to bfloat16, where a
GPU rounds: an error is up to twice as large.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.graph.graphs import B, Maker, S, T, layer, reference
from tests.runtime.gpu.backends import interpreted

from ftuner.core.dim import symbol
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, DType
from ftuner.errors import HardwareError, InputError
from ftuner.graph.arrays import converted
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.attention.step import AttentionStep
from ftuner.schedules.nest.step import NestStep
from ftuner.schedules.product.step import ProductStep

Array = npt.NDArray[Any]
HALVES = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
LEAST = float(np.finfo(np.float32).min)
NORMAL = np.random.default_rng(7).standard_normal


def roundoff(dtype: DType) -> float:
    return dtype.unit_roundoff * (2 if dtype == BFLOAT16 else 1)


def doubled(graph: Graph) -> Graph:
    """The graph in float64."""
    same: dict[Value, Value] = {}

    def wide(value: Value) -> Value:
        if value not in same:
            type_, constant = value.type, value.constant
            if type_.dtype == FLOAT32:
                type_ = TensorType(FLOAT64, type_.shape)
                constant = None if constant is None else constant.astype(np.float64)
            same[value] = Value(value.name, type_, constant, value.dims)
        return same[value]

    nodes = tuple(
        Node(n.op, tuple(map(wide, n.inputs)), tuple(map(wide, n.outputs)),
             {k: FLOAT64 if v == FLOAT32 else v for k, v in n.attributes.items()})
        for n in graph.nodes
    )  # fmt: skip
    outputs = tuple((name, wide(v)) for name, v in graph.outputs)
    return Graph(tuple(map(wide, graph.inputs)), outputs, nodes, graph.constraints)


def assert_within(
    graph: Graph, backend: GpuBackend, dtype: DType, inputs: Mapping[str, Array], roundings: float
) -> Model:
    """Outputs keep their types, and their relative error is that of so many roundings."""
    model = Model(optimised(graph), backend, Options(held=dtype))
    found = model.run(inputs)
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs.values()]
    for x, wanted, (name, value) in zip(
        found, run_reference(doubled(graph), wide), graph.outputs, strict=True
    ):
        assert x.dtype == value.dtype.name
        assert np.isfinite(x).all(), name
        error = np.linalg.norm(x - wanted) / np.linalg.norm(wanted)
        assert error <= roundings * roundoff(dtype), f"{name}: {error / roundoff(dtype)} roundoffs"
    return model


@pytest.mark.each_value
@HALVES
def test_an_encoder_layer(dtype: DType, backend: GpuBackend) -> None:
    """Of attention, gelu, a norm and two residuals: some twelve values on the way are rounded."""
    graph = layer()
    for batch, steps in ((1, 5), (2, 9), (3, 1)):
        x = NORMAL((batch, steps, 24)).astype(np.float32)
        mask = np.ones((batch, steps), np.float32)
        mask[:, steps // 2 + 1 :] = 0
        model = assert_within(graph, backend, dtype, {"x": x, "mask": mask}, 12)
    products = [s for s in model.steps if isinstance(s, ProductStep | AttentionStep)]
    assert len(products) == 5
    assert all(s.views[0].layout.dtype == dtype for s in products)
    again = model.run({"x": torch.from_numpy(x), "mask": torch.from_numpy(mask)})
    assert all(y.dtype == torch.float32 for y in again)


def test_weights_that_no_half_reaches(backend: GpuBackend) -> None:
    """Their product is of float32, and the one before it is not."""
    maker = Maker()
    x = maker.linear(maker.given("x", B, S, 24), 40)
    weight = maker.constant((1e5 * NORMAL((40, 16))).astype(np.float32))
    graph = maker.made(maker.add("matmul", x, weight))
    inputs = {"x": NORMAL((2, 5, 24)).astype(np.float32)}
    model = assert_within(graph, backend, FLOAT16, inputs, 4)
    products = [step for step in model.steps if isinstance(step, ProductStep)]
    assert [step.views[1].layout.dtype for step in products] == [FLOAT16, FLOAT32]


def rotary() -> Graph:
    """Queries at positions of their own, turned by cosines that are computed from these."""
    maker = Maker()
    x = maker.given("x", B, S, 16)
    at = maker.add("cast", maker.given("positions", B, S, dtype=INT64), to=FLOAT32)
    rates = maker.constant((10000.0 ** (-np.arange(8) / 8)).astype(np.float32).reshape(1, 8))
    angles = maker.add("matmul", maker.add("reshape", at, shape=(B, S, 1)), rates)
    cosine, sine = (
        maker.add("reshape", maker.add(op, angles), shape=(B, S, 1, 8)) for op in ("cos", "sin")
    )
    q = maker.add("reshape", maker.linear(x, 16, bias=False), shape=(B, S, 2, 8))
    return maker.made(maker.add("rotary", q, cosine, sine, axis=2))


@HALVES
def test_positions_that_no_half_counts_to(dtype: DType, h200: GpuBackend) -> None:
    """x, the weight, their product and what is turned are rounded, and no angle."""
    positions = np.array([[2049, 2050, 4097], [3001, 257, 5001]])
    inputs = {"x": NORMAL((2, 3, 16)).astype(np.float32), "positions": positions}
    assert_within(rotary(), h200, dtype, inputs, 4 + 5001 * FLOAT32.unit_roundoff / roundoff(dtype))


def hidden_rows(maker: Maker, scores: Value) -> Value:
    """Scores less the largest number where a mask of integers is zero."""
    shown = maker.add("cast", maker.given("mask", B, S, dtype=INT64), to=FLOAT32)
    hidden = maker.add("subtract", maker.number(1), maker.add("reshape", shown, shape=(B, 1, 1, S)))
    return maker.add("add", scores, maker.add("multiply", hidden, maker.number(LEAST)))


@HALVES
@pytest.mark.parametrize("written", [False, True], ids=["attention", "written out"])
def test_rows_that_are_hidden_whole(dtype: DType, written: bool, h200: GpuBackend) -> None:
    """Each key weighs the same there: with an infinity for the least number, none would."""
    maker = Maker()
    q, k = maker.given("q", B, 2, S, 8), maker.given("k", B, 2, 8, S)
    v = maker.given("v", B, 2, S, 8)
    scores = hidden_rows(maker, maker.add("matmul", q, k))
    weights = maker.add("softmax", scores, axis=3, log=False)
    outputs = [maker.add("matmul", weights, v)]
    if written:
        outputs.append(maker.add("minimum", scores, maker.number(1e3)))
    graph = maker.made(*outputs)
    shapes = {"q": (2, 2, 3, 8), "k": (2, 2, 8, 3), "v": (2, 2, 3, 8)}
    inputs: dict[str, Array] = {n: NORMAL(s).astype(np.float32) for n, s in shapes.items()}
    inputs["mask"] = np.array([[1, 0, 1], [0, 0, 0]])
    model = assert_within(graph, h200, dtype, {n: inputs[n] for n in ("q", "k", "v", "mask")}, 8)
    assert any(isinstance(s, AttentionStep) for s in model.steps) != written
    (found, *_) = model.run(inputs)
    even = inputs["v"][1].mean(1, keepdims=True)
    np.testing.assert_allclose(found[1], np.broadcast_to(even, found[1].shape),
                               atol=4 * roundoff(dtype))  # fmt: skip


@HALVES
def test_products_whose_columns_are_hidden(dtype: DType, h200: GpuBackend) -> None:
    """What is added to a product would end in its epilogue, and be rounded to an infinity."""
    maker = Maker()
    q, k = maker.given("q", S, 8), maker.given("k", 8, 3)
    mask = maker.constant(np.full(3, LEAST, np.float32))
    scores = maker.add("add", maker.add("matmul", q, k), mask)
    weights = maker.add("softmax", scores, axis=1, log=False)
    graph = maker.made(weights, maker.add("exp", scores))
    model = Model(optimised(graph), h200, Options(None, progress=dtype))
    found, none = model.run({"q": np.ones((2, 8), "f"), "k": np.zeros((8, 3), "f")})
    np.testing.assert_allclose(found, np.full((2, 3), 1 / 3), rtol=2 * roundoff(dtype))
    assert not none.any()


@HALVES
def test_angles_that_a_product_gives(dtype: DType, h200: GpuBackend) -> None:
    maker = Maker()
    rates = maker.constant(np.array([[1.0, 0.5, 0.1], [0.25, 0.125, 1.0]], np.float32))
    graph = maker.made(maker.add("sin", maker.add("matmul", maker.given("t", B, 2), rates)))
    times = np.array([[999.0, 3.0], [2049.0, 1.0], [513.0, 777.0]], np.float32)
    assert_within(graph, h200, dtype, {"t": times}, 1)


@HALVES
def test_statistics_are_beyond_what_float16_has(dtype: DType, h200: GpuBackend) -> None:
    """Squares of numbers of some thousands, their sums in memory and in registers."""
    maker = Maker()
    x = maker.linear(maker.given("x", B, 64), 64, bias=False)
    total = maker.add("reduce", maker.add("multiply", x, x), kind="sum", axes=(1,))
    length = maker.add("reshape", maker.add("sqrt", total), shape=(B, 1))
    normed = maker.add("norm", x, maker.weight(64), axis=1, epsilon=1e-12, rms=True)
    graph = maker.made(maker.add("divide", x, length), normed, total)
    x = (NORMAL((3, 64)) * 2000).astype(np.float32)
    assert_within(graph, h200, dtype, {"x": x}, 6)


@HALVES
def test_weights_of_integers(dtype: DType, h200: GpuBackend) -> None:
    """They are numbers of both types; their scale is added in float32."""
    maker = Maker()
    levels = np.random.default_rng(3).integers(-128, 128, (128, 160)).astype(np.int8)
    scale = np.linspace(1e-6, 1e-3, 160, dtype=np.float32)
    weight = maker.add("multiply", maker.add("cast", maker.constant(levels), to=FLOAT32),
                       maker.constant(scale))  # fmt: skip
    graph = maker.made(maker.add("matmul", maker.given("x", B, 128), weight))
    model = assert_within(graph, h200, dtype, {"x": NORMAL((4, 128)).astype(np.float32)}, 2)
    (product,) = [s for s in model.steps if isinstance(s, ProductStep)]
    assert product.b.buffer.array is not None
    assert product.b.buffer.array.dtype == np.int8
    assert product.b.layout.dtype == dtype


@HALVES
def test_what_is_joined_to_a_cache(dtype: DType, h200: GpuBackend) -> None:
    """A cache comes and goes in float32, and is multiplied as halves are."""
    maker = Maker()
    x, past = maker.given("x", B, S, 8), maker.given("past", B, T, 8)
    keys = maker.add("concat", past, maker.linear(x, 8), axis=1)
    turned = maker.add("transpose", keys, perm=(0, 2, 1))
    graph = maker.made(maker.add("matmul", x, turned), keys)
    shapes = {"x": (2, 3, 8), "past": (2, 5, 8)}
    inputs = {n: NORMAL(s).astype(np.float32) for n, s in shapes.items()}
    assert_within(graph, h200, dtype, inputs, 5)


def test_an_empty_input(h200: GpuBackend) -> None:
    model = Model(optimised(layer()), h200, Options(held=BFLOAT16))
    (found,) = model.run({"x": np.zeros((0, 4, 24), np.float32), "mask": np.ones((0, 4), "f")})
    assert found.shape == (0, 4, 24)
    assert found.dtype == np.float32


# Graphs that hold halves themselves.


def perceptron(dtype: DType) -> Graph:
    """As an exporter writes it: weights and numbers are rounded, a norm is computed in float32."""
    maker = Maker()
    x = maker.given("x", B, 16, dtype=dtype)

    def weight(*shape: int) -> Value:
        return maker.constant(NORMAL(shape) / 4, dtype)

    y = maker.add("add", maker.add("matmul", x, weight(16, 24)), weight(24))
    root, one = maker.constant(2**0.5, dtype), maker.constant(1.0, dtype)
    lifted = maker.add("add", maker.add("erf", maker.add("divide", y, root)), one)
    y = maker.add("multiply", maker.add("multiply", y, lifted), maker.constant(0.5, dtype))
    y = maker.add("add", maker.add("matmul", y, weight(24, 16)), x)
    wide = maker.add("norm", maker.add("cast", y, to=FLOAT32), axis=1, epsilon=1e-5, rms=True)
    return maker.made(maker.add("multiply", maker.add("cast", wide, to=dtype), weight(16)))


@HALVES
def test_a_graph_of_halves(dtype: DType, backend: GpuBackend) -> None:
    graph = perceptron(dtype)
    model = Model(optimised(graph), backend)
    assert [s.title.count("gelu") for s in model.steps if isinstance(s, ProductStep)] == [1, 0]
    assert {s.a.layout.dtype for s in model.steps if isinstance(s, ProductStep)} == {dtype}
    x = converted(NORMAL((5, 16)), dtype)
    tensor = torch.from_numpy(x).to(getattr(torch, dtype.name))
    (found,) = model.run({"x": tensor})
    assert found.dtype == tensor.dtype
    (wanted,) = reference(graph, {"x": x})
    np.testing.assert_allclose(found.float().numpy(), wanted.astype(np.float32),
                               rtol=0, atol=16 * roundoff(dtype))  # fmt: skip
    if dtype == FLOAT16:
        (array,) = model.run({"x": x})
        assert array.dtype == np.float16
        np.testing.assert_array_equal(array, found.numpy())


@HALVES
def test_attention_whose_softmax_is_widened(dtype: DType, h200: GpuBackend) -> None:
    maker = Maker()
    q, v = (maker.given(n, B, 2, S, 8, dtype=dtype) for n in "qv")
    scores = maker.add("matmul", q, maker.given("k", B, 2, 8, S, dtype=dtype))
    wide = maker.add("softmax", maker.add("cast", scores, to=FLOAT32), axis=3, log=False)
    graph = maker.made(maker.add("matmul", maker.add("cast", wide, to=dtype), v))
    model = Model(optimised(graph), h200)
    assert [type(s) for s in model.steps] == [AttentionStep]
    shapes = {"q": (2, 2, 5, 8), "v": (2, 2, 5, 8), "k": (2, 2, 8, 5)}
    inputs = {n: converted(NORMAL(s), dtype) for n, s in shapes.items()}
    tensors = {n: torch.from_numpy(x).to(getattr(torch, dtype.name)) for n, x in inputs.items()}
    (found,) = model.run(tensors)
    (wanted,) = reference(graph, inputs)
    np.testing.assert_allclose(found.float().numpy(), wanted.astype(np.float32),
                               rtol=0, atol=8 * roundoff(dtype))  # fmt: skip


def test_float16_overflows_to_infinity(h200: GpuBackend) -> None:
    maker = Maker()
    x = maker.given("x", B)
    model = Model(maker.made(maker.add("cast", x, to=FLOAT16)), h200)
    given = np.array([65504, 65519, 65520, -1e9, 2**-25, 3 * 2**-25, 2049, 2051], np.float32)
    with np.errstate(over="ignore"):
        (found,) = model.run({"x": given})
    wanted = np.array([65504, 65504, np.inf, -np.inf, 0, 2**-23, 2048, 2052])
    np.testing.assert_array_equal(found, wanted)


@HALVES
def test_where_elements_are_not_zero(dtype: DType, h200: GpuBackend) -> None:
    maker = Maker()
    found = maker.add("non_zero", maker.given("x", B, S, dtype=dtype), count=str(symbol("N")))
    model = Model(maker.made(found), h200)
    given = torch.eye(3, dtype=getattr(torch, dtype.name))
    (places,) = model.run({"x": given})
    np.testing.assert_array_equal(places.numpy(), np.array([[0, 1, 2], [0, 1, 2]]))


def test_a_chip_that_does_not_multiply_it_says_so_at_once() -> None:
    graph = optimised(layer())
    Model(graph, interpreted("v100"), Options(held=FLOAT16))
    with pytest.raises(HardwareError, match=r"v100.* no matrix units for bfloat16"):
        Model(graph, interpreted("v100"), Options(held=BFLOAT16))


def test_bad_inputs(h200: GpuBackend) -> None:
    maker = Maker()
    x = maker.given("x", B, dtype=BFLOAT16)
    index = maker.given("i", B, dtype=INT64)
    model = Model(maker.made(maker.add("add", x, maker.add("cast", index, to=BFLOAT16))), h200)
    ones, places = torch.ones(2, dtype=torch.bfloat16), np.arange(2)
    (found,) = model.run({"x": ones, "i": places})
    assert found.tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match=r"no bfloat16, which the model gives as y0.*torch tensor"):
        model.run({"x": np.ones(2, np.float32), "i": places})
    with pytest.raises(InputError, match="input x is bfloat16, which NumPy has not"):
        model.run({"x": np.ones(2, np.float32), "i": torch.from_numpy(places)})
    with pytest.raises(InputError, match=r"float16; the model takes torch\.bfloat16"):
        model.run({"x": ones.half(), "i": places})


def test_nests_are_computed_in_float32(h200: GpuBackend) -> None:
    """A difference of neighbours that no half tells apart, in one step."""
    maker = Maker()
    x = maker.given("x", B, 4)
    table = maker.add("reshape", maker.linear(x, 4, bias=False), shape=(B, 2, 2))
    much = maker.add("add", table, maker.number(4096.0))
    graph = maker.made(maker.add("subtract", much, maker.number(4096.0)))
    model = assert_within(graph, h200, FLOAT16, {"x": NORMAL((3, 4)).astype(np.float32)}, 6)
    assert [s for s in model.steps if isinstance(s, NestStep)]
