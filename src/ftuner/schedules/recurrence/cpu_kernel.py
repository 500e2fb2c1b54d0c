"""One direction of a recurrent layer, all of its time steps, in LLVM IR.

A task is a block of sequences, or one of a team that share each step of all sequences by columns of
the weight. Each step multiplies the state by the recurrent weight, panel by panel, with the
uKernels of a cover, and then computes the cell's expressions row by row (`core.recurrence`). The
sums and the planes of a block stay in the caches from step to step, as does a member's part of the
weight. Where a member multiplies all that its elements need, both are one phase of the team: the
new state goes to a plane of its own, because others still multiply the old one.

`buffers` holds the views of `RecurrenceStep`, then the memory of sums and planes, and that of the
panels if the weight is packed here; `dims` the slots of `cpu_record.Recurrence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import (
    I1,
    I32,
    I64,
    at,
    call_address,
    const,
    maximum,
    minimum,
    pointer_slot,
    scalar_type,
    set_slot,
    slot,
    splat,
    variable,
)
from ftuner.codegen.llvm.ir.lanes import VectorRows, load_lanes
from ftuner.codegen.llvm.ir.loops import Rows, counted_loop, partition_bounds
from ftuner.codegen.llvm.kernels.pack import PACK_TYPE
from ftuner.codegen.llvm.kernels.step import (
    COVER_BYTES,
    STEP_KERNEL_TYPE,
    emit_covers,
    emit_panel,
    fail,
    product_context,
)
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Context, LevelPanel
from ftuner.codegen.llvm.native.waiting import Team
from ftuner.core.dtype import INT16, UINT8, UINT8X4, DType
from ftuner.core.expr import operands
from ftuner.core.recurrence import Cell, Stage
from ftuner.hardware.tuning import NativeTuning
from ftuner.schedules.recurrence.cpu_kernel_levels import emit_level_panel, whole
from ftuner.schedules.recurrence.cpu_kernel_states import RoundedStates
from ftuner.schedules.recurrence.cpu_record import Recurrence
from ftuner.schedules.recurrence.step import PANEL_COLUMNS, ROW_LEVELS

LENGTH_BYTES = 4
WRONG_LENGTH = 1
"""The status of a sequence that is longer than the data, or of a negative length."""


def emit(
    module: ir.Module, symbol: str, dtype: DType, cell: Cell, packs: bool, multiplied: DType,
    lanes: int, fused: bool, tuning: NativeTuning,
) -> None:  # fmt: skip
    """Add the kernel of a cell to a module. `packs`: whether it packs the weight. `multiplied`: the
    dtype of the rows of products: `dtype`, or of levels by those of the weight, UINT8 for uKernels,
    INT16 for `cpu_kernel_levels`."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    _Emission(function, dtype, cell, packs, multiplied, lanes, fused).emit(tuning)


