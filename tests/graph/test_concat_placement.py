"""Values that are computed to their part of a concatenation."""

from collections.abc import Callable, Sequence

import pytest
from tests.graph.graphs import B, Maker, S, T, assert_runs, graph_of, titles

from ftuner.core.dtype import FLOAT16
from ftuner.graph.algebra import concat, exp, zero_padded
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.runtime.cpu.backend import CpuBackend

Body = Callable[[Maker], "Value | Sequence[Value]"]
RUNS: tuple[dict[str, int], ...] = (
    {"B": 2, "S": 5, "T": 3}, {"B": 1, "S": 1, "T": 1}, {"B": 3, "S": 17, "T": 2},
    {"B": 0, "S": 4, "T": 3}, {"B": 2, "S": 0, "T": 3},
)  # fmt: skip


def joined(*parts: Value) -> Value:
    return concat(parts, parts[0].rank - 1)


def rows(g: Maker, columns: int = 12) -> tuple[Value, Value]:
    """An input, and a product of it."""
    x = g.given("x", B, S, 8)
    return x, g.linear(x, columns)


def read_beside(g: Maker) -> list[Value]:
    """A product and a nest that a concatenation reads, and another product."""
    x, y = rows(g)
    z = exp(x)
    again = g.linear(y, 5)
    return [joined(y, z), again + g.linear(z, 5)]


def read_as_residual(g: Maker) -> Value:
    _, y = rows(g)
    return g.linear(joined(y, g.linear(y, 12) + y), 4)


def halves(g: Maker) -> Value:
    """One product gives two operands, and a third is made of one of them."""
    first, second = rows(g)[1].pieces(2, (6, 6))
    return joined(first, second, g.linear(second, 6))


def halves_in_another_order(g: Maker) -> Value:
    first, second = rows(g)[1].pieces(2, (6, 6))
    return joined(second, first, second)


def every_other_column(g: Maker) -> Value:
    _, y = rows(g)
    return joined(*(y.slice(2, at, 6, 2) for at in (0, 1)))


def chain(g: Maker) -> Value:
    """Each layer reads the results of all before, as in DenseNet."""
    _, x = rows(g, 8)
    for _ in range(4):
        x = joined(x, g.linear(x.at_least(0), 4))
    return x


def in_another_shape(g: Maker) -> list[Value]:
    y = g.linear(g.given("x", B, S, T, 8), 12)
    return [joined(y.reshape((B, S * T, 12)), g.given("z", B, S * T, 3)), g.linear(y, 3)]


def blocks_side_by_side(g: Maker) -> Value:
    """As transposed convolutions are written: a copy puts the blocks in their part."""
    y = g.linear(g.given("x", B, S, T, 8), 12).reshape((B, S, T, 2, 2, 3))
    picture = y.transpose((0, 1, 3, 2, 4, 5)).reshape((B, 2 * S, 2 * T, 3))
    return joined(g.given("z", B, 2 * S, 2 * T, 5), picture)


def in_two(g: Maker) -> list[Value]:
    """A value has one place: it is copied to the other part."""
    x, y = rows(g)
    return [joined(y, x), joined(x, y)]


def along_rows(g: Maker) -> list[Value]:
    """Rows of several batches are not evenly apart in their part, so that a product could not read
    them there."""
    x, y = rows(g, 8)
    return [concat([y, x], 1), g.linear(y, 5)]


def result_of_its_own(g: Maker) -> list[Value]:
    x, y = rows(g)
    return [y, joined(y, x)]


def named_apart(g: Maker) -> Value:
    """Extents that are equal when they are bound: the simplest names them."""
    _, y = rows(g)
    padded = zero_padded(g.given("z", B, T, 3), (0, 0, 0), (0, 1, 0))
    return g.linear(joined(padded, y), 4)


CASES: list[tuple[Body, int]] = [
    (read_beside, 0),
    (read_as_residual, 0),
    (halves, 0),
    (halves_in_another_order, 1),
    (every_other_column, 2),
    (chain, 0),
    (in_another_shape, 1),
    (blocks_side_by_side, 2),
    (in_two, 3),
    (along_rows, 2),
    (result_of_its_own, 2),
]
"""Graphs, and the copies that they are left with: those of inputs, and what a comment says."""


@pytest.mark.parametrize(("body", "copies"), CASES)
def test_what_is_copied(body: Body, copies: int) -> None:
    assert titles(graph_of(body)).count("copy") == copies


@pytest.mark.parametrize("body", [body for body, _ in CASES])
def test_parts_hold_what_the_graph_says(body: Body, widest: CpuBackend) -> None:
    assert_runs(graph_of(body), widest, *RUNS)


def test_the_simplest_extents_name_the_rows(widest: CpuBackend) -> None:
    graph = graph_of(named_apart)
    assert "copy" not in titles(graph)
    assert_runs(graph, widest, {"B": 2, "S": 5, "T": 4}, {"B": 1, "S": 1, "T": 0})


def test_a_chain_has_one_buffer() -> None:
    lowered = lower(graph_of(chain))
    buffers = {buffer for step in lowered.steps for buffer in step.writes}
    # What is rectified is read by its product alone.
    assert sum(buffer.kind == "output" for buffer in buffers) == 1
    writers = [step for step in lowered.steps if step.writes[0].kind == "output"]
    assert len(writers) == 5


def test_parts_are_held_in_the_dtype_of_the_whole() -> None:
    """A value that memory holds in another dtype is copied."""
    graph = graph_of(read_as_residual)
    concat = next(node for node in graph.nodes if node.op == "concat")
    assert titles(graph).count("copy") == 0
    held = dict.fromkeys(concat.inputs, FLOAT16)
    assert [step.title for step in lower(graph, held).steps].count("copy") > 0
