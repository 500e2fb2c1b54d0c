"""What the machine lets through at most, timed in the same rounds as the engines: multiply-adds
that wait for no memory, and reads that compute nothing.

A shared machine changes from one second to the next, and a peak that was measured at another time
is not what an engine could have reached. ftuner's probe has both as micro-benchmarks; here its
thread pool runs them, as it runs a product.
"""

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, const
from ftuner.codegen.llvm.kernels.microbenchmarks import (
    FILL,
    ISSUE_STEPS,
    READ_BYTES,
    SINK_BYTES,
    Microbenchmarks,
)
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.codegen.llvm.native.symbols import POOL_RUN_SYMBOL
from ftuner.codegen.llvm.native.thread_pool import JOB_TYPE
from ftuner.codegen.llvm.objects.jit import compile_object, host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.dtype import FLOAT32
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.cpu.plan_records import ALIGNMENT_BYTES
from ftuner.runtime.cpu.threads import RUN_TYPE

Limit = Callable[[], object]
"""Does it once."""

_JOB = "limit"


class _Table:
    """Slots of what all workers are told."""

    FUNCTION, FIRST, STEP, SIZE, REPEATS, SINKS, CHUNKS, TAKEN, COUNT = range(9)


def _job() -> ir.Module:
    """`void limit(table, worker)`: calls the function for one chunk after the other."""
    module = ir.Module("limits")
    function = ir.Function(module, JOB_TYPE, _JOB)
    table, worker = function.args
    builder = IRBuilder(function.append_basic_block("entry"))
    micro = builder.pointer_slot(table, _Table.FUNCTION)
    first, sinks = builder.pointer_slots(table, _Table.FIRST, _Table.SINKS)
    numbers = (_Table.STEP, _Table.SIZE, _Table.REPEATS, _Table.CHUNKS)
    step, size, repeats, chunks = builder.slots(table, *numbers)
    sink = builder.at(sinks, worker, SINK_BYTES)
    taken = builder.at(table, _Table.TAKEN * SLOT_BYTES)
    take, work, done = (function.append_basic_block(name) for name in ("take", "work", "done"))
    builder.branch(take)
    builder.position_at_end(take)
    number = builder.atomic_rmw("add", taken, const(1), "seq_cst")
    builder.cbranch(builder.icmp_signed("<", number, chunks), work, done)
    builder.position_at_end(work)
    place = builder.at(first, number, step)
    kind = ir.FunctionType(VOID, [PTR, I64, I64, PTR])
    builder.call_address(kind, micro, [place, size, repeats, sink])
    builder.branch(take)
    builder.position_at_end(done)
    builder.ret_void()
    return module


def _aligned(size: int) -> tuple[np.ndarray, int]:
    """Memory of so many bytes that have been written, and where its first cache line begins."""
    memory = np.full(size + ALIGNMENT_BYTES, FILL, np.uint8)
    return memory, -(-memory.ctypes.data // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Limits:
    """The limits of `threads` workers of ftuner's pool, with the widest vectors that there are.

    What several workers do is cut into chunks that they take one by one, as ftuner's own work is: a
    worker that the system holds up does not hold up the others."""

    def __init__(self, threads: int) -> None:
        backend = default_backend()
        isa = backend.hardware.widest
        self._threads = threads
        self._most_chunks = CpuTuning().chunks_per_worker * threads if threads > 1 else 1
        self._pool = backend.kernels.runtime.pool
        with self._pool.lock:
            if not self._pool.grow(threads):
                raise RuntimeError(f"no {threads} workers to be had")
        self._micro = Microbenchmarks(instruction_set(isa.name))
        self._flops_of_repeat = 2 * ISSUE_STEPS * self._micro.chains * isa.lanes(FLOAT32)
        self._code = LoadedObject([compile_object(_job(), host_target(isa.name))], [_JOB])
        self._run = RUN_TYPE(backend.kernels.runtime.addresses[POOL_RUN_SYMBOL])

    def multiply_adds(self, flops: int) -> list[Limit]:
        """At least so many operations of float32: one call."""
        chunks, repeats = self._cut(flops, self._flops_of_repeat)
        memory, first = _aligned(READ_BYTES)
        return [self._call("issue", first, 0, READ_BYTES, repeats, chunks, memory)]

    def reads(self, size: int, copies: int) -> list[Limit]:
        """At least so many bytes read once: a call for each copy."""
        chunks, pieces = self._cut(size, READ_BYTES)
        step = pieces * READ_BYTES
        memory, first = _aligned(copies * chunks * step)
        places = (first + i * chunks * step for i in range(copies))
        return [self._call("read", place, step, step, 1, chunks, memory) for place in places]

    def _cut(self, work: int, piece: int) -> tuple[int, int]:
        """The chunks of some work, and the pieces of each."""
        pieces = -(-work // piece)
        chunks = min(self._most_chunks, pieces)
        return chunks, -(-pieces // chunks)

    def _call(
        self, symbol: str, first: int, step: int, size: int, repeats: int, chunks: int,
        memory: np.ndarray,
    ) -> Limit:  # fmt: skip
        sinks, sink = _aligned(self._threads * SINK_BYTES)
        table = np.zeros(_Table.COUNT, np.int64)
        table[_Table.FUNCTION] = self._micro.addresses[symbol]
        table[_Table.FIRST], table[_Table.STEP], table[_Table.SIZE] = first, step, size
        table[_Table.REPEATS], table[_Table.SINKS] = repeats, sink
        table[_Table.CHUNKS] = chunks
        held = (memory, sinks, table)
        job, address = self._code.addresses[_JOB], table.ctypes.data

        def call() -> object:
            table[_Table.TAKEN] = 0
            with self._pool.lock:
                self._run(self._pool.address, job, address, self._threads, 0, 0)
            return held

        return call
