"""Recognises attention: scores, softmax, values. `scores` reads what is before the softmax."""

from __future__ import annotations

import math
from typing import NamedTuple

from ftuner.core.attention_softmax import AttentionSoftmax, optional_operands
from ftuner.core.dim import Dim, Shape
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Graph, Node, Value, writing_to
from ftuner.graph.passes.biases import NEVER_SEEN
from ftuner.graph.passes.merged_axes import together
from ftuner.graph.passes.scores import Scores, ScoresReader
from ftuner.graph.rewrite.rule import Rewriting
from ftuner.graph.rewrite.surroundings import Surroundings, scalar, scaled


def recognise_attention(graph: Graph) -> Graph:
    """Replace `softmax(cap(q @ k * scale) + mask) @ v` by one node. k is already transposed. Zeros
    may replace what is NaN in the softmax, as PyTorch exports `scaled_dot_product_attention`, or
    the weights of hidden scores, as in DeBERTa. A column of the scores may have no key: its weights
    are cut off. An attention that is one node already gets shared heads and a causal limit."""
    found, new = _Recognition(graph), Rewriting(graph)
    with writing_to(new):
        for node in graph.nodes:
            if node.op == "attention":
                new.name = node.output.name
                new.same.update(found.rewritten(node))
                continue
            if node.op != "softmax" or node.attributes["log"]:
                continue
            new.name = node.output.name
            if node.attributes["axis"] == node.output.rank - 1 >= 2:
                new.same.update(found.attention(node))
    return new.rewritten()


class _Recognition:
    def __init__(self, graph: Graph) -> None:
        self.around = Surroundings(graph)
        self.reader = ScoresReader(graph)

    def attention(self, softmax: Node) -> dict[Value, Value]:
        """The product of weights and values, and what replaces it; nothing if it is no
        attention."""
        guarded = _without_nan(self.around, softmax.output)
        zeroed = self._zeroed(softmax)
        value, weights = softmax.inputs[0], guarded or zeroed or softmax.output
        sinks = self._sinks(value)
        if sinks is not None:
            value, cut = sinks[0], self.around.only_consumer(weights)
            if cut is None or not _is_begin(cut, value.shape):
                return {}
            weights = cut.output
        last = self._product(weights)
        if last is None:
            return {}
        scores = self.reader.read(value, zeroed is not None)
        scores = scores and self.reader.with_axes(scores, last.output.shape[:-2])
        if scores is None:
            return {}
        scores = self.reader.with_columns(scores)
        sink = None
        if sinks is not None:
            sink = self._viewed(sinks[1], value.shape[:-2], scores.batch)
            if sink is None:
                return {}
        found = self._written(scores, last, guarded is not None, sink, zeroed is not None)
        return {} if found is None else {last.output: found}

    def rewritten(self, node: Node) -> dict[Value, Value]:
        """An attention, and what replaces it: k and v are not repeated for the heads that share
        them, and a triangular mask is a causal limit. Nothing if neither is found."""
        attributes = node.attributes
        q, k, v = operands = [*node.inputs[:3]]
        masks, sinks = optional_operands(node.inputs, attributes.get("sinks", False))
        if masks:
            limit = self.reader.causal_limit(masks[0], (q.shape[-2], k.shape[-1]))
            softmax = AttentionSoftmax(**attributes)
            if limit is not None and softmax.causal is None and softmax.hidden == -math.inf:
                attributes, masks = {**attributes, "causal": limit}, []
        optional = [*masks, *sinks]
        q, k, v, *others = self._shared(operands, optional)
        if k is node.inputs[1] and len(node.inputs) == 3 + len(optional):
            return {}
        found = apply("attention", q, k, v, *others, **attributes)
        return {node.output: found.reshape(node.output.shape)}

    def _zeroed(self, softmax: Node) -> Value | None:
        """Weights with zeros for the scores that a choice replaces by a low number."""
        hiding = self.around.producer(softmax.inputs[0], "where")
        zeroing = self.around.only_consumer(softmax.output)
        if hiding is None or zeroing is None or zeroing.op != "where":
            return None
        if zeroing.inputs[0] is not hiding.inputs[0] or zeroing.output.type != softmax.output.type:
            return None
        for hidden, seen in ((1, 2), (2, 1)):
            low, zero = scalar(hiding.inputs[hidden]), scalar(zeroing.inputs[hidden])
            if zeroing.inputs[seen] is softmax.output and zero == 0:
                return zeroing.output if low is not None and low <= NEVER_SEEN else None
        return None

    def _sinks(self, value: Value) -> tuple[Value, Value] | None:
        """The scores, and the column without a key that is concatenated to them."""
        joined = self.around.producer(value, "concat")
        if joined is None or len(joined.inputs) != 2:
            return None
        scores, column = joined.inputs
        if joined.attributes["axis"] != value.rank - 1 or column.shape[-1] != 1:
            return None
        spread = self.around.producer(column, "broadcast")
        # All elements of the column, or one for each that they are repeated from.
        if spread is not None and spread.inputs[0].shape[-1:] == (1,):
            column = spread.inputs[0]
        return scores, column

    def _product(self, weights: Value) -> Node | None:
        """The product with values that alone reads the weights, in any batch axes."""
        last = self.around.only_consumer(weights)
        if last is not None and last.op == "reshape":
            if last.output.rank < 3 or last.output.shape[-2:] != weights.shape[-2:]:
                return None
            weights, last = last.output, self.around.only_consumer(last.output)
        return last if last and last.op == "matmul" and last.inputs[0] is weights else None

    def _written(
        self, scores: Scores, last: Node, hides_nan: bool, sink: Value | None, hides_all: bool
    ) -> Value | None:
        """What replaces the last product. `hides_all`: rows without a seen score are zeros."""
        (q, q_scale), (k, k_scale) = (scaled(self.around, x) for x in scores.product.inputs)
        before, after = (node.output.shape[:-2] for node in (scores.product, last))
        if scores.factor is not None:
            if together(q.shape, scores.factor.shape) != q.shape:
                return None
            q = q * scores.factor
        given = ((q, before), (k, before), (last.inputs[1], after))
        views = [self._viewed(x, batch, scores.batch) for x, batch in given]
        operands = [view for view in views if view is not None]
        if len(operands) < len(views):
            return None
        optional = [value for value in (scores.mask, sink) if value is not None]
        q, k, v, *optional = self._shared(operands, optional)
        if not q.rank == k.rank == v.rank:
            return None
        batches = zip(q.shape[:-2], k.shape[:-2], v.shape[:-2], strict=True)
        if not all({x, y} <= {n, 1} for n, x, y in batches):
            return None
        return apply(
            "attention", q, k, v, *optional, scale=scores.scale * q_scale * k_scale,
            causal=scores.causal, hidden=scores.hidden, safe=hides_all, hides_nan=hides_nan,
            softcap=scores.softcap, sinks=sink is not None,
        ).reshape(last.output.shape)  # fmt: skip

    def _viewed(self, value: Value, batch: Shape, finer: Shape) -> Value | None:
        """An operand with batch axes that are split."""
        view = self.reader.viewed(value, batch, finer)
        if view is None or view is value:
            return view
        merged = self.around.producer(value, "reshape")
        if merged is not None and merged.inputs[0].shape == view.shape:
            return merged.inputs[0]
        turned = self.around.swapped(value)
        if turned is None:
            return view
        # Keys are transposed after their axes are split, which then is none or no copy.
        found = self._viewed(turned, batch, finer)
        return None if found is None else found.swapped()

    def _shared(self, operands: list[Value], optional: list[Value]) -> list[Value]:
        """The operands. Where k and v are repeated for the heads that share them, the operands get
        an axis for these heads instead."""
        q, k, v = operands
        keys, values = shared(self.around, k), shared(self.around, v)
        every = [*operands, *optional]
        if not keys or not values or keys[1:3] != values[1:3] or q.rank < 3:
            return every
        heads = q.shape[-3]
        whole = all(x.rank < 3 or x.shape[-3] in (1, heads) for x in optional)
        if heads != k.shape[-3] or not whole:
            return every
        q, *optional = (apart(x, keys.groups, keys.times) for x in (q, *optional))
        return [q, keys.value(), values.value(), *optional]


