"""Recognises choices that are written as sums of products with zeros and ones."""

from __future__ import annotations

import math

import numpy as np

from ftuner.core.dtype import BOOL
from ftuner.graph.algebra import apply, where
from ftuner.graph.ir import Node, Value
from ftuner.graph.known_values import SAME_ELEMENTS
from ftuner.graph.rewrite.rule import rule
from ftuner.graph.rewrite.surroundings import Surroundings, constant, scalar, scaled


@rule("add", "subtract")
def choice(node: Node, around: Surroundings) -> Value | None:
    """Replace `x * m + number * (1 - m)`, m being zeros and ones, by a choice: as GPT (Radford et
    al., 2018) hides what is ahead. Where x is infinite and m is zero the sum would be NaN."""
    orders = (node.inputs, node.inputs[::-1]) if node.op == "add" else (node.inputs,)
    for kept, rest in orders:
        product = around.producer(kept, "multiply")
        for x, mask in () if product is None else (product.inputs, product.inputs[::-1]):
            number = _number(around, rest, mask)
            if number is None or not around.alike(x.shape, node.output.shape):
                continue
            shown = _booleans(around, mask)
            if shown is not None and x.dtype.kind == "float":
                return where(shown, x, number if node.op == "add" else -number)
    return None


def _constant(around: Surroundings, value: Value) -> Value | None:
    array = value.constant
    if array is None or not np.all((array == 0) | (array == 1)):
        return None
    return constant(f"{value.name}_booleans", BOOL, array != 0)


def _booleans(around: Surroundings, value: Value) -> Value | None:
    """Booleans that are true where a tensor is one; None if other numbers may be in it."""
    node = around.producer_of(value)
    if node is None:
        return around.once(_constant, value)
    if node.op == "cast" and node.inputs[0].dtype == BOOL:
        return node.inputs[0]
    source = _booleans(around, node.inputs[0]) if node.op in SAME_ELEMENTS else None
    return None if source is None else apply(node.op, source, **node.attributes)


def _number(around: Surroundings, rest: Value, mask: Value) -> float | None:
    """The number if `rest` is that number times (1 - mask)."""
    if rest.constant is not None and mask.constant is not None and rest.shape == mask.shape:
        ones, numbers = mask.constant == 1, np.unique(rest.constant[mask.constant != 1])
        alone = len(numbers) == 1 and not rest.constant[ones].any()
        return float(numbers[0]) if alone else None
    contrary, factor = scaled(around, rest)
    difference = around.producer(contrary, "subtract")
    if difference is None or scalar(difference.inputs[0]) != 1:
        return None
    if not math.isfinite(factor):
        # Zero times it is NaN where x is kept.
        return None
    return factor if difference.inputs[1] is mask else None
