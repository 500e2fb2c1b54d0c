"""Convolutions on the CPU: through windows, of single channels, and as Winograd's products."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.graph.convolutions import AXES, Convolution, N
from tests.graph.graphs import Maker
from tests.guarded import guarding

from ftuner.core.dtype import DTYPES
from ftuner.graph.steps import ConvolutionStep, DepthwiseStep, WinogradStep
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.steps import winograd as winograd_steps
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

Array = npt.NDArray[Any]


def check(model: Model, case: Convolution, images: int, *spatial: int) -> None:
    inputs = case.inputs(images, *spatial)
    (result,) = model.run(inputs)
    expected = case.expected(inputs["x"], inputs.get("r"))
    assert result.shape == expected.shape
    tolerance = 2e-5 if case.dtype.itemsize == 4 else 1e-12
    # Winograd's transforms cancel; their error grows with the magnitude of the inputs.
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=8 * tolerance)


def kinds(model: Model) -> list[type]:
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    return [type(step) for step in part.lowered.steps]


WINDOWS = [
    Convolution((3, 3), 16, 24),
    Convolution((3, 3), 5, 3, residual=True),
    Convolution((1, 1), 7, 70, strides=2, pads=(0, 0)),
    Convolution((2, 3), 33, 17, strides=2, pads=(0, 2)),
    Convolution((3, 2), 8, 64, dilation=2, pads=(2, 1), residual=True),
    Convolution((5,), 12, 20, pads=(2, 2)),
    Convolution((7,), 1, 8, strides=3, pads=(3, 0)),
    Convolution((2, 3, 3), 4, 9, pads=(1, 1)),
    Convolution((3, 3, 3), 8, 16, strides=2, pads=(1, 0), residual=True),
    Convolution((7, 7), 3, 32, strides=2, pads=(3, 3)),
    Convolution((4, 4), 3, 40, strides=4, pads=(0, 0)),
    Convolution((3, 3), 4, 6, dtype=DTYPES["float64"]),
    Convolution((3, 3), 32, 48, groups=4, residual=True),
    Convolution((2, 3), 15, 20, groups=5, strides=2, pads=(0, 2)),
]
EXTENTS = {1: (7, 8, 31, 100), 2: ((7, 7), (8, 5), (9, 30), (21, 13)), 3: ((7, 8, 5), (8, 5, 21))}


def extents(rank: int) -> list[tuple[int, ...]]:
    return [n if isinstance(n, tuple) else (n,) for n in EXTENTS[rank]]


@pytest.mark.each_value
@pytest.mark.parametrize("case", WINDOWS, ids=lambda c: f"{c.kernel}x{c.channels}x{c.w.shape[-1]}")
@pytest.mark.parametrize("threads", [1, 2])
def test_windows_equal_the_reference(backend: CpuBackend, case: Convolution, threads: int) -> None:
    model = Model(case.graph(), backend, threads=threads)
    assert ConvolutionStep in kinds(model)
    for images, spatial in product((1, 3), extents(len(case.kernel))):
        check(model, case, images, *spatial)


DEPTHWISE = [
    Convolution((3, 3), 16, 16, groups=16),
    Convolution((3, 3), 37, 37, groups=37, strides=2, residual=True),
    Convolution((5, 3), 8, 8, groups=8, dilation=2, pads=(2, 3)),
    Convolution((7, 7), 20, 20, groups=20, pads=(3, 3)),
    Convolution((1, 9), 3, 3, groups=3, pads=(4, 4), residual=True),
    Convolution((5,), 24, 24, groups=24, pads=(2, 2)),
    Convolution((3, 3), 6, 6, groups=6, strides=3, pads=(0, 0), dtype=DTYPES["float64"]),
    Convolution((3, 3), 44, 44, groups=22, residual=True),
    Convolution((3, 3), 36, 36, groups=9, strides=2),
    Convolution((2, 5), 24, 24, groups=3, dilation=2, pads=(3, 1)),
    Convolution((3,), 40, 40, groups=10, residual=True),
    Convolution((3, 3), 24, 24, groups=3, dtype=DTYPES["float64"]),
]


@pytest.mark.each_value
@pytest.mark.parametrize("case", DEPTHWISE, ids=lambda c: f"{c.kernel}x{c.channels}")
@pytest.mark.parametrize("threads", [1, 2])
def test_single_channels_equal_the_reference(
    backend: CpuBackend, case: Convolution, threads: int
) -> None:
    model = Model(case.graph(), backend, threads=threads)
    assert kinds(model) == [DepthwiseStep]
    # Rows longer than a task's block, too.
    longer = [(70,)] if len(case.kernel) == 1 else [(7, 90)]
    found = [n for n in extents(len(case.kernel)) if min(n) >= 7] + longer
    for images, spatial in product((1, 2), found):
        check(model, case, images, *spatial)


@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum"])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "begin"),
    [((3, 3), 2, 1, 1), ((2, 2), 1, 1, 0), ((5,), 2, 2, 3), ((1, 4), 3, 1, 2)],
)
def test_reductions_of_windows_equal_the_reference(
    backend: CpuBackend, kind: str, kernel: tuple[int, ...], stride: int, dilation: int, begin: int
) -> None:
    rank = len(kernel)
    case = Convolution(kernel, 19, 19, 19, stride, dilation, (begin, begin))
    g = Maker()
    x = g.given("x", N, *AXES[rank], 19)
    attributes = case.attributes(AXES[rank])
    y = g.add("window_reduce", x, kind=kind, kernel=kernel, **attributes)
    graph = g.made(g.add("multiply", y, g.number(0.5)))
    model = Model(graph, backend, threads=2)
    assert kinds(model) == [DepthwiseStep]
    for images, spatial in product((1, 2), extents(rank)):
        inputs = {"x": case.made(images, *spatial, 19)}
        if inputs["x"].size > 100:
            inputs["x"].flat[99] = np.nan
        (result,) = model.run(inputs)
        (expected,) = run_reference(graph, [inputs["x"]])
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


WINOGRAD = [
    Convolution((3, 3), 16, 24),
    Convolution((3, 3), 9, 70, pads=(0, 2), residual=True),
    Convolution((3, 3), 24, 5, pads=(2, 0)),
    Convolution((3, 3), 8, 16, dtype=DTYPES["float64"]),
    Convolution((3, 3), 24, 36, groups=3, residual=True),
]


@pytest.mark.each_value
@pytest.mark.parametrize("case", WINOGRAD, ids=lambda c: f"{c.channels}x{c.w.shape[-1]}")
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_winograd_equals_the_reference(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch, case: Convolution, outputs: int,
    threads: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(winograd_steps, "outputs_of", lambda *_: outputs)
    monkeypatch.setattr(winograd_steps, "winograd_is_faster", lambda *_: True)
    winograd_steps._is_faster.cache_clear()
    model = Model(case.graph(), backend, threads=threads)
    assert kinds(model) == [WinogradStep, ConvolutionStep] * case.groups
    for images, spatial in product((1, 3), [(1, 3), (3, 4), (8, 8), (9, 30), (17, 13)]):
        check(model, case, images, *spatial)
    winograd_steps._is_faster.cache_clear()


def test_where_winograd_is_slower_the_window_does_the_work(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd_steps, "winograd_is_faster", lambda *_: False)
    winograd_steps._is_faster.cache_clear()
    case = WINOGRAD[0]
    model = Model(case.graph(), widest, threads=1)
    check(model, case, 2, 9, 12)
    winograd_steps._is_faster.cache_clear()


@pytest.mark.parametrize("case", [WINDOWS[0], WINDOWS[2], DEPTHWISE[1], WINDOWS[7]])
def test_empty_batches(widest: CpuBackend, case: Convolution) -> None:
    check(Model(case.graph(), widest, threads=2), case, 0, *(9,) * len(case.kernel))


def test_all_that_is_read_may_be_padding(widest: CpuBackend) -> None:
    case = Convolution((3, 3), 8, 8, pads=(3, 3))
    model = Model(case.graph(), widest, threads=1)
    check(model, case, 1, 0, 4)
    check(model, case, 1, 1, 1)


def test_infinity_and_nan_reach_only_their_windows(widest: CpuBackend) -> None:
    case = Convolution((3, 3), 4, 8, pads=(1, 1))
    model = Model(case.graph(), widest, threads=1)
    x = case.made(1, 12, 12, 4)
    x[0, 5, 5, 2] = np.nan
    (result,) = model.run({"x": x})
    touched = np.isnan(result).any(axis=-1)[0]
    expected = np.zeros((12, 12), bool)
    expected[4:7, 4:7] = True
    assert (touched == expected).all()


@pytest.mark.parametrize(
    "case", [*WINDOWS[:3], WINDOWS[5], WINDOWS[9], *DEPTHWISE[:3], WINOGRAD[0]],
    ids=lambda c: f"{c.kernel}x{c.channels}x{c.w.shape[-1]}g{c.groups}",
)  # fmt: skip
def test_nothing_outside_of_arrays_is_touched(widest: CpuBackend, case: Convolution) -> None:
    with guarding():
        model = Model(case.graph(), widest, threads=1)
        for spatial in extents(len(case.kernel))[:2]:
            check(model, case, 2, *spatial)
