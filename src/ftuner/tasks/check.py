"""`ftuner.check`: a schedule, its machine code and its definition on the same random operands."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.errors import MismatchError, ScheduleError, ShapeError
from ftuner.runtime.cpu.arrays import Array
from ftuner.tasks.interpret import interpret
from ftuner.tasks.program import WORKERS
from ftuner.tasks.schedule import Schedule, text_of

EXTENTS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 32, 33, 37, 64, 67)
"""What symbols are bound to: none, one, primes, multiples of vectors and one more."""
TOLERANCES = {"float32": 2e-4, "float64": 1e-10}
"""Largest difference, relative to the largest element and one. Assumed: sums of some hundred
products in another order."""
MOST_ITERATIONS = 1024
"""Product of all extents. Assumed: the interpreter takes a second for each case at most."""
_TRIES = 50


@dataclass(frozen=True)
class Checked:
    """What `check` compared."""

    cases: int
    isas: tuple[str, ...]
    tiles: int
    """Combinations of tile parameters that ran."""
    largest: float
    """The largest difference from the definition, or from the interpreter without one, relative to
    the largest element and one."""

    def __str__(self) -> str:
        return (
            f"{self.cases} cases on {', '.join(self.isas)}, {self.tiles} tiles: largest relative "
            f"difference {self.largest:.1e}"
        )


def check(
    schedule: Schedule, cases: int = 20, seed: int = 0, isas: Sequence[str] | None = None
) -> Checked:
    """Compare a schedule's interpreter, its machine code and its definition on random operands of
    random extents, among them 0, 1 and primes, for all tiles that are kept.

    Args:
        schedule: made by `ftuner.schedule`.
        cases: extents that are tried.
        seed: of the random numbers.
        isas: of this machine; by default the one that is computed with.

    Raises:
        MismatchError: results differ; the message has the extents and what differs.
        ScheduleError: no random extents fulfil the checks of the schedule.
        HardwareError, ConfigurationError: an ISA that the machine lacks.
    """
    backend = import_module("ftuner.runtime.cpu.backend")
    default = backend.default_backend()
    sessions = [
        default if name == default.kernels.isa.name else backend.CpuBackend(isa=name)
        for name in (isas or [default.kernels.isa.name])
    ]
    random = np.random.default_rng(seed)
    done, largest, ran = 0, 0.0, set()
    for _ in range(cases * _TRIES):
        if done == cases:
            break
        arrays = _operands(schedule, random)
        try:
            bound = schedule.bound([a.shape for a in arrays])
            for tiles in schedule.programs:
                schedule.decide(tiles, bound, 1)
        except ShapeError:
            continue
        tiles = [*schedule.programs][int(random.integers(len(schedule.programs)))]
        workers = int(random.integers(1, 6))
        expected = interpret(schedule.programs[tiles], arrays, bound.extents, workers)
        what = f"of {schedule.__name__} for {bound.extents}"
        if schedule.definition is not None:
            of = f"the interpreter with {text_of(tiles)} and {WORKERS}={workers} {what}"
            defined = _defined(schedule, arrays)
            largest = max(largest, _compare(expected, defined, f"{of} and the definition"))
            expected = defined
        for session in sessions:
            code = schedule.code(session)
            for kept in code.funnel.kept:
                of = f"{session.kernels.isa.name} with {text_of(kept)} {what}"
                largest = max(largest, _compare(code.run(arrays, kept), expected, of))
                ran.add(kept)
        done += 1
    if not done:
        raise ScheduleError(
            f"{schedule.__name__}: no random extents fulfil its conditions; check it on your own"
        )
    return Checked(done, tuple(s.kernels.isa.name for s in sessions), len(ran), largest)


def _operands(schedule: Schedule, random: np.random.Generator) -> list[Array]:
    program = next(iter(schedule.programs.values()))
    values = {name: int(random.choice(EXTENTS)) for name in program.extents}
    while prod(max(v, 1) for v in values.values()) > MOST_ITERATIONS:
        largest = max(values, key=values.__getitem__)
        values[largest] //= 2
    shapes = [[max(evaluate(d, values), 0) for d in a.shape] for a in program.inputs]
    return [random.standard_normal(shape).astype(program.dtype.name) for shape in shapes]


def _defined(schedule: Schedule, arrays: Sequence[Array]) -> list[Array]:
    assert schedule.definition is not None
    with np.errstate(all="ignore"):
        found: Any = schedule.definition(*arrays)
    return [np.asarray(x) for x in (found if isinstance(found, (tuple, list)) else (found,))]


def _compare(found: Sequence[Array], expected: Sequence[Array], what: str) -> float:
    """The largest relative difference. Raises MismatchError if it is too large."""
    if len(found) != len(expected):
        raise MismatchError(f"{what}: {len(found)} outputs; expected {len(expected)}")
    largest = 0.0
    for number, (x, y) in enumerate(zip(found, expected, strict=True)):
        if x.shape != y.shape:
            raise MismatchError(f"{what}: output {number} of shape {x.shape}; expected {y.shape}")
        if not x.size:
            continue
        with np.errstate(all="ignore"):
            apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
            finite = np.abs(y[np.isfinite(y)])
        relative = float(np.max(apart)) / (1.0 + float(np.max(finite, initial=0.0)))
        if not relative <= TOLERANCES[x.dtype.name]:
            place = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), x.shape)
            where = f"output {number} differs at {tuple(map(int, place))}"
            raise MismatchError(f"{what}: {where}: {x[place]!r}; expected {y[place]!r}")
        largest = max(largest, relative)
    return largest
