"""The step of a convolution in groups that one kernel computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ftuner.core.frozen import dataclass
from ftuner.core.product import ReadWindow
from ftuner.graph.buffers import View, row_major
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.placement import Placement
from ftuner.schedules.convolution.step import ConvolutionStep, PendingConvolution
from ftuner.schedules.convolution.step import lower as lower_convolution


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


class _PendingGroups(PendingConvolution):
    def store_rows(self, rows: View, operands: tuple[View, ...], placement: Placement) -> None:
        """Add one step for all groups."""
        weight, expr = _stacked(self.weights), self.epilogue.expr
        placement.add(
            GroupedConvolutionStep(self.title, self.x, weight, rows, expr, operands, self.window)
        )


def lower(node: Node, placement: Placement) -> tuple[PendingConvolution] | None:
    """A convolution in groups, where one kernel computes all of them."""
    dtype = placement.type_of(node.output).dtype
    if node.attributes["groups"] == 1 or not placement.runs(GroupedConvolutionStep.kind, dtype):
        return None
    found = lower_convolution(node, placement)
    return None if found is None else (_PendingGroups(**vars(found[0])),)


def _stacked(weights: Sequence[View]) -> View:
    """Constant matrices of one shape as one tensor."""
    first = weights[0]
    array = np.stack([w.buffer.array for w in weights if w.buffer.array is not None])
    buffer = replace(first.buffer, elements=array.size, array=array)
    shape = (len(weights), *first.shape)
    return View(buffer, row_major(TensorType(first.layout.dtype, shape)))
