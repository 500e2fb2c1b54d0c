"""Problems for a GPU: a product and attention, as they are planned."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.gpu.tile import Order
from ftuner.core.product import ReadWindow


class ProductProblem(NamedTuple):
    """The extents of a product, and the orders and alignment of its operands."""

    m: int
    n: int
    k: int
    batch: int = 1
    a_order: Order = "k"
    b_order: Order = "k"
    aligned: bool = True
    """As in `ProductKernel`."""
    c_aligned: bool = True
    """As in `ProductKernel`."""
    window: ReadWindow | None = None
    """How A is read through a window, if it is; then the batch elements are groups."""


class AttentionProblem(NamedTuple):
    """The extents of attention. Where requests are of unequal length, `rows` and `keys` are sums
    over requests, and `RequestLengths` has the lengths."""

    batch: int
    """Requests."""
    heads: int
    """Heads of keys and values."""
    sharing: int
    """Heads of queries that share a head of keys and values."""
    rows: int
    keys: int
    depth: int
    columns: int
    past: int = 0
    """As in `core.gpu.attention.Causal`."""


class RequestLengths(NamedTuple):
    """The lengths of concatenated requests."""

    rows: tuple[int, ...]
    keys: tuple[int, ...]
