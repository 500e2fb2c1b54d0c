"""Fits what cuts steps other than plain products: convolutions, chains of them, attention,
recurrent layers.

Values of a field compete: the planner cuts the same step by each of them, in a back end of its own.
Before each call, memory larger than L2 is read, so that operands come from a level after it, as
they do in a model.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.core.recurrence import Activation, Cell
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.hardware.constants import Fitted
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.calibration.stand import Stand, between, preferred
from ftuner.runtime.model import Model
from ftuner.schedules.winograd.cpu_cost import WinogradProblem
from ftuner.schedules.winograd.cpu_plan import outputs_of, winograd_plan

Run = Callable[[], object]
Changes = Mapping[str, Any]
"""Values of fields of a tuning."""

SWEEP_L2 = 4
"""Memory that is read before each call, in multiples of L2 for each worker."""
_ROUNDS = 12
_LEAST_RATIO, _MOST_RATIO = 0.5, 4.0
"""Between transforms of which half is hidden by out-of-order execution, and such as wait for L2."""


class Ring:
    """Times steps whose plans competing tunings make, with some workers."""

    def __init__(self, make: Callable[[Changes], Any], workers: int) -> None:
        """`make(changes)`: a back end with these values in its tuning."""
        self._make, self._workers = make, workers
        backend = self.backend({})
        levels = backend.hardware.levels
        l2_bytes = levels[min(1, len(levels) - 1)].capacity_bytes
        b, row = Builder(), 1024
        x = b.input("x", FLOAT32, (symbol("n"), row))
        graph = b.graph([x], [("y", b.add("negative", x))])
        rows = max(workers * SWEEP_L2 * l2_bytes // (2 * FLOAT32.itemsize * row), 1)
        self._sweep = running(graph, backend, np.ones((rows, row), np.float32))

    def backend(self, changes: Changes) -> Any:
        """A back end in which these values compete."""
        found = self._make(changes)
        found.threads = self._workers
        return found

    def timed(self, runs: Sequence[Run], rounds: int) -> list[list[float]]:
        """Seconds of each run in each round, all in turn; each call is timed alone."""
        samples: list[list[float]] = [[] for _ in runs]
        for done in range(rounds + 1):
            for place in range(len(runs)):
                number = (place + done) % len(runs)
                self._sweep()
                began = time.perf_counter()
                runs[number]()
                if done:
                    samples[number].append(time.perf_counter() - began)
        return samples


def running(graph: Graph, backend: Any, x: Array) -> Run:
    """A call of a graph of one input on a back end."""
    model = Model(optimised(graph), backend)
    name = model.inputs[0].name
    return lambda: model.run({name: x})


class _Convolutions(NamedTuple):
    """One by windows of 3 x 3, of which Winograd's products are faster on any machine; or with
    `inner` channels an inverted residual: a product, a depthwise convolution, a product."""

    channels: int
    extent: int
    inner: int = 0

    def make(self, backend: Any) -> Run:
        channels, extent, inner = self
        b = Builder()
        x = y = b.input("x", FLOAT32, (1, symbol("height"), symbol("width"), channels))
        residual = (1, inner, 1), (3, inner, inner), (1, channels, 1)
        for layer in residual if inner else ((3, channels, 1),):
            y = _convolved(b, y, *layer)
        return running(b.graph([x], [("y", y)]), backend, _ones(1, extent, extent, channels))


class _Attention(NamedTuple):
    heads: int
    rows: int
    depth: int
    causal: bool

    def make(self, backend: Any) -> Run:
        q, k, v, out = (_ones(self.heads, self.rows, self.depth) for _ in range(4))
        return lambda: backend.attention(q, k, v, causal=self.causal, out=out)


_CONVOLUTIONS = (_Convolutions(64, 52), _Convolutions(256, 26))
_CHAINS = (_Convolutions(24, 72, 144), _Convolutions(32, 144, 192))
_ATTENTIONS = (_Attention(4, 384, 64, False), _Attention(2, 800, 64, False))
_CAUSAL = (_Attention(4, 384, 64, True), _Attention(2, 800, 64, True))


class _Contest(NamedTuple):
    field: str
    values: tuple[Any, ...]
    steps: Sequence[_Convolutions | _Attention]


_CONTESTS = (
    _Contest("winograd_share_of_l2", (0.3, 0.6, 1.0), _CONVOLUTIONS),
    _Contest("winograd_weight_share_of_l2", (0.1, 0.25, 0.5), _CONVOLUTIONS),
    _Contest("stripes_share_of_l2", (0.3, 0.6, 0.9), _CHAINS),
    _Contest("scores_share_of_l2", (0.12, 0.25, 0.5), _ATTENTIONS),
    _Contest("max_block_row_tiles", (4, 8, 16), _ATTENTIONS),
    _Contest("causal_blocks", (4, 8, 16), _CAUSAL),
)


def fit_steps(stand: Stand, tuning: CpuTuning) -> dict[str, Fitted]:
    """The fields that cut convolutions, chains and attention, as pays on this machine; how long
    Winograd's transforms take, from what a convolution takes beside its estimate; and a phase that
    workers share, from what a recurrent layer takes beside half of the time of one worker."""
    chosen: dict[str, Any] = {}

    def make(changes: Changes) -> Any:
        return stand.session(replace(tuning, **{**chosen, **changes}))

    ring = Ring(make, 1)
    found: dict[str, Fitted] = {}
    for contest in _CONTESTS:
        prior = getattr(tuning, contest.field)
        values = sorted({*contest.values, prior})
        scores = dict.fromkeys(values, 0.0)
        noise = 0.0
        for step in contest.steps:
            runs = [step.make(ring.backend({contest.field: value})) for value in values]
            samples = ring.timed(runs, _ROUNDS)
            for value, some in zip(values, samples, strict=True):
                scores[value] += math.log(statistics.median(some)) / len(contest.steps)
                noise = max(noise, _spread(some))
        chosen[contest.field] = preferred(scores, prior, noise)
        found[contest.field] = Fitted(chosen[contest.field], noise)
    found.update(_fit_transforms(ring, tuning))
    if stand.hardware.cores > 1:
        found.update(_fit_phases(make, tuning))
    return found


def _fit_transforms(ring: Ring, tuning: CpuTuning) -> dict[str, Fitted]:
    """The ratio at which the estimate of a convolution is what it takes."""
    backend = ring.backend({})
    prior = tuning.winograd_transform_ratio
    ratios, noise = [], 0.0
    for step in _CONVOLUTIONS:
        (samples,) = ring.timed([step.make(backend)], _ROUNDS)
        seconds = statistics.median(samples)
        noise = max(noise, _spread(samples))
        one, two = (_estimated(ring, step, ratio) for ratio in (1.0, 2.0))
        ratios.append(1.0 + (seconds - one) / (two - one))
    ratio = min(max(statistics.fmean(ratios), _LEAST_RATIO), _MOST_RATIO)
    error = max(noise, abs(ratios[0] - ratios[1]) / (2.0 * ratio))
    return {"winograd_transform_ratio": Fitted(between(ratio, prior, error), error)}


_CELL = Cell("gru", (Activation("sigmoid"), Activation("tanh")))
"""Each of its two stages has two phases, however a team shares the columns."""


class _Recurrence(NamedTuple):
    """A GRU on one sequence, whose weight is in the caches nearest to a core."""

    hidden: int
    length: int

    def make(self, backend: Any) -> Run:
        columns = len(_CELL.gates) * self.hidden
        b = Builder()
        x = b.input("x", FLOAT32, (symbol("length"), 1, columns))
        y, *_ = b.add_many("recurrence", x, b.constant(_ones(columns, self.hidden)), cell=_CELL)
        return running(b.graph([x], [("y", y)]), backend, _ones(self.length, 1, columns))

    @property
    def phases(self) -> int:
        return 2 * self.length * len(_CELL.stages())


_PAIR = 2
_RECURRENCE = _Recurrence(128, 200)
_LEAST_PHASE_S, _MOST_PHASE_S = 2e-8, 1e-5
"""Between one transfer of a line and the time that the system takes to wake a thread."""


def _fit_phases(make: Callable[[Changes], Any], tuning: CpuTuning) -> dict[str, Fitted]:
    prior, name = tuning.team_phase_s, "team_phase_s"
    one, two = Ring(make, 1), Ring(make, _PAIR)
    # A phase that takes no time has a team everywhere.
    runs = [_RECURRENCE.make(one.backend({})), _RECURRENCE.make(two.backend({name: 0.0}))]
    alone, together = two.timed(runs, _ROUNDS)
    lost = statistics.median(together) - statistics.median(alone) / _PAIR
    seconds = min(max(lost / _RECURRENCE.phases, _LEAST_PHASE_S), _MOST_PHASE_S)
    error = _spread(together) * statistics.median(together) / (seconds * _RECURRENCE.phases)
    return {name: Fitted(between(seconds, prior, error), error)}


def _estimated(ring: Ring, step: _Convolutions, ratio: float) -> float:
    planner = ring.backend({"winograd_transform_ratio": ratio}).products(_FLOAT32).planner
    channels, extent, _ = step
    outputs = outputs_of(symbol("height"), symbol("width"))
    problem = WinogradProblem(1, extent, extent, channels, channels, outputs, 1)
    return winograd_plan(planner, problem, 0.0).estimate.seconds


_FLOAT32 = product_types(FLOAT32)


def _spread(samples: Sequence[float]) -> float:
    """The relative difference of the medians of the odd and of the even rounds."""
    halves = statistics.median(samples[::2]), statistics.median(samples[1::2])
    return abs(halves[0] - halves[1]) / statistics.median(samples)


def _convolved(b: Builder, x: Value, window: int, columns: int, groups: int) -> Value:
    """A convolution that keeps the extents of a picture."""
    channels = x.shape[-1]
    assert isinstance(channels, int)
    weight = b.constant(_ones(window, window, channels // groups, columns))
    begin = (window // 2, window // 2)
    return b.add(
        "convolution", x, weight, groups=groups, strides=(1, 1), dilations=(1, 1), begin=begin,
        extents=x.shape[1:3],
    )  # fmt: skip


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)
