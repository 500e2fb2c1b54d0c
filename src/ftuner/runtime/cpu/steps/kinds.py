"""The kinds of steps on a CPU."""

from __future__ import annotations

from typing import Any

from ftuner.core.dtype import DType
from ftuner.runtime.cpu.steps.contract import StepKind
from ftuner.runtime.step_kinds import StepKinds

KINDS = StepKinds[StepKind[Any]]("cpu")
kind_of = KINDS.of


def runs(kind: str, dtype: DType) -> bool:
    """Whether there is a kind of step for a dtype."""
    return KINDS.named(kind) is not None
