"""Prefetches in LLVM IR."""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, PTR, VOID, intrinsic

L1, L2 = 3, 2
"""Where a prefetch puts its line, as LLVM's locality."""


def prefetch(builder: ir.IRBuilder, address: ir.Value, level: int, write: bool = False) -> None:
    """Ask for the cache line at an address, which need not exist."""
    function = intrinsic(builder.module, "llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
    locality, data = ir.Constant(I32, level), ir.Constant(I32, 1)
    builder.call(function, [address, ir.Constant(I32, int(write)), locality, data])
