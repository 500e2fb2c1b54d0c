"""Windows of single channels, channels last, in LLVM IR: depthwise convolutions and pooling.

A task is `BLOCK` positions of one row of the result, with all channels. Several positions are
computed at once, so that an element that several windows read is loaded once; where windows reach
out of the operand along the row, each load is checked. Vectors are along channels.

Channels may be in groups: each is then a sum over the channels of its group, which shuffles put
beside it.

`buffers` holds x, the weight if there is one, the operands of the epilogue, and the result; `dims`
the slots of `cpu_record.Depthwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import (
    I32,
    at,
    const,
    maximum,
    minimum,
    pointer_slot,
    scalar_type,
    shuffle,
    slot,
    splat,
)
from ftuner.codegen.llvm.ir.instructions import EMITTERS
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of, store_lanes
from ftuner.codegen.llvm.ir.loops import carried_loop, counted_loop
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.cpu.schedule import BLOCK, DepthwiseKernel
from ftuner.core.expr import ACCUMULATOR, operands
from ftuner.core.frozen import dataclass
from ftuner.hardware.isa import InstructionSet
from ftuner.schedules.depthwise.cpu_record import Depthwise


def emit(
    module: ir.Module, symbol: str, kernel: DepthwiseKernel, lanes: int, isa: InstructionSet
) -> None:
    """Add the kernel to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _Emission(builder, function, kernel, lanes, isa).emit()
    builder.ret_void()


@dataclass(frozen=True)
class _Row:
    """The part of a task that all its positions share."""

    x: ir.Value
    """The first pixel of the line of x that the first row of the windows reads."""
    weight: ir.Value
    """Of the first row of the windows that is inside x."""
    rows: ir.Value
    """Rows of the windows that are inside x."""
    out: ir.Value
    number: ir.Value
    """The number of the row's first position among all positions."""


@dataclass(frozen=True)
class _Channels:
    """A vector of channels: bytes to the first one, its number, and a mask if some do not exist."""

    offset: ir.Value
    first: ir.Value
    mask: ir.Value | None


