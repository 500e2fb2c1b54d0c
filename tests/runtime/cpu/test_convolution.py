"""Convolutions on the CPU: through windows, of single channels, and as Winograd's products."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from tests.guarded import guarding
from tests.runtime import convolutions
from tests.runtime.convolutions import REDUCTIONS, Convolution, Reduction, name_of, step_types

from ftuner.core.dtype import DTYPES
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.task_groups import TaskGroups
from ftuner.runtime.model import Model
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.depthwise.step import DepthwiseStep
from ftuner.schedules.line_winograd import cpu_binding as line_steps
from ftuner.schedules.line_winograd.cpu_plan import line_plan
from ftuner.schedules.line_winograd.step import LineWinogradStep
from ftuner.schedules.winograd import cpu_binding as winograd_steps
from ftuner.schedules.winograd.cpu_plan import winograd_plan
from ftuner.schedules.winograd.step import WinogradStep


def check(model: Model, case: Convolution, images: int, *spatial: int) -> None:
    """Winograd's transforms cancel; their error grows with the magnitude of the inputs."""
    case.check(model, images, *spatial, cancelling=8)


WINDOWS = [
    *convolutions.WINDOWS,
    *convolutions.GROUPED,
    Convolution((7,), 1, 8, strides=3, pads=(3, 0)),
    Convolution((4, 4), 3, 40, strides=4, pads=(0, 0)),
    # Most elements of the windows are outside x for all rows of a tile.
    Convolution((3, 3), 16, 40, dilation=12, pads=(12, 12), residual=True),
    Convolution((3, 3), 9, 70, strides=2, residual=True, bias=False),
    Convolution((3, 5), 3, 24, dilation=20, pads=(40, 40)),
    Convolution((3, 3, 3), 4, 24, dilation=9, pads=(9, 9)),
    Convolution((3, 3), 4, 6, dtype=DTYPES["float64"]),
]
DEPTHWISE = [
    *convolutions.DEPTHWISE,
    Convolution((5,), 24, 24, groups=24, pads=(2, 2)),
    Convolution((3, 3), 6, 6, groups=6, strides=3, pads=(0, 0), dtype=DTYPES["float64"]),
    Convolution((3, 3), 44, 44, groups=22, residual=True),
    Convolution((3, 3), 36, 36, groups=9, strides=2),
    Convolution((2, 5), 24, 24, groups=3, dilation=2, pads=(3, 1)),
    Convolution((3,), 40, 40, groups=10, residual=True),
    Convolution((3, 3), 24, 24, groups=3, dtype=DTYPES["float64"]),
]
WINOGRAD = [
    Convolution((3, 3), 16, 24),
    Convolution((3, 3), 9, 70, pads=(0, 2), residual=True),
    Convolution((3, 3), 24, 5, pads=(2, 0)),
    Convolution((3, 3), 8, 16, dtype=DTYPES["float64"]),
    Convolution((3, 3), 24, 36, groups=3, residual=True),
]
LINES = [
    Convolution((7, 7), 3, 48, strides=2, pads=(3, 3)),
    Convolution((7, 7), 3, 70, strides=4, pads=(2, 3), residual=True),
    Convolution((5, 5), 9, 5, strides=2, pads=(0, 2)),
    Convolution((3, 3), 4, 16),
    Convolution((1, 8), 20, 33, strides=2, pads=(1, 0), residual=True),
    Convolution((7, 7), 2, 12, strides=2, pads=(0, 0), dtype=DTYPES["float64"]),
]
EXTENTS = {
    1: ((7,), (8,), (31,), (100,)),
    2: ((7, 7), (8, 5), (9, 30), (21, 13)),
    3: ((7, 8, 5), (8, 5, 21)),
}


