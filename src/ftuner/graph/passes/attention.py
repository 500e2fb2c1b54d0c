"""Recognising attention: scores, scale, masks, softmax, values.

Masks are addends, or choose between scores and a number. A triangle among them becomes a causal
limit where that changes nothing. It would for rows that another mask hides whole: the softmax of
equal numbers counts columns behind the triangle too, unless these are lower still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ftuner.core.dim import Dim, least_value
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.passes.groups import apart, reshaped, shared, taken
from ftuner.graph.passes.positions import Seen, seen_by, triangle_of, uniform
from ftuner.graph.rewriting import Surroundings, made, rewritten, scaled

NEVER_SEEN = -1e4
"""Scores so low have no weight beside any other: what the first GPT-2 hides them with."""


@dataclass(frozen=True)
class _Scores:
    """What a softmax is of: a product, scaled, and what is to be seen of it."""

    product: Node
    scale: float
    causal: Dim | None = None
    behind: float = -math.inf
    """What stands for scores behind the causal limit, or is added to them."""
    mask: Value | None = None
    hidden: float = -math.inf
    made: tuple[Node, ...] = ()
    """Nodes that make the mask."""


def recognise_attention(graph: Graph) -> Graph:
    """`softmax(q @ k * scale + mask) @ v` becomes one node; k is transposed already."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "softmax" or node.attributes["log"]:
            continue
        if node.attributes["axis"] != node.output.rank - 1 or node.output.rank < 3:
            continue
        last = around.only_consumer(node.output)
        if last is None or last.op != "matmul" or last.inputs[0] is not node.output:
            continue
        value = node.inputs[0]
        scores = _scores(around, value) if around.only_consumer(value) is node else None
        nodes = scores and _attention(around, scores, last)
        if nodes:
            places[last] = nodes
            same[last.output] = nodes[-1].output
    return rewritten(graph, places, same)


def _attention(around: Surroundings, scores: _Scores, last: Node) -> list[Node] | None:
    """The nodes that take the place of the last product."""
    q, k = scores.product.inputs
    v, mask = last.inputs[1], scores.mask
    q, q_scale = scaled(around, q)
    k, k_scale = scaled(around, k)
    nodes = list(scores.made)
    keys, values = shared(around, k), shared(around, v)
    heads = q.shape[-3]
    if keys and values and keys[1:3] == values[1:3] and heads == k.shape[-3]:
        groups = keys.groups, keys.times
        whole = mask is None or mask.rank < 3 or mask.shape[-3] in (1, heads)
        if not whole:
            return None
        rows = apart(q, groups)
        (k, k_nodes), (v, v_nodes) = taken(keys), taken(values)
        nodes += [rows, *k_nodes, *v_nodes]
        q = rows.output
        if mask is not None and mask.rank > 2:
            nodes.append(apart(mask, groups))
            mask = nodes[-1].output
    if not q.rank == k.rank == v.rank:
        return None
    batches = zip(q.shape[:-2], k.shape[:-2], v.shape[:-2], strict=True)
    if not all({x, y} <= {n, 1} for n, x, y in batches):
        return None
    name = f"{last.output.name}_attention"
    type_ = TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    nodes.append(
        made("attention", inputs, type_, name, scale=scores.scale * q_scale * k_scale,
             causal=scores.causal, hidden=scores.hidden)
    )  # fmt: skip
    if type_.shape != last.output.shape:
        nodes.append(reshaped(nodes[-1].output, last.output.shape, f"{name}_reshaped"))
    return nodes


def _scores(around: Surroundings, value: Value) -> _Scores | None:
    """What a value is as scores, if nobody else reads them."""
    if around.only_consumer(value) is None:
        return None
    for op, rule in (("where", _chosen), ("add", _added)):
        node = around.producer(value, op)
        if node is not None:
            return rule(around, node)
    base, scale = scaled(around, value)
    product = around.producer(base, "matmul")
    if product is None or around.only_consumer(base) is None:
        return None
    return _Scores(product, scale)


def _chosen(around: Surroundings, node: Node) -> _Scores | None:
    """Scores where a mask shows them, elsewhere a number."""
    mask, first, second = node.inputs
    for shown, value, other in ((True, first, second), (False, second, first)):
        number = uniform(around, other)
        inner = None if number is None else _scores(around, value)
        if number is None or inner is None or not around.alike(value.shape, node.output.shape):
            continue
        seen = seen_by(around, mask, shown)
        limited = seen and _limited(around, inner, mask, seen, number, False)
        if limited:
            return limited
        if inner.mask is not None:
            return None
        if inner.causal is not None and max(inner.behind, number) > -math.inf:
            return None
        if shown:
            return replace(inner, mask=mask, hidden=number)
        contrary = made("logical_not", [mask], mask.type, f"{mask.name}_shown")
        return replace(inner, mask=contrary.output, hidden=number, made=(contrary,))
    return None


def _added(around: Surroundings, node: Node) -> _Scores | None:
    """Scores and an addend."""
    for value, mask in (node.inputs, node.inputs[::-1]):
        inner = _scores(around, value)
        if inner is None or not around.alike(value.shape, node.output.shape):
            continue
        hiding = _hiding(around, mask)
        limited = hiding and _limited(around, inner, mask, *hiding, True)
        if limited:
            return limited
        if inner.mask is not None or inner.behind > _lowest(mask):
            return None
        wide = mask.rank > 0 and around.alike(mask.shape[-1:], value.shape[-1:])
        return replace(inner, mask=mask) if wide else None
    return None


def _hiding(around: Surroundings, addend: Value) -> tuple[Seen, float] | None:
    """What an addend leaves as it is, and what it adds to all else."""
    if addend.constant is not None and addend.rank > 1:
        array = addend.constant
        offset = triangle_of(array == 0)
        behind = array[array != 0]
        return (Seen(offset), float(behind.max(initial=-math.inf))) if offset is not None else None
    for op in ("reshape", "broadcast"):
        view = around.producer(addend, op)
        if view is not None and addend.shape[-2:] == view.inputs[0].shape[-2:]:
            found = _hiding(around, view.inputs[0])
            # What else it hides has other axes.
            return None if found is None or found[0].rest else found
    where = around.producer(addend, "where")
    if where is None or where.inputs[0].shape[-2:] != addend.shape[-2:]:
        return None
    mask = where.inputs[0]
    first, second = (uniform(around, v) for v in where.inputs[1:])
    for shown, number, other in ((True, first, second), (False, second, first)):
        seen = seen_by(around, mask, shown) if number == 0 else None
        if seen is not None and other is not None:
            return seen, other
    return None


def _limited(
    around: Surroundings, inner: _Scores, mask: Value, seen: Seen, number: float, added: bool
) -> _Scores | None:
    """Scores with the triangle of a mask as their limit. `number`: what hides behind it."""
    first = None if seen.offset is None else least_value(seen.offset)
    if first is None or first < 0 or inner.causal is not None or not number <= NEVER_SEEN:
        return None
    if not around.alike(mask.shape[-2:], inner.product.output.shape[-2:]):
        return None
    if len(seen.rest) + (inner.mask is not None) > 1:
        return None
    if seen.rest or inner.mask is not None:
        enough = _lowest(inner.product.output) if added and not seen.rest else -math.inf
        if number > enough:
            return None
    found = replace(inner, causal=seen.offset, behind=number)
    return replace(found, mask=seen.rest[0]) if seen.rest else found


def _lowest(value: Value) -> float:
    return float(np.finfo(value.dtype.name).min)