class _Emission:
    def __init__(
        self, builder: ir.IRBuilder, function: ir.Function, kernel: DepthwiseKernel, lanes: int,
        isa: InstructionSet,
    ) -> None:  # fmt: skip
        self._builder, self._kernel, self._isa = builder, kernel, isa
        self._multiply_add = EMITTERS["fused" if isa.fused else "separate"]
        self._lanes, self._size = lanes, kernel.dtype.itemsize
        self._vector = ir.VectorType(scalar_type(kernel.dtype), lanes)
        buffers, dims, _, _, self._begin, self._end = function.args
        self._operands = operands(kernel.epilogue)
        count = len(self._operands)
        weights = int(kernel.reduction is None)
        self._x, *arrays, self._out = (
            pointer_slot(builder, buffers, i) for i in range(2 + weights + count)
        )
        # Reductions move a pointer that they never read.
        self._weight = arrays[0] if weights else self._x
        self._read = arrays[weights:]
        kind = kernel.reduction or "sum"
        self._nothing = elements.neutral(kind, self._vector, kernel.dtype)
        self._dims = [slot(builder, dims, i) for i in range(Depthwise.SIZE + 2 * count)]
        self._together = kernel.together(isa.vector_registers)

    def _dim(self, number: int) -> ir.Value:
        return self._dims[number]

    def _bytes(self, number: int) -> ir.Value:
        """A dim that counts elements, in bytes."""
        return self._builder.mul(self._dims[number], const(self._size))

    def emit(self) -> None:
        builder, dim = self._builder, self._dim
        width = dim(Depthwise.OUT_WIDTH)
        blocks = builder.udiv(builder.add(width, const(BLOCK - 1)), const(BLOCK))
        with counted_loop(builder, self._begin, self._end) as task:
            line, block = builder.udiv(task, blocks), builder.urem(task, blocks)
            height = dim(Depthwise.OUT_HEIGHT)
            image, y = builder.udiv(line, height), builder.urem(line, height)
            row = self._row(image, y, builder.mul(line, width))
            first = builder.mul(block, const(BLOCK))
            last = minimum(self._builder, builder.add(first, const(BLOCK)), width)
            inner_first, inner_last = self._inside(first, last)
            with counted_loop(builder, first, last, self._together) as position:
                end = builder.add(position, const(self._together))
                inside = builder.and_(
                    builder.icmp_signed(">=", position, inner_first),
                    builder.icmp_signed("<=", end, inner_last),
                )
                with builder.if_else(inside) as (all_, some):
                    with all_:
                        self._several(row, position, self._together)
                    with some:
                        self._checked(row, position, builder.sub(last, position), self._together)

    def _checked(self, row: _Row, position: ir.Value, left: ir.Value, count: int) -> None:
        """The next `count` positions, or as few as are left: the fewer, the fewer at once."""
        fewer = count // 2
        if fewer < 2:
            self._several(row, position, count, left)
            return
        few = self._builder.icmp_signed("<=", left, const(fewer))
        with self._builder.if_else(few) as (some, all_):
            with some:
                self._checked(row, position, left, fewer)
            with all_:
                self._several(row, position, count, left)

    def _taps(
        self, first: ir.Value, extent: ir.Value, count: int, dilation: int
    ) -> tuple[ir.Value, ir.Value]:
        """The taps, from and to, that are inside an axis of `extent` if the first one, which may
        be outside, is at `first`."""
        builder, zero = self._builder, const(0)

        def until(distance: ir.Value) -> ir.Value:
            """Taps before a distance."""
            behind = builder.add(maximum(self._builder, distance, zero), const(dilation - 1))
            taps = builder.udiv(behind, const(dilation)) if dilation > 1 else behind
            return minimum(self._builder, taps, const(count))

        low = until(builder.neg(first))
        return low, maximum(self._builder, until(builder.sub(extent, first)), low)

    def _row(self, image: ir.Value, y: ir.Value, number: ir.Value) -> _Row:
        builder, dim, kernel = self._builder, self._dim, self._kernel
        top = builder.mul(y, const(kernel.strides[0]))
        top = builder.sub(top, dim(Depthwise.BEGIN_Y))
        height = dim(Depthwise.HEIGHT)
        low, high = self._taps(top, height, kernel.window[0], kernel.dilations[0])
        top = builder.add(top, builder.mul(low, const(kernel.dilations[0])))
        x = at(builder, self._x, self._bytes(Depthwise.X_OFFSET))
        x = at(builder, x, builder.mul(image, self._bytes(Depthwise.X_IMAGE)))
        x = at(builder, x, builder.mul(top, self._bytes(Depthwise.X_ROW)))
        out = at(builder, self._out, self._bytes(Depthwise.OUT_OFFSET))
        out = at(builder, out, builder.mul(image, self._bytes(Depthwise.OUT_IMAGE)))
        out = at(builder, out, builder.mul(y, self._bytes(Depthwise.OUT_ROW)))
        taps = const(kernel.window[1] * kernel.group)
        line = builder.mul(self._bytes(Depthwise.CHANNELS), taps)
        weight = at(builder, self._weight, builder.mul(low, line))
        return _Row(x, weight, builder.sub(high, low), out, number)

    def _inside(self, first: ir.Value, last: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The positions within first to last whose windows are inside x along the row."""
        builder, dim, kernel = self._builder, self._dim, self._kernel
        stride, begin = const(kernel.strides[1]), dim(Depthwise.BEGIN_X)
        low = builder.add(maximum(self._builder, begin, const(0)), builder.sub(stride, const(1)))
        low = builder.udiv(low, stride)
        reach = const((kernel.window[1] - 1) * kernel.dilations[1])
        room = builder.sub(builder.add(dim(Depthwise.WIDTH), begin), reach)
        room = maximum(self._builder, room, const(0))
        high = builder.udiv(builder.add(room, builder.sub(stride, const(1))), stride)
        low = minimum(self._builder, maximum(self._builder, low, first), last)
        return low, maximum(self._builder, minimum(self._builder, high, last), low)

    def _channels(self, body: Callable[[_Channels], None], checked: bool) -> None:
        """`body` for each vector of channels. Where loads are `checked` in any case, it is emitted
        once, if the ISA has masks."""
        builder, lanes = self._builder, self._lanes

        def vector(base: ir.Value, count: ir.Value | None) -> None:
            offset = builder.mul(base, const(self._size))
            body(_Channels(offset, base, mask_of(builder, count, lanes)))

        channels = self._dim(Depthwise.CHANNELS)
        if not checked or not self._isa.masked:
            by_vectors(builder, const(0), channels, lanes, vector)
            return
        with counted_loop(builder, const(0), channels, const(lanes)) as base:
            vector(base, builder.sub(channels, base))

    def _load(
        self, address: ir.Value, channels: _Channels, inside: ir.Value | None = None
    ) -> ir.Value:
        """`inside`: whether there is anything; nothing is read elsewhere."""
        builder, mask = self._builder, channels.mask
        address = at(builder, address, channels.offset)
        there = None if inside is None else splat(builder, inside, self._lanes)
        if there is not None:
            mask = there if mask is None else builder.and_(mask, there)
        value = load_lanes(builder, address, self._vector, self._size, mask)
        if there is None or self._kernel.reduction in (None, "sum"):
            return value
        return builder.select(there, value, self._nothing)

    def _tap(self, address: ir.Value, channels: _Channels) -> ir.Value | None:
        """An element of the weight, if there is one."""
        return self._load(address, channels) if self._kernel.reduction is None else None

    def _gathered(self, element: ir.Value, tap: ir.Value | None, before: ir.Value) -> ir.Value:
        """The sum or the reduction so far with one more element of the window."""
        kind = self._kernel.reduction
        if kind is not None:
            return elements.combine(self._builder, kind, before, element, self._kernel.dtype)
        return self._multiply_add(self._builder, element, tap, before)

    def _several(
        self, row: _Row, position: ir.Value, count: int, live: ir.Value | None = None
    ) -> None:
        """`count` successive positions. `live`: how many of them exist, where not all do or windows
        may reach out of x along the row; None where neither is so."""
        builder, kernel = self._builder, self._kernel
        width, stride, dilation = kernel.window[1], kernel.strides[1], kernel.dilations[1]
        left = builder.mul(position, const(stride))
        left = builder.sub(left, self._dim(Depthwise.BEGIN_X))
        line = builder.mul(self._bytes(Depthwise.X_ROW), const(kernel.dilations[0]))
        channel_bytes = self._bytes(Depthwise.CHANNELS)
        factors = width * kernel.group
        uses: dict[int, list[tuple[int, int]]] = {}
        for number in range(count):
            for tap in range(width):
                uses.setdefault(number * stride + tap * dilation, []).append((number, tap))

        def vector(channels: _Channels) -> None:
            def window_row(values: list[ir.Value]) -> list[ir.Value]:
                x, weight, *sums = values
                taps = [
                    self._tap(at(builder, weight, builder.mul(channel_bytes, const(f))), channels)
                    for f in range(factors)
                ]
                for offset in sorted(uses):
                    index = builder.add(left, const(offset))
                    own = self._elements(x, index, channels, live is not None)
                    for number, tap in uses[offset]:
                        for factor, element in enumerate(own, tap * kernel.group):
                            sums[number] = self._gathered(element, taps[factor], sums[number])
                after = at(builder, weight, builder.mul(channel_bytes, const(factors)))
                return [at(builder, x, line), after, *sums]

            values = [row.x, row.weight, *([self._nothing] * count)]
            sums = carried_loop(builder, row.rows, values, window_row)[2:]
            self._finish(row, position, sums, channels, live)

        self._channels(vector, live is not None)

    def _elements(
        self, line: ir.Value, index: ir.Value, channels: _Channels, checked: bool
    ) -> list[ir.Value]:
        """What the channels of a vector are multiplied with at a pixel of a line of x: for each
        channel of a group, that of each channel's group. `checked`: nothing outside the line."""
        builder, lanes, group = self._builder, self._lanes, self._kernel.group
        place = builder.mul(index, self._bytes(Depthwise.X_PIXEL))
        inside = None
        if checked:
            inside = builder.icmp_unsigned("<", index, self._dim(Depthwise.WIDTH))
            place = builder.select(inside, place, const(0))
        place = at(builder, line, place)
        if group > lanes:
            # All lanes are of one group.
            own = builder.udiv(channels.first, const(group))
            place = at(builder, place, builder.mul(own, const(group * self._size)))
            return [self._repeated(place, number, inside) for number in range(group)]
        value = self._load(place, channels, inside)
        if group == 1:
            return [value]
        starts = [lane - lane % group for lane in range(lanes)]
        return [
            shuffle(builder, value, value, [start + number for start in starts])
            for number in range(group)
        ]

    def _repeated(self, group: ir.Value, number: int, inside: ir.Value | None) -> ir.Value:
        """A channel of a group, in all lanes."""
        builder, alone = self._builder, ir.VectorType(self._vector.element, 1)
        place = at(builder, group, const(number * self._size))
        if inside is None:
            value = builder.load(place, typ=self._vector.element, align=self._size)
        else:
            loaded = load_lanes(builder, place, alone, self._size, splat(builder, inside, 1))
            value = builder.extract_element(loaded, ir.Constant(I32, 0))
        return splat(builder, value, self._lanes)

    def _finish(
        self, row: _Row, position: ir.Value, sums: Sequence[ir.Value], channels: _Channels,
        live: ir.Value | None,
    ) -> None:  # fmt: skip
        """The epilogue of successive positions, and the stores of those that exist."""
        for number, value in enumerate(sums):
            if live is None or not number:
                self._store(row, position, number, value, channels)
                continue
            with self._builder.if_then(self._builder.icmp_signed("<", const(number), live)):
                self._store(row, position, number, value, channels)

    def _store(
        self, row: _Row, position: ir.Value, number: int, value: ir.Value, channels: _Channels
    ) -> None:
        builder = self._builder
        here = builder.add(position, const(number))
        env = {ACCUMULATOR.name: value}
        for index, operand in enumerate(self._operands):
            at_dims = Depthwise.SIZE + 2 * index
            base = at(builder, self._read[index], self._bytes(at_dims))
            if operand.kind != "column":
                rows = builder.add(row.number, here)
                base = at(builder, base, builder.mul(rows, self._bytes(at_dims + 1)))
            if operand.kind == "row":
                scalar = builder.load(base, typ=self._vector.element, align=self._size)
                env[operand.name] = splat(builder, scalar, self._lanes)
            else:
                env[operand.name] = self._load(base, channels)
        result = elements.emit(builder, self._kernel.epilogue, env, self._isa.fused)
        place = builder.mul(here, self._bytes(Depthwise.OUT_PIXEL))
        place = at(builder, at(builder, row.out, place), channels.offset)
        store_lanes(builder, result, place, self._size, channels.mask)