@pytest.mark.each_value
@pytest.mark.parametrize("case", WINDOWS, ids=name_of)
@pytest.mark.parametrize("threads", [1, 2])
def test_windows_equal_the_reference(backend: CpuBackend, case: Convolution, threads: int) -> None:
    model = Model(case.graph(), backend, Options(threads=threads))
    assert ConvolutionStep in step_types(model)
    for images, spatial in product((1, 3), EXTENTS[len(case.kernel)]):
        check(model, case, images, *spatial)


@pytest.mark.each_value
@pytest.mark.parametrize("case", DEPTHWISE, ids=name_of)
@pytest.mark.parametrize("threads", [1, 2])
def test_single_channels_equal_the_reference(
    backend: CpuBackend, case: Convolution, threads: int
) -> None:
    model = Model(case.graph(), backend, Options(threads=threads))
    assert step_types(model) == [DepthwiseStep]
    # Rows longer than a task's block, too.
    longer = [(70,)] if len(case.kernel) == 1 else [(7, 90)]
    found = [n for n in EXTENTS[len(case.kernel)] if min(n) >= 7] + longer
    for images, spatial in product((1, 2), found):
        check(model, case, images, *spatial)


@pytest.mark.each_value
@pytest.mark.parametrize("case", REDUCTIONS, ids=name_of)
def test_reductions_of_windows_equal_the_reference(backend: CpuBackend, case: Reduction) -> None:
    model = Model(case.graph(), backend, Options(threads=2))
    assert step_types(model) == [DepthwiseStep]
    for images, spatial in product((1, 2), EXTENTS[len(case.kernel)]):
        case.check_extremes(model, images, *spatial, tolerance=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("case", WINOGRAD, ids=name_of)
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_winograd_equals_the_reference(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch, case: Convolution, outputs: int,
    threads: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(winograd_steps, "outputs_of", lambda *_: outputs)
    monkeypatch.setattr(
        winograd_steps, "faster_winograd", lambda planner, _, *rest: winograd_plan(planner, *rest)
    )
    winograd_steps._plan.cache_clear()
    model = Model(case.graph(), backend, Options(threads=threads))
    assert step_types(model) == [WinogradStep, ConvolutionStep] * case.groups
    for images, spatial in product((1, 3), [(1, 3), (3, 4), (8, 8), (9, 30), (17, 13)]):
        check(model, case, images, *spatial)
    winograd_steps._plan.cache_clear()


@pytest.mark.usefixtures("_lines_win")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("case", "pictures"),
    [
        # Tiles are 96 to 127.
        (WINOGRAD[0], [(40, 40), (44, 36), (41, 40), (39, 43), (48, 32)]),
        # Rows of the result are 16 to 23, lines 8 to 11.
        (LINES[0], [(40, 100), (46, 92), (33, 108), (31, 73)]),
    ],
    ids=["tiles", "lines"],
)
def test_a_new_picture_within_ranges_decides_nothing(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, case: Convolution,
    pictures: list[tuple[int, int]], threads: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        winograd_steps, "faster_winograd", lambda planner, _, *rest: winograd_plan(planner, *rest)
    )
    winograd_steps._plan.cache_clear()
    model = Model(case.graph(), widest, Options(threads=threads))
    first, *others = pictures
    check(model, case, 1, *first)
    monkeypatch.setattr(TaskGroups, "_bound", None)
    for picture in others:
        check(model, case, 1, *picture)
    winograd_steps._plan.cache_clear()


def test_where_winograd_is_slower_the_window_does_the_work(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd_steps, "faster_winograd", lambda *_: None)
    winograd_steps._plan.cache_clear()
    case = WINOGRAD[0]
    model = Model(case.graph(), widest, Options(threads=1))
    check(model, case, 2, 9, 12)
    winograd_steps._plan.cache_clear()


@pytest.fixture
def _lines_win(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Winograd's products along lines do the work wherever there are any."""
    monkeypatch.setattr(
        line_steps,
        "faster_lines",
        lambda planner, _, problem, width, *rest: line_plan(planner, problem, width, rest[-1]),
    )
    line_steps._plan.cache_clear()
    yield
    line_steps._plan.cache_clear()


@pytest.mark.each_value
@pytest.mark.usefixtures("_lines_win")
@pytest.mark.parametrize("case", LINES, ids=name_of)
@pytest.mark.parametrize("threads", [1, 2])
def test_lines_equal_the_reference(backend: CpuBackend, case: Convolution, threads: int) -> None:
    model = Model(case.graph(), backend, Options(threads=threads))
    assert step_types(model) == [LineWinogradStep, ConvolutionStep]
    for images, spatial in product((1, 3), [(7, 7), (8, 9), (9, 30), (31, 13), (40, 67)]):
        check(model, case, images, *spatial)
    check(model, case, 0, 9, 9)


@pytest.mark.usefixtures("_lines_win")
@pytest.mark.parametrize("block", [1, 2, 5, 64])
def test_lines_equal_the_reference_in_blocks_of_any_rows(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(
        line_steps,
        "faster_lines",
        lambda planner, _, problem, width, *rest: line_plan(
            planner, problem, width, rest[-1]
        )._replace(block=min(block, problem.rows)),
    )
    case = LINES[0]
    model = Model(case.graph(), widest, Options(threads=2))
    for spatial in [(7, 7), (31, 13), (40, 67)]:
        check(model, case, 2, *spatial)


def test_lines_of_a_first_layer_read_what_was_padded(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows of a window are one piece of memory there."""
    chosen: list[object] = []
    case = Convolution((7, 7), 3, 32, strides=2, pads=(0, 0))
    model = Model(case.graph(), widest, Options(threads=1))
    line, window = (step for part in model.parts for step in part.lowered.steps)
    assert line.weight.shape == (7, 7, 3, 32)
    assert window.window.run == 21
    monkeypatch.setattr(line_steps, "faster_lines", lambda *given: chosen.append(given))
    line_steps._plan.cache_clear()
    check(model, case, 2, 23, 31)
    ((_, _, problem, _, window, k, _),) = set(chosen)
    assert (problem.taps, problem.run, problem.k, window.run, k) == (4, 6, 42, 3, 147)
    line_steps._plan.cache_clear()


@pytest.mark.parametrize("case", [*WINDOWS[:3:2], WINDOWS[6], DEPTHWISE[1]])
def test_empty_batches(widest: CpuBackend, case: Convolution) -> None:
    check(Model(case.graph(), widest, Options(threads=2)), case, 0, *(9,) * len(case.kernel))


def test_all_that_is_read_may_be_padding(widest: CpuBackend) -> None:
    case = Convolution((3, 3), 8, 8, pads=(3, 3))
    model = Model(case.graph(), widest, Options(threads=1))
    check(model, case, 1, 0, 4)
    check(model, case, 1, 1, 1)


def test_infinity_and_nan_reach_only_their_windows(widest: CpuBackend) -> None:
    """Those of products through windows; Winograd's transforms add up all that a tile reads."""
    case = Convolution((3, 3), 4, 8, pads=(2, 2), dilation=2)
    model = Model(case.graph(), widest, Options(threads=1))
    x = case.made(1, 12, 12, 4)
    x[0, 5, 5, 2] = np.nan
    (result,) = model.run({"x": x})
    touched = np.isnan(result).any(axis=-1)[0]
    expected = np.zeros((12, 12), bool)
    expected[3:8:2, 3:8:2] = True
    assert (touched == expected).all()


@pytest.mark.parametrize(
    "case", [*WINDOWS[:3], WINDOWS[5], WINDOWS[8], *DEPTHWISE[:3], WINOGRAD[0], *LINES],
    ids=name_of,
)  # fmt: skip
@pytest.mark.usefixtures("_lines_win")
def test_nothing_outside_of_arrays_is_touched(widest: CpuBackend, case: Convolution) -> None:
    with guarding():
        model = Model(case.graph(), widest, Options(threads=1))
        for spatial in EXTENTS[len(case.kernel)][:2]:
            check(model, case, 2, *spatial)
