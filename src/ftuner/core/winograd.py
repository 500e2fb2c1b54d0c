"""Winograd's minimal filtering F(m x m, 3 x 3), after Lavin and Gray (arXiv 1509.09308).

A tile of `m x m` outputs reads `(m + 2) x (m + 2)` inputs d. With the constant matrices below it is
`A^T ((G g G^T) * (B^T d B)) A`, where `*` multiplies element by element: summed over channels, each
of the `(m + 2)^2` elements is a matrix product of tiles and channels.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

WINDOW = 3
"""Extent of the window along both axes."""

_G: Mapping[int, tuple[tuple[float, ...], ...]] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
OUTPUTS = tuple(_G)
"""The m that there are matrices for."""


def transformed_weight(weight: npt.NDArray[np.floating], m: int) -> npt.NDArray[np.floating]:
    """The weight of (3, 3, channels, columns) as ((m + 2)^2, channels, columns), of its dtype.
    Computed in float64 and rounded once."""
    g = np.array(_G[m])
    wide = np.einsum("ay,yxcn,bx->abcn", g, weight.astype(np.float64), g, optimize=True)
    matrices: npt.NDArray[np.floating] = wide.reshape((m + 2) ** 2, *weight.shape[2:])
    return matrices.astype(weight.dtype)
