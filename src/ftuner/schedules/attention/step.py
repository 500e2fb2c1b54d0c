"""The step of an attention, and what is lowered to it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

from ftuner.core.attention_softmax import AttentionSoftmax, optional_operands
from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import BFLOAT16, BFLOAT16X2, FLOAT32, moved_as
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import View, in_words, permuted, reshaped, spread
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.placement import Pending, Placement
from ftuner.graph.ragged import Rows
from ftuner.graph.steps import DimText, ViewStep, shape_text


class Sequences(NamedTuple):
    """The sequences of a request."""

    axis: int | None
    """The one of the result that counts them; None if there is one sequence."""


@dataclass(frozen=True)
class AttentionStep(ViewStep):
    """`out = softmax(q @ k, mask) @ v`."""

    kind: ClassVar[str] = "attention"
    title: str
    q: View
    k: View
    v: View
    """k and v have the batch axes of q; along those that their heads share they stay in place.
    Where q is words along the depth, so is k, and v is of the numbers that words have; or both are
    float32, and are rounded."""
    mask: View | None
    """Of the shape of the scores: an addend, or booleans."""
    sinks: View | None
    """One score of each row that has no key."""
    out: View
    softmax: AttentionSoftmax

    @property
    def optional(self) -> tuple[View, ...]:
        """The mask and the sinks, if there are any."""
        return tuple(view for view in (self.mask, self.sinks) if view is not None)

    def sequences(self, rows: Rows) -> Sequences | None:
        """Where the sequences of requests are, if all operands have them one after the other: each
        then attends to itself, and a mask has one number for each key."""
        *batch, _, _ = self.out.shape
        counted = [axis for axis, extent in enumerate(batch) if not isinstance(extent, int)]
        axis, last = next(iter(counted), None), len(batch) + 1
        views = [(self.q, last - 1), (self.k, last), (self.v, last - 1), (self.out, last - 1)]
        if self.mask is not None:
            shape, strides = self.mask.shape, self.mask.layout.strides
            if strides[-2] != 0:
                return None
            of_keys = replace(self.mask.layout, shape=(*shape[:-2], 1, shape[-1]))
            views.append((View(self.mask.buffer, of_keys), last))
        follow = all(rows.follow(view, at, axis) for view, at in views)
        return Sequences(axis) if follow and self.sinks is None else None

    def described(self, text: DimText) -> str:
        named = [("q", self.q), ("k", self.k), ("v", self.v)]
        named += [("mask", self.mask)] if self.mask is not None else []
        named += [("sinks", self.sinks)] if self.sinks is not None else []
        operands = ", ".join(f"{name} {shape_text(view.shape, text)}" for name, view in named)
        limit = self.softmax.causal
        keys = "" if limit is None else f", keys j <= i + {text(limit)}"
        return f"{operands} -> {shape_text(self.out.shape, text)}{keys}"


@dataclass(frozen=True)
class PendingAttention(Pending):
    """An attention whose result has no memory yet. The last two axes of `type` are its rows and
    columns; the other axes of the value may differ."""

    q: View
    k: View
    v: View
    mask: View | None
    sinks: View | None
    type: TensorType
    softmax: AttentionSoftmax

    @property
    def strided_rows(self) -> bool:
        return True

    def store(self, target: View, placement: Placement) -> None:
        out, dtype = reshaped(target, self.type.shape), moved_as(self.q.layout.dtype)
        if out is None or out.layout.strides[-1] != 1 or out.layout.dtype != dtype:
            placement.store_by_copy(self, dtype, target)
            return
        operands = self.q, self.k, self.v, self.mask, self.sinks
        title = self.softmax.title
        if self.q.layout.dtype == BFLOAT16X2:
            title = f"{title} in bfloat16"
        placement.add(AttentionStep(title, *operands, out, self.softmax))

    def reshaped(self, old: Shape, new: Shape, read_once: bool) -> PendingAttention | None:
        # `store` finds the axes of `type` in any target.
        return self if read_once else None


def lower(node: Node, placement: Placement) -> tuple[PendingAttention]:
    q, k, v, *_ = node.inputs
    masks, sinks = optional_operands(node.inputs, node.attributes.get("sinks", False))
    dtype = placement.type_of(node.output).dtype
    if node.op == "word_attention":
        rows, values = _words(q, placement), placement.contiguous_last(v)
        keys = placement.view(k) if k.dtype == FLOAT32 else _words(k, placement)
        keys = permuted(keys, (*range(k.rank - 2), k.rank - 1, k.rank - 2))
    else:
        rows = placement.contiguous_last(q, dtype)
        keys, values = (placement.view(x, dtype) for x in (k, v))
    batch = q.shape[:-2]
    mask = None
    if masks:
        seen = _contiguous_steps(masks[0], v.shape[-2], placement)
        mask = spread(seen, (*q.shape[:-1], v.shape[-2]))
    keys, values = (spread(x, (*batch, *x.shape[-2:])) for x in (keys, values))
    one = None
    if sinks:
        one = spread(placement.view(sinks[0]), (*q.shape[:-1], 1))
    softmax = AttentionSoftmax(**node.attributes)
    return (PendingAttention(rows, keys, values, mask, one, node.output.type, softmax),)


def _words(x: Value, placement: Placement) -> View:
    """Rows of bfloat16 as rows of words. They are copied unless each begins with a word."""
    words = in_words(placement.view(x, BFLOAT16), BFLOAT16X2)
    if words is None:
        words = in_words(placement.contiguous(x, BFLOAT16), BFLOAT16X2)
    assert words is not None
    return words


def _contiguous_steps(mask: Value, steps: Dim, placement: Placement) -> View:
    """A mask with a contiguous element for each of the steps along its last axis."""
    view = placement.view(mask)
    if mask.rank and mask.shape[-1] == steps and view.layout.strides[-1] == 1:
        return view
    shape = (*mask.shape[:-1], steps)
    target = placement.apart(TensorType(view.layout.dtype, shape))
    return placement.copied(spread(view, shape), target)
