"""The kinds of steps that a back end can run, found by name (`graph.schedules`)."""

from __future__ import annotations

from importlib import import_module
from typing import Generic, TypeVar

from ftuner.core.dtype import DType
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.schedules import binding_name
from ftuner.graph.steps import Step

_Kind = TypeVar("_Kind")


class MatrixKind:
    """What the kinds of steps that multiply matrices share on every back end."""

    def multiplied(self, step: Step) -> DType:
        """The element type of the matrices that the step multiplies. The first that it reads is
        one of them; weights may have another type in memory."""
        return step.reads[0].dtype


class StepKinds(Generic[_Kind]):
    """A table of kinds, filled as steps are met: `KIND` of the modules that implement them."""

    def __init__(self, back_end: str) -> None:
        """`back_end`: "cpu" or "gpu"."""
        self._back_end = back_end
        self._found: dict[str, _Kind] = {}

    def named(self, kind: str) -> _Kind | None:
        """The kind that has a name; None if no module implements it."""
        found = self._found.get(kind)
        if found is None:
            name = binding_name(kind, self._back_end)
            if name is None:
                return None
            try:
                found = self._found[kind] = import_module(name).KIND
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
        return found

    def of(self, step: Step) -> _Kind:
        """The kind of a step.

        Raises:
            UnsupportedOperatorError: there is no module for it.
        """
        found = self.named(step.kind)
        if found is None:
            raise UnsupportedOperatorError(
                f"no kernels on a {self._back_end.upper()} for {step.title}"
            )
        return found
