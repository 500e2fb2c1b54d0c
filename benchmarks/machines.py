"""`python -m benchmarks.machines`: what calibration and learning find on this machine.

For each ISA, in a process of its own: the machine is calibrated from the nearest recorded machine
and from every other recorded one, and for the widest ISA as `ftuner tune --thorough` does; then
contests (`benchmarks.contests`) tell the regret of what each tuning chooses, and their plans become
samples. Contests of convolutions and attention (`benchmarks.step_contests`) follow. From all
samples follow rank correlation and transfer between machines. Writes `samples*.jsonl`,
which git ignores, and `machines.json` to the results' folder.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.contests import Arena, Shape
from benchmarks.machine import now, versions
from benchmarks.results import SCHEMA, save
from benchmarks.run import command_of, results_here
from benchmarks.step_contests import STEPS, hold, ring
from ftuner.core.dtype import DTYPES, FLOAT32
from ftuner.core.product import product_types
from ftuner.errors import DatasetError
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import recorded_cpus, with_nearest
from ftuner.hardware.tuning import CpuTuning
from ftuner.learn.features import table_of
from ftuner.learn.samples import SUFFIX, Dataset, Header, append, read
from ftuner.learn.sampling import SECONDS, sample
from ftuner.learn.training import choose, learn
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.backend import CALIBRATION_S, CpuBackend, default_backend
from ftuner.runtime.cpu.calibration.calibrate import calibrate
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.session import ISA_VARIABLE
from ftuner.runtime.cpu.trials import Bed, timed
from ftuner_tools.learning.boosting import FORMS
from ftuner_tools.learning.evaluation import score
from ftuner_tools.learning.transfer import Machine, evaluated

CALIBRATED, PRIOR, THOROUGH = "calibrated", "prior", "thorough"
SHAPES = tuple(
    Shape(*extents)
    for extents in (
        (1, 640, 512), (2, 1280, 768), (3, 1536, 1024), (4, 640, 2048), (5, 768, 512),
        (6, 1920, 640), (7, 768, 3072), (8, 1536, 1024), (9, 1280, 512), (11, 640, 896),
        (13, 1000, 512), (14, 896, 640), (16, 1536, 512), (19, 512, 1280), (24, 1536, 512),
        (31, 640, 640), (37, 512, 1024), (49, 640, 512), (64, 640, 640), (100, 512, 768),
    )
)  # fmt: skip
"""None is of the extents that calibration measures with."""
NEAR = (256, 256)
"""Columns and steps of a weight that stays in L2."""
FEW = 2
"""Every second shape is held of other dtypes than float32."""
SHARE_OF_LEVEL = 3
"""A weight is held of a level that is so many times as large: others share caches with us."""
CLIFF = (768, 768)
CLIFF_ROWS = range(1, 66)
CLIFF_ROUNDS = 40


def wrong_priors(hardware: CpuHardware) -> dict[str, CpuHardware]:
    """The machine with the tuning of each recorded one, as a prior that may be wrong."""
    return {
        f"from {machine.name}": replace(hardware, tuning=replace(machine.tuning, confidence={}))
        for machine in recorded_cpus()
    }


def thorough(backend: CpuBackend, prior: CpuHardware) -> CpuHardware:
    """The machine as `ftuner tune --thorough` leaves it: calibrated for longer, and with what it
    learned from samples of its own, if that chooses better plans than the estimate."""
    isa = prior.widest.name
    kernels = Kernels(prior, isa, backend.cache)
    found = calibrate(kernels, CALIBRATION_S["thorough"], backend.with_tuning)
    tuned = replace(prior, tuning=found.tuning)
    other = CpuBackend(backend.cache, isa)
    other.use(tuned)
    with TemporaryDirectory() as place:
        path = Path(place) / f"samples{SUFFIX}"
        sample(other, path, SECONDS)
        try:
            learned = learn(table_of(read(path)), tuned.fingerprint)
        except DatasetError as error:
            print(f"{THOROUGH}: {error}", file=sys.stderr)
            return tuned
    return replace(tuned, correction=learned)


def measured_here(folder: Path, budget_s: float) -> dict[str, Any]:
    """All that is measured with the ISA of this process."""
    backend = CpuBackend()
    bare = replace(backend.hardware, tuning=CpuTuning())
    prior = with_nearest(bare)
    isa = os.environ.get(ISA_VARIABLE) or backend.hardware.widest.name
    began = time.perf_counter()
    found = calibrate(Kernels(prior, isa, backend.cache), budget_s, backend.with_tuning)
    took_s = time.perf_counter() - began
    tunings = {CALIBRATED: replace(prior, tuning=found.tuning), PRIOR: prior}
    widest = isa == backend.hardware.widest.name
    if widest:
        tunings[THOROUGH] = thorough(backend, prior)
    for name, machine in wrong_priors(bare).items():
        again = calibrate(Kernels(machine, isa, backend.cache), budget_s, backend.with_tuning)
        tunings[name] = replace(machine, tuning=again.tuning)
    backend.use(tunings[CALIBRATED])
    path = folder / ("samples.jsonl" if widest else f"samples-{isa}.jsonl")
    path.unlink(missing_ok=True)
    header = Header(backend.hardware, versions(), now())
    cases: list[dict[str, Any]] = []
    for dtype in ("float32", "float64") if widest else ("float32",):
        for workers in sorted({1, backend.hardware.cores}):
            arena = Arena(backend, DTYPES[dtype], workers, tunings)
            for level in backend.hardware.levels[1:]:
                near = level is backend.hardware.levels[1]
                if workers > 1 and near:
                    continue
                size = DTYPES[dtype].itemsize
                for shape in SHAPES if dtype == "float32" else SHAPES[::FEW]:
                    held = shape.n * shape.k * size
                    if near:
                        shape = Shape(shape.m, *NEAR)
                    elif level.capacity_bytes < SHARE_OF_LEVEL * held:
                        continue
                    cases.append(_contest(arena, level, shape, path, header))
                    cases[-1] |= {"isa": isa, "dtype": dtype, "workers": workers}
    return {
        "isa": isa,
        "calibration": {"seconds": took_s, **found.document()},
        "cases": cases,
        "cliffs": _cliffs(backend) if widest else [],
        "steps": _step_contests(backend) if widest else {},
    }


def _contest(arena: Arena, level: Any, shape: Shape, path: Path, header: Header) -> dict[str, Any]:
    outcome = arena.hold(level, shape)
    append(path, header, outcome.samples)
    own = outcome.regrets[CALIBRATED]
    print(
        f"{level.name:4} {shape!s:>14}  {100 * own['regret']:5.1f}% "
        f"(noise {100 * own['noise']:.1f}%), prior {100 * outcome.regrets[PRIOR]['regret']:5.1f}%"
        f"  {own['best']}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return {"case": str(shape), "level": level.name, "regrets": outcome.regrets}


def _cliffs(backend: CpuBackend) -> list[dict[str, Any]]:
    """Seconds of the chosen plans over m."""
    backend.threads = 1
    found = []
    products = backend.products(product_types(FLOAT32))
    bed, (n, k) = Bed(products), CLIFF
    pace = Arena(backend, FLOAT32, 1, {CALIBRATED: backend.hardware}).pace
    levels = backend.hardware.levels
    for level in levels[2:]:
        weights = bed.weights(level, n, k)
        held = sum(c.nbytes for c in weights.copies) if level is levels[-1] else 0
        width = products.compiled.library.widths[0]
        trials = [
            bed.trial(
                products.planner.plan(panel_problem(n, k, width, m, 1, footprint_bytes=held)),
                weights,
            )
            for m in CLIFF_ROWS
        ]
        times = timed(trials, CLIFF_ROUNDS, pace=pace)
        found.append(
            {
                "n": n, "k": k, "level": level.name, "m": list(CLIFF_ROWS),
                "seconds": [t.seconds for t in times],
            }
        )  # fmt: skip
    return found


def _step_contests(backend: CpuBackend) -> dict[str, Any]:
    """The regrets of convolutions, chains and attention, by the number of workers."""
    found: dict[str, Any] = {}
    for workers in sorted({1, backend.hardware.cores}):
        place = ring(backend.hardware, backend.cache, workers)
        some = []
        for step in STEPS:
            outcome = hold(place, step)
            print(
                f"{workers} {outcome.case:32} {100 * outcome.regret:5.1f}% (noise "
                f"{100 * outcome.noise:.1f}%)  {outcome.best}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            some.append(asdict(outcome))
        values = [case["regret"] for case in some]
        found[f"t{workers}"] = {"mean": float(np.mean(values)), "worst": max(values), "cases": some}
    return found


def regrets(cases: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The regrets of what one tuning chose, by the number of workers: float32, the widest ISA."""
    found: dict[str, Any] = {}
    for workers in sorted({case["workers"] for case in cases}):
        some = [
            {"case": c["case"], "level": c["level"], **c["regrets"][name]}
            for c in cases
            if c["workers"] == workers
        ]
        values = [case["regret"] for case in some]
        found[f"t{workers}"] = {"mean": float(np.mean(values)), "worst": max(values), "cases": some}
    return found


