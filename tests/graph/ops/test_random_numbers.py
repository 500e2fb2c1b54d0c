"""Random numbers in a graph: what makes two nodes alike, and what never does."""

import numpy as np
import pytest
from tests.graph.graphs import B, S

from ftuner.core.dtype import BFLOAT16, FLOAT32, FLOAT64, INT64
from ftuner.errors import GraphError
from ftuner.graph.builder import Builder
from ftuner.graph.ir import RANDOM_KEY, Graph, RandomKey, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.reference import run_reference

KEY = np.array([2**63 + 1, 5], np.uint64)


def normal(builder: Builder, stream: Value, *shape: int) -> Value:
    return builder.add("random_normal", stream, dtype=FLOAT32, shape=shape)


def graph_of(builder: Builder, *values: Value) -> Graph:
    return builder.graph([], [(f"y{i}", v) for i, v in enumerate(values)])


def test_each_stream_is_another() -> None:
    builder = Builder()
    x, y = (normal(builder, builder.random_stream(), 4, 5) for _ in range(2))
    graph = optimised(graph_of(builder, x, y))
    found = run_reference(graph, [KEY])
    assert not np.any(found[0] == found[1])
    # One key, which is no input that a caller gives.
    (key,) = graph.inputs
    assert isinstance(key, RandomKey)
    assert key.type == RANDOM_KEY


def test_nodes_of_a_seed_are_alike_and_change_from_run_to_run() -> None:
    builder = Builder()
    values = [normal(builder, builder.random_stream(seed), 6) for seed in (3, 3, 4)]
    graph = graph_of(builder, *values)
    three, again, four = run_reference(graph, [KEY])
    np.testing.assert_array_equal(three, again)
    assert not np.any(three == four)
    elsewhere = run_reference(graph, [np.array([1, 5], np.uint64)])
    np.testing.assert_array_equal(three, elsewhere[0])
    later = run_reference(graph, [np.array([1, 6], np.uint64)])
    assert not np.any(three == later[0])


def test_nothing_is_known_before_a_run() -> None:
    """Neither the numbers nor those that are made of them alone, in shapes that are known."""
    builder = Builder()
    x = normal(builder, builder.random_stream(), 3)
    y = builder.add("multiply", x, builder.constant(np.zeros(3, np.float32)))
    assert x.constant is None
    assert y.constant is None
    graph = optimised(graph_of(builder, y))
    assert [node.op for node in graph.nodes][:2] == ["random_stream", "random_normal"]


def test_a_graph_that_draws_nothing_has_no_key() -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (B, S))
    builder.random_stream()
    assert builder.graph([x], [("y", builder.add("exp", x))]).inputs == (x,)


def test_graphs_that_are_built_alike_draw_alike() -> None:
    found = []
    for more in (False, True):
        builder = Builder()
        x = normal(builder, builder.random_stream(), 7)
        values = [x, normal(builder, builder.random_stream(), 7)] if more else [x]
        found.append(run_reference(graph_of(builder, *values), [KEY])[0])
    np.testing.assert_array_equal(*found)


def test_elements_do_not_depend_on_the_shape() -> None:
    """Only on their number, in row-major order."""
    found = []
    for shape in ((24,), (2, 3, 4), (1, 24, 1), (6, 4)):
        builder = Builder()
        x = normal(builder, builder.random_stream(), *shape)
        found.append(run_reference(graph_of(builder, x), [KEY])[0].ravel())
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_operands_are_checked() -> None:
    builder = Builder()
    stream, x = builder.random_stream(), builder.input("x", FLOAT32, (2,))
    with pytest.raises(GraphError, match=r"random numbers of float32\[2\]; expected uint64\[\]"):
        normal(builder, x, 3)
    for dtype in (INT64, BFLOAT16):
        with pytest.raises(GraphError, match="expected float32 or float64"):
            builder.add("random_normal", stream, dtype=dtype, shape=(3,))
    with pytest.raises(GraphError, match="missing a required argument: 'key'"):
        builder.add("random_stream", number=0, seed=None)
    with pytest.raises(GraphError, match="missing a required argument: 'iteration'"):
        builder.add("random_key", stream, number=0)
    wide = builder.add("random_uniform", stream, dtype=FLOAT64, shape=(B,), digits=53)
    assert str(wide.type) == "float64[B]"
