"""The tasks of a step, found when extents are bound, and how they are shared between workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.products import Ready
from ftuner.runtime.shapes.evaluation import Layouts


class BoundTask(NamedTuple):
    """What a step does at concrete extents."""

    workers: int
    """Workers that take part."""
    chunks: int
    """Pieces of the step, each done by the worker that takes it first. 0 if there is nothing to
    do."""
    tasks: int
    """Tasks that the chunks are made of; 0 for a product, whose plan holds its chunks."""
    together: bool
    """Whether the workers wait for each other within the step."""
    values: Sequence[int]
    """For the slots that the step has reserved for its task."""
    workspace_bytes: int
    worker_bytes: int
    """The part of the workspace that each worker has to itself, where a report lists it."""
    plan: Ready | None
    """The plan that the records point to."""


class Task(ABC):
    """What is planned of a step when extents are bound. Tasks are frozen dataclasses. Steps whose
    tasks are equal are planned once."""

    @abstractmethod
    def bind(
        self, values: Sequence[int], layouts: Layouts, workers: int, hardware: CpuHardware
    ) -> BoundTask:
        """The task for values of the dims."""

    @property
    def plan_rows(self) -> Callable[[int, int], object] | None:
        """Makes the plan for a number of rows and of workers, ahead of the first run that needs
        it; None unless the plan depends on nothing else."""
        return None


def nothing_to_do(workers: int, slots: int) -> BoundTask:
    """A step without elements, with so many slots for its task."""
    return BoundTask(workers, 0, 0, False, (0,) * slots, 0, 0, None)


def most_chunks(workers: int, hardware: CpuHardware) -> int:
    """The most chunks that a step is cut into."""
    return hardware.tuning.chunks_per_worker * workers if workers > 1 else 1
