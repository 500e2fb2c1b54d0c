"""Copies of arrays that lie like them, and take memory for their elements."""

import numpy as np
import pytest

from ftuner.runtime.cpu.arrays import MAX_SPREAD_BYTES, Array, lying_like, readable, span_of


def spread(shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Elements with gaps in memory that is never touched."""
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low = sum(r for r in reach if r < 0)
    memory = np.zeros(sum(map(abs, reach)) + 4, np.uint8)
    return np.ndarray(shape, np.float32, memory, -low, strides)


@pytest.mark.parametrize("strides", [(400, 4), (4, 400), (-400, 8), (0, 4), (40, -4)])
def test_strides_are_kept(strides: tuple[int, int]) -> None:
    assert lying_like(spread((9, 10), strides)).strides == strides


@pytest.mark.parametrize("far", [4096, -4096])
def test_elements_far_apart_come_closer(far: int) -> None:
    """Axes that can be walked as one still can, and rows are still apart."""
    x = spread((3, 20_000, 5), (far * 20_000, far, 4))
    x[...] = np.arange(x.size).reshape(x.shape)
    found = lying_like(x)
    low, high = span_of(found)
    assert span_of(x)[1] - span_of(x)[0] > MAX_SPREAD_BYTES
    assert high - low <= 4 * x.nbytes
    step = -40 if far < 0 else 40
    assert found.strides == (20_000 * step, step, 4)
    found[...] = x
    assert np.array_equal(found, x)


def test_a_field_of_large_records_is_read_by_its_elements() -> None:
    records = np.zeros(30_000, [("flag", "u1"), ("x", "f4"), ("rest", "V4091")])
    records["x"] = np.arange(30_000)
    found = readable(records["x"][:, np.newaxis])
    assert found.flags.aligned
    assert np.array_equal(found[:, 0], np.arange(30_000))
    low, high = span_of(found)
    assert high - low <= 2 * found.nbytes
