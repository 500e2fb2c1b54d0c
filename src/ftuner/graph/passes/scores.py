"""Reads the operand of a softmax as scores of attention: a scaled product, a cap, and masks.

A mask is an addend, or selects between scores and a number. A triangular mask becomes a causal
limit if that does not change results. It would change rows that another mask hides whole: their
softmax of equal numbers also counts columns beyond the triangle, unless those are lower still.

The other masks become one, which is computed once for all layers that share its operands: a bias of
positions (ALiBi, Press et al., 2022; T5, Raffel et al., 2020; DeBERTa, He et al., 2021) and the
mask of what is padded. Batch axes may be merged and split between the product and its softmax, as
windows of pictures are (Liu et al., 2021): the masks have the finest of these axes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ftuner.core.dim import Dim, Shape, least_value
from ftuner.core.dtype import BOOL
from ftuner.core.frozen import dataclass
from ftuner.graph.algebra import where
from ftuner.graph.arrays import largest_finite
from ftuner.graph.ir import Graph, Node, Operand, Value
from ftuner.graph.passes.biases import NEVER_SEEN, OUTWEIGHING, is_of_scores, leaves_or_replaces
from ftuner.graph.passes.merged_axes import parts_of, view_shape
from ftuner.graph.passes.positions import Masks, Seen, triangle_of
from ftuner.graph.rewrite.surroundings import Surroundings, scaled

ABSORBING = -1e30
"""Sums of a number this low and a score are the number, up to scores of 1e22 in float32."""
MAX_CHANGES = 6
"""Most masks and views between a product and its softmax."""
MAX_FACTORS = 3
"""Most factors between a product, a cap and a mask: a scale, and the cap's quotient."""
MAX_VIEWS = 8
"""Most views between a mask and its addition."""


@dataclass(frozen=True)
class Scores:
    """The operand of a softmax: a scaled product, and which scores are seen."""

    product: Node
    batch: Shape
    """The axes before rows and columns: those of the product, or finer ones."""
    scale: float
    softcap: float = 0.0
    causal: Dim | None = None
    beyond: float = -math.inf
    """The number that replaces scores beyond the causal limit, or is added to them."""
    mask: Value | None = None
    hidden: float = -math.inf
    hides: bool = False
    """Whether something else than scores was added, or replaced scores: it may hide some."""
    lowered: bool = False
    """Whether the mask has lower numbers than the graph, which only a softmax makes equal."""
    factor: Value | None = None
    """A factor of the product's rows and columns for each matrix, such as one for each head."""


