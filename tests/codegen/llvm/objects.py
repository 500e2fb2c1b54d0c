"""What tests compile for and load: targets, functions of modules in this process, and objects for
tests of loading: small functions with what generated code has, and more."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from ftuner.codegen.llvm.objects.jit import Target, compile_object, host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.hardware.isa import instruction_set

TARGETS = {
    "x86_64": Target("x86_64-unknown-linux-gnu", "x86-64", "+sse2"),
    "aarch64": Target("aarch64-unknown-linux-gnu", "generic", "+neon"),
}
"""By machine; code that every one of them runs."""


def target_of(isa: str, *extensions: str, cpu: str = "") -> Target:
    """A machine with an ISA and some extensions, which this one need not have."""
    row = instruction_set(isa)
    base = TARGETS[row.architecture]
    return Target(base.triple, cpu or base.cpu, ",+".join((row.features, *extensions)))


def loaded(
    module: ir.Module, isa: str, symbols: Sequence[str], pointers: int, integers: int,
    result: Any = None, inlines: bool = False,
) -> list[Callable[..., Any]]:  # fmt: skip
    """Functions of a module in this process, which take so many pointers and then integers."""
    target = host_target(isa)
    module.triple = target.triple
    code = LoadedObject([compile_object(module, target, inlines)], symbols)
    kinds = [*[ctypes.c_void_p] * pointers, *[ctypes.c_int64] * integers]
    functions = [ctypes.CFUNCTYPE(result, *kinds)(code.addresses[symbol]) for symbol in symbols]
    for function in functions:
        function.code = code  # type: ignore[attr-defined]
    return functions


_SCALED = """
@table = private constant [4 x i64] [i64 11, i64 22, i64 33, i64 44]
@small = private constant [5 x i16] [i16 7, i16 8, i16 9, i16 10, i16 11]
@size = private constant i64 16
declare ptr @memset(ptr, i32, i64)
declare i64 @triple(i64)

; Called by another object.
define i64 @plus_one(i64 %n) noinline {
  %m = add i64 %n, 1
  ret i64 %m
}

; x[0:4] *= (1.5, 2.5, 3.5, 4.25), x[4:8] = 0; table[n] + small[3] + 3 n
define i64 @scaled(ptr %x, i64 %n) {
  %before = load <4 x float>, ptr %x
  %after = fmul <4 x float> %before, <float 1.5, float 2.5, float 3.5, float 4.25>
  store <4 x float> %after, ptr %x
  %rest = getelementptr i8, ptr %x, i64 16
  %bytes = load volatile i64, ptr @size
  %unused = call ptr @memset(ptr %rest, i32 0, i64 %bytes)
  %place = getelementptr [4 x i64], ptr @table, i64 0, i64 %n
  %a = load i64, ptr %place
  %b = load volatile i16, ptr getelementptr ([5 x i16], ptr @small, i64 0, i64 3)
  %c = zext i16 %b to i64
  %d = call i64 @triple(i64 %n)
  %e = add i64 %a, %c
  %f = add i64 %d, %e
  ret i64 %f
}
"""
_TRIPLE = """
declare i64 @plus_one(i64)

; 3 n, the long way
define i64 @triple(i64 %n) {
  %m = call i64 @plus_one(i64 %n)
  %three = mul i64 %m, 3
  %less = sub i64 %three, 3
  ret i64 %less
}

; Runs until the word at %x is not zero.
define void @wait_for(ptr %x) {
  br label %again
again:
  %word = load volatile i64, ptr %x
  %zero = icmp eq i64 %word, 0
  br i1 %zero, label %again, label %done
done:
  ret void
}
"""
_ADDRESS_OF_FUNCTION = """
declare i64 @abs(i64)
define ptr @address() {
  ret ptr @abs
}
"""
_WRITABLE = """
@state = global i64 5
define i64 @next() {
  %n = load i64, ptr @state
  %m = add i64 %n, 1
  store i64 %m, ptr @state
  ret i64 %m
}
"""
_UNKNOWN_FUNCTION = """
declare void @no_library_has_this()
define void @f() {
  call void @no_library_has_this()
  ret void
}
"""
_SOURCES = {
    "scaled": _SCALED, "triple": _TRIPLE, "address": _ADDRESS_OF_FUNCTION, "writable": _WRITABLE,
    "unknown": _UNKNOWN_FUNCTION,
}  # fmt: skip


@cache
def object_of(name: str, machine: str) -> bytes:
    """One of the objects above; `scaled` and `triple` need each other."""
    return compile_object(_SOURCES[name], TARGETS[machine])
