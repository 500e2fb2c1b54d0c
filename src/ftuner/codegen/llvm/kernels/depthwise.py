"""Windows of single channels, channels last, in LLVM IR: depthwise convolutions and pooling.

A task is `BLOCK` positions of one row of the result, with all channels. Positions whose windows lie
within the operand along the row are computed several at once: an element that several windows read
is loaded once. The other positions are computed one by one. Vectors lie along channels.

`buffers` holds x, the weight if there is one, the operands of the epilogue, and the result; `dims`
the slots of `DepthwiseDims`, then an offset and a distance of rows for each operand of the
epilogue, in elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import (
    at,
    const,
    lanes_below,
    masked_load,
    masked_store,
    pointer_slot,
    scalar_type,
    slot,
    splat,
)
from ftuner.codegen.llvm.ir.loops import carried_loop, counted_loop
from ftuner.codegen.llvm.ir.multiply_add import EMITTERS
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.cpu.windows import BLOCK, DepthwiseDims, DepthwiseKernel
from ftuner.core.expr import ACCUMULATOR, operands


def emit(
    module: ir.Module, symbol: str, kernel: DepthwiseKernel, lanes: int, registers: int,
    fused: bool,
) -> None:  # fmt: skip
    """Add the kernel to a module. `registers`: vector registers of the ISA."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    _Emission(builder, function, kernel, lanes, registers, fused).emit()
    builder.ret_void()


@dataclass(frozen=True)
class _Row:
    """The part of a task that all its positions share."""

    x: ir.Value
    """The first element that the first row of the windows reads, were the row not padded."""
    weight: ir.Value
    """Of the first row of the windows that lies within x."""
    rows: ir.Value
    """Rows of the windows that lie within x."""
    out: ir.Value
    number: ir.Value
    """The number of the row's first position among all positions."""


@dataclass(frozen=True)
class _Channels:
    """A vector of channels: bytes to the first one, and a mask if some do not exist."""

    offset: ir.Value
    mask: ir.Value | None


