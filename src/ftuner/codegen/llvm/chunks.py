"""Chunks of work: each worker has a range of its own, and who has finished helps the others.

The owner takes chunks from the front of its range, one behind the other, so that what it reads lies
together and can be fetched ahead; a helper takes them from the back. A range is one word in the
owner's mailbox, the first chunk in its low half and the end in its high half, changed by
compare-and-swap. A worker that the machine holds up loses chunks to the others, and an undisturbed
one keeps all of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.abi import SLOT_BYTES, PoolSlot
from ftuner.codegen.llvm.build import I64, PTR, VOID, at, const
from ftuner.codegen.llvm.loops import counted_loop, partition_bounds
from ftuner.codegen.llvm.pool import mailbox_of

DEAL_SYMBOL = "ftuner_deal_chunks"
TAKE_SYMBOL = "ftuner_take_chunk"
NO_CHUNK = -1
_HALF = 32


def emit_chunks(module: ir.Module) -> None:
    """Add both functions to a module."""
    _emit_deal(module)
    _emit_take(module)


@contextmanager
def taken_chunks(
    builder: ir.IRBuilder, pool: ir.Value, worker: ir.Value, workers: ir.Value
) -> Iterator[ir.Value]:
    """Emit a loop that takes chunk after chunk until there is none; yields the chunk."""
    take = builder.append_basic_block("take")
    work = builder.append_basic_block("work")
    done = builder.append_basic_block("done")
    builder.branch(take)
    builder.position_at_end(take)
    chunk = builder.call(builder.module.globals[TAKE_SYMBOL], [pool, worker, workers])
    builder.cbranch(builder.icmp_signed("!=", chunk, const(NO_CHUNK)), work, done)
    builder.position_at_end(work)
    yield chunk
    builder.branch(take)
    builder.position_at_end(done)


def _range_of(builder: ir.IRBuilder, pool: ir.Value, worker: ir.Value) -> ir.Value:
    return at(builder, mailbox_of(builder, pool, worker), PoolSlot.MAIL_CHUNKS * SLOT_BYTES)


def _emit_deal(module: ir.Module) -> None:
    """`void deal(pool, chunks, workers)`: an even range for each worker, before the job starts."""
    function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, I64]), DEAL_SYMBOL)
    function.linkage = "internal"
    pool, chunks, workers = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    with counted_loop(builder, const(0), workers) as worker:
        begin, end = partition_bounds(builder, chunks, workers, worker)
        word = builder.or_(begin, builder.shl(end, const(_HALF)))
        # Posting the job makes it visible to the others.
        builder.store(word, _range_of(builder, pool, worker))
    builder.ret_void()


def _emit_take(module: ir.Module) -> None:
    """`i64 take(pool, worker, workers)`: a chunk that is now the caller's, or `NO_CHUNK`."""
    function = ir.Function(module, ir.FunctionType(I64, [PTR, I64, I64]), TAKE_SYMBOL)
    function.linkage = "internal"
    pool, worker, workers = function.args
    entry = function.append_basic_block("entry")
    look = function.append_basic_block("look")
    take = function.append_basic_block("take")
    onward = function.append_basic_block("onward")
    taken = function.append_basic_block("taken")
    nothing = function.append_basic_block("nothing")
    builder = ir.IRBuilder(entry)
    builder.branch(look)

    # The own range comes first, then those of the workers behind, around the circle.
    builder.position_at_end(look)
    distance, owner = builder.phi(I64), builder.phi(I64)
    place = _range_of(builder, pool, owner)
    word = builder.load_atomic(place, "monotonic", SLOT_BYTES, typ=I64)
    begin = builder.and_(word, const((1 << _HALF) - 1))
    end = builder.lshr(word, const(_HALF))
    builder.cbranch(builder.icmp_signed("<", begin, end), take, onward)

    builder.position_at_end(take)
    own = builder.icmp_signed("==", distance, const(0))
    shorter_in_front = builder.add(word, const(1))
    shorter_behind = builder.sub(word, const(1 << _HALF))
    changed = builder.select(own, shorter_in_front, shorter_behind)
    chunk = builder.select(own, begin, builder.sub(end, const(1)))
    swapped = builder.cmpxchg(place, word, changed, "monotonic", "monotonic")
    builder.cbranch(builder.extract_value(swapped, 1), taken, look)

    builder.position_at_end(onward)
    further = builder.add(distance, const(1))
    following = builder.add(owner, const(1))
    around = builder.icmp_signed("==", following, workers)
    following = builder.select(around, const(0), following)
    builder.cbranch(builder.icmp_signed("<", further, workers), look, nothing)

    for phi, first, again, next_value in (
        (distance, const(0), distance, further), (owner, worker, owner, following)
    ):  # fmt: skip
        phi.add_incoming(first, entry)
        phi.add_incoming(again, take)
        phi.add_incoming(next_value, onward)
    builder.position_at_end(taken)
    builder.ret(chunk)
    builder.position_at_end(nothing)
    builder.ret(const(NO_CHUNK))
