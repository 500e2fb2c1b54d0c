"""Timing of `ftuner bench model`: `python -m ftuner.cli.measure_model REQUEST` prints one JSON
document.

As in `measure`, engines are timed in interleaved rounds. Calls rotate through several copies of the
inputs, so that no engine reads the same memory in each call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.progress import track

from ftuner.cli.agreement import agreement
from ftuner.cli.child import answer
from ftuner.cli.inputs import Array, random_inputs
from ftuner.cli.loading import read_specs
from ftuner.cli.measure import SETTLE_S, time_calls
from ftuner.cli.model_peers import MODEL_ENGINES, Runner
from ftuner.cli.peers import SUBJECT, version_of

COPIES = 4
"""Copies of the inputs of a set, each with different values."""

Feeds = Mapping[str, Array]


class ModelRequest(TypedDict):
    """What to measure, all in one process."""

    model: str
    sets: list[dict[str, list[int]]]
    """Extents of all inputs, by name."""
    engines: list[str]
    """The subject first."""
    threads: int


def rotating(run: Runner, copies: Sequence[Feeds]) -> Callable[[], object]:
    """A call that takes the next copy of the inputs each time."""
    turn = cycle(copies)
    return lambda: run(next(turn))


def measure(request: ModelRequest) -> dict[str, Any]:
    """Prepare the engines, compare their outputs to the subject's and time all sets of extents.

    The document lists peers that cannot load or run the model, with the reason. It also lists peers
    whose outputs differ; they are timed nevertheless, and `ftuner compare` shows the differences.
    """
    path, threads = request["model"], request["threads"]
    specs = read_specs(Path(path))
    own = MODEL_ENGINES[SUBJECT].prepare(path, threads)
    peers: dict[str, Runner] = {}
    failed: dict[str, str] = {}
    for name in request["engines"]:
        if name == SUBJECT:
            continue
        try:
            peers[name] = MODEL_ENGINES[name].prepare(path, threads)
        except Exception as error:  # Each library raises its own classes.
            failed[name] = _reason(error)
    results = []
    progress = Console(stderr=True)
    for shapes in track(request["sets"], "measuring", console=progress, transient=True):
        copies = [random_inputs(specs, shapes, seed) for seed in range(COPIES)]
        expected = own(copies[0])
        calls = {SUBJECT: rotating(own, copies)}
        differs: list[str] = []
        unable: dict[str, str] = {}
        for name, run in peers.items():
            try:
                found = run(copies[0])
            except Exception as error:  # As above.
                unable[name] = _reason(error)
                continue
            if not all(agreement(x, y).within for x, y in zip(expected, found, strict=True)):
                differs.append(name)
            calls[name] = rotating(run, copies)
        samples = time_calls(calls, SETTLE_S if threads > 1 else 0.0)
        results.append({"shapes": shapes, **summary(samples), "differs": differs, "failed": unable})
    versions = {name: version_of(name) for name in (SUBJECT, *peers)}
    return {
        "model": path,
        "threads": threads,
        "versions": versions,
        "failed": failed,
        "results": results,
    }


def summary(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Least and median seconds of each engine, the ratio of each peer's least time to the
    subject's, and the fastest peer."""
    seconds = {
        name: {"least": min(found), "median": statistics.median(found)}
        for name, found in samples.items()
    }
    least = {name: found["least"] for name, found in seconds.items()}
    ratios = {name: s / least[SUBJECT] for name, s in least.items() if name != SUBJECT}
    best = min(ratios, key=ratios.__getitem__, default=None)
    return {"seconds": seconds, "ratios": ratios, "best_peer": best}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


if __name__ == "__main__":
    answer(measure)
