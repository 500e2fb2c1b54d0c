"""How convolutions become steps: products through windows, or a kernel for single channels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ftuner.core.dim import Shape, least_value
from ftuner.core.dtype import DType
from ftuner.core.expr import operands as operands_of
from ftuner.core.winograd import saving
from ftuner.graph.buffers import View, as_rows, contiguous_rows, row_major
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.placement import Placement
from ftuner.graph.steps import (
    ConvolutionStep,
    DepthwiseStep,
    GroupedConvolutionStep,
    Window,
)
from ftuner.graph.winograd_steps import LineWinogradStep, WinogradStep

MAX_AXES = 3
"""Spatial axes of a window that products read through."""
REDUCTIONS = frozenset({"sum", "maximum", "minimum"})
"""Reductions of windows that the kernel of single channels computes."""
LEAST_COLUMNS = 4
"""Columns of a group from which it is a product of its own. With fewer, most of each vector would
be left over."""
FEW_OF_GROUP = (1, 2, 4, 8)
"""Channels of a group, of x and of the result, that the kernel of single channels computes: vectors
hold whole groups. More are a product of their own, whose vectors are full."""
MOST_UNROLLED = 64
"""Widest window that the kernel of single channels computes: its code has all elements of a row of
the window. Derived: compiling one of 128 takes seconds, and one of 1024 more than a minute. Other
windows are computed by their definition."""
CHANNELS_OF_ELEMENT = 2
"""Most channels of x for each element of a window of one column that is computed by its definition,
with vectors along rows. A product has a vector for the one column, and pays where it reads many
channels for each element of the window."""
LEAST_CHANNELS = 8
"""Channels from which Winograd's products of tiles are tried."""
LEAST_SAVING = 1.3
"""Multiplications of a window over those of Winograd's products along one axis, from which these
are tried: the transforms and larger weights take the rest."""


@dataclass(frozen=True)
class _PendingConvolution(PendingRows):
    x: View
    weights: tuple[View, ...]
    """For each group a matrix: all elements of the window, by the group's columns."""
    window: Window

    @property
    def dtype(self) -> DType:
        return self.x.layout.dtype

    def store(self, target: View, placement: Placement) -> None:
        rows = contiguous_rows(target)
        if target.layout.dtype != self.dtype or rows is None:
            placement.store_by_copy(self, self.dtype, target)
            return
        operands, expr = self.ordered_operands(), self.epilogue.expr
        if len(self.weights) > 1 and placement.runs(GroupedConvolutionStep.kind, self.dtype):
            weight = _stacked(self.weights)
            placement.add(
                GroupedConvolutionStep(
                    self.title, self.x, weight, rows, expr, operands, self.window, ""
                )
            )
            return
        kinds = [operand.kind for operand in operands_of(expr)]
        first = 0
        for group, weight in enumerate(self.weights):
            channels, columns = self.window.run, weight.shape[-1]
            assert isinstance(columns, int)
            x = self.x
            if len(self.weights) > 1:
                x = _columns(x, group * channels, channels)
            own = tuple(
                view if kind == "row" else _columns(view, first, columns)
                for view, kind in zip(operands, kinds, strict=True)
            )
            self._store_group(x, weight, _columns(target, first, columns), own, placement)
            first += columns

    def _store_group(
        self, x: View, weight: View, target: View, operands: tuple[View, ...],
        placement: Placement,
    ) -> None:  # fmt: skip
        expr, window, rows = self.epilogue.expr, self.window, as_rows(target)
        assert rows is not None
        winograd = _winograd_of(window, x)
        if winograd and placement.runs(winograd, self.dtype):
            channels = window.run if winograd == WinogradStep.kind else x.shape[-1]
            shape = (*window.whole_kernel(channels), channels, weight.shape[-1])
            whole = row_major(TensorType(weight.layout.dtype, shape))
            of_window = View(weight.buffer, replace(whole, offset=weight.layout.offset))
            title = "convolution (Winograd)" + self.title.removeprefix("convolution")
            step: WinogradStep | LineWinogradStep
            if winograd == WinogradStep.kind:
                step = WinogradStep(title, x, of_window, target, window.begin, expr, operands)
            else:
                step = LineWinogradStep(
                    title, x, of_window, target, window.begin, expr, operands,
                    (window.strides[0], window.strides[1]),
                )  # fmt: skip
            placement.add(step)
        else:
            winograd = ""
        placement.add(
            ConvolutionStep(self.title, x, weight, rows, expr, operands, window, winograd)
        )


