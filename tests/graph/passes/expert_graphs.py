"""Mixtures of experts as exporters and people write them."""

from collections.abc import Callable, Mapping

import numpy as np
from tests.graph.graphs import Array, B, Maker, S, assert_close, inputs_of, reference

from ftuner.core.dim import Dim
from ftuner.core.dtype import INT64
from ftuner.graph.algebra import apply, gather, tanh
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

EXPERTS, K, N = 4, 5, 7


def chosen_nd(table: Value, index: Value) -> Value:
    return apply("gather_nd", table, index.reshape((*index.shape, 1)), batch_dims=0)


def computed_index(g: Maker, *shape: Dim) -> Value:
    return g.given("at", *shape, dtype=INT64)


def two_of_each(g: Maker) -> tuple[Value, Value]:
    """Each token once for each of its two experts, and these."""
    rows = g.given("x", S, K).reshape((S, 1, K)).broadcast((S, 2, K)).reshape((S * 2, K))
    return rows, computed_index(g, S, 2).reshape((S * 2,))


def columns_with_a_bias(g: Maker) -> Value:
    rows, index = two_of_each(g)
    weight = chosen_nd(g.weight(EXPERTS, N, K), index)
    found = (weight @ rows.unsqueeze([2])).reshape((*index.shape, N))
    return found + chosen_nd(g.weight(EXPERTS, N), index)


def rows_with_a_bias(g: Maker) -> Value:
    rows, index = two_of_each(g)
    found = rows.reshape((S * 2, 1, K)) @ gather(g.weight(EXPERTS, K, N), index)
    return gather(g.weight(EXPERTS, N), index) + found.reshape((S * 2, N))


def tokens_are_broadcast(g: Maker) -> Value:
    x = g.given("x", B, S, K).reshape((B, S, 1, 1, K))
    return x @ gather(g.weight(EXPERTS, K, N), computed_index(g, B, S, 3))


def turned(g: Maker, *table: int) -> Value:
    """Weights that are transposed after the choice."""
    return gather(g.weight(*table), computed_index(g, S)).swapped()


def two_layers(g: Maker) -> Value:
    rows, index = two_of_each(g)
    hidden = tanh(gather(g.weight(EXPERTS, N, K), index) @ rows.unsqueeze([2]))
    return gather(g.weight(EXPERTS, 3, N), index) @ hidden


def side_by_side(g: Maker, table: tuple[int, ...], perm: tuple[int, ...], right: bool) -> Value:
    """Each token by the columns of all its weights, which come from the right or the left."""
    index = computed_index(g, S, 3)
    weight = gather(g.weight(*table), index).transpose(perm)
    if right:
        found = g.given("x", S, 1, K) @ weight.reshape((S, K, 3 * N))
    else:
        found = weight.reshape((S, 3 * N, K)) @ g.given("x", S, K, 1)
    return found.reshape((S, 3, N)) + gather(g.weight(EXPERTS, N), index)


SPELLINGS: Mapping[str, Callable[[Maker], Value]] = {
    "columns with a bias": columns_with_a_bias,
    "rows with a bias": rows_with_a_bias,
    "tokens are broadcast": tokens_are_broadcast,
    "turned after the choice": lambda g: g.given("x", S, 1, K) @ turned(g, EXPERTS, N, K),
    "turned columns": lambda g: turned(g, EXPERTS, K, N) @ g.given("x", S, K, 1),
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
