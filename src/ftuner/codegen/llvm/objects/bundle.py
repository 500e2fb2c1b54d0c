"""Bundles: functions that are compiled into one object file, cached and loaded together."""

from __future__ import annotations

import hashlib
from typing import Any

from ftuner.codegen.llvm.native.symbols import (
    finish_symbol,
    reduce_symbol,
    runtime_symbols,
    widen_symbol,
)
from ftuner.core.cpu.tile import UKernel
from ftuner.core.frozen import dataclass
from ftuner.core.functions import ScalarFunction, registered_in
from ftuner.core.product import ProductTypes
from ftuner.hardware.isa import InstructionSet
from ftuner.hardware.tuning import KLoopTuning, NativeTuning

STEP_SIZE = 60
"""The size of kernels of steps. On AMD Zen 5 those of a text recogniser compile in 7 to 90 ms, and
a family of this size in 80."""


@dataclass(frozen=True)
class Bundle:
    """A value that names everything that decides the machine code of some functions, except for the
    target, the compiler and `functions` (`keys`)."""

    emitter: str
    """The full name of the module whose `emit(module, *arguments)` adds the functions to an
    `llvmlite.ir.Module`. It is imported by this name when the bundle is compiled."""
    arguments: tuple[Any, ...]
    """Hashable; their text is part of the key."""
    symbols: tuple[str, ...]
    """The functions that others may call."""
    inlines: bool = True
    """Whether to use LLVM's whole pipeline, for functions that call each other."""
    size: int = STEP_SIZE
    """Roughly how much code it is, in multiply-adds that are written out. Larger bundles are
    compiled first."""

    def __hash__(self) -> int:
        """A hash of the symbols, which name the functions uniquely."""
        return hash(self.symbols)

    @property
    def symbol(self) -> str:
        """The one function."""
        (symbol,) = self.symbols
        return symbol

    @property
    def functions(self) -> tuple[tuple[str, ScalarFunction], ...]:
        """Scalar functions from outside ftuner, if its code applies any."""
        return registered_in(self.arguments)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that emit it: `emitter`, and those outside ftuner that emit multiply-adds of
        its ISA or scalar functions."""
        isas = (value for value in self.arguments if isinstance(value, InstructionSet))
        named = [row.llvm for _, row in self.functions]
        named += [row.llvm for isa in isas for row in isa.multiply_adds]
        outside = dict.fromkeys(name for name in named if name is not None)
        return (self.emitter, *outside)


def kernel_bundle(emitter: str, name: str, *arguments: Any, inlines: bool = True) -> Bundle:
    """The kernel of a step, which `emit(module, symbol, *arguments)` adds. The symbol is the name
    and a hash of the arguments. `inlines`: as in `Bundle`."""
    digest = hashlib.sha256(repr((emitter, arguments)).encode()).hexdigest()[:24]
    symbol = f"{name}_{digest}"
    return Bundle(emitter, (symbol, *arguments), (symbol,), inlines)


def family_bundle(
    kernels: tuple[UKernel, ...], isa: InstructionSet, tuning: KLoopTuning, line_bytes: int
) -> Bundle:
    """The uKernels of one family. `line_bytes`: of a cache line."""
    return Bundle(
        "ftuner.codegen.llvm.kernels.family",
        (kernels, isa, tuning, line_bytes),
        tuple(k.symbol for k in kernels),
        inlines=False,
        size=sum(k.tile.accumulators for k in kernels),
    )


def reduce_bundle(like: UKernel, fused: bool) -> Bundle:
    """The reduction of the partial products of uKernels that are like one of them in dtypes, vector
    and epilogue."""
    return Bundle(
        "ftuner.codegen.llvm.kernels.split_k",
        (like, fused),
        (reduce_symbol(like),),
        inlines=False,
        size=like.tile.accumulators,
    )


def finish_bundle(like: UKernel, isa: InstructionSet) -> Bundle:
    """The function that applies the epilogue of a uKernel of one vector to stored tiles."""
    emitter = "ftuner.codegen.llvm.kernels.finish"
    return Bundle(emitter, (like, isa), (finish_symbol(like),), size=like.lanes)


def widen_bundle(types: ProductTypes, lanes: int, isa: InstructionSet) -> Bundle:
    """The function that widens panels of a product's B to the elements of A."""
    return Bundle(
        "ftuner.codegen.llvm.kernels.widen",
        (types.a, types.b, lanes, isa),
        (widen_symbol(types),),
        inlines=False,
        size=lanes,
    )


def runtime_bundle(vector_bytes: int, header_bytes: int, tuning: NativeTuning) -> Bundle:
    """The thread pool, the drivers of all dtypes, and the functions that Python calls.
    `header_bytes`: the size of the header of a Python object."""
    arguments, symbols = (vector_bytes, header_bytes, tuning), runtime_symbols()
    return Bundle("ftuner.codegen.llvm.native.runtime", arguments, symbols, inlines=False)
