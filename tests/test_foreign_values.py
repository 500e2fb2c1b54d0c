"""What the public functions cannot take, they refuse with an error of their own; and what is an
array in a way of its own, they read as NumPy does."""

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.errors import ConfigurationError, FTunerError, OperandError


def of(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class Matrix(np.ndarray[Any, Any]):
    """A subclass without a meaning."""


class Refuses:
    """Looks like an array, until it is read."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("not now")


class NoCapsule:
    def __dlpack__(self, **options: Any) -> int:
        return 3

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


VALUES: Mapping[str, Any] = {
    "none": None, "a list": [[1.0]], "a dict": {}, "a number": 1.5, "not a number": float("nan"),
    "less than nothing": -1, "more than a word": 2**70, "a text": "abc", "digits": "9" * 5000,
    "bytes": b"x", "an object": object(), "a class": list, "objects": of(5, 7).astype(object),
    "integers": of(5, 7).astype(np.int32), "booleans": of(5, 7) > 0,
    "halves": of(5, 7).astype(np.float16),
    "long doubles": of(5, 7).astype(np.longdouble), "complex": of(5, 7).astype(np.complex64),
    "other byte order": of(5, 7).astype(">f4"), "times": np.zeros((5, 7), "M8[s]"),
    "records": np.zeros((5, 7), [("x", "f4"), ("y", "f4")]), "texts": np.full((5, 7), "x"),
    "a matrix": of(5, 7).view(np.matrix), "hidden": np.ma.masked_less(of(5, 7), 0),
    "a subclass": of(5, 7).view(Matrix), "no axes": np.float32(3), "one axis": of(7),
    "no rows": of(0, 7), "30 axes": of(*[1] * 28, 5, 7), "three axes": of(2, 5, 7),
    "a buffer": memoryview(of(5, 7)), "an array of Python": array("f", [1.0] * 7),
    "refuses": Refuses(), "no capsule": NoCapsule(), "read-only": np.broadcast_to(of(1, 7), (5, 7)),
}  # fmt: skip
CALLS: Mapping[str, Callable[[Any], object]] = {
    "matmul(a)": lambda x: ftuner.matmul(x, of(7, 3)),
    "matmul(b)": lambda x: ftuner.matmul(of(7, 5), x),
    "matmul(out)": lambda x: ftuner.matmul(of(5, 2), of(2, 7), out=x),
    "matmul(accumulate)": lambda x: ftuner.matmul(of(5, 2), of(2, 7), of(5, 7), accumulate=x),
    "Dense(weight)": ftuner.Dense,
    "Dense(bias)": lambda x: ftuner.Dense(of(7, 3), x),
    "Dense(width)": lambda x: ftuner.Dense(of(7, 3), width=x),
    "Dense(activation)": lambda x: ftuner.Dense(of(7, 3), activation=x),
    "Dense(residual)": lambda x: ftuner.Dense(of(7, 3), residual=x),
    "layer(x)": lambda x: ftuner.Dense(of(4, 7))(x),
    "layer(out)": lambda x: ftuner.Dense(of(7, 2))(of(5, 2), out=x),
    "layer(residual)": lambda x: ftuner.Dense(of(7, 2), residual=True)(of(5, 2), x),
    "grouped_matmul(a)": lambda x: ftuner.grouped_matmul(x, [of(7, 3)]),
    "grouped_matmul(a[0])": lambda x: ftuner.grouped_matmul([x], [of(7, 3)]),
    "grouped_matmul(out)": lambda x: ftuner.grouped_matmul([of(5, 2)], [of(2, 7)], x),
    "attention(q)": lambda x: ftuner.attention(x, x, x),
    "attention(mask)": lambda x: ftuner.attention(of(3, 5, 2), of(3, 7, 2), of(3, 7, 4), mask=x),
    "attention(causal)": lambda x: ftuner.attention(of(3, 5, 2), *[of(3, 7, 2)] * 2, causal=x),
    "attention(scale)": lambda x: ftuner.attention(of(3, 5, 2), *[of(3, 7, 2)] * 2, scale=x),
    "attention(q_offsets)": lambda x: ftuner.attention(*[of(3, 7, 2)] * 3, q_offsets=x),
    "attention(out)": lambda x: ftuner.attention(*[of(3, 7, 2)] * 3, out=x),
    "explain(m)": lambda x: ftuner.explain(x, 3, 3),
    "explain(k)": lambda x: ftuner.explain(3, 3, x),
    "explain(batch)": lambda x: ftuner.explain(3, 3, 3, x),
    "explain(dtype)": lambda x: ftuner.explain(3, 3, 3, dtype=x),
    "explain(workers)": lambda x: ftuner.explain(3, 3, 3, workers=x),
    "explain(hardware)": lambda x: ftuner.explain(3, 3, 3, hardware=x),
    "tune(dtype)": lambda x: ftuner.tune(x),
    "tune(activation)": lambda x: ftuner.tune(activation=x),
    "tune(bias)": lambda x: ftuner.tune(bias=x),
    "tune(calibrate)": lambda x: ftuner.tune(calibrate=x),
    "tune(device)": lambda x: ftuner.tune(device=x),
    "hardware(device)": ftuner.hardware,
    "set_num_threads": ftuner.set_num_threads,
}


@pytest.mark.parametrize("call", CALLS)
def test_only_errors_of_our_own(call: str) -> None:
    threads = ftuner.get_num_threads()
    for name, value in VALUES.items():
        if "activation" in call and callable(value):
            continue  # What it raises when it is called is its own.
        try:
            CALLS[call](value)
        except FTunerError:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            ftuner.set_num_threads(threads)


def test_subclasses_are_read_as_arrays() -> None:
    a, b = of(5, 7), of(7, 3)
    product, dense = ftuner.matmul(a, b), ftuner.Dense(b.T)(a)
    for x in (a.view(np.matrix), a.view(Matrix), np.ma.masked_array(a)):
        assert type(ftuner.matmul(x, b)) is np.ndarray
        assert np.array_equal(ftuner.matmul(x, b), product)
        assert np.array_equal(ftuner.Dense(b.T)(x), dense)
    column = b[:, :1].view(np.matrix)
    assert np.array_equal(
        ftuner.matmul(a.view(np.matrix)[:1], column), ftuner.matmul(a[:1], b[:, :1])
    )


def test_files_are_read_and_written_in_place(tmp_path: Path) -> None:
    a = np.memmap(tmp_path / "a", np.float32, "w+", shape=(5, 7))
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(5, 3))
    a[...] = of(5, 7)
    ftuner.matmul(a, of(7, 3), out=out)
    assert np.array_equal(out, ftuner.matmul(of(5, 7), of(7, 3)))


def test_hidden_elements_are_not_read() -> None:
    with pytest.raises(OperandError, match="a is a masked array that hides elements"):
        ftuner.matmul(np.ma.masked_less(of(5, 7), 0), of(7, 3))


def test_flags_are_booleans() -> None:
    a = of(3, 3)
    for yes in (True, 1, np.True_):
        out = np.zeros((3, 3), np.float32)
        ftuner.matmul(a, a, out, accumulate=yes)  # type: ignore[arg-type]
        assert np.array_equal(out, ftuner.matmul(a, a))
    with pytest.raises(ConfigurationError, match="accumulate is 'yes'; expected True or False"):
        ftuner.matmul(a, a, a, accumulate="yes")  # type: ignore[arg-type]