class ScoresReader:
    """Reads values of one graph as scores, and writes what masks become."""

    def __init__(self, graph: Graph) -> None:
        self._around = Surroundings(graph)
        self._masks = Masks(graph)
        self._limits = True
        """Whether triangles become causal limits."""
        self._without_weight: Node | None = None
        """The choice whose hidden scores have no weight, whatever their number."""

    def read(self, value: Value, no_weight: bool = False) -> Scores | None:
        """The value as scores, if it has no other reader. A triangle is a causal limit, or a mask
        like others if that is exact and a limit is not. `no_weight`: the value is a choice, and
        what it hides has no weight even where it hides a whole row. Other masks may leave it the
        largest scores of a row, which are no scores of attention then."""
        self._without_weight = self._around.producer(value, "where") if no_weight else None
        self._limits = True
        found = self._read(value, MAX_CHANGES)
        if found is None:
            self._limits = False
            found = self._read(value, MAX_CHANGES)
        return found

    def _read(self, value: Value, most: int) -> Scores | None:
        """The value as scores after at most `most` changes."""
        if self._around.only_consumer(value) is None:
            return None
        rules = (("where", self._chosen), ("add", self._added), ("reshape", self._reshaped))
        for op, rule in rules:
            node = self._around.producer(value, op)
            if node is not None:
                return rule(node, most - 1) if most else None
        base, scale = self._factor(value)
        if base is not value and self._around.producer(base, "add") is not None:
            biased = self._changeable(base, most - 1) if most else None
            return biased and self._scaled(biased, scale)
        softcap, bent = 0.0, self._around.producer(base, "tanh")
        if bent is not None and self._around.only_consumer(base) is not None:
            # A cap below zero is as one above it with the sign of its factor within.
            softcap, (base, inner) = abs(scale), self._factor(bent.inputs[0])
            scale *= inner
        found = self._around.producer(base, "matmul")
        factor = None
        if found is None and (parts := self._by_matrix(base)) is not None:
            (base, inner), factor = self._factor(parts[0]), parts[1]
            scale *= inner
            found = self._around.producer(base, "matmul")
        if found is None or self._around.only_consumer(base) is None:
            return None
        return Scores(found, base.shape[:-2], scale, softcap, factor=factor)

    def _changeable(self, value: Value, most: int) -> Scores | None:
        """The value as scores that a node may change: what it does to a number that the graph has
        is not what it does to a lower one."""
        found = self._read(value, most)
        return None if found is None or found.lowered else found

    def with_axes(self, found: Scores, batch: Shape) -> Scores | None:
        """The scores with batch axes that are at least as fine as `batch`."""
        if parts_of(batch, found.batch) is not None:
            return found
        if found.mask is None:
            fits = parts_of(found.batch, batch) is not None
            return replace(found, batch=batch) if fits else None
        mask = self.viewed(found.mask, found.batch, batch)
        return None if mask is None else replace(found, batch=batch, mask=mask)

    def with_columns(self, found: Scores) -> Scores:
        """The scores with a mask that has the product's number of columns, if it is constrained to
        be that: a mask that may be repeated along columns is copied."""
        mask, columns = found.mask, found.product.output.shape[-1]
        if mask is None or mask.rank == 0 or mask.shape[-1] in (1, columns):
            return found
        if not self._around.alike(mask.shape[-1:], (columns,)):
            return found
        return replace(found, mask=mask.reshape((*mask.shape[:-1], columns)))

    def viewed(self, value: Value, batch: Shape, finer: Shape) -> Value | None:
        """An operand of scores with batch axes `batch` on the axes `finer`; None if there is no
        such view."""
        shape = value.shape if batch == finer else view_shape(value.shape, batch, finer)
        return None if shape is None else value.reshape(shape)

    def _factor(self, value: Value) -> tuple[Value, float]:
        """Like `scaled`, for several factors in a row that no other node reads."""
        total = 1.0
        for _ in range(MAX_FACTORS):
            base, factor = scaled(self._around, value)
            if base is value or self._around.only_consumer(value) is None:
                break
            value, total = base, total * factor
        return value, total

    def _by_matrix(self, value: Value) -> tuple[Value, Value] | None:
        """(scores, factor) if a value is scores times a factor for each of their matrices, as Swin
        V2 has one for each head, or times or over a number that is known at run time, such as the
        root of a depth."""
        node = self._around.producer_of(value)
        if node is None or self._around.only_consumer(value) is None:
            return None
        if node.op == "divide" and node.inputs[0].type == value.type and not node.inputs[1].rank:
            return node.inputs[0], 1 / node.inputs[1]
        for scores, factor in (node.inputs, node.inputs[::-1]) if node.op == "multiply" else ():
            ones = not factor.rank or (factor.rank > 2 and factor.shape[-2:] == (1, 1))
            if scores.type == value.type and ones:
                return scores, factor
        return None

    def _reshaped(self, node: Node, most: int) -> Scores | None:
        """Scores whose batch axes are merged or split."""
        x, y = node.inputs[0], node.output
        if x.shape[-2:] != y.shape[-2:] or y.rank < 3:
            return None
        inner = self._read(x, most)
        return inner and self.with_axes(inner, y.shape[:-2])

    def _scaled(self, inner: Scores, factor: float) -> Scores | None:
        """A multiple of a sum, as ALiBi is in Falcon."""
        first = inner.mask
        if first is None or first.dtype == BOOL or inner.causal is not None or inner.softcap:
            return None
        hides = inner.hides or abs(factor) > 1
        return replace(inner, scale=inner.scale * factor, mask=first * factor, hides=hides)

    # Masks.

    def _chosen(self, node: Node, most: int) -> Scores | None:
        """Scores where a mask shows them, and a number elsewhere."""
        mask, first, second = node.inputs
        for shown, value, other in ((True, first, second), (False, second, first)):
            number = self._masks.uniform(other)
            inner = None if number is None else self._changeable(value, most)
            if number is None or inner is None or not self._whole(value, node):
                continue
            if node is self._without_weight:
                if inner.hides:
                    return None
                number = -math.inf
            seen = self._masks.seen(mask, shown)
            limited = seen and self._limited(inner, value, mask, seen, number, False)
            if limited:
                return limited
            if inner.causal is not None and max(inner.beyond, number) > -math.inf:
                return None
            if seen is not None and seen.offset is None and len(seen.rest) == 1:
                return self._choosing(inner, value, seen.rest[0], number)
            return self._choosing(inner, value, mask if shown else ~mask, number)
        return None

    def _added(self, node: Node, most: int) -> Scores | None:
        """Scores plus an addend."""
        for value, addend in (node.inputs, node.inputs[::-1]):
            inner = self._changeable(value, most)
            if inner is None or not self._whole(value, node):
                continue
            hiding = self._hiding(addend)
            if hiding is not None:
                seen, number, rest = hiding
                limited = self._limited(inner, value, addend, seen, number, True, rest)
                if limited:
                    return limited
            return self._adding(inner, value, addend)
        return None

    def _choosing(self, inner: Scores, value: Value, shown: Value, number: float) -> Scores | None:
        """Scores with a number where a mask of the axes of `value` is false."""
        first, view = inner.mask, self.viewed(shown, value.shape[:-2], inner.batch)
        if view is None:
            return None
        if first is None:
            return replace(inner, mask=view, hidden=number, hides=True)
        if first.dtype != BOOL:
            low = number
            if number <= NEVER_SEEN and not inner.hides:
                # In half precision the lowest number does not absorb scores.
                low = min(number, lowest(first))
            if low > ABSORBING:
                return None
            inner = replace(inner, lowered=low < number)
            return self._where(inner, view, first, low)
        return replace(inner, mask=first & view) if number == inner.hidden else None

    def _adding(self, inner: Scores, value: Value, addend: Value) -> Scores | None:
        """Scores plus an addend that has the axes of `value`."""
        first, view = inner.mask, self.viewed(addend, value.shape[:-2], inner.batch)
        if view is None or inner.beyond > lowest(addend):
            return None
        number = inner.hidden
        holds = lowest(addend) <= ABSORBING
        if number <= NEVER_SEEN and holds and self._leaves_or_replaces(addend):
            # In half precision the number would be infinite.
            number = min(number, ABSORBING)
        lowered = number < inner.hidden
        inner = replace(inner, hides=inner.hides or not is_of_scores(self._around, addend))
        if first is None:
            return None if view.shape[-1:] in ((), (1,)) else replace(inner, mask=view)
        if first.dtype == BOOL:
            if number > ABSORBING:
                return None
            return self._where(replace(inner, lowered=lowered), first, view, view + number)
        return replace(inner, mask=first + view) if first.dtype == view.dtype else None

    def _where(self, inner: Scores, shown: Value, addend: Value, low: Operand) -> Scores:
        """Scores plus an addend where a mask is true, and plus `low` elsewhere, which absorbs
        scores."""
        mask = where(shown, addend, low)
        return replace(inner, mask=mask, hidden=-math.inf, hides=True)

    def _leaves_or_replaces(self, addend: Value) -> bool:
        """Whether sums of an addend and a number down to `ABSORBING` are one of the two."""
        choice = self._masks.choice(addend)
        if choice is None:
            return leaves_or_replaces(self._around, addend)
        return all(n == 0 or abs(n) >= OUTWEIGHING for n in (choice.first, choice.second))

    def _whole(self, value: Value, node: Node) -> bool:
        """Whether a node leaves the shape of the scores unchanged."""
        return self._around.alike(value.shape, node.output.shape)

    # Triangles.

    def causal_limit(self, mask: Value, scores: Shape) -> Dim | None:
        """The limit that a boolean mask of scores (rows, columns) is, if it is a triangle from
        which no row is hidden whole."""
        seen = self._masks.seen(mask) if mask.dtype == BOOL and mask.rank > 1 else None
        if seen is None or seen.rest or not self._around.alike(mask.shape[-2:], scores):
            return None
        least = None if seen.offset is None else least_value(seen.offset)
        return None if least is None or least < 0 else seen.offset

    def _hiding(self, addend: Value) -> tuple[Seen, float, Value | None] | None:
        """The scores that an addend leaves unchanged, or adds to what is in the third place, and
        the number it adds to all others."""
        if addend.constant is not None and addend.rank > 1:
            array = addend.constant
            offset = triangle_of(array == 0)
            beyond = float(array[array != 0].max(initial=-math.inf))
            return None if offset is None else (Seen(offset), beyond, None)
        place, axes = addend, addend.shape[-2:]
        for _ in range(MAX_VIEWS):
            view = self._around.producer(place, "reshape", "broadcast")
            if view is None or view.inputs[0].shape[-2:] != axes:
                break
            place = view.inputs[0]
        choice = self._masks.choice(place)
        if choice is None or 0 not in (choice.first, choice.second):
            return self._biased(addend)
        shown = choice.first == 0
        seen = self._masks.seen(choice.mask, shown)
        # What else a view hides has other axes.
        if seen is None or (seen.rest and place is not addend):
            return None
        return seen, choice.second if shown else choice.first, None

    def _biased(self, addend: Value) -> tuple[Seen, float, Value] | None:
        """An addend that is another one within a triangle, as T5's decoder has it."""
        node = self._around.producer(addend, "where")
        if node is None or node.inputs[0].shape[-2:] != addend.shape[-2:]:
            return None
        mask, first, second = node.inputs
        for shown, bias, other in ((True, first, second), (False, second, first)):
            number, seen = self._masks.uniform(other), self._masks.seen(mask, shown)
            if number is not None and seen is not None and seen.offset is not None:
                return seen, number, bias
        return None

    def _limited(
        self, inner: Scores, value: Value, mask: Value, seen: Seen, number: float, added: bool,
        bias: Value | None = None,
    ) -> Scores | None:  # fmt: skip
        """Scores with a triangular mask as their causal limit; `number` replaces scores beyond
        it, and `bias` is added to others."""
        first = None if seen.offset is None else least_value(seen.offset)
        if first is None or first < 0 or inner.causal is not None or not number <= NEVER_SEEN:
            return None
        if not self._limits:
            return None
        if not self._around.alike(mask.shape[-2:], inner.product.output.shape[-2:]):
            return None
        if seen.rest or inner.mask is not None or bias is not None:
            # A row may be hidden whole.
            least = lowest(inner.product.output) if added and not seen.rest else -math.inf
            if number > least:
                return None
        found: Scores | None = replace(inner, causal=seen.offset, beyond=number, hides=True)
        for rest in seen.rest:
            found = found and self._choosing(found, value, rest, -math.inf)
        return found and self._adding(found, value, bias) if bias is not None else found


def lowest(value: Value) -> float:
    """The lowest finite number of an element type."""
    return -largest_finite(value.dtype)
