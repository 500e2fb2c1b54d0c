"""Task mappings: which worker executes which tasks, in which order.

The algebra is Hidet's (arXiv 2210.09603): `repeat` gives all tasks to one worker,
`spatial` gives one task to each worker, and `outer * inner` puts a whole `inner` at every task of
`outer`. Ours adds uneven blocks: `split` and `grid` share out any extents among any number of
workers, so that extents known only at run time need no padding.

    >>> spatial(2, 1) * repeat(1, 2)
    spatial(2, 1) * repeat(1, 2)
    >>> (spatial(2, 1) * repeat(1, 2)).tasks(1)
    [(1, 0), (1, 1)]

A mapping is a frozen value. Its tasks are indices below `shape`, one integer an axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from ftuner.core.frozen import dataclass
from ftuner.core.ranges import bounds
from ftuner.errors import ShapeError


class TaskMapping(ABC):
    """A function from workers `0 .. workers - 1` to ordered lists of tasks."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Number of tasks along each axis."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Number of workers."""

    @abstractmethod
    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        """The tasks of `worker`, in the order it executes them; each has one index an axis.

        Raises ShapeError unless `0 <= worker < workers`.
        """

    def enumerate(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Every (worker, task), by worker and then in the worker's order."""
        for worker in range(self.workers):
            for task in self.tasks(worker):
                yield worker, task

    def __mul__(self, inner: TaskMapping) -> TaskMapping:
        """The composition: `inner` as a whole at every task of `self`.

        Shapes and numbers of workers multiply. Worker `w1 * inner.workers + w2` executes
        `t1 * inner.shape + t2` for each `t1` of `self.tasks(w1)` and, within it, each `t2` of
        `inner.tasks(w2)`. Raises ShapeError if the two differ in their number of axes.
        """
        if not isinstance(inner, TaskMapping):
            return NotImplemented
        return Composition((*factors(self), *factors(inner)))


