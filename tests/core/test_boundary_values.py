"""Integers and element types at the boundary, in all forms that NumPy and torch give them."""

from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.core.given import checked_integer, dtype_name
from ftuner.errors import ConfigurationError, DTypeError, ShapeError


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float32", "float32"), (np.float32, "float32"), (np.dtype("float64"), "float64"),
        (np.dtype("<f4"), "float32"), (np.dtype(">f4"), None), (None, None), (float, None),
        (3, None), (np.float32(1), None), ("nonsense", "nonsense"),
    ],
)  # fmt: skip
def test_names_of_dtypes(given: Any, name: str | None) -> None:
    assert dtype_name(given) == name


def test_names_of_torch_dtypes() -> None:
    torch = pytest.importorskip("torch")
    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert dtype_name(torch.float32) == "float32"


@pytest.mark.parametrize("given", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_integers(given: Any) -> None:
    found = checked_integer(given, "n", 1)
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("given", [0, True, np.True_, 3.0, np.float32(3), "3", None, np.ones(2)])
def test_what_is_no_integer_is_a_named_error(given: Any) -> None:
    with pytest.raises(ShapeError, match=r"n is .*; expected an integer from 1 on"):
        checked_integer(given, "n", 1)
    with pytest.raises(ConfigurationError, match="expected a few"):
        checked_integer(given, "n", 1, 9, ConfigurationError, "a few")


def test_public_functions_take_them() -> None:
    plain = ftuner.explain(77, 768, 64, workers=1)
    found = ftuner.explain(
        np.int64(77), np.int32(768), np.uint16(64), dtype=np.float32, workers=np.int8(1)
    )
    assert found.to_document() == plain.to_document()
    on_gpu = ftuner.explain(np.int64(77), 768, 64, dtype=np.float16, hardware="h200")
    assert on_gpu.contraction.types.a.name == "float16"
    assert ftuner.tune(np.float64, calibrate="none").dtype == "float64"
    before = ftuner.get_num_threads()
    try:
        ftuner.set_num_threads(np.int64(1))
        assert ftuner.get_num_threads() == 1
    finally:
        ftuner.set_num_threads(before)
    with pytest.raises(DTypeError, match="supported are float32, float64"):
        ftuner.explain(1, 2, 3, dtype=np.int32)
    with pytest.raises(DTypeError, match="supported are"):
        ftuner.tune(np.complex64)
