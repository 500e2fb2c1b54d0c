"""Every importer of the registry, on hostile inputs: right, or refused with a named error.

Nodes are run in child processes: what crashes one is a finding. `python -m tests.hostile` makes all
changes of more nodes.
"""

from __future__ import annotations

import re

from tests.hostile.bases import bases
from tests.hostile.definitions import DEFINITIONS
from tests.hostile.judging import EXPLAINED
from tests.hostile.sweeping import sweep
from tests.registered import operators_of

from ftuner.frontends.onnx.importer import IMPORTERS
from ftuner.frontends.onnx.records import LEARNING, NCHWC
from ftuner.graph.operators import OPERATORS

ELSEWHERE = {"narrow_matmul", "fmod", "shift_left", "erfc", "choose", "expert_matmul",
             "extents", "random_key", "translated", "join", "full_match", "split_text", "tokens",
             "normalised_text", "coupled_probabilities", "couple", "maps", "suppress", "kept_boxes",
             "independent_loop", "round_float16", "round_bfloat16", "word_matmul",
             "word_convolution", "word_attention", "block_matmul", "read", "look_up", "row_levels",
             "scheduled", "row_range", "log1p"}  # fmt: skip
"""Operators of graphs that only passes make, of several nodes, or that an attribute or data asks
for which the first node of an operator lacks: their own tests have them."""
OF_SEQUENCES = operators_of("sequences") - {
    ("", "Identity"),
    ("", "OptionalHasElement"),
    ("", "OptionalGetElement"),
}
"""Operators of sequences, which one node alone cannot have: the random graphs have them."""
OF_SAVED_FILES = {key for key in IMPORTERS if key[0] == NCHWC}
"""Operators in files that onnxruntime saves, which it does not check when it runs one node."""
OF_STRINGS = {(d, op) for d, op in operators_of("text") if op != "TfIdfVectorizer"} | {
    ("", "StringConcat"), (LEARNING, "ZipMap"),
}  # fmt: skip
"""Operators whose operands are strings, or whose results are maps, which no judge compares."""


def test_every_importer_is_changed_and_no_answer_is_wrong() -> None:
    nodes = bases(1)
    assert set(nodes) | OF_SEQUENCES | OF_SAVED_FILES | OF_STRINGS == set(IMPORTERS)
    found = sweep([node for of in nodes.values() for node in of], every=False, jobs=1)
    assert not found.findings, "\n".join(found.findings[:20])
    assert set(OPERATORS) - found.operators <= ELSEWHERE
    # Changes are answered and refused, both of them often.
    assert found.answers > 2000
    assert found.refusals > 1000


def test_explanations_and_definitions_name_operators() -> None:
    names = {op for _, op in IMPORTERS}
    for patterns in EXPLAINED.values():
        for pattern in patterns:
            operators = re.match(r"\(?([A-Za-z|]+)\)? ", pattern)
            assert operators is not None
            assert set(operators.group(1).split("|")) <= names
    assert set(DEFINITIONS) <= names
