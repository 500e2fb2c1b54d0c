"""Emits the functions that take and give back workspaces, in a table of the free ones.

`i64 take(table, least, most)` returns the address of a free workspace of `least` to `most` bytes,
or 0. `void give(table, workspace)` puts one back into the first free slot. Both may run on several
threads at once. The word before a workspace holds its size in bytes.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, begun, const
from ftuner.codegen.llvm.native.binding import emit_binding
from ftuner.codegen.llvm.native.call_cache import emit_known_call, emit_known_program
from ftuner.codegen.llvm.native.driver import emit_driver
from ftuner.codegen.llvm.native.joining import emit_joining
from ftuner.codegen.llvm.native.program import emit_program, emit_tasks
from ftuner.codegen.llvm.native.records import SLOT_BYTES, FreeWorkspaces
from ftuner.codegen.llvm.native.symbols import (
    GIVE_WORKSPACE_SYMBOL,
    KNOWN_CALL_INPUTS,
    TAKE_WORKSPACE_SYMBOL,
)
from ftuner.codegen.llvm.native.thread_pool import emit_pool
from ftuner.codegen.llvm.native.words import emit_words
from ftuner.codegen.llvm.native.work_stealing import emit_chunks
from ftuner.core.dtype import DTYPES
from ftuner.hardware.tuning import NativeTuning

_NONE = const(0)


def _emit_give(module: ir.Module) -> ir.Function:
    kind = ir.FunctionType(VOID, [PTR, I64])
    builder, (table, workspace) = begun(module, kind, GIVE_WORKSPACE_SYMBOL)
    with builder.counted_loop(0, FreeWorkspaces.SLOTS) as i:
        place = builder.slot_address(table, i)
        swapped = builder.cmpxchg(place, _NONE, workspace, "release", "monotonic")
        with builder.if_then(builder.extract_value(swapped, 1)):
            builder.ret_void()
    # Never reached: there are at most as many workspaces as slots.
    builder.ret_void()
    return builder.function


def _emit_take(module: ir.Module, give: ir.Function) -> None:
    kind = ir.FunctionType(I64, [PTR, I64, I64])
    builder, (table, least, most) = begun(module, kind, TAKE_WORKSPACE_SYMBOL)
    with builder.counted_loop(0, FreeWorkspaces.SLOTS) as i:
        place = builder.slot_address(table, i)
        # Read first: empty slots are then not written to.
        seen = builder.load_atomic(place, "monotonic", SLOT_BYTES, typ=I64)
        with builder.if_then(builder.icmp_signed("!=", seen, _NONE)):
            found = builder.atomic_rmw("xchg", place, _NONE, "acquire")
            with builder.if_then(builder.icmp_signed("!=", found, _NONE)):
                size = builder.load(builder.at(builder.inttoptr(found, PTR), -SLOT_BYTES), typ=I64)
                enough = builder.icmp_signed(">=", size, least)
                fits = builder.and_(enough, builder.icmp_signed("<=", size, most))
                with builder.if_then(fits):
                    builder.ret(found)
                builder.call(give, [table, found])
    builder.ret(_NONE)


def emit(module: ir.Module, vector_bytes: int, header_bytes: int, tuning: NativeTuning) -> None:
    """Add all of them to a module. `header_bytes`: the size of the header of a Python object."""
    emit_pool(module, tuning)
    emit_chunks(module)
    for dtype in DTYPES.values():
        emit_driver(module, dtype, vector_bytes // dtype.itemsize, tuning)
    emit_program(module, header_bytes, tuning)
    emit_tasks(module, header_bytes)
    emit_binding(module)
    emit_joining(module)
    emit_words(module, header_bytes)
    _emit_take(module, _emit_give(module))
    for inputs in KNOWN_CALL_INPUTS:
        emit_known_call(module, inputs, header_bytes, tuning)
    emit_known_program(module, header_bytes, tuning)
    for function in module.functions:
        # LLVM's whole pipeline, which would inline them too, takes 0.4 s and saves a call 10 ns.
        if function.linkage == "internal" and "noinline" not in function.attributes:
            function.attributes.add("alwaysinline")
