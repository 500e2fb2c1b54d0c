"""Weights of 8-bit integers stay what they are, where products can read them so."""

from collections.abc import Callable

import numpy as np
import pytest

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT8, INT64
from ftuner.graph.algebra import constant, gather, scalar
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


def product_by(write: Callable[[Builder], Value]) -> Graph:
    """Of an input and a weight."""
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), K))
    with builder.writing():
        return builder.graph([x], [("y", x @ write(builder))])


def widened(array: np.ndarray) -> Value:
    return constant(array).cast(FLOAT32)


def number(value: float) -> Value:
    return scalar(value, FLOAT32)


def unsigned() -> Value:
    return widened((WEIGHT.astype(np.int16) + 128).astype(np.uint8))


def narrow_zero_points(builder: Builder) -> Value:
    zeros = widened(np.zeros((1, MIN_NARROW_BYTES), np.int8))
    assert zeros.constant is None
    return widened(np.resize(WEIGHT, (K, MIN_NARROW_BYTES))) - zeros


KEPT: dict[str, Callable[[Builder], Value]] = {
    "scale of columns": lambda _: widened(WEIGHT) * constant(ROW),
    "one scale": lambda _: widened(WEIGHT) * number(0.03),
    "no scale": lambda _: widened(WEIGHT),
    "two scales": lambda _: widened(WEIGHT) * constant(ROW) * constant(np.array([2.5], np.float32)),
    "unsigned with zero point": lambda _: (unsigned() - number(128)) * constant(ROW),
    "transposed": lambda _: (
        widened(np.ascontiguousarray(WEIGHT.T)) * constant(ROW[:, None])
    ).swapped(),
    "narrow zero points": narrow_zero_points,
}
"""Weights that can stay."""


@pytest.mark.parametrize("kind", KEPT)
def test_kept(kind: str, backend: CpuBackend) -> None:
    graph = product_by(KEPT[kind])
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


REFUSED: dict[str, Callable[[Builder], Value]] = {
    "scale of rows": lambda _: widened(WEIGHT) * constant(ROW[:K, None]),
    "zero point out of reach": lambda _: unsigned() - number(3),
    "zero point after the scale": lambda _: widened(WEIGHT) * constant(ROW) - constant(ROW),
    "scale that is infinite": lambda _: widened(WEIGHT) * number(np.inf),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_folded_instead(kind: str) -> None:
    (product,) = optimised(product_by(REFUSED[kind])).nodes
    assert product.op == "matmul"
    assert product.inputs[1].constant is not None


def test_small_matrices_are_folded_at_once() -> None:
    with Builder().writing():
        assert widened(WEIGHT[:4]).constant is not None


def test_a_table_of_integers_is_folded() -> None:
    """Nobody multiplies it."""
    builder = Builder()
    rows = builder.input("rows", INT64, (symbol("m"),))
    with builder.writing():
        from_table = gather(widened(WEIGHT) * constant(ROW), rows)
    (node,) = optimised(builder.graph([rows], [("y", from_table)])).nodes
    assert node.op == "gather"
    assert np.allclose(node.inputs[0].constant, WEIGHT * ROW)


def test_query_key_and_value_are_one_product(backend: CpuBackend) -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("m"), K))
    outputs = []
    with builder.writing():
        for number in range(3):
            weight = widened(np.roll(WEIGHT, number)) * constant(ROW + number)
            bias = constant(RNG.standard_normal(N).astype(np.float32))
            outputs.append((f"y{number}", x @ weight + bias))
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
    graph = product_by(KEPT["two scales"])
    before = len(graph.nodes)
    (product,) = fold_constants(graph).nodes
    assert before > 1
    assert product.op == "matmul"
    assert [n.op for n in int8_weight(graph).nodes] == ["narrow_matmul", "multiply"]
