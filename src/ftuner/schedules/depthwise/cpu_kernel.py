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
from ftuner.codegen.llvm.ir.builder import I32, const, scalar_type
from ftuner.codegen.llvm.ir.instructions import EMITTERS
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of, store_lanes
from ftuner.codegen.llvm.kernels.step import StepKernel
from ftuner.core.cpu.schedule import BLOCK, DepthwiseKernel
from ftuner.core.expr import ACCUMULATOR, operands
from ftuner.core.frozen import dataclass
from ftuner.hardware.isa import InstructionSet
from ftuner.schedules.depthwise.cpu_record import Depthwise


def emit(
    module: ir.Module, symbol: str, kernel: DepthwiseKernel, lanes: int, isa: InstructionSet
) -> None:
    """Add the kernel to a module."""
    _Emission(module, symbol, kernel, lanes, isa).emit()


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


class _Emission(StepKernel):
    def __init__(
        self, module: ir.Module, symbol: str, kernel: DepthwiseKernel, lanes: int,
        isa: InstructionSet,
    ) -> None:  # fmt: skip
        super().__init__(module, symbol)
        self._kernel, self._isa = kernel, isa
        self._multiply_add = EMITTERS["fused" if isa.fused else "separate"]
        self._lanes, self._size = lanes, kernel.dtype.itemsize
        self._vector = ir.VectorType(scalar_type(kernel.dtype), lanes)
        self._operands = operands(kernel.epilogue)
        count = len(self._operands)
        weights = int(kernel.reduction is None)
        self._x, *arrays, self._out = self.pointer_slots(self.buffers, *range(2 + weights + count))
        # Reductions move a pointer that they never read.
        self._weight = arrays[0] if weights else self._x
        self._read = arrays[weights:]
        kind = kernel.reduction or "sum"
        self._nothing = elements.neutral(kind, self._vector, kernel.dtype)
        self._values = self.slots(self.dims, *range(Depthwise.SIZE + 2 * count))
        self._together = kernel.together(isa.vector_registers)

    def dim(self, index: int) -> ir.Value:
        """A value that is loaded once."""
        return self._values[index]

    def _bytes(self, number: int) -> ir.Value:
        """A dim that counts elements, in bytes."""
        return self.mul(self._values[number], self._size)

    def emit(self) -> None:
        dim = self.dim
        width = dim(Depthwise.OUT_WIDTH)
        blocks = self.udiv(self.add(width, BLOCK - 1), BLOCK)
        with self.counted_loop(self.begin, self.end) as task:
            line, block = self.udiv(task, blocks), self.urem(task, blocks)
            height = dim(Depthwise.OUT_HEIGHT)
            image, y = self.udiv(line, height), self.urem(line, height)
            row = self._row(image, y, self.mul(line, width))
            first = self.mul(block, BLOCK)
            last = self.minimum(self.add(first, BLOCK), width)
            inner_first, inner_last = self._inside(first, last)
            with self.counted_loop(first, last, self._together) as position:
                end = self.add(position, self._together)
                inside = self.and_(
                    self.icmp_signed(">=", position, inner_first),
                    self.icmp_signed("<=", end, inner_last),
                )
                with self.if_else(inside) as (all_, some):
                    with all_:
                        self._several(row, position, self._together)
                    with some:
                        self._checked(row, position, self.sub(last, position), self._together)
        self.ret_void()

    def _checked(self, row: _Row, position: ir.Value, left: ir.Value, count: int) -> None:
        """The next `count` positions, or as few as are left: the fewer, the fewer at once."""
        fewer = count // 2
        if fewer < 2:
            self._several(row, position, count, left)
            return
        few = self.icmp_signed("<=", left, fewer)
        with self.if_else(few) as (some, all_):
            with some:
                self._checked(row, position, left, fewer)
            with all_:
                self._several(row, position, count, left)

    def _taps(
        self, first: ir.Value, extent: ir.Value, count: int, dilation: int
    ) -> tuple[ir.Value, ir.Value]:
        """The taps, from and to, that are inside an axis of `extent` if the first one, which may
        be outside, is at `first`."""
        zero = const(0)

        def until(distance: ir.Value) -> ir.Value:
            """Taps before a distance."""
            behind = self.add(self.maximum(distance, zero), dilation - 1)
            taps = self.udiv(behind, dilation) if dilation > 1 else behind
            return self.minimum(taps, count)

        low = until(self.neg(first))
        return low, self.maximum(until(self.sub(extent, first)), low)

    def _row(self, image: ir.Value, y: ir.Value, number: ir.Value) -> _Row:
        dim, kernel = self.dim, self._kernel
        top = self.mul(y, kernel.strides[0])
        top = self.sub(top, dim(Depthwise.BEGIN_Y))
        height = dim(Depthwise.HEIGHT)
        low, high = self._taps(top, height, kernel.window[0], kernel.dilations[0])
        top = self.add(top, self.mul(low, kernel.dilations[0]))
        x = self.at(self._x, self._bytes(Depthwise.X_OFFSET))
        x = self.at(x, image, self._bytes(Depthwise.X_IMAGE))
        x = self.at(x, top, self._bytes(Depthwise.X_ROW))
        out = self.at(self._out, self._bytes(Depthwise.OUT_OFFSET))
        out = self.at(out, image, self._bytes(Depthwise.OUT_IMAGE))
        out = self.at(out, y, self._bytes(Depthwise.OUT_ROW))
        taps = const(kernel.window[1] * kernel.group)
        line = self.mul(self._bytes(Depthwise.CHANNELS), taps)
        weight = self.at(self._weight, low, line)
        return _Row(x, weight, self.sub(high, low), out, number)

    def _inside(self, first: ir.Value, last: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The positions within first to last whose windows are inside x along the row."""
        dim, kernel = self.dim, self._kernel
        stride, begin = const(kernel.strides[1]), dim(Depthwise.BEGIN_X)
        low = self.add(self.maximum(begin, 0), self.sub(stride, 1))
        low = self.udiv(low, stride)
        reach = const((kernel.window[1] - 1) * kernel.dilations[1])
        room = self.sub(self.add(dim(Depthwise.WIDTH), begin), reach)
        room = self.maximum(room, 0)
        high = self.udiv(self.add(room, self.sub(stride, 1)), stride)
        low = self.minimum(self.maximum(low, first), last)
        return low, self.maximum(self.minimum(high, last), low)

    def _channels(self, body: Callable[[_Channels], None], checked: bool) -> None:
        """`body` for each vector of channels. Where loads are `checked` in any case, it is emitted
        once, if the ISA has masks."""
        lanes = self._lanes

        def vector(base: ir.Value, count: ir.Value | None) -> None:
            offset = self.mul(base, self._size)
            body(_Channels(offset, base, mask_of(self, count, lanes)))

        channels = self.dim(Depthwise.CHANNELS)
        if not checked or not self._isa.masked:
            by_vectors(self, const(0), channels, lanes, vector)
            return
        with self.counted_loop(0, channels, lanes) as base:
            vector(base, self.sub(channels, base))

    def _load(
        self, address: ir.Value, channels: _Channels, inside: ir.Value | None = None
    ) -> ir.Value:
        """`inside`: whether there is anything; nothing is read elsewhere."""
        mask = channels.mask
        address = self.at(address, channels.offset)
        there = None if inside is None else self.splat(inside, self._lanes)
        if there is not None:
            mask = there if mask is None else self.and_(mask, there)
        value = load_lanes(self, address, self._vector, self._size, mask)
        if there is None or self._kernel.reduction in (None, "sum"):
            return value
        return self.select(there, value, self._nothing)

    def _tap(self, address: ir.Value, channels: _Channels) -> ir.Value | None:
        """An element of the weight, if there is one."""
        return self._load(address, channels) if self._kernel.reduction is None else None

    def _gathered(self, element: ir.Value, tap: ir.Value | None, before: ir.Value) -> ir.Value:
        """The sum or the reduction so far with one more element of the window."""
        kind = self._kernel.reduction
        if kind is not None:
            return elements.combine(self, kind, before, element, self._kernel.dtype)
        return self._multiply_add(self, element, tap, before)

    def _several(
        self, row: _Row, position: ir.Value, count: int, live: ir.Value | None = None
    ) -> None:
        """`count` successive positions. `live`: how many of them exist, where not all do or windows
        may reach out of x along the row; None where neither is so."""
        kernel = self._kernel
        width, stride, dilation = kernel.window[1], kernel.strides[1], kernel.dilations[1]
        left = self.mul(position, stride)
        left = self.sub(left, self.dim(Depthwise.BEGIN_X))
        line = self.mul(self._bytes(Depthwise.X_ROW), kernel.dilations[0])
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
                    self._tap(self.at(weight, channel_bytes, f), channels) for f in range(factors)
                ]
                for offset in sorted(uses):
                    index = self.add(left, offset)
                    own = self._elements(x, index, channels, live is not None)
                    for number, tap in uses[offset]:
                        for factor, element in enumerate(own, tap * kernel.group):
                            sums[number] = self._gathered(element, taps[factor], sums[number])
                after = self.at(weight, channel_bytes, factors)
                return [self.at(x, line), after, *sums]

            values = [row.x, row.weight, *([self._nothing] * count)]
            sums = self.carried_loop(row.rows, values, window_row)[2:]
            self._finish(row, position, sums, channels, live)

        self._channels(vector, live is not None)

    def _elements(
        self, line: ir.Value, index: ir.Value, channels: _Channels, checked: bool
    ) -> list[ir.Value]:
        """What the channels of a vector are multiplied with at a pixel of a line of x: for each
        channel of a group, that of each channel's group. `checked`: nothing outside the line."""
        lanes, group = self._lanes, self._kernel.group
        place = self.mul(index, self._bytes(Depthwise.X_PIXEL))
        inside = None
        if checked:
            inside = self.icmp_unsigned("<", index, self.dim(Depthwise.WIDTH))
            place = self.select(inside, place, 0)
        place = self.at(line, place)
        if group > lanes:
            # All lanes are of one group.
            own = self.udiv(channels.first, group)
            place = self.at(place, own, group * self._size)
            return [self._repeated(place, number, inside) for number in range(group)]
        value = self._load(place, channels, inside)
        if group == 1:
            return [value]
        starts = [lane - lane % group for lane in range(lanes)]
        return [
            self.shuffle(value, value, [start + number for start in starts])
            for number in range(group)
        ]

    def _repeated(self, group: ir.Value, number: int, inside: ir.Value | None) -> ir.Value:
        """A channel of a group, in all lanes."""
        alone = ir.VectorType(self._vector.element, 1)
        place = self.at(group, number * self._size)
        if inside is None:
            value = self.load(place, typ=self._vector.element, align=self._size)
        else:
            loaded = load_lanes(self, place, alone, self._size, self.splat(inside, 1))
            value = self.extract_element(loaded, ir.Constant(I32, 0))
        return self.splat(value, self._lanes)

    def _finish(
        self, row: _Row, position: ir.Value, sums: Sequence[ir.Value], channels: _Channels,
        live: ir.Value | None,
    ) -> None:  # fmt: skip
        """The epilogue of successive positions, and the stores of those that exist."""
        for number, value in enumerate(sums):
            if live is None or not number:
                self._store(row, position, number, value, channels)
                continue
            with self.if_then(self.icmp_signed("<", const(number), live)):
                self._store(row, position, number, value, channels)

    def _store(
        self, row: _Row, position: ir.Value, number: int, value: ir.Value, channels: _Channels
    ) -> None:
        here = self.add(position, number)
        env = {ACCUMULATOR.name: value}
        for index, operand in enumerate(self._operands):
            at_dims = Depthwise.SIZE + 2 * index
            base = self.at(self._read[index], self._bytes(at_dims))
            if operand.kind != "column":
                rows = self.add(row.number, here)
                base = self.at(base, rows, self._bytes(at_dims + 1))
            if operand.kind == "row":
                scalar = self.load(base, typ=self._vector.element, align=self._size)
                env[operand.name] = self.splat(scalar, self._lanes)
            else:
                env[operand.name] = self._load(base, channels)
        result = elements.emit(self, self._kernel.epilogue, env, self._isa.fused)
        place = self.mul(here, self._bytes(Depthwise.OUT_PIXEL))
        place = self.at(self.at(row.out, place), channels.offset)
        store_lanes(self, result, place, self._size, channels.mask)
