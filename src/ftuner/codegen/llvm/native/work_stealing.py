"""Work stealing: each worker owns a range of chunks, and a worker that has finished takes chunks
from the others.

The owner takes chunks from the front of its range, so that it reads neighbouring data, which can be
prefetched. A thief takes them from the back. A worker that is preempted or not awake yet loses
chunks to the others; an undisturbed worker keeps its own.

A range is one word in the owner's mailbox, changed by compare-and-swap. From the low bits: the
first chunk and the end, 8 bits each and relative to the range, then an epoch of 48 bits. Each piece
of work that is cut into chunks has its own epoch, greater than those before. A range of a smaller
epoch has not been dealt yet, and any worker may deal it; a range of a greater epoch is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, IRBuilder, begun, const
from ftuner.codegen.llvm.native.records import CHUNK_BITS, MAX_CHUNKS_A_WORKER, SLOT_BYTES, PoolSlot
from ftuner.codegen.llvm.native.waiting import mailbox_of

TAKE_SYMBOL = "ftuner_take_chunk"
NO_CHUNK = -1
_MASK = const(MAX_CHUNKS_A_WORKER)


Share = tuple[ir.Value, ir.Value]
"""The number of a worker, and how many there are."""


@contextmanager
def taken_chunks(
    builder: IRBuilder, pool: ir.Value, share: Share, epoch: ir.Value, chunks: ir.Value
) -> Iterator[ir.Value]:
    """Emit a loop that takes chunks until none is left; yields the chunk."""
    take, work, done = map(builder.append_basic_block, ("take", "work", "done"))
    builder.branch(take)
    builder.position_at_end(take)
    function = builder.module.globals[TAKE_SYMBOL]
    chunk = builder.call(function, [pool, *share, epoch, chunks])
    builder.cbranch(builder.icmp_signed("!=", chunk, NO_CHUNK), work, done)
    builder.position_at_end(work)
    yield chunk
    builder.branch(take)
    builder.position_at_end(done)


def emit_chunks(module: ir.Module) -> None:
    """Add `i64 take(pool, worker, workers, epoch, chunks)` to a module; it returns a chunk that the
    caller now owns, or `NO_CHUNK`."""
    kind = ir.FunctionType(I64, [PTR, I64, I64, I64, I64])
    builder, given = begun(module, kind, TAKE_SYMBOL, internal=True)
    pool, worker, workers, epoch, chunks = given
    entry = builder.block
    look, take, onward, taken, nothing = map(
        builder.append_basic_block, ("look", "take", "onward", "taken", "nothing")
    )
    builder.branch(look)

    # The worker's own range comes first, then those of the next workers, modulo their number.
    builder.position_at_end(look)
    distance, owner = builder.phi(I64), builder.phi(I64)
    place = builder.slot_address(mailbox_of(builder, pool, owner), PoolSlot.MAIL_CHUNKS)
    word = builder.load_atomic(place, "monotonic", SLOT_BYTES, typ=I64)
    first, last = builder.partition_bounds(chunks, workers, owner)
    found = builder.lshr(word, 2 * CHUNK_BITS)
    dealt = builder.icmp_unsigned("==", found, epoch)
    begin = builder.select(dealt, builder.and_(word, _MASK), 0)
    end = builder.and_(builder.lshr(word, CHUNK_BITS), _MASK)
    end = builder.select(dealt, end, builder.sub(last, first))
    late = builder.icmp_unsigned(">", found, epoch)
    some = builder.icmp_signed("<", begin, end)
    builder.cbranch(builder.and_(builder.not_(late), some), take, onward)

    builder.position_at_end(take)
    own = builder.icmp_signed("==", distance, 0)
    one_less = builder.sub(end, 1)
    chunk = builder.add(first, builder.select(own, begin, one_less))
    begin = builder.select(own, builder.add(begin, 1), begin)
    end = builder.select(own, end, one_less)
    left = builder.or_(begin, builder.shl(end, CHUNK_BITS))
    changed = builder.or_(left, builder.shl(epoch, 2 * CHUNK_BITS))
    swapped = builder.cmpxchg(place, word, changed, "monotonic", "monotonic")
    builder.cbranch(builder.extract_value(swapped, 1), taken, look)

    builder.position_at_end(onward)
    further = builder.add(distance, 1)
    following = builder.add(owner, 1)
    around = builder.icmp_signed("==", following, workers)
    following = builder.select(around, 0, following)
    builder.cbranch(builder.icmp_signed("<", further, workers), look, nothing)

    for phi, begins, again, next_value in (
        (distance, const(0), distance, further), (owner, worker, owner, following)
    ):  # fmt: skip
        phi.add_incoming(begins, entry)
        phi.add_incoming(again, take)
        phi.add_incoming(next_value, onward)
    builder.position_at_end(taken)
    builder.ret(chunk)
    builder.position_at_end(nothing)
    builder.ret(const(NO_CHUNK))
