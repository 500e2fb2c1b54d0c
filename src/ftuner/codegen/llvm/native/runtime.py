"""Emits the thread pool, the drivers of all dtypes, and the functions that Python calls."""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.native.binding import emit_binding
from ftuner.codegen.llvm.native.call_cache import emit_known_call
from ftuner.codegen.llvm.native.driver import emit_driver
from ftuner.codegen.llvm.native.program import emit_program
from ftuner.codegen.llvm.native.scratch import emit_workspaces
from ftuner.codegen.llvm.native.symbols import KNOWN_CALL_INPUTS
from ftuner.codegen.llvm.native.thread_pool import emit_pool
from ftuner.codegen.llvm.native.work_stealing import emit_chunks
from ftuner.core.dtype import DTYPES
from ftuner.hardware.tuning import NativeTuning


def emit(
    module: ir.Module, vector_bytes: int, converts_float16: bool, header_bytes: int,
    tuning: NativeTuning,
) -> None:  # fmt: skip
    """Add all of them to a module. `header_bytes`: the size of the header of a Python object."""
    emit_pool(module, tuning)
    emit_chunks(module)
    for dtype in DTYPES.values():
        emit_driver(module, dtype, vector_bytes // dtype.itemsize, converts_float16, tuning)
    emit_program(module, header_bytes, tuning)
    emit_binding(module)
    emit_workspaces(module)
    for inputs in KNOWN_CALL_INPUTS:
        emit_known_call(module, inputs, header_bytes, tuning)
