"""Attention as one kernel, in LLVM IR: scores, scale, mask, softmax and values, block by block.

For each batch element, a worker packs k and v into its own panels, unless the previous element had
the same k and v: heads of one group are consecutive. Then it takes blocks of rows of q: uKernels
compute the scores of a block in memory that stays in L2, each row is exponentiated in place, and
uKernels multiply it by v; the sum of the powers divides the result. Only the scores of one block
exist at a time. In causal attention, both products and the powers end at the last key that the
block's last row sees; weights of keys that a row does not see are zero.

Attention in bfloat16 multiplies words of two numbers: q and k are words in memory, v is packed to
words of two keys, and powers are rounded in place of the scores that they are of. Their sum is that
of the rounded ones. Where k and v are float32 in memory, they are rounded as they are packed.
`cpu_record.Attention` is the layout of what the function reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir import vector_arithmetic as vecbody
from ftuner.codegen.llvm.ir import vector_math as vecmath
from ftuner.codegen.llvm.ir.accumulators import across
from ftuner.codegen.llvm.ir.builder import (
    I1,
    I8,
    I16,
    I32,
    I64,
    at,
    call_address,
    const,
    maximum,
    minimum,
    pointer_slot,
    reserve,
    scalar_type,
    set_slot,
    slot,
    splat,
)
from ftuner.codegen.llvm.ir.half_precision import WIDENED
from ftuner.codegen.llvm.ir.instructions import to_bfloat16
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of, store_lanes
from ftuner.codegen.llvm.ir.loops import Rows, counted_loop, partition_bounds
from ftuner.codegen.llvm.kernels.pack import PACK_TYPE
from ftuner.codegen.llvm.kernels.step import (
    COVER_BYTES,
    STEP_KERNEL_TYPE,
    emit_covers,
    emit_panel,
    product_context,
)
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.dtype import BFLOAT16, BOOL, DType, moved_as
from ftuner.schedules.attention.cpu_record import Attention

FULL, LAST_OF_K, LAST_OF_V = range(3)


def emit(
    module: ir.Module, symbol: str, dtype: DType, axes: int, mask: DType | None, causal: bool,
    capped: bool, sinks: bool, rounds: bool, vector_bytes: int, fused: bool,
) -> None:  # fmt: skip
    """Add the kernel for a number of batch axes, with a mask of a dtype or without; `capped`:
    whether scores pass a hyperbolic tangent; `sinks`: whether each row has a score without a key;
    `rounds`: whether q is words, and k and v are float32.
    Its buffers are q, k, v, the mask and the sinks if there are any, and the result; a task is a
    range of rows of one batch element."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    lanes = vector_bytes // dtype.itemsize
    _Emission(function, dtype, axes, mask, causal, capped, sinks, rounds, lanes, fused).emit()