def restricted_machines(datasets: Sequence[tuple[str, Dataset]]) -> list[Machine]:
    """Each machine whole, and restricted to each ISA, dtype and number of workers."""
    found = []
    for name, dataset in datasets:
        widest = dataset.hardware.widest.name
        settings = sorted({(s.isa, s.dtype, s.workers) for s in dataset.samples})
        if any(isa == widest for isa, _, _ in settings):
            table = table_of(dataset, lambda s: s.isa == widest)  # noqa: B023, called at once
            found.append(Machine(name, table))
        for isa, dtype, workers in settings:
            wanted = (isa, dtype, workers)
            table = table_of(dataset, lambda s: (s.isa, s.dtype, s.workers) == wanted)  # noqa: B023
            found.append(Machine(f"{name} {isa} {dtype} t{workers}", table, restricted=True))
    return found


def recorded_datasets(results: Path) -> list[tuple[str, Dataset]]:
    """The datasets of all machines in the results, by name of their folder."""
    return [(path.parent.name, read(path)) for path in sorted(results.glob("*/samples*.jsonl"))]


def learned(folder: Path) -> dict[str, Any]:
    """Rank correlation and regret of predictions, by estimate and with the correction, each learned
    from other shapes."""
    table = table_of(read(folder / "samples.jsonl"))
    choice = choose(table, forms=FORMS)
    plain, corrected = (
        score(table, np.zeros(len(table))),
        score(table, table.log_ratio - choice.residuals),
    )
    return {
        "form": choice.form,
        "samples": len(table),
        "analytic": plain._asdict(),
        "corrected": corrected._asdict(),
    }


