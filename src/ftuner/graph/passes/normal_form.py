"""Rewrites spellings of one thing to a single form, which the other passes recognise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ftuner.core.dim import product
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import Surroundings, constant, made, rewritten, scalar


def normalise(graph: Graph) -> Graph:
    """Replace powers of small integers by products or a division, transpositions of matrices whose
    batch axes are merged by one of all axes, and reshapes in a row by one.

    A product is rounded at most once more than a power. NaN and infinities stay what they are;
    this is why a power of one half stays: of minus infinity it is infinity, and a root is NaN.
    """
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        rule = _RULES.get(node.op)
        written = rule(around, node) if rule is not None else None
        if written:
            places[node] = written
            same[node.output] = written[-1].output
    return rewritten(graph, places, same)


def _power(around: Surroundings, node: Node) -> list[Node] | None:
    """x^2 and x^3 as products, and x^-1 as a division."""
    x, exponent = node.inputs
    number, name = scalar(exponent), node.output.name
    if x.type != node.output.type or x.dtype.kind != "float":
        return None
    if number == -1:
        one = constant(f"{name}_one", x.dtype, np.array(1.0))
        return [made("divide", [one, x], x.type, f"{name}_reciprocal")]
    if number not in (2, 3):
        return None
    nodes = [made("multiply", [x, x], x.type, f"{name}_square")]
    if number == 3:
        nodes.append(made("multiply", [nodes[0].output, x], x.type, f"{name}_cube"))
    return nodes


def _reshaped(around: Surroundings, node: Node) -> list[Node] | None:
    return _transposed(around, node) or _at_once(around, node)


def _at_once(around: Surroundings, node: Node) -> list[Node] | None:
    """A reshape of what is reshaped, of its source: what is reshaped may be an output otherwise,
    and written twice."""
    first = around.producer(node.inputs[0], "reshape")
    if first is None:
        return None
    while (before := around.producer(first.inputs[0], "reshape")) is not None:
        first = before
    x, shape = first.inputs[0], node.output.shape
    if product(x.shape) != product(shape):
        return None  # They are equal by a constraint.
    name = f"{node.output.name}_at_once"
    return [made("reshape", [x], node.output.type, name, shape=shape)]


def _transposed(around: Surroundings, node: Node) -> list[Node] | None:
    """The last two axes of x exchanged, where the axes before them are merged for it and split
    again. PyTorch exports the keys of `scaled_dot_product_attention` so."""
    turned = around.producer(node.inputs[0], "transpose")
    if turned is None or turned.attributes["perm"] != (0, 2, 1):
        return None
    merged = around.producer(turned.inputs[0], "reshape")
    if merged is None:
        return None
    x = merged.inputs[0]
    if x.rank < 3 or x.shape[-2:] != merged.output.shape[-2:]:
        return None
    *batch, rows, columns = x.shape
    if node.output.shape != (*batch, columns, rows):
        return None
    perm = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return [made("transpose", [x], node.output.type, f"{node.output.name}_swapped", perm=perm)]


_RULES: dict[str, Callable[[Surroundings, Node], list[Node] | None]] = {
    "power": _power,
    "reshape": _reshaped,
}
"""By the operator of the last node."""
