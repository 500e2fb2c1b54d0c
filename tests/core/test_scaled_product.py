"""Products by mantissas and exponents, as the NumPy reference has them."""

import numpy as np
import pytest
from tests.wild_products import assert_product, wild_matrix

from ftuner.core.references import MANTISSAS, product_of_floats


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [1, 2, 3, 17, MANTISSAS, MANTISSAS + 1, 4096])
def test_wild_factors(dtype: str, length: int) -> None:
    x = wild_matrix(dtype, length)
    with np.errstate(invalid="ignore"):
        found = product_of_floats(x, (1,))
    assert found.dtype == x.dtype
    for value, row in zip(found.tolist(), x, strict=True):
        assert_product(value, row)


def test_axes() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    for axes in ((), (0,), (3,), (1, 3), (0, 2), (0, 1, 2, 3)):
        found = product_of_floats(x, axes)
        assert np.allclose(found, np.prod(x, axis=axes) if axes else x)
        assert found.shape == (np.prod(x, axis=axes).shape if axes else x.shape)


def test_nothing() -> None:
    assert product_of_floats(np.ones((2, 0, 3), np.float32), (1,)).tolist() == [[1.0] * 3] * 2
    assert product_of_floats(np.ones((0, 3), np.float32), (1,)).shape == (0,)
    assert product_of_floats(np.ones((0, 0), np.float32), (1,)).shape == (0,)
