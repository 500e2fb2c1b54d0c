"""The largest or smallest elements of rows, in order, in LLVM IR.

A task is one row. Where few elements are wanted, all go through a heap of the best ones, whose root
is the worst of these: vectors of elements that are not better than that are passed over. The heap
is then sorted in place. Where more are wanted, and an element has 32 bits or less, histograms of
its bits find the last one that is taken (radix select), and a radix sort orders those.

`dims` holds the elements of a row, those wanted, the distance of elements, and the offset of the
first; `buffers` the operand, the elements found, where they were, and for elements of 32 bits or
less memory for two keys of each element wanted.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I32, I64, IRBuilder, begun, const
from ftuner.codegen.llvm.ir.functions import number
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType

LANES = 16
"""Elements that are looked at together."""
DIGITS = ((21, 11), (10, 11), (0, 10))
"""First bit and bits of each digit of a key. Three histograms, 8 KiB each, stay in the L1 cache."""


def emit(
    module: ir.Module, symbol: str, dtype: DType, largest: bool, has_keys: bool, heap_most: int,
    heap_share: int,
) -> None:  # fmt: skip
    """Add the kernel to a module. `has_keys`: whether there is memory for keys. A heap finds
    `heap_most` elements or fewer, and more if a row has over `heap_share` times as many."""
    builder, (buffers, dims, _, _, begin, end) = begun(module, STEP_KERNEL_TYPE, symbol)
    operand, values, positions = builder.pointer_slots(buffers, *range(3))
    count, wanted, step, offset = builder.slots(dims, *range(4))
    element = elements.memory_type(dtype)
    sort = None
    if has_keys:
        keys = builder.pointer_slot(buffers, 3)
        sort = _RadixSort(builder, dtype, largest, wanted)
        many = builder.icmp_signed(">", wanted, heap_most)
        near = builder.icmp_signed("<=", count, builder.mul(wanted, heap_share))
        # A key has 32 bits for the position.
        fits = builder.icmp_signed("<", count, 1 << 32)
        sorts = builder.and_(fits, builder.and_(many, near))

    with builder.counted_loop(begin, end) as task:
        outer, inner = builder.udiv(task, step), builder.urem(task, step)
        place = builder.add(builder.mul(builder.mul(outer, count), step), inner)
        begins = builder.gep(operand, [builder.add(place, offset)], source_etype=element)
        row = _Row(builder, begins, count, step, dtype)
        first = builder.add(builder.mul(builder.mul(outer, wanted), step), inner)
        kept = builder.gep(values, [first], source_etype=element)
        where = builder.gep(positions, [first], source_etype=I64)
        heap = _Heap(builder, kept, where, step, element, dtype, largest)
        if sort is None:
            heap.fill(row, wanted)
        else:
            with builder.if_else(sorts) as (by_sort, by_heap):
                with by_sort:
                    own = builder.mul(task, builder.shl(wanted, 1))
                    sort.fill(row, builder.gep(keys, [own], source_etype=I64), heap.put)
                with by_heap:
                    heap.fill(row, wanted)
    builder.ret_void()


class _Row:
    """The elements of a row."""

    def __init__(
        self, builder: IRBuilder, first: ir.Value, count: ir.Value, step: ir.Value, dtype: DType
    ) -> None:
        self._builder, self._first, self.count, self._step = builder, first, count, step
        self._element, self._align = elements.memory_type(dtype), dtype.itemsize

    def at(self, index: ir.Value) -> ir.Value:
        builder = self._builder
        place = builder.gep(
            self._first, [builder.mul(index, self._step)], source_etype=self._element
        )
        return builder.load(place, typ=self._element)

    def each(
        self, begin: ir.Value, end: ir.Value, may_count: Callable[[ir.Value], ir.Value],
        body: Callable[[ir.Value, ir.Value], None],
    ) -> None:  # fmt: skip
        """Emit `body` of each index and element, but for vectors of contiguous elements of which
        `may_count` says that none counts."""
        builder = self._builder
        contiguous = builder.icmp_signed("==", self._step, 1)
        whole = builder.and_(builder.sub(end, begin), -LANES)
        whole = builder.add(begin, builder.select(contiguous, whole, 0))
        with builder.counted_loop(begin, whole, LANES) as first:
            place = builder.gep(self._first, [first], source_etype=self._element)
            vector = ir.VectorType(self._element, LANES)
            several = builder.load(place, align=self._align, typ=vector)
            after = builder.add(first, LANES)
            with (
                builder.if_then(builder.any_lane(may_count(several))),
                builder.counted_loop(first, after) as index,
            ):
                body(index, self.at(index))
        with builder.counted_loop(whole, end) as index:
            body(index, self.at(index))


class _RadixSort:
    """The best elements of a row by the digits of their keys. The upper half of a key is the
    element as an integer that is the smaller the better, the lower half its position."""

    def __init__(self, builder: IRBuilder, dtype: DType, largest: bool, wanted: ir.Value) -> None:
        self._builder, self._dtype, self._largest, self._wanted = builder, dtype, largest, wanted
        self._counts = [builder.reserve(ir.ArrayType(I32, 1 << bits)) for _, bits in DIGITS]
        self._state = {name: builder.reserve(I64) for name in ("low", "high", "left", "found")}

    def _get(self, name: str) -> ir.Value:
        return self._builder.load(self._state[name], typ=I64)

    def _set(self, name: str, value: ir.Value) -> None:
        self._builder.store(value, self._state[name])

    def _order(self, x: ir.Value) -> ir.Value:
        """Elements as unsigned integers of 32 bits, the best first. NaN is largest."""
        builder, dtype = self._builder, self._dtype
        lanes = elements.lanes_of(x)
        wide = ir.VectorType(I32, lanes) if lanes else I32
        top = number(wide, -(1 << 31))
        if dtype.kind == "float":
            # Minus zero becomes zero.
            bits = builder.bitcast(builder.fadd(x, number(x.type, 0.0)), wide)
            mask = builder.or_(builder.ashr(bits, number(wide, 31)), top)
            ordered = builder.fcmp_ordered("ord", x, x)
            found = builder.select(ordered, builder.xor(bits, mask), number(wide, -1))
        elif dtype.kind == "int":
            signed = x if dtype.itemsize == 4 else builder.sext(x, wide)
            found = builder.xor(signed, top)
        else:
            found = x if dtype.itemsize == 4 else builder.zext(x, wide)
        return builder.not_(found) if self._largest else found

    def fill(self, row: _Row, keys: ir.Value, put: Callable[..., None]) -> None:
        """Write the elements wanted and their positions by `put`. `keys`: memory for two keys of
        each."""
        builder = self._builder
        self._select(row)
        self._collect(row, keys)
        sources = [keys, builder.gep(keys, [self._wanted], source_etype=I64)]
        self._sort(sources)
        with builder.counted_loop(0, self._wanted) as number_:
            key = builder.load(builder.gep(sources[1], [number_], source_etype=I64), typ=I64)
            position = builder.and_(key, (1 << 32) - 1)
            put(number_, row.at(position), position)

    def _select(self, row: _Row) -> None:
        """Find the orders that are taken: those below `low`, and the first `left` elements up to
        `high`. A digit at a time, its histogram tells which digit the last one taken has."""
        builder = self._builder
        self._set("low", const(0))
        self._set("high", const((1 << 32) - 1))
        self._set("left", self._wanted)
        # The elements up to `high` that `left` is taken from.
        self._set("found", row.count)
        for (shift, bits), counts in zip(DIGITS, self._counts, strict=True):
            more = builder.icmp_signed("<", self._get("left"), self._get("found"))
            with builder.if_then(more):
                self._clear(counts, bits)
                self._count(row, counts, shift, bits)
                self._walk(counts, shift)

    def _count(self, row: _Row, counts: ir.Value, shift: int, bits: int) -> None:
        """Count a digit of the elements from `low` to `high`."""
        builder = self._builder
        low, high = self._get("low"), self._get("high")

        def count(index: ir.Value, x: ir.Value) -> None:
            order = builder.zext(self._order(x), I64)
            inside = builder.icmp_unsigned("<=", builder.sub(order, low), builder.sub(high, low))
            with builder.if_then(inside):
                self._add(counts, order, shift, bits)

        row.each(const(0), row.count, self._up_to(high), count)

    def _up_to(self, high: ir.Value) -> Callable[[ir.Value], ir.Value]:
        bound = self._builder.splat(self._builder.trunc(high, I32), LANES)
        return lambda x: self._builder.icmp_unsigned("<=", self._order(x), bound)

    def _clear(self, counts: ir.Value, bits: int) -> None:
        zeros = number(ir.VectorType(I32, LANES), 0)
        with self._builder.counted_loop(0, 1 << bits, LANES) as first:
            place = self._builder.gep(counts, [first], source_etype=I32)
            self._builder.store(zeros, place, align=64)

    def _add(self, counts: ir.Value, order: ir.Value, shift: int, bits: int) -> None:
        """Count a digit."""
        builder = self._builder
        place = self._digit(counts, order, shift, bits)
        builder.store(builder.add(builder.load(place, typ=I32), number(I32, 1)), place)

    def _digit(self, counts: ir.Value, order: ir.Value, shift: int, bits: int) -> ir.Value:
        """The address of the count of a digit."""
        builder = self._builder
        digit = builder.and_(builder.lshr(order, shift), (1 << bits) - 1)
        return builder.gep(counts, [digit], source_etype=I32)

    def _walk(self, counts: ir.Value, shift: int) -> None:
        """Pass over the digits all of whose elements are taken."""
        builder = self._builder
        before = builder.block
        look, go_on, done = (
            builder.append_basic_block(f"digits.{name}") for name in ("look", "next", "done")
        )
        start = self._get("left")
        builder.branch(look)
        builder.position_at_end(look)
        digit, left = builder.phi(I64), builder.phi(I64)
        place = builder.gep(counts, [digit], source_etype=I32)
        here = builder.zext(builder.load(place, typ=I32), I64)
        builder.cbranch(builder.icmp_signed(">", left, here), go_on, done)
        builder.position_at_end(go_on)
        for phi, first, following in (
            (digit, const(0), builder.add(digit, 1)),
            (left, start, builder.sub(left, here)),
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(following, go_on)
        builder.branch(look)
        builder.position_at_end(done)
        low = builder.add(self._get("low"), builder.shl(digit, shift))
        self._set("low", low)
        self._set("high", builder.add(low, (1 << shift) - 1))
        self._set("left", left)
        self._set("found", here)

    def _collect(self, row: _Row, keys: ir.Value) -> None:
        """Store the keys of the elements that are taken, and count all of their digits."""
        builder = self._builder
        for (_, bits), counts in zip(DIGITS, self._counts, strict=True):
            self._clear(counts, bits)
        low, high = self._get("low"), self._get("high")
        self._set("found", const(0))

        def take(index: ir.Value, x: ir.Value) -> None:
            order = builder.zext(self._order(x), I64)
            with builder.if_then(builder.icmp_unsigned("<=", order, high)):
                left = self._get("left")
                last = builder.icmp_unsigned(">=", order, low)
                with builder.if_then(
                    builder.or_(builder.not_(last), builder.icmp_signed(">", left, 0))
                ):
                    self._set("left", builder.sub(left, builder.zext(last, I64)))
                    found = self._get("found")
                    key = builder.or_(builder.shl(order, 32), index)
                    builder.store(key, builder.gep(keys, [found], source_etype=I64))
                    self._set("found", builder.add(found, 1))
                    for (shift, bits), counts in zip(DIGITS, self._counts, strict=True):
                        self._add(counts, order, shift, bits)

        row.each(const(0), row.count, self._up_to(high), take)

    def _sort(self, memory: list[ir.Value]) -> None:
        """Sort the keys in the first memory into the second one, the last digit first. Equal orders
        stay in the order of their positions."""
        builder = self._builder
        source, target = memory
        for (shift, bits), counts in reversed([*zip(DIGITS, self._counts, strict=True)]):
            total = builder.variable(number(I32, 0))
            with builder.counted_loop(0, 1 << bits) as digit:
                place = builder.gep(counts, [digit], source_etype=I32)
                here, begin = builder.load(place, typ=I32), builder.load(total, typ=I32)
                builder.store(begin, place)
                builder.store(builder.add(begin, here), total)
            with builder.counted_loop(0, self._wanted) as index:
                key = builder.load(builder.gep(source, [index], source_etype=I64), typ=I64)
                place = self._digit(counts, key, 32 + shift, bits)
                to = builder.load(place, typ=I32)
                builder.store(builder.add(to, number(I32, 1)), place)
                to = builder.zext(to, I64)
                builder.store(key, builder.gep(target, [to], source_etype=I64))
            source, target = target, source


class _Heap:
    """Elements and their positions, none of which is better than those below it."""

    def __init__(
        self, builder: IRBuilder, values: ir.Value, positions: ir.Value, step: ir.Value,
        element: ir.Type, dtype: DType, largest: bool,
    ) -> None:  # fmt: skip
        self._builder, self._step, self._dtype, self._largest = builder, step, dtype, largest
        self._values, self._positions, self._element = values, positions, element

    def _better(self, x: ir.Value, y: ir.Value) -> ir.Value:
        # NaN counts as larger than all numbers, as in NumPy's order.
        largest = self._largest
        return elements.precedes(self._builder, x, y, self._dtype, largest, nan_first=largest)

    def fill(self, row: _Row, wanted: ir.Value) -> None:
        """Have the heap hold the elements that are wanted, the best one first."""
        builder = self._builder
        with builder.counted_loop(0, wanted) as index:
            self.put(index, row.at(index), index)
        half = builder.udiv(wanted, 2)
        with builder.counted_loop(0, half) as done:
            node = builder.sub(builder.sub(half, 1), done)
            self.sink(node, wanted, *self.at(node))
        # No elements are wanted, so that there is none to compare with.
        looked = builder.select(builder.icmp_signed(">", wanted, 0), row.count, wanted)

        def may_count(x: ir.Value) -> ir.Value:
            return self._better(x, builder.splat(self.at(const(0))[0], LANES))

        def look(index: ir.Value, x: ir.Value) -> None:
            with builder.if_then(self._better(x, self.at(const(0))[0]), likely=False):
                self.sink(const(0), wanted, x, index)

        row.each(wanted, looked, may_count, look)
        with builder.counted_loop(1, wanted) as done:
            last = builder.sub(wanted, done)
            moved, worst = self.at(last), self.at(const(0))
            self.put(last, *worst)
            self.sink(const(0), last, *moved)

    def _places(self, node: ir.Value) -> tuple[ir.Value, ir.Value]:
        distance = self._builder.mul(node, self._step)
        value = self._builder.gep(self._values, [distance], source_etype=self._element)
        return value, self._builder.gep(self._positions, [distance], source_etype=I64)

    def at(self, node: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The element at a node, and its position."""
        value, position = self._places(node)
        return self._builder.load(value, typ=self._element), self._builder.load(position, typ=I64)

    def put(self, node: ir.Value, value: ir.Value, position: ir.Value) -> None:
        for new, place in zip((value, position), self._places(node), strict=True):
            self._builder.store(new, place)

    def _precedes(self, x: tuple[ir.Value, ir.Value], y: tuple[ir.Value, ir.Value]) -> ir.Value:
        """Whether an element is better, or as good and before the other."""
        builder = self._builder
        no_worse = builder.not_(self._better(y[0], x[0]))
        before = builder.icmp_signed("<", x[1], y[1])
        return builder.or_(self._better(x[0], y[0]), builder.and_(no_worse, before))

    def sink(self, node: ir.Value, count: ir.Value, value: ir.Value, position: ir.Value) -> None:
        """Put an element at a node of a heap of `count`, or as far below it as worse ones are."""
        builder, new = self._builder, (value, position)
        at = builder.variable(node)
        look, compare, move, done = (
            builder.append_basic_block(f"sink.{name}")
            for name in ("look", "compare", "move", "done")
        )
        builder.branch(look)
        builder.position_at_end(look)
        here = builder.load(at, typ=I64)
        left = builder.add(builder.shl(here, 1), 1)
        builder.cbranch(builder.icmp_signed("<", left, count), compare, done)
        builder.position_at_end(compare)
        right = builder.add(left, 1)
        right = builder.select(builder.icmp_signed("<", right, count), right, left)
        ours, other = self.at(left), self.at(right)
        second = self._precedes(ours, other)
        below = builder.select(second, right, left)
        worse = tuple(builder.select(second, b, a) for a, b in zip(ours, other, strict=True))
        builder.cbranch(self._precedes(new, worse), move, done)
        builder.position_at_end(move)
        self.put(here, *worse)
        builder.store(below, at)
        builder.branch(look)
        builder.position_at_end(done)
        self.put(builder.load(at, typ=I64), value, position)
