"""Recognises attention: scores, scale, cap, masks, softmax, values.

A mask is an addend, or selects between scores and a number. A triangular mask becomes a causal
limit if that does not change results. It would change rows that another mask hides whole: their
softmax of equal numbers also counts columns beyond the triangle, unless those are lower still.

Windows of pictures (Liu et al., 2021) have two addends: one for each head, and one for each window
of a picture, which is added where windows are an axis of their own. They become one mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ftuner.core.dim import Dim, Shape, broadcast, least_value
from ftuner.graph.arrays import largest_finite
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.passes.positions import Masks, Seen, triangle_of
from ftuner.graph.passes.shared_heads import apart, reshaped, shared, taken
from ftuner.graph.rewriting import Surroundings, made, rewritten, scalar, scaled

NEVER_SEEN = -1e4
"""Scores this low have no weight beside others; GPT-2 masks with this value."""
MAX_MASKS = 4
"""Most masks between a product and its softmax; kernels have a causal limit and one mask."""


MAX_FACTORS = 3
"""Most factors between a product, a cap and a mask: a scale, and the cap's quotient."""
MAX_VIEWS = 8
"""Most views between a mask and its addition."""


@dataclass(frozen=True)
class _Scores:
    """The operand of a softmax: a scaled product, and which scores are seen."""

    product: Node
    scale: float
    softcap: float = 0.0
    causal: Dim | None = None
    beyond: float = -math.inf
    """The number that replaces scores beyond the causal limit, or is added to them."""
    mask: Value | None = None
    hidden: float = -math.inf
    made: tuple[Node, ...] = ()
    """The nodes that compute the mask."""
    windows: Shape = ()
    """The axes that the mask has in place of the first one of the product: pictures and windows of
    a picture."""


