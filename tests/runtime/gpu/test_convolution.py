"""Convolutions on a GPU, in the interpreter: through windows, and of single channels."""

from itertools import product

import numpy as np
import pytest
from tests.runtime import convolutions
from tests.runtime.convolutions import REDUCTIONS, Convolution, Reduction, name_of, step_types
from tests.runtime.gpu.backends import interpreted

from ftuner.core.dtype import BFLOAT16, DTYPES, FLOAT16, DType
from ftuner.runtime.backend import Options
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model
from ftuner.schedules.convolution.step import ConvolutionStep, GroupedConvolutionStep
from ftuner.schedules.depthwise.step import DepthwiseStep

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
RTX3090 = interpreted("rtx3090")


WINDOWS = [
    *convolutions.WINDOWS,
    Convolution((7,), 1, 2, strides=3, pads=(3, 0)),
    Convolution((3, 3), 150, 40, pads=(1, 1)),
]
GROUPED = [*convolutions.GROUPED, Convolution((3,), 64, 32, groups=2, pads=(1, 1), residual=True)]
DEPTHWISE = [
    *convolutions.DEPTHWISE,
    Convolution((5,), 80, 80, groups=80, pads=(2, 2)),
    Convolution((3, 3), 32, 32, groups=8, pads=(1, 0), residual=True),
]
PICTURES = {
    1: ((1, 7), (3, 31)),
    2: ((1, 7, 7), (3, 8, 5), (1, 9, 13)),
    3: ((1, 7, 8, 5), (2, 4, 3, 6)),
}
"""Images and their extents."""


@pytest.mark.each_value
@pytest.mark.parametrize("case", [*WINDOWS, *GROUPED], ids=name_of)
def test_windows_equal_the_reference(backend: GpuBackend, case: Convolution) -> None:
    """Also where there are no images, and where windows lie in the padding alone."""
    model = Model(case.graph(), backend)
    assert step_types(model) == [ConvolutionStep if case.groups == 1 else GroupedConvolutionStep]
    for images, *spatial in PICTURES[len(case.kernel)]:
        case.check(model, images, *spatial)
    case.check(model, 0, *spatial)
    if case.pads[0] >= case.kernel[0]:
        case.check(model, 1, *[0] * len(case.kernel))


@pytest.mark.each_value
@pytest.mark.parametrize("case", DEPTHWISE, ids=name_of)
def test_single_channels_equal_the_reference(backend: GpuBackend, case: Convolution) -> None:
    model = Model(case.graph(), backend)
    assert step_types(model) == [DepthwiseStep]
    longer = (2, 70) if len(case.kernel) == 1 else (2, 7, 40)
    for images, *spatial in (*PICTURES[len(case.kernel)], longer):
        if min(spatial) >= case.kernel[0] - 2:
            case.check(model, images, *spatial)
    case.check(model, 0, *spatial)


@pytest.mark.each_value
@pytest.mark.parametrize("case", REDUCTIONS, ids=name_of)
@pytest.mark.parametrize("held", [None, BFLOAT16], ids=str)
def test_reductions_of_windows_equal_the_reference(case: Reduction, held: DType | None) -> None:
    model = Model(case.graph(), RTX3090, Options(held=held))
    assert DepthwiseStep in step_types(model)
    assert ConvolutionStep not in step_types(model)
    for images, *spatial in PICTURES[len(case.kernel)]:
        tolerance = 1e-5 if held is None else 2.0**-6
        case.check_extremes(model, images, *spatial, tolerance=tolerance)


def test_windows_outside_of_an_empty_image() -> None:
    case = Convolution((2, 2), 8, 5, pads=(1, 1), residual=True)
    model = Model(case.graph(), RTX3090)
    for spatial in ((0, 3), (0, 0), (1, 1)):
        case.check(model, 2, *spatial)


def test_float64_is_computed_by_its_definition() -> None:
    case = Convolution((3, 3), 4, 6, dtype=DTYPES["float64"])
    model = Model(case.graph(), RTX3090)
    assert ConvolutionStep not in step_types(model)
    case.check(model, 1, 5, 4)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("groups", [1, 4])
def test_halves_are_multiplied_as_they_are_held(dtype: DType, groups: int) -> None:
    case = Convolution((3, 3), 32, 24, groups=groups, strides=2, residual=True)
    model = Model(case.graph(), RTX3090, Options(held=dtype))
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
        case.check(model, images, *spatial)
    assert len(backend.kernels) == kernels
