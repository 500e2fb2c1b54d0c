"""The largest or smallest elements of rows, in order, in LLVM IR.

A task is one row. Its elements go through a heap of those wanted, whose root is the worst one:
most are not better than that, and cost one comparison. The heap is then sorted in place.

`dims` holds the elements of a row, those wanted, the distance of elements, and the offset of the
first; `buffers` the operand, the elements found, and where they were.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I64, const, pointer_slot, reserve, slot
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType


def emit(module: ir.Module, symbol: str, dtype: DType, largest: bool) -> None:
    """Add the kernel to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    buffers, dims, _, _, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    operand, values, positions = (pointer_slot(builder, buffers, i) for i in range(3))
    count, wanted, step, offset = (slot(builder, dims, i) for i in range(4))
    element = elements.memory_type(dtype)

    def better(x: ir.Value, y: ir.Value) -> ir.Value:
        # NaN counts as larger than all numbers, as in NumPy's order.
        return elements.precedes(builder, x, y, dtype, largest, nan_first=largest)

    with counted_loop(builder, begin, end) as task:
        outer, inner = builder.udiv(task, step), builder.urem(task, step)
        row = builder.add(builder.mul(builder.mul(outer, count), step), inner)
        row = builder.gep(operand, [builder.add(row, offset)], source_etype=element)
        first = builder.add(builder.mul(builder.mul(outer, wanted), step), inner)
        kept = builder.gep(values, [first], source_etype=element)
        where = builder.gep(positions, [first], source_etype=I64)
        heap = _Heap(builder, kept, where, step, element, better)

        def read(index: ir.Value) -> ir.Value:
            place = builder.gep(row, [builder.mul(index, step)], source_etype=element)
            return builder.load(place, typ=element)

        with counted_loop(builder, 0, wanted) as index:
            heap.put(index, read(index), index)
        half = builder.udiv(wanted, const(2))
        with counted_loop(builder, 0, half) as number:
            node = builder.sub(builder.sub(half, const(1)), number)
            heap.sink(node, wanted, *heap.at(node))
        # No elements are wanted, so that there is none to compare with.
        looked = builder.select(builder.icmp_signed(">", wanted, const(0)), count, const(0))
        with counted_loop(builder, wanted, looked) as index:
            value = read(index)
            with builder.if_then(better(value, heap.at(const(0))[0]), likely=False):
                heap.sink(const(0), wanted, value, index)
        with counted_loop(builder, 1, wanted) as number:
            last = builder.sub(wanted, number)
            moved, worst = heap.at(last), heap.at(const(0))
            heap.put(last, *worst)
            heap.sink(const(0), last, *moved)
    builder.ret_void()


class _Heap:
    """Elements and their positions, none of which is better than those below it."""

    def __init__(
        self, builder: ir.IRBuilder, values: ir.Value, positions: ir.Value, step: ir.Value,
        element: ir.Type, better: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> None:  # fmt: skip
        self._builder, self._step, self._better = builder, step, better
        self._values, self._positions, self._element = values, positions, element

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
        at = reserve(builder, I64)
        builder.store(node, at)
        look, compare, move, done = (
            builder.append_basic_block(f"sink.{name}")
            for name in ("look", "compare", "move", "done")
        )
        builder.branch(look)
        builder.position_at_end(look)
        here = builder.load(at, typ=I64)
        left = builder.add(builder.shl(here, const(1)), const(1))
        builder.cbranch(builder.icmp_signed("<", left, count), compare, done)
        builder.position_at_end(compare)
        right = builder.add(left, const(1))
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
