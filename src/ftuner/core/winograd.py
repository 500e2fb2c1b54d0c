"""Winograd's minimal filtering: F(m x m, 3 x 3), and along one axis.

A tile of `m x m` outputs reads `n x n` inputs d, with n = m + 2. With constant matrices A, B and G
it is `A^T ((G g G^T) * (B^T d B)) A`, where `*` multiplies element by element. Summed over
channels, each of the `n^2` elements is a matrix product of tiles and channels.
`schedules/winograd/cpu_kernel.py` writes out the products by the constant matrices.

A line of `m` outputs by a window of `k` elements that moves `s` positions reads, for each phase of
the stride, a window of `r = ceil(k / s)` elements that moves one. Phases are like channels: s times
as many, and some elements of the last one are zero. Each phase is F(m, r) (Winograd, *Arithmetic
Complexity of Computations*, 1980): `A^T ((G g) * (B^T d))` of `n = m + r - 1` inputs d, with n
multiplications instead of `m r`. The matrices are those of Toom and Cook for n - 1 points and
infinity. Summed over phases, channels and rows of the window, each of the n elements is a product
of matrices. `schedules/line_winograd/cpu_kernel.py` computes `B^T d` and the products by `A^T`; the
weight is transformed when it is packed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from ftuner.core.frozen import dataclass

WINDOW = 3
"""Extent of the window along both axes."""
OUTPUTS = (2, 4)
"""The m that code is written for."""


LINE_OUTPUTS = {2: 5, 3: 4, 4: 5}
"""Outputs of a line by r, those for which there are enough points: points are then in pairs of
opposite ones, whose transforms share their sums."""
POINTS = tuple(Fraction(*n) for n in ((0,), (1,), (-1,), (2,), (-2,), (1, 2), (-1, 2)))
"""Points in their order. The error of F(5, 4) is three times that of the sums themselves, and less
than that of F(4 x 4, 3 x 3)."""

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]


@dataclass(frozen=True)
class LineTransforms:
    """The constant matrices of F(m, r)."""

    sums: Matrix
    """A^T, of m x n."""
    weight: Matrix
    """G, of n x r."""
    inputs: Matrix
    """B^T, of n x n."""


@lru_cache(maxsize=len(LINE_OUTPUTS))
def line_transforms(taps: int) -> LineTransforms:
    """The matrices for r = `taps`, one of `LINE_OUTPUTS`."""
    m = LINE_OUTPUTS[taps]
    points = POINTS[: m + taps - 2]
    zero, one = Fraction(0), Fraction(1)
    sums = tuple((*(p**i for p in points), one if i == m - 1 else zero) for i in range(m))
    weight, inputs = [], []
    for point in points:
        others = [p for p in points if p != point]
        scale = one
        for other in others:
            scale *= point - other
        weight.append(tuple(point**k / scale for k in range(taps)))
        inputs.append((*_with_roots(others), zero))
    weight.append((*(zero,) * (taps - 1), one))
    inputs.append(_with_roots(points))
    return LineTransforms(sums, tuple(weight), tuple(inputs))


def _with_roots(roots: Iterable[Fraction]) -> Row:
    """Coefficients of the polynomial with these roots, the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [s - root * c for s, c in zip(shifted, [*found, Fraction(0)], strict=True)]
    return tuple(found)


def taps_of(window: int, stride: int) -> int:
    """The r of a window that moves by a stride along the axis."""
    return -(-window // stride)


def saving(window: int, stride: int) -> float:
    """How many times as many multiplications a window has as the products; 0 if there are none."""
    taps = taps_of(window, stride)
    if taps not in LINE_OUTPUTS:
        return 0.0
    m = LINE_OUTPUTS[taps]
    return window * m / (stride * (m + taps - 1))


def mirrored(matrix: Matrix) -> tuple[tuple[int, ...], ...]:
    """Rows in pairs that differ in signs alone, as those of opposite points do, and single ones."""
    pairs: list[tuple[int, ...]] = []
    left = list(range(len(matrix)))
    while left:
        row = left.pop(0)
        sizes = [abs(c) for c in matrix[row]]
        other = next((i for i in left if [abs(c) for c in matrix[i]] == sizes), None)
        if other is not None:
            left.remove(other)
        pairs.append((row,) if other is None else (row, other))
    return tuple(pairs)


def transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


@lru_cache(maxsize=len(LINE_OUTPUTS))
def line_operations(taps: int) -> tuple[int, int]:
    """Vector instructions of a transform of inputs, and of one of sums."""
    transforms = line_transforms(taps)
    return operations(transforms.inputs), operations(transposed(transforms.sums))


def operations(matrix: Matrix) -> int:
    """Vector instructions of a product by a matrix or its transpose, whose mirrored rows or columns
    share their sums: a multiply-add for each number of one of a pair, and two additions a pair."""
    found = 0
    for pair in mirrored(matrix):
        found += sum(c != 0 for c in matrix[pair[0]]) + 2 * (len(pair) - 1)
    return found
