"""What is known of the numbers that are added to scores: some are scores themselves, such as the
products with positions of DeBERTa (He et al., 2021), and some leave scores or replace them."""

from __future__ import annotations

import numpy as np

from ftuner.graph.ir import Value
from ftuner.graph.rewrite.surroundings import Surroundings, scalar, scaled

NEVER_SEEN = -1e4
"""Scores this low have no weight beside others; GPT-2 masks with this value."""
OUTWEIGHING = 1e38
"""Sums of a number this large and one up to 1e30 are the former, in float32."""
MAX_SUMMANDS = 8
"""Most products and tables of a bias."""
MAX_MOVES = 12
"""Most factors and nodes that move elements between a bias and a product."""
_MOVES = ("reshape", "transpose", "broadcast", "slice", "gather", "gather_elements", "cast")
"""Operators whose results are elements of their first operand."""


def is_of_scores(around: Surroundings, bias: Value) -> bool:
    """Whether a bias is a sum of products and of tables of small numbers, so that it is as far from
    `NEVER_SEEN` as scores are. A bias that is an input, or a choice, may be a mask."""
    left = [bias]
    for _ in range(MAX_SUMMANDS):
        value = _source(around, left.pop())
        total = around.producer(value, "add")
        if total is not None:
            left += total.inputs
        elif value.constant is not None:
            if not np.all(np.abs(value.constant) < -NEVER_SEEN):
                return False
        elif around.producer(value, "matmul") is None:
            return False
        if not left:
            return True
    return False


def _source(around: Surroundings, value: Value) -> Value:
    """The tensor whose elements a value has, times at most one."""
    for _ in range(MAX_MOVES):
        node = around.producer_of(value)
        base, factor = scaled(around, value)
        if base is not value and abs(factor) <= 1:
            value = base
        elif node is not None and node.op in _MOVES:
            value = node.inputs[0]
        else:
            break
    return value


def leaves_or_replaces(around: Surroundings, addend: Value) -> bool:
    """Whether all elements of an addend are zero or `OUTWEIGHING`: whole numbers, such as one minus
    a mask, times such a number."""
    base, factor = scaled(around, addend)
    return abs(factor) >= OUTWEIGHING and _is_whole(around, base)


def _is_whole(around: Surroundings, value: Value) -> bool:
    """Whether all elements are whole numbers."""
    for _ in range(MAX_MOVES):
        if value.constant is not None:
            return bool(np.all(value.constant == np.round(value.constant)))
        if value.dtype.kind != "float":
            return True
        node = around.producer_of(value)
        if node is not None and node.op in ("reshape", "broadcast", "cast"):
            value = node.inputs[0]
        elif node is not None and node.op == "subtract" and scalar(node.inputs[0]) == 1:
            value = node.inputs[1]
        else:
            break
    return False
