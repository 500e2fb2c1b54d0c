"""Measure cases on engines in this process: prepare, check, time.

Run as `python -m benchmarks.measure REQUEST` by `benchmarks.run`, with a request as JSON, in a
process of its own for each thread count: the thread pools of BLAS libraries are sized by the
environment when they load.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import machine
from benchmarks.cases import BatchMatmul, Case, Gemm, rotation_copies, select
from benchmarks.results import SCHEMA, compared, save
from ftuner_tools.engines import ENGINES, TRANSPOSED, Array, Call, Engine
from ftuner_tools.reference import WrongOutputError, check, sampled_rows
from ftuner_tools.timing import MULTIPLY_ADDS, READS, SUBJECT, Settings, Timing, measure, share

log = logging.getLogger(__name__)

LATER_COPY_FLOPS = 5e7
"""Reference work for each copy after the first, enough to tell that the right one was used."""


@dataclass(frozen=True)
class Request:
    """One run: a set of cases, the engines, and where the results go."""

    kind: str
    set_name: str
    engines: tuple[str, ...]
    threads: int
    out: str
    only: tuple[str, ...] = ()
    """Labels of the cases to keep; all if empty."""
    seed: int = 0
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def from_json(cls, text: str) -> Request:
        raw = json.loads(text)
        raw["engines"], raw["only"] = tuple(raw["engines"]), tuple(raw["only"])
        raw["settings"] = Settings(**raw["settings"])
        return cls(**raw)

    def cases(self) -> tuple[Case, ...]:
        every = select(self.kind, self.set_name)
        return tuple(case for case in every if not self.only or case.label in self.only)


def _random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


class GemmGroup:
    """Cases that share n and k: the weights' copies, and every engine's layers for them.

    An engine reads weights of its own. Those that several engines read would be nearer to each of
    them: up to 1.4 times as fast at one row, measured of PyTorch beside NumPy."""

    def __init__(self, case: Gemm, engines: Sequence[Engine], threads: int, copies: int, seed: int):
        self._rng = np.random.default_rng([seed, case.n, case.k])
        self._weights = [_random(self._rng, case.n, case.k) for _ in range(copies)]
        self._bias = _random(self._rng, case.n)
        self._layers = {
            engine.name: [engine.prepare_gemm(w.copy(), self._bias, threads) for w in self._weights]
            for engine in engines
        }

    def bind(self, case: Gemm) -> tuple[list[tuple[Array, ...]], dict[str, list[Call]]]:
        inputs = [_random(self._rng, case.m, case.k) for _ in self._weights]
        calls = {
            name: [layer(x) for layer, x in zip(layers, inputs, strict=True)]
            for name, layers in self._layers.items()
        }
        operands: list[tuple[Array, ...]] = [
            (x, w.T, self._bias) for x, w in zip(inputs, self._weights, strict=True)
        ]
        return operands, calls


class BatchMatmulGroup:
    """Cases that share the layout: every engine's product for it."""

    def __init__(self, case: BatchMatmul, engines: Sequence[Engine], threads: int, seed: int):
        self._rng = np.random.default_rng([seed, len(case.layout)])
        self._products = {
            engine.name: engine.prepare_bmm(case.layout, threads) for engine in engines
        }

    def bind(
        self, case: BatchMatmul, copies: int
    ) -> tuple[list[tuple[Array, ...]], dict[str, list[Call]]]:
        right = (case.n, case.k) if TRANSPOSED[case.layout] else (case.k, case.n)
        pairs = [
            (_random(self._rng, case.batch, case.m, case.k), _random(self._rng, case.batch, *right))
            for _ in range(copies)
        ]
        calls = {name: [bind(a, b) for a, b in pairs] for name, bind in self._products.items()}
        if TRANSPOSED[case.layout]:
            return [(a, b.swapaxes(-1, -2)) for a, b in pairs], calls
        return list(pairs), calls


def check_calls(operands: Sequence[tuple[Array, ...]], calls: Sequence[Call], flops: int) -> None:
    """Call each copy once and hold its output to the reference; raises WrongOutputError."""
    for index, ((x, *rest), call) in enumerate(zip(operands, calls, strict=True)):
        out = call()
        if out.shape[:-1] == x.shape[:-1]:  # else `check` refuses it, whole
            m = x.shape[-2]
            rows = (
                sampled_rows(m, flops / m)
                if index == 0
                else sampled_rows(m, flops / m, LATER_COPY_FLOPS)
            )
            out, x = out[..., rows, :], x[..., rows, :]
        check(out, x, *rest)


