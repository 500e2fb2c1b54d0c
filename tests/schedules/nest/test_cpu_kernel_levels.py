"""Levels of 8 bits are those of the division that the standard has, whatever scale and zero point
are; levels and ranges of rows are those of the references."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT8, UINT8, DType
from ftuner.frontends.onnx.quantised import quantised, rounded
from ftuner.graph.algebra import apply, constant, rint
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph

Array = npt.NDArray[Any]
SCALES = (
    0.0157,
    1.0,
    3e-7,
    0.7,
    1e-19,
    1e19,
    2.0**-60,
    1e-30,
    1e-40,
    1e36,
    -0.5,
    0.0,
    np.inf,
    np.nan,
)
"""Common ones, then those that are divided by."""
WIDTHS = (0, 1, 5, 64, 515)


def graph_of(dtype: DType, zero_dtype: DType) -> Graph:
    """Levels of x, and what they stand for."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), symbol("n")))
    scale, zero = builder.input("scale", FLOAT32, ()), builder.input("zero", zero_dtype, ())
    with builder.writing():
        levels = quantised(x, scale, zero, dtype)
        again = (quantised(x + 0.0, scale, zero, dtype).cast(FLOAT32) - zero.cast(FLOAT32)) * scale
    return builder.graph([x, scale, zero], [("levels", levels), ("again", again)])


def levels_of(x: Array, scale: Any, zero: Any, dtype: DType) -> Array:
    limits = np.iinfo(dtype.name)
    with np.errstate(all="ignore"):
        found = np.clip(np.rint(x / np.float32(scale)) + np.float32(zero), limits.min, limits.max)
    return np.nan_to_num(found).astype(dtype.name)


def elements(rng: np.random.Generator, scale: float, width: int) -> Array:
    """Elements of all levels; next to where these change; and hostile ones."""
    x = rng.uniform(-300, 300, (7, width)).astype(np.float32)
    ties = (np.rint(rng.uniform(-300, 300, (7, width))) + 0.5).astype(np.float32)
    with np.errstate(all="ignore"):
        x, ties = x * np.float32(scale), ties * np.float32(scale)
        moved = rng.integers(-2, 3, ties.shape, np.int32)
        ties = (np.nan_to_num(ties).view(np.int32) + moved).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38], np.float32)
    kinds = rng.random(x.shape)
    return np.where(kinds < 0.6, ties, np.where(kinds < 0.9, x, rng.choice(special, x.shape)))


@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_levels(backend: CpuBackend, dtype: DType) -> None:
    rng = np.random.default_rng(13)
    run = CompiledGraph(graph_of(dtype, dtype), backend, Options(threads=2)).run
    limits = np.iinfo(dtype.name)
    for scale in map(np.float32, SCALES):
        for zero in (limits.min, limits.max, 3, 100):
            for width in WIDTHS:
                x = elements(rng, scale, width)
                levels, again = run([x, np.array(scale), np.array(zero, dtype.name)])
                wanted = levels_of(x, scale, zero, dtype)
                np.testing.assert_array_equal(levels, wanted, f"{scale} {zero} {width}")
                with np.errstate(all="ignore"):
                    floats = (wanted.astype(np.float32) - np.float32(zero)) * scale
                np.testing.assert_array_equal(again, floats, f"{scale} {zero} {width}")


def test_zero_points_between_integers(backend: CpuBackend) -> None:
    rng = np.random.default_rng(14)
    run = CompiledGraph(graph_of(UINT8, FLOAT32), backend, Options()).run
    for zero in (0.5, -1.25, 1e6, np.nan, -np.inf):
        x = elements(rng, 0.1, 515)
        levels, _ = run([x, np.array(0.1, np.float32), np.array(zero, np.float32)])
        np.testing.assert_array_equal(levels, levels_of(x, 0.1, zero, UINT8), str(zero))


def test_scales_of_columns(backend: CpuBackend) -> None:
    rng = np.random.default_rng(15)
    scale = rng.uniform(0.01, 0.1, 67).astype(np.float32)
    zero = rng.integers(0, 255, 67).astype(np.uint8)
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), 67))
    with builder.writing():
        result = quantised(x, constant(scale), constant(zero), UINT8)
        products = rounded(x * constant(scale), constant(zero), UINT8)
    graph = builder.graph([x], [("levels", result), ("products", products)])
    given = elements(rng, 0.05, 67)
    found, of_products = CompiledGraph(graph, backend, Options()).run([given])
    np.testing.assert_array_equal(found, levels_of(given, scale, zero, UINT8))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(of_products, levels_of(given * scale, 1, zero, UINT8))


@pytest.mark.parametrize("op", ["row_levels", "row_range"])
def test_rows(backend: CpuBackend, op: str) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), symbol("n")))
    graph = builder.graph([x], [(str(i), v) for i, v in enumerate(builder.add_many(op, x))])
    run = CompiledGraph(graph, backend, Options(threads=2)).run
    rng = np.random.default_rng(16)
    for rows in (0, 1, 70):
        for width in (1, 15, 64, 131, 3072):
            given = rng.standard_normal((rows, width), np.float32)
            given *= 10.0 ** rng.integers(-30, 30, (rows, 1)).astype(np.float32)
            given[1:2] = 0
            given[2:3, width // 2] = np.nan
            if op == "row_levels":
                given[3:4] = 1e-39
                given[4:5, 0] = -np.inf
            with np.errstate(all="ignore"):
                wanted = OPERATORS[op].reference(given)
            for got, expected in zip(run([given]), wanted, strict=True):
                known = np.isfinite(given).all(1)
                np.testing.assert_array_equal(got[known], expected[known])
                if got.dtype == np.float32:
                    assert np.isnan(got[~known]).all()


@pytest.mark.parametrize(("dtype", "low", "high"), [(INT8, 0, 255), (UINT8, -128, 127)])
def test_what_leaves_the_range_of_the_type_wraps(
    backend: CpuBackend, dtype: DType, low: int, high: int
) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("n"),))
    with builder.writing():
        least, most = (constant([n], FLOAT32) for n in (low, high))
        limited = apply("minimum", apply("maximum", rint(x), least), most).cast(dtype)
        graph = builder.graph([x], [("y", limited), ("again", (limited.cast(FLOAT32)))])
    given = np.linspace(low - 5, high + 5, 301, dtype=np.float32)
    wanted = np.clip(np.rint(given), low, high).astype(np.int64).astype(dtype.name)
    y, again = CompiledGraph(graph, backend, Options()).run([given])
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(again, wanted.astype(np.float32))
