"""How a kernel is walked: which axis lies along vectors, what a task is."""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.access import POSITIONAL, Kernel
from ftuner.core.dim import Dim, ceil_quotient, product


@dataclass(frozen=True)
class Schedule:
    """How a kernel is walked."""

    vector: int | None
    """The axis along which vectors lie; None if everything is a scalar."""
    lanes: int
    tasks: tuple[int, ...]
    """The kept axes that tasks number, slowest first; none if they are blocks of `vector`."""
    block: int
    """Elements of the vector axis in such a block."""


def schedule_of(kernel: Kernel, vector_bytes: int, block: int) -> Schedule:
    """The vector axis is that along which most accesses are contiguous, the last one in doubt.

    `block`: elements of the vector axis in a task, where it is the only kept axis.
    """
    kept = len(kernel.kept)
    if any(t.rest for t in kernel.targets):
        # Elements may be written more than once: one after the other.
        return Schedule(None, 1, (), block)
    accesses = [*kernel.targets, *(a for a in kernel.accesses if a is not None)]
    candidates = [a for a in (kept - 1, len(kernel.axes) - 1) if a >= 0]
    positions = any(s.kind in POSITIONAL for s in kernel.stages)
    if positions:
        candidates = [a for a in candidates if a < kept]

    def contiguous(axis: int) -> tuple[int, int]:
        return sum(1 for a in accesses if a.coefficients[axis] == 1), axis

    vector = max(candidates, key=contiguous, default=None)
    if positions and vector is not None and contiguous(vector)[0] < 2:
        # A reduction of rows, element by element.
        vector = None
    tasks = tuple(a for a in range(kept) if a != vector)
    return Schedule(vector, vector_bytes // _widest(kernel), tasks, block)


def _widest(kernel: Kernel) -> int:
    """Bytes of the widest element that is computed with: of floats, if there are any."""
    dtypes = [s.dtype for s, a in zip(kernel.steps, kernel.accesses, strict=True) if a is not None]
    dtypes += [kernel.steps[v].dtype for v in kernel.values]
    floats = [d.itemsize for d in dtypes if d.kind == "float"]
    return max(floats or [d.itemsize for d in dtypes], default=8)


def task_count(kernel: Kernel, schedule: Schedule) -> Dim:
    """Tasks there are."""
    if schedule.tasks or schedule.vector is None or schedule.vector >= len(kernel.kept):
        return product(kernel.axes[a] for a in schedule.tasks)
    return ceil_quotient(kernel.axes[schedule.vector], schedule.block)


def checks(kernel: Kernel) -> list[str]:
    """The texts of a kernel's checks: the status of the n-th that fails is n + 1."""
    return sorted({str(s.payload) for s in kernel.steps if s.op == "checked"})


def operand_numbers(kernel: Kernel) -> list[int]:
    """The operands of the nest that the kernel still reads, in the order of their buffers."""
    return sorted({int(s.payload) for s in kernel.steps if s.op == "load"})  # type: ignore[arg-type]
