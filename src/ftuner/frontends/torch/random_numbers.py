"""Operators that draw random numbers. ftuner draws its own, not those of torch's generator:
`torch.compile` leaves these operators to PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim
from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Value, building

DRAWING = ("rand.default", "rand_like.default", "randn.default", "randn_like.default")


@aten("rand", kind="random_uniform")
@aten("randn", kind="random_normal")
def _drawn(size: Sequence[Dim], dtype: DType | None = None, *, kind: str) -> Value:
    """Uniform numbers from 0 below 1, or normal ones. Half precision is drawn in float32."""
    dtype = dtype or FLOAT32
    digits = {"digits": dtype.significand_bits} if kind == "random_uniform" else {}
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    builder = building()
    assert isinstance(builder, Builder)
    return apply(kind, builder.random_stream(), dtype=wide, shape=tuple(size), **digits).cast(dtype)


@aten("rand_like", kind="random_uniform")
@aten("randn_like", kind="random_normal")
def _drawn_like(x: Value, dtype: DType | None = None, *, kind: str) -> Value:
    return _drawn(x.shape, dtype or x.dtype, kind=kind)
