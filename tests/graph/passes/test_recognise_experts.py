"""Products by weights that an index chooses become products by experts."""

import pytest
from tests.graph.graphs import (
    B,
    Body,
    Maker,
    S,
    applied,
    assert_left_alone,
    graph_of,
    ops,
    reference,
)
from tests.graph.passes.expert_graphs import (
    SPELLINGS,
    assert_experts_run,
    computed_index,
    feeds,
)

from ftuner.graph.algebra import gather
from ftuner.graph.ir import Value
from ftuner.graph.passes.experts import recognise_experts
from ftuner.runtime.cpu.backend import CpuBackend


@pytest.mark.parametrize("body", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_spellings(body: Body, widest: CpuBackend) -> None:
    graph = applied(recognise_experts, graph_of(body))
    found = ops(graph)
    assert "expert_matmul" in found
    assert not {"matmul", "gather", "gather_nd"} & {*found}
    assert_experts_run(graph_of(body), widest)


def test_scores_join_the_sum() -> None:
    """Rows are split by tokens before they are weighted."""

    def body(g: Maker) -> Value:
        rows = SPELLINGS["columns with a bias"](g)
        weighted = rows * g.given("scores", S, 2).reshape((S * 2, 1))
        return weighted.reshape((S, 2, 7)).reduce("sum", (1,), keep=False)

    graph = applied(recognise_experts, graph_of(body))
    assert ops(graph)[-2:] == ["multiply", "reduce"]
    given = feeds(graph_of(body), {"S": 3})
    (found,), (expected,) = reference(graph, given), reference(graph_of(body), given)
    assert abs(found - expected).max() < 1e-4


def of_batch(g: Maker) -> Value:
    return computed_index(g, B)


OTHERS: dict[str, Body] = {
    # Only a constant can be packed before.
    "weight of data": lambda g: (
        g.given("x", B, 1, 5) @ gather(g.given("weight", 4, 5, 7), of_batch(g))
    ),
    "several rows": lambda g: g.given("x", B, S, 5) @ gather(g.weight(4, 5, 7), of_batch(g)),
    "along another axis": lambda g: (
        g.given("x", B, 1, 5) @ gather(g.weight(5, 4, 7), of_batch(g), 1).transpose((1, 0, 2))
    ),
    # An index that is broadcast over tokens.
    "shared by tokens": lambda g: (
        g.given("x", B, 2, 1, 5) @ gather(g.weight(4, 5, 7), computed_index(g, 1, 2))
    ),
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_left_alone(body: Body) -> None:
    assert_left_alone(recognise_experts, body)
