"""The step of a convolution as a product through a window, and what is lowered to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ftuner.core.dim import Dim, Shape, least_value
from ftuner.core.dtype import DType
from ftuner.core.expr import operands as operands_of
from ftuner.core.frozen import dataclass
from ftuner.core.product import WORD_PRODUCTS, ReadWindow
from ftuner.graph.buffers import View, contiguous_rows, in_words, row_major
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.placement import Placement
from ftuner.graph.steps import DimText, shape_text
from ftuner.schedules.product.step import ProductStep

MAX_AXES = 3
"""Spatial axes of a window that products read through."""
LEAST_COLUMNS = 4
"""Columns of a group from which it is a product of its own. With fewer, most of each vector would
be left over."""
CHANNELS_OF_ELEMENT = 2
"""Most channels of x for each element of a window of one column that is computed by its definition,
with vectors along rows. A product has a vector for the one column, and pays where it reads many
channels for each element of the window."""


@dataclass(frozen=True)
class Window:
    """A window that a product reads A through: A is x of (images, spatial axes..., channels), and
    row r of the matrix is the window of position r. Lists have an entry for each spatial axis."""

    kernel: tuple[int, ...]
    """Elements of the window that are apart in memory."""
    run: int
    """Consecutive elements of x for each element of the window."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: Shape
    """Padding with zeros before the first element of x."""
    extents: Shape
    """Positions of the window."""

    def whole_kernel(self, channels: Dim) -> tuple[int, ...]:
        """The extents of the window in positions of x, whose `channels` have no gaps between
        positions: a run may hold several positions."""
        assert isinstance(channels, int)
        return (*self.kernel[:-1], self.kernel[-1] * self.run // channels)


@dataclass(frozen=True)
class ConvolutionStep(ProductStep):
    """A product whose A is read through a window. A has the axes of x; B is a constant matrix, and
    B, C and operands have two axes."""

    kind: ClassVar[str] = "convolution"
    window: Window
    faster: str = ""
    """The kind of a step before it that does the work where it is faster; empty if there is
    none."""

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*super().dims, *self.window.begin, *self.window.extents)

    @property
    def out(self) -> View:
        """The result as (images, spatial axes..., columns)."""
        rows, columns = self.c.layout.strides
        *extents, last = self.window.extents
        strides = [rows]
        for extent in (last, *reversed(extents)):
            strides.insert(0, strides[0] * extent)
        shape = (self.a.shape[0], *extents, last, self.c.shape[1])
        layout = replace(self.c.layout, shape=shape, strides=(*strides, columns))
        return View(self.c.buffer, layout)

    @property
    def read_window(self) -> ReadWindow:
        window = self.window
        read = math.prod(window.kernel) * window.run
        channels = self.a.shape[-1]
        if not isinstance(channels, int):
            # A row of the window is then the channels of one element.
            channels = window.run
        new = math.prod(window.strides) * channels
        return ReadWindow(len(window.kernel), window.run, max(read / new, 1.0))

    def described(self, text: DimText) -> str:
        a, c = (shape_text(view.shape, text) for view in (self.a, self.c))
        return f"{a} by {shape_text(self.window.kernel, text)} -> {c}"


@dataclass(frozen=True)
class GroupedConvolutionStep(ConvolutionStep):
    """A convolution in groups, each by its own matrix: A and C have the channels of all groups side
    by side, and B is (groups, k, columns of a group)."""

    kind: ClassVar[str] = "grouped_convolution"

    @property
    def read_window(self) -> ReadWindow:
        own = super().read_window
        read = math.prod(self.window.kernel) / math.prod(self.window.strides)
        return own._replace(reuse=max(read, 1.0))


