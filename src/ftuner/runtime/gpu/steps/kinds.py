"""The table of the kinds of steps on a GPU, by the name of the kind.

`Step.kind` names a module of this folder, and its `KIND` implements the kind. So a new kind is one
module: the table reads it when the first step of the kind is met.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.steps import Step
from ftuner.runtime.gpu.steps.contract import StepKind

KINDS: dict[str, StepKind[Any]] = {}
"""The kinds met so far."""


def kind_of(step: Step) -> StepKind[Any]:
    """The kind of a step.

    Raises:
        UnsupportedOperatorError: there is no module for it.
    """
    found = KINDS.get(step.kind)
    if found is None:
        name = f"{__package__}.{step.kind}"
        try:
            found = KINDS[step.kind] = import_module(name).KIND
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise UnsupportedOperatorError(f"no kernels on a GPU for {step.title}") from None
    return found
