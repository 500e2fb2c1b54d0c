"""The kinds of steps on a GPU."""

from __future__ import annotations

from typing import Any

from ftuner.core.dtype import GPU_DTYPES, DType
from ftuner.graph.steps import ConvolutionStep, DepthwiseStep, GroupedConvolutionStep
from ftuner.runtime.gpu.steps.contract import StepKind
from ftuner.runtime.step_kinds import StepKinds

CONVOLUTIONS = frozenset({ConvolutionStep.kind, GroupedConvolutionStep.kind, DepthwiseStep.kind})
"""Kinds of steps that are for the dtypes of products alone."""
KINDS = StepKinds[StepKind[Any]]("gpu")
kind_of = KINDS.of


def runs(kind: str, dtype: DType) -> bool:
    """Whether there is a kind of step for a dtype."""
    return KINDS.has(kind) and (kind not in CONVOLUTIONS or dtype.name in GPU_DTYPES)
