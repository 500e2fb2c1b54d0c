"""Nodes that a host computes between two programs: the next one reads memory of inferred dtypes."""

from dataclasses import replace
from operator import methodcaller
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T

from ftuner.core.dtype import FLOAT32, FLOAT64, INT32, INT64, DType
from ftuner.errors import GraphError
from ftuner.graph.ir import Graph, TensorType, Value
from ftuner.graph.operator import reference_results
from ftuner.graph.operators import OPERATORS
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Put an operator with changes in the place of one."""
    monkeypatch.setitem(OPERATORS.rows, name, replace(OPERATORS[name], plain=False, **changes))


def doubled(op: str, dtype: DType, **attributes: Any) -> Graph:
    """A host node and, as a second program, the sum of its first result with itself."""
    g = Maker()
    found = g.add_many(op, g.given("x", B, S, T, dtype=dtype), **attributes)
    return g.made(*found, g.add("add", found[0], found[0]))


@pytest.mark.parametrize("wrong", ["float64", "int32", "float16", "order of memory"])
def test_results_have_the_inferred_dtype(
    wrong: str, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reference computes in: memory of another dtype or order would be misread."""
    right = OPERATORS["non_zero"].reference
    change = np.asfortranarray if " " in wrong else methodcaller("astype", wrong)
    replaced(monkeypatch, "non_zero", reference=lambda x, count: change(right(x, count)))
    graph = doubled("non_zero", FLOAT32, count="N")
    x = (np.arange(24, dtype=np.float32) % 3).reshape(2, 3, 4)
    for found, twice in (Model(graph, widest).run({"x": x}), run_reference(graph, [x])):
        assert found.dtype == twice.dtype == np.int64
        np.testing.assert_array_equal(found, np.array(x.nonzero()))
        np.testing.assert_array_equal(twice, 2 * found)


@pytest.mark.parametrize("outputs", [(2,), (0, 2), (2, 0), (1, 2), (0, 1, 2), (2, 1), (2, 2)])
def test_a_program_and_the_host_node_after_it(outputs: tuple[int, ...], widest: CpuBackend) -> None:
    """Results of the program are read by the node, outputs, or both."""
    g = Maker()
    x = g.given("x", B, S, T)
    given, other = g.add("add", x, x), g.add("negative", x)
    values = given, other, g.add("non_zero", given, count="N")
    graph = g.made(*(values[i] for i in outputs))
    array = (np.arange(24, dtype=np.float32) % 3).reshape(2, 3, 4)
    results = Model(graph, widest).run({"x": array})
    for found, expected in zip(results, run_reference(graph, [array]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_results_that_are_only_handed_on(widest: CpuBackend) -> None:
    """Nothing runs after the host node; outputs that show one value, and an input, are arrays of
    their own."""
    g = Maker()
    x = g.given("x", B, S, T)
    (found,) = g.add_many("non_zero", x, count="N")
    model = Model(g.made(found, found, x), widest)
    given = np.eye(4, dtype=np.float32)[None]
    one, other, same = model.run({"x": given})
    for result in (one, other):
        np.testing.assert_array_equal(result, np.array(given.nonzero()))
    np.testing.assert_array_equal(same, given)
    assert not np.shares_memory(one, other)
    assert not np.shares_memory(same, given)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_a_reference_in_other_precision(
    dtype: DType, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "float64" if dtype == FLOAT32 else "float32"
    replaced(monkeypatch, "determinant", reference=lambda x: np.linalg.det(x.astype(other)))
    graph = doubled("determinant", dtype)
    x = np.random.default_rng(0).standard_normal((5, 3, 3)).astype(dtype.name)
    found, twice = Model(graph, widest).run({"x": x})
    assert found.dtype == twice.dtype == dtype.name
    np.testing.assert_allclose(found, np.linalg.det(x), 1e-5)
    np.testing.assert_array_equal(twice, 2 * found)


def test_another_number_of_axes_is_no_result() -> None:
    flat = replace(OPERATORS["non_zero"], reference=lambda x, count: x, plain=False)
    x = np.zeros(3, np.float32)
    with pytest.raises(AssertionError, match="non_zero gives"):
        reference_results(
            flat, [(x, TensorType(FLOAT32, (3,)))], {"count": "N"}, [TensorType(INT64, (1, 3))]
        )


def body(dtype: DType) -> tuple[Graph, Value]:
    """A graph of one input, which it gives as a dtype, and a value to give it."""
    g = Maker()
    x = g.given("x", S)
    return g.made(g.add("cast", x, to=dtype) if dtype != FLOAT32 else x), x


@pytest.mark.parametrize("dtype", [FLOAT64, INT32], ids=str)
def test_graphs_within_nodes_give_what_was_inferred(dtype: DType) -> None:
    """Their results are not converted, so that a node of other types is refused."""
    graph, _ = body(dtype)
    right, _ = body(FLOAT32)
    outer = Maker()
    x = outer.given("x", S)
    types = (x.type,)
    condition = outer.constant(np.array(True))
    with pytest.raises(GraphError, match="choose"):
        outer.add("choose", condition, x, then=right, otherwise=graph, types=types, counts=())
    trips = outer.constant(np.array(3))
    with pytest.raises(GraphError, match="loop"):
        outer.add(
            "loop", trips, condition, x, body=graph, carried=1, conditional=False, types=types,
            counts=(),
        )  # fmt: skip
