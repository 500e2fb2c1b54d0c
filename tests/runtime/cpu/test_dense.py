"""Layers equal the reference expression, whatever their sizes, operands and layouts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import share
from tests.reference import LAYOUTS, assert_product, lie, product_bound, uniform

from ftuner.core.expr import ACTIVATIONS, Operand, clip
from ftuner.core.expr_values import evaluate
from ftuner.errors import ConfigurationError, DTypeError, ExpressionError, OperandError, ShapeError
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Activation, Dense
from ftuner.runtime.ops.layer import layer_epilogue

DTYPES = ("float32", "float64")
COLUMNS = (1, 7, 8, 9, 15, 17, 23, 24, 25, 31, 33, 48, 1000)
"""Every kind of tail of every panel width."""
OWN_ERROR = {"float32": 2e-6, "float64": 4e-15}
"""What an activation itself may be off by, relative to the largest value it is given: a few units
in the last place (tests/codegen/llvm/test_vector_math.py holds them) of sums of some tens."""


def assert_layer(
    y: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    activation: Activation = None,
    residual: np.ndarray | None = None,
) -> None:
    """`y`, or each of several, is the layer's expression in float64, to within the product's
    rounding.

    All activations here change by at most 1.13 times what their argument changes by.
    """
    assert y.dtype == x.dtype
    sums, bound = product_bound(x, weight.T, extra=4)
    env = {"acc": sums}
    size = np.abs(sums)
    if bias is not None:
        env["bias"] = bias.astype(np.float64)
        size = size + np.abs(env["bias"])
    if residual is not None:
        env["residual"] = residual.astype(np.float64)
        size = size + np.abs(env["residual"])
    epilogue = layer_epilogue(bias is not None, activation, residual is not None)
    expected = evaluate(epilogue, env)
    allowed = 1.13 * bound + OWN_ERROR[x.dtype.name] * (1 + size)
    assert y.shape[-expected.ndim :] == expected.shape
    error = np.abs(y - expected)
    assert np.all(error <= allowed), float(np.nanmax(error / allowed))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", COLUMNS)
def test_rows_and_tails(backend: CpuBackend, dtype: str, n: int) -> None:
    k = 37
    weight, bias = uniform(1, (n, k), dtype), uniform(2, (n,), dtype)
    layer = Dense(weight, bias, "gelu", session=backend)
    # All up to 40, each with some of the columns.
    for rows in (*share(range(1, 41), 3, COLUMNS.index(n)), 63, 100, 257):
        x = uniform(rows, (rows, k), dtype)
        found = []
        for threads in (1, 2):
            backend.threads = threads
            out, memory = lie("padded", np.full((rows, n), np.nan, dtype), guard=99.0)
            layer(x, out=out)
            assert np.count_nonzero(memory == 99.0) == memory.size - out.size
            assert np.array_equal(layer(x), out)
            found.append(out)
        assert_layer(np.stack(found), x, weight, bias, "gelu")


@settings(max_examples=25)
@given(
    rows=st.integers(1, 80), n=st.integers(1, 80), k=st.integers(1, 200),
    dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS),
    out_layout=st.sampled_from(LAYOUTS), weight_layout=st.sampled_from(LAYOUTS),
    residual_layout=st.sampled_from(LAYOUTS), threads=st.integers(1, 3),
)  # fmt: skip
def test_any_layout(
    backend: CpuBackend, rows: int, n: int, k: int, dtype: str, layout: str, out_layout: str,
    weight_layout: str, residual_layout: str, threads: int,
) -> None:  # fmt: skip
    backend.threads = threads
    weight, _ = lie(weight_layout, uniform(1, (n, k), dtype))
    bias = uniform(2, (2 * n,), dtype)[::-2]
    x, _ = lie(layout, uniform(3, (rows, k), dtype))
    residual, _ = lie(residual_layout, uniform(4, (rows, n), dtype))
    out, memory = lie(out_layout, np.full((rows, n), np.nan, dtype), guard=99.0)
    layer = Dense(weight, bias, residual=True, session=backend)
    assert layer(x, residual, out) is out
    assert_layer(out, x, weight, bias, residual=residual)
    assert np.count_nonzero(memory == 99.0) == memory.size - out.size
    assert_layer(layer(x, residual), x, weight, bias, residual=residual)
    plain = Dense(weight, session=backend)
    assert_product(plain(x), x, weight.T)
    out[...] = np.nan
    plain(x, out=out)
    plain(x, out=out)
    assert_product(out, x, weight.T)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(widest: CpuBackend, activation: str) -> None:
    weight, bias = uniform(1, (29, 50), "float32"), uniform(2, (29,), "float32")
    x = 4 * uniform(3, (11, 50), "float32")
    layer = Dense(weight, bias, activation, session=widest)
    assert_layer(layer(x), x, weight, bias, activation)


def test_activation_of_ones_own(widest: CpuBackend) -> None:
    def hard_swish(x):  # type: ignore[no-untyped-def]
        return x * clip(x / 6 + 0.5, 0.0, 1.0)

    weight = uniform(1, (29, 50), "float64")
    x = uniform(3, (11, 50), "float64")
    layer = Dense(weight, activation=hard_swish, session=widest)
    sums = x @ weight.T
    expected = sums * np.clip(sums / 6 + 0.5, 0, 1)
    assert np.allclose(layer(x), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", [(50,), (1, 50), (3, 4, 50), (2, 1, 3, 50)])
def test_axes_of_x(backend: CpuBackend, shape: tuple[int, ...]) -> None:
    weight = uniform(1, (29, 50), "float32")
    x = uniform(3, shape, "float32")
    layer = Dense(weight, session=backend)
    result = layer(x)
    assert result.shape == (*shape[:-1], 29)
    assert_product(result.reshape(-1, 29), x.reshape(-1, 50), weight.T)
    out = np.full(result.shape, np.nan, "float32")
    assert layer(x, out=out) is out
    assert np.array_equal(out, result)
    assert np.array_equal(layer(x, out=out), result)


def test_axes_that_do_not_merge(backend: CpuBackend) -> None:
    weight = uniform(1, (29, 50), "float32")
    x = uniform(3, (4, 3, 50), "float32").swapaxes(0, 1)
    out = np.full((4, 3, 29), np.nan, "float32").swapaxes(0, 1)
    layer = Dense(weight, session=backend)
    for _ in range(2):
        assert layer(x, out=out) is out
        assert_product(out, x, weight.T)
    assert_product(layer(x), x, weight.T)
    broadcast = np.broadcast_to(uniform(3, (50,), "float32"), (7, 50))
    assert_product(layer(broadcast), broadcast, weight.T)


@pytest.mark.parametrize("shape", [(0, 50), (3, 0, 50)])
def test_no_rows(backend: CpuBackend, shape: tuple[int, ...]) -> None:
    layer = Dense(uniform(1, (29, 50), "float32"), session=backend)
    x = np.empty(shape, "float32")
    assert layer(x).shape == (*shape[:-1], 29)
    out = np.empty((*shape[:-1], 29), "float32")
    assert layer(x, out=out) is out


@pytest.mark.each_value
@pytest.mark.parametrize("activation", ["identity", "gelu", "sigmoid"])
def test_no_inputs(backend: CpuBackend, activation: str) -> None:
    """Sums of nothing are zeros, to which the epilogue is applied."""
    bias, residual = uniform(1, (29,), "float32"), uniform(2, (3, 29), "float32")
    layer = Dense(np.empty((29, 0), "float32"), bias, activation, True, session=backend)
    applied = ACTIVATIONS[activation](Operand("bias", "column"))
    expected = evaluate(applied, {"bias": bias}) + residual
    for _ in range(3):
        assert np.allclose(layer(np.empty((3, 0), "float32"), residual), expected, atol=1e-6)
    plain = Dense(np.empty((29, 0), "float32"), session=backend)
    for shape in ((1,), (5,), (2, 3), (0,), (2, 0)):
        for _ in range(3):
            assert np.array_equal(plain(np.empty((*shape, 0), "float32")), np.zeros((*shape, 29)))


def test_no_outputs(backend: CpuBackend) -> None:
    for k in (0, 50):
        layer = Dense(np.empty((0, k), "float32"), np.empty(0, "float32"), session=backend)
        for shape in ((3,), (2, 0), (4, 3)):
            assert layer(np.ones((*shape, k), "float32")).shape == (*shape, 0)


def test_special_values(backend: CpuBackend) -> None:
    weight = uniform(1, (29, 50), "float32")
    x = uniform(2, (9, 50), "float32")
    x[3, 7], x[5, 1], x[6, 0] = np.nan, np.inf, -np.inf
    result = Dense(weight, session=backend)(x)
    expected = x.astype("float64") @ weight.T.astype("float64")
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    infinite = np.isinf(expected)
    assert np.array_equal(result[infinite], expected[infinite])
    rectified = Dense(weight, activation="relu", session=backend)(x)
    assert np.array_equal(np.isnan(rectified), np.isnan(expected))


@pytest.mark.each_value
@pytest.mark.parametrize("remembered", [False, True])
def test_overlapping_out(backend: CpuBackend, remembered: bool) -> None:
    weight = uniform(1, (50, 50), "float32")
    residual = uniform(3, (9, 50), "float32")
    layer = Dense(weight, session=backend)
    adds = Dense(weight, residual=True, session=backend)
    for place in (lambda v: v, lambda v: v[::-1], lambda v: v[:, ::-1]):
        x = uniform(2, (9, 50), "float32")
        given = x.copy()
        if remembered:
            layer(given, out=place(np.empty_like(x)))
        layer(x, out=place(x))
        assert_product(place(x), given, weight.T)
        both = residual.copy()
        adds(given, both, place(both))
        assert_layer(place(both), given, weight, residual=residual)
    square = uniform(2, (50, 50), "float32")
    given = square.copy()
    layer(square, out=square.T)
    assert_product(square.T, given, weight.T)


def test_misaligned(backend: CpuBackend) -> None:
    def shifted(values: np.ndarray) -> np.ndarray:
        view = np.frombuffer(np.empty(values.nbytes + 1, np.uint8), values.dtype, offset=1)
        view = view.reshape(values.shape)
        view[...] = values
        return view

    weight, x = uniform(1, (29, 50), "float32"), uniform(2, (9, 50), "float32")
    residual, bias = uniform(3, (9, 29), "float32"), uniform(4, (29,), "float32")
    layer = Dense(shifted(weight), shifted(bias), residual=True, session=backend)
    out = shifted(np.empty_like(residual))
    layer(shifted(x), shifted(residual), out)
    assert_layer(out, x, weight, bias, residual=residual)
    plain = Dense(weight, session=backend)
    assert_product(plain(x), x, weight.T)
    assert_product(plain(shifted(x)), x, weight.T)
    plain(x, out=np.empty_like(out, order="C"))
    plain(x, out=out)
    assert_product(out, x, weight.T)


def test_weight_and_bias_are_copied(backend: CpuBackend) -> None:
    weight, bias = uniform(1, (29, 50), "float32"), uniform(2, (29,), "float32")
    x = uniform(3, (4, 50), "float32")
    layer = Dense(weight, bias, "gelu", session=backend)
    before = layer(x)
    weight[...], bias[...] = np.nan, np.nan
    assert np.array_equal(layer(x), before)


def test_every_width(backend: CpuBackend) -> None:
    weight, x = uniform(1, (100, 50), "float32"), uniform(2, (33, 50), "float32")
    widths = Dense(weight, session=backend).products.compiled.library.widths
    for width in widths:
        layer = Dense(weight, width=width, session=backend)
        assert layer.panels.width == width
        assert_product(layer(x), x, weight.T)
    for bad in (max(widths) + 1, -1, 99):
        with pytest.raises(ConfigurationError, match="width is"):
            Dense(weight, width=bad, session=backend)


def test_wrong_arguments_of_a_layer(widest: CpuBackend) -> None:
    weight, bias = np.ones((5, 4), "float32"), np.ones(5, "float32")
    for shape in ((5,), (5, 4, 1), ()):
        with pytest.raises(ShapeError, match="weight is"):
            Dense(np.ones(shape, "float32"), session=widest)
    with pytest.raises(OperandError, match="weight is a list"):
        Dense([[1.0]], session=widest)
    with pytest.raises(DTypeError, match="weight has dtype int64"):
        Dense(np.ones((5, 4), "int64"), session=widest)
    for shape in ((4,), (5, 1), ()):
        with pytest.raises(ShapeError, match="bias is"):
            Dense(weight, np.ones(shape, "float32"), session=widest)
    with pytest.raises(DTypeError, match="bias has dtype float64"):
        Dense(weight, bias.astype("float64"), session=widest)
    with pytest.raises(ExpressionError, match="activation is 'rleu'; known are"):
        Dense(weight, activation="rleu", session=widest)
    with pytest.raises(ExpressionError, match="only bias and residual"):
        Dense(weight, activation=lambda x: x + Operand("scale", "row"), session=widest)


def test_wrong_arguments_of_a_call(widest: CpuBackend) -> None:
    layer = Dense(np.ones((5, 4), "float32"), session=widest)
    adds = Dense(np.ones((5, 4), "float32"), residual=True, session=widest)
    x = np.ones((3, 4), "float32")
    residual = np.ones((3, 5), "float32")
    # Known shapes are checked no less than new ones.
    layer(x)
    layer(x, out=np.empty((3, 5), "float32"))
    with pytest.raises(OperandError, match="x is a list"):
        layer([[1.0] * 4])
    for bad in (np.ones((3, 5), "float32"), np.array(1.0, "float32"), np.ones(0, "float32")):
        with pytest.raises(ShapeError, match="x is"):
            layer(bad)
    for dtype in ("float64", "int32", ">f4"):
        with pytest.raises(DTypeError, match="x has dtype"):
            layer(x.astype(dtype))
        with pytest.raises(DTypeError, match="out has dtype"):
            layer(x, out=np.empty((3, 5), dtype))
    with pytest.raises(OperandError, match="no residual"):
        layer(x, residual)
    with pytest.raises(OperandError, match="a residual"):
        adds(x)
    with pytest.raises(DTypeError, match="residual has dtype"):
        adds(x, residual.astype("float64"))
    for shape in ((5,), (1, 5), (3, 4), (4, 5)):
        with pytest.raises(ShapeError, match="residual is"):
            adds(x, np.ones(shape, "float32"))
        with pytest.raises(ShapeError, match="out is"):
            layer(x, out=np.ones(shape, "float32"))
    with pytest.raises(OperandError, match="out is a list"):
        layer(x, out=[[0.0]])
    fixed = np.zeros((3, 5), "float32")
    fixed.flags.writeable = False
    with pytest.raises(OperandError, match="read-only"):
        layer(x, out=fixed)
    assert not fixed.any()


def test_a_layer_without_columns_of_its_own(widest: CpuBackend) -> None:
    """One input, one output."""
    layer = Dense(np.full((1, 1), 3.0), np.full(1, 2.0), session=widest)
    assert np.array_equal(layer(np.full((4, 1), 5.0)), np.full((4, 1), 17.0))
