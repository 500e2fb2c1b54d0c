"""The contraction: what a matrix product computes, apart from how.

`C[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`: spatial axes batch, m and n, one
reduction axis k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from ftuner.core.dtype import (
    BFLOAT16,
    BFLOAT16X2,
    FLOAT32,
    INT8,
    INT8X4,
    INT32,
    UINT8,
    UINT8X4,
    DType,
)
from ftuner.core.frozen import dataclass


@dataclass(frozen=True)
class ProductTypes:
    """The dtypes of a matrix product."""

    a: DType
    b: DType
    accumulator: DType
    c: DType

    @property
    def widens(self) -> bool:
        """Whether elements of B are converted to A's dtype before they are multiplied."""
        return self.b.itemsize < self.a.itemsize and not self.of_bytes

    @property
    def of_bytes(self) -> bool:
        """Whether A is blocks of bytes, which are multiplied by levels as words are."""
        return self.a.kind == "block" and self.a.itemsize == self.a.numbers

    @property
    def widened(self) -> ProductTypes:
        """The types once B is widened."""
        return replace(self, b=self.a) if self.widens else self

    @property
    def multiplied(self) -> ProductTypes:
        """The types that multiply-adds read: B is widened, and blocks are their numbers, or words
        of them."""
        if self.of_bytes:
            return WORD_PRODUCTS[UINT8]
        if self.a.kind == "block":
            return ProductTypes(self.accumulator, self.accumulator, self.accumulator, self.c)
        return self.widened

    @property
    def finished(self) -> DType:
        """The dtype of sums and of the epilogue: that of C, unless words are rounded to it."""
        return FLOAT32 if self.c in STORED.get(self.a, ()) else self.c

    def depth(self, numbers: int) -> int:
        """Return the steps of k of a row of numbers: its words, the last one perhaps not full."""
        return -(-numbers // self.a.numbers)

    @property
    def steps(self) -> int:
        """Multiply-adds in turn for an element of A, which is one step of k."""
        return self.a.numbers // self.multiplied.a.numbers if self.a.kind == "block" else 1

    def __str__(self) -> str:
        names = [str(t) for t in (self.a, self.b, self.accumulator, self.c)]
        return names[0] if len(set(names)) == 1 else "_".join(names)


STORED: Mapping[DType, tuple[DType, ...]] = {UINT8X4: (UINT8, INT8), BFLOAT16X2: (BFLOAT16,)}
"""What the results of a product of words may be rounded to as they are stored, by A's dtype."""
WORD_PRODUCTS: Mapping[DType, ProductTypes] = {
    UINT8: ProductTypes(UINT8X4, INT8X4, INT32, FLOAT32),
    BFLOAT16: ProductTypes(BFLOAT16X2, BFLOAT16X2, FLOAT32, FLOAT32),
}
"""The products of narrow rows by narrow weights, which are read as words, by the dtype of the rows.
Sums of integers are exact, and become float32 when they are complete."""


@lru_cache(maxsize=64)
def product_types(dtype: DType, b: DType | None = None, c: DType | None = None) -> ProductTypes:
    """The types of a product whose A, accumulators and C are of one dtype; B too, unless `b` is
    given. Those of words are in `WORD_PRODUCTS`, with `c` as C if results may be rounded to it;
    blocks are added up in float32."""
    if dtype.kind == "block":
        return ProductTypes(dtype, b or dtype, FLOAT32, FLOAT32)
    of_words = (types for types in WORD_PRODUCTS.values() if types.a == dtype)
    found = next(of_words, None) or ProductTypes(dtype, b or dtype, dtype, dtype)
    return replace(found, c=c) if c in STORED.get(found.a, ()) else found


class ReadWindow(NamedTuple):
    """How an A is read through a window."""

    axes: int
    """Spatial axes."""
    run: int
    """k steps of one element of the window, which are consecutive in memory."""
    reuse: float
    """How many rows of A share an element of memory, on average."""


class Extents(Protocol):
    """The extents of a batch of products."""

    @property
    def m(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def batch(self) -> int: ...


def extents_text(product: Extents) -> str:
    """The extents in the order m, n, k, after those of a batch of several: `3 x 4 x 5 x 6`."""
    batch = (product.batch,) if product.batch > 1 else ()
    return " x ".join(map(str, (*batch, product.m, product.n, product.k)))


@dataclass(frozen=True)
class Contraction:
    """A matrix product with all its extents bound."""

    m: int
    n: int
    k: int
    types: ProductTypes
    batch: int = 1

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        """Bytes of A, B and C, each touched once."""
        types = self.types
        a_bytes = self.m * self.k * types.a.itemsize
        b_bytes = self.k * self.n * types.b.itemsize
        return self.batch * (a_bytes + b_bytes + self.m * self.n * types.c.itemsize)
