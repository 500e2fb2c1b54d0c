"""The kinds of steps that a back end can run, found by name (`graph.schedules`)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Generic, TypeVar

from ftuner.core.dim import Shape
from ftuner.core.dtype import DType
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.schedules import binding_name
from ftuner.graph.steps import Step

S = TypeVar("S", bound=Step)


class CommonKind(Generic[S]):
    """What a back end asks of every kind of step."""

    def loops(self, step: S) -> Shape:
        """The extents of loops that may have more iterations than the operands have elements;
        binding refuses too many. Empty if the step has no such loops."""
        return ()

    def supports(self, dtype: DType) -> bool:
        """Whether there are kernels for elements of a dtype. Lowering asks this of kinds that it
        can do without."""
        return True

    def multiplied(self, step: S) -> DType | None:
        """The element type of the matrices that the step multiplies; None if there are none."""
        return None


_Kind = TypeVar("_Kind", bound=CommonKind[Any])


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

    def runs(self, kind: str, dtype: DType) -> bool:
        """Whether there is a kind of step for a dtype."""
        found = self.named(kind)
        return found is not None and found.supports(dtype)

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
