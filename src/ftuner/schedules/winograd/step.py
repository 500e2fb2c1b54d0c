"""The step of convolutions by Winograd's products of tiles, and what it shares with those along one
axis. The `ConvolutionStep` that it precedes does the work where these are slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ftuner.core.dim import Dim, Shape
from ftuner.core.expr import Expr
from ftuner.core.frozen import dataclass
from ftuner.core.winograd import WINDOW
from ftuner.graph.buffers import View, row_major
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.placement import Runs
from ftuner.graph.steps import DimText, Step, ViewStep, shape_text
from ftuner.schedules.convolution.step import ConvolutionStep

LEAST_CHANNELS = 8
"""Channels from which Winograd's products of tiles are tried: with fewer, the transforms of tiles
take as long as for a vector."""


@dataclass(frozen=True)
class CommonWinogradStep(ViewStep):
    """A convolution of two spatial axes."""

    kind: ClassVar[str]
    title: str
    x: View
    """(images, rows, positions, channels), with contiguous channels, as `out`."""
    weight: View
    """(rows, positions, channels, columns) of the window, in row-major order."""
    out: View
    begin: Shape
    epilogue: Expr
    operands: tuple[View, ...]
    """As of a product whose rows are the positions of the result."""

    def described(self, text: DimText) -> str:
        shapes = (self.x.shape, self.weight.shape[:2], self.out.shape)
        x, window, out = (shape_text(shape, text) for shape in shapes)
        return f"{x} by {window} -> {out}"


FEW = 64
"""Elements of a weight that are looked at first: hardly any other has as many integers."""


@dataclass(frozen=True)
class WinogradStep(CommonWinogradStep):
    """By a window of 3 x 3 that moves one position at a time: products of tiles."""

    kind: ClassVar[str] = "winograd"


def step_of(convolution: ConvolutionStep) -> WinogradStep | None:
    """The step that may do a convolution faster; None if there is none."""
    window = convolution.window
    alone = window.strides == window.dilations == (1, 1)
    if window.kernel != (WINDOW, WINDOW) or not alone or window.run < LEAST_CHANNELS:
        return None
    return WinogradStep(**common_fields(convolution, window.run))


def common_fields(convolution: ConvolutionStep, channels: Dim) -> dict[str, Any]:
    """The fields of `CommonWinogradStep`. `channels`: of a position of the window."""
    b, window = convolution.b, convolution.window
    whole = (*window.whole_kernel(channels), channels, b.shape[-1])
    layout = replace(row_major(TensorType(b.layout.dtype, whole)), offset=b.layout.offset)
    return {
        "title": "convolution (Winograd)" + convolution.title.removeprefix("convolution"),
        "x": convolution.a, "weight": View(b.buffer, layout), "out": convolution.out,
        "begin": window.begin, "epilogue": convolution.epilogue,
        "operands": convolution.operands,
    }  # fmt: skip


def rewritten(steps: Sequence[Step], outputs: Sequence[View], runs: Runs) -> Sequence[Step]:
    """The steps, with Winograd's before each convolution that they may do faster."""
    return preceded(steps, runs, WinogradStep.kind, step_of)


def _may_run(step: ConvolutionStep, kind: str, runs: Runs) -> bool:
    dtype = step.a.layout.dtype
    return dtype.kind == "float" and runs(kind, dtype) and not _whole(step.b.buffer.array)


def _whole(weight: Array | None) -> bool:
    """Whether all elements of a weight are integers: sums of integers are exact, as quantised
    models count on, and Winograd's fractions of them are not."""
    if weight is None:
        return False
    return all(bool((part == np.rint(part)).all()) for part in (weight.flat[:FEW], weight))


def preceded(
    steps: Sequence[Step], runs: Runs, kind: str,
    step_of: Callable[[ConvolutionStep], CommonWinogradStep | None],
) -> Sequence[Step]:  # fmt: skip
    """The steps, with a step of a kind before each convolution that has none yet."""
    new: list[Step] = []
    for step in steps:
        if type(step) is ConvolutionStep and not step.faster and _may_run(step, kind, runs):
            found = step_of(step)
            if found is not None:
                new.append(found)
                step = replace(step, faster=kind)
        new.append(step)
    return new
