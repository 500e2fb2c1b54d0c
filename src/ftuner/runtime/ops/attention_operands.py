"""What `ftuner.attention` asks of its operands, wherever they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import DType
from ftuner.errors import ConfigurationError, DTypeError, OperandError, ShapeError
from ftuner.graph.arrays import largest_finite
from ftuner.runtime.cpu.arrays import as_array
from ftuner.runtime.ops.operands import Operand, on_gpu, same_dtype


class Extents(NamedTuple):
    """The extents of one attention."""

    batch: tuple[int, ...]
    heads: int
    """Of queries: a multiple of `kv_heads`, or none."""
    kv_heads: int
    rows: int
    keys: int
    depth: int
    columns: int

    @property
    def sharing(self) -> int:
        """Heads of queries that share a head of keys and values."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def result(self) -> tuple[int, ...]:
        return (*self.batch, self.heads, self.rows, self.columns)

    @property
    def scores(self) -> tuple[int, ...]:
        return (*self.batch, self.heads, self.rows, self.keys)


class Requests(NamedTuple):
    """The rows at which consecutive requests begin, then the end of the last one."""

    rows: tuple[int, ...]
    keys: tuple[int, ...]


def extents_of(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Extents:
    """From the shapes of q, k and v.

    Raises:
        ShapeError: they do not fit together.
    """
    q, k, v = tuple(q), tuple(k), tuple(v)
    shapes = f"q is {q}, k is {k}, v is {v}"
    if not len(q) == len(k) == len(v) or len(q) < 3:
        raise ShapeError(
            f"{shapes}: expected (..., heads, rows, depth), (..., heads, keys, depth) and "
            "(..., heads, keys, columns), with the same axes"
        )
    if not q[:-3] == k[:-3] == v[:-3]:
        raise ShapeError(f"{shapes}: axes before the heads differ")
    if k[:-1] != v[:-1]:
        raise ShapeError(f"{shapes}: k and v have the same heads and keys")
    if q[-1] != k[-1]:
        raise ShapeError(f"{shapes}: q has depth {q[-1]}, k has depth {k[-1]}")
    heads, kv_heads = q[-3], k[-3]
    if heads % kv_heads if kv_heads else heads:
        raise ShapeError(f"{shapes}: {heads} heads of q cannot share {kv_heads} of k and v evenly")
    return Extents(q[:-3], heads, kv_heads, q[-2], k[-2], q[-1], v[-1])


def checked_scale(scale: float | None, depth: int, dtype: DType) -> float:
    """What products are multiplied by, as a number of a type: `1 / sqrt(depth)` unless it is given.

    Raises:
        ConfigurationError: it is no finite number of the type.
    """
    if scale is None:
        return 1.0 / math.sqrt(max(depth, 1))
    try:
        found = float(scale)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    # NaN is not less than anything.
    if not abs(found) <= largest_finite(dtype):
        raise ConfigurationError(f"scale is {scale!r}; expected a finite number of {dtype}")
    return found


def check_attended(out: Operand, extents: Extents, q: Operand) -> None:
    """Raises ShapeError or DTypeError unless the result can be written to `out`."""
    if tuple(out.shape) != extents.result:
        raise ShapeError(f"out is {tuple(out.shape)}; the result is {extents.result}")
    if out.dtype != q.dtype:
        raise DTypeError(f"out has dtype {out.dtype}, the operands {q.dtype}")


def check_mask(mask: Operand, boolean: object, extents: Extents, q: Operand) -> None:
    """Raises DTypeError or ShapeError unless a mask has the dtype `boolean` or that of q, and
    broadcasts to the scores."""
    if mask.dtype != boolean:
        same_dtype(q, mask, "mask")
    scores = extents.scores
    short = tuple(mask.shape)
    whole = (1,) * (len(scores) - len(short)) + short
    if len(whole) != len(scores) or any(
        n not in (1, full) for n, full in zip(whole, scores, strict=True)
    ):
        raise ShapeError(f"mask is {short}, which does not broadcast to the scores, {scores}")


def requests_of(q_offsets: object, k_offsets: object, masked: bool, extents: Extents) -> Requests:
    """Where requests begin; `k_offsets` are `q_offsets` where they are None.

    Raises:
        ShapeError: no vectors of one length that begin at 0, do not descend and end where q and k
            do; or q, k and v with axes before the heads.
        DTypeError: neither int32 nor int64.
        OperandError: offsets on a device, or beside a mask.
    """
    if q_offsets is None:
        raise OperandError("k_offsets come with q_offsets")
    if masked:
        raise OperandError("requests of unequal length take no mask; call once for each request")
    if extents.batch:
        raise ShapeError(
            f"q has axes {extents.batch} before its heads; requests one after the other are "
            "(heads, rows of all, depth)"
        )
    rows = _offsets(q_offsets, "q_offsets", extents.rows)
    if k_offsets is None:
        k_offsets = q_offsets
    keys = _offsets(k_offsets, "k_offsets", extents.keys)
    if len(rows) != len(keys):
        raise ShapeError(f"q_offsets are of {len(rows) - 1} requests, k_offsets of {len(keys) - 1}")
    return Requests(rows, keys)


def _offsets(value: object, name: str, total: int) -> tuple[int, ...]:
    if on_gpu(value):
        raise OperandError(
            f"{name} are on a GPU; plans are made from lengths, so give them from the host"
        )
    if isinstance(value, list | tuple):
        if not all(isinstance(n, int | np.integer) for n in value):
            raise DTypeError(f"{name} are {value!r}; expected integers")
        found = tuple(map(int, value))
    else:
        array = as_array(value, name)
        if array.dtype not in (np.int32, np.int64):
            raise DTypeError(f"{name} have dtype {array.dtype}; expected int32 or int64")
        if array.ndim != 1:
            raise ShapeError(f"{name} are {array.shape}; expected a vector")
        found = tuple(array.tolist())
    if not found or found[0] != 0 or found[-1] != total:
        ends = f"from {found[0]} to {found[-1]}" if found else "empty"
        raise ShapeError(f"{name} are {ends}; expected from 0 to {total}, the length they divide")
    if any(last < first for first, last in pairwise(found)):
        raise ShapeError(f"{name} descend: a request of less than nothing")
    return found
