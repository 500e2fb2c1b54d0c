"""The kinds of steps on a GPU."""

from __future__ import annotations

from typing import Any

from ftuner.core.dtype import DType
from ftuner.runtime.gpu.steps.contract import StepKind
from ftuner.runtime.step_kinds import StepKinds

KINDS = StepKinds[StepKind[Any]]("gpu")
kind_of = KINDS.of


def runs(kind: str, dtype: DType) -> bool:
    """Whether there is a kind of step for a dtype."""
    found = KINDS.named(kind)
    return found is not None and found.supports(dtype)
