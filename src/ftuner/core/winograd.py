"""Winograd's minimal filtering F(m x m, 3 x 3), after Lavin and Gray (arXiv 1509.09308).

A tile of `m x m` outputs reads `n x n` inputs d, with n = m + 2. With constant matrices A, B and G
it is `A^T ((G g G^T) * (B^T d B)) A`, where `*` multiplies element by element. Summed over
channels, each of the `n^2` elements is a matrix product of tiles and channels.
`codegen/llvm/kernels/winograd.py` writes out the products by the constant matrices.
"""

from __future__ import annotations

WINDOW = 3
"""Extent of the window along both axes."""
OUTPUTS = (2, 4)
"""The m that code is written for."""
