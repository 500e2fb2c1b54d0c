"""How a CPU walks a chain of steps stripe by stripe of rows."""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.core.dtype import DType


@dataclass(frozen=True)
class MemberKernel:
    """A step of a chain, as far as the code that walks the chain depends on it."""

    operands: int
    """Of the epilogue."""
    is_product: bool
    """Whether it is a product with a weight in panels; otherwise a kernel whose tasks are blocks of
    rows."""
    constants: int = 0
    """Buffers of a kernel between x and the operands of the epilogue."""
    places: tuple[int, ...] = ()
    """Where the operands of a product stand in the epilogue of its uKernels."""


@dataclass(frozen=True)
class StripesKernel:
    """What the code that walks a chain depends on. The first member reads an array of the program,
    each other one the result of the member before; the last writes an array of the program."""

    dtype: DType
    members: tuple[MemberKernel, ...]
