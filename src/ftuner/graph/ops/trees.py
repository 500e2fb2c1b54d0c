"""The leaves that rows of a table reach in an ensemble of trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dtype import BOOL, DTYPES, INT32, INT64
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    ElementWriter,
    Operator,
    Require,
    Types,
    elements_of,
    elementwise,
)

COLUMN, MISSING, NEXT, LEAF = range(4)
"""The columns of a table of nodes."""


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, splits, nodes = types
    what = f"trees of {', '.join(map(str, types))}"
    if x.dtype.name not in DTYPES or x.dtype != splits.dtype or nodes.dtype != INT32:
        raise GraphError(f"{what}: expected floats, splits of the same dtype, and int32")
    if (x.rank, splits.rank, nodes.rank) != (2, 1, 2):
        raise ShapeError(f"{what}: expected 2, 1 and 2 axes")
    require(nodes.shape[0], splits.shape[0], what)
    require(nodes.shape[1], LEAF + 1, what)
    return (TensorType(INT32, (x.shape[0], attributes["trees"])),)


@elementwise
def _define(writer: ElementWriter) -> int:
    x, splits, _ = writer.types
    row, at = writer.at
    columns, count = (writer.integer(extent) for extent in (x.shape[1], splits.shape[0]))

    def field(number: int) -> int:
        return writer.cast(writer.load(2, [at, writer.integer(number)]), INT64)

    for _ in range(writer.attributes["depth"]):
        number = writer.load(0, [row, writer.checked(field(COLUMN), columns)])
        on = writer.compare("less_equal", number, writer.load(1, [at]))
        if writer.attributes["missing"]:
            asked = writer.compare("less", writer.integer(0), field(MISSING))
            none = writer.step("isnan", BOOL, number)
            on = writer.compare("logical_or", on, writer.compare("logical_and", none, asked))
        no = writer.where(on, writer.integer(0), writer.integer(1))
        at = writer.checked(writer.add(field(NEXT), no), count)
    return writer.cast(field(LEAF), INT32)


def _reference(x: Any, splits: Any, nodes: Any, trees: int, depth: int, missing: bool) -> Any:
    rows = np.arange(len(x))[:, None]
    at = np.repeat(np.arange(trees)[None], len(x), 0)
    for _ in range(depth):
        number = x[rows, nodes[at, COLUMN]]
        on = number <= splits[at]
        if missing:
            on |= np.isnan(number) & (nodes[at, MISSING] > 0)
        at = nodes[at, NEXT] + ~on
    return nodes[at, LEAF]


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    return elements_of(results[0].shape) * int(attributes["depth"])


OPERATORS = (Operator("trees", _infer, _reference, _define, work=_work, exact_from=0),)
"""`trees` takes a table (rows, columns), a split for each node, and the nodes (nodes, 4), of which
the first are the roots of the trees. A row goes from a node to the one that NEXT numbers if its
element in COLUMN is at most the split, or is NaN and MISSING is 1, and else to the node after that.
Within `depth` steps it is at a node whose split is NaN and whose next node is itself. The result,
(rows, trees), is LEAF of that node. `missing`: whether MISSING of any node is 1."""
