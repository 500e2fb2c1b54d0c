"""Products of rows of levels by weights of few bits, in integers, equal float64 references."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import recorded_cpus
from tests.graph.graphs import ops
from tests.reference import product_bound, uniform
from tests.runtime.cpu.small_models import device_of
from tests.runtime.cpu.test_block_products import KINDS, ROWS, layers_of, some_blocks
from tests.runtime.cpu.test_narrow_weights import PANELS, by_candidates
from tests.runtime.cpu.test_word_products import (
    assert_rows_are_right,
    float_graph,
    in_precision,
    isas,
)

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import (
    FLOAT32,
    UINT8,
    DType,
    block_of_bytes,
    block_of_codes,
    block_of_signed_levels,
)
from ftuner.core.product import product_types
from ftuner.graph.algebra import constant
from ftuner.graph.blocks import as_signed, blocks_of, of_blocks
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph
from ftuner.graph.passes.narrow_weights import by_blocks
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.passes.word_products import MOST_EXACT
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import best_width, planner_for
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.packed_weights import Panels, pack
from ftuner.runtime.reference import run_reference
from ftuner.schedules.product.step import ProductStep
from ftuner.ukernels.cpu.library import build_library

RNG = np.random.default_rng(14)
PRECISION = "int4-dynamic"
SHAPES = ((128, 64), (300, 37), (1100, 129), (17, 1))


def levels(rows: int, k: int) -> Any:
    return RNG.integers(0, 256, (rows, k), dtype=np.uint8)


@pytest.mark.parametrize(("bits", "numbers", "zeros"), KINDS)
def test_signed_levels_are_the_same_weight(bits: int, numbers: int, zeros: bool) -> None:
    blocks, dtype = some_blocks(300, 37, bits, numbers, zeros)
    signed, of_signed = as_signed(blocks, dtype)
    assert of_signed == block_of_signed_levels(bits, numbers, zeros)
    assert of_signed != dtype
    np.testing.assert_array_equal(of_blocks(signed, of_signed), of_blocks(blocks, dtype))


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize(("bits", "numbers", "zeros"), KINDS)
def test_any_rows_and_threads(
    isa: str, bits: int, numbers: int, zeros: bool, k: int, n: int
) -> None:
    device = device_of(UINT8, isa)
    blocks, dtype = some_blocks(k, n, bits, numbers, zeros)
    builder = Builder()
    x = builder.input("x", UINT8, (symbol("m"), k))
    with builder.writing():
        y = by_blocks(x, *as_signed(blocks, dtype)) + constant(np.ones(n, np.float32))
    graph = builder.graph([x], [("y", y)])
    for threads in (1, 3):
        run = CompiledGraph(replace(graph), device, Options(threads=threads))
        for rows in ROWS:
            given = levels(rows, k)
            sums, bound = product_bound(given.astype(np.float32), of_blocks(blocks, dtype)[:k])
            (got,) = run.run([given])
            assert (np.abs(got - sums - 1) <= bound + 2.0**-23 * (np.abs(sums) + 1)).all()


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("bits", "numbers", "zeros"), [KINDS[1], KINDS[4], KINDS[7]])
@pytest.mark.parametrize("n", [31, 257])
def test_every_candidate_is_right(isa: str, bits: int, numbers: int, zeros: bool, n: int) -> None:
    device = device_of(UINT8, isa)
    for k in (numbers, 17 * 128):
        blocks, dtype = some_blocks(k, n, bits, numbers, zeros)
        signed, of_signed = as_signed(blocks, dtype)
        types = product_types(block_of_bytes(numbers), of_signed)
        library = build_library(device.hardware, device.target, types)
        width = best_width(planner_for(library), n, len(blocks), 2)
        products = device.products(types, families=library.families(PANELS, n, width))
        panels = pack(products, signed.T, width)
        for workers in (1, 2):
            for rows in (1, 3, 8, 14, 33):
                x = levels(rows, k)
                sums, bound = product_bound(x.astype(np.float32), of_blocks(blocks, dtype), extra=4)
                for _, y in by_candidates(products, panels, x, workers):
                    assert (np.abs(y - sums) <= bound).all()


@pytest.mark.parametrize(("k", "n"), [(256, 96), (261, 130), (1030, 67)])
def test_precision_of_floats(k: int, n: int) -> None:
    graph, weight = float_graph(k, n)
    graph = optimised(graph, halves=False, precision=PRECISION)
    assert "block_matmul" in ops(graph)
    x, wanted, finite = in_precision(graph, weight)
    (reference,) = run_reference(graph, [x])
    assert np.abs(reference - wanted)[finite].max() < 0.4
    assert np.linalg.norm((reference - wanted)[finite]) < 0.1 * np.linalg.norm(wanted[finite])
    np.testing.assert_allclose(reference[1, 2], np.tanh(1), rtol=1e-6)
    if UINT8 in CpuBackend().narrow_dtypes:
        _, got = assert_rows_are_right(graph, x, finite)
        np.testing.assert_allclose(got[1, 2], np.tanh(1), rtol=1e-6)


def test_small_weights_stay_as_they_are() -> None:
    graph, _ = float_graph(64, 33)
    assert ops(optimised(graph, halves=False, precision=PRECISION)).count("matmul") == 1


def test_weights_that_files_have_in_blocks(tmp_path: Path) -> None:
    weights = layers_of(tmp_path / "layers.onnx", 2)
    x = uniform(0, (3, 128), "float32")
    wanted = x.astype(np.float64) @ weights[0] @ weights[1]
    device_of(UINT8)
    model = ftuner.load(tmp_path / "layers.onnx", threads=1, precision=PRECISION)
    products = [step for step in model.steps if isinstance(step, ProductStep)]
    assert {step.b.layout.dtype for step in products} == {block_of_signed_levels(4, 32, True)}
    got = model(x0=x)["x2"]
    assert np.linalg.norm(got - wanted) < 0.02 * np.linalg.norm(wanted)
    ftuner.save(model, tmp_path / "layers.ftuner")
    loaded = ftuner.load(tmp_path / "layers.ftuner", threads=2)
    np.testing.assert_allclose(loaded(x0=x)["x2"], got, rtol=1e-4, atol=1e-4 * np.abs(got).max())


def of_rows(blocks: Any, dtype: DType) -> Graph:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), len(blocks) * dtype.numbers))
    with builder.writing():
        y = by_blocks(x, blocks, dtype)
    return optimised(builder.graph([x], [("y", y)]), halves=False, precision=PRECISION)


def test_codes_and_long_blocks_keep_rows_of_floats() -> None:
    packed = RNG.integers(0, 256, (64, 8, 16), dtype=np.uint8)
    scales = np.ones((64, 8), np.float32)
    blocks, dtype = blocks_of(packed, 4, scales, None, "nf4")
    assert dtype == block_of_codes("nf4", 32)
    assert ops(of_rows(blocks, dtype)) == ["block_matmul"]
    for numbers, kept in ((MOST_EXACT, False), (2 * MOST_EXACT, True)):
        graph = of_rows(*some_blocks(numbers, 40, 4, numbers, False))
        assert (ops(graph) == ["block_matmul"]) == kept


@pytest.mark.parametrize("machine", recorded_cpus(), ids=lambda machine: machine.name)
def test_no_rows_have_weights_widened(machine: CpuHardware) -> None:
    types = product_types(block_of_bytes(32), block_of_signed_levels(4, 32, False))
    # None of them was recorded with the instruction.
    isas = [replace(isa, of_bytes_per_cycle=isa.fma_per_cycle) for isa in machine.isas]
    machine = replace(machine, isas=tuple(isas))
    assert any(UINT8 in isa.narrow_dtypes for isa in isas)
    for isa in isas:
        if UINT8 in isa.narrow_dtypes:
            planner = planner_for(build_library(machine, isa.name, types))
            width = best_width(planner, 4096, 128, 1)
            panels = Panels(np.empty(0, np.uint8), width, 4096, 128)
            for rows in (1, 5, 512):
                assert not planner.plan(panels.problem(rows, 1)).choice.widen
