"""Emits the uKernels of a family."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.kernels.dot import emit_dot
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions
from ftuner.codegen.llvm.kernels.product import emit_ukernel
from ftuner.core.cpu.tile import DOT, UKernel
from ftuner.hardware.isa import InstructionSet
from ftuner.hardware.tuning import KLoopTuning


def emit(
    module: ir.Module, kernels: Sequence[UKernel], isa: InstructionSet, tuning: KLoopTuning,
    line_bytes: int,
) -> None:  # fmt: skip
    """Add the functions of all kernels to a module; the other arguments as in `CodeOptions`."""
    for kernel in kernels:
        if kernel.b_layout == DOT:
            emit_dot(module, kernel, isa)
        else:
            emit_ukernel(module, kernel, CodeOptions(isa, tuning, line_bytes))
