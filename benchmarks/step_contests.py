"""Contests of steps that are no plain products: convolutions, chains of them, and attention.

A step is computed in several ways: each is what the planner does with other values of some fields
of the tuning. All ways run the same kernels on the same inputs, interleaved; before each call, all
workers stream through more memory than L2 holds, so that operands come from behind it. Regret is
the median over the rounds of the time of the planner's own way over that of another, less one, for
the other that makes it largest.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.vision.convolutions import LAST, Layer
from benchmarks.vision.writing import PICTURE, Size, VisionWriter
from ftuner.frontends.onnx.importer import import_model
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.calibration.steps import Changes, Ring, Run, running

FIRST_ROUNDS, FINAL_ROUNDS, FINALISTS = 5, 25, 3
SEED = 0

NEVER, ALWAYS = 1.0, 1e-6


def _each(field: str, *values: Any) -> list[dict[str, Any]]:
    return [{field: value} for value in values]


WINOGRAD_WAYS: Sequence[Changes] = [
    *_each("winograd_transform_ratio", 0.25, 16.0),
    *_each("winograd_share_of_l2", 0.15, 0.3, 1.0),
    *_each("winograd_weight_share_of_l2", 0.1, 0.5, 1.0),
]
CHAIN_WAYS: Sequence[Changes] = [
    {"least_gain_of_stripes": NEVER},
    *(
        {"least_gain_of_stripes": ALWAYS, "stripes_share_of_l2": share}
        for share in (0.15, 0.3, 0.6, 0.9)
    ),
]
ATTENTION_WAYS: Sequence[Changes] = [
    *_each("scores_share_of_l2", 0.06, 0.12, 0.5, 1.0),
    *_each("max_block_row_tiles", 1, 2, 4, 16, 32),
    *_each("attention_tasks_per_worker", 1, 2, 6),
]
CAUSAL_WAYS: Sequence[Changes] = [*ATTENTION_WAYS, *_each("causal_blocks", 2, 4, 16, 32)]


class Step(NamedTuple):
    """What is computed, and the ways that compete."""

    label: str
    make: Callable[[CpuBackend], Run]
    """One call of it, of a back end."""
    ways: Sequence[Changes]


@dataclass(frozen=True)
class Outcome:
    """What a contest found."""

    case: str
    chosen_s: float
    best_s: float
    best: Changes
    regret: float
    noise: float
    """Of the planner's own way against itself."""
    ways: Mapping[str, float]
    """The median ratio of the time of each way to that of the planner's own."""


def convolution(channels: int, columns: int, height: int, width: int) -> Step:
    """A convolution by windows of 3 x 3 of one picture."""
    layer = Layer((3, 3), 1, 1, channels, columns)
    rng = np.random.default_rng(SEED)
    model = layer.model(*layer.parameters(rng), LAST)
    x = rng.standard_normal((1, height, width, channels), np.float32)

    def make(backend: CpuBackend) -> Run:
        return running(import_model(model).graph, backend, x)

    return Step(f"3x3 {channels}>{columns} {height}x{width}", make, WINOGRAD_WAYS)


def chain(channels: int, expansion: int, stride: int, extent: int) -> Step:
    """An inverted residual of MobileNetV2 without its sum: a product, a depthwise convolution, a
    product."""
    writer = VisionWriter(Size())
    x = writer.conv_norm(PICTURE, channels, 1)
    y = writer.relu(writer.conv_norm(x, expansion * channels, 1))
    y = writer.relu(writer.conv_norm(y, expansion * channels, 3, stride, groups=0))
    y = writer.conv_norm(y, channels, 1)
    model = writer.network(y, ["batch", channels, "h", "w"])
    picture = np.random.default_rng(SEED).standard_normal((1, 3, extent, extent), np.float32)

    def make(backend: CpuBackend) -> Run:
        return running(import_model(model).graph, backend, picture)

    label = f"chain {channels} x{expansion} s{stride} {extent}x{extent}"
    return Step(label, make, CHAIN_WAYS)


def attention(heads: int, rows: int, keys: int, depth: int, causal: bool = False) -> Step:
    """Attention of one sequence."""
    rng = np.random.default_rng(SEED)
    q, k, v = (rng.standard_normal((heads, n, depth), np.float32) for n in (rows, keys, keys))

    def make(backend: CpuBackend) -> Run:
        out = np.empty_like(q)
        return lambda: backend.attention(q, k, v, causal=causal, out=out)

    label = f"attention {heads}x{rows}x{keys}x{depth}{' causal' if causal else ''}"
    return Step(label, make, CAUSAL_WAYS if causal else ATTENTION_WAYS)


STEPS: tuple[Step, ...] = (
    *itertools.starmap(convolution, (
        (24, 24, 90, 90), (32, 32, 112, 100), (48, 48, 66, 66), (64, 64, 40, 40), (64, 64, 75, 75),
        (96, 96, 30, 45), (128, 128, 21, 21), (128, 128, 50, 50), (160, 160, 20, 20),
        (192, 320, 13, 17), (256, 256, 15, 15), (256, 256, 32, 32), (384, 384, 10, 10),
        (512, 512, 7, 7), (512, 512, 14, 19),
    )),
    *itertools.starmap(chain, (
        (16, 6, 1, 112), (24, 6, 2, 75), (32, 6, 1, 56), (32, 6, 1, 160), (64, 6, 1, 28),
        (96, 6, 2, 40), (16, 4, 1, 224),
    )),
    *itertools.starmap(attention, (
        (12, 17, 17, 64), (12, 77, 77, 64), (12, 200, 200, 64), (12, 512, 512, 64),
        (8, 1000, 1000, 64), (5, 333, 333, 32), (3, 128, 128, 128), (1, 700, 700, 64),
        (16, 1, 900, 64), (6, 64, 1500, 64), (12, 200, 200, 64, True), (4, 1000, 1000, 64, True),
        (2, 333, 333, 128, True),
    )),
)  # fmt: skip
"""None has extents that calibration measures."""


def ring(hardware: CpuHardware, cache: Cache, workers: int) -> Ring:
    """A ring in which tunings of a machine compete."""

    def make(changes: Changes) -> CpuBackend:
        backend = CpuBackend(cache)
        tuning = replace(hardware.tuning, **changes)
        backend.use(replace(hardware, tuning=tuning))
        return backend

    return Ring(make, workers)


def hold(place: Ring, step: Step) -> Outcome:
    """One contest."""
    own = step.make(place.backend({}))
    runs = [own, *(step.make(place.backend(changes)) for changes in step.ways)]
    first = place.timed(runs, FIRST_ROUNDS)
    order = sorted(range(1, len(runs)), key=lambda i: _ratio(first[0], first[i]), reverse=True)
    best = order[:FINALISTS]
    twin = step.make(place.backend({}))
    final = place.timed([own, *(runs[i] for i in best), twin], FINAL_ROUNDS)
    ratios = [_ratio(final[0], some) for some in final[1:-1]]
    number = max(range(len(ratios)), key=ratios.__getitem__)
    return Outcome(
        step.label, statistics.median(final[0]), statistics.median(final[number + 1]),
        step.ways[best[number] - 1], max(ratios[number] - 1.0, 0.0),
        abs(_ratio(final[0], final[-1]) - 1.0),
        {
            _in_words(changes): 1.0 / _ratio(first[0], some)
            for changes, some in zip(step.ways, first[1:], strict=True)
        },
    )  # fmt: skip


def _ratio(own: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def _in_words(changes: Changes) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in changes.items())
