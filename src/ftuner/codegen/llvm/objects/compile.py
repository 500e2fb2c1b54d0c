"""Compiles bundles, in this process or in one that `codegen.compile_server` serves."""

from __future__ import annotations

import gc
from importlib import import_module

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.text import module_text
from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.codegen.llvm.objects.jit import Target, compile_object, llvm_binding


def bundle_module(bundle: Bundle, target: Target) -> ir.Module:
    """The IR of a bundle."""
    module = ir.Module("ftuner")
    module.triple = target.triple
    import_module(bundle.emitter).emit(module, *bundle.arguments)
    return module


def compile_bundle(bundle: Bundle, target: Target) -> bytes:
    """The object file of a bundle."""
    text = module_text(bundle_module(bundle, target))
    return compile_object(text, target, bundle.inlines)


def prepare() -> None:
    """Load LLVM, in a process that only compiles. Garbage collection is off: it takes a tenth of
    the time, and without it a whole library in one process needs 200 MB, not 156."""
    gc.disable()
    llvm_binding()


def answer(request: tuple[Bundle, Target]) -> bytes:
    """The object of a bundle, in such a process."""
    return compile_bundle(*request)
