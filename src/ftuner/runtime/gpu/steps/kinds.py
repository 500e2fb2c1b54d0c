"""The kinds of steps on a GPU."""

from __future__ import annotations

from typing import Any

from ftuner.runtime.gpu.steps.contract import StepKind
from ftuner.runtime.step_kinds import StepKinds

KINDS = StepKinds[StepKind[Any]]("gpu")
kind_of = KINDS.of
