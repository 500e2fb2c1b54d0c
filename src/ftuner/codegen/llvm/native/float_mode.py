"""The floating-point mode of a thread: rounding, and the treatment of subnormal numbers.

A thread inherits the mode of its creator, and libraries change it: one built with fast-math flushes
subnormal numbers to zero on the thread that loads it. Any thread may take any chunk, so all compute
in the mode that a process starts with. The caller's mode is restored afterwards.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, PTR, VOID, intrinsic, reserve

_X86_DEFAULT = 0x1F80
"""MXCSR: round to nearest, keep subnormal numbers, mask exceptions (Intel SDM 1, 10.2.3)."""
_X86_FLAGS = 0x3F
"""The exception flags of MXCSR, which are status and not mode."""
_AARCH64_DEFAULT = 0
"""FPCR: the same (Arm ARM, C5.2.8)."""


@contextmanager
def default_float_mode(builder: ir.IRBuilder) -> Iterator[None]:
    """Emit code that sets the default mode before the context and restores the old one after."""
    before = set_default_float_mode(builder)
    yield
    restore_float_mode(builder, before)


def set_default_float_mode(builder: ir.IRBuilder) -> ir.Value:
    """Emit code that sets the default mode; returns the old one, for `restore_float_mode`."""
    before = _mode(builder)
    with builder.if_then(_differs(builder, before), likely=False):
        _set_mode(builder, _default())
    return before


def restore_float_mode(builder: ir.IRBuilder, before: ir.Value) -> None:
    with builder.if_then(_differs(builder, before), likely=False):
        _set_mode(builder, before)


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _default() -> ir.Constant:
    return ir.Constant(I32, _X86_DEFAULT) if _is_x86() else ir.Constant(I64, _AARCH64_DEFAULT)


def _differs(builder: ir.IRBuilder, mode: ir.Value) -> ir.Value:
    """Whether a mode differs from the default."""
    if _is_x86():
        mode = builder.and_(mode, ir.Constant(I32, ~_X86_FLAGS & 0xFFFFFFFF))
    return builder.icmp_unsigned("!=", mode, _default())


def _mode(builder: ir.IRBuilder) -> ir.Value:
    if not _is_x86():
        return builder.call(intrinsic(builder.module, "llvm.aarch64.get.fpcr", I64, []), [])
    place = reserve(builder, I32, 4)
    store = intrinsic(builder.module, "llvm.x86.sse.stmxcsr", VOID, [PTR])
    builder.call(store, [place])
    return builder.load(place, typ=I32)


def _set_mode(builder: ir.IRBuilder, mode: ir.Value) -> None:
    if not _is_x86():
        function = intrinsic(builder.module, "llvm.aarch64.set.fpcr", VOID, [I64])
        builder.call(function, [mode])
        return
    place = reserve(builder, I32, 4)
    builder.store(mode, place)
    load = intrinsic(builder.module, "llvm.x86.sse.ldmxcsr", VOID, [PTR])
    builder.call(load, [place])
