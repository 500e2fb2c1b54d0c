"""Attention as one kernel, in LLVM IR: scores, scale, mask, softmax and values, block by block.

For each batch element, k and v are packed once into panels of the worker's own. Then blocks of rows
of q go through: uKernels compute their scores to a piece of memory that stays in L2, each row is
exponentiated in place, and uKernels multiply it with v; the sum of the powers divides the result.
The scores of more than a block never exist. `abi.Attention` says what the function reads.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm import elements, vecmath
from ftuner.codegen.llvm.abi import SLOT_BYTES, Attention, Context, Segment
from ftuner.codegen.llvm.build import (
    I64,
    at,
    call_address,
    const,
    lanes_below,
    masked_load,
    masked_store,
    pointer_slot,
    reserve,
    scalar_type,
    set_slot,
    slot,
    splat,
)
from ftuner.codegen.llvm.gemm import KERNEL_TYPE as UKERNEL_TYPE
from ftuner.codegen.llvm.loops import counted_loop, partition_bounds
from ftuner.codegen.llvm.nest import KERNEL_TYPE
from ftuner.codegen.llvm.pack import PACK_TYPE
from ftuner.core.dtype import DType
from ftuner.core.ukernel import MAX_SEGMENTS

COVER_BYTES = MAX_SEGMENTS * Segment.SIZE * SLOT_BYTES
FULL, LAST_OF_K, LAST_OF_V = range(3)


def emit_attention(
    module: ir.Module, symbol: str, dtype: DType, axes: int, with_mask: bool, lanes: int,
    fused: bool,
) -> ir.Function:  # fmt: skip
    """Add the kernel for `axes` batch axes. Its buffers are q, k, v, the mask if there is one, and
    the result; a task is a range of rows of one batch element."""
    function = ir.Function(module, KERNEL_TYPE, symbol)
    _Emission(function, dtype, axes, with_mask, lanes, fused).emit()
    return function


class _Emission:
    def __init__(
        self, function: ir.Function, dtype: DType, axes: int, with_mask: bool, lanes: int,
        fused: bool,
    ) -> None:  # fmt: skip
        self.dtype, self.axes, self.lanes, self.fused = dtype, axes, lanes, fused
        buffers, self.dims, _, self.worker, self.begin, self.end = function.args
        self.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        names = ["q", "k", "v", *(["mask"] if with_mask else []), "out"]
        self.buffers = {n: pointer_slot(builder, buffers, i) for i, n in enumerate(names)}
        self.element = scalar_type(dtype)
        self.vector = ir.VectorType(self.element, lanes)
        self.size = dtype.itemsize
        self.context = reserve(builder, ir.ArrayType(I64, int(Context.SIZE)))
        for index in range(int(Context.SIZE)):
            set_slot(builder, self.context, index, const(0))
        set_slot(builder, self.context, Context.FINISH, const(1))
        stride = self.dim(Attention.WORKER_BYTES)
        own = at(builder, pointer_slot(builder, self.dims, Attention.WORKSPACE),
                 builder.mul(self.worker, stride))  # fmt: skip
        self.packed_k = own
        self.packed_v = at(builder, own, self.dim(Attention.V_OFFSET))
        self.scores = at(builder, own, self.dim(Attention.SCORES_OFFSET))
        self.sums = at(builder, own, self.dim(Attention.SUMS_OFFSET))
        bits = self.dim(Attention.SCALE)
        scale = builder.bitcast(bits, ir.DoubleType())
        if dtype.itemsize == 4:
            scale = builder.fptrunc(scale, self.element)
        self.scale = splat(builder, scale, lanes)

    def dim(self, index: int) -> ir.Value:
        return slot(self.builder, self.dims, index)

    def emit(self) -> None:
        builder = self.builder
        splits = self.dim(Attention.SPLITS)
        with counted_loop(builder, self.begin, self.end) as task:
            places = self._places(builder.udiv(task, splits))
            # The tasks of one batch element follow each other: packed once for all of them.
            part = builder.urem(task, splits)
            first = builder.icmp_signed("==", part, const(0))
            fresh = builder.or_(first, builder.icmp_signed("==", task, self.begin))
            with builder.if_then(fresh):
                self._pack(places["k"], Attention.K_DEPTH, Attention.K_STEP, Attention.DEPTH,
                           Attention.STEPS, Attention.STEP_PADDED, self.packed_k)  # fmt: skip
                self._pack(places["v"], Attention.V_STEP, Attention.V_COLUMN, Attention.STEPS,
                           Attention.COLUMNS, Attention.COLUMN_PADDED, self.packed_v)  # fmt: skip
            # All blocks are whole but the very last.
            count, block = self.dim(Attention.ROWS), self.dim(Attention.BLOCK)
            blocks = builder.udiv(builder.add(count, builder.sub(block, const(1))), block)
            begin, end = partition_bounds(builder, blocks, splits, part)
            with counted_loop(builder, begin, end) as number:
                top = builder.mul(number, block)
                left = builder.sub(count, top)
                whole = builder.icmp_signed(">=", left, block)
                rows = builder.select(whole, block, left)
                covers = at(builder, self.dims, Attention.COVERS * SLOT_BYTES)
                others = at(builder, covers, const(3 * COVER_BYTES))
                self._block(places, top, rows, builder.select(whole, covers, others))
        builder.ret_void()

    def _places(self, number: ir.Value) -> dict[str, ir.Value]:
        """Addresses of the operands of one batch element: its index in mixed radix."""
        builder = self.builder
        order = ("q", "k", "v", "mask", "out")
        places = dict(self.buffers)
        for axis in reversed(range(self.axes)):
            base = Attention.AXES + axis * Attention.AXIS_SIZE
            extent = self.dim(base)
            index = number if axis == 0 else builder.urem(number, extent)
            number = number if axis == 0 else builder.udiv(number, extent)
            for name in places:
                stride = self.dim(base + 1 + order.index(name))
                places[name] = at(builder, places[name], builder.mul(index, stride))
        return places

    def _pack(
        self, source: ir.Value, step_stride: int, column_stride: int, steps: int, columns: int,
        padded: int, target: ir.Value,
    ) -> None:  # fmt: skip
        """All panels of an operand."""
        builder = self.builder
        nr, k = self.dim(Attention.PANEL), self.dim(steps)
        along_k, along_n = self.dim(step_stride), self.dim(column_stride)
        function = pointer_slot(builder, self.dims, Attention.PACK)

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            column = builder.mul(number, nr)
            here = at(builder, source, builder.mul(column, along_n))
            place = self._panel(target, number, k)
            call_address(builder, PACK_TYPE, function,
                         [here, along_k, along_n, place, k, width, stored])  # fmt: skip

        full = builder.udiv(self.dim(columns), nr)
        left = builder.urem(self.dim(columns), nr)
        with counted_loop(builder, 0, full) as number:
            panel(number, nr, nr)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            panel(full, left, self.dim(padded))

    def _panel(self, packed: ir.Value, number: ir.Value, k: ir.Value) -> ir.Value:
        builder = self.builder
        elements_ = builder.mul(builder.mul(number, self.dim(Attention.PANEL)), k)
        return at(builder, packed, builder.mul(elements_, const(self.size)))

    def _block(
        self, places: dict[str, ir.Value], top: ir.Value, rows: ir.Value, covers: ir.Value
    ) -> None:
        builder = self.builder
        q_row, score_row = self.dim(Attention.Q_ROW), self.dim(Attention.SCORE_ROW)
        out_row = self.dim(Attention.OUT_ROW)
        q = at(builder, places["q"], builder.mul(top, q_row))
        out = at(builder, places["out"], builder.mul(top, out_row))
        self._product(covers, q, q_row, self.packed_k, self.scores, score_row, Attention.DEPTH,
                      Attention.STEPS, LAST_OF_K)  # fmt: skip
        with counted_loop(builder, 0, rows) as row:
            here = at(builder, self.scores, builder.mul(row, score_row))
            mask = None
            if "mask" in places:
                below = builder.mul(builder.add(top, row), self.dim(Attention.MASK_ROW))
                mask = at(builder, places["mask"], below)
            total = self._powers(here, mask)
            builder.store(total, at(builder, self.sums, builder.mul(row, const(self.size))))
        self._product(covers, self.scores, score_row, self.packed_v, out, out_row,
                      Attention.STEPS, Attention.COLUMNS, LAST_OF_V)  # fmt: skip
        with counted_loop(builder, 0, rows) as row:
            place = at(builder, self.sums, builder.mul(row, const(self.size)))
            total = builder.load(place, typ=self.element)
            self._divided(at(builder, out, builder.mul(row, out_row)), total)

    def _product(
        self, covers: ir.Value, a: ir.Value, a_row: ir.Value, packed: ir.Value, c: ir.Value,
        c_row: ir.Value, steps: int, columns: int, last: int,
    ) -> None:  # fmt: skip
        """A block of rows by all panels of an operand."""
        builder = self.builder
        nr, k = self.dim(Attention.PANEL), self.dim(steps)
        full = builder.udiv(self.dim(columns), nr)
        left = builder.urem(self.dim(columns), nr)
        set_slot(builder, self.context, Context.A_STRIDE, a_row)
        set_slot(builder, self.context, Context.C_ROW_STRIDE, c_row)

        def panel(number: ir.Value, cover: int, valid: ir.Value) -> None:
            set_slot(builder, self.context, Context.VALID_COLUMNS, valid)
            column = builder.mul(builder.mul(number, nr), const(self.size))
            table = at(builder, covers, const(cover * COVER_BYTES))
            b = self._panel(packed, number, k)
            self._tiles(table, a, a_row, b, at(builder, c, column), c_row, k)

        with counted_loop(builder, 0, full) as number:
            panel(number, FULL, nr)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            panel(full, last, left)

    def _tiles(
        self, table: ir.Value, a: ir.Value, a_row: ir.Value, b: ir.Value, c: ir.Value,
        c_row: ir.Value, k: ir.Value,
    ) -> None:  # fmt: skip
        """One panel, by the uKernels of its cover, one below the other."""
        builder = self.builder
        done = reserve(builder, I64, SLOT_BYTES)
        builder.store(const(0), done)
        with counted_loop(builder, 0, MAX_SEGMENTS) as i:
            record = at(builder, table, builder.mul(i, const(Segment.SIZE * SLOT_BYTES)))
            tiles, mr = slot(builder, record, Segment.TILES), slot(builder, record, Segment.MR)
            with builder.if_then(builder.icmp_signed(">", tiles, const(0))):
                row = builder.load(done, typ=I64)
                set_slot(builder, self.context, Context.A_TILE_STRIDE, builder.mul(mr, a_row))
                kernel = pointer_slot(builder, record, Segment.KERNEL)
                here = at(builder, a, builder.mul(row, a_row))
                there = at(builder, c, builder.mul(row, c_row))
                call_address(builder, UKERNEL_TYPE, kernel,
                             [self.context, here, b, there, row, const(0), k, tiles])  # fmt: skip
                builder.store(builder.add(row, builder.mul(mr, tiles)), done)

    def _powers(self, row: ir.Value, mask: ir.Value | None) -> ir.Value:
        """Scale and mask a row of scores, raise e to them, less the largest; returns their sum."""
        builder, vector, dtype = self.builder, self.vector, self.dtype
        lowest = elements.neutral("maximum", vector, dtype)
        largest, total = reserve(builder, vector), reserve(builder, vector)
        builder.store(lowest, largest)
        builder.store(elements.zero(vector), total)

        def scale(place: ir.Value, offset: ir.Value, lanes: ir.Value | None) -> None:
            value = builder.fmul(self._load(place, lanes), self.scale)
            if mask is not None:
                value = builder.fadd(value, self._load(at(builder, mask, offset), lanes))
            self._store(value, place, lanes)
            if lanes is not None:
                value = builder.select(lanes, value, lowest)
            before = builder.load(largest, typ=vector)
            builder.store(elements.combine(builder, "maximum", before, value, dtype), largest)

        self._along(row, Attention.STEPS, scale)
        most = builder.load(largest, typ=vector)
        most = splat(builder, elements.across(builder, "maximum", most, dtype), self.lanes)

        def raise_(place: ir.Value, offset: ir.Value, lanes: ir.Value | None) -> None:
            shifted = builder.fsub(self._load(place, lanes), most)
            value = vecmath.exp(builder, shifted, self.fused)
            self._store(value, place, lanes)
            if lanes is not None:
                value = builder.select(lanes, value, elements.zero(vector))
            before = builder.load(total, typ=vector)
            builder.store(builder.fadd(before, value), total)

        self._along(row, Attention.STEPS, raise_)
        return elements.across(builder, "sum", builder.load(total, typ=vector), dtype)

    def _divided(self, row: ir.Value, total: ir.Value) -> None:
        builder = self.builder
        one = ir.Constant(self.element, 1.0)
        factor = splat(builder, builder.fdiv(one, total), self.lanes)

        def divide(place: ir.Value, offset: ir.Value, lanes: ir.Value | None) -> None:
            self._store(builder.fmul(self._load(place, lanes), factor), place, lanes)

        self._along(row, Attention.COLUMNS, divide)

    def _along(self, row: ir.Value, count: int, body: object) -> None:
        """`body(place, offset, mask)` for each vector of a row, the last one under a mask."""
        builder, lanes = self.builder, self.lanes
        assert callable(body)
        n = self.dim(count)
        whole = builder.and_(n, const(-lanes))
        with counted_loop(builder, 0, whole, lanes) as base:
            offset = builder.mul(base, const(self.size))
            body(at(builder, row, offset), offset, None)
        left = builder.sub(n, whole)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            offset = builder.mul(whole, const(self.size))
            body(at(builder, row, offset), offset, lanes_below(builder, left, lanes))

    def _load(self, place: ir.Value, lanes: ir.Value | None) -> ir.Value:
        if lanes is None:
            return self.builder.load(place, typ=self.vector, align=self.size)
        return masked_load(self.builder, place, self.vector, self.size, lanes)

    def _store(self, value: ir.Value, place: ir.Value, lanes: ir.Value | None) -> None:
        if lanes is None:
            self.builder.store(value, place, align=self.size)
        else:
            masked_store(self.builder, value, place, self.size, lanes)
