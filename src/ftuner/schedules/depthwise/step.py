"""The step of windows of single channels, and of few: depthwise convolutions and reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import DType
from ftuner.core.expr import Expr
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import View, row_major
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, ViewStep, shape_text

REDUCTIONS = frozenset({"sum", "maximum", "minimum"})
"""Reductions of windows that the kernel computes."""
FEW_OF_GROUP = (1, 2, 4, 8)
"""Channels of a group, of x and of the result, that the kernel computes: vectors hold whole groups.
More are a product of their own, whose vectors are full."""
MOST_UNROLLED = 64
"""Widest window that the kernel computes: its code has all elements of a row of the window.
Derived: compiling one of 128 takes seconds, and one of 1024 more than a minute. Other windows are
computed by their definition."""


@dataclass(frozen=True)
class DepthwiseStep(ViewStep):
    """A convolution of each channel by its own window, or of each of some channels by windows over
    all of them, or a reduction of each channel's windows. x and the result are (images, rows,
    positions, channels), with contiguous channels."""

    kind: ClassVar[str] = "depthwise"
    title: str
    x: View
    weight: View | None
    """(rows, positions, channels of a group, channels), row-major; None for a reduction."""
    reduction: str | None
    """`sum`, `maximum` or `minimum`; None for a convolution."""
    out: View
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: Shape
    """Padding with zeros before the first row and the first position of x."""
    epilogue: Expr
    operands: tuple[View, ...]
    """As of a product whose rows are the positions of the result."""
    group: int = 1
    """Channels of a group of a convolution, of x and of the result."""

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time, as `cpu_record.Depthwise` has it,
        and then the offset of each operand and the distance between its rows, in elements."""
        _, height, width, channels = self.x.shape
        x, out = self.x.layout, self.out.layout
        operands = [(v.layout.offset, v.layout.strides[0]) for v in self.operands]
        return (
            height, width, channels, *self.out.shape[1:3], *self.begin, x.offset, *x.strides[:3],
            out.offset, *out.strides[:3], *(dim for pair in operands for dim in pair),
        )  # fmt: skip

    def described(self, text: DimText) -> str:
        window = shape_text(self.window, text)
        return f"{shape_text(self.x.shape, text)} by {window} -> {shape_text(self.out.shape, text)}"


@dataclass(frozen=True)
class _PendingDepthwise(PendingRows):
    """A result that has no memory yet."""

    step: Callable[..., DepthwiseStep]
    """The step of a title, a result, and an epilogue with its operands."""
    held: DType
    """Of the result; x may be held in another dtype where it is reduced."""

    @property
    def multiplied(self) -> DType:
        return self.held

    def store(self, target: View, placement: Placement) -> None:
        if target.layout.dtype != self.dtype or target.layout.strides[-1] != 1:
            placement.store_by_copy(self, self.dtype, target)
            return
        placement.add(
            self.step(
                title=self.title, out=_of_two_axes(target), epilogue=self.epilogue.expr,
                operands=self.ordered_operands(),
            )
        )  # fmt: skip


def _of_two_axes(view: View) -> View:
    """A tensor of one or two spatial axes, with an axis of one row if that is missing."""
    layout = view.layout
    if len(layout.shape) == 4:
        return view
    shape = (layout.shape[0], 1, *layout.shape[1:])
    strides = (layout.strides[0], 0, *layout.strides[1:])
    return View(view.buffer, replace(layout, shape=shape, strides=strides))


def _pending(
    node: Node, placement: Placement, title: str, view: View, weight: View | None,
    reduction: str | None, window: tuple[int, int], group: int = 1,
) -> PendingRows:  # fmt: skip
    attributes = node.attributes
    step = partial(
        DepthwiseStep, x=_of_two_axes(view), weight=weight, reduction=reduction, window=window,
        strides=_of_rows(attributes["strides"], 1), dilations=_of_rows(attributes["dilations"], 1),
        begin=_of_rows(attributes["begin"], 0), group=group,
    )  # fmt: skip
    held = placement.type_of(node.output).dtype
    return _PendingDepthwise(node.output, True, NO_EPILOGUE, title, step, held)


def _of_rows(values: tuple[Any, ...], missing: int) -> tuple[Any, Any]:
    """The values of two spatial axes, of which the first may be missing."""
    first, second = (missing, *values) if len(values) == 1 else values
    return first, second


def lower(node: Node, placement: Placement) -> tuple[PendingRows] | None:
    return (_convolution if node.op == "convolution" else _reduction)(node, placement)


def _convolution(node: Node, placement: Placement) -> tuple[PendingRows] | None:
    """A convolution by a constant weight in groups of few channels."""
    x, weight = node.inputs
    groups, rank = node.attributes["groups"], weight.rank - 2
    if weight.constant is None or 0 in weight.shape or groups == 1 or rank > 2:
        return None
    *kernel, group, channels = weight.constant.shape
    dtype = placement.type_of(node.output).dtype
    fits = group in FEW_OF_GROUP and kernel[-1] <= MOST_UNROLLED and channels == groups * group
    if not fits or not placement.runs(DepthwiseStep.kind, dtype):
        return None
    view = placement.contiguous_last(x, dtype)
    read = placement.converted(placement.view(weight), dtype)
    window = _of_rows(tuple(kernel), 1)
    whole = row_major(TensorType(read.layout.dtype, (*window, group, channels)))
    w = View(read.buffer, replace(whole, offset=read.layout.offset))
    title = "depthwise" if group == 1 else f"convolution of groups of {group}"
    return (_pending(node, placement, title, view, w, None, window, group),)


def _reduction(node: Node, placement: Placement) -> tuple[PendingRows] | None:
    """A reduction of the windows of floats. Others are computed by their definition."""
    (x,) = node.inputs
    kernel, kind = node.attributes["kernel"], node.attributes["kind"]
    known = all(isinstance(n, int) for n in kernel) and len(kernel) <= 2
    # Windows of one channel are along vectors as their definition has them.
    known = known and kernel[-1] <= MOST_UNROLLED and x.shape[-1] != 1
    fits = known and x.dtype.kind == "float" and kind in REDUCTIONS and x.rank == len(kernel) + 2
    dtype = placement.type_of(node.output).dtype
    if not fits or not placement.runs(DepthwiseStep.kind, dtype):
        return None
    view = placement.contiguous_last(x)
    return (_pending(node, placement, node.op, view, None, kind, _of_rows(kernel, 1)),)
