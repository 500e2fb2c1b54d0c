"""Mixtures of experts as exporters and people write them."""

from collections.abc import Callable, Mapping

import numpy as np
from tests.graph.graphs import Array, B, Maker, S, assert_close, inputs_of, reference

from ftuner.core.dim import Dim
from ftuner.core.dtype import INT64
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

EXPERTS, K, N = 4, 5, 7


def chosen(g: Maker, table: Value, index: Value) -> Value:
    return g.add("gather", table, index, axis=0)


def chosen_nd(g: Maker, table: Value, index: Value) -> Value:
    return g.add("gather_nd", table, g.add("reshape", index, shape=(*index.shape, 1)), batch_dims=0)


def computed_index(g: Maker, *shape: Dim) -> Value:
    return g.given("at", *shape, dtype=INT64)


def flat_index(g: Maker) -> Value:
    """Two experts of each token."""
    return g.add("reshape", computed_index(g, S, 2), shape=(S * 2,))


def repeated(g: Maker, times: int) -> Value:
    """Each token once for each of its experts."""
    x = g.add("reshape", g.given("x", S, K), shape=(S, 1, K))
    x = g.add("broadcast", x, shape=(S, times, K))
    return g.add("reshape", x, shape=(S * times, K))


def columns_with_a_bias(g: Maker) -> Value:
    rows, index = repeated(g, 2), flat_index(g)
    weight = chosen_nd(g, g.weight(EXPERTS, N, K), index)
    column = g.add("reshape", rows, shape=(*rows.shape, 1))
    found = g.add("reshape", weight @ column, shape=(*index.shape, N))
    return found + chosen_nd(g, g.weight(EXPERTS, N), index)


def rows_with_a_bias(g: Maker) -> Value:
    rows, index = repeated(g, 2), flat_index(g)
    row = g.add("reshape", rows, shape=(S * 2, 1, K))
    found = row @ chosen(g, g.weight(EXPERTS, K, N), index)
    found = g.add("reshape", found, shape=(S * 2, N))
    return chosen(g, g.weight(EXPERTS, N), index) + found


def tokens_are_broadcast(g: Maker) -> Value:
    x = g.add("reshape", g.given("x", B, S, K), shape=(B, S, 1, 1, K))
    return x @ chosen(g, g.weight(EXPERTS, K, N), computed_index(g, B, S, 3))


def turned_after_the_choice(g: Maker) -> Value:
    weight = chosen(g, g.weight(EXPERTS, N, K), computed_index(g, S))
    weight = g.add("transpose", weight, perm=(0, 2, 1))
    return g.given("x", S, 1, K) @ weight


def turned_columns(g: Maker) -> Value:
    weight = chosen(g, g.weight(EXPERTS, K, N), computed_index(g, S))
    weight = g.add("transpose", weight, perm=(0, 2, 1))
    return weight @ g.given("x", S, K, 1)


def two_layers(g: Maker) -> Value:
    rows, index = repeated(g, 2), flat_index(g)
    column = g.add("reshape", rows, shape=(S * 2, K, 1))
    hidden = chosen(g, g.weight(EXPERTS, N, K), index) @ column
    hidden = g.add("tanh", hidden)
    return chosen(g, g.weight(EXPERTS, 3, N), index) @ hidden


def side_by_side(g: Maker, table: tuple[int, ...], perm: tuple[int, ...], right: bool) -> Value:
    """Each token by the columns of all its weights, which come from the right or the left."""
    index = computed_index(g, S, 3)
    weight = g.add("transpose", chosen(g, g.weight(*table), index), perm=perm)
    if right:
        weight = g.add("reshape", weight, shape=(S, K, 3 * N))
        found = g.given("x", S, 1, K) @ weight
    else:
        weight = g.add("reshape", weight, shape=(S, 3 * N, K))
        found = weight @ g.given("x", S, K, 1)
    found = g.add("reshape", found, shape=(S, 3, N))
    return found + chosen(g, g.weight(EXPERTS, N), index)


SPELLINGS: Mapping[str, Callable[[Maker], Value]] = {
    "columns with a bias": columns_with_a_bias,
    "rows with a bias": rows_with_a_bias,
    "tokens are broadcast": tokens_are_broadcast,
    "turned after the choice": turned_after_the_choice,
    "turned columns": turned_columns,
    "two layers": two_layers,
    "columns from the right": lambda g: side_by_side(g, (EXPERTS, N, K), (0, 3, 1, 2), True),
    "turned from the right": lambda g: side_by_side(g, (EXPERTS, K, N), (0, 2, 1, 3), True),
    "turned from the left": lambda g: side_by_side(g, (EXPERTS, K, N), (0, 1, 3, 2), False),
}


def feeds(graph: Graph, bindings: Mapping[str, int]) -> dict[str, Array]:
    """Inputs with numbers of experts, negative ones among them."""
    found = inputs_of(graph, bindings)
    random = np.random.default_rng(1)
    for name, x in found.items():
        if name == "at":
            found[name] = random.integers(-EXPERTS, EXPERTS, x.shape)
    return found


def assert_experts_run(graph: Graph, backend: CpuBackend) -> None:
    for threads in (1, 2):
        model = Model(optimised(graph, halves=False), backend, Options(threads))
        assert "experts" in [step.kind for step in model.steps]
        for bindings in ({"B": 1, "S": 1}, {"B": 2, "S": 5}, {"B": 3, "S": 40}, {"B": 0, "S": 4}):
            given = feeds(graph, bindings)
            assert_close(model.run(given), reference(graph, given))
