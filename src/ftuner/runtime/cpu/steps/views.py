"""Views of a step at known extents."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ftuner.core.dim import Dim
from ftuner.core.evaluation import evaluate
from ftuner.graph.buffers import Buffer, View
from ftuner.runtime.cpu.steps.contract import Extents
from ftuner.runtime.shapes.strides import StridedArray


def strided(view: View, extents: Extents) -> StridedArray:
    """The shape and strides of a view."""
    layout = view.layout
    size = layout.dtype.itemsize
    shape = tuple(evaluate(d, extents) for d in layout.shape)
    strides = tuple(size * evaluate(d, extents) for d in layout.strides)
    return StridedArray(shape, strides, size)


def addressed(views: Iterable[View]) -> list[tuple[Buffer, Dim]]:
    """The buffers of views and their offsets, as `RecordLayout.kernel` takes them."""
    return [(view.buffer, view.layout.offset) for view in views]


def touched(view: View, extents: Extents) -> int:
    """Bytes of the elements of a view, each counted once."""
    array = strided(view, extents)
    axes = zip(array.shape, array.strides, strict=True)
    elements = math.prod(n if stride or not n else 1 for n, stride in axes)
    return elements * array.itemsize
