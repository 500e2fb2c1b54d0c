"""Products of float32 rows by weights of few bits equal float64 references, widened in registers or
before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import recorded_cpus
from tests.frontends.onnx_models import parsed
from tests.graph.graphs import ops
from tests.reference import product_bound, uniform
from tests.runtime.cpu.test_narrow_weights import PANELS, by_candidates

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, DType, block_of_floats, block_of_levels
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import product_types
from ftuner.graph.algebra import concat, constant, tanh
from ftuner.graph.blocks import blocks_of, of_blocks, rounded
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph
from ftuner.graph.passes.narrow_weights import by_blocks
from ftuner.graph.passes.pipeline import optimised
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import best_width, planner_for
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.operands import step_types
from ftuner.runtime.cpu.packed_weights import Panels, pack, unpacked
from ftuner.runtime.reference import run_reference
from ftuner.schedules.product.cpu_binding import shared_epilogue
from ftuner.ukernels.cpu.library import build_library

RNG = np.random.default_rng(4)
ROWS = (0, 1, 2, 7, 8, 33)
KINDS = (
    (4, 16, False), (4, 32, True), (4, 64, False), (4, 128, True), (8, 16, True), (8, 64, False),
    (2, 32, True), (2, 128, False),
)  # fmt: skip
"""Bits, numbers of a block, and whether there are zero points."""


def some_blocks(k: int, n: int, bits: int, numbers: int, zeros: bool) -> tuple[Any, DType]:
    """Blocks of random bytes; zero points are whole, and equal some of the levels."""
    shape = (n, -(-k // numbers))
    levels = RNG.integers(0, 256, (*shape, numbers * bits // 8)).astype(np.uint8)
    scales = (RNG.standard_normal(shape) * 2.0 ** RNG.integers(-9, 3, shape)).astype(np.float32)
    scales.flat[0] = 0
    middle = RNG.integers(0, 1 << bits, shape).astype(np.float32) if zeros else None
    return blocks_of(levels, bits, scales, middle)


def graph_of(k: int, blocks: Any, dtype: DType) -> Graph:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), k))
    bias = np.linspace(-1, 1, blocks.shape[1], dtype=np.float32)
    with builder.writing():
        y = by_blocks(x, blocks, dtype) + constant(bias)
        result = concat([y, tanh(y)], 1)
    return builder.graph([x], [("y", result)])


def assert_right(got: Any, x: Any, weight: Any) -> None:
    """`got` is what the graph gives: sums with a bias, and their tangents."""
    sums, bound = product_bound(x, weight, extra=5)
    sums, n = sums + np.linspace(-1, 1, weight.shape[1], dtype=np.float32), weight.shape[1]
    bound = bound + 2.0**-23 * np.abs(sums)
    assert (np.abs(got[:, :n] - sums) <= bound).all()
    assert (np.abs(got[:, n:] - np.tanh(sums)) <= bound + 2.0**-20).all()


@pytest.mark.each_value
@pytest.mark.parametrize(("k", "n"), [(128, 64), (300, 37), (1100, 129), (17, 1)])
@pytest.mark.parametrize(("bits", "numbers", "zeros"), KINDS)
def test_any_rows_and_threads(
    backend: CpuBackend, bits: int, numbers: int, zeros: bool, k: int, n: int
) -> None:
    blocks, dtype = some_blocks(k, n, bits, numbers, zeros)
    graph = optimised(graph_of(k, blocks, dtype), halves=False)
    assert "block_matmul" in ops(graph)
    weight = of_blocks(blocks, dtype)[:k]
    for threads in (1, 3):
        run = CompiledGraph(replace(graph), backend, Options(threads=threads))
        for rows in ROWS:
            x = uniform(rows, (rows, k), "float32")
            assert_right(run.run([x])[0], x, weight)


@pytest.mark.each_value
@pytest.mark.parametrize(("bits", "numbers", "zeros"), [KINDS[1], KINDS[4], KINDS[7]])
@pytest.mark.parametrize("n", [31, 257])
def test_every_candidate_is_right(
    backend: CpuBackend, bits: int, numbers: int, zeros: bool, n: int
) -> None:
    for k in (numbers, 17 * 128):
        blocks, dtype = some_blocks(k, n, bits, numbers, zeros)
        weight = of_blocks(blocks, dtype)
        types = product_types(block_of_floats(numbers), dtype)
        library = build_library(backend.hardware, backend.target, types)
        width = best_width(planner_for(library), n, len(blocks), 2)
        products = backend.products(types, families=library.families(PANELS, n, width))
        panels = pack(products, blocks.T, width)
        assert np.array_equal(unpacked(panels, library.lanes), blocks.T)
        for workers in (1, 2):
            for rows in (1, 3, 8, 14, 33):
                x = uniform(rows, (rows, k), "float32")
                sums, bound = product_bound(x, weight, extra=4)
                widens = set()
                for choice, y in by_candidates(products, panels, x, workers):
                    assert (np.abs(y - sums) <= bound).all()
                    widens.add(choice.widen)
                assert widens == {False, True}


def layers_of(path: Path, layers: int) -> list[Any]:
    """Write a model of MatMulNBits; returns the weights of its layers."""
    size, weights, nodes, constants = 128, [], "", {}
    for i in range(layers):
        levels = RNG.integers(0, 256, (size, 4, 16), dtype=np.uint8)
        scales = RNG.uniform(0.5, 1, (size, 4)).astype(np.float32) / 50
        zeros = RNG.integers(0, 256, (size, 2), dtype=np.uint8)
        constants |= {f"q{i}": levels, f"s{i}": scales, f"z{i}": zeros}
        given = f"<K={size}, N={size}, bits=4, block_size=32>(x{i}, q{i}, s{i}, z{i})"
        nodes += f"x{i + 1} = com.microsoft.MatMulNBits{given} "
        weights.append(of_blocks(*blocks_of(levels, 4, scales, unpacked_zeros(zeros))))
    text = f"(float[m, {size}] x0) => (float[m, {size}] x{layers}) {{ {nodes}}}"
    path.write_bytes(parsed(text, 21, **constants).SerializeToString())
    return weights


def unpacked_zeros(packed: Any) -> Any:
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1).astype(np.float32)


def test_scales_and_zero_points_are_no_part_of_kernels(tmp_path: Path) -> None:
    """Layers of one shape have the code of one; a saved model has their packed weights."""
    weights = layers_of(tmp_path / "layers.onnx", 3)
    model = ftuner.load(tmp_path / "layers.onnx", threads=1)
    products = [step for step in model.steps if step.kind == "product"]
    assert len(products) == 3
    assert len({(step_types(step), shared_epilogue(step)) for step in products}) == 1
    assert products[0].b.layout.dtype == block_of_levels(4, 32, True)
    x = uniform(0, (3, 128), "float32")
    sums = x.astype(np.float64)
    for weight in weights:
        sums = sums @ weight
    got = model(x0=x)["x3"]
    np.testing.assert_allclose(got, sums, rtol=1e-4, atol=1e-4 * np.abs(sums).max())
    ftuner.save(model, tmp_path / "layers.ftuner")
    for threads in (1, 2):
        loaded = ftuner.load(tmp_path / "layers.ftuner", threads=threads)
        np.testing.assert_allclose(loaded(x0=x)["x3"], got, rtol=1e-5, atol=1e-5)


def test_rows_that_begin_elsewhere_than_blocks(widest: CpuBackend) -> None:
    blocks, dtype = some_blocks(64, 40, 4, 32, False)
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), 77))
    with builder.writing():
        y = by_blocks(x[:, 5:69], blocks, dtype)
    graph = optimised(builder.graph([x], [("y", y)]), halves=False)
    given = uniform(1, (5, 77), "float32")
    sums, bound = product_bound(given[:, 5:69], of_blocks(blocks, dtype), extra=4)
    for got in (
        CompiledGraph(replace(graph), widest, Options(threads=2)).run([given])[0],
        run_reference(graph, [given])[0],
    ):
        assert (np.abs(got - sums) <= bound).all()


def test_products_of_one_operand_are_merged() -> None:
    builder, weights, results = Builder(), [], []
    x = builder.input("x", FLOAT32, (symbol("m"), 64))
    with builder.writing():
        for n in (40, 33):
            blocks, dtype = some_blocks(64, n, 4, 32, False)
            weights.append(of_blocks(blocks, dtype))
            results.append(by_blocks(x, blocks, dtype).transpose((1, 0)))
    graph = builder.graph([x], [(f"y{i}", y) for i, y in enumerate(results)])
    merged = optimised(graph, halves=False)
    assert ops(merged).count("block_matmul") == 1
    given = uniform(4, (5, 64), "float32")
    for got, weight in zip(run_reference(merged, [given]), weights, strict=True):
        np.testing.assert_allclose(got.T, given @ weight, rtol=1e-4, atol=1e-4)


def test_devices_without_them_multiply_floats() -> None:
    blocks, dtype = some_blocks(64, 40, 4, 32, True)
    graph = graph_of(64, blocks, dtype)
    found = optimised(graph, halves=True)
    assert "block_matmul" not in ops(found)
    x = uniform(2, (3, 64), "float32")
    np.testing.assert_array_equal(run_reference(found, [x])[0], run_reference(graph, [x])[0])


@pytest.mark.parametrize("machine", recorded_cpus(), ids=lambda machine: machine.name)
def test_few_rows_widen_in_registers_and_many_before(machine: CpuHardware) -> None:
    for isa in machine.isas:
        types = product_types(block_of_floats(32), block_of_levels(4, 32, False))
        planner = planner_for(build_library(machine, isa.name, types, ACCUMULATOR))
        width = best_width(planner, 4096, 128, 1)
        panels = Panels(np.empty(0, np.uint8), width, 4096, 128)
        plans = [planner.plan(panels.problem(rows, 1)) for rows in (1, 2, 4, 512)]
        assert [plan.choice.widen for plan in plans] == [False, False, False, True], isa.name


def test_the_estimate_of_one_row_falls_with_its_bytes(widest: CpuBackend) -> None:
    """A weight from DRAM is read in 20 of 128 bytes."""
    types = product_types(block_of_floats(32), block_of_levels(4, 32, False))
    found = []
    for each, k in ((types, 1024), (product_types(FLOAT32), 32768)):
        planner = planner_for(build_library(widest.hardware, widest.target, each))
        width = best_width(planner, 32768, k, 1)
        problem = Panels(np.empty(0, np.uint8), width, 32768, k).problem(1, 1)
        found.append(planner.estimate(planner.plan(problem)).dram_s)
    assert found[0] == pytest.approx(found[1] * 20 / 128, rel=0.05)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_a_weight(bits: int) -> None:
    weight = (RNG.standard_normal((100, 33)) / 10).astype(np.float32)
    weight[:40, 3] = 0
    symmetric = of_blocks(*rounded(weight, bits, 32))
    assert symmetric.shape == (128, 33)
    step = (
        np.pad(np.abs(weight), ((0, 28), (0, 0))).reshape(4, 32, 33).max(1) * 2 / ((1 << bits) - 1)
    )
    lost = np.abs(symmetric[:100] - weight)
    assert (lost <= np.repeat(step, 32, 0)[:100] * 1.01 + 1e-7).all()
    _, dtype = rounded(np.abs(weight) + 1, bits, 32)
    assert dtype == block_of_levels(bits, 32, True), "the least number is far from zero"


@pytest.mark.parametrize(("k", "n", "kept"), [(256, 96, True), (260, 130, True), (64, 33, False)])
def test_int4_weights(k: int, n: int, kept: bool) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("b"), symbol("m"), k))
    weight = (RNG.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
    with builder.writing():
        y = tanh(x @ constant(weight) + constant(np.ones(n, np.float32)))
    graph = builder.graph([x], [("y", y)])
    plain = ftuner.compile(replace(graph), threads=2)
    model = ftuner.compile(graph, threads=2, precision="int4-weights")
    dtypes = [step.b.layout.dtype.kind for step in model.steps if step.kind == "product"]
    assert dtypes == ["block" if kept else "float"]
    given = uniform(5, (2, 7, k), "float32")
    got, wanted = model(x=given)["y"], plain(x=given)["y"]
    assert np.abs(got - wanted).max() < (0.2 if kept else 1e-6)
    assert (got != wanted).any() == kept
