"""Every operator is within the generator's reach, and scripts make the same cases again."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tests.random_graphs.agreement import graphs_of
from tests.random_graphs.drawing import Script
from tests.random_graphs.extents import BINDINGS
from tests.random_graphs.freeing import freed
from tests.random_graphs.generating import generate, seeded
from tests.random_graphs.reports import nodes_of
from tests.random_graphs.table import ROWS, Row

from ftuner.core.product import WORD_PRODUCTS
from ftuner.errors import UnsupportedOperatorError
from ftuner.frontends.onnx.importer import SUPPORTED, import_model
from ftuner.frontends.onnx.records import LEARNING, MICROSOFT, NCHWC
from ftuner.graph.operators import OPERATORS
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.specialization import RunTimeNumberError

ALONE = {
    (LEARNING, "TreeEnsemble"), (LEARNING, "ZipMap"), (MICROSOFT, "Tokenizer"),
    ("", "StringNormalizer"), ("", "StringSplit"),
}  # fmt: skip
"""Operators with tests of their own alone: of results that no node reads, of strings whose number
data decides, or of a version of ONNX's operators for classical learning that has no others."""
SEEDS = 6
"""Graphs that begin with a row, among which one must hold its operator."""


def test_every_importer_has_a_row() -> None:
    """But for those of files that onnxruntime saves, in blocks of the width of its machine, which
    it is asked to save in `tests/frontends/test_onnx_blocked.py`."""
    rows = Counter((row.domain, row.op) for row in ROWS if not row.idiom)
    assert set(rows) | ALONE == {key for key in SUPPORTED if key[0] != NCHWC}
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
        graph = graphs_of(made.case)[1][0]
        changed = optimised(graph, halves=False, words=WORD_PRODUCTS)
        reached.update({node.op for node in (*nodes_of(graph), *nodes_of(changed))})
        assert len(made.case.runs) > BINDINGS
    assert found


def test_every_operator_of_graphs_is_reached(reached: Counter[str]) -> None:
    """By the rows above, as nodes of models, of graphs within nodes, or by the passes. `read` and
    `scheduled` are of the operators of users: `tests/define` and `tests/tasks` have random ones.
    Rows have levels of their own, and attention is of words, in a precision that is asked for;
    `log1p` is PyTorch's."""
    others = {"maps", "split_text", "tokens", "normalised_text", "read", "row_levels"}
    others |= {"word_attention", "log1p"}
    assert set(reached) | others == set(OPERATORS) - {"scheduled"}


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


def test_freed_constants_are_inputs_of_every_run() -> None:
    """Some become numbers that a graph depends on."""
    late = 0
    for seed in range(40):
        case = freed(seeded(seed).case, Random(seed))
        if case is None:
            continue
        names = {x.name for x in case.proto.graph.input}
        assert all(set(feeds) == names for feeds in case.runs)
        try:
            import_model(case.model)
        except RunTimeNumberError:
            late += 1
        except UnsupportedOperatorError:
            continue
    assert late > 5
