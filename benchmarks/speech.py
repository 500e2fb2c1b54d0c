"""`python -m benchmarks.speech`: the speech detectors of silero-vad, against the peers.

Install them with `pip install --no-deps silero-vad==6.2.3`. A detector hears windows of 32 ms. Most
files hear one window in each call, of several sounds at once; their state goes from call to call.
One file hears all windows of a sound in a call. Every engine computes float32 with equal threads,
interleaved, on inputs that rotate. Each thread count has a process of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import typer

from benchmarks import machine
from benchmarks.agreeing import difference, run_agreeing
from benchmarks.measure import header
from benchmarks.suite import Suite
from ftuner.errors import ConfigurationError
from ftuner_tools.demo.speech import CONTEXT, RATE, UNITS, WHOLE, WINDOW, WINDOWED, detectors
from ftuner_tools.onnx_engines import ONNX_ENGINES, Array, Bind, Feeds
from ftuner_tools.timing import SUBJECT, Settings

if TYPE_CHECKING:
    from benchmarks.limits import Limits

KIND, SET = "speech", "silero-vad"
REFERENCE = "onnxruntime"
PEERS = (REFERENCE, "openvino")
BY_WINDOW = (WINDOWED, "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx",
             "silero_vad_half.onnx")  # fmt: skip
"""Files that hear one window in a call."""
ONE_WINDOW = "silero_vad_openvino_16k.onnx"
"""Of one sound alone: the extents of its inputs are numbers, for OpenVINO."""
BATCHES = (1, 2, 3, 8, 17, 64)
"""Sounds that are heard at once."""
LENGTHS = (1, 7, 31, 100, 313, 1000)
"""Windows of a sound: up to 32 s."""
MOST_SAID = 400
"""Characters that are kept of why an engine cannot prepare a file."""
COPIES = 4
"""Inputs that calls rotate through."""
RTOL = 0.0
"""Outputs agree within `timing.ATOL`, 1e-4, alone: they are probabilities and bounded states."""
WINDOW_MULTIPLY_ADDS = (
    4 * 258 * 256 + 4 * 128 * 129 * 3 + 2 * 64 * 128 * 3 + 64 * 64 * 3 + 128 * 64 * 3
    + 4 * UNITS * (128 + UNITS) + UNITS
)  # fmt: skip
"""Of a window at 16 kHz: the transform at four positions, four convolutions at 4, 2, 1 and 1, the
LSTM and the last layer; from the shapes of the weights."""


@dataclass(frozen=True)
class Hearing:
    """One call of a detector."""

    file: str
    batch: int
    windows: int

    @property
    def label(self) -> str:
        return f"{Path(self.file).stem} {self.batch}x{self.windows}"

    @property
    def flops(self) -> int:
        """Multiply-adds, counted as two."""
        return 2 * self.batch * self.windows * WINDOW_MULTIPLY_ADDS


def cases() -> tuple[Hearing, ...]:
    """Every file; the cases of one stand together."""
    found = [Hearing(WHOLE, 1, windows) for windows in LENGTHS]
    found += [Hearing(file, batch, 1) for file in BY_WINDOW for batch in BATCHES]
    return (*found, Hearing(ONE_WINDOW, 1, 1))


def voiced(rng: np.random.Generator, windows: int) -> Array:
    """A voice-like sound, as windows with the samples before each: a pitch that wavers, with
    overtones, and noise."""
    begins = rng.integers(0, RATE) + WINDOW * np.arange(windows)
    at = (begins[:, None] + np.arange(CONTEXT + WINDOW)) / RATE
    pitch = rng.uniform(90, 220)
    phase = 2 * np.pi * pitch * at + 2 * np.sin(2 * np.pi * 5 * at)
    overtones = sum(np.sin(number * phase) / number for number in range(1, 12))
    swell = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * at)
    return (0.1 * swell * overtones + 0.005 * rng.standard_normal(at.shape)).astype(np.float32)


def inputs(case: Hearing, names: Sequence[str], rng: np.random.Generator) -> Feeds:
    """Sounds, and a state in the middle of them, for those inputs that a file has."""
    states = {"state": (2, case.batch, UNITS), "h": (1, 1, UNITS), "c": (1, 1, UNITS)}
    found: dict[str, Array] = {
        name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in states.items()
    }
    sounds = [voiced(rng, case.windows) for _ in range(case.batch)]
    found |= {"input": np.concatenate(sounds), "sr": np.array(RATE, np.int64)}
    return {name: found[name] for name in names}


@dataclass(frozen=True)
class Detector:
    """A file prepared by engines, each for every output of the file."""

    inputs: tuple[str, ...]
    bound: Mapping[str, Sequence[Bind]]
    refused: Mapping[str, str]
    """Engines that cannot prepare it, and why."""


def prepared(path: Path, engines: Sequence[str], threads: int) -> Detector:
    """A file prepared by each engine. One that refuses it does not stop the others."""
    graph = onnx.load(path).graph
    bound, refused = {}, {}
    for name in engines:
        try:
            bound[name] = [ONNX_ENGINES[name].one(path, threads, y.name) for y in graph.output]
        except Exception as error:  # Of whatever type engines have.
            # OpenVINO's have a line for each place that they went through.
            refused[name] = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID]
    return Detector(tuple(x.name for x in graph.input), bound, refused)


def run_case(
    case: Hearing, detector: Detector, settings: Settings, limits: Limits | None
) -> dict[str, Any]:
    """Check all outputs and time one case; the result as JSON."""
    rng = np.random.default_rng([case.batch, case.windows])
    feeds = [inputs(case, detector.inputs, rng) for _ in range(COPIES)]
    refused: dict[str, str] = {}
    # Calls give the first output; the states behind it are checked here.
    wanted = [np.array(bind(feeds[0])()) for bind in detector.bound[REFERENCE][1:]]
    for name, binds in detector.bound.items():
        for bind, state in zip(binds[1:], wanted, strict=True):
            why = difference(np.asarray(bind(feeds[0])()), state, RTOL)
            if why:
                refused[name] = f"a state {why}"
    calls = {
        name: [binds[0](given) for given in feeds]
        for name, binds in detector.bound.items()
        if name not in refused
    }
    found = run_agreeing(calls, REFERENCE, case.flops, settings, case.label, limits, RTOL)
    found["engines"] |= {name: {"refused": why} for name, why in refused.items()}
    return {"case": asdict(case), "label": case.label} | found


def measured(
    threads: int, peers: Sequence[str], only: Sequence[str], settings: Settings
) -> dict[str, Any]:
    """Measure in this process; the document."""
    # Imported by name: it needs the internals of the present ftuner.
    limits = importlib.import_module("benchmarks.limits").Limits(threads)
    files, results = detectors(), []
    unprepared: dict[str, Mapping[str, str]] = {}
    kept = (case for case in cases() if not only or case.label in only)
    for file, members in groupby(kept, key=lambda case: case.file):
        detector = prepared(files[file], (SUBJECT, *peers), threads)
        if detector.refused:
            unprepared[Path(file).stem] = detector.refused
        results += [run_case(case, detector, settings, limits) for case in members]
    return header(KIND, SET, threads, machine.describe()) | {
        "engines": [SUBJECT, *peers],
        "unavailable": [],
        "unprepared": unprepared,
        "settings": asdict(settings),
        "cases": results,
    }


def expect_installed() -> None:
    """Raises `typer.BadParameter` if the files are not installed."""
    try:
        detectors()
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


SUITE = Suite(
    module="benchmarks.speech", kind=KIND, set=SET, peers=PEERS, cases=cases, measured=measured,
    prepare=expect_installed,
)  # fmt: skip

if __name__ == "__main__":
    typer.run(SUITE.main)
