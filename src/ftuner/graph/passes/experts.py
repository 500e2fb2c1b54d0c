"""Recognises products by weights that an index chooses for each row: a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.rewrite.matching import alone
from ftuner.graph.rewrite.rule import Rewriting, rule
from ftuner.graph.rewrite.surroundings import Surroundings


@dataclass(frozen=True)
class _Chosen:
    """Elements of a constant along its first axis, chosen by data."""

    table: Value
    index: Value
    """The index without reshapes: two of equal elements are one value."""
    shape: Shape
    """Of the index."""
    node: str
    """The node of the model."""
    swapped: bool = False
    """Whether the last two axes are exchanged after the choice."""


@dataclass(frozen=True)
class _Experts:
    """A product by chosen weights."""

    x: Value
    weight: _Chosen
    transposed: bool
    tokens: Dim
    slots: Dim

    @property
    def columns(self) -> Dim:
        return self.weight.table.shape[1 if self.transposed else 2]


def recognise_experts(graph: Graph) -> Graph:
    """Have products by chosen weights read these in place, grouped by the choice, with a chosen
    bias. Models gather a copy of the weight for each row, and multiply the copies as a batch."""
    around, new = Surroundings(graph), Rewriting(graph)
    with writing_to(new):
        for node in graph.nodes:
            if node.op != "matmul" or node.output.dtype.kind != "float":
                continue
            found = _experts(around, node) or _experts_as_columns(around, node)
            if found is not None:
                last, bias = _biased(around, node, found)
                new.name = last.output.name
                rows = _written(found, bias)
                new.same[last.output] = apply("reshape", rows, shape=last.output.shape)
    return scores_first(new.rewritten())


def _written(found: _Experts, bias: Value | None) -> Value:
    weight = found.weight
    k = weight.table.shape[2 if found.transposed else 1]
    x = apply("reshape", found.x, shape=(found.tokens, k))
    index = apply("reshape", weight.index, shape=(found.tokens, found.slots))
    operands = (x, weight.table, index, *(() if bias is None else (bias,)))
    return apply("expert_matmul", *operands, transposed=found.transposed, node=weight.node)


def _experts(around: Surroundings, node: Node) -> _Experts | None:
    """The product of a node, if it is one of single rows or columns by chosen weights."""
    for side in (1, 0):
        x, given = node.inputs[1 - side], node.inputs[side]
        weight = _chosen(around, given)
        vector = x.shape[-2] if side else x.shape[-1]
        if weight is None or weight.table.rank != 3 or 0 in weight.table.shape or vector != 1:
            continue
        if node.output.shape[:-2] != weight.shape:
            continue
        # A column that is multiplied from the left is a row times the transposed weight.
        transposed = (side == 0) != weight.swapped
        spread = _spread(around, x, weight.shape)
        if spread is not None:
            return _Experts(spread[0], weight, transposed, *spread[1:])
    return None


def _experts_as_columns(around: Surroundings, node: Node) -> _Experts | None:
    """The product of a node, if it is one of each token by the columns of all weights chosen for
    it, side by side: what an Einsum becomes whose result has an axis of them."""
    for side in (1, 0):
        x, wide = node.inputs[1 - side], node.inputs[side]
        merged = around.producer(wide, "reshape")
        vector = x.shape[-2] if side else x.shape[-1]
        if merged is None or x.rank != 3 or wide.rank != 3 or vector != 1:
            continue
        apart = merged.inputs[0]
        turned = around.producer(apart, "transpose")
        weight = _chosen(around, apart if turned is None else turned.inputs[0])
        if weight is None or weight.swapped or len(weight.shape) != 2 or weight.table.rank != 3:
            continue
        perm = (0, 1, 2, 3) if turned is None else turned.attributes["perm"]
        if perm not in _COLUMNS[side]:
            continue
        (tokens, slots), transposed = weight.shape, _COLUMNS[side][perm]
        found = _Experts(x, weight, transposed, tokens, slots)
        k, columns = x.shape[2 if side else 1], slots * found.columns
        expected = (tokens, k, columns) if side else (tokens, columns, k)
        if wide.shape == expected and x.shape[0] == tokens and 0 not in weight.table.shape:
            return found
    return None


_COLUMNS: tuple[Mapping[tuple[int, ...], bool], ...] = (
    {(0, 1, 2, 3): True, (0, 1, 3, 2): False},
    {(0, 3, 1, 2): True, (0, 2, 1, 3): False},
)
"""For weights on the left and on the right of a product: the permutations of (tokens, slots, ., .)
after which those of a token are merged, and whether (experts, n, k) is the order of the weight."""


def _chosen(around: Surroundings, value: Value) -> _Chosen | None:
    """What a value chooses, if it is elements of a constant by an index of data."""
    turned = around.swapped(value)
    if turned is not None:
        found = _chosen(around, turned)
        if found is None or found.table.rank != 3:
            return None
        return _Chosen(found.table, found.index, found.shape, found.node, not found.swapped)
    whole = _plain(around, value)
    node = around.producer(whole, "gather", "gather_nd")
    if node is None:
        return None
    table, index = node.inputs
    if table.constant is None or index.constant is not None:
        return None
    shape = index.shape
    if node.op == "gather":
        if node.attributes["axis"] != 0:
            return None
    elif node.attributes["batch_dims"] != 0 or shape[-1] != 1:
        return None
    else:
        shape = shape[:-1]
    if whole is not value:
        # A reshape may split or merge axes of the index alone, or add some of extent 1.
        inner = table.shape[1:]
        if value.rank <= len(inner) or value.shape[value.rank - len(inner) :] != inner:
            return None
        shape = value.shape[: value.rank - len(inner)]
    return _Chosen(table, _plain(around, index), shape, node.attributes.get("node", ""))


def _plain(around: Surroundings, value: Value) -> Value:
    """What a value is a reshape of."""
    while (node := around.producer(value, "reshape")) is not None:
        value = node.inputs[0]
    return value


def _spread(around: Surroundings, x: Value, shape: Shape) -> tuple[Value, Dim, Dim] | None:
    """(rows, tokens, slots) such that the vectors of `x`, for an index of a shape, are each of
    `tokens` rows `slots` times. None if `x` is broadcast in another way."""
    rows = product(shape)
    ahead = len(shape) + 2 - x.rank
    if ahead < 0:
        return None
    own = ((1,) * ahead + x.shape)[: len(shape)]
    kept = len(shape)
    while kept and own[kept - 1] == 1 != shape[kept - 1]:
        kept -= 1
    if own[:kept] != shape[:kept]:
        return None
    if kept < len(shape):
        return x, product(shape[:kept]), product(shape[kept:])
    # Rows that were repeated before the product.
    wide = around.producer(_plain(around, x), "broadcast")
    if wide is not None:
        source, extents = wide.inputs[0], wide.output.shape
        *outer, times, k = extents
        given = source.shape[-len(extents) :]
        repeats = given[:-2] == tuple(outer) and given[-2:] == (1, k)
        if repeats and product(x.shape[-2:]) == k and product(outer) * times == rows:
            return source, product(outer), times
    return x, rows, 1


def _biased(around: Surroundings, node: Node, found: _Experts) -> tuple[Node, Value | None]:
    """The last node of a product and its chosen bias, if one is added."""
    value = node.output
    while (after := around.only_consumer(value)) is not None:
        if after.op == "reshape" and after.output.rank and after.output.shape[-1] == found.columns:
            value = after.output
            continue
        others = [other for other in after.inputs if other is not value]
        bias = _chosen(around, others[0]) if after.op == "add" and len(others) == 1 else None
        if bias is None or bias.index is not found.weight.index or bias.table.rank != 2:
            break
        if bias.swapped or not others[0].shape == value.shape == after.output.shape:
            break
        return after, bias.table
    return node, None


@rule(lambda x, scores: apply("reshape", alone(x * scores)))
def scores_first(x: Value, scores: Value, node: Node, around: Surroundings) -> Value | None:
    """Split the rows of expert products by tokens before they are weighted, not after: products,
    weights and the sum of a token are then one nest."""
    if not x.rank or not node.output.rank:
        return None
    (*rows, n), (*split, last) = x.shape, node.output.shape
    by_experts = around.producer(_plain(around, x), "expert_matmul") is not None
    if not by_experts or last != n or node.inputs[0].type != x.type or scores.shape != (*rows, 1):
        return None
    return apply("reshape", x, shape=(*split, n)) * apply("reshape", scores, shape=(*split, 1))