class _Emission:
    def __init__(
        self, builder: ir.IRBuilder, function: ir.Function, kernel: DepthwiseKernel, lanes: int,
        registers: int, fused: bool,
    ) -> None:  # fmt: skip
        self._builder, self._kernel, self._fused = builder, kernel, fused
        self._multiply_add = EMITTERS["fused" if fused else "separate"]
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
        self._dims = [slot(builder, dims, i) for i in range(DepthwiseDims.SIZE + 2 * count)]
        self._together = kernel.together(registers)

    def _dim(self, number: int) -> ir.Value:
        return self._dims[number]

    def _bytes(self, number: int) -> ir.Value:
        """A dim that counts elements, in bytes."""
        return self._builder.mul(self._dims[number], const(self._size))

    def emit(self) -> None:
        builder, dim = self._builder, self._dim
        width = dim(DepthwiseDims.OUT_WIDTH)
        blocks = builder.udiv(builder.add(width, const(BLOCK - 1)), const(BLOCK))
        with counted_loop(builder, self._begin, self._end) as task:
            line, block = builder.udiv(task, blocks), builder.urem(task, blocks)
            height = dim(DepthwiseDims.OUT_HEIGHT)
            image, y = builder.udiv(line, height), builder.urem(line, height)
            row = self._row(image, y, builder.mul(line, width))
            first = builder.mul(block, const(BLOCK))
            last = self._least(builder.add(first, const(BLOCK)), width)
            inner_first, inner_last = self._inside(first, last)
            with counted_loop(builder, first, inner_first) as position:
                self._one(row, position)
            count = builder.sub(inner_last, inner_first)
            whole = builder.sub(count, builder.srem(count, const(self._together)))
            middle = builder.add(inner_first, whole)
            with counted_loop(builder, inner_first, middle, self._together) as position:
                self._several(row, position, self._together)
            with counted_loop(builder, middle, inner_last) as position:
                self._several(row, position, 1)
            with counted_loop(builder, inner_last, last) as position:
                self._one(row, position)

    def _least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._builder.select(self._builder.icmp_signed("<", x, y), x, y)

    def _most(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._builder.select(self._builder.icmp_signed(">", x, y), x, y)

    def _taps(
        self, first: ir.Value, extent: ir.Value, count: int, dilation: int
    ) -> tuple[ir.Value, ir.Value]:
        """The taps, from and to, that lie within an axis of `extent` if the first one, which may
        lie outside, is at `first`."""
        builder, zero = self._builder, const(0)

        def until(distance: ir.Value) -> ir.Value:
            """Taps before a distance."""
            behind = builder.add(self._most(distance, zero), const(dilation - 1))
            taps = builder.udiv(behind, const(dilation)) if dilation > 1 else behind
            return self._least(taps, const(count))

        low = until(builder.neg(first))
        return low, self._most(until(builder.sub(extent, first)), low)

    def _row(self, image: ir.Value, y: ir.Value, number: ir.Value) -> _Row:
        builder, dim, kernel = self._builder, self._dim, self._kernel
        top = builder.mul(y, const(kernel.strides[0]))
        top = builder.sub(top, dim(DepthwiseDims.BEGIN_Y))
        height = dim(DepthwiseDims.HEIGHT)
        low, high = self._taps(top, height, kernel.window[0], kernel.dilations[0])
        top = builder.add(top, builder.mul(low, const(kernel.dilations[0])))
        x = at(builder, self._x, self._bytes(DepthwiseDims.X_OFFSET))
        x = at(builder, x, builder.mul(image, self._bytes(DepthwiseDims.X_IMAGE)))
        x = at(builder, x, builder.mul(top, self._bytes(DepthwiseDims.X_ROW)))
        out = at(builder, self._out, self._bytes(DepthwiseDims.OUT_OFFSET))
        out = at(builder, out, builder.mul(image, self._bytes(DepthwiseDims.OUT_IMAGE)))
        out = at(builder, out, builder.mul(y, self._bytes(DepthwiseDims.OUT_ROW)))
        line = builder.mul(self._bytes(DepthwiseDims.CHANNELS), const(kernel.window[1]))
        weight = at(builder, self._weight, builder.mul(low, line))
        return _Row(x, weight, builder.sub(high, low), out, number)

    def _inside(self, first: ir.Value, last: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The positions within first to last whose windows lie within x along the row."""
        builder, dim, kernel = self._builder, self._dim, self._kernel
        stride, begin = const(kernel.strides[1]), dim(DepthwiseDims.BEGIN_X)
        low = builder.add(self._most(begin, const(0)), builder.sub(stride, const(1)))
        low = builder.udiv(low, stride)
        reach = const((kernel.window[1] - 1) * kernel.dilations[1])
        room = builder.sub(builder.add(dim(DepthwiseDims.WIDTH), begin), reach)
        room = self._most(room, const(0))
        high = builder.udiv(builder.add(room, builder.sub(stride, const(1))), stride)
        low = self._least(self._most(low, first), last)
        return low, self._most(self._least(high, last), low)

    def _channels(self, body: Callable[[_Channels], None]) -> None:
        """`body` for each vector of channels."""
        builder, lanes = self._builder, self._lanes
        channels = self._dim(DepthwiseDims.CHANNELS)
        whole = builder.and_(channels, const(-lanes))
        with counted_loop(builder, 0, whole, lanes) as channel:
            body(_Channels(builder.mul(channel, const(self._size)), None))
        left = builder.sub(channels, whole)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            mask = lanes_below(builder, left, lanes)
            body(_Channels(builder.mul(whole, const(self._size)), mask))

    def _load(self, address: ir.Value, channels: _Channels) -> ir.Value:
        address = at(self._builder, address, channels.offset)
        if channels.mask is None:
            return self._builder.load(address, typ=self._vector, align=self._size)
        return masked_load(self._builder, address, self._vector, self._size, channels.mask)

    def _tap(self, address: ir.Value, channels: _Channels) -> ir.Value | None:
        """An element of the weight, if there is one."""
        return self._load(address, channels) if self._kernel.reduction is None else None

    def _gathered(self, element: ir.Value, tap: ir.Value | None, before: ir.Value) -> ir.Value:
        """The sum or the reduction so far with one more element of the window."""
        kind = self._kernel.reduction
        if kind is not None:
            return elements.combine(self._builder, kind, before, element, self._kernel.dtype)
        return self._multiply_add(self._builder, element, tap, before)

    def _several(self, row: _Row, position: ir.Value, count: int) -> None:
        """Positions whose windows lie within x along the row."""
        builder, kernel = self._builder, self._kernel
        width, stride, dilation = kernel.window[1], kernel.strides[1], kernel.dilations[1]
        pixel = self._bytes(DepthwiseDims.X_PIXEL)
        left = builder.mul(position, const(stride))
        left = builder.sub(left, self._dim(DepthwiseDims.BEGIN_X))
        first = at(builder, row.x, builder.mul(left, pixel))
        line = builder.mul(self._bytes(DepthwiseDims.X_ROW), const(kernel.dilations[0]))
        channel_bytes = self._bytes(DepthwiseDims.CHANNELS)
        uses: dict[int, list[tuple[int, int]]] = {}
        for number in range(count):
            for tap in range(width):
                uses.setdefault(number * stride + tap * dilation, []).append((number, tap))

        def vector(channels: _Channels) -> None:
            def window_row(values: list[ir.Value]) -> list[ir.Value]:
                x, weight, *sums = values
                taps = [
                    self._tap(at(builder, weight, builder.mul(channel_bytes, const(t))), channels)
                    for t in range(width)
                ]
                for offset in sorted(uses):
                    place = at(builder, x, builder.mul(pixel, const(offset)))
                    element = self._load(place, channels)
                    for number, tap in uses[offset]:
                        sums[number] = self._gathered(element, taps[tap], sums[number])
                after = at(builder, weight, builder.mul(channel_bytes, const(width)))
                return [at(builder, x, line), after, *sums]

            values = [first, row.weight, *([self._nothing] * count)]
            sums = carried_loop(builder, row.rows, values, window_row)[2:]
            self._finish(row, position, sums, channels)

        self._channels(vector)

    def _one(self, row: _Row, position: ir.Value) -> None:
        """A position whose window may lie partly outside x."""
        builder, kernel = self._builder, self._kernel
        width, dilation = kernel.window[1], kernel.dilations[1]
        left = builder.mul(position, const(kernel.strides[1]))
        left = builder.sub(left, self._dim(DepthwiseDims.BEGIN_X))
        low, high = self._taps(left, self._dim(DepthwiseDims.WIDTH), width, dilation)
        pixel = self._bytes(DepthwiseDims.X_PIXEL)
        channel_bytes = self._bytes(DepthwiseDims.CHANNELS)
        left = builder.add(left, builder.mul(low, const(dilation)))
        first = at(builder, row.x, builder.mul(left, pixel))
        weights = at(builder, row.weight, builder.mul(low, channel_bytes))
        line = builder.mul(self._bytes(DepthwiseDims.X_ROW), const(kernel.dilations[0]))
        step = builder.mul(pixel, const(dilation))
        count = builder.sub(high, low)

        def vector(channels: _Channels) -> None:
            def window_row(values: list[ir.Value]) -> list[ir.Value]:
                x, weight, total = values

                def tap(inner: list[ir.Value]) -> list[ir.Value]:
                    place, factor, before = inner
                    tap_weight = self._tap(factor, channels)
                    after = self._gathered(self._load(place, channels), tap_weight, before)
                    return [at(builder, place, step), at(builder, factor, channel_bytes), after]

                total = carried_loop(builder, count, [x, weight, total], tap)[2]
                after = at(builder, weight, builder.mul(channel_bytes, const(width)))
                return [at(builder, x, line), after, total]

            values = [first, weights, self._nothing]
            total = carried_loop(builder, row.rows, values, window_row)[2]
            self._finish(row, position, [total], channels)

        self._channels(vector)

    def _finish(
        self, row: _Row, position: ir.Value, sums: Sequence[ir.Value], channels: _Channels
    ) -> None:
        """The epilogue of successive positions, and their stores."""
        builder = self._builder
        pixel = self._bytes(DepthwiseDims.OUT_PIXEL)
        for number, value in enumerate(sums):
            here = builder.add(position, const(number))
            env = {ACCUMULATOR.name: value}
            for index, operand in enumerate(self._operands):
                at_dims = DepthwiseDims.SIZE + 2 * index
                base = at(builder, self._read[index], self._bytes(at_dims))
                if operand.kind != "column":
                    rows = builder.add(row.number, here)
                    base = at(builder, base, builder.mul(rows, self._bytes(at_dims + 1)))
                if operand.kind == "row":
                    scalar = builder.load(base, typ=self._vector.element, align=self._size)
                    env[operand.name] = splat(builder, scalar, self._lanes)
                else:
                    env[operand.name] = self._load(base, channels)
            result = elements.emit(builder, self._kernel.epilogue, env, self._fused)
            place = at(builder, row.out, builder.mul(here, pixel))
            place = at(builder, place, channels.offset)
            if channels.mask is None:
                builder.store(result, place, align=self._size)
            else:
                masked_store(builder, result, place, self._size, channels.mask)