def recognise_attention(graph: Graph) -> Graph:
    """Replace `softmax(cap(q @ k * scale) + mask) @ v` by one node. k is already transposed. Zeros
    may replace what is NaN in the softmax, as PyTorch exports `scaled_dot_product_attention`."""
    found = _Recognition(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "softmax" or node.attributes["log"]:
            continue
        if node.attributes["axis"] != node.output.rank - 1 or node.output.rank < 3:
            continue
        guarded = _without_nan(found.around, node.output)
        weights = guarded or node.output
        last = found.around.only_consumer(weights)
        if last is None or last.op != "matmul" or last.inputs[0] is not weights:
            continue
        scores = found.scores(node.inputs[0], MAX_MASKS)
        nodes = scores and found.attention(scores, last, guarded is not None)
        if nodes:
            places[last] = nodes
            same[last.output] = nodes[-1].output
    return rewritten(graph, places, same)


class _Recognition:
    def __init__(self, graph: Graph) -> None:
        self.around = Surroundings(graph)
        self.masks = Masks(graph)

    def attention(self, scores: _Scores, last: Node, hides_nan: bool) -> list[Node] | None:
        """The nodes that replace the last product."""
        (q, q_scale), (k, k_scale) = (scaled(self.around, x) for x in scores.product.inputs)
        v = last.inputs[1]
        if scores.windows:
            assert scores.mask is not None
            if v.shape[:1] != scores.product.output.shape[:1]:
                return None
            nodes = [
                reshaped(x, (*scores.windows, *x.shape[1:]), f"{x.name}_windows") for x in (q, k, v)
            ]
            operands = [*(node.output for node in nodes), scores.mask]
        else:
            operands, nodes = self._shared(q, k, v, scores.mask)
        q, k, v, *_ = operands
        if not q.rank == k.rank == v.rank:
            return None
        batches = zip(q.shape[:-2], k.shape[:-2], v.shape[:-2], strict=True)
        if not all({x, y} <= {n, 1} for n, x, y in batches):
            return None
        name = f"{last.output.name}_attention"
        type_ = TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))
        node = made("attention", operands, type_, name, scale=scores.scale * q_scale * k_scale,
                    causal=scores.causal, hidden=scores.hidden,
                    hides_nan=hides_nan, softcap=scores.softcap)  # fmt: skip
        nodes = [*scores.made, *nodes, node]
        if type_.shape != last.output.shape:
            nodes.append(reshaped(node.output, last.output.shape, f"{name}_reshaped"))
        return nodes

    def _shared(
        self, q: Value, k: Value, v: Value, mask: Value | None
    ) -> tuple[list[Value], list[Node]]:
        """The operands, and the nodes that compute them. Where k and v are repeated for the heads
        that share them, the operands get an axis for these heads instead."""
        masks = [] if mask is None else [mask]
        keys, values = shared(self.around, k), shared(self.around, v)
        heads = q.shape[-3]
        repeated = keys and values and keys[1:3] == values[1:3] and heads == k.shape[-3]
        whole = all(m.rank < 3 or m.shape[-3] in (1, heads) for m in masks)
        if not keys or not values or not repeated or not whole:
            return [q, k, v, *masks], []
        groups = keys.groups, keys.times
        (k, k_nodes), (v, v_nodes) = taken(keys), taken(values)
        nodes = [apart(x, groups) for x in (q, *masks) if x.rank > 2]
        masks = [nodes[-1].output if m.rank > 2 else m for m in masks]
        return [nodes[0].output, k, v, *masks], [*nodes, *k_nodes, *v_nodes]

    def scores(self, value: Value, most: int) -> _Scores | None:
        """The value as scores under at most `most` masks, if it has no other reader."""
        if self.around.only_consumer(value) is None:
            return None
        for op, rule in (("where", self._chosen), ("add", self._added)):
            node = self.around.producer(value, op)
            if node is not None:
                return rule(node, most - 1) if most else None
        joined = self.around.producer(value, "reshape")
        if joined is not None:
            return self._windowed(joined, most - 1) if most else None
        base, scale = self._factor(value)
        softcap, bent = 0.0, self.around.producer(base, "tanh")
        if bent is not None and self.around.only_consumer(base) is not None:
            # A cap below zero is as one above it with the sign of its factor within.
            softcap, (base, inner) = abs(scale), self._factor(bent.inputs[0])
            scale *= inner
        product = self.around.producer(base, "matmul")
        if product is None or self.around.only_consumer(base) is None:
            return None
        return _Scores(product, scale, softcap)

    def _factor(self, value: Value) -> tuple[Value, float]:
        """As `scaled`, of several factors in a row that no other node reads."""
        total = 1.0
        for _ in range(MAX_FACTORS):
            base, factor = scaled(self.around, value)
            if base is value or self.around.only_consumer(value) is None:
                break
            value, total = base, total * factor
        return value, total

    def _chosen(self, node: Node, most: int) -> _Scores | None:
        """Scores where a mask shows them, and a number elsewhere."""
        mask, first, second = node.inputs
        for shown, value, other in ((True, first, second), (False, second, first)):
            number = self.masks.uniform(other)
            inner = None if number is None else self.scores(value, most)
            if number is None or inner is None or not self._whole(value, node):
                continue
            seen = self.masks.seen(mask, shown)
            limited = seen and self._limited(inner, mask, seen, number, False)
            if limited:
                return limited
            if inner.mask is not None:
                return None
            if inner.causal is not None and max(inner.beyond, number) > -math.inf:
                return None
            if seen is not None and seen.offset is None and len(seen.rest) == 1:
                return replace(inner, mask=seen.rest[0], hidden=number)
            if shown:
                return replace(inner, mask=mask, hidden=number)
            contrary = made("logical_not", [mask], mask.type, f"{mask.name}_shown")
            return replace(inner, mask=contrary.output, hidden=number, made=(contrary,))
        return None

    def _added(self, node: Node, most: int) -> _Scores | None:
        """Scores plus an addend."""
        for value, mask in (node.inputs, node.inputs[::-1]):
            inner = self.scores(value, most)
            if inner is None or not self._whole(value, node):
                continue
            hiding = self._hiding(mask)
            limited = hiding and self._limited(inner, mask, *hiding, True)
            if limited:
                return limited
            if inner.mask is not None or inner.beyond > _lowest(mask):
                return None
            wide = mask.rank > 0 and self.around.alike(mask.shape[-1:], value.shape[-1:])
            return replace(inner, mask=mask) if wide else None
        return None

    def _windowed(self, joined: Node, most: int) -> _Scores | None:
        """Scores plus an addend for each window: the first axis is split for it, and joined."""
        around, whole = self.around, joined.output.shape
        node = around.producer(joined.inputs[0], "add")
        if node is None or around.only_consumer(node.output) is None:
            return None
        for value, mask in (node.inputs, node.inputs[::-1]):
            split = around.producer(value, "reshape")
            inner = None if split is None else self.scores(split.inputs[0], most)
            if split is None or inner is None or around.only_consumer(value) is None:
                continue
            product = inner.product
            given = split.inputs[0].shape
            same = product.output.shape == given == whole == (whole[0], *value.shape[2:])
            apart = all(x.shape[0] == whole[0] for x in product.inputs)
            wide = mask.rank > 0 and around.alike(mask.shape[-1:], whole[-1:])
            if not (same and apart and wide and self._whole(value, node)):
                continue
            found = self._both(inner, mask)
            return found and replace(found, windows=value.shape[:2])
        return None

    def _both(self, inner: _Scores, mask: Value) -> _Scores | None:
        """Scores plus an addend that has axes of windows in place of the first axis."""
        first = inner.mask
        if inner.causal is not None or inner.windows:
            return None
        if first is None:
            return replace(inner, mask=mask)
        for_each = first.rank == inner.product.output.rank and first.shape[0] != 1
        if first.dtype != mask.dtype or for_each:
            return None
        rank = max(first.rank, mask.rank)
        shapes = ((1,) * (rank - m.rank) + m.shape for m in (first, mask))
        type_ = TensorType(mask.dtype, tuple(map(broadcast, *shapes)))
        total = made("add", [first, mask], type_, f"{mask.name}_both")
        return replace(inner, mask=total.output, made=(*inner.made, total))

    def _whole(self, value: Value, node: Node) -> bool:
        """Whether a node leaves the shape of the scores unchanged."""
        return self.around.alike(value.shape, node.output.shape)

    def _hiding(self, addend: Value) -> tuple[Seen, float] | None:
        """The scores that an addend leaves unchanged, and the number it adds to all others."""
        if addend.constant is not None and addend.rank > 1:
            array = addend.constant
            offset = triangle_of(array == 0)
            beyond = float(array[array != 0].max(initial=-math.inf))
            return None if offset is None else (Seen(offset), beyond)
        place, axes = addend, addend.shape[-2:]
        for _ in range(MAX_VIEWS):
            view = self._view(place)
            if view is None or view.inputs[0].shape[-2:] != axes:
                break
            place = view.inputs[0]
        choice = self.masks.choice(place)
        if choice is None or 0 not in (choice.first, choice.second):
            return None
        shown = choice.first == 0
        seen = self.masks.seen(choice.mask, shown)
        # What else a view hides has other axes.
        if seen is None or (seen.rest and place is not addend):
            return None
        return seen, choice.second if shown else choice.first

    def _view(self, value: Value) -> Node | None:
        around = self.around
        return around.producer(value, "reshape") or around.producer(value, "broadcast")

    def _limited(
        self, inner: _Scores, mask: Value, seen: Seen, number: float, added: bool
    ) -> _Scores | None:
        """Scores with a triangular mask as their causal limit; `number` replaces scores beyond
        it."""
        first = None if seen.offset is None else least_value(seen.offset)
        if first is None or first < 0 or inner.causal is not None or not number <= NEVER_SEEN:
            return None
        if not self.around.alike(mask.shape[-2:], inner.product.output.shape[-2:]):
            return None
        if seen.rest and inner.mask is not None:
            return None
        if seen.rest or inner.mask is not None:
            # A row may be hidden whole.
            lowest = _lowest(inner.product.output) if added and not seen.rest else -math.inf
            if number > lowest:
                return None
        found = replace(inner, causal=seen.offset, beyond=number)
        return replace(found, mask=seen.rest[0]) if seen.rest else found


def _without_nan(around: Surroundings, weights: Value) -> Value | None:
    """Weights with zeros where they are NaN; None if other nodes read the weights."""
    readers = around.consumers(weights)
    if len(readers) != 2 or around.read(weights) != 2:
        return None
    for test, choice in (readers, readers[::-1]):
        if test.op != "isnan" or choice.op != "where" or choice.output.type != weights.type:
            continue
        condition, zero, value = choice.inputs
        alone = around.only_consumer(test.output) is choice
        if alone and condition is test.output and scalar(zero) == 0 and value is weights:
            return choice.output
    return None


def _lowest(value: Value) -> float:
    return -largest_finite(value.dtype)
