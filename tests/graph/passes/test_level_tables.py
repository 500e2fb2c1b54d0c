"""Chains of pointwise functions between levels of 8 bits become tables, with the same results."""

from collections.abc import Callable

import numpy as np
import pytest

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT8, UINT8, DType
from ftuner.frontends.onnx.quantised import levels_of, quantised
from ftuner.graph.algebra import apply, constant, sigmoid, tanh
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.level_tables import level_tables
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.reference import run_reference

SCALE = 0.037


def widened(x: Value, scale: float = SCALE) -> Value:
    zero = constant(np.array(7, x.dtype.name))
    return levels_of(x, zero, FLOAT32) * scale


def rounded(x: Value, dtype: DType = UINT8, scale: float = SCALE) -> Value:
    return quantised(x, x.like(scale).reshape(()), constant(np.array(9, dtype.name)), dtype)


def gelu(x: Value) -> Value:
    """As quantisers write it: each function gives levels."""
    error = rounded(apply("erf", widened(x) / 1.4142135), INT8, 0.0079)
    lifted = rounded(widened(error, 0.0079) + 1, UINT8, 0.0079)
    return rounded(widened(x) * widened(lifted, 0.0079))


CHAINS: dict[str, Callable[[Value], Value]] = {
    "sigmoid": lambda x: rounded(sigmoid(widened(x)), INT8, 0.004),
    "gelu": gelu,
    "in floats": lambda x: widened(rounded(tanh(widened(rounded(widened(x) * 1.5))))) + 0.25,
}


def graph_of(chain: Callable[[Value], Value], dtype: DType) -> Graph:
    builder = Builder()
    x = builder.input("x", dtype, (symbol("m"), symbol("n")))
    with builder.writing():
        y = chain(x)
    return builder.graph([x], [("y", y)])


def look_ups(graph: Graph) -> int:
    return sum(node.op == "look_up" for node in graph.nodes)


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("name", CHAINS)
def test_results(backend: CpuBackend, name: str, dtype: DType) -> None:
    graph = graph_of(CHAINS[name], dtype)
    found = optimised(graph, halves=False)
    assert look_ups(found) == 1
    assert not {"erf", "tanh", "sigmoid"} & {node.op for node in found.nodes}
    run = CompiledGraph(found, backend, Options(threads=2)).run
    limits = np.iinfo(dtype.name)
    everything = np.arange(limits.min, limits.max + 1, dtype=dtype.name)
    for rows, width in ((0, 3), (3, 0), (1, 1), (3, 15), (2, 64), (5, 131), (9, 256)):
        x = np.resize(np.random.default_rng(width).permutation(everything), (rows, width))
        np.testing.assert_array_equal(run([x])[0], run_reference(graph, [x])[0], f"{rows} {width}")


def test_what_is_no_table() -> None:
    def columns() -> Value:
        return constant(np.linspace(0.5, 1, 5, dtype=np.float32))

    chains: dict[str, Callable[[Value], Value]] = {
        "one rounding is as fast": lambda x: rounded(widened(x) * 2),
        "a number for each column": lambda x: rounded(sigmoid(widened(x) * columns())),
        "another shape": lambda x: rounded(sigmoid(widened(x).unsqueeze([0]))),
        "no 8-bit result": lambda x: sigmoid(widened(x)),
    }
    for why, chain in chains.items():
        builder = Builder()
        x = builder.input("x", UINT8, (5,))
        with builder.writing():
            y = chain(x)
        graph = builder.graph([x], [("y", y)])
        assert level_tables(graph) is graph, why


def test_two_tensors() -> None:
    builder = Builder()
    x, y = (builder.input(name, UINT8, (5,)) for name in "xy")
    with builder.writing():
        result = rounded(sigmoid(widened(x) + widened(y)))
    graph = builder.graph([x, y], [("z", result)])
    assert level_tables(graph) is graph
