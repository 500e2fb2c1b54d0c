"""The cost of a chain of steps on a CPU: by stripes of rows, or one step after the other.

By stripes, what passes between two steps of a chain stays in L2. Otherwise all of it is written
before it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple, Protocol

from ftuner.core.cpu.windows import DepthwiseKernel
from ftuner.cost.cpu.depthwise import DepthwiseProblem, depthwise_cycles
from ftuner.cost.step import Machine, Stream, estimate_of, level_of, rate_bytes_per_s

WRITES = 2
"""Times that bytes move which are written beyond a cache: their lines are read first."""


class Extents(NamedTuple):
    """The extents of a member of a chain, in an image; rows and positions are those of its
    result."""

    rows: int
    positions: int
    read_rows: int
    read_positions: int
    stride: int
    """Rows that its window moves."""
    reach: int
    """Rows from the first one of a window to the end of its last one."""
    begin: int


class StripesProblem(NamedTuple):
    """A chain at known extents."""

    images: int
    extents: tuple[Extents, ...]
    workers: int


class Cycles(NamedTuple):
    """As the arguments of `estimate_of`."""

    issue: float
    stall: float
    fixed: float

    def times(self, factor: float) -> Cycles:
        return Cycles(self.issue * factor, self.stall * factor, self.fixed * factor)


class Work(Protocol):
    """What a member of a chain computes, without its extents."""

    @property
    def columns(self) -> int:
        """Channels of the result."""

    def read_bytes(self, extents: Extents) -> int:
        """Bytes of a row of what it reads."""

    def cycles(self, extents: Extents, rows: int, machine: Machine) -> Cycles:
        """Cycles of computing some rows at a time."""


class KernelWork(NamedTuple):
    """A depthwise convolution, or a reduction of windows."""

    kernel: DepthwiseKernel
    columns: int

    def read_bytes(self, extents: Extents) -> int:
        return extents.read_positions * self.columns * self.kernel.dtype.itemsize

    def cycles(self, extents: Extents, rows: int, machine: Machine) -> Cycles:
        shape = (1, rows, extents.positions, self.columns)
        found = depthwise_cycles(DepthwiseProblem(shape, 0, self.kernel), machine)
        return Cycles(found.issue, 0.0, found.fixed)


def capacities(extents: Sequence[Extents], rows: int) -> tuple[int, ...]:
    """Rows of each result but the last that are in memory at a time, if the last one has `rows` of
    a stripe."""
    found: list[int] = []
    for member in reversed(extents[1:]):
        rows = min((rows - 1) * member.stride + member.reach, max(member.read_rows, 1))
        found.append(rows)
    return tuple(reversed(found))


def seconds_by_stripes(
    chain: tuple[Work, ...], itemsize: int, problem: StripesProblem, rows: int, parts: int,
    machine: Machine,
) -> float:  # fmt: skip
    """Estimated seconds of the busiest worker by stripes of `rows` rows."""
    extents, images = problem.extents, problem.images
    tasks = -(-images * parts // problem.workers)
    workers = min(problem.workers, images * parts)
    total = 0.0
    private = sum(map(mul, capacities(extents, rows), all_row_bytes(chain, itemsize, problem)))
    # Rows of the member's result in a task, and in a stripe.
    mine = extents[-1].rows / parts
    in_stripe = min(rows, math.ceil(mine))
    stripes = math.ceil(mine / in_stripe)
    for number in reversed(range(len(chain))):
        work, member = chain[number], extents[number]
        times = mine / in_stripe
        row_bytes, read_bytes = _row_bytes(work, member, itemsize), work.read_bytes(member)
        streams, near = [], 0.0
        if number == 0:
            taken = mine * member.stride * read_bytes
            streams.append(Stream(taken, images * member.read_rows * read_bytes))
        else:
            near += in_stripe * member.stride * read_bytes
        if number == len(chain) - 1:
            written = WRITES * mine * row_bytes
            streams.append(Stream(written, images * member.rows * row_bytes))
        else:
            near += in_stripe * row_bytes
        streams.append(Stream(times * near, private))
        cycles = work.cycles(member, in_stripe, machine).times(times)
        total += estimate_of(machine, workers, *cycles, streams).seconds - machine.synchronise_s
        if number:
            kept = max(member.reach - member.stride, 0)
            moves = Stream(WRITES * (stripes - 1) * kept * read_bytes, private)
            total += estimate_of(machine, workers, 0.0, 0.0, 0.0, [moves]).stall_s
            mine = min(mine * member.stride + kept, max(member.read_rows, 1))
            in_stripe = min(in_stripe * member.stride, math.ceil(mine))
    if problem.workers == 1:
        return tasks * total
    waited = machine.hardware.tuning.waited_share_of_task
    return (tasks + waited) * total + machine.synchronise_s


def seconds_apart(
    chain: tuple[Work, ...], itemsize: int, problem: StripesProblem, machine: Machine
) -> float:
    """Estimated seconds of the busiest worker if the steps run one after the other.

    What passes between two steps is written and read through the first level that holds all of it.
    Beyond L2, computing does not hide these transfers: on AMD Zen 4 the chains of MobileNetV2 at
    640 x 640 take what both take together, and not the longer of both.
    """
    hardware, images = machine.hardware, problem.images
    share = 1.0 / problem.workers
    total = 0.0
    for number, (work, member) in enumerate(zip(chain, problem.extents, strict=True)):
        row_bytes, read_bytes = _row_bytes(work, member, itemsize), work.read_bytes(member)
        read, written = images * member.read_rows * read_bytes, images * member.rows * row_bytes
        streams: list[Stream] = []
        between: list[Stream] = []
        if number == 0:
            streams.append(Stream(share * read, read))
        else:
            between.append(Stream(share * read, read + written))
        if number == len(chain) - 1:
            streams.append(Stream(WRITES * share * written, written))
        else:
            between.append(Stream(WRITES * share * written, read + written))
        rows = -(-images * member.rows // problem.workers)
        cycles = work.cycles(member, rows, machine)
        total += estimate_of(machine, problem.workers, *cycles, streams).seconds
        for stream in between:
            level = level_of(hardware, stream.footprint_bytes)
            if level not in hardware.levels[:2]:
                total += stream.bytes / rate_bytes_per_s(level, problem.workers)
    return total


def all_row_bytes(chain: tuple[Work, ...], itemsize: int, problem: StripesProblem) -> list[int]:
    """Bytes of a row of each result."""
    return [_row_bytes(w, e, itemsize) for w, e in zip(chain, problem.extents, strict=True)]


def _row_bytes(work: Work, extents: Extents, itemsize: int) -> int:
    """Bytes of a row of a member's result."""
    return extents.positions * work.columns * itemsize
