"""What kernels of steps share: their function type and checks, and products by packed panels.

`void kernel(buffers, dims, status, worker, begin, end)` computes the tasks `begin` to `end` of a
step. `buffers` holds the address of each buffer that the step reads, then of each that it writes;
`dims` the values that the kernel reads at run time; `status` is where a failed check writes its
number, an index and an extent; `worker` is the number of the worker that calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I64, PTR, VOID, IRBuilder, const
from ftuner.codegen.llvm.ir.functions import lanes_of, widened
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.kernels.product import KERNEL_TYPE
from ftuner.codegen.llvm.native.records import SLOT_BYTES, AllCovers, Context, Segment, Status
from ftuner.core.cpu.tile import MAX_SEGMENTS

STEP_KERNEL_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])


class StepKernel(IRBuilder):
    """The builder of a step's kernel at the begin of its function, with its arguments."""

    def __init__(self, module: ir.Module, symbol: str) -> None:
        function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
        super().__init__(function.append_basic_block("entry"))
        self.buffers, self.dims, self.status, self.worker, self.begin, self.end = function.args

    def dim(self, index: int) -> ir.Value:
        """A value that the kernel reads at run time."""
        return self.slot(self.dims, index)


def fail(
    builder: IRBuilder, status: ir.Value, number: int, wrong: ir.Value, index: ir.Value,
    extent: ir.Value,
) -> None:  # fmt: skip
    """Write the number of a check that failed, the index in the first lane that is `wrong`, and the
    extent that it is outside of. Of several failures, of any workers, the first is written."""
    wrong, index, extent = widened(builder, [wrong, index, extent])
    if count := lanes_of(wrong):
        mask = builder.bitcast(wrong, ir.IntType(count))
        zeros = builder.external(f"llvm.cttz.i{count}", mask.type, mask, ir.Constant(I1, 1))
        lane = builder.zext(zeros, I64)
        index, extent = (builder.extract_element(v, lane) for v in (index, extent))
    written = builder.cmpxchg(status, const(0), const(number), "monotonic")
    with builder.if_then(builder.extract_value(written, 1)):
        builder.store(index, builder.slot_address(status, Status.INDEX))
        builder.store(extent, builder.slot_address(status, Status.EXTENT))


COVER_BYTES = MAX_SEGMENTS * Segment.SIZE * SLOT_BYTES
"""A table of segments: `MAX_SEGMENTS` records, unused ones without tiles."""


def emit_cover(
    builder: IRBuilder, covers: ir.Value, rows: ir.Value, target: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Write the segments by which `AllCovers` at `covers` covers some rows to `target`: listed
    ones, or main tiles and then those of the rows that are left. Returns the height of the first
    one, and the row tiles of the others."""
    limit, main = builder.slots(covers, AllCovers.LIMIT, AllCovers.MAIN)
    beyond = builder.sub(rows, limit)
    is_long = builder.icmp_signed(">", beyond, 0)
    more = builder.add(builder.udiv(beyond, main), 1)
    more = builder.select(is_long, more, 0)
    left = builder.sub(rows, builder.mul(more, main))
    after = builder.select(is_long, builder.add(limit, 1), 0)
    number = builder.add(left, after)
    tables = builder.slot_address(covers, AllCovers.TABLES)
    cover = builder.at(tables, number, COVER_BYTES)
    first_rows, others = const(1), const(0)
    for i in range(MAX_SEGMENTS):
        kernel, mr, tiles = (builder.slot(cover, i * Segment.SIZE + f) for f in range(3))
        if i == 0:
            # Rows that follow main tiles have these first.
            tiles = builder.add(tiles, more)
            first_rows = builder.maximum(mr, 1)
        else:
            others = builder.add(others, tiles)
        for field, value in enumerate((kernel, mr, tiles)):
            builder.set_slot(target, i * Segment.SIZE + field, value)
    return first_rows, others


class ProductKernel(StepKernel):
    """A step's kernel that multiplies rows by packed panels."""

    context: ir.Value
    """That of the uKernels, from `begin_products` on."""

    def begin_products(self) -> None:
        """Make the context of uKernels that write all of k at once and prefetch nothing."""
        self.context = self.reserve(ir.ArrayType(I64, int(Context.SIZE)))
        for index in range(int(Context.SIZE)):
            self.set_slot(self.context, index, 0)
        self.set_slot(self.context, Context.FINISH, 1)

    def covers(self, tables: Sequence[ir.Value], rows: ir.Value) -> ir.Value:
        """Memory with the segments that cover some rows, of each of some `AllCovers`."""
        memory = self.reserve(ir.ArrayType(I64, len(tables) * COVER_BYTES // SLOT_BYTES))
        for number, table in enumerate(tables):
            emit_cover(self, table, rows, self.at(memory, number * COVER_BYTES))
        return memory

    def panel(
        self, cover: ir.Value, a: Rows, b: ir.Value, c: Rows, k: ir.Value,
        place: tuple[ir.Value, ir.Value] = (const(0), const(0)),
    ) -> None:  # fmt: skip
        """Multiply rows of A by one panel, with the uKernels of a cover from top to bottom. The
        context holds the strides of `a` and `c`, too (`A_STRIDE`, `C_ROW_STRIDE`), and the number
        of columns that are stored (`VALID_COLUMNS`). `place`: the first row and column, for the
        operands of the epilogue."""
        first_row, column = place
        done = self.variable(0)
        with self.counted_loop(0, MAX_SEGMENTS) as i:
            record = self.record_at(cover, i, Segment.SIZE)
            tiles, mr = self.slots(record, Segment.TILES, Segment.MR)
            with self.if_then(self.icmp_signed(">", tiles, 0)):
                row = self.load(done, typ=I64)
                self.set_slot(self.context, Context.A_TILE_STRIDE, self.mul(mr, a.stride))
                kernel = self.pointer_slot(record, Segment.KERNEL)
                here = self.at(a.first, row, a.stride)
                there = self.at(c.first, row, c.stride)
                at_row = self.add(first_row, row)
                given = [self.context, here, b, there, at_row, column, k, tiles]
                self.call_address(KERNEL_TYPE, kernel, given)
                self.store(self.add(row, self.mul(mr, tiles)), done)
