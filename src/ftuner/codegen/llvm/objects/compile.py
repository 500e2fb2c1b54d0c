"""Compiles bundles, in this process or in one that `codegen.compile_server` serves."""

from __future__ import annotations

import gc

import llvmlite.ir as ir

from ftuner.codegen.llvm.kernels.attention import emit_attention
from ftuner.codegen.llvm.kernels.dot import emit_dot
from ftuner.codegen.llvm.kernels.nest import emit_nest
from ftuner.codegen.llvm.kernels.product import emit_ukernel
from ftuner.codegen.llvm.kernels.split_k import emit_reduce
from ftuner.codegen.llvm.kernels.top_k import emit_top_k
from ftuner.codegen.llvm.native.call_cache import emit_known_call
from ftuner.codegen.llvm.native.driver import emit_driver
from ftuner.codegen.llvm.native.program import emit_program
from ftuner.codegen.llvm.native.records import KNOWN_CALL_INPUTS
from ftuner.codegen.llvm.native.scratch import emit_workspaces
from ftuner.codegen.llvm.native.thread_pool import emit_pool
from ftuner.codegen.llvm.native.work_stealing import emit_chunks
from ftuner.codegen.llvm.objects.bundle import (
    AttentionBundle,
    Bundle,
    KernelBundle,
    NestBundle,
    RuntimeBundle,
    TopKBundle,
)
from ftuner.codegen.llvm.objects.jit import Target, compile_object
from ftuner.core.cpu.schedule import schedule_of
from ftuner.core.cpu.tile import DOT
from ftuner.core.dtype import DTYPES


def bundle_module(bundle: Bundle, target: Target) -> ir.Module:
    """The IR of a bundle."""
    module = ir.Module("ftuner")
    module.triple = target.triple
    if isinstance(bundle, RuntimeBundle):
        emit_pool(module, bundle.tuning)
        emit_chunks(module)
        for dtype in DTYPES.values():
            emit_driver(module, dtype, bundle.vector_bytes // dtype.itemsize, bundle.tuning)
        emit_program(module, bundle.tuning)
        emit_workspaces(module)
        for inputs in KNOWN_CALL_INPUTS:
            emit_known_call(module, inputs, bundle.header_bytes, bundle.tuning)
    elif isinstance(bundle, NestBundle):
        schedule = schedule_of(bundle.kernel, bundle.vector_bytes, bundle.block_elements)
        emit_nest(module, bundle.symbol, bundle.kernel, schedule, bundle.fused)
    elif isinstance(bundle, TopKBundle):
        emit_top_k(module, bundle.symbol, bundle.dtype, bundle.largest)
    elif isinstance(bundle, AttentionBundle):
        emit_attention(module, bundle)
    elif bundle.reduce:
        emit_reduce(module, bundle.kernels[0], bundle.fused)
    else:
        for kernel in bundle.kernels:
            if kernel.b_layout == DOT:
                emit_dot(module, kernel, bundle.fused, bundle.masked)
            else:
                emit_ukernel(
                    module, kernel, bundle.fused, bundle.masked, bundle.tuning, bundle.line_bytes
                )
    return module


def compile_bundle(bundle: Bundle, target: Target) -> bytes:
    """The object file of a bundle."""
    module = bundle_module(bundle, target)
    if isinstance(bundle, KernelBundle):
        return compile_object(module, target)
    if not isinstance(bundle, RuntimeBundle):
        for function in module.functions:
            # Inlined, because a loop that calls a scalar function spills its vectors.
            function.attributes.discard("noinline")
    return compile_object(module, target, inlines=True)


def answer(request: tuple[Bundle, Target]) -> bytes:
    """The object of a bundle, in a process that only compiles. Garbage collection is off: it takes
    a tenth of the time, and without it a whole library in one process needs 200 MB, not 156."""
    gc.disable()
    return compile_bundle(*request)
