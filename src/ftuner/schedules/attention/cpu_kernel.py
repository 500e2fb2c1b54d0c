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
from ftuner.codegen.llvm.ir.builder import I1, I8, I16, I32, I64, const, scalar_type
from ftuner.codegen.llvm.ir.half_precision import WIDENED
from ftuner.codegen.llvm.ir.instructions import to_bfloat16
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of, store_lanes
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.kernels.pack import PACK_TYPE
from ftuner.codegen.llvm.kernels.step import COVER_BYTES, ProductKernel
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
    lanes = vector_bytes // dtype.itemsize
    _Emission(module, symbol, dtype, axes, mask, causal, capped, sinks, rounds, lanes, fused).emit()


class _Emission(ProductKernel):
    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, axes: int, mask: DType | None,
        causal: bool, capped: bool, sinks: bool, rounds: bool, lanes: int, fused: bool,
    ) -> None:  # fmt: skip
        super().__init__(module, symbol)
        self.dtype, self.axes, self.mask = moved_as(dtype), axes, mask
        self.words, self.rounds = dtype.kind == "word", rounds
        self.halves, self.pairs = (ir.VectorType(kind, lanes) for kind in (I16, I32))
        self.causal, self.lanes, self.fused = causal, lanes, fused
        names = ["q", "k", "v", *["mask"] * (mask is not None), *["sinks"] * sinks, "out"]
        self.views = {n: self.pointer_slot(self.buffers, i) for i, n in enumerate(names)}
        self.element = scalar_type(self.dtype)
        self.vector = ir.VectorType(self.element, lanes)
        self.size = self.dtype.itemsize
        self.begin_products()
        stride = self.dim(Attention.WORKER_BYTES)
        own = self.at(self.pointer_slot(self.dims, Attention.WORKSPACE), self.worker, stride)
        self.packed_k = own
        self.packed_v = self.at(own, self.dim(Attention.V_OFFSET))
        self.scores = self.at(own, self.dim(Attention.SCORES_OFFSET))
        self.sums = self.at(own, self.dim(Attention.SUMS_OFFSET))
        self.scale = self._number(Attention.SCALE)
        self.hidden = self._number(Attention.HIDDEN)
        self.floor = self._number(Attention.FLOOR)
        self.broken = self._number(Attention.BROKEN)
        self.cap = self._number(Attention.CAP) if capped else None

    def _number(self, index: int) -> ir.Value:
        """What a slot holds as a float64, in all lanes of a vector."""
        number = self.bitcast(self.dim(index), ir.DoubleType())
        if self.size == 4:
            number = self.fptrunc(number, self.element)
        return self.splat(number, self.lanes)

    def emit(self) -> None:
        splits = self.dim(Attention.SPLITS)
        # Addresses of the k and v that are packed; 0 stands for none.
        sources = {name: self.reserve(I64) for name in ("k", "v")}
        for source in sources.values():
            self.store(0, source)
        with self.counted_loop(self.begin, self.end) as task:
            places = self._places(self.udiv(task, splits))
            part = self.urem(task, splits)
            with self._new(sources["k"], places["k"]):
                self._pack(places["k"], Attention.K_DEPTH, Attention.K_STEP, Attention.DEPTH,
                           Attention.STEPS, Attention.STEP_PADDED, self.packed_k)  # fmt: skip
            with self._new(sources["v"], places["v"]):
                self._pack_v(places["v"])
            # All blocks of a task are whole but the last.
            count, block = self.dim(Attention.ROWS), self.dim(Attention.BLOCK)
            tile = self.dim(Attention.TILE)
            tiles = self.udiv(self.add(count, self.sub(tile, 1)), tile)
            bounds = self.partition_bounds(tiles, splits, part)
            begin, end = (self.mul(bound, tile) for bound in bounds)
            end = self.minimum(end, count)
            with self.counted_loop(begin, end, block) as top:
                rows = self.minimum(self.sub(end, top), block)
                tables = [
                    self.pointer_slot(self.dims, Attention.COVERS + n)
                    for n in (FULL, LAST_OF_K, LAST_OF_V)
                ]
                self._rows(places, top, rows, self.covers(tables, rows))
        self.ret_void()

    @contextmanager
    def _new(self, last: ir.Value, place: ir.Value) -> Iterator[None]:
        """Emit a branch that runs if an address differs from the one of the last time."""
        address = self.ptrtoint(place, I64)
        with self.if_then(self.icmp_signed("!=", address, self.load(last, typ=I64))):
            yield
            self.store(address, last)

    def _places(self, number: ir.Value) -> dict[str, ir.Value]:
        """Addresses of the operands of one batch element: its index in mixed radix."""
        order = ("q", "k", "v", "mask", "sinks", "out")
        places = dict(self.views)
        for axis in reversed(range(self.axes)):
            base = Attention.AXES + axis * Attention.AXIS_SIZE
            extent = self.dim(base)
            index = number if axis == 0 else self.urem(number, extent)
            number = number if axis == 0 else self.udiv(number, extent)
            for name in places:
                stride = self.dim(base + 1 + order.index(name))
                places[name] = self.at(places[name], index, stride)
        return places

    def _pack(
        self, source: ir.Value, step_stride: int, column_stride: int, steps: int, columns: int,
        padded: int, target: ir.Value,
    ) -> None:  # fmt: skip
        """Pack all panels of an operand."""
        k = self.dim(steps)
        along_k, along_n = self.dim(step_stride), self.dim(column_stride)
        numbers = self.mul(k, 2) if self.rounds else k
        function = self.pointer_slot(self.dims, Attention.PACK)

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            column = self.mul(number, self.dim(Attention.PANEL))
            here = self.at(source, column, along_n)
            place = self._panel(target, number, k)
            given = [here, along_k, along_n, place, numbers, width, stored]
            self.call_address(PACK_TYPE, function, given)
            if self.rounds:
                self._round_panel(place, k, stored)

        self._panels(columns, padded, panel)

    def _round_panel(self, place: ir.Value, words: ir.Value, columns: ir.Value) -> None:
        """Round a packed panel to words in its place: none is after the numbers that it is of."""
        row_bytes = self.mul(columns, self.size)
        with self.counted_loop(0, words) as number:
            first = self.at(place, self.mul(number, 2), row_bytes)
            target = self.at(place, number, row_bytes)
            with self.counted_loop(0, row_bytes, self.lanes * self.size) as offset:
                rows = [self.at(row, offset) for row in (first, self.at(first, row_bytes))]
                there = self.at(target, offset)
                self.store(self._word(rows, None), there, align=self.size)

    def _word(self, places: Sequence[ir.Value], mask: ir.Value | None) -> ir.Value:
        """Return a vector of words of the numbers at one or two places, the lower ones first."""
        found = ir.Constant(self.pairs, None)
        for number, place in enumerate(places):
            if self.rounds:
                half = to_bfloat16(self, self._load(place, mask))
            else:
                half = load_lanes(self, place, self.halves, BFLOAT16.itemsize, mask)
            shift = vecbody.splat(self.pairs, 8 * BFLOAT16.itemsize * number)
            found = self.or_(found, self.shl(self.zext(half, self.pairs), shift))
        return found

    def _pack_v(self, source: ir.Value) -> None:
        """Pack all panels of v; as words, those of two keys, the last one of an odd number beside a
        zero."""
        if not self.words:
            self._pack(source, Attention.V_STEP, Attention.V_COLUMN, Attention.STEPS,
                       Attention.COLUMNS, Attention.COLUMN_PADDED, self.packed_v)  # fmt: skip
            return
        lanes = self.lanes
        size = self.size if self.rounds else BFLOAT16.itemsize
        steps, along_k = self.dim(Attention.STEPS), self.dim(Attention.V_STEP)

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            column = self.mul(number, self.dim(Attention.PANEL))
            here = self.at(source, column, size)
            place = self._panel(self.packed_v, number, self._steps(steps))

            def word(number: ir.Value, keys: int) -> None:
                first = self.at(here, self.mul(number, 2), along_k)
                rows = (first, self.at(first, along_k))[:keys]
                target = self.mul(self.mul(number, stored), self.size)
                target = self.at(place, target)

                def vector(base: ir.Value, count: ir.Value | None) -> None:
                    mask, offset = mask_of(self, count, lanes), self.mul(base, size)
                    value = self._word([self.at(row, offset) for row in rows], mask)
                    there = self.at(target, base, self.size)
                    self.store(value, there, align=self.size)

                by_vectors(self, const(0), width, lanes, vector)

            pairs = self.lshr(steps, 1)
            with self.counted_loop(0, pairs) as pair:
                word(pair, 2)
            with self.if_then(self.trunc(steps, I1)):
                word(pairs, 1)

        self._panels(Attention.COLUMNS, Attention.COLUMN_PADDED, panel)

    def _panels(
        self, columns: int, padded: int, panel: Callable[[ir.Value, ir.Value, ir.Value], None]
    ) -> None:
        """Emit `panel(number, width, stored)` for all panels of an operand."""
        nr = self.dim(Attention.PANEL)
        full = self.udiv(self.dim(columns), nr)
        left = self.urem(self.dim(columns), nr)
        with self.counted_loop(0, full) as number:
            panel(number, nr, nr)
        with self.if_then(self.icmp_signed(">", left, 0)):
            panel(full, left, self.dim(padded))

    def _panel(self, packed: ir.Value, number: ir.Value, k: ir.Value) -> ir.Value:
        elements_ = self.mul(self.mul(number, self.dim(Attention.PANEL)), k)
        return self.at(packed, elements_, self.size)

    def _steps(self, keys: ir.Value) -> ir.Value:
        """Return the steps of k that some keys are in the product with v."""
        if not self.words:
            return keys
        return self.lshr(self.add(keys, 1), 1)

    def _rows(
        self, places: dict[str, ir.Value], top: ir.Value, rows: ir.Value, covers: ir.Value
    ) -> None:
        q_row, score_row = self.dim(Attention.Q_ROW), self.dim(Attention.SCORE_ROW)
        out_row = self.dim(Attention.OUT_ROW)
        q = self.at(places["q"], top, q_row)
        out = self.at(places["out"], top, out_row)
        steps = self.dim(Attention.STEPS)
        seen = self._seen(self.add(top, rows)) if self.causal else steps
        self._product(covers, q, q_row, self.packed_k, self.scores, score_row,
                      self.dim(Attention.DEPTH), self.dim(Attention.DEPTH), self._whole(seen),
                      LAST_OF_K)  # fmt: skip
        with self.counted_loop(0, rows) as row:
            here = self.at(self.scores, row, score_row)
            number = self.add(top, row)
            mask = None
            if "mask" in places:
                below = self.mul(number, self.dim(Attention.MASK_ROW))
                mask = self.at(places["mask"], below)
            sink = None
            if "sinks" in places:
                below = self.mul(number, self.dim(Attention.SINKS_ROW))
                sink = self.load(self.at(places["sinks"], below), typ=self.element)
            own = self._seen(self.add(number, 1)) if self.causal else steps
            total = self._powers(here, own, mask, sink)
            self.store(total, self.at(self.sums, row, self.size))
            if self.words:
                self._cleared(here, own, self.mul(self._steps(seen), 2))
            elif self.causal:
                self._cleared(here, own, seen)
        self._product(covers, self.scores, score_row, self.packed_v, out, out_row,
                      self._steps(seen), self._steps(steps), self.dim(Attention.COLUMNS),
                      LAST_OF_V)  # fmt: skip
        with self.counted_loop(0, rows) as row:
            place = self.at(self.sums, row, self.size)
            total = self.load(place, typ=self.element)
            self._divided(self.at(out, row, out_row), total)

    def _seen(self, rows: ir.Value) -> ir.Value:
        """The number of keys that the last of some rows of a causal attention sees."""
        steps = self.dim(Attention.STEPS)
        count = self.add(rows, self.dim(Attention.CAUSAL))
        return self.maximum(self.minimum(count, steps), 0)

    def _whole(self, seen: ir.Value) -> ir.Value:
        """Columns of scores to compute for a number of keys: whole panels, except for the last."""
        if not self.causal:
            return seen
        nr, steps = self.dim(Attention.PANEL), self.dim(Attention.STEPS)
        panels = self.udiv(self.add(seen, self.sub(nr, 1)), nr)
        count = self.mul(panels, nr)
        return self.minimum(count, steps)

    def _product(
        self, covers: ir.Value, a: ir.Value, a_row: ir.Value, packed: ir.Value, c: ir.Value,
        c_row: ir.Value, k: ir.Value, packed_k: ir.Value, columns: ir.Value, last: int,
    ) -> None:  # fmt: skip
        """Multiply a block of rows by panels of an operand: the first `k` of their `packed_k`
        steps."""
        nr = self.dim(Attention.PANEL)
        full = self.udiv(columns, nr)
        left = self.urem(columns, nr)
        self.set_slot(self.context, Context.A_STRIDE, a_row)
        self.set_slot(self.context, Context.C_ROW_STRIDE, c_row)

        def panel(number: ir.Value, cover: int, valid: ir.Value) -> None:
            self.set_slot(self.context, Context.VALID_COLUMNS, valid)
            column = self.mul(self.mul(number, nr), self.size)
            table = self.at(covers, cover * COVER_BYTES)
            b = self._panel(packed, number, packed_k)
            there = self.at(c, column)
            self.panel(table, Rows(a, a_row), b, Rows(there, c_row), k)

        with self.counted_loop(0, full) as number:
            panel(number, FULL, nr)
        with self.if_then(self.icmp_signed(">", left, 0)):
            panel(full, last, left)

    def _powers(
        self, row: ir.Value, count: ir.Value, mask: ir.Value | None, sink: ir.Value | None
    ) -> ir.Value:
        """Scale and mask the first scores of a row, and replace them by the powers of e of their
        differences from the largest, which may be the sink; returns the sum of all powers."""
        vector, dtype = self.vector, self.dtype
        largest, total = self.reserve(vector), self.reserve(vector)
        least = self.floor
        if sink is not None:
            sink = self.splat(sink, self.lanes)
            least = elements.combine(self, "maximum", least, sink, dtype)
        self.store(least, largest)
        self.store(elements.zero(vector), total)

        def scale(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            value = self.fmul(self._load(place, lanes), self.scale)
            if self.cap is not None:
                value = self.fmul(vecmath.tanh(self, value, fused=self.fused), self.cap)
            if mask is not None:
                value = self._masked(value, mask, number, lanes)
            self._store(value, place, lanes)
            if lanes is not None:
                value = self.select(lanes, value, self.floor)
            before = self.load(largest, typ=vector)
            self.store(elements.combine(self, "maximum", before, value, dtype), largest)

        self._along(row, const(0), count, scale)
        most = self.load(largest, typ=vector)
        most = self.splat(across(self, "maximum", most, dtype), self.lanes)

        log2_e = vecbody.splat(vector, 1.0 / math.log(2.0))

        def power(score: ir.Value) -> ir.Value:
            exponent = self.fmul(self.fsub(score, most), log2_e)
            return vecmath.exp2_flushed(self, exponent, fused=self.fused)

        def raise_(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            value = power(self._load(place, lanes))
            if self.words:
                rounded = to_bfloat16(self, value)
                self._store_halves(rounded, row, number, lanes)
                value = WIDENED[BFLOAT16](self, rounded)
            else:
                self._store(value, place, lanes)
            if lanes is not None:
                value = self.select(lanes, value, elements.zero(vector))
            before = self.load(total, typ=vector)
            self.store(self.fadd(before, value), total)

        self._along(row, const(0), count, raise_)
        found = across(self, "sum", self.load(total, typ=vector), dtype)
        if sink is None:
            return found
        return self.fadd(found, self.extract_element(power(sink), const(0)))

    def _masked(
        self, value: ir.Value, mask: ir.Value, number: ir.Value, lanes: ir.Value | None
    ) -> ir.Value:
        """Scores with a row of the mask, from a number of elements on: an addend, or booleans."""
        if self.mask != BOOL:
            place = self.at(mask, number, self.size)
            return self.fadd(value, self._load(place, lanes))
        octets = ir.VectorType(I8, self.lanes)
        place = self.at(mask, number)
        given = load_lanes(self, place, octets, 1, lanes)
        shown = self.icmp_unsigned("!=", given, ir.Constant(octets, None))
        return self.select(shown, value, self.hidden)

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
        one, zero = (ir.Constant(self.element, x) for x in (1.0, 0.0))
        blind = self.fcmp_ordered("==", total, zero)
        factor = self.select(blind, zero, self.fdiv(one, total))
        factors = self.splat(factor, self.lanes)
        broken = self.fcmp_unordered("uno", total, total)

        def divide(place: ir.Value, number: ir.Value, lanes: ir.Value | None) -> None:
            value = self.fmul(self._load(place, lanes), factors)
            self._store(self.select(broken, self.broken, value), place, lanes)

        self._along(row, const(0), self.dim(Attention.COLUMNS), divide)

    def _along(
        self, row: ir.Value, begin: ir.Value, end: ir.Value,
        body: Callable[[ir.Value, ir.Value, ir.Value | None], None],
    ) -> None:  # fmt: skip
        """`body(place, number, mask)` for each vector of the elements `begin .. end - 1` of a row,
        the last one under a mask; `number` is that of its first element."""
        lanes = self.lanes

        def vector(base: ir.Value, count: ir.Value | None) -> None:
            place = self.at(row, base, self.size)
            body(place, base, mask_of(self, count, lanes))

        by_vectors(self, begin, end, lanes, vector)

    def _load(self, place: ir.Value, mask: ir.Value | None) -> ir.Value:
        return load_lanes(self, place, self.vector, self.size, mask)

    def _store(self, value: ir.Value, place: ir.Value, mask: ir.Value | None) -> None:
        store_lanes(self, value, place, self.size, mask)

    def _store_halves(
        self, value: ir.Value, row: ir.Value, number: ir.Value, mask: ir.Value | None
    ) -> None:
        """Store bfloat16 as the elements of a row from a number on."""
        size = BFLOAT16.itemsize
        place = self.at(row, number, size)
        store_lanes(self, value, place, size, mask)
