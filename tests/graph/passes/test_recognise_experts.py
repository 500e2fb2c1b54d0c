"""Products by weights that an index chooses become products by experts."""

from collections.abc import Callable

import pytest
from tests.graph.graphs import B, Maker, S, applied, assert_left_alone, graph_of, ops, reference
from tests.graph.passes.expert_graphs import (
    SPELLINGS,
    assert_experts_run,
    chosen,
    computed_index,
    feeds,
)

from ftuner.core.dtype import INT64
from ftuner.graph.ir import Value
from ftuner.graph.passes.experts import recognise_experts
from ftuner.runtime.cpu.backend import CpuBackend


@pytest.mark.parametrize("body", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_spellings(body: Callable[[Maker], Value], widest: CpuBackend) -> None:
    graph = applied(recognise_experts, graph_of(body))
    found = ops(graph)
    assert "expert_matmul" in found
    assert "matmul" not in found
    assert "gather" not in found
    assert "gather_nd" not in found
    assert_experts_run(graph_of(body), widest)


def test_scores_join_the_sum() -> None:
    """Rows are split by tokens before they are weighted."""

    def body(g: Maker) -> Value:
        rows = SPELLINGS["columns with a bias"](g)
        scores = g.add("reshape", g.given("scores", S, 2), shape=(S * 2, 1))
        split = g.add("reshape", rows * scores, shape=(S, 2, 7))
        return g.add("reduce", split, kind="sum", axes=(1,))

    graph = applied(recognise_experts, graph_of(body))
    assert ops(graph)[-2:] == ["multiply", "reduce"]
    given = feeds(graph_of(body), {"S": 3})
    (found,), (expected,) = reference(graph, given), reference(graph_of(body), given)
    assert abs(found - expected).max() < 1e-4


def weight_of_data(g: Maker) -> Value:
    """Only a constant can be packed before."""
    weight = g.given("weight", 4, 5, 7)
    return g.given("x", B, 1, 5) @ chosen(g, weight, g.given("at", B, dtype=INT64))


def several_rows(g: Maker) -> Value:
    weight = chosen(g, g.weight(4, 5, 7), g.given("at", B, dtype=INT64))
    return g.given("x", B, S, 5) @ weight


def along_another_axis(g: Maker) -> Value:
    weight = g.add("gather", g.weight(5, 4, 7), g.given("at", B, dtype=INT64), axis=1)
    weight = g.add("transpose", weight, perm=(1, 0, 2))
    return g.given("x", B, 1, 5) @ weight


def shared_by_tokens(g: Maker) -> Value:
    """An index that is broadcast over tokens."""
    weight = chosen(g, g.weight(4, 5, 7), computed_index(g, 1, 2))
    return g.given("x", B, 2, 1, 5) @ weight


@pytest.mark.parametrize(
    "body", [weight_of_data, several_rows, along_another_axis, shared_by_tokens]
)
def test_left_alone(body: Callable[[Maker], Value]) -> None:
    assert_left_alone(recognise_experts, body)
