"""Rows of states in the kernel of a recurrent layer, rounded to levels."""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.accumulators import across
from ftuner.codegen.llvm.ir.lanes import Range, VectorRows
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.core.dtype import INT16, UINT8, DType
from ftuner.core.frozen import dataclass
from ftuner.core.recurrence import ROUNDED, SCALE, ZERO
from ftuner.schedules.recurrence.cpu_kernel_levels import emit_levels
from ftuner.schedules.recurrence.step import HEAD_BYTES


@dataclass(frozen=True)
class RoundedStates:
    """The state of a batch as levels, once for each part of a team. Each part rounds all of it for
    itself, which takes less time than to wait for what the others round."""

    rows: VectorRows
    columns: Range
    """The elements of a row."""
    memory: ir.Value
    count: ir.Value
    """Rows of the batch."""
    stride: ir.Value
    """Bytes from a row of levels to the next."""
    dtype: DType
    """Of the levels in memory."""
    fused: bool

    def of(self, part: ir.Value) -> ir.Value:
        """The address of a part's levels. Its scale and its zero point are before them."""
        builder = self.rows.builder
        size = builder.add(builder.mul(self.count, self.stride), HEAD_BYTES)
        return builder.at(builder.at(self.memory, part, size), HEAD_BYTES)

    def parameters(self, part: ir.Value) -> dict[str, ir.Value]:
        """The addresses of the scale and the zero point of a part."""
        head = self.rows.builder.at(self.of(part), -HEAD_BYTES)
        return {"scale": head, "zero": self.rows.builder.at(head, self.rows.dtype.itemsize)}

    def round(self, state: Rows, bounds: Range, part: ir.Value) -> None:
        """Round a range of the rows of the state, which are all that the part has."""
        rows, builder = self.rows, self.rows.builder
        ends = {"low": "minimum", "high": "maximum"}
        found = {name: builder.variable(elements.zero(rows.vector), 64) for name in ends}
        with builder.counted_loop(*bounds) as row:
            source = builder.at(state.first, row, state.stride)

            def extend(offset: ir.Value, mask: ir.Value | None) -> None:
                value = rows.load(builder.at(source, offset), mask)
                for name, kind in ends.items():
                    before = builder.load(found[name], typ=rows.vector)
                    most = elements.combine(builder, kind, before, value, rows.dtype)
                    builder.store(most, found[name])

            rows.along(self.columns, extend)
        env = {
            name: across(builder, kind, builder.load(found[name], typ=rows.vector), rows.dtype)
            for name, kind in ends.items()
        }
        for name, expr in (("scale", SCALE), ("zero", ZERO)):
            env[name] = elements.emit(builder, expr, env, self.fused)
        places = self.parameters(part)
        for name, place in places.items():
            builder.store(env[name], place)
        env = {name: builder.splat(env[name], rows.lanes) for name in places}
        with builder.counted_loop(*bounds) as row:
            source = builder.at(state.first, row, state.stride)
            target = builder.at(self.of(part), row, self.stride)

            def rounded(offset: ir.Value, mask: ir.Value | None) -> None:
                given = {**env, "h": rows.load(builder.at(source, offset), mask)}
                value = elements.emit(builder, ROUNDED, given, self.fused)
                k = builder.udiv(offset, rows.dtype.itemsize)
                if self.dtype == UINT8:
                    value = elements.cast(builder, value, rows.dtype, UINT8)
                    builder.store(value, builder.at(target, k), align=1)
                elif self.dtype == INT16:
                    emit_levels(builder, value, target, k)
                else:
                    rows.store(value, builder.at(target, offset), mask)

            rows.along(self.columns, rounded)
