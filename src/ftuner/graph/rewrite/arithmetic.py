"""Arithmetic in a graph: products in any order, and polynomials in any spelling.

An activation is such a product: of x, of a gate, which is a function of x, and of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile, zip_longest

from ftuner.core.dtype import DType
from ftuner.graph.ir import Node, Value
from ftuner.graph.rewrite.surroundings import Surroundings, near, scalar, scaled

MAX_DEGREE = 3
"""Highest degree of a polynomial in an activation: gelu with tanh."""
MAX_DEPTH = 8
"""Most nodes between x and a polynomial of x; activations have fewer."""
MAX_PRODUCTS = 8
"""Most products between a gate and the end of its activation."""
ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "power", "negative"})
"""Operators that polynomials are written with."""


def gated(around: Surroundings, gate: Value) -> Iterator[tuple[Node, Value, float]]:
    """The nodes that give `number * x * gate`, as (node, x, number).

    Between the gate and such a node there are only products without other readers. Both x and its
    multiples are candidates; the caller knows which one the gate is a function of.
    """
    value, number = gate, 1.0
    gated_values: list[tuple[Value, float]] = []
    for _ in range(MAX_PRODUCTS):
        node = around.only_consumer(value)
        if node is None or node.op not in ("multiply", "divide"):
            return
        first = node.inputs[0] is value
        other = node.inputs[1 if first else 0]
        constant = scalar(other)
        if constant and (first or node.op == "multiply"):
            number *= constant if node.op == "multiply" else 1.0 / constant
        elif node.op == "multiply" and not gated_values:
            gated_values = [(other, 1.0)]
            base, factor = scaled(around, other)
            if base is not other:
                gated_values.append((base, factor))
        else:
            return
        value = node.output
        for x, factor in gated_values:
            if x.type == gate.type == value.type:
                yield node, x, number * factor


def is_near(found: Sequence[float] | None, wanted: Sequence[float], dtype: DType) -> bool:
    """Whether coefficients equal the wanted ones as `near` compares them; zeros must be exact."""
    if found is None or len(found) != len(wanted):
        return False
    return all(near(number, meant, dtype) for number, meant in zip(found, wanted, strict=True))


def polynomial(
    around: Surroundings, value: Value, x: Value, depth: int = MAX_DEPTH
) -> tuple[float, ...] | None:
    """The coefficients of a value as a polynomial in x, lowest degree first; None if it is no such
    polynomial of at most `depth` nodes, or its degree is too high."""
    if value is x:
        return (0.0, 1.0)
    number = scalar(value)
    if number is not None:
        return (number,)
    node = around.producer_of(value)
    if node is None or value.type != x.type or not depth or node.op not in ARITHMETIC:
        return None
    found = (polynomial(around, operand, x, depth - 1) for operand in node.inputs)
    parts = [part for part in takewhile(bool, found) if part]
    return combined(node.op, parts) if len(parts) == len(node.inputs) else None


def combined(op: str, parts: Sequence[tuple[float, ...]]) -> tuple[float, ...] | None:
    """The result of an operator of `ARITHMETIC` on polynomials."""
    p, q = parts[0], parts[-1]
    if op == "negative":
        return tuple(-a for a in p)
    if op in ("add", "subtract"):
        sign = 1.0 if op == "add" else -1.0
        return tuple(a + sign * b for a, b in zip_longest(p, q, fillvalue=0.0))
    if op == "multiply":
        return _product(p, q)
    if len(q) != 1 or q[0] == 0:
        return None
    if op == "divide":
        return tuple(a / q[0] for a in p)
    if q[0] not in range(1, MAX_DEGREE + 1):
        return None
    power: tuple[float, ...] | None = p
    for _ in range(int(q[0]) - 1):
        power = power and _product(power, p)
    return power


def _product(p: Sequence[float], q: Sequence[float]) -> tuple[float, ...] | None:
    if len(p) + len(q) - 2 > MAX_DEGREE:
        return None
    total = [0.0] * (len(p) + len(q) - 1)
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            total[i + j] += a * b
    return tuple(total)
