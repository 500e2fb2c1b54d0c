"""The mailboxes of a pool's workers."""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import at, const, slot_address
from ftuner.codegen.llvm.native.records import SLOT_BYTES, PoolSlot


def mailbox_of(builder: ir.IRBuilder, pool: ir.Value, worker: ir.Value) -> ir.Value:
    """The address of a worker's mailbox."""
    offset = builder.mul(worker, const(PoolSlot.MAILBOX_SIZE * SLOT_BYTES))
    return at(builder, slot_address(builder, pool, PoolSlot.MAILBOXES), offset)
