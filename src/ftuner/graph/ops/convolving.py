"""How convolutions become steps: products through windows, or a kernel for single channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ftuner.core.dim import Shape, least_value, product
from ftuner.core.dtype import DType
from ftuner.graph.buffers import View, as_rows, row_major
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.placement import Placement
from ftuner.graph.steps import ConvolutionStep, DepthwiseStep, Window, WinogradStep

MAX_AXES = 3
"""Spatial axes of a window that products read through."""
LEAST_CHANNELS = 8
"""Channels from which Winograd's products are tried."""


@dataclass(frozen=True)
class _PendingConvolution(PendingRows):
    x: View
    weight: View
    """A matrix: all elements of the window, by channels of the result."""
    window: Window

    @property
    def dtype(self) -> DType:
        return self.x.layout.dtype

    def store(self, target: View, placement: Placement) -> None:
        rows = as_rows(target)
        if target.layout.dtype != self.dtype or rows is None:
            placement.store_by_copy(self, self.dtype, target)
            return
        expr, operands, window = self.epilogue.expr, self.ordered_operands(), self.window
        winograd = _fits_winograd(window) and placement.runs(WinogradStep.kind)
        if winograd:
            shape = (*window.kernel, window.run, self.weight.shape[-1])
            whole = row_major(TensorType(self.weight.layout.dtype, shape))
            weight = View(self.weight.buffer, replace(whole, offset=self.weight.layout.offset))
            placement.add(
                WinogradStep(
                    "convolution (Winograd)" + self.title.removeprefix("convolution"), self.x,
                    weight, target, window.begin, expr, operands,
                )
            )  # fmt: skip
        placement.add(
            ConvolutionStep(self.title, self.x, self.weight, rows, expr, operands, window, winograd)
        )


def _fits_winograd(window: Window) -> bool:
    """Whether Winograd's products can compute the convolution, and may be faster: the transforms
    take as long for few channels as for a vector of them."""
    alone = window.strides == window.dilations == (1, 1)
    return window.kernel == (3, 3) and alone and window.run >= LEAST_CHANNELS


@dataclass(frozen=True)
class _PendingDepthwise(PendingRows):
    x: View
    """Of two spatial axes, as the result is written."""
    weight: View
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: Shape

    @property
    def dtype(self) -> DType:
        return self.x.layout.dtype

    def store(self, target: View, placement: Placement) -> None:
        if target.layout.dtype != self.dtype or target.layout.strides[-1] != 1:
            placement.store_by_copy(self, self.dtype, target)
            return
        placement.add(
            DepthwiseStep(
                self.title, self.x, self.weight, _of_two_axes(target), self.strides,
                self.dilations, self.begin, self.epilogue.expr, self.ordered_operands(),
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
    single = weight.shape[-2] == 1 and weight.shape[-1] == groups and groups > 1
    if single and rank <= 2 and placement.runs(DepthwiseStep.kind):
        return (_depthwise(node, placement),)
    if groups == 1 and rank <= MAX_AXES and placement.runs(ConvolutionStep.kind):
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
    attributes = node.attributes
    view, weight = _operands(node, placement)
    *kernel, run, channels = (n for n in weight.shape if isinstance(n, int))
    if view.layout.strides[-2] == run and _lies_inside(node.inputs[0], kernel[-1], attributes):
        # A row of the window is one piece of memory.
        run, kernel[-1] = run * kernel[-1], 1
    window = Window(
        tuple(kernel), run, attributes["strides"], attributes["dilations"], attributes["begin"],
        attributes["extents"],
    )  # fmt: skip
    steps = product(weight.shape[:-1])
    matrix = row_major(TensorType(weight.layout.dtype, (steps, channels)))
    b = View(weight.buffer, replace(matrix, offset=weight.layout.offset))
    return _PendingConvolution(node.output, True, NO_EPILOGUE, node.op, view, b, window)


def _lies_inside(x: Value, kernel: int, attributes: Mapping[str, Any]) -> bool:
    """Whether all windows are known to lie within x along the last spatial axis, without gaps."""
    if attributes["begin"][-1] != 0 or attributes["dilations"][-1] != 1:
        return False
    last = (attributes["extents"][-1] - 1) * attributes["strides"][-1] + kernel - 1
    least = least_value(x.shape[-2] - 1 - last)
    return least is not None and least >= 0


def _depthwise(node: Node, placement: Placement) -> PendingRows:
    view, weight = _operands(node, placement)
    attributes = node.attributes
    missing = 4 - len(view.shape)
    lists = [
        (fill,) * missing + attributes[name]
        for name, fill in (("strides", 1), ("dilations", 1), ("begin", 0))
    ]
    shape = (1,) * missing + (*weight.shape[:-2], weight.shape[-1])
    window = row_major(TensorType(weight.layout.dtype, shape))
    w = View(weight.buffer, replace(window, offset=weight.layout.offset))
    strides, dilations, begin = lists
    return _PendingDepthwise(
        node.output, True, NO_EPILOGUE, "depthwise", _of_two_axes(view), w, strides, dilations,
        begin,
    )  # fmt: skip
