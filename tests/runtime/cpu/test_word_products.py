"""Products of 8-bit integers, by the instruction that some CPUs have for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import ops
from tests.runtime.cpu.small_models import device_of

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import BFLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64, UINT8, DType
from ftuner.errors import ConfigurationError
from ftuner.graph import folding
from ftuner.graph.algebra import apply, concat, constant, gather, rint, tanh
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.passes.word_products import PRECISIONS
from ftuner.hardware.isa import instruction_set
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.reference import run_reference
from ftuner.schedules.product.step import ProductStep

RNG = np.random.default_rng(41)
SHAPES = ((384, 97), (515, 33), (129, 130), (4100, 17), (64, 256))
"""k and n; widths with tails, and k that words do not divide."""
ROWS = (0, 1, 2, 7, 13, 64, 131)


def isas() -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.isa(name)) for name in ("avx2", "avx512", "neon")]


def graph_of(k: int, n: int, dtype: DType, of_b: DType, wide: DType) -> tuple[Graph, Any, Any]:
    """A product of levels, with the weight's levels and its zero point; the zero point of the rows
    is an input."""
    limits = np.iinfo(of_b.name)
    weight = RNG.integers(limits.min, limits.max, (k, n), of_b.name, endpoint=True)
    middle = 128 if of_b == UINT8 else 0
    builder = Builder()
    m = symbol("m")
    a, zero = builder.input("a", dtype, (m, k)), builder.input("zero", dtype, ())
    with builder.writing():
        b = constant(weight).cast(wide) - float(middle)
        total = (a.cast(wide) - zero.cast(wide)) @ b
        if wide == FLOAT64:
            total = total.cast(INT64).cast(INT32).cast(FLOAT32)
        result = total * constant(np.linspace(0.5, 2, n, dtype=np.float32))
    return builder.graph([a, zero], [("y", result)]), weight, middle


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_sums_are_exact(isa: str, k: int, n: int, dtype: DType) -> None:
    device = device_of(UINT8, isa)
    wide, of_b = (FLOAT64, INT8) if k > 1000 else (FLOAT32, UINT8 if k % 2 else INT8)
    graph, weight, middle = graph_of(k, n, dtype, of_b, wide)
    graph = optimised(graph, halves=False, words=(UINT8,))
    assert "word_matmul" in ops(graph)
    assert "matmul" not in ops(graph)
    scale = np.linspace(0.5, 2, n, dtype=np.float32)
    limits = np.iinfo(dtype.name)
    for threads in (1, 3):
        run = CompiledGraph(replace(graph), device, Options(threads=threads))
        whole = RNG.integers(limits.min, limits.max, (max(ROWS), k), dtype.name, endpoint=True)
        zero = np.array(limits.max - 3, dtype.name)
        sums = (whole.astype(np.int64) - int(zero)) @ (weight.astype(np.int64) - middle)
        wanted = sums.astype(np.float64) * scale
        # Exact sums are rounded to float32, as is the zero point's share.
        most = np.abs(whole.astype(np.float64)) @ np.abs(weight.astype(np.float64) - middle)
        most += abs(int(zero)) * np.abs(weight.astype(np.float64) - middle).sum(0)
        tolerance = 4 * 2.0**-24 * (most + np.abs(sums)) * scale
        first = None
        for rows in ROWS[::-1]:
            (got,) = run.run([whole[:rows], zero])
            assert (np.abs(got - wanted[:rows]) <= tolerance[:rows]).all()
            first = got if first is None else first
            # A row does not depend on the others.
            np.testing.assert_array_equal(got, first[:rows])


WINDOWS = (
    ((3, 3), 1, 1, 1),
    ((3, 3), 2, 1, 0),
    ((1, 1), 1, 1, 0),
    ((2, 3), 1, 2, 2),
    ((5,), 3, 1, 2),
)
"""Kernels, strides, dilations and padding."""


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("kernel", WINDOWS, ids=str)
@pytest.mark.parametrize(
    ("channels", "dtype", "zero"), [(16, UINT8, 0), (6, UINT8, 9), (5, INT8, -7)]
)
def test_convolutions_are_exact(
    isa: str, kernel: tuple[tuple[int, ...], int, int, int], channels: int, dtype: DType, zero: int
) -> None:
    device = device_of(UINT8, isa)
    window, stride, dilation, pad = kernel
    axes, columns, limits = len(window), 300, np.iinfo(dtype.name)
    spatial = [symbol(f"d{i}") for i in range(axes)]
    builder = Builder()
    x = builder.input("x", dtype, (symbol("b"), channels, *spatial))
    weight = RNG.integers(-128, 128, (columns, channels, *window)).astype(np.int8)
    scale = np.linspace(0.5, 2, columns, dtype=np.float32)
    with builder.writing():
        turned = constant(weight).cast(FLOAT32) * constant(scale.reshape(-1, *[1] * (axes + 1)))
        levels = x.cast(FLOAT32) - float(zero)
        extents = tuple(
            (d + 2 * pad - dilation * (k - 1) - 1) // stride + 1
            for d, k in zip(spatial, window, strict=True)
        )
        y = apply(
            "convolution", levels.transpose((0, *range(2, axes + 2), 1)),
            turned.transpose((*range(2, axes + 2), 1, 0)), groups=1, strides=(stride,) * axes,
            dilations=(dilation,) * axes, begin=(pad,) * axes, extents=extents,
        )  # fmt: skip
    graph = builder.graph([x], [("y", y)])
    narrow = optimised(graph, halves=False, words=(UINT8,))
    assert "word_convolution" in ops(narrow)
    for threads in (1, 2):
        run = CompiledGraph(replace(narrow), device, Options(threads=threads))
        for sizes in ((1, 9, 7), (2, 11, 6), (3, 7, 13)):
            shape = (sizes[0], channels, *sizes[1 : axes + 1])
            given = RNG.integers(limits.min, limits.max, shape, dtype.name, endpoint=True)
            (wanted,) = run_reference(graph, [given])
            (got,) = run.run([given])
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1)
            (reference,) = run_reference(narrow, [given])
            np.testing.assert_allclose(reference, wanted, rtol=1e-5, atol=1)


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("wide", [FLOAT32, FLOAT64])
def test_integers_that_are_moved_before_they_are_floats(window: bool, wide: DType) -> None:
    """As ConvInteger gives them, whose channels are first."""
    weight = RNG.integers(-128, 128, (150, 131)).astype(np.int8)
    builder = Builder()
    x = builder.input("x", UINT8, (symbol("b"), symbol("m"), 150))
    with builder.writing():
        levels, integers = x.cast(wide) - 7.0, constant(weight).cast(wide)
        if window:
            y = apply(
                "convolution", levels, integers.reshape((1, 150, 131)), groups=1, strides=(1,),
                dilations=(1,), begin=(0,), extents=(symbol("m"),),
            )  # fmt: skip
        else:
            y = levels @ integers
        y = y.cast(INT64).cast(INT32).transpose((0, 2, 1)).cast(FLOAT32) * 0.25
    graph = builder.graph([x], [("y", y)])
    narrow = optimised(graph, halves=False, words=(UINT8,))
    assert {"word_matmul", "word_convolution"} & {*ops(narrow)}
    assert not {"cast", "matmul", "convolution"} & {*ops(narrow)}
    given = RNG.integers(0, 256, (2, 9, 150)).astype(np.uint8)
    sums = (given.astype(np.int64) - 7) @ weight.astype(np.int64)
    wanted = (sums.swapaxes(1, 2) / 4).astype(np.float32)
    np.testing.assert_array_equal(run_reference(narrow, [given])[0], wanted)
    device = CpuBackend()
    if UINT8 in device.narrow_dtypes:
        run = CompiledGraph(narrow, device, Options(threads=2))
        np.testing.assert_array_equal(run.run([given])[0], wanted)


@pytest.mark.parametrize("last", [INT32, FLOAT32])
@pytest.mark.parametrize("scales", [(0.25, 1.0), (1.0, 0.25)])
def test_products_that_are_not_whole_are_truncated(
    scales: tuple[float, float], last: DType
) -> None:
    weight = RNG.integers(-128, 128, (150, 131)).astype(np.int8)
    builder = Builder()
    x = builder.input("x", UINT8, (symbol("m"), 150))
    with builder.writing():
        levels, integers = x.cast(FLOAT32) * scales[0], constant(weight).cast(FLOAT32) * scales[1]
        y = (levels @ integers).cast(INT32).transpose((1, 0)).cast(last)
    graph = builder.graph([x], [("y", y)])
    given = RNG.integers(0, 256, (9, 150)).astype(np.uint8)
    wanted = np.trunc(given.astype(np.int64) @ weight.astype(np.int64) / 4).T
    narrow = optimised(graph, halves=False, words=(UINT8,))
    np.testing.assert_array_equal(run_reference(narrow, [given])[0], wanted)


def rounded(x: Value, zero: int, to: DType) -> Value:
    limits = np.iinfo(to.name)
    return (rint(x) + float(zero)).at_least(int(limits.min)).at_most(int(limits.max)).cast(to)


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("k", "n"), [(97, 33), (64, 256), (1030, 3), (16, 515)])
@pytest.mark.parametrize(("to", "zero"), [(UINT8, 0), (UINT8, 113), (INT8, -7)])
@pytest.mark.parametrize("form", ["alone", "joined", "reshaped", "window"])
def test_sums_are_stored_as_levels(
    isa: str, k: int, n: int, to: DType, zero: int, form: str
) -> None:
    """Scales are powers of two, so that each number before it is rounded is exact."""
    device = device_of(UINT8, isa)
    weight = RNG.integers(-128, 128, (k, n)).astype(np.int8)
    scale, bias = 2.0 ** -RNG.integers(7, 12, n), RNG.integers(-40, 40, n) / 8
    builder, m = Builder(), symbol("m")
    a = builder.input("a", UINT8, (m, k))
    with builder.writing():
        x, b = a.cast(FLOAT32) - 9.0, constant(weight).cast(FLOAT32)
        if form == "window":
            sums = apply(
                "convolution", x.reshape((1, 1, m, k)), b.reshape((1, 1, k, n)), groups=1,
                strides=(1, 1), dilations=(1, 1), begin=(0, 0), extents=(1, m),
            ).reshape((m, n))  # fmt: skip
        else:
            sums = x @ b
        sums = sums * constant(scale.astype(np.float32)) + constant(bias.astype(np.float32))
        y = rounded(sums.reshape((m, 1, n)) if form == "reshaped" else sums, zero, to)
        results = [y, concat([y, y], 1)] if form == "joined" else [y]
    graph = builder.graph([a], [(f"y{i}", y) for i, y in enumerate(results)])
    graph = optimised(graph, halves=False, words=(UINT8,))
    limits = np.iinfo(to.name)
    whole = RNG.integers(0, 256, (max(ROWS), k)).astype(np.uint8)
    exact = ((whole.astype(np.int64) - 9) @ weight.astype(np.int64)) * scale + bias
    wanted = np.clip(np.rint(exact) + zero, limits.min, limits.max)
    assert {limits.min, limits.max} <= {*wanted.ravel()}
    products = [step for step in lower(replace(graph)).steps if isinstance(step, ProductStep)]
    assert [step.c.layout.dtype for step in products] == [to]
    for threads in (1, 3):
        run = CompiledGraph(replace(graph), device, Options(threads=threads))
        for rows in ROWS:
            found = run.run([whole[:rows]])
            np.testing.assert_array_equal(found[0].reshape(rows, n), wanted[:rows])
            if form == "joined":
                np.testing.assert_array_equal(found[1], np.tile(wanted[:rows], 2))


def test_references_agree() -> None:
    for k, n in SHAPES:
        graph, *_ = graph_of(k, n, INT8, INT8, FLOAT32)
        feeds = [RNG.integers(-128, 128, (5, k)).astype(np.int8), np.array(3, np.int8)]
        (wanted,) = run_reference(graph, feeds)
        (got,) = run_reference(optimised(graph, halves=False, words=(UINT8,)), feeds)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_rows_that_are_a_view(shift: int) -> None:
    """Words that begin elsewhere than rows are copied."""
    weight = RNG.integers(-128, 128, (256, 96)).astype(np.int8)
    builder = Builder()
    a = builder.input("a", UINT8, (symbol("m"), 260 + shift))
    with builder.writing():
        rows: Value = a[:, shift : shift + 256]
        result = rows.cast(FLOAT32) @ constant(weight).cast(FLOAT32)
        both = concat([result, result], 0)
    graph = optimised(builder.graph([a], [("y", both)]), halves=False, words=(UINT8,))
    assert "word_matmul" in ops(graph)
    x = RNG.integers(0, 256, (9, 260 + shift)).astype(np.uint8)
    wanted = x[:, shift : shift + 256].astype(np.int64) @ weight.astype(np.int64)
    np.testing.assert_array_equal(run_reference(graph, [x])[0], np.concatenate([wanted] * 2))
    device = CpuBackend()
    if UINT8 in device.narrow_dtypes:
        got = CompiledGraph(graph, device, Options(threads=2)).run([x])[0]
        np.testing.assert_array_equal(got, np.concatenate([wanted] * 2))


def test_integers_that_are_read_stay_as_they_are() -> None:
    weight = RNG.integers(-128, 128, (256, 96)).astype(np.int8)
    builder = Builder()
    a = builder.input("a", UINT8, (symbol("m"), 256))
    with builder.writing():
        result = (a.cast(FLOAT64) @ constant(weight).cast(FLOAT64)).cast(INT32)
    graph = optimised(builder.graph([a], [("y", result)]), halves=False, words=(UINT8,))
    assert "word_matmul" not in ops(graph)


@pytest.mark.isa("avx2")
def test_only_where_the_cpu_has_the_instruction() -> None:
    rows = [row for row in instruction_set("avx2").multiply_adds if row.flag]
    assert [row.flag for row in rows] == ["avx_vnni"]
    device = CpuBackend(isa="avx2")
    assert (UINT8 in device.narrow_dtypes) == ("avx_vnni" in device.facts.features)


def float_graph(k: int, n: int) -> tuple[Graph, Any]:
    weight = (RNG.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
    weight[:, 0] = 0
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("b"), symbol("m"), k))
    with builder.writing():
        y = tanh(x @ constant(weight) + constant(np.ones(n, np.float32)))
    return builder.graph([x], [("y", y)]), weight


def in_precision(graph: Graph, weight: Any) -> tuple[Any, Any, Any]:
    """The input of a `float_graph` in a precision, its rows without the exact result, and those for
    which the reference is near it."""
    x = RNG.standard_normal((3, 7, len(weight))).astype(np.float32)
    x[1, 2], x[1, 3, :2], x[1, 4, 1] = 0, 3e38, np.nan
    wanted = np.tanh(x.astype(np.float64) @ weight + 1)
    finite = np.isfinite(wanted).all(-1)
    finite[1, 3] = False  # What cancels there is lost in fewer bits.
    assert np.isnan(run_reference(graph, [x])[0][1, 4]).all()
    return x, wanted, finite


def assert_rows_are_right(graph: Graph, x: Any, finite: Any) -> tuple[CompiledGraph, Any]:
    """A graph of `in_precision` gives what its reference gives; returns it compiled, and that."""
    run = CompiledGraph(replace(graph), CpuBackend(), Options(threads=3))
    # Scales of rows are part of the epilogue, as all that follows.
    assert run.lowered.steps[-1].kind == "product"
    (got,), (reference,) = run.run([x]), run_reference(graph, [x])
    np.testing.assert_allclose(got[finite], reference[finite], rtol=1e-3, atol=1e-3)
    assert np.isnan(got[1, 4]).all()
    # A row does not depend on the others, of which only the number may order its sums.
    changed = np.concatenate([RNG.standard_normal((2, *x.shape[1:])).astype(np.float32), x[2:]])
    np.testing.assert_array_equal(run.run([changed])[0][2], got[2])
    return run, got


@pytest.mark.parametrize("precision", ["bfloat16", "int8-dynamic"])
@pytest.mark.parametrize(("k", "n"), [(64, 96), (67, 33), (385, 130)])
def test_precision_of_floats(precision: str, k: int, n: int) -> None:
    graph, weight = float_graph(k, n)
    graph = optimised(graph, halves=False, precision=precision)
    assert ops(graph).count("word_matmul") == 1
    x, wanted, finite = in_precision(graph, weight)
    assert np.abs(run_reference(graph, [x])[0] - wanted)[finite].max() < 0.05
    if PRECISIONS[precision].rows in CpuBackend().narrow_dtypes:
        run, got = assert_rows_are_right(graph, x, finite)
        apart = 0.0 if precision.startswith("int8") else 1e-5
        for i in range(3):
            (alone,) = run.run([x[i : i + 1]])
            np.testing.assert_allclose(alone, got[i : i + 1], rtol=apart, atol=apart)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_large_tables_that_products_read_transposed(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are looked up in the weight of the last product, which no pass has transposed."""
    monkeypatch.setattr(folding, "MAX_FOLDED_BYTES", 1 << 10)
    table = (RNG.standard_normal((300, 67)) / 8).astype(np.float32)
    builder = Builder()
    tokens = builder.input("tokens", INT64, (symbol("m"),))
    with builder.writing():
        looked_up = constant(table)
        y = tanh(gather(looked_up, tokens)) @ looked_up.transpose((1, 0))
    graph = builder.graph([tokens], [("y", y)])
    assert "transpose" in ops(optimised(graph, halves=False))
    found = optimised(graph, halves=False, precision=precision)
    assert not {"matmul", "transpose"} & {*ops(found)}
    given = np.array([3, 299, 0, 7, 7])
    wanted = np.tanh(table[given].astype(np.float64)) @ table.T
    (got,) = run_reference(found, [given])
    assert np.linalg.norm(got - wanted) < 0.2 * np.linalg.norm(wanted)
    device = CpuBackend()
    if PRECISIONS[precision].rows in {FLOAT32, *device.narrow_dtypes}:
        (found_here,) = CompiledGraph(found, device, Options(threads=1)).run([given])
        np.testing.assert_allclose(found_here, got, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("hidden", [96, 33, 130])
@pytest.mark.parametrize("rows", [1, 7, 33, 131])
def test_bfloat16_is_stored_where_the_next_product_reads_it(rows: int, hidden: int) -> None:
    device = device_of(BFLOAT16)
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), 64))
    first, second = (
        (RNG.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        for shape in ((64, hidden), (hidden, 40))
    )
    with builder.writing():
        y = tanh(x @ constant(first)) @ constant(second)
    graph = optimised(builder.graph([x], [("y", y)]), halves=False, precision="bfloat16")
    run = CompiledGraph(replace(graph), device, Options(threads=2))
    titles = [step.title for step in run.lowered.steps if step.kind == "product"]
    assert titles == ["word_matmul + tanh + cast", "word_matmul"]
    given = RNG.standard_normal((rows, 64)).astype(np.float32)
    given[0, 3] = np.nan
    (got,), (wanted,) = run.run([given]), run_reference(graph, [given])
    assert np.isnan(got[0]).all()
    # Ties of sums in another order round to one of two neighbours.
    np.testing.assert_allclose(got[1:], wanted[1:], atol=2e-3)
    # A row does not depend on the others, of which only the number may order its sums.
    changed = np.concatenate([RNG.standard_normal((rows - 1, 64)).astype(np.float32), given[-1:]])
    np.testing.assert_array_equal(run.run([changed])[0][-1], got[-1])
    np.testing.assert_allclose(run.run([given[-1:]])[0], got[-1:], atol=2e-3)


def test_precision_is_asked_for_by_name() -> None:
    graph, _ = float_graph(64, 96)
    with pytest.raises(ConfigurationError, match="expected one of float32, bfloat16, int8-dynamic"):
        ftuner.compile(graph, precision="int4")
    model = ftuner.compile(graph, precision="float32")
    assert model.steps[0].a.layout.dtype == FLOAT32
    for name, (_, dtype) in PRECISIONS.items():
        graph, _ = float_graph(64, 96)
        if dtype in CpuBackend().narrow_dtypes:
            assert ftuner.compile(graph, precision=name).steps
        else:
            with pytest.raises(ConfigurationError, match="has no instruction"):
                ftuner.compile(graph, precision=name)