def main(
    isa: Annotated[str, typer.Option(help="measure with this ISA only, in this process")] = "",
    seconds: Annotated[float, typer.Option(help="of each calibration")] = 2.0,
    out: Annotated[str, typer.Option(help="folder; by default that of this machine")] = "",
) -> None:
    """Measure, learn and save."""
    folder = Path(out) if out else results_here()
    folder.mkdir(parents=True, exist_ok=True)
    if isa:
        print(json.dumps(measured_here(folder, seconds)))
        return
    parts = []
    for one in default_backend().hardware.isas[::-1]:
        command = command_of("benchmarks.machines", isa=one.name, seconds=seconds, out=folder)
        environment = {**os.environ, ISA_VARIABLE: one.name}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        parts.append(json.loads(done.stdout))
    widest = parts[0]
    own = [case for case in widest["cases"] if case["dtype"] == "float32"]
    names, tried = list(own[0]["regrets"]), (PRIOR, CALIBRATED, THOROUGH)
    found = learned(folder)
    document = {
        "schema": SCHEMA,
        "kind": "machines",
        "fingerprint": default_backend().hardware.fingerprint,
        "date": now(),
        "versions": versions(),
        "calibration": {part["isa"]: part["calibration"] for part in parts},
        "regret": {name: regrets(own, name) for name in tried},
        "wrong_priors": {name: regrets(own, name) for name in names if name not in tried},
        "restricted": {
            part["isa"]: {
                name: _summary(part["cases"], name) for name in part["cases"][0]["regrets"]
            }
            for part in parts
        },
        "rank": {name: found[name]["tau"] for name in ("analytic", "corrected")},
        "learned": found,
        "transfer": _transfer(folder.parent),
        "cliffs": widest["cliffs"],
        "steps": widest["steps"],
    }
    save(document, folder / "machines.json")
    for name, found_by in {**document["regret"], **document["wrong_priors"]}.items():
        for workers, some in found_by.items():
            print(f"{name:24} {workers}: mean {some['mean']:.1%}, worst {some['worst']:.1%}")
    for workers, some in document["steps"].items():
        print(f"{'steps':24} {workers}: mean {some['mean']:.1%}, worst {some['worst']:.1%}")
    print(f"rank: {document['rank']}")


def _summary(cases: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    by_setting: dict[str, list[float]] = {}
    for case in cases:
        setting = f"{case['dtype']} t{case['workers']}"
        by_setting.setdefault(setting, []).append(case["regrets"][name]["regret"])
    return {s: {"mean": float(np.mean(v)), "worst": max(v)} for s, v in by_setting.items()}


def _transfer(results: Path) -> list[dict[str, Any]]:
    try:
        machines = restricted_machines(recorded_datasets(results))
        return [result.to_document() for result in evaluated(machines)]
    except DatasetError as error:
        print(f"no transfer: {error}", file=sys.stderr)
        return []


if __name__ == "__main__":
    typer.run(main)