def _is_begin(node: Node, shape: Shape) -> bool:
    """Whether a node gives the first elements of its operand along each axis, in a shape."""
    if node.op != "slice" or node.output.shape != shape:
        return False
    return not any(node.attributes["starts"]) and set(node.attributes["steps"]) == {1}


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


class Shared(NamedTuple):
    """A tensor (batch, groups * times, ., .) that repeats one of (batch, groups, 1, ., .)."""

    source: Value
    groups: Dim
    times: Dim
    swapped: bool
    """Whether the last two axes must be exchanged."""

    def value(self) -> Value:
        return self.source.swapped() if self.swapped else self.source


def shared(around: Surroundings, value: Value) -> Shared | None:
    """The tensor that `value` repeats along an axis of extent 1, merged with the axis before."""
    turned = around.swapped(value)
    value = value if turned is None else turned
    merged = around.producer(value, "reshape")
    repeated = None if merged is None else merged.inputs[0]
    wide = repeated and around.producer(repeated, "broadcast", "tile")
    if not wide or wide.output.rank != 5 or value.rank != 4:
        return None
    source = wide.inputs[0]
    batch, groups, times, *matrix = wide.output.shape
    if value.shape != (batch, groups * times, *matrix):
        return None
    if source.shape != (batch, groups, 1, *matrix):
        return None
    return Shared(source, groups, times, turned is not None)


def apart(value: Value, groups: Dim, times: Dim) -> Value:
    """The value with the axis of heads split into groups and heads of a group; an axis of extent 1
    becomes two."""
    if value.rank <= 2:
        return value
    *batch, heads, rows, columns = value.shape
    return value.reshape((*batch, *((1, 1) if heads == 1 else (groups, times)), rows, columns))
