"""Emits system calls of Linux."""

from __future__ import annotations

import platform
import sys

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, const

FUTEX, GETTID = "futex", "gettid"
_NUMBERS = {
    "x86_64": {FUTEX: 202, GETTID: 186},
    "aarch64": {FUTEX: 98, GETTID: 178},
}
"""By architecture, as the kernel's headers have them."""


def has_system_calls() -> bool:
    """Whether this is Linux, on an architecture whose numbers are known."""
    return sys.platform == "linux" and platform.machine() in _NUMBERS


def system_call(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    """Call the C library's `syscall(number, ...)`."""
    symbol = "syscall"
    function = builder.module.globals.get(symbol)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I64, [I64], var_arg=True), symbol)
    return builder.call(function, [const(_NUMBERS[platform.machine()][name]), *arguments])
