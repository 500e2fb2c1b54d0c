"""Non-maximum suppression in LLVM IR.

A task is one label of one image. A heap orders the candidates, whose scores are above the
threshold, so that no more of them are sorted than are looked at. A candidate is an integer: the
order of its score in the upper half of the bits, and the complement of its number in the lower
half, so that the first of equal scores is the largest. Each is compared with vectors of kept boxes.

`dims` holds `SuppressionStep.parameters()`; `buffers` scores, boxes, the rows of kept boxes, memory
for candidates, and memory for kept boxes.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I64, PTR, VOID, IRBuilder, begun, const, scalar_type
from ftuner.codegen.llvm.ir.functions import number, zero
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType

_AREA = 4
"""The row of areas, after those of coordinates."""
_COLUMNS = 3
"""Image, label and box."""


def emit(module: ir.Module, symbol: str, dtype: DType, lanes: int, centred: bool) -> None:
    """Add the kernel to a module. `lanes`: kept boxes that a candidate is compared with at once."""
    _Suppression(module, symbol, dtype, lanes, centred)


class _Suppression:
    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, lanes: int, centred: bool
    ) -> None:
        self._element = scalar_type(dtype)
        self._vector = ir.VectorType(self._element, lanes)
        self._align = dtype.itemsize
        self._bits = ir.IntType(dtype.bits)
        self._key = ir.IntType(2 * dtype.bits)
        self._lanes = lanes
        self._centred = centred
        self._place = self._emit_place(module, f"{symbol}_place")
        self._b, (buffers, dims, _, _, begin, end) = begun(module, STEP_KERNEL_TYPE, symbol)
        b = self._b
        scores, given, rows, keys, boxes = b.pointer_slots(buffers, *range(5))
        self._count, labels, self._limit, first_score, first_box, *thresholds = b.slots(
            dims, *range(8)
        )
        self._iou, self._least = (
            b.bitcast(b.trunc(bits, self._bits), self._element) for bits in thresholds[:2]
        )
        self._all = b.icmp_signed("==", thresholds[2], 0)
        self._stride = b.add(self._limit, lanes)
        self._left, self._found = b.reserve(I64), b.reserve(I64)
        scores = self._at(scores, first_score, self._element)
        given = self._at(given, first_box, self._element)
        with b.counted_loop(begin, end) as task:
            skipped = b.mul(task, self._count)
            # One more is stored than there may be.
            room = b.mul(task, b.add(self._count, 1))
            self._keys = self._at(keys, room, self._key)
            image = b.udiv(task, labels)
            before = b.mul(image, b.mul(self._count, _AREA))
            self._given = self._at(given, before, self._element)
            room = b.mul(task, b.mul(self._stride, _AREA + 1))
            self._boxes = self._at(boxes, room, self._element)
            own = b.mul(b.add(self._limit, 1), _COLUMNS)
            head = self._at(rows, b.mul(task, own), I64)
            rows_of = self._at(head, const(_COLUMNS), I64)
            self._collect(self._at(scores, skipped, self._element))
            self._order()
            self._choose(rows_of, image, b.urem(task, labels))
            found = b.load(self._found, typ=I64)
            for column in range(_COLUMNS):
                b.store(found, self._at(head, const(column), I64))
            ends = (b.mul(n, _COLUMNS) for n in (found, self._limit))
            with b.counted_loop(*ends) as rest:
                b.store(-1, self._at(rows_of, rest, I64))
        b.ret_void()

    def _at(self, base: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
        return self._b.gep(base, [index], source_etype=kind)

    def _emit_place(self, module: ir.Module, symbol: str) -> ir.Function:
        """`void place(keys, at, count, key)` puts a key into the heap of `count` keys: at `at` or
        below, where larger ones move up."""
        key = self._key
        function = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, I64, key]), symbol)
        function.linkage = "internal"
        keys, start, count, value = function.args
        entry, look, both, move, done = (
            function.append_basic_block(name) for name in ("entry", "look", "both", "move", "done")
        )
        b = self._b = IRBuilder(entry)
        b.branch(look)
        b.position_at_end(look)
        at = b.phi(I64)
        at.add_incoming(start, entry)
        left = b.add(b.shl(at, 1), 1)
        right = b.add(left, 1)
        b.cbranch(b.icmp_signed("<", left, count), both, done)
        b.position_at_end(both)
        second = b.select(b.icmp_signed("<", right, count), right, left)
        lower, upper = (b.load(self._at(keys, i, key), typ=key) for i in (left, second))
        is_second = b.icmp_unsigned(">", upper, lower)
        child, larger = b.select(is_second, second, left), b.select(is_second, upper, lower)
        b.cbranch(b.icmp_unsigned(">", larger, value), move, done)
        b.position_at_end(move)
        b.store(larger, self._at(keys, at, key))
        at.add_incoming(child, move)
        b.branch(look)
        b.position_at_end(done)
        b.store(value, self._at(keys, at, key))
        b.ret_void()
        return function

    def _collect(self, scores: ir.Value) -> None:
        """Store the keys of candidates. Vectors of scores without one are passed over."""
        b, lanes, half = self._b, self._lanes, self._bits.width
        b.store(0, self._left)
        b.store(0, self._found)
        some = b.icmp_signed(">", self._limit, 0)
        count = b.select(some, self._count, 0)
        least = b.splat(self._least, lanes)
        every = b.splat(self._all, lanes)
        numbers = ir.Constant(ir.VectorType(self._bits, lanes), list(range(lanes)))
        top = ir.Constant(numbers.type, [1 << half - 1] * lanes)
        several = b.reserve(ir.VectorType(self._bits, 2 * lanes))

        def collect(base: ir.Value, exist: ir.Value | None) -> None:
            mask = mask_of(b, exist, lanes)
            address = self._at(scores, base, self._element)
            score = load_lanes(b, address, self._vector, self._align, mask)
            taken = b.or_(every, b.fcmp_ordered(">", score, least))
            taken = taken if mask is None else b.and_(taken, mask)
            with b.if_then(b.any_lane(taken)):
                # Minus zero becomes zero. The integers are in the order of the floats; NaN is last.
                bits = b.bitcast(b.fadd(score, number(self._vector, 0.0)), numbers.type)
                sign = b.ashr(bits, ir.Constant(numbers.type, [half - 1] * lanes))
                order = b.select(b.fcmp_ordered("ord", score, score),
                                 b.xor(bits, b.or_(sign, top)), zero(numbers.type))  # fmt: skip
                number_of = b.add(b.splat(b.trunc(base, self._bits), lanes), numbers)
                pairs = b.interleave([b.not_(number_of), order])
                for part, pair in enumerate(pairs):
                    b.store(pair, self._at(several, const(part * lanes), self._bits))
                chosen = b.zext(b.bitcast(taken, ir.IntType(lanes)), I64)
                left = b.load(self._left, typ=I64)
                for lane in range(lanes):
                    # Stored without a branch, whether it is taken or replaced by the next one.
                    key = b.load(self._at(several, const(lane), self._key), typ=self._key)
                    b.store(key, self._at(self._keys, left, self._key))
                    left = b.add(left, b.and_(b.lshr(chosen, lane), 1))
                b.store(left, self._left)

        by_vectors(b, const(0), count, lanes, collect)

    def _order(self) -> None:
        """Make a heap of the candidates."""
        b = self._b
        count = b.load(self._left, typ=I64)
        half = b.lshr(count, 1)
        with b.counted_loop(0, half) as done:
            at = b.sub(b.sub(half, 1), done)
            key = b.load(self._at(self._keys, at, self._key), typ=self._key)
            b.call(self._place, [self._keys, at, count, key])

    def _choose(self, rows: ir.Value, image: ir.Value, label: ir.Value) -> None:
        """Take candidates, the highest score first, until there are no more or enough are kept."""
        b = self._b
        look, take, done = (
            b.append_basic_block(f"choose.{name}") for name in ("look", "take", "done")
        )
        b.branch(look)
        b.position_at_end(look)
        left, found = b.load(self._left, typ=I64), b.load(self._found, typ=I64)
        more = b.icmp_signed(">", left, 0)
        b.cbranch(b.and_(more, b.icmp_signed("<", found, self._limit)), take, done)
        b.position_at_end(take)
        key = b.load(self._keys, typ=self._key)
        last = b.sub(left, 1)
        b.store(last, self._left)
        moved = b.load(self._at(self._keys, last, self._key), typ=self._key)
        b.call(self._place, [self._keys, const(0), last, moved])
        box = b.zext(b.not_(b.trunc(key, self._bits)), I64)
        sides = self._sides(box)
        area = b.fmul(b.fsub(sides[2], sides[0]), b.fsub(sides[3], sides[1]))
        with b.if_then(b.not_(self._overlaps([*sides, area], found))):
            self._keep([*sides, area], found)
            row = b.mul(found, _COLUMNS)
            for column, value in enumerate((image, label, box)):
                b.store(value, self._at(rows, b.add(row, column), I64))
            b.store(b.add(found, 1), self._found)
        b.branch(look)
        b.position_at_end(done)

    def _sides(self, box: ir.Value) -> list[ir.Value]:
        """The lowest and the highest corner of a box."""
        b, element = self._b, self._element
        at = self._at(self._given, b.mul(box, _AREA), element)
        given = [b.load(self._at(at, const(i), element), typ=element) for i in range(_AREA)]
        first, second = given[:2], given[2:]
        if self._centred:
            half = [b.fmul(x, number(element, 0.5)) for x in second]
            return [apply(x, y) for apply in (b.fsub, b.fadd)
                    for x, y in zip(first, half, strict=True)]  # fmt: skip
        return [self._bound(order, x, y) for order in "<>"
                for x, y in zip(first, second, strict=True)]  # fmt: skip

    def _row(self, row: int, index: ir.Value) -> ir.Value:
        """The address of an element of a row of kept boxes."""
        offset = self._b.add(self._b.mul(self._stride, row), index)
        return self._at(self._boxes, offset, self._element)

    def _keep(self, box: list[ir.Value], found: ir.Value) -> None:
        """Append a box to the kept ones. Boxes to the end of its vector have no area so far."""
        b = self._b
        begins = b.icmp_signed("==", b.and_(found, self._lanes - 1), 0)
        with b.if_then(begins):
            b.store(number(self._vector, 0.0), self._row(_AREA, found), align=self._align)
        for row, value in enumerate(box):
            b.store(value, self._row(row, found))

    def _overlaps(self, box: list[ir.Value], found: ir.Value) -> ir.Value:
        """Whether a box overlaps a kept one by more than the threshold."""
        b = self._b
        yes = b.variable(ir.Constant(I1, 0))
        mine = [b.splat(value, self._lanes) for value in box]
        iou, zeros = b.splat(self._iou, self._lanes), number(self._vector, 0.0)
        look, compare, done = (
            b.append_basic_block(f"overlap.{name}") for name in ("look", "compare", "done")
        )
        before = b.block
        # Nothing overlaps a box without area.
        some = b.fcmp_ordered(">", box[_AREA], number(self._element, 0.0))
        b.cbranch(some, look, done)
        b.position_at_end(look)
        first = b.phi(I64)
        first.add_incoming(const(0), before)
        b.cbranch(b.icmp_signed("<", first, found), compare, done)
        b.position_at_end(compare)
        theirs = [
            b.load(self._row(row, first), align=self._align, typ=self._vector)
            for row in range(_AREA + 1)
        ]
        extents = []
        for low, high in ((0, 2), (1, 3)):
            side = b.fsub(self._bound("<", theirs[high], mine[high]),
                          self._bound(">", theirs[low], mine[low]))  # fmt: skip
            extents.append(self._bound(">", side, zeros))
        shared = b.fmul(*extents)
        union = b.fsub(b.fadd(theirs[_AREA], mine[_AREA]), shared)
        over = b.fcmp_ordered(">", b.fdiv(shared, union), iou)
        for positive in (union, theirs[_AREA]):
            over = b.and_(over, b.fcmp_ordered(">", positive, zeros))
        hit = b.any_lane(over)
        b.store(hit, yes)
        following = b.add(first, self._lanes)
        first.add_incoming(following, b.block)
        b.cbranch(hit, done, look)
        b.position_at_end(done)
        return b.load(yes, typ=I1)

    def _bound(self, order: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller or the larger of two vectors. A box with NaN has no area anyway."""
        return self._b.select(self._b.fcmp_ordered(order, x, y), x, y)
