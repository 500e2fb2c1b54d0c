"""Walks an axis by vectors, of which the last one is under a mask; masked loads and stores."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, VOID, IRBuilder, const, scalar_type, type_suffix
from ftuner.core.dtype import DType

LEAST_ALIGNED = 8
"""Vectors of a row from which stores are aligned. Derived: that may take one vector more, an
eighth, and an unaligned store writes parts of two lines."""


def by_vectors(
    builder: IRBuilder, first: ir.Value, last: ir.Value, lanes: int,
    body: Callable[[ir.Value, ir.Value | None], None], twice: bool = False,
) -> None:  # fmt: skip
    """Emit `body(base, count)` for each vector of the elements `first .. last - 1`: its first
    element, and how many of its lanes exist, None if all do.

    `twice`: whether elements may be in two vectors. If so, and if there are `lanes` elements, all
    lanes of all vectors exist: masked stores take ten times as long as others on AMD Zen 3 with
    AVX2, and are emulated on SSE2."""
    if isinstance(first, ir.Constant) and isinstance(last, ir.Constant):
        begin, count = first.constant, max(last.constant - first.constant, 0)
        left = count % lanes
        if count > left:
            with builder.counted_loop(first, begin + count - left, lanes) as base:
                body(base, None)
        if left and twice and count > lanes:
            body(const(begin + count - lanes), None)
        elif left:
            body(const(begin + count - left), const(left))
        return
    if twice:
        count = builder.sub(last, first)
        enough = builder.icmp_signed(">=", count, lanes)
        with builder.if_else(enough, likely=True) as (many, few):
            with many:
                by_whole_vectors(builder, first, last, lanes, lambda base: body(base, None))
            with few, builder.if_then(builder.icmp_signed(">", count, 0)):
                body(first, count)
        return
    whole = builder.and_(builder.sub(last, first), -lanes)
    whole_end = builder.add(first, whole)
    with builder.counted_loop(first, whole_end, lanes) as base:
        body(base, None)
    left = builder.sub(last, whole_end)
    with builder.if_then(builder.icmp_signed(">", left, 0)):
        body(whole_end, left)


def by_whole_vectors(
    builder: IRBuilder, first: ir.Value, last: ir.Value, lanes: int,
    body: Callable[[ir.Value], None], ahead: ir.Value | None = None,
) -> None:  # fmt: skip
    """Emit `body(base)` for vectors of the elements `first .. last - 1`, of which there are `lanes`
    or more. The second vector may begin within the first, so that the last one ends with the last
    element.

    `ahead`: 1 to `lanes` elements from the first one to one at which stores are aligned. If there
    are many vectors, the second begins there, and the last one may begin within the one before."""
    count = builder.sub(last, first)
    left = builder.and_(count, lanes - 1)
    step = builder.select(builder.icmp_signed("==", left, 0), lanes, left)
    if ahead is not None:
        many = builder.icmp_signed(">=", count, LEAST_ALIGNED * lanes)
        step = builder.select(many, ahead, step)
    rest = builder.add(builder.sub(count, step), lanes - 1)
    vectors = builder.add(builder.udiv(rest, lanes), 1)
    latest = builder.sub(last, lanes)

    def vector(values: list[ir.Value]) -> list[ir.Value]:
        base, step = values
        body(base)
        following = builder.add(base, step)
        if ahead is not None:
            following = builder.minimum(following, latest)
        return [following, const(lanes)]

    builder.carried_loop(vectors, [first, step], vector, some=True)


def mask_of(builder: IRBuilder, count: ir.Value | None, lanes: int) -> ir.Value | None:
    """The mask of a vector of `by_vectors`; None if all lanes exist."""
    return None if count is None else lanes_below(builder, count, lanes)


def lanes_below(builder: IRBuilder, count: ir.Value, lanes: int) -> ir.Value:
    """A mask of the first `count` lanes; all of them from `lanes` on."""
    if isinstance(count, ir.Constant):
        exist = [int(lane < count.constant) for lane in range(lanes)]
        return ir.Constant(ir.VectorType(I1, lanes), exist)
    wanted = builder.splat(builder.trunc(count, I32), lanes)
    numbers = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    return builder.icmp_signed("<", numbers, wanted)


def load_lanes(
    builder: IRBuilder, address: ir.Value, vector: ir.VectorType, align: int, mask: ir.Value | None
) -> ir.Value:
    """Load a vector: the lanes of `mask`, and zero in the others, whose memory is not touched; all
    lanes if it is None."""
    if mask is None:
        return builder.load(address, typ=vector, align=align)
    name = f"llvm.masked.load.{type_suffix(vector)}.p0"
    zero = ir.Constant(vector, None)
    return builder.external(name, vector, address, ir.Constant(I32, align), mask, zero)


Range = tuple[ir.Value, ir.Value]
"""Elements from a first one up to an end."""


class VectorRows:
    """Loads and stores vectors of rows of elements."""

    def __init__(self, builder: IRBuilder, dtype: DType, lanes: int) -> None:
        self.builder, self.dtype, self.lanes = builder, dtype, lanes
        self.vector = ir.VectorType(scalar_type(dtype), lanes)

    def along(self, bounds: Range, body: Callable[[ir.Value, ir.Value | None], None]) -> None:
        """`body(offset, mask)` for each vector of some elements of a row: the bytes to it, and a
        mask for the last one."""
        builder = self.builder

        def vector(base: ir.Value, left: ir.Value | None) -> None:
            offset = builder.mul(base, self.dtype.itemsize)
            body(offset, mask_of(builder, left, self.lanes))

        by_vectors(builder, *bounds, self.lanes, vector)

    def load(self, place: ir.Value, mask: ir.Value | None) -> ir.Value:
        return load_lanes(self.builder, place, self.vector, self.dtype.itemsize, mask)

    def store(self, value: ir.Value, place: ir.Value, mask: ir.Value | None) -> None:
        store_lanes(self.builder, value, place, self.dtype.itemsize, mask)

    def copy(self, bounds: Range, source: ir.Value, target: ir.Value) -> None:
        def copied(offset: ir.Value, mask: ir.Value | None) -> None:
            value = self.load(self.builder.at(source, offset), mask)
            self.store(value, self.builder.at(target, offset), mask)

        self.along(bounds, copied)

    def clear(self, bounds: Range, target: ir.Value) -> None:
        builder, zero = self.builder, ir.Constant(self.vector, None)
        self.along(bounds, lambda offset, mask: self.store(zero, builder.at(target, offset), mask))


def load_apart(
    builder: IRBuilder, address: ir.Value, vector: ir.VectorType, align: int, step: int,
    mask: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    """Load a vector whose lanes are `step` elements of memory apart, which may be negative, the
    first at `address`. Only memory from the first to the last lane is touched, and of lanes that
    are not of `mask`, if it is given, none."""
    lanes, distance = vector.count, abs(step)
    reach = (lanes - 1) * distance
    lowest = address if step > 0 else builder.at(address, -reach * align)
    begins = [min(number * lanes, reach + 1 - lanes) for number in range(distance)]
    places = [lane * distance for lane in range(lanes)]
    value: ir.Value = ir.Constant(vector, ir.Undefined)
    done = 0
    for begin in begins:
        part = None
        if mask is not None:
            lane_of = [begin + i if step > 0 else reach - begin - i for i in range(lanes)]
            known = [x // distance if x % distance == 0 else lanes for x in lane_of]
            part = builder.shuffle(mask, ir.Constant(mask.type, None), known)
        loaded = load_lanes(builder, builder.at(lowest, begin * align), vector, align, part)
        until = sum(place < begin + lanes for place in places)
        taken = [
            lanes + place - begin if done <= lane < until else lane
            for lane, place in enumerate(places)
        ]
        value, done = builder.shuffle(value, loaded, taken), until
    if step > 0:
        return value
    return builder.shuffle(value, value, [lanes - 1 - lane for lane in range(lanes)])


def store_lanes(
    builder: IRBuilder, value: ir.Value, address: ir.Value, align: int, mask: ir.Value | None
) -> None:
    """Store the lanes of `mask`, all if it is None; memory of the others is not touched."""
    if mask is None:
        builder.store(value, address, align=align)
        return
    if isinstance(mask, ir.Constant) and mask == lanes_below(builder, const(1), value.type.count):
        # LLVM 22 stores all bits of an integer that was narrowed before, not only those left.
        builder.store(builder.extract_element(value, const(0)), address, align=align)
        return
    name = f"llvm.masked.store.{type_suffix(value.type)}.p0"
    builder.external(name, VOID, value, address, ir.Constant(I32, align), mask)
