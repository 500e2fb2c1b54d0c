"""Tasks: what a step does at bound extents, and how workers share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ftuner.core.frozen import dataclass
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.products import PlannedRanges, Ready
from ftuner.runtime.shapes.evaluation import DimValues, Layouts


class Field(NamedTuple):
    """A value of a task that its plan leaves open: a dim times a factor."""

    place: int
    """Among `BoundTask.values`; -1 is the number of tasks."""
    dim: int
    """The number of the dim."""
    factor: int


class BoundTask(NamedTuple):
    """A step at bound extents."""

    workers: int
    """Number of workers that take part."""
    chunks: int
    """Chunks for work stealing; 0 if there is nothing to do."""
    tasks: int
    """Tasks that the chunks divide; 0 for a product, whose plan has its chunks."""
    together: bool
    """Whether the workers wait for each other within the step."""
    values: Sequence[int]
    """Values for the slots that the step has reserved for its task; those of `Task.fields` are
    written over."""
    workspace_bytes: int
    worker_bytes: int
    """The part of the workspace that each worker of an attention has."""
    plan: Ready | None
    """The plan that the records point to."""
    variant: int = 0
    """Which `Task.fields` the plan leaves open."""


class PlanKey(NamedTuple):
    """What a task depends on. Tasks of one form are planned once where their dims have the same
    values: layers that are alike may have symbols of their own."""

    form: object
    """The task without the numbers of its dims and layouts; hashable. Of a condition, nothing."""
    exact: tuple[int, ...] = ()
    """The numbers of all dims that decide the plan, in an order that the form determines."""
    fine: tuple[int, ...] = ()
    """Of dims that decide by their fine ranges: binding reads `DimValues.fine` of them."""
    middle: tuple[int, ...] = ()
    """Of dims that decide by their coarse ranges: binding reads `DimValues.middle` of them."""
    coarse: tuple[int, ...] = ()
    """Of dims that decide by the coarse ranges of the symbols: binding reads `DimValues.coarse` of
    them."""


class Task(ABC):
    """Plans a step when extents are bound. Tasks are frozen dataclasses; steps with equal tasks are
    planned once."""

    @abstractmethod
    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        """The step at values of the dims."""

    @abstractmethod
    def plan_key(self, layouts: Layouts) -> PlanKey:
        """What the task depends on."""

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        """The values that differ from shape to shape though the plan does not, of bound tasks of a
        variant."""
        return ()

    @property
    def plan_ranges(self) -> Callable[[tuple[int, ...], int], PlannedRanges] | None:
        """A function that makes the plans for ranges of rows, by their first rows, and a number of
        workers before the first run that needs them; None if plans depend on anything else. The
        first plans of a saved model are kept."""
        return None


class Condition(ABC):
    """What decides, when extents are bound, whether another step does the work of a step.
    Conditions are frozen dataclasses."""

    @abstractmethod
    def holds(self, values: DimValues, workers: int, hardware: CpuHardware) -> bool:
        """Whether it does, at values of the dims."""

    @abstractmethod
    def plan_key(self) -> PlanKey:
        """What the condition depends on."""


@dataclass(frozen=True)
class EqualTasks(Task):
    """Tasks of equal duration, whose number is a dim."""

    dim: int
    """The number of the dim."""

    def bind(
        self, values: DimValues, layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        chunks = min(values.fine[self.dim], most_chunks(workers, hardware))
        return BoundTask(workers, chunks, 0, False, (), 0, 0, None)

    def plan_key(self, layouts: Layouts) -> PlanKey:
        return PlanKey(EqualTasks, fine=(self.dim,))

    def fields(self, layouts: Layouts, variant: int) -> tuple[Field, ...]:
        return (Field(-1, self.dim, 1),)


def nothing_to_do(workers: int, slots: int) -> BoundTask:
    """A step without elements, whose task has `slots` slots."""
    return BoundTask(workers, 0, 0, False, (0,) * slots, 0, 0, None)


def most_chunks(workers: int, hardware: CpuHardware) -> int:
    """The largest number of chunks of a step."""
    return hardware.tuning.chunks_per_worker * workers if workers > 1 else 1
