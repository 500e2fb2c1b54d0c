"""Files of measured data, as `benchmarks.machines` and the benchmarks write them, made up."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.learn.samples import Header, Sample, SamplePlan, SampleProblem, append
from ftuner.planner.cpu.planner import best_width, panel_problem, planner_for
from ftuner.ukernels.cpu.library import Library, build_library
from ftuner_tools.report.results import MACHINES, SAMPLES

WEIGHT = (96, 64)
"""Columns and steps of the weight of all samples."""


def machine(name: str = "epyc-milan-2") -> CpuHardware:
    found = load_recorded(name)
    assert isinstance(found, CpuHardware)
    return found


def library_of(hardware: CpuHardware) -> Library:
    return build_library(hardware, hardware.widest.name, product_types(FLOAT32))


def samples_of(hardware: CpuHardware, workers: int = 1) -> list[Sample]:
    """The chosen plan of 1 to 16 rows with one weight, a tenth slower than estimated."""
    library, (n, k) = library_of(hardware), WEIGHT
    planner = planner_for(library)
    width = best_width(planner, n, k, workers)
    found = []
    for m in range(1, 17):
        plan = planner.plan(panel_problem(n, k, width, m, workers))
        estimate = planner.estimate(plan)
        grid = plan.choice.grid
        found.append(
            Sample(
                library.isa.name, "float32", workers, "L3", SampleProblem(m, n, k),
                SamplePlan((grid.batch, grid.m, grid.n, grid.k), width, plan.choice.kc,
                           plan.shares[0].bands[0].segments),
                True, estimate, 1.1 * estimate.seconds, 0.01, 12,
            )
        )  # fmt: skip
    return found


def findings(text: str = "x") -> dict[str, Any]:
    """A whole document of findings; `text` is every name in it."""
    case = {"case": text, "level": text, "chosen_s": 2e-5, "best_s": 1e-5, "best": text,
            "regret": 0.123, "noise": 0.01}  # fmt: skip
    regret = {"mean": 0.123, "worst": 0.123, "cases": [case]}
    return {
        "regret": {
            "prior": {"t1": regret, "t2": regret},
            "calibrated": {"t1": {**regret, "mean": 0.017}},
            "thorough": {"t1": {**regret, "mean": 0.004}},
        },
        "rank": {"analytic": 0.71, "corrected": 0.83, text: -1},
        "transfer": [
            {"target": text, "method": text, "measurements": n, "error": 1 / (1 + n)}
            for n in (0, 8, 32, 128)
        ],
        "cliffs": [{"n": 96, "k": 64, "level": text, "m": [1, 2, 64], "seconds": [1e-6] * 3}],
    }


def results(hardware: CpuHardware, text: str = "x") -> dict[str, Any]:
    """A document of benchmark results; `text` is every name in it."""
    cases = [
        {"label": text, "ratio": ratio, "best_peer": text, "engines": {}}
        for ratio in (0.5, 2.0, 4.0)
    ]
    refused = {"label": text, "ratio": None, "best_peer": None}
    return {
        "schema": 1, "kind": text, "set": text, "threads": 2, "date": text,
        "machine": {
            "cpu_model": hardware.model_name,
            "cache_bytes": {level.name: level.capacity_bytes for level in hardware.levels[:-1]},
        },
        "cases": [*cases, refused],
    }  # fmt: skip


def write(path: Path, document: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def write_all(folder: Path, hardware: CpuHardware, text: str = "x") -> Path:
    """All files of a machine's folder; returns the folder."""
    for workers in (1, 2):
        append(folder / SAMPLES, Header(hardware), samples_of(hardware, workers))
    write(folder / MACHINES, findings(text))
    write(folder / "gemm.json", results(hardware, text))
    write(folder / "other.json", {**results(hardware, text), "cases": []})
    return folder