def _stacked(weights: Sequence[View]) -> View:
    """Constant matrices of one shape as one tensor."""
    first = weights[0]
    array = np.stack([w.buffer.array for w in weights if w.buffer.array is not None])
    buffer = replace(first.buffer, elements=array.size, array=array)
    shape = (len(weights), *first.shape)
    return View(buffer, row_major(TensorType(first.layout.dtype, shape)))


def _columns(view: View, first: int, count: int) -> View:
    """Some columns of a tensor; all of one of fewer axes."""
    layout = view.layout
    if layout.shape[-1] == count:
        return view
    offset = layout.offset + first * layout.strides[-1]
    return View(view.buffer, replace(layout, shape=(*layout.shape[:-1], count), offset=offset))


def _winograd_of(window: Window, x: View) -> str:
    """The kind of Winograd's products that can compute the convolution, and may be faster; empty
    if there is none. The transforms of tiles take as long for few channels as for a vector."""
    alone = window.strides == window.dilations == (1, 1)
    if window.kernel == (3, 3) and alone and window.run >= LEAST_CHANNELS:
        return WinogradStep.kind
    channels, layout = x.shape[-1], x.layout
    if len(window.kernel) != 2 or window.dilations != (1, 1) or not isinstance(channels, int):
        return ""
    contiguous = layout.strides[-2] == channels and window.run % channels == 0
    gain = saving(window.whole_kernel(channels)[-1], window.strides[-1]) if contiguous else 0.0
    return LineWinogradStep.kind if gain >= LEAST_SAVING else ""


