"""Which elements of a tensor are known as integers."""

from __future__ import annotations

import numpy as np
import pytest

from ftuner.graph.builder import Builder
from ftuner.graph.shape_arithmetic import elements_of


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.float16, 2048), (np.float32, 1 << 24), (np.float64, 1 << 24)]
)
def test_floats_are_followed_as_far_as_their_arithmetic_is_exact(
    dtype: type[np.floating], most: int
) -> None:
    def followed(number: float) -> list[object] | None:
        found = elements_of(Builder().constant(np.array([number], dtype)))
        return None if found is None else found.tolist()

    assert followed(-most) == [-most]
    beyond = [most * 1.5, np.inf, -np.inf, np.nan, np.finfo(dtype).max, 0.5]
    assert [followed(number) for number in beyond] == [None] * len(beyond)