class _Emission:
    def __init__(
        self, function: ir.Function, dtype: DType, axes: int, mask: DType | None, causal: bool,
        capped: bool, sinks: bool, rounds: bool, lanes: int, fused: bool,
    ) -> None:  # fmt: skip
        self.dtype, self.axes, self.mask = moved_as(dtype), axes, mask
        self.words, self.rounds = dtype.kind == "word", rounds
        self.halves, self.pairs = (ir.VectorType(kind, lanes) for kind in (I16, I32))
        self.causal, self.lanes, self.fused = causal, lanes, fused
        buffers, self.dims, _, self.worker, self.begin, self.end = function.args
        self.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        names = ["q", "k", "v", *["mask"] * (mask is not None), *["sinks"] * sinks, "out"]
        self.buffers = {n: pointer_slot(builder, buffers, i) for i, n in enumerate(names)}
        self.element = scalar_type(self.dtype)
        self.vector = ir.VectorType(self.element, lanes)
        self.size = self.dtype.itemsize
        self.context = product_context(builder)
        stride = self.dim(Attention.WORKER_BYTES)
        own = at(builder, pointer_slot(builder, self.dims, Attention.WORKSPACE),
                 builder.mul(self.worker, stride))  # fmt: skip
        self.packed_k = own
        self.packed_v = at(builder, own, self.dim(Attention.V_OFFSET))
        self.scores = at(builder, own, self.dim(Attention.SCORES_OFFSET))
        self.sums = at(builder, own, self.dim(Attention.SUMS_OFFSET))
        self.scale = self._number(Attention.SCALE)
        self.hidden = self._number(Attention.HIDDEN)
        self.floor = self._number(Attention.FLOOR)
        self.broken = self._number(Attention.BROKEN)
        self.cap = self._number(Attention.CAP) if capped else None

    def dim(self, index: int) -> ir.Value:
        return slot(self.builder, self.dims, index)

    def _number(self, index: int) -> ir.Value:
        """What a slot holds as a float64, in all lanes of a vector."""
        number = self.builder.bitcast(self.dim(index), ir.DoubleType())
        if self.size == 4:
            number = self.builder.fptrunc(number, self.element)
        return splat(self.builder, number, self.lanes)

    def emit(self) -> None:
        builder = self.builder
        splits = self.dim(Attention.SPLITS)
        # Addresses of the k and v that are packed; 0 stands for none.
        sources = {name: reserve(builder, I64) for name in ("k", "v")}
        for source in sources.values():
            builder.store(const(0), source)
        with counted_loop(builder, self.begin, self.end) as task:
            places = self._places(builder.udiv(task, splits))
            part = builder.urem(task, splits)
            with self._new(sources["k"], places["k"]):
                self._pack(places["k"], Attention.K_DEPTH, Attention.K_STEP, Attention.DEPTH,
                           Attention.STEPS, Attention.STEP_PADDED, self.packed_k)  # fmt: skip
            with self._new(sources["v"], places["v"]):
                self._pack_v(places["v"])
            # All blocks of a task are whole but the last.
            count, block = self.dim(Attention.ROWS), self.dim(Attention.BLOCK)
            tile = self.dim(Attention.TILE)
            tiles = builder.udiv(builder.add(count, builder.sub(tile, const(1))), tile)
            bounds = partition_bounds(builder, tiles, splits, part)
            begin, end = (builder.mul(bound, tile) for bound in bounds)
            end = minimum(builder, end, count)
            with counted_loop(builder, begin, end, block) as top:
                rows = minimum(builder, builder.sub(end, top), block)
                tables = [
                    pointer_slot(builder, self.dims, Attention.COVERS + n)
                    for n in (FULL, LAST_OF_K, LAST_OF_V)
                ]
                self._block(places, top, rows, emit_covers(builder, tables, rows))
        builder.ret_void()

    @contextmanager
    def _new(self, last: ir.Value, place: ir.Value) -> Iterator[None]:
        """Emit a branch that runs if an address differs from the one of the last time."""
        builder = self.builder
        address = builder.ptrtoint(place, I64)
        with builder.if_then(builder.icmp_signed("!=", address, builder.load(last, typ=I64))):
            yield
            builder.store(address, last)

    def _places(self, number: ir.Value) -> dict[str, ir.Value]:
        """Addresses of the operands of one batch element: its index in mixed radix."""
        builder = self.builder
        order = ("q", "k", "v", "mask", "sinks", "out")
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
        """Pack all panels of an operand."""
        builder, k = self.builder, self.dim(steps)
        along_k, along_n = self.dim(step_stride), self.dim(column_stride)
        numbers = builder.mul(k, const(2)) if self.rounds else k
        function = pointer_slot(builder, self.dims, Attention.PACK)

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            column = builder.mul(number, self.dim(Attention.PANEL))
            here = at(builder, source, builder.mul(column, along_n))
            place = self._panel(target, number, k)
            call_address(builder, PACK_TYPE, function,
                         [here, along_k, along_n, place, numbers, width, stored])  # fmt: skip
            if self.rounds:
                self._round_panel(place, k, stored)

        self._panels(columns, padded, panel)

    def _round_panel(self, place: ir.Value, words: ir.Value, columns: ir.Value) -> None:
        """Round a packed panel to words in its place: none is after the numbers that it is of."""
        builder, row_bytes = self.builder, self.builder.mul(columns, const(self.size))
        with counted_loop(builder, 0, words) as number:
            first = at(builder, place, builder.mul(builder.mul(number, const(2)), row_bytes))
            target = at(builder, place, builder.mul(number, row_bytes))
            with counted_loop(builder, 0, row_bytes, self.lanes * self.size) as offset:
                rows = [at(builder, row, offset) for row in (first, at(builder, first, row_bytes))]
                there = at(builder, target, offset)
                builder.store(self._word(rows, None), there, align=self.size)

    def _word(self, places: Sequence[ir.Value], mask: ir.Value | None) -> ir.Value:
        """Return a vector of words of the numbers at one or two places, the lower ones first."""
        builder, found = self.builder, ir.Constant(self.pairs, None)
        for number, place in enumerate(places):
            if self.rounds:
                half = to_bfloat16(builder, self._load(place, mask))
            else:
                half = load_lanes(builder, place, self.halves, BFLOAT16.itemsize, mask)
            shift = vecbody.splat(self.pairs, 8 * BFLOAT16.itemsize * number)
            found = builder.or_(found, builder.shl(builder.zext(half, self.pairs), shift))
        return found

    def _pack_v(self, source: ir.Value) -> None:
        """Pack all panels of v; as words, those of two keys, the last one of an odd number beside a
        zero."""
        if not self.words:
            self._pack(source, Attention.V_STEP, Attention.V_COLUMN, Attention.STEPS,
                       Attention.COLUMNS, Attention.COLUMN_PADDED, self.packed_v)  # fmt: skip
            return
        builder, lanes = self.builder, self.lanes
        size = self.size if self.rounds else BFLOAT16.itemsize
        steps, along_k = self.dim(Attention.STEPS), self.dim(Attention.V_STEP)

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            column = builder.mul(number, self.dim(Attention.PANEL))
            here = at(builder, source, builder.mul(column, const(size)))
            place = self._panel(self.packed_v, number, self._steps(steps))

            def word(number: ir.Value, keys: int) -> None:
                first = at(builder, here, builder.mul(builder.mul(number, const(2)), along_k))
                rows = (first, at(builder, first, along_k))[:keys]
                target = builder.mul(builder.mul(number, stored), const(self.size))
                target = at(builder, place, target)

                def vector(base: ir.Value, count: ir.Value | None) -> None:
                    mask, offset = mask_of(builder, count, lanes), builder.mul(base, const(size))
                    value = self._word([at(builder, row, offset) for row in rows], mask)
                    there = at(builder, target, builder.mul(base, const(self.size)))
                    builder.store(value, there, align=self.size)

                by_vectors(builder, const(0), width, lanes, vector)

            pairs = builder.lshr(steps, const(1))
            with counted_loop(builder, 0, pairs) as pair:
                word(pair, 2)
            with builder.if_then(builder.trunc(steps, I1)):
                word(pairs, 1)

        self._panels(Attention.COLUMNS, Attention.COLUMN_PADDED, panel)

    def _panels(
        self, columns: int, padded: int, panel: Callable[[ir.Value, ir.Value, ir.Value], None]
    ) -> None:
        """Emit `panel(number, width, stored)` for all panels of an operand."""
        builder, nr = self.builder, self.dim(Attention.PANEL)
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

    def _steps(self, keys: ir.Value) -> ir.Value:
        """Return the steps of k that some keys are in the product with v."""
        if not self.words:
            return keys
        return self.builder.lshr(self.builder.add(keys, const(1)), const(1))

    def _block(
        self, places: dict[str, ir.Value], top: ir.Value, rows: ir.Value, covers: ir.Value
    ) -> None:
        builder = self.builder
        q_row, score_row = self.dim(Attention.Q_ROW), self.dim(Attention.SCORE_ROW)
        out_row = self.dim(Attention.OUT_ROW)
        q = at(builder, places["q"], builder.mul(top, q_row))
        out = at(builder, places["out"], builder.mul(top, out_row))
        steps = self.dim(Attention.STEPS)
        seen = self._seen(builder.add(top, rows)) if self.causal else steps
        self._product(covers, q, q_row, self.packed_k, self.scores, score_row,
                      self.dim(Attention.DEPTH), self.dim(Attention.DEPTH), self._whole(seen),
                      LAST_OF_K)  # fmt: skip
        with counted_loop(builder, 0, rows) as row:
            here = at(builder, self.scores, builder.mul(row, score_row))
            number = builder.add(top, row)
            mask = None
            if "mask" in places:
                below = builder.mul(number, self.dim(Attention.MASK_ROW))
                mask = at(builder, places["mask"], below)
            sink = None
            if "sinks" in places:
                below = builder.mul(number, self.dim(Attention.SINKS_ROW))
                sink = builder.load(at(builder, places["sinks"], below), typ=self.element)
            own = self._seen(builder.add(number, const(1))) if self.causal else steps
            total = self._powers(here, own, mask, sink)
            builder.store(total, at(builder, self.sums, builder.mul(row, const(self.size))))
            if self.words:
                self._cleared(here, own, builder.mul(self._steps(seen), const(2)))
            elif self.causal:
                self._cleared(here, own, seen)
        self._product(covers, self.scores, score_row, self.packed_v, out, out_row,
                      self._steps(seen), self._steps(steps), self.dim(Attention.COLUMNS),
                      LAST_OF_V)  # fmt: skip
        with counted_loop(builder, 0, rows) as row:
            place = at(builder, self.sums, builder.mul(row, const(self.size)))
            total = builder.load(place, typ=self.element)
            self._divided(at(builder, out, builder.mul(row, out_row)), total)

    def _seen(self, rows: ir.Value) -> ir.Value:
        """The number of keys that the last of some rows of a causal attention sees."""
        builder, steps = self.builder, self.dim(Attention.STEPS)
        count = builder.add(rows, self.dim(Attention.CAUSAL))
        return maximum(builder, minimum(builder, count, steps), const(0))

    def _whole(self, seen: ir.Value) -> ir.Value:
        """Columns of scores to compute for a number of keys: whole panels, except for the last."""
        if not self.causal:
            return seen
        builder, nr, steps = self.builder, self.dim(Attention.PANEL), self.dim(Attention.STEPS)
        panels = builder.udiv(builder.add(seen, builder.sub(nr, const(1))), nr)
        count = builder.mul(panels, nr)
        return minimum(builder, count, steps)

    def _product(
        self, covers: ir.Value, a: ir.Value, a_row: ir.Value, packed: ir.Value, c: ir.Value,
        c_row: ir.Value, k: ir.Value, packed_k: ir.Value, columns: ir.Value, last: int,
    ) -> None:  # fmt: skip
        """Multiply a block of rows by panels of an operand: the first `k` of their `packed_k`
        steps."""
        builder = self.builder
        nr = self.dim(Attention.PANEL)
        full = builder.udiv(columns, nr)
        left = builder.urem(columns, nr)
        set_slot(builder, self.context, Context.A_STRIDE, a_row)
        set_slot(builder, self.context, Context.C_ROW_STRIDE, c_row)

        def panel(number: ir.Value, cover: int, valid: ir.Value) -> None:
            set_slot(builder, self.context, Context.VALID_COLUMNS, valid)
            column = builder.mul(builder.mul(number, nr), const(self.size))
            table = at(builder, covers, const(cover * COVER_BYTES))
            b = self._panel(packed, number, packed_k)
            there = at(builder, c, column)
            emit_panel(builder, self.context, table, Rows(a, a_row), b, Rows(there, c_row), k)

        with counted_loop(builder, 0, full) as number:
            panel(number, FULL, nr)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            panel(full, last, left)

    def _powers(
        self, row: ir.Value, count: ir.Value, mask: ir.Value | None, sink: ir.Value | None
    ) -> ir.Value:
        """Scale and mask the first scores of a row, and replace them by the powers of e of their
        differences from the largest, which may be the sink; returns the sum of all powers."""
        builder, vector, dtype = self.builder, self.vector, self.dtype
        largest, total = reserve(builder, vector), reserve(builder, vector)
        least = self.floor
        if sink is not None:
            sink = splat(builder, sink, self.lanes)
            least = elements.combine(builder, "maximum", least, sink, dtype)
        builder.store(least, largest)
        builder.store(elements.zero(vector), total)

        def scale(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            value = builder.fmul(self._load(place, lanes), self.scale)
            if self.cap is not None:
                value = builder.fmul(vecmath.tanh(builder, value, fused=self.fused), self.cap)
            if mask is not None:
                value = self._masked(value, mask, number, lanes)
            self._store(value, place, lanes)
            if lanes is not None:
                value = builder.select(lanes, value, self.floor)
            before = builder.load(largest, typ=vector)
            builder.store(elements.combine(builder, "maximum", before, value, dtype), largest)

        self._along(row, const(0), count, scale)
        most = builder.load(largest, typ=vector)
        most = splat(builder, across(builder, "maximum", most, dtype), self.lanes)

        log2_e = vecbody.splat(vector, 1.0 / math.log(2.0))

        def power(score: ir.Value) -> ir.Value:
            exponent = builder.fmul(builder.fsub(score, most), log2_e)
            return vecmath.exp2_flushed(builder, exponent, fused=self.fused)

        def raise_(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            value = power(self._load(place, lanes))
            if self.words:
                rounded = to_bfloat16(builder, value)
                self._store_halves(rounded, row, number, lanes)
                value = WIDENED[BFLOAT16](builder, rounded)
            else:
                self._store(value, place, lanes)
            if lanes is not None:
                value = builder.select(lanes, value, elements.zero(vector))
            before = builder.load(total, typ=vector)
            builder.store(builder.fadd(before, value), total)

        self._along(row, const(0), count, raise_)
        found = across(builder, "sum", builder.load(total, typ=vector), dtype)
        if sink is None:
            return found
        return builder.fadd(found, builder.extract_element(power(sink), const(0)))

    def _masked(
        self, value: ir.Value, mask: ir.Value, number: ir.Value, lanes: ir.Value | None
    ) -> ir.Value:
        """Scores with a row of the mask, from a number of elements on: an addend, or booleans."""
        builder = self.builder
        if self.mask != BOOL:
            place = at(builder, mask, builder.mul(number, const(self.size)))
            return builder.fadd(value, self._load(place, lanes))
        octets = ir.VectorType(I8, self.lanes)
        place = at(builder, mask, number)
        given = load_lanes(builder, place, octets, 1, lanes)
        shown = builder.icmp_unsigned("!=", given, ir.Constant(octets, None))
        return builder.select(shown, value, self.hidden)

    def _cleared(self, row: ir.Value, begin: ir.Value, end: ir.Value) -> None:
        """Clear weights of a row."""

        def clear(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            if self.words:
                self._store_halves(ir.Constant(self.halves, None), row, number, lanes)
            else:
                self._store(elements.zero(self.vector), place, lanes)

        self._along(row, begin, end, clear)

    def _divided(self, row: ir.Value, total: ir.Value) -> None:
        """Divide a row of the result by the sum of its weights, which is zero if it sees no key,
        and NaN if its softmax is."""
        builder = self.builder
        one, zero = (ir.Constant(self.element, x) for x in (1.0, 0.0))
        blind = builder.fcmp_ordered("==", total, zero)
        factor = builder.select(blind, zero, builder.fdiv(one, total))
        factors = splat(builder, factor, self.lanes)
        broken = builder.fcmp_unordered("uno", total, total)

        def divide(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            value = builder.fmul(self._load(place, lanes), factors)
            self._store(builder.select(broken, self.broken, value), place, lanes)

        self._along(row, const(0), self.dim(Attention.COLUMNS), divide)

    def _along(
        self, row: ir.Value, begin: ir.Value, end: ir.Value,
        body: Callable[[ir.Value, ir.Value, ir.Value | None], None],
    ) -> None:  # fmt: skip
        """`body(place, number, mask)` for each vector of the elements `begin .. end - 1` of a row,
        the last one under a mask; `number` is that of its first element."""
        builder, lanes = self.builder, self.lanes

        def vector(base: ir.Value, count: ir.Value | None) -> None:
            place = at(builder, row, builder.mul(base, const(self.size)))
            body(place, base, mask_of(builder, count, lanes))

        by_vectors(builder, begin, end, lanes, vector)

    def _load(self, place: ir.Value, mask: ir.Value | None) -> ir.Value:
        return load_lanes(self.builder, place, self.vector, self.size, mask)

    def _store(self, value: ir.Value, place: ir.Value, mask: ir.Value | None) -> None:
        store_lanes(self.builder, value, place, self.size, mask)

    def _store_halves(
        self, value: ir.Value, row: ir.Value, number: ir.Value, mask: ir.Value | None
    ) -> None:
        """Store bfloat16 as the elements of a row from a number on."""
        size = BFLOAT16.itemsize
        place = at(self.builder, row, self.builder.mul(number, const(size)))
        store_lanes(self.builder, value, place, size, mask)
