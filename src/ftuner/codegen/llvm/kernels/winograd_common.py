"""What the kernels of Winograd's products share: a worker's memory, vectors of channels, and the
epilogue."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import at, const, pointer_slot, scalar_type, slot, splat
from ftuner.codegen.llvm.ir.lanes import by_vectors, load_lanes, mask_of, store_lanes
from ftuner.codegen.llvm.ir.multiply_add import EMITTERS
from ftuner.codegen.llvm.kernels.panel_product import emit_covers, product_context
from ftuner.codegen.llvm.native.kernel_records import WinogradCommon
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr, operands


class WinogradEmission:
    """The state of the emission of one kernel, at the begin of its function."""

    def __init__(
        self, function: ir.Function, dtype: DType, epilogue: Expr, lanes: int, fused: bool,
        operands_slot: int,
    ) -> None:  # fmt: skip
        """`operands_slot`: the first slot of the distances between rows of operands."""
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._epilogue, self._lanes, self._fused = epilogue, lanes, fused
        self._multiply_add = EMITTERS["fused" if fused else "separate"]
        self._size = dtype.itemsize
        self._vector = ir.VectorType(scalar_type(dtype), lanes)
        buffers, self._dims, _, worker, self._begin, self._end = function.args
        self._operands, self._operands_slot = operands(epilogue), operands_slot
        self._x, *self._read, self._out = (
            pointer_slot(builder, buffers, i) for i in range(2 + len(self._operands))
        )
        own = pointer_slot(builder, self._dims, WinogradCommon.WORKSPACE)
        own = at(builder, own, builder.mul(worker, self._dim(WinogradCommon.WORKER_BYTES)))
        self._transformed = own
        """The transformed inputs of a task."""
        self._sums = at(builder, own, self._dim(WinogradCommon.SUMS_OFFSET))
        self._patch = at(builder, own, self._dim(WinogradCommon.PATCH_OFFSET))
        self._context = product_context(builder)

    def _dim(self, index: int) -> ir.Value:
        return slot(self._builder, self._dims, index)

    def _covers(self, rows: ir.Value) -> ir.Value:
        """The segments that cover some rows by full panels, and then by the last one."""
        slots = WinogradCommon.COVERS, WinogradCommon.TAIL_COVERS
        tables = [pointer_slot(self._builder, self._dims, index) for index in slots]
        return emit_covers(self._builder, tables, rows)

    def _number(self, value: float) -> ir.Constant:
        return elements.number(self._vector, value)

    def _by_vectors(
        self, count: ir.Value, body: Callable[[ir.Value, ir.Value | None], None]
    ) -> None:
        """`body(offset, mask)` for each vector of `count` elements: the bytes to it, and a mask
        for the last one."""
        builder, lanes = self._builder, self._lanes

        def vector(base: ir.Value, left: ir.Value | None) -> None:
            body(builder.mul(base, const(self._size)), mask_of(builder, left, lanes))

        by_vectors(builder, const(0), count, lanes, vector)

    def _load(self, place: ir.Value, mask: ir.Value | None) -> ir.Value:
        return load_lanes(self._builder, place, self._vector, self._size, mask)

    def _store(self, value: ir.Value, place: ir.Value, mask: ir.Value | None) -> None:
        store_lanes(self._builder, value, place, self._size, mask)

    def _added(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """`x * y + z`."""
        return self._multiply_add(self._builder, x, y, z)

    def _finished(
        self, value: ir.Value, position: ir.Value, offset: ir.Value, mask: ir.Value | None
    ) -> ir.Value:
        """The epilogue of a vector at an output position; `offset`: bytes to its first channel."""
        builder = self._builder
        env = {ACCUMULATOR.name: value}
        for index, operand in enumerate(self._operands):
            base = self._read[index]
            if operand.kind != "column":
                rows = builder.mul(position, self._dim(self._operands_slot + index))
                base = at(builder, base, rows)
            if operand.kind == "row":
                number = builder.load(base, typ=self._vector.element, align=self._size)
                env[operand.name] = splat(builder, number, self._lanes)
            else:
                env[operand.name] = self._load(at(builder, base, offset), mask)
        return elements.emit(builder, self._epilogue, env, self._fused)
