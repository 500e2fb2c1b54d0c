"""Bundles: functions that are compiled into one object file, cached and loaded together.

A bundle is a value that names everything that decides its machine code, except for the target and
the compiler (`keys`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ftuner.codegen.llvm.native.records import (
    GIVE_WORKSPACE_SYMBOL,
    KNOWN_CALL_INPUTS,
    POOL_RUN_SYMBOL,
    POOL_WORKER_SYMBOL,
    PROGRAM_SYMBOL,
    TAKE_WORKSPACE_SYMBOL,
    call_symbol,
    known_call_symbol,
    pack_symbol,
    reduce_symbol,
)
from ftuner.core.access import Kernel
from ftuner.core.cached_attribute import cached_attribute
from ftuner.core.cpu.tile import UKernel
from ftuner.core.dtype import DTYPES, DType
from ftuner.hardware.tuning import KLoopTuning, NativeTuning


@dataclass(frozen=True)
class KernelBundle:
    """The uKernels of one family, or (`reduce`) the reduction of partial products."""

    kernels: tuple[UKernel, ...]
    reduce: bool
    fused: bool
    masked: bool
    """Whether the ISA has `Isa.masked` loads and stores."""
    tuning: KLoopTuning
    line_bytes: int
    """Of a cache line."""

    @property
    def symbols(self) -> tuple[str, ...]:
        if self.reduce:
            return (reduce_symbol(self.kernels[0]),)
        return tuple(k.symbol for k in self.kernels)


@dataclass(frozen=True)
class RuntimeBundle:
    """The thread pool, the drivers of all dtypes, and the functions that Python calls."""

    vector_bytes: int
    header_bytes: int
    """Size of the header of a Python object."""
    tuning: NativeTuning

    @property
    def symbols(self) -> tuple[str, ...]:
        entries = [f(t) for t in DTYPES.values() for f in (call_symbol, pack_symbol)]
        calls = [known_call_symbol(inputs) for inputs in KNOWN_CALL_INPUTS]
        workspaces = TAKE_WORKSPACE_SYMBOL, GIVE_WORKSPACE_SYMBOL
        return (POOL_WORKER_SYMBOL, POOL_RUN_SYMBOL, PROGRAM_SYMBOL, *workspaces, *entries, *calls)


@dataclass(frozen=True)
class NestBundle:
    """One kernel of the general schedule."""

    kernel: Kernel
    vector_bytes: int
    fused: bool
    block_elements: int
    """Of the vector axis in a task, where it is the only kept axis."""

    @cached_attribute
    def symbol(self) -> str:
        text = repr((self.kernel, self.vector_bytes, self.fused, self.block_elements))
        return f"nest_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.symbol,)


@dataclass(frozen=True)
class AttentionBundle:
    """The attention kernel for a number of batch axes, with a mask of a dtype or without."""

    dtype: DType
    axes: int
    mask: DType | None
    causal: bool
    vector_bytes: int
    fused: bool

    @property
    def symbol(self) -> str:
        mask = f"_mask_{self.mask}" if self.mask is not None else ""
        causal = "_causal" if self.causal else ""
        return f"attention_{self.dtype}_{self.axes}{mask}{causal}"

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.symbol,)


@dataclass(frozen=True)
class TopKBundle:
    """The kernel that finds the largest or smallest elements of rows."""

    dtype: DType
    largest: bool

    @property
    def symbol(self) -> str:
        return f"top_k_{self.dtype}_{'largest' if self.largest else 'smallest'}"

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.symbol,)


GraphBundle = NestBundle | AttentionBundle | TopKBundle
"""Bundles of the kernels of a graph's steps."""
Bundle = KernelBundle | RuntimeBundle | GraphBundle