def fractions(of: str, timing: Timing, *limits: Timing) -> dict[str, float]:
    """What results keep of an engine's share of some limits, which are called `of` together."""
    by_minima, paired = share(timing, *limits)
    return {f"fraction_of_{of}": by_minima, f"fraction_of_{of}_paired": paired}


def run_case(
    case: Case,
    operands: Sequence[tuple[Array, ...]],
    calls: Mapping[str, Sequence[Call]],
    settings: Settings,
    seed: int,
    limits: Mapping[str, Sequence[Callable[[], object]]] | None = None,
) -> dict[str, Any]:
    """Check and time one case; the result as JSON. An engine with a wrong output is refused: it is
    not timed, and its entry says why. `limits`: what the machine lets through of the case's
    operations and bytes, by `MULTIPLY_ADDS` and `READS`, timed beside the engines."""
    engines: dict[str, dict[str, Any]] = {}
    right: dict[str, Sequence[Call]] = {}
    for name, engine_calls in calls.items():
        try:
            check_calls(operands, engine_calls, case.flops)
        except WrongOutputError as error:
            log.error("%s is wrong on %s: %s", name, case.label, error)
            engines[name] = {"refused": str(error)}
        else:
            right[name] = engine_calls
    rng = random.Random(f"{seed} {case.label}")
    timings = measure(right | dict(limits or {}), settings, rng)
    timed = {name: timings.pop(name) for name in limits or ()}
    for name, timing in timings.items():
        engines[name] = timing.to_json(timings.get(SUBJECT))
        if timed and name == SUBJECT:
            engines[name] |= fractions("peak", timing, timed[MULTIPLY_ADDS])
            engines[name] |= fractions("bound", timing, *timed.values())
    result: dict[str, Any] = {"case": asdict(case), "label": case.label, "flops": case.flops}
    result["limits"] = {name: timing.to_json() for name, timing in timed.items()}
    return result | compared(engines, SUBJECT)


def header(kind: str, set_name: str, threads: int, here: machine.Machine) -> dict[str, Any]:
    """What every document says of itself: schema, kind, when, where, and with which versions."""
    return {
        "schema": SCHEMA,
        "kind": kind,
        "set": set_name,
        "threads": threads,
        "date": machine.now(),
        "machine": here.to_json(),
        "versions": machine.versions(),
    }


def run(request: Request) -> dict[str, Any]:
    """Measure all cases of a request; the document that is saved."""
    engines = [ENGINES[name]() for name in request.engines]
    missing = [engine.name for engine in engines if not engine.available()]
    if missing:
        log.warning("not available here: %s", ", ".join(missing))
    engines = [engine for engine in engines if engine.name not in missing]
    here = machine.describe()
    limits: Any = None
    if any(engine.name == SUBJECT for engine in engines):
        # Imported by name: they need ftuner, which reading results does not.
        limits = importlib.import_module("benchmarks.limits").Limits(request.threads)
    cases = request.cases()
    results: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), refresh_per_second=1) as progress:
        task = progress.add_task(f"{request.kind} {request.set_name}", total=len(cases))
        for _, members in groupby(cases, key=lambda case: case.prepared_by):
            group: GemmGroup | BatchMatmulGroup | None = None
            for case in members:
                copies = rotation_copies(case.rotated_bytes, here.l2_bytes)
                if isinstance(case, Gemm):
                    if not isinstance(group, GemmGroup):
                        group = GemmGroup(case, engines, request.threads, copies, request.seed)
                    operands, calls = group.bind(case)
                else:
                    if not isinstance(group, BatchMatmulGroup):
                        group = BatchMatmulGroup(case, engines, request.threads, request.seed)
                    operands, calls = group.bind(case, copies)
                of_case = limits and {
                    MULTIPLY_ADDS: limits.multiply_adds(case.flops),
                    READS: limits.reads(case.moved_bytes, copies),
                }
                result = run_case(case, operands, calls, request.settings, request.seed, of_case)
                result["copies"] = copies
                result["operands_level"] = here.level_holding(copies * case.rotated_bytes)
                results.append(result)
                progress.update(task, advance=1, description=case.label)
    return header(request.kind, request.set_name, request.threads, here) | {
        "engines": [engine.name for engine in engines],
        "unavailable": missing,
        "settings": asdict(request.settings) | {"seed": request.seed},
        "cases": results,
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    asked = Request.from_json(sys.argv[1])
    save(run(asked), Path(asked.out))
