"""Weights of 8-bit integers stay what they are, where products can read them so."""

import numpy as np
import pytest

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT8, INT64
from ftuner.graph.builder import MIN_NARROW_BYTES, Builder
from ftuner.graph.folding import fold_constants
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.narrow_weights import int8_weight
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.reference import run_reference

K, N = 128, 160
RNG = np.random.default_rng(5)
WEIGHT = RNG.integers(-128, 128, (K, N)).astype(np.int8)
ROW = RNG.uniform(0.01, 0.02, N).astype(np.float32)


def graph_of(weight: Value, builder: Builder) -> Graph:
    x = builder.input("x", FLOAT32, (symbol("m"), K))
    return builder.graph([x], [("y", builder.add("matmul", x, weight))])


def widened(builder: Builder, array: np.ndarray) -> Value:
    return builder.add("cast", builder.constant(array), to=FLOAT32)


def scaled(builder: Builder, value: Value, scale: np.ndarray) -> Value:
    return builder.add("multiply", value, builder.constant(scale))


def less(builder: Builder, value: Value, zero: np.ndarray) -> Value:
    return builder.add("subtract", value, builder.constant(zero))


def weights(builder: Builder, kind: str) -> Value:
    """Weights that can stay, by how they are written."""
    if kind == "scale of columns":
        return scaled(builder, widened(builder, WEIGHT), ROW)
    if kind == "one scale":
        return scaled(builder, widened(builder, WEIGHT), np.array(0.03, np.float32))
    if kind == "no scale":
        return widened(builder, WEIGHT)
    if kind == "two scales":
        first = scaled(builder, widened(builder, WEIGHT), ROW)
        return scaled(builder, first, np.array([2.5], np.float32))
    if kind == "unsigned with zero point":
        unsigned = (WEIGHT.astype(np.int16) + 128).astype(np.uint8)
        shifted = less(builder, widened(builder, unsigned), np.array(128, np.float32))
        return scaled(builder, shifted, ROW)
    if kind == "narrow zero points":
        zeros = widened(builder, np.zeros((1, MIN_NARROW_BYTES), np.int8))
        assert zeros.constant is None
        wide = np.resize(WEIGHT, (K, MIN_NARROW_BYTES))
        return builder.add("subtract", widened(builder, wide), zeros)
    assert kind == "transposed"
    across = widened(builder, np.ascontiguousarray(WEIGHT.T))
    return builder.add("transpose", scaled(builder, across, ROW[:, None]), perm=(1, 0))


KINDS = ("scale of columns", "one scale", "no scale", "two scales", "unsigned with zero point",
         "transposed", "narrow zero points")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kept(kind: str, backend: CpuBackend) -> None:
    builder = Builder()
    graph = graph_of(weights(builder, kind), builder)
    kept = optimised(graph)
    (product,) = [n for n in kept.nodes if "matmul" in n.op]
    assert product.op == "narrow_matmul"
    assert product.inputs[1].dtype == INT8
    assert {n.op for n in kept.nodes} <= {"narrow_matmul", "multiply"}
    compiled = CompiledGraph(kept, backend, Options())
    for rows in (0, 1, 2, 7, 50):
        x = RNG.standard_normal((rows, K)).astype(np.float32)
        (expected,) = run_reference(graph, [x])
        (result,) = compiled.run([x])
        assert result.shape == expected.shape
        assert np.allclose(result, expected, rtol=1e-4, atol=2e-3)


def refused(builder: Builder, kind: str) -> Value:
    if kind == "scale of rows":
        return scaled(builder, widened(builder, WEIGHT), ROW[:K, None])
    if kind == "zero point out of reach":
        unsigned = (WEIGHT.astype(np.int16) + 128).astype(np.uint8)
        return less(builder, widened(builder, unsigned), np.array(3, np.float32))
    if kind == "zero point after the scale":
        return less(builder, scaled(builder, widened(builder, WEIGHT), ROW), ROW)
    assert kind == "scale that is infinite"
    return scaled(builder, widened(builder, WEIGHT), np.array(np.inf, np.float32))


@pytest.mark.parametrize(
    "kind",
    ["scale of rows", "zero point out of reach", "zero point after the scale",
     "scale that is infinite"],
)  # fmt: skip
def test_folded_instead(kind: str) -> None:
    builder = Builder()
    graph = graph_of(refused(builder, kind), builder)
    (product,) = optimised(graph).nodes
    assert product.op == "matmul"
    assert product.inputs[1].constant is not None


def test_small_matrices_are_folded_at_once() -> None:
    builder = Builder()
    assert widened(builder, WEIGHT[:4]).constant is not None


def test_a_table_of_integers_is_folded() -> None:
    """Nobody multiplies it."""
    builder = Builder()
    table = scaled(builder, widened(builder, WEIGHT), ROW)
    rows = builder.input("rows", INT64, (symbol("m"),))
    from_table = builder.add("gather", table, rows, axis=0, node="table")
    (gather,) = optimised(builder.graph([rows], [("y", from_table)])).nodes
    assert gather.op == "gather"
    assert np.allclose(gather.inputs[0].constant, WEIGHT * ROW)


def test_query_key_and_value_are_one_product(backend: CpuBackend) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), K))
    outputs = []
    for number in range(3):
        weight = scaled(builder, widened(builder, np.roll(WEIGHT, number)), ROW + number)
        bias = builder.constant(RNG.standard_normal(N).astype(np.float32))
        product = builder.add("add", builder.add("matmul", x, weight), bias)
        outputs.append((f"y{number}", product))
    graph = builder.graph([x], outputs)
    merged = optimised(graph)
    assert [n.op for n in merged.nodes].count("narrow_matmul") == 1
    array = RNG.standard_normal((5, K)).astype(np.float32)
    for result, expected in zip(
        CompiledGraph(merged, backend, Options()).run([array]),
        run_reference(graph, [array]),
        strict=True,
    ):
        assert np.allclose(result, expected, rtol=1e-4, atol=5e-2)


def test_folding_follows_what_it_folds() -> None:
    builder = Builder()
    graph = graph_of(weights(builder, "two scales"), builder)
    before = len(graph.nodes)
    (product,) = fold_constants(graph).nodes
    assert before > 1
    assert product.op == "matmul"
    assert [n.op for n in int8_weight(graph).nodes] == ["narrow_matmul", "multiply"]
