"""The kinds of steps on a GPU."""

from __future__ import annotations

from typing import Any

from ftuner.core.dtype import GPU_DTYPES, DType
from ftuner.graph.steps import ConvolutionStep, GroupedConvolutionStep
from ftuner.runtime.gpu.steps.contract import StepKind
from ftuner.runtime.step_kinds import StepKinds

MULTIPLYING = frozenset({ConvolutionStep.kind, GroupedConvolutionStep.kind})
"""Kinds of steps that operators do without for other dtypes than those of products."""
KINDS = StepKinds[StepKind[Any]]("gpu")
kind_of = KINDS.of


def runs(kind: str, dtype: DType) -> bool:
    """Whether there is a kind of step for a dtype."""
    return KINDS.has(kind) and (kind not in MULTIPLYING or dtype.name in GPU_DTYPES)