def strides(extents: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    """How far apart two neighbours along each axis are in the order given by `ranks`: the product
    of the extents of all axes of a higher rank."""
    return tuple(prod(e for e, r in zip(extents, ranks, strict=True) if r > rank) for rank in ranks)


def loop_order(ranks: Sequence[int]) -> tuple[int, ...]:
    """The axes from the outermost loop to the innermost."""
    return tuple(sorted(range(len(ranks)), key=ranks.__getitem__))


@dataclass(frozen=True, repr=False)
class _Ranked(TaskMapping):
    """A mapping whose axes have an order: `ranks[axis]`, 0 outermost."""

    extents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_extents(self.extents)
        if sorted(self.ranks) != list(range(len(self.extents))):
            raise ShapeError(
                f"ranks {self.ranks} for extents {self.extents}; expected a permutation of "
                f"0 .. {len(self.extents) - 1}, the loop level of each axis"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents


@dataclass(frozen=True, repr=False)
class Repeat(_Ranked):
    """One worker executes all tasks; `ranks[axis]` is that axis's loop level, 0 outermost."""

    @property
    def workers(self) -> int:
        return 1

    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        _check_worker(self, worker)
        order = loop_order(self.ranks)
        visits = product(*(range(self.extents[axis]) for axis in order))
        return [tuple(visit[level] for level in self.ranks) for visit in visits]

    def __repr__(self) -> str:
        return f"repeat({_arguments(self.extents, self.ranks)})"


@dataclass(frozen=True, repr=False)
class Spatial(_Ranked):
    """One task a worker; neighbouring workers differ along the axis of the highest rank."""

    @property
    def workers(self) -> int:
        return prod(self.extents)

    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        _check_worker(self, worker)
        steps = strides(self.extents, self.ranks)
        return [tuple(worker // s % e for s, e in zip(steps, self.extents, strict=True))]

    def __repr__(self) -> str:
        return f"spatial({_arguments(self.extents, self.ranks)})"


@dataclass(frozen=True, repr=False)
class Partition(TaskMapping):
    """Each worker executes one hyper-rectangle of the tasks, row-major.

    The workers stand in a row-major grid of `parts`, as in `spatial(*parts)`; along each axis the
    extent is cut by `bounds`, so that blocks differ by at most one and may be empty.
    """

    extents: tuple[int, ...]
    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_extents(self.extents)
        if len(self.parts) != len(self.extents):
            raise ShapeError(
                f"parts {self.parts} and extents {self.extents} differ in their number of axes; "
                "give one number of parts for each extent"
            )
        for parts in self.parts:
            if parts < 1:
                raise ShapeError(f"{parts} parts; expected at least 1")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    @property
    def workers(self) -> int:
        return prod(self.parts)

    def rectangle(self, worker: int) -> tuple[tuple[int, int], ...]:
        """The half-open range (begin, end) of `worker`'s tasks along each axis.

        Raises ShapeError unless `0 <= worker < workers`.
        """
        _check_worker(self, worker)
        (position,) = spatial(*self.parts).tasks(worker)
        return tuple(
            bounds(extent, parts, at)
            for extent, parts, at in zip(self.extents, self.parts, position, strict=True)
        )

    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        return list(product(*(range(begin, end) for begin, end in self.rectangle(worker))))

    def __repr__(self) -> str:
        if len(self.extents) == 1:
            return f"split({self.extents[0]}, {self.parts[0]})"
        return f"grid({self.extents}, {self.parts})"


@dataclass(frozen=True, repr=False)
class Composition(TaskMapping):
    """A product of mappings, outermost first. It is kept flat, so that however the product was
    bracketed the value is the same."""

    factors: tuple[TaskMapping, ...]

    def __post_init__(self) -> None:
        shapes = [factor.shape for factor in self.factors]
        if len({len(shape) for shape in shapes}) != 1:
            raise ShapeError(
                f"cannot compose {self!r}: its factors have {[len(s) for s in shapes]} axes; "
                "give all the same number, with an extent of 1 where a factor does nothing"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(e) for e in zip(*(f.shape for f in self.factors), strict=True))

    @property
    def workers(self) -> int:
        return prod(factor.workers for factor in self.factors)

    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        _check_worker(self, worker)
        tasks: list[tuple[int, ...]] = [(0,) * len(self.shape)]
        inner_workers = self.workers
        for factor in self.factors:
            inner_workers //= factor.workers
            own, worker = divmod(worker, inner_workers)
            inner = factor.tasks(own)
            tasks = [
                tuple(o * e + i for o, e, i in zip(outer, factor.shape, task, strict=True))
                for outer in tasks
                for task in inner
            ]
        return tasks

    def __repr__(self) -> str:
        return " * ".join(map(repr, self.factors))


def factors(mapping: TaskMapping) -> tuple[TaskMapping, ...]:
    """The mappings whose product `mapping` is, outermost first; itself alone if it is none."""
    return mapping.factors if isinstance(mapping, Composition) else (mapping,)


def repeat(*extents: int, ranks: Sequence[int] | None = None) -> Repeat:
    """One worker executes all `prod(extents)` tasks.

    `ranks[axis]` is that axis's loop level, 0 outermost; without it the order is row-major.
    Raises ShapeError for a negative extent or ranks that are not a permutation of the axes.
    """
    return Repeat(extents, _ranks(extents, ranks))


def spatial(*extents: int, ranks: Sequence[int] | None = None) -> Spatial:
    """`prod(extents)` workers execute one task each.

    Workers are numbered along the axis of the highest rank first; without `ranks` the numbering
    is row-major. Raises ShapeError for a negative extent or ranks that are no permutation of the
    axes.
    """
    return Spatial(extents, _ranks(extents, ranks))


def split(extent: int, parts: int) -> Partition:
    """One axis of `extent` tasks in `parts` contiguous, near-even ranges, one a worker.

    Raises ShapeError for a negative extent or less than one part.
    """
    return Partition((extent,), (parts,))


def grid(extents: Sequence[int], parts: Sequence[int]) -> Partition:
    """A task grid of `extents` in near-even hyper-rectangles, `parts[axis]` of them along each
    axis, one a worker.

    Raises ShapeError for a negative extent, less than one part, or sequences of unequal length.
    """
    return Partition(tuple(extents), tuple(parts))


def _ranks(extents: tuple[int, ...], ranks: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(range(len(extents))) if ranks is None else tuple(ranks)


def _arguments(extents: tuple[int, ...], ranks: tuple[int, ...]) -> str:
    arguments = [str(extent) for extent in extents]
    if ranks != _ranks(extents, None):
        arguments.append(f"ranks={ranks}")
    return ", ".join(arguments)


def _check_extents(extents: tuple[int, ...]) -> None:
    if any(extent < 0 for extent in extents):
        raise ShapeError(f"extents {extents}; expected none below 0")


def _check_worker(mapping: TaskMapping, worker: int) -> None:
    if not 0 <= worker < mapping.workers:
        raise ShapeError(
            f"worker {worker} of {mapping!r}; expected 0 <= worker < {mapping.workers}"
        )
