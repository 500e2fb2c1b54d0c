"""Which steps compute the rows of requests independently is proven from what they access."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of, layer
from tests.runtime.batch_graphs import biased, translator

from ftuner.core.dtype import INT64
from ftuner.graph.algebra import apply, concat, gather
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.ragged import RaggedSteps, divide, ragged_steps
from ftuner.schedules.attention.step import AttentionStep, Sequences

Body = Callable[[Maker, Value], Value]
WIDTH = 8


def found_in(graph: Graph) -> tuple[list[str], RaggedSteps]:
    """The titles of the steps that are row-wise, and all that was found."""
    lowered = lower(optimised(graph, halves=False))
    found = ragged_steps(lowered)
    assert found is not None
    steps = zip(lowered.steps, found.reasons, strict=True)
    return [step.title for step, why in steps if not why], found


def around(body: Body) -> Graph:
    """A graph in which something is between two products of rows, and in steps of its own."""

    def made(g: Maker) -> Value:
        return g.linear(body(g, g.linear(g.given("x", B, S, WIDTH), WIDTH)), WIDTH)

    return graph_of(made)


def test_only_attention_of_an_encoder_works_within_requests() -> None:
    titles, found = found_in(layer(32, 2, 64))
    assert str(found.rows[0].count) == "B*S"
    assert [why for why in found.reasons if "attention" in why] == [
        "attention works within a request"
    ]
    assert titles[0].startswith("matmul")
    assert found.turns()[-1].kind == 0


def norm(g: Maker, x: Value) -> Value:
    return g.add("norm", x, g.weight(WIDTH), g.weight(WIDTH), axis=2, epsilon=1e-5, rms=False)


ROW_WISE: dict[str, Body] = {
    "norm": norm,
    "softmax of a row": lambda g, x: apply("softmax", x, axis=2, log=False),
    "sum of a row, and the row": lambda g, x: x + x.reduce("sum", (2,)),
    "elements of a row in another order": lambda g, x: (
        x.reshape((B, S, 2, WIDTH // 2)).swapped().reshape((B, S, WIDTH))
    ),
    "rows of a table": lambda g, x: gather(g.weight(7, WIDTH), g.given("at", B, S, dtype=INT64)),
}
WITHIN: dict[str, Body] = {
    "softmax of a column": lambda g, x: apply("softmax", x, axis=1, log=False),
    "sum of all rows": lambda g, x: x + x.reduce("sum", (1,)),
    "a vector of the request": lambda g, x: x + g.given("v", B, 1, WIDTH),
    "a row of all requests that is an input": lambda g, x: x + g.given("v", WIDTH),
    "the next row": lambda g, x: concat([x[:, 1:], x[:, :1]], 1),
    "other matrices": lambda g, x: x @ g.given("w", B, WIDTH, WIDTH),
    "another length": lambda g, x: x + g.given("u", B, S, T, WIDTH).reduce("sum", (2,), False),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_steps_of_rows(name: str) -> None:
    _, found = found_in(around(ROW_WISE[name]))
    assert set(found.reasons) == {""}


@pytest.mark.parametrize("name", WITHIN)
def test_steps_within_a_request(name: str) -> None:
    titles, found = found_in(around(WITHIN[name]))
    assert set(found.reasons) - {""}
    assert any(title.startswith("matmul") for title in titles)


def test_rows_of_matrices_without_a_batch() -> None:
    graph = graph_of(lambda g: g.linear(g.gelu(g.linear(g.given("x", S, 8), 16)), 8))
    _, found = found_in(graph)
    assert str(found.rows[0].count) == "S"
    assert found.turns() == [(0, 0, len(found.reasons))]


def test_a_vector_of_each_request_is_a_row_of_its_own_kind() -> None:
    def made(g: Maker) -> Value:
        x = g.given("x", B, S, WIDTH)
        for _ in range(3):
            x = norm(g, g.linear(x, WIDTH))
        return g.gelu(g.linear(x.mean([1], keep=False), WIDTH)) + g.given("v", B, WIDTH)

    lowered = lower(optimised(graph_of(made), halves=False))
    found, further = ragged_steps(lowered), ragged_steps(lowered, exact=False)
    assert found is not None
    assert further is not None
    assert further.rows[:1] == found.rows
    assert [str(rows.count) for rows in further.rows] == ["B*S", "B"]
    assert found.kinds[-1] is None
    assert [turn.kind for turn in further.turns()] == [0, None, 1]
    assert [why == "" for why in further.reasons] == [k is not None for k in further.kinds]
    by_tokens, by_texts = divide(lowered, further).parts
    buffers = [{*part.steps.lifetimes(), *part.shared} for part in (by_tokens, by_texts)]
    assert buffers[0].isdisjoint(buffers[1])
    assert [b.number for b in by_texts.inputs] == [1]
    assert [b.number for b in by_texts.outputs] == [0]
    # Nothing is gained where no product is left.
    assert ragged_steps(lower(optimised(layer(32, 2, 64), halves=False)), exact=False) == (
        ragged_steps(lower(optimised(layer(32, 2, 64), halves=False)))
    )


@pytest.mark.parametrize("precision", ["bfloat16", "int8-dynamic"])
def test_products_of_words(precision: str) -> None:
    """A row of words has the elements of a row of the buffer."""
    graph = graph_of(lambda g: g.linear(g.gelu(g.linear(g.given("x", B, S, 64), 64)), 64))
    lowered = lower(optimised(graph, halves=False, precision=precision))
    assert "word_matmul" in lowered.steps[-1].title
    found = ragged_steps(lowered)
    assert found is not None
    assert set(found.reasons) == {""}


def test_sums_of_blocks_depend_on_the_number_of_rows() -> None:
    graph = graph_of(lambda g: g.linear(g.given("x", B, S, 256), 256))
    lowered = lower(optimised(graph, halves=False, precision="int4-weights"))
    assert "block_matmul" in lowered.steps[0].title
    assert ragged_steps(lowered) is None


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(lambda g: g.add("exp", g.given("x", B, S))),
        graph_of(lambda g: g.add("matmul", g.given("x", 3, 8), g.weight(8, 8))),
        graph_of(lambda g: g.add("matmul", g.given("x", B, S, T), g.given("y", B, T, S))),
    ],
    ids=["no product", "fixed extents", "no weight"],
)
def test_nothing_is_gained_by_more_rows(graph: Graph) -> None:
    assert ragged_steps(lower(optimised(graph, halves=False))) is None


def test_symbols_that_are_equal_count_no_rows_together() -> None:
    def made(g: Maker) -> Value:
        x, y = g.given("x", B, S, WIDTH), g.given("y", S, WIDTH)
        # B columns by S rows.
        return g.linear(x, WIDTH).transpose((1, 2, 0)) @ y

    assert ragged_steps(lower(optimised(graph_of(made), halves=False))) is None


def test_what_passes_between_programs_is_shared_or_kept() -> None:
    lowered = lower(optimised(layer(32, 2, 64), halves=False))
    found = ragged_steps(lowered)
    assert found is not None
    division = divide(lowered, found)
    (part,) = division.parts
    assert all(found.rows[0].width(buffer) for buffer in part.shared)
    assert not set(part.shared) & set(division.kept)
    lifetimes = part.steps.lifetimes()
    begins = [first for first, _ in lifetimes.values()]
    assert begins == sorted(begins), "memory is given in the order of the first access"
    for number, buffers in part.steps.between:
        for buffer in buffers & set(part.shared):
            first, last = lifetimes[buffer]
            assert first <= number <= last + 1


def attentions_of(graph: Graph) -> list[Sequences | None]:
    lowered = lower(optimised(graph, halves=False))
    found = ragged_steps(lowered)
    assert found is not None
    steps = [step for step in lowered.steps if isinstance(step, AttentionStep)]
    return [step.sequences(found.rows[0]) for step in steps]


def test_attention_to_rows_that_follow_each_other() -> None:
    assert attentions_of(layer(64, 2, 96)) == [Sequences(0)]
    # The others read rows of another text, or have a number for each pair of positions.
    assert attentions_of(translator()) == [Sequences(0), None] * 2
    assert attentions_of(biased()) == [None]


def test_steps_that_have_turns_of_their_own() -> None:
    found = RaggedSteps((), (0, None, None, None, 0), ("",) * 5, frozenset({2}))
    assert [*map(tuple, found.turns())] == [
        (0, 0, 1), (None, 0, 1), (None, 1, 1), (None, 2, 1), (0, 1, 1)
    ]  # fmt: skip
