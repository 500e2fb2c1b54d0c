"""Compiling sources ahead of time: in this process, or in one that `codegen.compile_server` runs.

No GPU is needed. Another process is needed where `TRITON_INTERPRET` was set when Triton was
imported, because Triton then interprets kernels; it also survives a crash of the compiler.
"""

from __future__ import annotations

import pickle
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ftuner.codegen.triton.source import Source, load
from ftuner.codegen.triton.targets import (
    Compiled,
    Resources,
    Target,
    amd_resources,
    nvidia_resources,
)

_MESSAGE_CHARACTERS = 4000
"""Most characters of an error's message: Triton adds the whole program to some."""


def compile_kernel(source: Source, target: Target) -> tuple[Any, bool]:
    """Returns Triton's compiled kernel, and whether Triton's cache had it. Raises what Triton
    raises."""
    signature = {argument.name: argument.type for argument in source.arguments}
    divisors = {
        (i,): [["tt.divisibility", argument.divisor]]
        for i, argument in enumerate(source.arguments)
        if argument.divisor > 1
    }
    wanted = _language(source)(load(source), signature, constexprs={}, attrs=divisors)
    knobs, found = triton.knobs.compilation, [False]
    before = knobs.listener

    def listen(**event: Any) -> None:
        # Events of other threads come too, and an earlier listener stays in place.
        if event["src"] is wanted:
            found.append(event["cache_hit"])
        if before is not None:
            before(**event)

    knobs.listener = listen
    try:
        kernel = triton.compile(
            wanted, target=GPUTarget(target.backend, target.arch, target.warp_threads),
            options=source.options,
        )  # fmt: skip
    finally:
        knobs.listener = before
    return kernel, found[-1]


def _language(source: Source) -> Any:
    if source.start_registers is None:
        return ASTSource
    # Experimental: other versions of Triton may not have it.
    from triton.experimental.gluon import GluonASTSource

    return GluonASTSource


def compile_source(source: Source, target: Target) -> Compiled:
    """Returns the machine code of a source and its resources, or the compiler's error."""
    try:
        kernel, cached = compile_kernel(source, target)
    except Exception as error:  # Triton raises whatever its passes, LLVM and ptxas raise.
        return Compiled(b"", "", None, f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS])
    threads = kernel.metadata.num_warps * target.warp_threads
    shared = kernel.metadata.shared
    resources: Resources
    if target.backend == "cuda":
        binary, assembly = kernel.asm["cubin"], kernel.asm["ptx"]
        resources = nvidia_resources(binary, assembly, shared, threads)
    else:
        binary, assembly = kernel.asm["hsaco"], kernel.asm["amdgcn"]
        resources = amd_resources(assembly, shared, threads)
    return Compiled(binary, assembly, resources, cached=cached)


def answer(request: tuple[Source, Target]) -> bytes:
    """Returns a pickled `Compiled`; called by the compile server."""
    return pickle.dumps(compile_source(*request))
