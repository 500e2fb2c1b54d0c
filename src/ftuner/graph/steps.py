"""The steps that a graph is lowered to. They run one after the other on buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, Protocol

from ftuner.core.dim import Dim, Shape, Symbolic
from ftuner.core.frozen import dataclass
from ftuner.graph.appending import Appended
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Graph

DimText = Callable[[Dim], str]


def shape_text(shape: Shape, text: DimText) -> str:
    """Extents as `described` shows them."""
    return f"[{', '.join(map(text, shape))}]"


class Step(Protocol):
    """One step of a lowered graph, of some kind. Steps are frozen dataclasses."""

    kind: ClassVar[str]
    """The name of the kind: `runtime.step_kinds` finds by it what implements the kind on each
    device."""

    @property
    def title(self) -> str:
        """The operators that are fused into the step, in their order."""
        ...

    @property
    def reads(self) -> tuple[Buffer, ...]: ...

    @property
    def writes(self) -> tuple[Buffer, ...]: ...

    @property
    def dims(self) -> tuple[Dim, ...]:
        """What the work of the step depends on, besides the sizes of its buffers."""
        ...

    def described(self, text: DimText) -> str:
        """The shapes that the step computes on, for people. `text` names a dim."""
        ...


class KernelStep(Step, Protocol):
    """A step that is one kernel."""

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        ...


class ViewStep:
    """A dataclass whose fields say what the step accesses: views, buffers and dims, and tuples of
    them. Other fields do not matter here."""

    results: ClassVar[tuple[str, ...]] = ("out",)
    """The fields that the step writes; it reads those of all others."""

    @cached_property
    def reads(self) -> tuple[Buffer, ...]:
        """In the order of the fields, as all that follows."""
        return tuple(buffer for name, buffer in self._buffers() if name not in self.results)

    @cached_property
    def writes(self) -> tuple[Buffer, ...]:
        return tuple(buffer for name, buffer in self._buffers() if name in self.results)

    @cached_property
    def views(self) -> tuple[View, ...]:
        return tuple(value for _, value in self._values() if isinstance(value, View))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of views' extents and strides, and of fields, that run time alone decides."""
        found: list[Any] = []
        for _, value in self._values():
            layout = value.layout if isinstance(value, View) else None
            found += [value] if layout is None else [*layout.shape, *layout.strides]
        return tuple(value for value in found if isinstance(value, Symbolic))

    def _values(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            for one in value if isinstance(value, tuple) else (value,):
                yield field.name, one

    def _buffers(self) -> Iterator[tuple[str, Buffer]]:
        for name, value in self._values():
            if isinstance(value, (View, Buffer)):
                yield name, value if isinstance(value, Buffer) else value.buffer


@dataclass(frozen=True)
class Lowered:
    """A graph as steps that run one after the other."""

    graph: Graph
    steps: tuple[Step, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[View, ...]
    appended: tuple[Appended, ...] = ()
    """Outputs that are in memory with room for more rows, and begin with an input."""

    def lifetimes(self) -> dict[Buffer, tuple[int, int]]:
        """The first and the last step that access each buffer of the arena, in the order of the
        first ones."""
        found: dict[Buffer, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for buffer in (*step.writes, *step.reads):
                if buffer.kind == "arena":
                    first, _ = found.get(buffer, (number, number))
                    found[buffer] = (first, number)
        return found
