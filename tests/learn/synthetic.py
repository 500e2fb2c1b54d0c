"""Machines whose truth is known: plans take the estimate times a distortion and noise."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ftuner.core.dtype import DTYPES
from ftuner.core.product import product_types
from ftuner.cost.step import Estimate
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.learn.samples import Dataset, Header, Sample, SamplePlan, SampleProblem
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.planner import Planner, panel_problem
from ftuner.ukernels.cpu.library import build_library

SHAPES = tuple(
    (64 * int(n), 32 * int(k))
    for n, k in np.random.default_rng(1).integers((4, 4), (40, 48), (32, 2))
)
"""Random, so that one half of them is like the other."""
ROWS = (1, 2, 3, 5, 7, 8, 11, 16, 24, 33, 64, 130)

Distortion = Callable[[CpuHardware, Sample], float]
"""The true log(measured / estimated) of a sample."""


def machine(name: str) -> CpuHardware:
    hardware = load_recorded(name)
    assert isinstance(hardware, CpuHardware)
    return hardware


def one_cause(hardware: CpuHardware, sample: Sample) -> float:
    """A machine on which low tiles and workers that cut m take longer than estimated, and longer
    the less bandwidth its L2 has."""
    tiles = sum(tiles for _, tiles in sample.plan.segments)
    low = tiles == 1 and sample.plan.segments[0][0] <= hardware.tuning.low_tile_rows
    l2_vectors = hardware.levels[1].bandwidth_bytes_per_s / hardware.clock_hz / 32
    waits = 0.35 * low + 0.2 * math.log2(sample.plan.grid[1])
    return waits - 0.1 * math.log2(l2_vectors) + 0.04 * math.log2(sample.problem.k / 512)


def synthetic(
    name: str, distortion: Distortion = one_cause, noise: float = 0.01, *, isa: str = "",
    dtype: str = "float32", workers: Sequence[int] = (1, 2), shapes: Sequence[tuple[int, int]] = (),
    seed: int = 0,
) -> Dataset:  # fmt: skip
    """A dataset of a recorded machine: of each problem all plans that compete, and other covers."""
    hardware = machine(name)
    isa = isa or hardware.widest.name
    planner = Planner(build_library(hardware, isa, product_types(DTYPES[dtype])))
    generator = np.random.default_rng(seed)
    samples = []
    for n, k in shapes or SHAPES:
        for m in ROWS:
            for threads in workers:
                for width in planner.library.widths:
                    problem = panel_problem(n, k, width, m, threads)
                    best = planner.plan(problem).choice
                    for candidate in planner.candidates(problem):
                        if not candidate.fits(m) or candidate.choice.widen:
                            continue
                        for first, (segments, terms) in enumerate(_covers(planner, candidate, m)):
                            grid, kc = candidate.choice.grid, candidate.choice.kc
                            sample = Sample(
                                isa, dtype, threads, "DRAM" if candidate.from_dram else "L3",
                                SampleProblem(m, n, k),
                                SamplePlan(tuple(grid), width, kc, segments),  # type: ignore[arg-type]
                                candidate.choice == best and first == 0, terms, 1.0, noise, 12,
                            )  # fmt: skip
                            error = distortion(hardware, sample) + noise * generator.normal()
                            seconds = terms.seconds * math.exp(error)
                            samples.append(Sample(**{**vars(sample), "seconds": seconds}))
    return Dataset(Header(hardware), tuple(samples))


def _covers(
    planner: Planner, candidate: Candidate, m: int
) -> Iterator[tuple[tuple[tuple[int, int], ...], Estimate]]:
    """The cover that the planner takes, one of a single tile and one in two, with their terms."""
    table = candidate.table
    rows = m if candidate.choice.grid.m == 1 else -(-m // candidate.choice.grid.m)
    segments = [table[rows].segments]
    if rows <= candidate.family.max_mr:
        segments.append(((rows, 1),))
    if rows % 2 == 0 and rows <= candidate.family.max_mr:
        segments.append(((rows // 2, 2),))
    elif 2 < rows <= candidate.family.max_mr:
        segments.append(((rows - rows // 2, 1), (rows // 2, 1)))
    for some in dict.fromkeys(segments):
        yield some, candidate.estimate_covered(m, some)
