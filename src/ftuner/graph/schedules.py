"""The schedules, whose modules are found by their names: each of ours is a folder of `schedules`.

`step` has the step, the lowering to it, or both: `lower(node, placement)` returns what
`Operator.lower` does, and `rewritten(steps, outputs, runs)` the steps of a lowered graph with some
of them replaced. `cpu_binding` and `gpu_binding` have the kind of step, `KIND`, on each device that
runs it (`runtime.step_kinds`), and name the module that emits the kernel. All are imported when
they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from ftuner.core.extensions import note_extension
from ftuner.errors import ConfigurationError
from ftuner.graph.buffers import View
from ftuner.graph.ir import Node
from ftuner.graph.placement import Form, Placement, Runs
from ftuner.graph.steps import Step


class Schedule(NamedTuple):
    """A schedule, by its name, which is that of the kind of its steps."""

    name: str
    operators: tuple[str, ...] = ()
    """Operators of ftuner that it lowers nodes of. The first schedule that returns forms of a node
    lowers it."""
    rewrites: bool = False
    """Whether it replaces steps."""
    more_kinds: tuple[str, ...] = ()
    """Other kinds of its steps. Their modules end in `_binding_KIND`."""
    prefix: str = ""
    """What the full names of its modules begin with: `PACKAGE.`, or what flat names have in common.
    If empty, they are those of a folder of `ftuner/schedules`."""

    def module(self, file: str) -> Any:
        return import_module(self.module_name(file))

    def module_name(self, file: str) -> str:
        return f"{self.prefix or f'ftuner.schedules.{self.name}.'}{file}"


SCHEDULES = (
    Schedule("nest"),
    Schedule("product", ("matmul", "narrow_matmul", "word_matmul", "block_matmul")),
    Schedule("attention", ("attention", "word_attention")),
    Schedule("depthwise", ("convolution", "window_reduce")),
    Schedule(
        "convolution", ("convolution", "word_convolution"), more_kinds=("grouped_convolution",)
    ),
    Schedule("winograd", rewrites=True),
    Schedule("line_winograd", rewrites=True),
    Schedule("stripes", rewrites=True, more_kinds=("whole",)),
    Schedule("recurrence", ("recurrence",)),
    Schedule("experts", ("expert_matmul",)),
    Schedule("top_k", ("top_k",)),
    Schedule("suppression", ("suppress",)),
    Schedule("trees", ("trees",)),
    Schedule("coupling", ("couple",)),
    # Of users, in the room of their language.
    Schedule("scheduled", ("scheduled",), prefix="ftuner.tasks."),
)


def modules(file: str) -> Iterator[Any]:
    """The modules of a name that schedules of ftuner have."""
    return (s.module(file) for s in SCHEDULES if find_spec(s.module_name(file)))


_OUTSIDE: list[Schedule] = []


def register_schedule(schedule: Schedule) -> None:
    """Add a schedule from outside ftuner. It may rewrite steps; an operator that is lowered to its
    steps has a lowering of its own (`Operator.lower`).

    Raises:
        ConfigurationError: another one has its name, or steps of the kind.
    """
    for kind in (schedule.name, *schedule.more_kinds):
        if any(kind in (s.name, *s.more_kinds) for s in _all() if s != schedule):
            raise ConfigurationError(f"another kind of step is called {kind!r}; choose a name")
    note_extension(schedule.module_name("step"))
    if schedule not in _OUTSIDE:
        _OUTSIDE.append(schedule)


def _all() -> tuple[Schedule, ...]:
    return (*SCHEDULES, *_OUTSIDE)


def binding_name(kind: str, back_end: str) -> str | None:
    """The module of a kind of step on a back end, which may not be there; None if no schedule has
    the kind."""
    for schedule in _all():
        if kind == schedule.name:
            return schedule.module_name(f"{back_end}_binding")
        if kind in schedule.more_kinds:
            return schedule.module_name(f"{back_end}_binding_{kind}")
    return None


def lowering_of(operator: str) -> Callable[[Node, Placement], Sequence[Form] | None] | None:
    """The lowering of an operator by its schedules, in the order of the table; None if there are
    none."""
    schedules = tuple(s for s in SCHEDULES if operator in s.operators)

    def lower(node: Node, placement: Placement) -> Sequence[Form] | None:
        found = (schedule.module("step").lower(node, placement) for schedule in schedules)
        return next((forms for forms in found if forms is not None), None)

    return lower if schedules else None


def rewritten(steps: Sequence[Step], outputs: Sequence[View], runs: Runs) -> tuple[Step, ...]:
    """The steps of a lowered graph, some of them replaced. `outputs`: of the graph; `runs`: whether
    a back end has a kind of step for a dtype."""
    for schedule in _all():
        if schedule.rewrites:
            steps = schedule.module("step").rewritten(steps, outputs, runs)
    return tuple(steps)
