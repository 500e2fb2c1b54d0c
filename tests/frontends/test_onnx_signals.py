"""Fourier transforms of symbolic and constant lengths against ONNX's reference evaluator."""

import numpy as np
import pytest
from tests.frontends.onnx_models import run_node

from ftuner.errors import GraphError, IndexRangeError

LENGTHS = [1, 2, 5, 8, 9]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("extent", [1, 4, 7])
def test_transforms(extent: int, length: int) -> None:
    """Cut or filled with zeros, along an axis that counts from the back."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, extent, 3, 2)).astype(np.float32)
    numbers = x[..., 0] + 1j * x[..., 1]
    inputs = [x, np.int64(length), np.int64(-3)]
    for inverse, transform in ((0, np.fft.fft), (1, np.fft.ifft)):
        (found,) = run_node("DFT", inputs, 20, fixed=(1, 2), symbolic=False, inverse=inverse)
        wanted = transform(numbers, length, axis=1)
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=1e-5)
    (half,) = run_node("DFT", [x[..., :1], *inputs[1:]], 20, fixed=(1, 2), symbolic=False,
                       onesided=1)  # fmt: skip
    wanted = np.fft.rfft(x[..., 0], length, axis=1)
    np.testing.assert_allclose(half[..., 0] + 1j * half[..., 1], wanted, atol=1e-5)
    (back,) = run_node("DFT", inputs, 20, fixed=(1, 2), symbolic=False, onesided=1, inverse=1)
    np.testing.assert_allclose(back[..., 0], np.fft.irfft(numbers, length, axis=1), atol=1e-5)


def test_bad_signals() -> None:
    x = np.zeros((2, 4, 3), np.float32)
    with pytest.raises(GraphError, match="expected floats and a last axis of 1 or 2"):
        run_node("DFT", [x], 17, symbolic=False)
    with pytest.raises(GraphError, match="half of the transform of the complex signal"):
        run_node("DFT", [x[..., :2]], 17, symbolic=False, onesided=1)
    with pytest.raises(GraphError, match="the parts of complex numbers"):
        run_node("DFT", [x[..., :2]], 17, symbolic=False, axis=2)


def test_positions_outside_a_cache() -> None:
    cache, update = np.zeros((2, 5, 3), np.float32), np.ones((2, 2, 3), np.float32)
    for start in (-1, 4):
        with pytest.raises((IndexRangeError, IndexError)):
            run_node("TensorScatter", [cache, update, np.array([0, start])], 24)
    (found,) = run_node("TensorScatter", [cache, update, np.array([0, 4])], 24, mode="circular")
    assert found[:, :, 0].tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 1]]
