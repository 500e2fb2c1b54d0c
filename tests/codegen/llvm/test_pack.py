"""Packing: any strides, any width, and not an element more than what was asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import LAYOUTS, Array, lie, uniform

from ftuner.core.dtype import DTYPES, DType
from ftuner.runtime.cpu.backend import CpuBackend

GUARD = 99.0


def pack(backend: CpuBackend, dtype: DType, source: Array, padded: int) -> None:
    """Pack `source[k, width]` and compare it, guards included."""
    k, width = source.shape
    lanes = backend.kernels.isa.lanes(dtype)
    expected = np.zeros((k, padded), dtype.name)
    expected[:, :width] = source
    # In front, and behind what one more vector may overwrite, nothing may change.
    memory = np.full(lanes + k * padded + 3 * lanes, GUARD, dtype.name)
    panel = memory[lanes : lanes + k * padded]
    backend.kernels.runtime.packs[dtype](
        source.ctypes.data, *source.strides, panel.ctypes.data, k, width, padded
    )
    assert np.array_equal(panel.reshape(k, padded), expected)
    room = 0 if padded % lanes == 0 else lanes
    assert np.all(memory[:lanes] == GUARD)
    assert np.all(memory[lanes + k * padded + room :] == GUARD)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_width(backend: CpuBackend, dtype: DType, layout: str) -> None:
    lanes = backend.kernels.isa.lanes(dtype)
    for width in range(1, 34):
        for k in (0, 1, lanes - 1, lanes, 2 * lanes + 1, 70):
            source, _ = lie(layout, uniform(width, (k, width), dtype.name))
            for padded in {width, -(-width // lanes) * lanes, width + 3}:
                pack(backend, dtype, source, padded)


@settings(max_examples=100)
@given(
    k=st.integers(0, 70), width=st.integers(1, 80), more=st.integers(0, 20),
    layout=st.sampled_from(LAYOUTS), name=st.sampled_from(sorted(DTYPES)),
)  # fmt: skip
def test_any_panel(
    backend: CpuBackend, k: int, width: int, more: int, layout: str, name: str
) -> None:
    source, _ = lie(layout, uniform(k, (k, width), name))
    pack(backend, DTYPES[name], source, width + more)


def test_broadcast_sources(backend: CpuBackend) -> None:
    """Strides of zero."""
    for name, dtype in DTYPES.items():
        row, column = uniform(1, (1, 9), name), uniform(2, (11, 1), name)
        pack(backend, dtype, np.broadcast_to(row, (11, 9)), 9)
        pack(backend, dtype, np.broadcast_to(column, (11, 9)), 12)
        pack(backend, dtype, np.broadcast_to(row[:, :1], (11, 9)), 16)
