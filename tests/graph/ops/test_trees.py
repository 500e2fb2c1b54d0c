"""Walks down trees against their definition, row by row."""

import numpy as np
import pytest
from tests.graph.graphs import Maker, S, assert_runs

from ftuner.core.dtype import DTYPES, INT32
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.graph.ops.trees import COLUMN, LEAF, MISSING, NEXT, OPERATORS
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.schedules.trees.step import MOST_LEVELS, ROWS, TreesStep

COLUMNS = 5


def forest(trees: int, depth: int, missing: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits and nodes of random trees, of which one is as deep as `depth`."""
    rng = np.random.default_rng(seed)
    splits, nodes, leaves = [np.nan] * trees, [[0, 0, 0, 0] for _ in range(trees)], 0
    open_ = [(at, 0) for at in range(trees)]
    while open_:
        at, level = open_.pop(0)
        if level == depth or (at % 7 and rng.random() < 0.4):
            nodes[at] = [0, 0, at - 1, leaves]
            leaves += 1
            continue
        splits[at] = rng.standard_normal()
        below = len(nodes)
        nodes[at] = [rng.integers(COLUMNS), int(missing and rng.random() < 0.5), below, -1]
        nodes += [[0, 0, 0, 0]] * 2
        splits += [np.nan] * 2
        open_ += [(below, level + 1), (below + 1, level + 1)]
    return np.array(splits), np.array(nodes, np.int32).reshape(-1, LEAF + 1)


def by_definition(x: np.ndarray, splits: np.ndarray, nodes: np.ndarray, trees: int) -> np.ndarray:
    found = np.empty((len(x), trees), np.int32)
    for row, tree in np.ndindex(found.shape):
        at = tree
        while nodes[at, LEAF] < 0:
            number = x[row, nodes[at, COLUMN]]
            on = number <= splits[at] or (np.isnan(number) and nodes[at, MISSING])
            at = nodes[at, NEXT] + (not on)
        found[row, tree] = nodes[at, LEAF]
    return found


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 7])
def test_rows_reach_leaves_as_by_definition(depth: int, missing: bool) -> None:
    splits, nodes = forest(9, depth, missing, depth)
    x = np.random.default_rng(1).standard_normal((40, COLUMNS))
    x[::3, 1:4], x[1, 0], x[2, 0] = np.nan, np.inf, -np.inf
    found = OPERATORS[0].reference(x, splits, nodes, trees=9, depth=depth, missing=missing)
    assert np.array_equal(found, by_definition(x, splits, nodes, 9))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("trees", "depth"), [(0, 0), (1, 0), (1, 3), (5, 4), (13, 9), (30, 14)])
def test_the_kernel_reaches_the_same_leaves(
    trees: int, depth: int, missing: bool, dtype: str, backend: CpuBackend
) -> None:
    """Of fewer rows than there are walks at a time, and of several tasks; with NaN and infinite
    elements."""
    splits, nodes = forest(trees, depth, missing, trees)
    g, of = Maker(), DTYPES[dtype]
    x = g.given("x", S, COLUMNS, dtype=of)

    def operand(name: str, extreme: float) -> Value:
        low, other = (g.constant(number, of) for number in (-0.5, extreme))
        return g.add("where", g.add("less", x, low), other, x)

    tables = g.constant(splits, of), g.constant(nodes, INT32)
    attributes = {"trees": trees, "depth": depth, "missing": missing}
    found = [
        g.add("trees", operand(str(extreme), extreme), *tables, **attributes)
        for extreme in (np.nan, np.inf, -np.inf)
    ]
    graph = g.made(*found)
    steps = [step for step in lower(graph).steps if isinstance(step, TreesStep)]
    assert len(steps) == len(found)
    assert all(0 < step.levels <= MOST_LEVELS for step in steps)
    rows = (0, 1, 2, 11, 13, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 3)
    assert_runs(graph, backend, *({"S": s} for s in rows))