class _Emission:
    def __init__(
        self, function: ir.Function, dtype: DType, cell: Cell, packs: bool, multiplied: DType,
        lanes: int, fused: bool,
    ) -> None:  # fmt: skip
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._cell, self._multiplied, self._lanes, self._fused = cell, multiplied, lanes, fused
        self._levels = multiplied == INT16
        self._dtype, self._size = dtype, dtype.itemsize
        buffers, self._dims, self._status, _, self._begin, self._end = function.args
        names = ["x"]
        names += [f"first {state}" for state in cell.states] if cell.initial else []
        names += ["columns"] if cell.columns else []
        names += ["lengths"] if cell.lengths else []
        names += ["weight"] if packs else []
        names += ["y", *(f"last {state}" for state in cell.states), "memory"]
        names += ["panels"] if packs else []
        self._buffers = {n: pointer_slot(builder, buffers, i) for i, n in enumerate(names)}
        self._hidden, self._rows = self._dim(Recurrence.HIDDEN), self._dim(Recurrence.ROWS)
        self._vectors = VectorRows(builder, dtype, lanes)
        self._whole = const(0), self._hidden
        self._width = builder.mul(self._hidden, const(len(cell.gates)))
        self._row_bytes = builder.mul(self._hidden, const(self._size))
        columns = whole(builder, self._width, PANEL_COLUMNS) if cell.rounds else self._width
        self._sum_bytes = builder.mul(columns, const(self._size))
        plane_bytes = builder.mul(self._rows, self._row_bytes)
        first = at(builder, self._buffers["memory"], builder.mul(self._rows, self._sum_bytes))
        self._planes = {
            plane: at(builder, first, builder.mul(plane_bytes, const(number)))
            for number, plane in enumerate(cell.planes)
        }
        spare = at(builder, first, builder.mul(plane_bytes, const(len(cell.planes))))
        each = self._dim(Recurrence.GATE_PANELS)
        self._by_gates = builder.icmp_signed(">", each, const(0))
        once = self._by_gates if cell.one_phase else ir.Constant(I1, 0)
        self._phases = builder.select(once, const(1), const(2))
        self._old, self._new = self._planes["h"], builder.select(once, spare, self._planes["h"])
        self._a_stride, self._k = self._row_bytes, self._hidden
        if cell.rounds:
            columns = whole(builder, self._hidden, ROW_LEVELS)
            self._a_stride = builder.mul(columns, const(multiplied.itemsize))
            self._rounded = RoundedStates(
                self._vectors, self._whole, at(builder, spare, plane_bytes), self._rows,
                self._a_stride, multiplied, fused,
            )  # fmt: skip
        if multiplied == UINT8:
            numbers = UINT8X4.numbers
            self._k = builder.udiv(whole(builder, self._hidden, numbers), const(numbers))
        self._context = product_context(builder)
        if packs:
            self._weight = self._buffers["panels"]
            self._pack()
        else:
            self._weight = pointer_slot(builder, self._dims, Recurrence.WEIGHT)

    def _dim(self, index: int) -> ir.Value:
        return slot(self._builder, self._dims, index)

    def emit(self, tuning: NativeTuning) -> None:
        builder, cell = self._builder, self._cell
        steps, block = self._dim(Recurrence.STEPS), self._dim(Recurrence.BLOCK)
        size = self._dim(Recurrence.TEAM)
        is_team = builder.icmp_signed(">", size, const(1))
        state = at(builder, self._dims, Recurrence.TEAM_STATE * SLOT_BYTES)
        set_slot(builder, self._context, Context.A_STRIDE, self._a_stride)
        set_slot(builder, self._context, Context.C_ROW_STRIDE, self._sum_bytes)
        with counted_loop(builder, self._begin, self._end) as task:
            first = builder.select(is_team, const(0), builder.mul(task, block))
            left = builder.sub(self._rows, first)
            rows = minimum(builder, left, block)
            end = builder.add(first, rows)
            slots = () if self._levels else (Recurrence.COVERS, Recurrence.TAIL_COVERS)
            tables = [pointer_slot(builder, self._dims, index) for index in slots]
            covers = emit_covers(builder, tables, rows)
            rank = builder.select(is_team, task, const(0))
            team = Team(builder, state, size, rank, tuning)
            longest = self._longest(first, end)
            with team.phase() as part, self._only_first(part):
                self._begun(first, end)
            with counted_loop(builder, 0, steps) as number:
                step = number
                if cell.reverse:
                    step = builder.sub(builder.sub(steps, const(1)), number)
                some = builder.icmp_signed("<", step, longest)
                odd = builder.trunc(number, I1)
                self._planes["h"] = builder.select(odd, self._new, self._old)
                self._next = builder.select(odd, self._old, self._new)
                for stage in cell.stages():
                    last = builder.sub(self._phases, const(1))
                    with counted_loop(builder, 0, self._phases) as phase, team.phase() as part:
                        begins = builder.icmp_signed("==", phase, const(0))
                        with builder.if_then(builder.and_(begins, some)):
                            if cell.rounds:
                                state = Rows(self._planes["h"], self._row_bytes)
                                self._rounded.round(state, (first, end), part)
                            self._product(stage, first, covers, (size, part))
                        with builder.if_then(builder.icmp_signed("==", phase, last)):
                            self._elements(stage, first, end, step, (size, part))
            self._planes["h"] = builder.select(builder.trunc(steps, I1), self._new, self._old)
            with team.phase() as part, self._only_first(part):
                self._ended(first, end)
            team.leave()
        builder.ret_void()

    def _only_first(self, part: ir.Value) -> AbstractContextManager[ir.Block]:
        """What one part does for the team."""
        builder = self._builder
        branch: AbstractContextManager[ir.Block] = builder.if_then(
            builder.icmp_signed("==", part, const(0))
        )
        return branch

    # Rows and their elements.

    def _row(self, plane: str, row: ir.Value) -> ir.Value:
        builder = self._builder
        return at(builder, self._planes[plane], builder.mul(row, self._row_bytes))

    def _length(self, row: ir.Value) -> ir.Value:
        builder = self._builder
        place = at(builder, self._buffers["lengths"], builder.mul(row, const(LENGTH_BYTES)))
        return builder.sext(builder.load(place, typ=I32, align=LENGTH_BYTES), I64)

    # The begin and the end of sequences.

    def _longest(self, first: ir.Value, end: ir.Value) -> ir.Value:
        """The longest length of the sequences of a block, which are checked."""
        builder, steps = self._builder, self._dim(Recurrence.STEPS)
        if not self._cell.lengths:
            return steps
        longest = variable(builder, const(0))
        with counted_loop(builder, first, end) as row:
            length = self._length(row)
            # Negative lengths are large unsigned ones.
            wrong = builder.icmp_unsigned(">", length, steps)
            with builder.if_then(wrong, likely=False):
                fail(builder, self._status, WRONG_LENGTH, wrong, length, steps)
            builder.store(maximum(builder, length, builder.load(longest, typ=I64)), longest)
        return minimum(builder, builder.load(longest, typ=I64), steps)

    def _begun(self, first: ir.Value, end: ir.Value) -> None:
        """Set the states of rows to the first ones."""
        builder, cell = self._builder, self._cell
        with counted_loop(builder, first, end) as row:
            # Rows beyond the end of a sequence are multiplied as well, whatever they hold.
            for plane in cell.planes:
                if plane not in cell.states or not cell.initial:
                    self._vectors.clear(self._whole, self._row(plane, row))
            if cell.initial and cell.lengths:
                empty = builder.icmp_signed("==", self._length(row), const(0))
                with builder.if_else(empty) as (without, given):
                    with without:
                        for state in cell.states:
                            self._vectors.clear(self._whole, self._row(state, row))
                    with given:
                        self._take_first(row)
            elif cell.initial:
                self._take_first(row)

    def _take_first(self, row: ir.Value) -> None:
        builder = self._builder
        for state in self._cell.states:
            given = self._buffers[f"first {state}"]
            source = at(builder, given, builder.mul(row, self._row_bytes))
            self._vectors.copy(self._whole, source, self._row(state, row))

    def _ended(self, first: ir.Value, end: ir.Value) -> None:
        """Give the states after the last step."""
        builder = self._builder
        strides = {"h": self._dim(Recurrence.H_ROW), "c": self._dim(Recurrence.C_ROW)}
        with counted_loop(builder, first, end) as row:
            for state in self._cell.states:
                target = self._buffers[f"last {state}"]
                target = at(builder, target, builder.mul(row, strides[state]))
                self._vectors.copy(self._whole, self._row(state, row), target)

    # Products.

    def _panel_counts(self) -> tuple[ir.Value, ir.Value]:
        """Full panels of the weight, and the columns that are left over."""
        builder, nr = self._builder, self._dim(Recurrence.PANEL)
        return builder.udiv(self._width, nr), builder.urem(self._width, nr)

    def _panel(self, number: ir.Value) -> ir.Value:
        builder = self._builder
        columns = builder.mul(number, self._dim(Recurrence.PANEL))
        column_bytes = builder.mul(self._k, const(self._size))
        return at(builder, self._weight, builder.mul(columns, column_bytes))

    def _pack(self) -> None:
        """Pack the weight, of which the elements of one column are contiguous."""
        builder, nr = self._builder, self._dim(Recurrence.PANEL)
        function = pointer_slot(builder, self._dims, Recurrence.PACK)
        full, left = self._panel_counts()

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            columns = builder.mul(number, nr)
            source = at(builder, self._buffers["weight"], builder.mul(columns, self._row_bytes))
            call_address(builder, PACK_TYPE, function,
                         [source, const(self._size), self._row_bytes, self._panel(number),
                          self._hidden, width, stored])  # fmt: skip

        with counted_loop(builder, 0, full) as number:
            panel(number, nr, nr)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            panel(full, left, self._dim(Recurrence.TAIL))

    def _product(
        self, stage: Stage, first: ir.Value, covers: ir.Value, share: tuple[ir.Value, ir.Value]
    ) -> None:
        """Multiply the rows of a block by a part of the panels that have columns of the stage's
        gates; `share`: the number of parts, and the part. What else these panels have is computed
        as well: the sums of gates that are not read any more, or not yet."""
        builder, nr = self._builder, self._dim(Recurrence.PANEL)
        full, left = self._panel_counts()
        begin, end = (builder.mul(self._hidden, const(gate)) for gate in stage.gates)
        first_panel = builder.udiv(begin, nr)
        end_panel = builder.udiv(builder.add(end, builder.sub(nr, const(1))), nr)
        if self._levels:
            # The last panel is as wide as the others.
            full = end_panel
        if self._cell.rounds:
            a = at(builder, self._rounded.of(share[1]), builder.mul(first, self._a_stride))
        else:
            a = self._row(stage.multiplied, first)
        sums = at(builder, self._buffers["memory"], builder.mul(first, self._sum_bytes))

        def panel(number: ir.Value, width: ir.Value, cover: ir.Value) -> None:
            if self._levels:
                panel_bytes = builder.mul(nr, whole(builder, self._hidden, LevelPanel.STEPS))
                weight = at(builder, self._weight, builder.mul(number, panel_bytes))
                column = builder.mul(number, builder.mul(nr, const(self._size)))
                c = at(builder, sums, column), self._sum_bytes
                rows = Rows(a, self._a_stride)
                emit_level_panel(builder, self._rows, self._hidden, rows, weight, c, self._lanes)
                return
            set_slot(builder, self._context, Context.VALID_COLUMNS, width)
            column = builder.mul(builder.mul(number, nr), const(self._size))
            rows, b = Rows(a, self._a_stride), self._panel(number)
            made = Rows(at(builder, sums, column), self._sum_bytes)
            emit_panel(builder, self._context, cover, rows, b, made, self._k)

        each, by_gates = self._dim(Recurrence.GATE_PANELS), self._by_gates
        gates = builder.select(by_gates, const(stage.gates[1] - stage.gates[0]), const(1))
        each = builder.select(by_gates, each, builder.sub(end_panel, first_panel))
        with counted_loop(builder, 0, gates) as gate:
            base = builder.add(first_panel, builder.mul(gate, each))
            bounds = partition_bounds(builder, each, *share)
            begin, end = (builder.add(base, bound) for bound in bounds)
            with counted_loop(builder, begin, minimum(builder, end, full)) as number:
                panel(number, nr, covers)
            if not self._levels:
                some = builder.icmp_signed(">", end, maximum(builder, begin, full))
                with builder.if_then(some):
                    panel(full, left, at(builder, covers, const(COVER_BYTES)))

    # Elements.

    def _columns(self, share: tuple[ir.Value, ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The range of the hidden elements of a part: those of its panels, or whole vectors."""
        builder = self._builder
        unit = builder.select(self._by_gates, self._dim(Recurrence.PANEL), const(self._lanes))
        units = builder.udiv(builder.add(self._hidden, builder.sub(unit, const(1))), unit)
        begin, end = (builder.mul(n, unit) for n in partition_bounds(builder, units, *share))
        return begin, minimum(builder, end, self._hidden)

    def _elements(
        self, stage: Stage, first: ir.Value, end: ir.Value, step: ir.Value,
        share: tuple[ir.Value, ir.Value],
    ) -> None:  # fmt: skip
        """A part of the results of a stage for all rows that have the step; beyond their end, y is
        zero."""
        builder, cell = self._builder, self._cell
        bounds = self._columns(share)
        parameters = {}
        if cell.rounds:
            places = self._rounded.parameters(share[1]).items()
            parameters = {n: builder.load(p, typ=scalar_type(self._dtype)) for n, p in places}
        gives_y = any(plane == "h" for plane, _ in stage.results)
        x_step = at(builder, self._buffers["x"], builder.mul(step, self._dim(Recurrence.X_STEP)))
        y_step = at(builder, self._buffers["y"], builder.mul(step, self._dim(Recurrence.Y_STEP)))
        with counted_loop(builder, first, end) as row:
            x = at(builder, x_step, builder.mul(row, self._dim(Recurrence.X_ROW)))
            y = at(builder, y_step, builder.mul(row, self._dim(Recurrence.Y_ROW)))
            with ExitStack() as branches:
                if cell.lengths:
                    valid = builder.icmp_signed("<", step, self._length(row))
                    if gives_y:
                        with builder.if_then(builder.not_(valid)):
                            self._vectors.clear(bounds, y)
                    branches.enter_context(builder.if_then(valid))
                self._row_elements(stage, row, x, y, bounds, parameters)

    def _row_elements(
        self, stage: Stage, row: ir.Value, x: ir.Value, y: ir.Value,
        bounds: tuple[ir.Value, ir.Value], parameters: Mapping[str, ir.Value],
    ) -> None:  # fmt: skip
        builder, cell = self._builder, self._cell
        sums = at(builder, self._buffers["memory"], builder.mul(row, self._sum_bytes))
        places = {plane: self._row(plane, row) for plane in cell.planes}
        following = at(builder, self._next, builder.mul(row, self._row_bytes))
        for number, gate in enumerate(cell.gates):
            offset = builder.mul(self._row_bytes, const(number))
            places[f"x_{gate}"] = at(builder, x, offset)
            places[f"s_{gate}"] = at(builder, sums, offset)
        for number, name in enumerate(cell.columns):
            offset = builder.mul(self._row_bytes, const(number))
            places[name] = at(builder, self._buffers["columns"], offset)

        def vector(offset: ir.Value, mask: ir.Value | None, lanes: int) -> None:
            type_ = ir.VectorType(scalar_type(self._dtype), lanes)
            env: dict[str, ir.Value] = {}
            for plane, expr in stage.results:
                for operand in operands(expr):
                    if operand.name in env:
                        continue
                    if operand.kind == "row":
                        env[operand.name] = splat(builder, parameters[operand.name], lanes)
                    else:
                        place = at(builder, places[operand.name], offset)
                        env[operand.name] = load_lanes(builder, place, type_, self._size, mask)
                value = elements.emit(builder, expr, env, self._fused)
                env[plane] = value
                target = following if plane == "h" else places[plane]
                self._vectors.store(value, at(builder, target, offset), mask)
                if plane == "h":
                    self._vectors.store(value, at(builder, y, offset), mask)

        # Each instruction waits for the one before: two vectors take less than twice as long.
        begin, end = bounds
        pair = 2 * self._lanes
        pairs = builder.and_(builder.sub(end, begin), const(-pair))
        middle = builder.add(begin, pairs)
        with counted_loop(builder, begin, middle, pair) as base:
            vector(builder.mul(base, const(self._size)), None, pair)
        self._vectors.along((middle, end), lambda place, mask: vector(place, mask, self._lanes))
