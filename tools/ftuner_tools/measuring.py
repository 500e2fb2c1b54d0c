"""Timing of `ftuner bench`: `python -m ftuner_tools.measuring REQUEST` prints one JSON document.

It runs in a child process (`contest.measured`), because BLAS libraries size their thread pools by
the environment when they load. Engines are timed in interleaved rounds (`timing`), and calls of a
model rotate through several copies of its inputs, so that no engine reads the same memory in each.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from rich.console import Console
from rich.progress import track

from ftuner import errors
from ftuner.cli.arrays import random_inputs
from ftuner.cli.output import read_specs
from ftuner.core.operating_system import end_with_parent
from ftuner_tools.agreement import agreement
from ftuner_tools.engines import ENGINES, Array, Call
from ftuner_tools.onnx_engines import ONNX_ENGINES, BindAll
from ftuner_tools.reference import WrongOutputError, check
from ftuner_tools.timing import SUBJECT, Settings, Timing
from ftuner_tools.timing import measure as timed

COPIES = 4
"""Copies of a model's inputs, each with different values."""
SETTINGS = Settings(burst_s=3e-3, burst_calls=1, min_rounds=9, max_rounds=9)
"""Nine bursts of each engine: a minute for the shapes that are measured by default."""
Document = dict[str, Any]


class Case(TypedDict):
    """One product: `kind` is `gemm` (a constant weight[n, k]) or `bmm`."""

    kind: str
    batch: int
    m: int
    n: int
    k: int


class Request(TypedDict):
    """What to measure, all in one process: cases of products, or a model and sets of extents of its
    inputs by name."""

    cases: list[Case]
    model: str | None
    sets: list[dict[str, list[int]]]
    engines: list[str]
    """The subject first."""
    threads: int


def prepared(case: Case, names: Sequence[str], threads: int) -> tuple[dict[str, Call], list[Array]]:
    """The call of each engine for one case, and its operands a[..., m, k] and b[..., k, n]: random,
    and the same for every engine."""
    rng = np.random.default_rng(0)
    extents = (case["m"], case["k"]), (case["k"], case["n"])
    if case["kind"] == "gemm":
        x, weight = (rng.standard_normal(s, np.float32) for s in (extents[0], extents[1][::-1]))
        layers = {n: ENGINES[n]().prepare_gemm(weight, None, threads) for n in names}
        return {name: layer(x) for name, layer in layers.items()}, [x, weight.T]
    a, b = (rng.standard_normal((case["batch"], *s), np.float32) for s in extents)
    products = {name: ENGINES[name]().prepare_bmm("nn", threads) for name in names}
    return {name: product(a, b) for name, product in products.items()}, [a, b]


def is_right(call: Call, operands: Sequence[Array]) -> bool:
    """Whether the output of a call is the product of the operands, within rounding."""
    try:
        check(call(), *operands)
    except WrongOutputError:
        return False
    return True


def measure_products(request: Request) -> Document:
    """Check and time all cases. An engine whose output is wrong is listed and not timed."""
    results = []
    for case in _shown(request["cases"]):
        calls, operands = prepared(case, request["engines"], request["threads"])
        right = {name: [call] for name, call in calls.items() if is_right(call, operands)}
        wrong = [name for name in calls if name not in right]
        results.append({"case": case, **summary(_timed(right)), "wrong": wrong})
    return {"results": results}


def measure_model(request: Request) -> Document:
    """Prepare the engines, compare their outputs to the subject's and time all sets of extents.

    The document lists peers that cannot load or run the model, with the reason. It also lists peers
    whose outputs differ; they are timed nevertheless, and `ftuner compare` shows the differences.
    """
    path, threads = Path(str(request["model"])), request["threads"]
    specs = read_specs(path)
    own = ONNX_ENGINES[SUBJECT].prepare(path, threads, None)
    peers: dict[str, BindAll] = {}
    failed: dict[str, str] = {}
    for name in request["engines"][1:]:
        try:
            peers[name] = ONNX_ENGINES[name].prepare(path, threads, None)
        except Exception as error:  # Each library raises its own classes.
            failed[name] = _reason(error)
    results = []
    for shapes in _shown(request["sets"]):
        copies = [random_inputs(specs, shapes, seed) for seed in range(COPIES)]
        calls = {SUBJECT: [own(feeds) for feeds in copies]}
        expected = calls[SUBJECT][0]()
        differs: list[str] = []
        unable: dict[str, str] = {}
        for name, bind in peers.items():
            try:
                bound = [bind(feeds) for feeds in copies]
                found = bound[0]()
            except Exception as error:  # As above.
                unable[name] = _reason(error)
                continue
            if not all(agreement(x, y).within for x, y in zip(expected, found, strict=True)):
                differs.append(name)
            calls[name] = bound
        results.append(
            {"shapes": shapes, **summary(_timed(calls)), "differs": differs, "failed": unable}
        )
    return {"model": request["model"], "failed": failed, "results": results}


def measure(request: Request) -> Document:
    """What a request asks for, with the number of threads and the versions of the engines."""
    asked = measure_products if request["model"] is None else measure_model
    found = asked(request)
    names = [name for name in request["engines"] if name not in found.get("failed", ())]
    versions = {name: version_of(name) for name in names}
    return {"threads": request["threads"], "versions": versions, **found}


def summary(timings: Mapping[str, Timing]) -> Document:
    """Least and median seconds of each engine, the ratio of each peer's least time to the
    subject's, and the fastest peer."""
    seconds = {n: {"least": t.min_s, "median": t.median_s} for n, t in timings.items()}
    own = timings.get(SUBJECT)
    ratios = {n: t.min_s / own.min_s for n, t in timings.items() if own and n != SUBJECT}
    best = min(ratios, key=ratios.__getitem__, default=None)
    return {"seconds": seconds, "ratios": ratios, "best_peer": best}


def version_of(name: str) -> str:
    """The version of an engine's package."""
    engine: Any = ONNX_ENGINES.get(name) or ENGINES[name]
    return str(import_module(engine.modules[0]).__version__)


def _timed(calls: Mapping[str, Sequence[Callable[[], object]]]) -> dict[str, Timing]:
    return timed(calls, SETTINGS, random.Random(0))


def _shown(work: Sequence[Any]) -> Any:
    """What is to be done, with a bar on stderr."""
    return track(work, "measuring", console=Console(stderr=True), transient=True)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


if __name__ == "__main__":
    end_with_parent()
    try:
        document = measure(json.loads(sys.argv[1]))
    except errors.FTunerError as error:
        document = {"error": type(error).__name__, "message": str(error)}
    json.dump(document, sys.stdout)
