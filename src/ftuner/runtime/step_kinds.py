"""The kinds of steps that a device can run, found by name: one module for each kind."""

from __future__ import annotations

from importlib import import_module
from typing import Generic, TypeVar

from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.steps import Step

_Kind = TypeVar("_Kind")


class StepKinds(Generic[_Kind]):
    """A table of kinds, filled as steps are met.

    `Step.kind` names a module of a package, and the module's `KIND` implements the kind. So a new
    kind is one new module.
    """

    def __init__(self, package: str, device: str) -> None:
        """`package`: the full name of the package; `device`: its device, for error messages."""
        self._package, self._device = package, device
        self._found: dict[str, _Kind] = {}

    def of(self, step: Step) -> _Kind:
        """The kind of a step.

        Raises:
            UnsupportedOperatorError: the package has no module for it.
        """
        found = self._found.get(step.kind)
        if found is None:
            name = f"{self._package}.{step.kind}"
            try:
                found = self._found[step.kind] = import_module(name).KIND
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
                raise UnsupportedOperatorError(
                    f"no kernels on {self._device} for {step.title}"
                ) from None
        return found
