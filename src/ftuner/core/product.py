"""The contraction: what a matrix product computes, apart from how.

`C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`: spatial axes batch, m and n, one
reduction axis k.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.dtype import DType


@dataclass(frozen=True)
class Contraction:
    """A matrix product with all its extents bound."""

    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        """Bytes of A, B and C, each touched once."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * elements * self.dtype.itemsize
