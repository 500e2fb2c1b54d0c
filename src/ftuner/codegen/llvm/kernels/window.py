"""Rows of A that are read through a window: implicit matrices of convolutions, in LLVM IR.

Row r of A is the window of output position r, and a k step is an element of the window and one of
its `RUN` consecutive elements of memory. So a row of A is one piece of memory for each element of
the window. For each tile the coordinates of its rows are found once. Where an element of the window
is inside x for all rows, it is as far from the first element of each. Where it is outside x for all
rows, it is passed over, which is most of the work of a window that is dilated by more than x has.
Else the addresses of all rows follow by vector arithmetic, and rows whose element is outside x read
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, I64, VOID, IRBuilder, const
from ftuner.codegen.llvm.ir.instructions import L1, prefetch
from ftuner.codegen.llvm.native.records import SLOT_BYTES, WINDOW_AXES, Context, Window

_FAR = 1 << 62
"""Beyond all indices."""
_LANES = 16
"""Rows that there is memory for; more if a tile has more."""
_VECTORS = 2 * 64
"""Bytes of the numbers of a tile, before the vectors by rows."""


def _of_axes(builder: IRBuilder, record: ir.Value, first: int) -> list[ir.Value]:
    """The slots of a `Window` for each axis."""
    return [builder.slot(record, first + axis) for axis in range(WINDOW_AXES)]


def _count(builder: IRBuilder, places: Sequence[ir.Value], limits: Sequence[ir.Value]) -> None:
    """Add one to the last of some numbers, which carries to those before it at its limit; the first
    one has none."""
    *slower, place = places
    number = builder.add(builder.slot(place, 0), 1)
    builder.store(number, place)
    if slower:
        with builder.if_then(builder.icmp_signed("==", number, limits[-1])):
            builder.store(0, place)
            _count(builder, slower, limits[:-1])


class _Coordinates:
    """Where the windows of a tile's rows begin in x. They are found by functions of the module,
    once for each tile, so that each uKernel does not have a copy."""

    def __init__(self, builder: IRBuilder, record: ir.Value, state: ir.Value, lanes: int) -> None:
        """`state`: memory of `size(lanes)` bytes; `lanes`: rows that it has room for."""
        self._builder, self._room = builder, lanes

        three = partial(_of_axes, builder, record)

        def places(first: int, count: int = WINDOW_AXES) -> list[ir.Value]:
            return [builder.slot_address(state, first + i) for i in range(count)]

        self.strides, self.bytes = three(Window.STRIDES), three(Window.AXIS_BYTES)
        self.taps = three(Window.KERNEL)
        """Elements of the window along each axis."""
        self.run = builder.slot(record, Window.RUN)
        self._outputs, self._begin = three(Window.OUTPUTS), three(Window.BEGIN)
        self._image_bytes = builder.slot(record, Window.IMAGE_BYTES)
        self._narrow, self._wide = ir.VectorType(I32, lanes), ir.VectorType(I64, lanes)
        self._at = places(0, WINDOW_AXES + 1)
        """The image and the output coordinates of the first row of the next tile."""
        self.begins = places(4)
        """The element of the window that k begins with."""
        self.least, self.most = places(7), places(10)
        """For each axis, the least and the largest index in `first`."""
        vectors = builder.at(state, _VECTORS)
        self.first = [builder.at(vectors, axis * lanes * 4) for axis in range(WINDOW_AXES)]
        """For each axis and row, the index of the window's first element."""
        self.base = builder.at(vectors, WINDOW_AXES * lanes * 4)
        """For each row, bytes from x to the window's first element."""

    @staticmethod
    def size(lanes: int) -> int:
        """Bytes of memory."""
        return _VECTORS + lanes * (WINDOW_AXES * 4 + 8)

    def begin(self, row: ir.Value, k_begin: ir.Value) -> None:
        """Go to the first tile, and note the element of the window that k begins with."""
        builder = self._builder
        for axis in reversed(range(WINDOW_AXES)):
            builder.store(builder.urem(row, self._outputs[axis]), self._at[1 + axis])
            row = builder.udiv(row, self._outputs[axis])
        builder.store(row, self._at[0])
        for place in self.begins:
            builder.store(0, place)
        with builder.if_then(builder.icmp_signed("!=", k_begin, 0), likely=False):
            number = builder.udiv(k_begin, self.run)
            for axis in reversed(range(WINDOW_AXES)):
                builder.store(builder.urem(number, self.taps[axis]), self.begins[axis])
                number = builder.udiv(number, self.taps[axis])

    def enter_tile(self, mr: ir.Value) -> None:
        """Find the coordinates of all rows of a tile; the next tile follows."""
        builder = self._builder
        last = self._value(self._at[WINDOW_AXES])
        fits = builder.icmp_signed("<=", builder.add(last, mr), self._outputs[-1])
        with builder.if_else(fits, likely=True) as (one_line, several):
            with one_line:
                coordinates = [self._value(place) for place in self._at]
                indices, base = self._window(coordinates)
                numbers = ir.Constant(self._wide, list(range(self._room)))
                step = builder.mul(self.strides[-1], self.bytes[-1])
                steps = builder.mul(numbers, builder.splat(step, self._room))
                builder.store(
                    builder.add(builder.splat(base, self._room), steps), self.base, align=SLOT_BYTES
                )
                for axis, index in enumerate(indices):
                    vector = builder.splat(builder.trunc(index, I32), self._room)
                    last_index = index
                    if axis == WINDOW_AXES - 1:
                        reach = builder.mul(self.strides[-1], builder.sub(mr, 1))
                        last_index = builder.add(index, reach)
                        stride = builder.trunc(self.strides[-1], I32)
                        narrow = ir.Constant(self._narrow, list(range(self._room)))
                        strides = builder.splat(stride, self._room)
                        vector = builder.add(vector, builder.mul(narrow, strides))
                    builder.store(vector, self.first[axis], align=SLOT_BYTES)
                    builder.store(index, self.least[axis])
                    builder.store(last_index, self.most[axis])
            with several:
                here = [builder.variable(self._value(place)) for place in self._at]
                for least, most in zip(self.least, self.most, strict=True):
                    builder.store(_FAR, least)
                    builder.store(-_FAR, most)
                with builder.counted_loop(0, mr) as row:
                    indices, base = self._window([self._value(place) for place in here])
                    builder.store(base, self._lane(self.base, row, I64))
                    for axis, index in enumerate(indices):
                        place = self._lane(self.first[axis], row, I32)
                        builder.store(builder.trunc(index, I32), place)
                        least, most = self.least[axis], self.most[axis]
                        builder.store(builder.minimum(self._value(least), index), least)
                        builder.store(builder.maximum(self._value(most), index), most)
                    self._move(here, const(1))
        self._move(self._at, mr)

    def _value(self, place: ir.Value) -> ir.Value:
        return self._builder.load(place, typ=I64)

    def _lane(self, vector: ir.Value, number: ir.Value, element: ir.Type) -> ir.Value:
        return self._builder.gep(vector, [number], source_etype=element)

    def _window(self, coordinates: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
        """The indices of the first element of a position's window, and its bytes from x."""
        builder = self._builder
        image, *position = coordinates
        base = builder.mul(image, self._image_bytes)
        indices = []
        for axis in range(WINDOW_AXES):
            index = builder.mul(position[axis], self.strides[axis])
            index = builder.sub(index, self._begin[axis])
            indices.append(index)
            base = builder.add(base, builder.mul(index, self.bytes[axis]))
        return indices, base

    def _move(self, at: list[ir.Value], rows: ir.Value) -> None:
        """Move coordinates on by some rows."""
        builder = self._builder
        builder.store(builder.add(self._value(at[WINDOW_AXES]), rows), at[WINDOW_AXES])

        def is_beyond() -> ir.Value:
            return builder.icmp_signed(">=", self._value(at[WINDOW_AXES]), self._outputs[-1])

        with builder.while_holds(is_beyond):
            left = builder.sub(self._value(at[WINDOW_AXES]), self._outputs[-1])
            builder.store(left, at[WINDOW_AXES])
            _count(builder, at[:WINDOW_AXES], self._outputs[:-1])


class WindowRows:
    """The rows of the current tile, and where the current element of their windows is."""

    def __init__(
        self, builder: IRBuilder, context: ir.Value, a: ir.Value, row: ir.Value, mr: int,
        item_bytes: int,
    ) -> None:  # fmt: skip
        """`row`: the number of the first row of the first tile; `a`: the address of x;
        `item_bytes`: of an element of x."""
        self._builder, self._mr = builder, mr
        self._record = record = builder.pointer_slot(context, Context.WINDOW)
        self._lanes = lanes = 1 << (mr - 1).bit_length()
        self._room = room = max(lanes, _LANES)
        self._state = builder.reserve(ir.ArrayType(I64, _Coordinates.size(room) // SLOT_BYTES))
        self._tile = tile = _Coordinates(builder, record, self._state, room)
        self.run = tile.run
        three = partial(_of_axes, builder, record)
        self._extents, self._dilations = three(Window.EXTENTS), three(Window.DILATIONS)
        run_bytes = builder.mul(self.run, item_bytes)
        self._scattered = builder.icmp_signed(">", tile.bytes[-1], run_bytes)
        """Whether neighbouring elements of the window are apart in memory, as those of a group of
        channels are: the hardware's prefetcher does not follow them."""
        self._tile_bytes = builder.mul(const(mr), builder.mul(tile.strides[-1], tile.bytes[-1]))
        """From a row to the same row of the next tile, if that is on the same line."""
        zeros = builder.pointer_slot(record, Window.ZEROS)
        self._zeros = builder.sub(builder.ptrtoint(zeros, I64), builder.ptrtoint(a, I64))
        self._narrow, self._wide = ir.VectorType(I32, lanes), ir.VectorType(I64, lanes)
        self._distances = builder.reserve(self._wide)
        """For each row, bytes from x to the current element, where it is outside x for some row."""
        self._current = self._distances
        """The distances that the current element is read by."""
        self._tap, self._least, self._most = (
            [builder.reserve(I64, SLOT_BYTES) for _ in range(WINDOW_AXES)] for _ in range(3)
        )
        """The current element, and copies of what `_Coordinates` has, which stay in registers."""
        self._call("begin", row, builder.slot(context, Context.K_BEGIN))

    def enter_tile(self) -> None:
        """Find where the windows of the next tile begin, and go to their first element."""
        self._call("enter_tile", const(self._mr))
        found = *self._tile.begins, *self._tile.least, *self._tile.most
        for place, source in zip((*self._tap, *self._least, *self._most), found, strict=True):
            self._builder.store(self._builder.slot(source, 0), place)

    def _call(self, method: str, *arguments: ir.Value) -> None:
        """Call the function of the module that does a method of `_Coordinates`."""

        def body(builder: IRBuilder, record: ir.Value, state: ir.Value, *given: ir.Value) -> None:
            getattr(_Coordinates(builder, record, state, self._room), method)(*given)

        name, given = f"window_{method}_{self._room}", [self._record, self._state, *arguments]
        self._builder.shared(name, VOID, given, body, "noinline")

    def point(self, a: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Go to the next element of the window: what its distances count from, which is x at `a` or
        an address in it; and whether it is outside x for all rows."""
        builder = self._builder
        taps = [builder.slot(place, 0) for place in self._tap]
        offsets = [*map(builder.mul, taps, self._dilations)]
        moved: ir.Value = const(0)
        all_inside, all_outside = ir.Constant(I1, 1), ir.Constant(I1, 0)
        for axis, offset in enumerate(offsets):
            moved = builder.add(moved, builder.mul(offset, self._tile.bytes[axis]))
            least = builder.add(builder.slot(self._least[axis], 0), offset)
            most = builder.add(builder.slot(self._most[axis], 0), offset)
            begins = builder.icmp_signed(">=", least, 0)
            ends = builder.icmp_signed("<", most, self._extents[axis])
            all_inside = builder.and_(all_inside, builder.and_(begins, ends))
            before = builder.icmp_signed("<", most, 0)
            beyond = builder.icmp_signed(">=", least, self._extents[axis])
            all_outside = builder.or_(all_outside, builder.or_(before, beyond))
        with builder.if_then(builder.not_(builder.or_(all_inside, all_outside)), likely=False):
            self._check(offsets, moved)
        # Opaque, or LLVM would keep all distances in vectors and take elements out of them.
        self._current = builder.opaque(builder.select(all_inside, self._tile.base, self._distances))
        with builder.if_then(builder.and_(self._scattered, all_inside)):
            later = builder.at(a, builder.add(moved, self._tile_bytes))
            for row in range(self._mr):
                prefetch(builder, builder.at(later, self[row]), L1)
        _count(builder, self._tap, self._tile.taps)
        return builder.at(a, builder.select(all_inside, moved, 0)), all_outside

    def _check(self, offsets: list[ir.Value], moved: ir.Value) -> None:
        """Compute the distances of all rows for an element that is outside x for some."""
        builder, lanes = self._builder, self._lanes
        valid: ir.Value | None = None
        for axis, offset in enumerate(offsets):
            index = builder.load(self._tile.first[axis], typ=self._narrow, align=SLOT_BYTES)
            index = builder.add(index, builder.splat(builder.trunc(offset, I32), lanes))
            extent = builder.splat(builder.trunc(self._extents[axis], I32), lanes)
            inside = builder.icmp_unsigned("<", index, extent)
            valid = inside if valid is None else builder.and_(valid, inside)
        base = builder.load(self._tile.base, typ=self._wide, align=SLOT_BYTES)
        distances = builder.add(base, builder.splat(moved, lanes))
        distances = builder.select(valid, distances, builder.splat(self._zeros, lanes))
        builder.store(distances, self._distances)

    def __getitem__(self, row: int) -> ir.Value:
        """Bytes to where a row of the tile reads the current element of its window."""
        place = self._builder.gep(self._current, [const(row)], source_etype=I64)
        return self._builder.load(place, typ=I64)
