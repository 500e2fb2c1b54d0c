"""The function type of a step's kernel.

`void kernel(buffers, dims, status, worker, begin, end)` computes the tasks `begin` to `end` of a
step. `buffers` holds the address of each buffer that the step reads, then of each that it writes;
`dims` the values that the kernel reads at run time; `status` is a word that a failed check writes
its number to; `worker` is the number of the worker that calls it.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID

STEP_KERNEL_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])
