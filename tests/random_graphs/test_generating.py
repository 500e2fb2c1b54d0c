"""Every operator is within the generator's reach, and scripts make the same cases again."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tests.random_graphs.drawing import Script
from tests.random_graphs.extents import BINDINGS
from tests.random_graphs.generating import generate, seeded
from tests.random_graphs.table import ROWS, Row

from ftuner.frontends.onnx import import_model
from ftuner.frontends.onnx.importer import SUPPORTED
from ftuner.graph.operators import OPERATORS
from ftuner.graph.passes.pipeline import optimised

SEEDS = 6
"""Graphs that begin with a row, among which one must hold its operator."""


def test_every_importer_has_a_row() -> None:
    rows = Counter((row.domain, row.op) for row in ROWS if not row.idiom)
    assert set(rows) == set(SUPPORTED)
    assert max(rows.values()) == 1


@pytest.fixture(scope="module")
def reached() -> Counter[str]:
    """The operators of graphs, by how many graphs have them, after the tests of rows."""
    return Counter()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_makes_valid_graphs(row: Row, reached: Counter[str]) -> None:
    found = False
    for seed in range(SEEDS):
        made = seeded(seed, row)
        types = {(node.domain, node.op_type) for node in made.case.proto.graph.node}
        found |= (row.domain, row.op) in types or row.name in made.rows
        graph = import_model(made.case.model).graph
        changed = optimised(graph)
        reached.update({node.op for node in (*graph.nodes, *changed.nodes)})
        assert len(made.case.runs) > BINDINGS
    assert found


def test_every_operator_of_graphs_is_reached(reached: Counter[str]) -> None:
    """By the rows above, as nodes of models or by the passes; conditions that are known leave no
    choice in a graph."""
    assert set(reached) == set(OPERATORS) - {"choose"}


def test_a_script_makes_the_same_case_again() -> None:
    for seed in range(20):
        made = seeded(seed)
        again = generate(made.script, None)
        assert again is not None
        assert again.case.model == made.case.model
        assert again.rows == made.rows


def test_scripts_with_other_choices_make_cases_or_nothing() -> None:
    """A shrinker may leave out steps and lower numbers as it likes."""
    made = 0
    for seed in range(40):
        random = Random(seed)
        script = seeded(seed).script
        steps = [step for step in script.steps if random.random() < 0.7]
        lowered = tuple(tuple(random.randint(0, n) for n in step) for step in steps)
        made += generate(Script(seed, script.head, lowered, ()), None) is not None
    assert made > 10