@dataclass(frozen=True)
class _PendingDepthwise(PendingRows):
    x: View
    """Of two spatial axes, as the result is written."""
    weight: View | None
    reduction: str | None
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: Shape
    group: int
    held: DType
    """Of the result; x may be held in another dtype where it is reduced."""

    @property
    def dtype(self) -> DType:
        return self.held

    def store(self, target: View, placement: Placement) -> None:
        if target.layout.dtype != self.dtype or target.layout.strides[-1] != 1:
            placement.store_by_copy(self, self.dtype, target)
            return
        placement.add(
            DepthwiseStep(
                self.title, self.x, self.weight, self.reduction, _of_two_axes(target), self.window,
                self.strides, self.dilations, self.begin, self.epilogue.expr,
                self.ordered_operands(), self.group,
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


def lower_convolution(node: Node, placement: Placement) -> tuple[PendingRows] | None:
    """A convolution by a constant weight. Others are computed by their definition."""
    weight = node.inputs[1]
    groups, rank = node.attributes["groups"], weight.rank - 2
    if weight.constant is None or 0 in weight.shape:
        return None
    dtype = placement.type_of(node.output).dtype
    if groups == weight.shape[-1] == 1:
        *window, channels, _ = weight.constant.shape
        if channels <= CHANNELS_OF_ELEMENT * math.prod(window):
            return None
    if groups > 1 and rank <= 2 and placement.runs(DepthwiseStep.kind, dtype):
        own, columns = weight.shape[-2:]
        fits = own in FEW_OF_GROUP and weight.constant.shape[rank - 1] <= MOST_UNROLLED
        if columns == groups * own and fits:
            return (_depthwise(node, placement),)
    each = weight.shape[-1] // groups if isinstance(weight.shape[-1], int) else 0
    fits = groups == 1 or each >= LEAST_COLUMNS
    if fits and rank <= MAX_AXES and placement.runs(ConvolutionStep.kind, dtype):
        return (_convolution(node, placement),)
    return None


def _operands(node: Node, placement: Placement) -> tuple[View, View]:
    """x with contiguous channels, and the weight, of one dtype."""
    x, weight = node.inputs
    dtype = placement.type_of(node.output).dtype
    view = placement.view(x, dtype)
    if view.layout.strides[-1] != 1:
        view = placement.contiguous(x, dtype)
    return view, placement.converted(placement.view(weight), dtype)


def _convolution(node: Node, placement: Placement) -> PendingRows:
    attributes, groups = node.attributes, node.attributes["groups"]
    view, weight = _operands(node, placement)
    *kernel, run, columns = (n for n in weight.shape if isinstance(n, int))
    if view.layout.strides[-2] == run and _lies_inside(node.inputs[0], kernel[-1], attributes):
        # A row of the window is one piece of memory.
        run, kernel[-1] = run * kernel[-1], 1
    window = Window(
        tuple(kernel), run, attributes["strides"], attributes["dilations"], attributes["begin"],
        attributes["extents"],
    )  # fmt: skip
    each = columns // groups
    matrix = row_major(TensorType(weight.layout.dtype, (math.prod(kernel) * run, each)))
    weights = [View(weight.buffer, replace(matrix, offset=weight.layout.offset))]
    if groups > 1:
        array = node.inputs[1].constant
        assert array is not None
        parts = map(np.ascontiguousarray, np.split(array, groups, axis=-1))
        weights = [
            View(replace(weight.buffer, elements=part.size, array=part), matrix) for part in parts
        ]
    return _PendingConvolution(
        node.output, True, NO_EPILOGUE, node.op, view, tuple(weights), window
    )


def _lies_inside(x: Value, kernel: int, attributes: Mapping[str, Any]) -> bool:
    """Whether all windows are known to be inside x along the last spatial axis, without gaps."""
    if attributes["begin"][-1] != 0 or attributes["dilations"][-1] != 1:
        return False
    last = (attributes["extents"][-1] - 1) * attributes["strides"][-1] + kernel - 1
    least = least_value(x.shape[-2] - 1 - last)
    return least is not None and least >= 0


def _depthwise(node: Node, placement: Placement) -> PendingRows:
    view, weight = _operands(node, placement)
    *kernel, group, channels = (n for n in node.inputs[1].shape if isinstance(n, int))
    window = _of_rows(tuple(kernel), 1)
    whole = row_major(TensorType(weight.layout.dtype, (*window, group, channels)))
    w = View(weight.buffer, replace(whole, offset=weight.layout.offset))
    title = "depthwise" if group == 1 else f"convolution of groups of {group}"
    return _pending_depthwise(node, placement, title, view, w, None, window, group)


def _pending_depthwise(
    node: Node, placement: Placement, title: str, view: View, weight: View | None,
    reduction: str | None, window: tuple[int, int], group: int = 1,
) -> PendingRows:  # fmt: skip
    attributes = node.attributes
    return _PendingDepthwise(
        node.output, True, NO_EPILOGUE, title, _of_two_axes(view), weight, reduction, window,
        _of_rows(attributes["strides"], 1), _of_rows(attributes["dilations"], 1),
        _of_rows(attributes["begin"], 0), group, placement.type_of(node.output).dtype,
    )  # fmt: skip


def _of_rows(values: tuple[Any, ...], missing: int) -> tuple[Any, Any]:
    """The values of two spatial axes, of which the first may be missing."""
    first, second = (missing, *values) if len(values) == 1 else values
    return first, second


def lower_window_reduce(node: Node, placement: Placement) -> tuple[PendingRows] | None:
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
    view = placement.view(x)
    if view.layout.strides[-1] != 1:
        view = placement.contiguous(x)
    return (_pending_depthwise(node, placement, node.op, view, None, kind, _of_rows(kernel, 1)),)