@dataclass(frozen=True)
class PendingConvolution(PendingRows):
    """A convolution whose result has no memory yet."""

    x: View
    weights: tuple[View, ...]
    """For each group a matrix: all elements of the window, by the group's columns."""
    window: Window

    @property
    def multiplied(self) -> DType:
        return self.x.layout.dtype

    def store(self, target: View, placement: Placement) -> None:
        rows = contiguous_rows(target)
        if target.layout.dtype != self.stored or rows is None:
            placement.store_by_copy(self, self.stored, target)
        else:
            self.store_rows(rows, self.ordered_operands(), placement)

    def store_rows(self, rows: View, operands: tuple[View, ...], placement: Placement) -> None:
        """Add a step for each group."""
        expr, run, first = self.epilogue.expr, self.window.run, 0
        kinds = [operand.kind for operand in operands_of(expr)]
        for group, weight in enumerate(self.weights):
            columns = weight.shape[-1]
            assert isinstance(columns, int)
            x = self.x if len(self.weights) == 1 else _columns(self.x, group * run, run)
            own = tuple(
                view if kind == "row" else _columns(view, first, columns)
                for view, kind in zip(operands, kinds, strict=True)
            )
            out = _columns(rows, first, columns)
            placement.add(ConvolutionStep(self.title, x, weight, out, expr, own, self.window))
            first += columns


class _PendingGroups(PendingConvolution):
    def store_rows(self, rows: View, operands: tuple[View, ...], placement: Placement) -> None:
        """Add one step for all groups."""
        weight, expr = _stacked(self.weights), self.epilogue.expr
        placement.add(
            GroupedConvolutionStep(self.title, self.x, weight, rows, expr, operands, self.window)
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


def lower(node: Node, placement: Placement) -> tuple[PendingConvolution] | None:
    """A convolution by a constant weight. Others are computed by their definition."""
    weight = node.inputs[1]
    if node.op == "word_convolution":
        return (_of_words(node, placement),)
    groups, rank = node.attributes["groups"], weight.rank - 2
    if weight.constant is None or 0 in weight.shape:
        return None
    dtype = placement.type_of(node.output).dtype
    if groups == weight.shape[-1] == 1:
        *window, channels, _ = weight.constant.shape
        if channels <= CHANNELS_OF_ELEMENT * math.prod(window):
            return None
    each = weight.shape[-1] // groups if isinstance(weight.shape[-1], int) else 0
    fits = groups == 1 or each >= LEAST_COLUMNS
    if fits and rank <= MAX_AXES and placement.runs(ConvolutionStep.kind, dtype):
        found = _convolution(node, dtype, placement)
        if groups > 1 and placement.runs(GroupedConvolutionStep.kind, dtype):
            found = _PendingGroups(**vars(found))
        return (found,)
    return None


def _of_words(node: Node, placement: Placement) -> PendingConvolution:
    x, weight = node.inputs
    words = WORD_PRODUCTS[x.dtype].a
    view = in_words(placement.contiguous_last(x), words)
    if view is None:
        view = in_words(placement.contiguous(x), words)
    assert view is not None
    return _pending(node, 1, view, placement.view(weight))


def _convolution(node: Node, dtype: DType, placement: Placement) -> PendingConvolution:
    view = placement.contiguous_last(node.inputs[0], dtype)
    weight = placement.converted(placement.view(node.inputs[1]), dtype)
    return _pending(node, node.attributes["groups"], view, weight)


def _pending(node: Node, groups: int, view: View, weight: View) -> PendingConvolution:
    attributes = node.attributes
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
    return PendingConvolution(node.output, True, NO_EPILOGUE, node.op, view, tuple(weights), window)


def _lies_inside(x: Value, kernel: int, attributes: Mapping[str, Any]) -> bool:
    """Whether all windows are known to be inside x along the last spatial axis, without gaps."""
    if attributes["begin"][-1] != 0 or attributes["dilations"][-1] != 1:
        return False
    last = (attributes["extents"][-1] - 1) * attributes["strides"][-1] + kernel - 1
    least = least_value(x.shape[-2] - 1 - last)
    return least is not None and least >= 0
