"""Winograd's minimal filtering along one axis, in exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from ftuner.core.winograd import (
    LINE_OUTPUTS,
    line_transforms,
    mirrored,
    operations,
    saving,
    taps_of,
    transposed,
)


def exact(matrix: tuple[tuple[Fraction, ...], ...]) -> np.ndarray:
    return np.array(matrix, dtype=object)


@pytest.mark.parametrize("taps", LINE_OUTPUTS)
def test_the_matrices_filter_exactly(taps: int) -> None:
    found, m = line_transforms(taps), LINE_OUTPUTS[taps]
    random = np.random.default_rng(taps)
    d = np.array([Fraction(int(n)) for n in random.integers(-9, 10, m + taps - 1)])
    g = np.array([Fraction(int(n)) for n in random.integers(-9, 10, taps)])
    products = (exact(found.weight) @ g) * (exact(found.inputs) @ d)
    expected = [sum(g * d[i : i + taps]) for i in range(m)]
    assert list(exact(found.sums) @ products) == expected


@pytest.mark.parametrize("taps", LINE_OUTPUTS)
def test_opposite_points_share_their_sums(taps: int) -> None:
    found = line_transforms(taps)
    n = len(found.inputs)
    for matrix in (found.inputs, transposed(found.sums)):
        pairs = mirrored(matrix)
        assert sorted(row for pair in pairs for row in pair) == list(range(n))
        assert len(pairs) == n // 2 + 1
        assert operations(matrix) < sum(c != 0 for row in matrix for c in row)


def test_what_is_saved() -> None:
    assert taps_of(7, 2) == 4
    assert saving(7, 2) == pytest.approx(35 / 16)
    assert saving(3, 1) == 2.0
    # There are no points for so many taps, and none are needed for one.
    assert saving(7, 1) == saving(2, 2) == 0.0
