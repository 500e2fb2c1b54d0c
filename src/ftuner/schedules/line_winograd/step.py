"""The step of convolutions by Winograd's products along the last axis (`core.winograd`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ftuner.core.frozen import dataclass
from ftuner.core.winograd import saving
from ftuner.graph.buffers import View
from ftuner.graph.placement import Runs
from ftuner.graph.steps import Step
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.winograd.step import CommonWinogradStep, common_fields, preceded

LEAST_SAVING = 1.3
"""Multiplications of a window over those of Winograd's products along one axis, from which these
are tried: the transforms and larger weights take the rest."""


@dataclass(frozen=True)
class LineWinogradStep(CommonWinogradStep):
    """By any window. Positions of x follow each other without gaps."""

    kind: ClassVar[str] = "line_winograd"
    strides: tuple[int, int]


def step_of(convolution: ConvolutionStep) -> LineWinogradStep | None:
    """The step that may do a convolution faster; None if there is none."""
    window, x = convolution.window, convolution.a
    channels = x.shape[-1]
    if len(window.kernel) != 2 or window.dilations != (1, 1) or not isinstance(channels, int):
        return None
    contiguous = x.layout.strides[-2] == channels and window.run % channels == 0
    rows, positions = window.strides
    if not contiguous or saving(window.whole_kernel(channels)[-1], positions) < LEAST_SAVING:
        return None
    return LineWinogradStep(**common_fields(convolution, channels), strides=(rows, positions))


def rewritten(steps: Sequence[Step], outputs: Sequence[View], runs: Runs) -> Sequence[Step]:
    """The steps, with Winograd's before each convolution that they may do faster."""
    return preceded(steps, runs, LineWinogradStep.kind, step_of)
