"""Merges a chain of products and sums with constants into one product and one sum.

A batch norm at inference is such a chain, because its statistics are constants. So are a scale
after a layer and a bias after a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import DType
from ftuner.graph.algebra import apply, constant
from ftuner.graph.arrays import converted, widened
from ftuner.graph.ir import Array, Graph, Node, Value, writing_to
from ftuner.graph.rewrite.rule import Rewriting
from ftuner.graph.rewrite.surroundings import Surroundings
from ftuner.graph.sources import note_made

_COUNTING = frozenset({"cast", "floor", "ceil", "rint"})
"""Conversions between integers and floats. A result next to one of them may be exactly half a step,
or an index, and rounding in another order could move it to the next integer."""


class _Affine(NamedTuple):
    """`scale * x + shift` in float64, with one number per channel or one for all."""

    scale: Array
    shift: Array

    def then(self, other: _Affine) -> _Affine:
        # Infinite constants make numbers that do not fit.
        with np.errstate(over="ignore", invalid="ignore"):
            return _Affine(self.scale * other.scale, self.shift * other.scale + other.shift)

    def fits(self, dtype: DType) -> bool:
        """Whether all numbers stay finite in a dtype, and none becomes zero."""
        for array in self:
            rounded = converted(array, dtype)
            if not np.isfinite(rounded).all() or ((rounded == 0) != (array == 0)).any():
                return False
        return True


def _by_channel(shape: Sequence[int]) -> bool:
    """Whether at most one axis has more than one element."""
    return len([n for n in shape if n != 1]) <= 1


class _Chain(NamedTuple):
    """Consecutive nodes, each the only reader of the one before it; the first reads x."""

    x: Value
    nodes: Sequence[Node]
    affine: _Affine

    @property
    def result(self) -> Value:
        return self.nodes[-1].output


def fold_affine(graph: Graph) -> Graph:
    """Replace a chain by a product and a sum, without those that are trivial. After a matrix
    product or a convolution whose weight nothing else reads, the scale goes into the columns of the
    weight.

    Results differ by the rounding of x, because a difference that the chain scales afterwards is
    scaled first.
    """
    around, new = Surroundings(graph), Rewriting(graph)
    done: set[Node] = set()
    with writing_to(new):
        for node in graph.nodes:
            chain = _chain(around, node) if node not in done else None
            if chain is None:
                continue
            done.update(chain.nodes)
            new.name = chain.result.name
            written = _written(around, chain) if _may_fold(around, chain) else None
            if written is not None:
                new.same[chain.result] = written
    return new.rewritten()


def _chain(around: Surroundings, first: Node) -> _Chain | None:
    """The chain that begins with a node."""
    unknown = [v for v in first.inputs if v.constant is None]
    if len(unknown) != 1:
        return None
    (x,) = unknown
    nodes: list[Node] = []
    affine = _Affine(np.array(1.0), np.array(0.0))
    node: Node | None = first
    while node is not None:
        value = nodes[-1].output if nodes else x
        step = _step(node, value)
        after = affine.then(step) if step is not None else None
        if after is None or not _by_channel(np.broadcast_shapes(*(x.shape for x in after))):
            break
        nodes.append(node)
        affine = after
        node = around.only_consumer(node.output)
    return _Chain(x, nodes, affine) if nodes else None


def _may_fold(around: Surroundings, chain: _Chain) -> bool:
    maker = around.producer_of(chain.x)
    counted = maker is not None and maker.op in _COUNTING
    counts = any(node.op in _COUNTING for node in around.consumers(chain.result))
    return not counted and not counts and chain.affine.fits(chain.x.dtype)


def _step(node: Node, x: Value) -> _Affine | None:
    """A node as a function of one of its operands, the other being a constant."""
    if node.op not in ("add", "subtract", "multiply", "divide", "negative"):
        return None
    if x.dtype.kind != "float" or node.output.type != x.type:
        return None
    zero, one = np.array(0.0), np.array(1.0)
    if node.op == "negative":
        return _Affine(-one, zero)
    first = node.inputs[0] is x
    other = node.inputs[1 if first else 0].constant
    if other is None or not _by_channel(other.shape):
        return None
    number = other.astype(np.float64)
    if node.op == "add":
        return _Affine(one, number)
    if node.op == "subtract":
        return _Affine(one, -number) if first else _Affine(-one, number)
    if node.op == "multiply":
        return _Affine(number, zero)
    return _Affine(1.0 / number, zero) if first and number.all() else None


def _written(around: Surroundings, chain: _Chain) -> Value | None:
    """What replaces a chain; None if its nodes are not fewer."""
    x, (scale, shift) = chain.x, chain.affine
    scaled, shifted = bool((scale != 1).any()), bool((shift != 0).any())
    product = _product(around, chain) if scaled else None
    if scaled + shifted - (product is not None) >= len(chain.nodes):
        return None
    if product is not None:
        x = product
    elif scaled:
        x = x * constant(scale, x.dtype)
    return x + constant(shift, x.dtype) if shifted else x


def _product(around: Surroundings, chain: _Chain) -> Value | None:
    """The matrix product or convolution that gives x, with the scale folded into its weight; None
    if x or the weight has other readers."""
    product = around.producer(chain.x, "matmul", "convolution")
    if product is None or around.only_consumer(chain.x) is not chain.nodes[0]:
        return None
    a, weight = product.inputs
    scale = chain.affine.scale
    columns = scale.size == 1 or scale.shape[-1] == scale.size
    whole = product.op == "convolution" or weight.rank == 2
    if weight.constant is None or not whole or not columns:
        return None
    if around.only_consumer(weight) is not product:
        # Another copy of the weight would cost more than a multiplication.
        return None
    operands = [
        widened(x, weight.dtype)
        for x in (weight.constant, converted(scale.reshape(-1), weight.dtype))
    ]
    scaled = np.multiply(*operands)
    note_made(scaled, "multiply", operands)
    return apply(product.op, a, constant(scaled, weight.dtype), **product.attributes)
