"""Values that are computed to their part of a concatenation."""

from collections.abc import Callable, Sequence

import pytest
from tests.graph.graphs import B, Maker, S, T, assert_runs, graph_of, titles

from ftuner.core.dtype import FLOAT16
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.runtime.cpu.backend import CpuBackend

Body = Callable[[Maker], "Value | Sequence[Value]"]
RUNS: tuple[dict[str, int], ...] = (
    {"B": 2, "S": 5, "T": 3}, {"B": 1, "S": 1, "T": 1}, {"B": 3, "S": 17, "T": 2},
    {"B": 0, "S": 4, "T": 3}, {"B": 2, "S": 0, "T": 3},
)  # fmt: skip


def joined(g: Maker, *parts: Value, axis: int = -1) -> Value:
    return g.add("concat", *parts, axis=axis % parts[0].rank)


def read_beside(g: Maker) -> list[Value]:
    """A product and a nest that a concatenation reads, and another product."""
    x = g.given("x", B, S, 8)
    y, z = g.linear(x, 12), g.add("exp", x)
    again = g.linear(y, 5)
    return [joined(g, y, z), g.add("add", again, g.linear(z, 5))]


def read_as_residual(g: Maker) -> Value:
    x = g.given("x", B, S, 8)
    y = g.linear(x, 12)
    return g.linear(joined(g, y, g.add("add", g.linear(y, 12), y)), 4)


def halves(g: Maker) -> Value:
    """One product gives two operands, and a third is made of one of them."""
    y = g.linear(g.given("x", B, S, 8), 12)
    first, second = (
        g.add("slice", y, starts=(0, 0, at), steps=(1, 1, 1), shape=(B, S, 6)) for at in (0, 6)
    )
    return joined(g, first, second, g.linear(second, 6))


def halves_in_another_order(g: Maker) -> Value:
    y = g.linear(g.given("x", B, S, 8), 12)
    first, second = (
        g.add("slice", y, starts=(0, 0, at), steps=(1, 1, 1), shape=(B, S, 6)) for at in (0, 6)
    )
    return joined(g, second, first, second)


def every_other_column(g: Maker) -> Value:
    y = g.linear(g.given("x", B, S, 8), 12)
    return joined(g, *(
        g.add("slice", y, starts=(0, 0, at), steps=(1, 1, 2), shape=(B, S, 6)) for at in (0, 1)
    ))  # fmt: skip


def chain(g: Maker) -> Value:
    """Each layer reads the results of all before, as in DenseNet."""
    x = g.linear(g.given("x", B, S, 8), 8)
    for _ in range(4):
        x = joined(g, x, g.linear(g.add("maximum", x, g.number(0)), 4))
    return x


def in_another_shape(g: Maker) -> list[Value]:
    y = g.linear(g.given("x", B, S, T, 8), 12)
    rows = g.add("reshape", y, shape=(B, S * T, 12))
    return [joined(g, rows, g.given("z", B, S * T, 3)), g.linear(y, 3)]


def blocks_side_by_side(g: Maker) -> Value:
    """As transposed convolutions are written: a copy puts the blocks in their part."""
    y = g.linear(g.given("x", B, S, T, 8), 12)
    apart = g.add("reshape", y, shape=(B, S, T, 2, 2, 3))
    turned = g.add("transpose", apart, perm=(0, 1, 3, 2, 4, 5))
    picture = g.add("reshape", turned, shape=(B, 2 * S, 2 * T, 3))
    return joined(g, g.given("z", B, 2 * S, 2 * T, 5), picture)


def in_two(g: Maker) -> list[Value]:
    """A value has one place: it is copied to the other part."""
    x = g.given("x", B, S, 8)
    y = g.linear(x, 12)
    return [joined(g, y, x), joined(g, x, y)]


def along_rows(g: Maker) -> list[Value]:
    """Rows of several batches are not evenly apart in their part, so that a product could not read
    them there."""
    x = g.given("x", B, S, 8)
    y = g.linear(x, 8)
    return [joined(g, y, x, axis=1), g.linear(y, 5)]


def result_of_its_own(g: Maker) -> list[Value]:
    x = g.given("x", B, S, 8)
    y = g.linear(x, 12)
    return [y, joined(g, y, x)]


def named_apart(g: Maker) -> Value:
    """Extents that are equal when they are bound: the simplest names them."""
    y = g.linear(g.given("x", B, S, 8), 12)
    widths = {"before": (0, 0, 0), "after": (0, 1, 0)}
    padded = g.add("pad", g.given("z", B, T, 3), g.number(0), mode="constant", **widths)
    return g.linear(joined(g, padded, y), 4)


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
