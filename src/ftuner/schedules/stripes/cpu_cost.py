"""The cost of a chain of steps on a CPU: by stripes of rows, or one step after the other.

By stripes, what passes between two steps of a chain stays in L2. Otherwise all of it is written
before it is read.

The first call with new extents waits for these functions, so that they are a few multiplications
for each member: what does not depend on extents is in a `Work`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple, Protocol

from ftuner.cost.step import Machine, level_of, rate_bytes_per_s

WRITES = 2
"""Times that bytes move which are written beyond a cache: their lines are read first."""


class Extents(NamedTuple):
    """The extents of a member of a chain, in an image; rows and positions are those of its
    result."""

    rows: int
    positions: int
    read_rows: int
    read_positions: int
    begin: int
    """Padding before the first row."""


class StripesProblem(NamedTuple):
    """A chain at known extents."""

    images: int
    extents: tuple[Extents, ...]
    workers: int


class Work(Protocol):
    """What a member of a chain computes, without its extents."""

    @property
    def stride(self) -> int:
        """Rows that its window moves from one row of the result to the next."""

    @property
    def reach(self) -> int:
        """Rows from the first one of a window to the end of its last one."""

    @property
    def position_bytes(self) -> int:
        """Bytes of a position of the result."""

    def read_bytes(self, extents: Extents) -> float:
        """Bytes of a row of what it reads."""

    def seconds(self, positions: int) -> float:
        """Seconds that one worker takes for a number of positions, with its operands in L2."""


Chain = tuple[Work, ...]


def capacities(chain: Chain, rows: int) -> tuple[int, ...]:
    """Rows of each result but the last that are in memory at a time, if the last one has `rows` of
    a stripe. A plan is for a range of extents, so that no image's rows limit them."""
    found: list[int] = []
    for work in reversed(chain[1:]):
        rows = (rows - 1) * work.stride + work.reach
        found.append(rows)
    return tuple(reversed(found))


def bytes_of_rows(chain: Chain, extents: Sequence[Extents]) -> list[int]:
    """Bytes of a row of each result."""
    return [w.position_bytes * e.positions for w, e in zip(chain, extents, strict=True)]


class PartSeconds(NamedTuple):
    """Seconds of a task that has all rows of an image."""

    rows: float
    """Of computing each row once."""
    border: float
    """Of the rows that each further task computes again."""


def seconds_of_part(
    chain: Chain, problem: StripesProblem, rows: int, machine: Machine
) -> PartSeconds:
    """Seconds of one worker for one image by stripes of `rows` rows of the last result."""
    extents, images = problem.extents, problem.images
    row_bytes = bytes_of_rows(chain, extents)
    private = sum(map(mul, capacities(chain, rows), row_bytes))
    near_rate = _rate(private, machine)
    last = len(chain) - 1
    once = again = 0.0
    # Rows of the result that a stripe, and a further task, compute.
    in_stripe, border = rows, 0
    for number in range(last, -1, -1):
        work, member = chain[number], extents[number]
        read = work.read_bytes(member)
        near = outside_s = 0.0
        if number == 0:
            outside_s = work.stride * read / _rate(images * member.read_rows * read, machine)
        else:
            near += work.stride * read
        if number == last:
            written = row_bytes[number]
            outside_s += WRITES * written / _rate(images * member.rows * written, machine)
        else:
            near += row_bytes[number]
        row_s = work.seconds(in_stripe * member.positions) / in_stripe
        row_s = max(row_s, near / near_rate, outside_s)
        if number:
            # Rows that the next stripe reads again are moved.
            kept = max(work.reach - work.stride, 0)
            row_s += WRITES * kept * read / near_rate / in_stripe
        once += member.rows * row_s
        again += border * row_s
        border = border * work.stride + max(work.reach - work.stride, 0)
        in_stripe = min(in_stripe * work.stride, max(member.read_rows, 1))
    return PartSeconds(once, again)


def seconds_apart(chain: Chain, problem: StripesProblem, machine: Machine) -> float | None:
    """Estimated seconds of the busiest worker if the steps run one after the other; None if all
    that passes between them stays in L2, so that stripes save nothing.

    What passes between two steps is written and read through the first level that holds it. Beyond
    L2, computing does not hide these transfers: on AMD Zen 4 the chains of MobileNetV2 at 640 x 640
    take what both take together, and not the longer of both.
    """
    images, workers = problem.images, machine.workers
    near = machine.hardware.levels[:2]
    between_s = 0.0
    outside: list[float] = []
    """Seconds of each step's transfers that are no other step's."""
    last = len(chain) - 1
    for number, (work, member) in enumerate(zip(chain, problem.extents, strict=True)):
        read = images * member.read_rows * work.read_bytes(member)
        written = images * member.rows * member.positions * work.position_bytes
        level = level_of(machine.hardware, int(read + written))
        bytes_between = (read if number else 0.0) + (WRITES * written if number < last else 0.0)
        if level not in near:
            between_s += bytes_between / workers / rate_bytes_per_s(level, workers)
        read_s = 0.0 if number else read / workers / _rate(read, machine)
        write_s = 0.0 if number < last else WRITES * written / workers / _rate(written, machine)
        outside.append(read_s + write_s)
    if not between_s:
        return None
    total = between_s
    for work, member, outside_s in zip(chain, problem.extents, outside, strict=True):
        positions = -(-images * member.rows * member.positions // workers)
        total += max(work.seconds(positions), outside_s) + machine.synchronise_s
    return total


def _rate(footprint_bytes: float, machine: Machine) -> float:
    """Bytes per second of one worker from the first level that holds some bytes."""
    level = level_of(machine.hardware, int(footprint_bytes))
    return rate_bytes_per_s(level, machine.workers)


def least_tasks(part: PartSeconds, problem: StripesProblem, waited: float) -> float:
    """The number of tasks of a worker that takes least time, if it waits for `waited` of a task.

    With n tasks a worker takes `(n + waited) * (rows / n + border)` seconds, where `rows` is its
    share of all rows.
    """
    rows_s = part.rows * problem.images / problem.workers
    return math.sqrt(waited * rows_s / part.border) if part.border else math.inf
