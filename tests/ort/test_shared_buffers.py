"""An input and the output that continues it, bound to one buffer: it is written in place."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

import ftuner.ort

SHAPE = (2, 3, 128, 4)


def cache() -> bytes:
    """New rows in a cache, and the sums of all rows."""
    text = """(float[batch, 3, rows, 4] past, float[batch, 3, n, 4] new, int64[batch] at)
            => (float[batch, 3, rows, 4] present, float largest) {
        present = TensorScatter<axis=2>(past, new, at)
        largest = ReduceMax<keepdims=0>(present)
    }"""
    return parsed(text, 24).SerializeToString()


def session_of(append: str) -> Any:
    options = ftuner.ort.SessionOptions()
    options.add_session_config_entry("ftuner.append_in_place", append)
    return ftuner.ort.InferenceSession(cache(), options)


def bound(session: Any, past: Any, present: Any, new: np.ndarray, at: int) -> None:
    binding = session.io_binding()
    binding.bind_ortvalue_input("past", past)
    binding.bind_cpu_input("new", new)
    binding.bind_cpu_input("at", np.full(2, at))
    binding.bind_ortvalue_output("present", present)
    binding.bind_output("largest")
    session.run_with_iobinding(binding)


def by_address(session: Any, buffer: np.ndarray, new: np.ndarray, at: int) -> None:
    """As programs bind a torch tensor."""
    where = ("cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)
    binding = session.io_binding()
    binding.bind_input("past", *where)
    binding.bind_cpu_input("new", new)
    binding.bind_cpu_input("at", np.full(2, at))
    binding.bind_output("present", *where)
    session.run_with_iobinding(binding)


@pytest.mark.parametrize("append", ["0", "1"])
@pytest.mark.parametrize("addresses", [False, True])
def test_one_buffer(append: str, addresses: bool) -> None:
    session = session_of(append)
    wanted = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    value = ftuner.ort.OrtValue.ortvalue_from_numpy(wanted.copy())
    buffer = value.numpy()
    for at in range(6):
        new = np.full((2, 3, 1, 4), at, np.float32)
        if addresses:
            by_address(session, buffer, new, at)
        else:
            bound(session, value, value, new, at)
        wanted[:, :, at] = at
        np.testing.assert_array_equal(buffer, wanted)
    assert buffer.flags.writeable


def test_the_run_writes_the_new_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the past nor the result is copied."""

    def copied(*_: object) -> None:
        raise AssertionError("copied")

    session = session_of("1")
    value = ftuner.ort.OrtValue.ortvalue_from_numpy(np.zeros(SHAPE, np.float32))
    monkeypatch.setattr(ftuner.ort.OrtValue, "take", copied)
    monkeypatch.setattr("ftuner.runtime.cpu.appending._copied", copied)
    bound(session, value, value, np.ones((2, 3, 1, 4), np.float32), 7)
    assert value.numpy()[:, :, 7].all()
    assert value.numpy().sum() == 24


def test_two_buffers() -> None:
    """The past stays as it is."""
    session = session_of("1")
    past, present = (
        ftuner.ort.OrtValue.ortvalue_from_numpy(np.full(SHAPE, n, np.float32)) for n in range(2)
    )
    bound(session, past, present, np.ones((2, 3, 1, 4), np.float32), 0)
    assert not past.numpy().any()
    assert present.numpy().sum() == 24


def test_a_run_that_fails() -> None:
    session = session_of("1")
    value = ftuner.ort.OrtValue.ortvalue_from_numpy(np.zeros(SHAPE, np.float32))
    new = np.ones((2, 3, 1, 4), np.float32)
    with pytest.raises(RuntimeError, match="out of range"):
        bound(session, value, value, new, SHAPE[2])
    bound(session, value, value, new, 3)
    assert value.numpy()[:, :, 3].sum() == 24
