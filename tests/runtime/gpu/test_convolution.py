"""Convolutions on a GPU, in the interpreter: through windows, and of single channels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.graph.convolutions import AXES, Convolution, N
from tests.graph.graphs import Maker
from tests.runtime.gpu.backends import interpreted

from ftuner.core.dtype import BFLOAT16, DTYPES, FLOAT16, DType
from ftuner.graph.steps import ConvolutionStep, DepthwiseStep, GroupedConvolutionStep
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.executable import CompiledGraph
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
RTX3090 = interpreted("rtx3090")


def steps(model: Model) -> list[type]:
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    return [type(step) for step in part.lowered.steps]


def check(model: Model, case: Convolution, images: int, *spatial: int) -> None:
    inputs = case.inputs(images, *spatial)
    (result,) = model.run(inputs)
    expected = case.expected(inputs["x"], inputs.get("r"))
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


WINDOWS = [
    Convolution((3, 3), 16, 24),
    Convolution((3, 3), 5, 3, residual=True),
    Convolution((1, 1), 7, 70, strides=2, pads=(0, 0)),
    Convolution((2, 3), 33, 17, strides=2, pads=(0, 2)),
    Convolution((3, 2), 8, 64, dilation=2, pads=(2, 1), residual=True),
    Convolution((5,), 12, 20, pads=(2, 2)),
    Convolution((7,), 1, 1, strides=3, pads=(3, 0)),
    Convolution((2, 3, 3), 4, 9, pads=(1, 1)),
    Convolution((3, 3, 3), 8, 16, strides=2, pads=(1, 0), residual=True),
    Convolution((7, 7), 3, 32, strides=2, pads=(3, 3)),
    Convolution((3, 3), 150, 40, pads=(1, 1)),
]
GROUPED = [
    Convolution((3, 3), 32, 48, groups=4, residual=True),
    Convolution((2, 3), 15, 20, groups=5, strides=2, pads=(0, 2)),
    Convolution((3,), 64, 32, groups=2, pads=(1, 1), residual=True),
]
EXTENTS = {1: (7, 31), 2: ((7, 7), (8, 5), (9, 13)), 3: ((7, 8, 5),)}


def extents(rank: int) -> list[tuple[int, ...]]:
    return [n if isinstance(n, tuple) else (n,) for n in EXTENTS[rank]]


@pytest.mark.each_value
@pytest.mark.parametrize(
    "case", [*WINDOWS, *GROUPED], ids=lambda c: f"{c.kernel}x{c.channels}x{c.w.shape[-1]}"
)
def test_windows_equal_the_reference(backend: GpuBackend, case: Convolution) -> None:
    """Also where there are no images, and where windows lie in the padding alone."""
    model = Model(case.graph(), backend)
    assert steps(model) == [ConvolutionStep if case.groups == 1 else GroupedConvolutionStep]
    for images, spatial in product((1, 3), extents(len(case.kernel))):
        check(model, case, images, *spatial)
    check(model, case, 0, *extents(len(case.kernel))[0])
    if case.pads[0] >= case.kernel[0]:
        check(model, case, 1, *[0] * len(case.kernel))


DEPTHWISE = [
    Convolution((3, 3), 16, 16, groups=16),
    Convolution((3, 3), 37, 37, groups=37, strides=2, residual=True),
    Convolution((5, 3), 8, 8, groups=8, dilation=2, pads=(2, 3)),
    Convolution((7, 7), 20, 20, groups=20, pads=(3, 3)),
    Convolution((1, 9), 3, 3, groups=3, pads=(4, 4), residual=True),
    Convolution((5,), 80, 80, groups=80, pads=(2, 2)),
    Convolution((3, 3), 32, 32, groups=8, pads=(1, 0), residual=True),
]


@pytest.mark.each_value
@pytest.mark.parametrize("case", DEPTHWISE, ids=lambda c: f"{c.kernel}x{c.channels}")
def test_single_channels_equal_the_reference(backend: GpuBackend, case: Convolution) -> None:
    model = Model(case.graph(), backend)
    assert steps(model) == [DepthwiseStep]
    longer = [(70,)] if len(case.kernel) == 1 else [(7, 40)]
    for images, spatial in product((1, 2), [*extents(len(case.kernel)), *longer]):
        if min(spatial) >= case.kernel[0] - 2:
            check(model, case, images, *spatial)
    check(model, case, 0, *longer[0])


@pytest.mark.parametrize("kind", ["sum", "maximum", "minimum"])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "begin"),
    [((3, 3), 2, 1, 1), ((2, 2), 1, 1, 0), ((5,), 2, 2, 3), ((1, 4), 3, 1, 2)],
)
@pytest.mark.parametrize("held", [None, BFLOAT16], ids=str)
def test_reductions_of_windows_equal_the_reference(
    kind: str, kernel: tuple[int, ...], stride: int, dilation: int, begin: int, held: DType | None
) -> None:
    rank = len(kernel)
    case = Convolution(kernel, 19, 19, 19, stride, dilation, (begin, begin))
    g = Maker()
    x = g.given("x", N, *AXES[rank], 19)
    attributes = case.attributes(AXES[rank])
    y = g.add("window_reduce", x, kind=kind, kernel=kernel, **attributes)
    graph = g.made(g.add("multiply", y, g.number(0.5)))
    model = Model(graph, RTX3090, held=held)
    assert DepthwiseStep in steps(model)
    assert ConvolutionStep not in steps(model)
    for images, spatial in product((1, 2), extents(rank)):
        inputs = {"x": case.made(images, *spatial, 19)}
        if inputs["x"].size > 100:
            inputs["x"].flat[99] = np.nan
        (result,) = model.run(inputs)
        (expected,) = run_reference(graph, [inputs["x"]])
        tolerance = 1e-5 if held is None else 2.0**-6
        np.testing.assert_allclose(result, expected, tolerance, tolerance)


def test_windows_outside_of_an_empty_image() -> None:
    case = Convolution((2, 2), 8, 5, pads=(1, 1), residual=True)
    model = Model(case.graph(), RTX3090)
    for spatial in ((0, 3), (0, 0), (1, 1)):
        check(model, case, 2, *spatial)


def test_float64_is_computed_by_its_definition() -> None:
    case = Convolution((3, 3), 4, 6, dtype=DTYPES["float64"])
    model = Model(case.graph(), RTX3090)
    assert ConvolutionStep not in steps(model)
    check(model, case, 1, 5, 4)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("groups", [1, 4])
def test_halves_are_multiplied_as_they_are_held(dtype: DType, groups: int) -> None:
    case = Convolution((3, 3), 32, 24, groups=groups, strides=2, residual=True)
    model = Model(case.graph(), RTX3090, held=dtype)
    inputs = case.inputs(2, 9, 6)
    (result,) = model.run(inputs)
    # Three roundings of the operands, one of the result.
    tolerance = {FLOAT16: 2.0**-9, BFLOAT16: 2.0**-6}[dtype]
    np.testing.assert_allclose(result, case.expected(**inputs), tolerance, 4 * tolerance)


def test_no_extents_need_another_kernel() -> None:
    backend = interpreted("h200")
    case = Convolution((3, 3), 16, 24, groups=2, residual=True)
    model = Model(case.graph(), backend)
    kernels = len(backend.kernels)
    for images, spatial in product((1, 2), ((3, 3), (8, 5), (1, 1))):
        check(model, case, images, *spatial)
    assert len(backend.kernels) == kernels
