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
from ftuner.codegen.llvm.ir.builder import I1, I32, I64, const, scalar_type
from ftuner.codegen.llvm.ir.lanes import VectorRows, load_lanes
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.kernels.pack import PACK_TYPE
from ftuner.codegen.llvm.kernels.step import COVER_BYTES, ProductKernel, fail
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
    _Emission(module, symbol, dtype, cell, packs, multiplied, lanes, fused).emit(tuning)


class _Emission(ProductKernel):
    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, cell: Cell, packs: bool,
        multiplied: DType, lanes: int, fused: bool,
    ) -> None:  # fmt: skip
        super().__init__(module, symbol)
        self._cell, self._multiplied, self._lanes, self._fused = cell, multiplied, lanes, fused
        self._levels = multiplied == INT16
        self._dtype, self._size = dtype, dtype.itemsize
        names = ["x"]
        names += [f"first {state}" for state in cell.states] if cell.initial else []
        names += ["columns"] if cell.columns else []
        names += ["lengths"] if cell.lengths else []
        names += ["weight"] if packs else []
        names += ["y", *(f"last {state}" for state in cell.states), "memory"]
        names += ["panels"] if packs else []
        self._buffers = {n: self.pointer_slot(self.buffers, i) for i, n in enumerate(names)}
        self._hidden, self._rows = self.dim(Recurrence.HIDDEN), self.dim(Recurrence.ROWS)
        self._vectors = VectorRows(self, dtype, lanes)
        self._whole = const(0), self._hidden
        self._width = self.mul(self._hidden, len(cell.gates))
        self._row_bytes = self.mul(self._hidden, self._size)
        columns = whole(self, self._width, PANEL_COLUMNS) if cell.rounds else self._width
        self._sum_bytes = self.mul(columns, self._size)
        plane_bytes = self.mul(self._rows, self._row_bytes)
        first = self.at(self._buffers["memory"], self._rows, self._sum_bytes)
        self._planes = {
            plane: self.at(first, plane_bytes, number) for number, plane in enumerate(cell.planes)
        }
        spare = self.at(first, plane_bytes, len(cell.planes))
        each = self.dim(Recurrence.GATE_PANELS)
        self._by_gates = self.icmp_signed(">", each, 0)
        once = self._by_gates if cell.one_phase else ir.Constant(I1, 0)
        self._phases = self.select(once, 1, 2)
        self._old, self._new = self._planes["h"], self.select(once, spare, self._planes["h"])
        self._a_stride, self._k = self._row_bytes, self._hidden
        if cell.rounds:
            columns = whole(self, self._hidden, ROW_LEVELS)
            self._a_stride = self.mul(columns, multiplied.itemsize)
            self._rounded = RoundedStates(
                self._vectors, self._whole, self.at(spare, plane_bytes), self._rows,
                self._a_stride, multiplied, fused,
            )  # fmt: skip
        if multiplied == UINT8:
            numbers = UINT8X4.numbers
            self._k = self.udiv(whole(self, self._hidden, numbers), numbers)
        self.begin_products()
        if packs:
            self._weight = self._buffers["panels"]
            self._pack()
        else:
            self._weight = self.pointer_slot(self.dims, Recurrence.WEIGHT)

    def emit(self, tuning: NativeTuning) -> None:
        cell = self._cell
        steps, block = self.dim(Recurrence.STEPS), self.dim(Recurrence.BLOCK)
        size = self.dim(Recurrence.TEAM)
        is_team = self.icmp_signed(">", size, 1)
        state = self.at(self.dims, Recurrence.TEAM_STATE * SLOT_BYTES)
        self.set_slot(self.context, Context.A_STRIDE, self._a_stride)
        self.set_slot(self.context, Context.C_ROW_STRIDE, self._sum_bytes)
        with self.counted_loop(self.begin, self.end) as task:
            first = self.select(is_team, 0, self.mul(task, block))
            left = self.sub(self._rows, first)
            rows = self.minimum(left, block)
            end = self.add(first, rows)
            slots = () if self._levels else (Recurrence.COVERS, Recurrence.TAIL_COVERS)
            tables = self.pointer_slots(self.dims, *slots)
            covers = self.covers(tables, rows)
            rank = self.select(is_team, task, 0)
            team = Team(self, state, size, rank, tuning)
            longest = self._longest(first, end)
            with team.phase() as part, self._only_first(part):
                self._begun(first, end)
            with self.counted_loop(0, steps) as number:
                step = number
                if cell.reverse:
                    step = self.sub(self.sub(steps, 1), number)
                some = self.icmp_signed("<", step, longest)
                odd = self.trunc(number, I1)
                self._planes["h"] = self.select(odd, self._new, self._old)
                self._next = self.select(odd, self._old, self._new)
                for stage in cell.stages():
                    last = self.sub(self._phases, 1)
                    with self.counted_loop(0, self._phases) as phase, team.phase() as part:
                        begins = self.icmp_signed("==", phase, 0)
                        with self.if_then(self.and_(begins, some)):
                            if cell.rounds:
                                state = Rows(self._planes["h"], self._row_bytes)
                                self._rounded.round(state, (first, end), part)
                            self._product(stage, first, covers, (size, part))
                        with self.if_then(self.icmp_signed("==", phase, last)):
                            self._elements(stage, first, end, step, (size, part))
            self._planes["h"] = self.select(self.trunc(steps, I1), self._new, self._old)
            with team.phase() as part, self._only_first(part):
                self._ended(first, end)
            team.leave()
        self.ret_void()

    def _only_first(self, part: ir.Value) -> AbstractContextManager[ir.Block]:
        """What one part does for the team."""
        branch: AbstractContextManager[ir.Block] = self.if_then(self.icmp_signed("==", part, 0))
        return branch

    # Rows and their elements.

    def _row(self, plane: str, row: ir.Value) -> ir.Value:
        return self.at(self._planes[plane], row, self._row_bytes)

    def _length(self, row: ir.Value) -> ir.Value:
        place = self.at(self._buffers["lengths"], row, LENGTH_BYTES)
        return self.sext(self.load(place, typ=I32, align=LENGTH_BYTES), I64)

    # The begin and the end of sequences.

    def _longest(self, first: ir.Value, end: ir.Value) -> ir.Value:
        """The longest length of the sequences of a block, which are checked."""
        steps = self.dim(Recurrence.STEPS)
        if not self._cell.lengths:
            return steps
        longest = self.variable(0)
        with self.counted_loop(first, end) as row:
            length = self._length(row)
            # Negative lengths are large unsigned ones.
            wrong = self.icmp_unsigned(">", length, steps)
            with self.if_then(wrong, likely=False):
                fail(self, self.status, WRONG_LENGTH, wrong, length, steps)
            self.store(self.maximum(length, self.load(longest, typ=I64)), longest)
        return self.minimum(self.load(longest, typ=I64), steps)

    def _begun(self, first: ir.Value, end: ir.Value) -> None:
        """Set the states of rows to the first ones."""
        cell = self._cell
        with self.counted_loop(first, end) as row:
            # Rows beyond the end of a sequence are multiplied as well, whatever they hold.
            for plane in cell.planes:
                if plane not in cell.states or not cell.initial:
                    self._vectors.clear(self._whole, self._row(plane, row))
            if cell.initial and cell.lengths:
                empty = self.icmp_signed("==", self._length(row), 0)
                with self.if_else(empty) as (without, given):
                    with without:
                        for state in cell.states:
                            self._vectors.clear(self._whole, self._row(state, row))
                    with given:
                        self._take_first(row)
            elif cell.initial:
                self._take_first(row)

    def _take_first(self, row: ir.Value) -> None:
        for state in self._cell.states:
            given = self._buffers[f"first {state}"]
            source = self.at(given, row, self._row_bytes)
            self._vectors.copy(self._whole, source, self._row(state, row))

    def _ended(self, first: ir.Value, end: ir.Value) -> None:
        """Give the states after the last step."""
        strides = {"h": self.dim(Recurrence.H_ROW), "c": self.dim(Recurrence.C_ROW)}
        with self.counted_loop(first, end) as row:
            for state in self._cell.states:
                target = self._buffers[f"last {state}"]
                target = self.at(target, row, strides[state])
                self._vectors.copy(self._whole, self._row(state, row), target)

    # Products.

    def _panel_counts(self) -> tuple[ir.Value, ir.Value]:
        """Full panels of the weight, and the columns that are left over."""
        nr = self.dim(Recurrence.PANEL)
        return self.udiv(self._width, nr), self.urem(self._width, nr)

    def _panel(self, number: ir.Value) -> ir.Value:
        columns = self.mul(number, self.dim(Recurrence.PANEL))
        column_bytes = self.mul(self._k, self._size)
        return self.at(self._weight, columns, column_bytes)

    def _pack(self) -> None:
        """Pack the weight, of which the elements of one column are contiguous."""
        nr = self.dim(Recurrence.PANEL)
        function = self.pointer_slot(self.dims, Recurrence.PACK)
        full, left = self._panel_counts()

        def panel(number: ir.Value, width: ir.Value, stored: ir.Value) -> None:
            columns = self.mul(number, nr)
            source = self.at(self._buffers["weight"], columns, self._row_bytes)
            place = self._panel(number)
            given = [source, const(self._size), self._row_bytes, place, self._hidden, width, stored]
            self.call_address(PACK_TYPE, function, given)

        with self.counted_loop(0, full) as number:
            panel(number, nr, nr)
        with self.if_then(self.icmp_signed(">", left, 0)):
            panel(full, left, self.dim(Recurrence.TAIL))

    def _product(
        self, stage: Stage, first: ir.Value, covers: ir.Value, share: tuple[ir.Value, ir.Value]
    ) -> None:
        """Multiply the rows of a block by a part of the panels that have columns of the stage's
        gates; `share`: the number of parts, and the part. What else these panels have is computed
        as well: the sums of gates that are not read any more, or not yet."""
        nr = self.dim(Recurrence.PANEL)
        full, left = self._panel_counts()
        begin, end = (self.mul(self._hidden, gate) for gate in stage.gates)
        first_panel = self.udiv(begin, nr)
        end_panel = self.udiv(self.add(end, self.sub(nr, 1)), nr)
        if self._levels:
            # The last panel is as wide as the others.
            full = end_panel
        if self._cell.rounds:
            a = self.at(self._rounded.of(share[1]), first, self._a_stride)
        else:
            a = self._row(stage.multiplied, first)
        sums = self.at(self._buffers["memory"], first, self._sum_bytes)

        def panel(number: ir.Value, width: ir.Value, cover: ir.Value) -> None:
            if self._levels:
                panel_bytes = self.mul(nr, whole(self, self._hidden, LevelPanel.STEPS))
                weight = self.at(self._weight, number, panel_bytes)
                column = self.mul(number, self.mul(nr, self._size))
                c = self.at(sums, column), self._sum_bytes
                rows = Rows(a, self._a_stride)
                emit_level_panel(self, self._rows, self._hidden, rows, weight, c, self._lanes)
                return
            self.set_slot(self.context, Context.VALID_COLUMNS, width)
            column = self.mul(self.mul(number, nr), self._size)
            rows, b = Rows(a, self._a_stride), self._panel(number)
            made = Rows(self.at(sums, column), self._sum_bytes)
            self.panel(cover, rows, b, made, self._k)

        each, by_gates = self.dim(Recurrence.GATE_PANELS), self._by_gates
        gates = self.select(by_gates, stage.gates[1] - stage.gates[0], 1)
        each = self.select(by_gates, each, self.sub(end_panel, first_panel))
        with self.counted_loop(0, gates) as gate:
            base = self.add(first_panel, self.mul(gate, each))
            bounds = self.partition_bounds(each, *share)
            begin, end = (self.add(base, bound) for bound in bounds)
            with self.counted_loop(begin, self.minimum(end, full)) as number:
                panel(number, nr, covers)
            if not self._levels:
                some = self.icmp_signed(">", end, self.maximum(begin, full))
                with self.if_then(some):
                    panel(full, left, self.at(covers, COVER_BYTES))

    # Elements.

    def _columns(self, share: tuple[ir.Value, ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The range of the hidden elements of a part: those of its panels, or whole vectors."""
        unit = self.select(self._by_gates, self.dim(Recurrence.PANEL), self._lanes)
        units = self.udiv(self.add(self._hidden, self.sub(unit, 1)), unit)
        begin, end = (self.mul(n, unit) for n in self.partition_bounds(units, *share))
        return begin, self.minimum(end, self._hidden)

    def _elements(
        self, stage: Stage, first: ir.Value, end: ir.Value, step: ir.Value,
        share: tuple[ir.Value, ir.Value],
    ) -> None:  # fmt: skip
        """A part of the results of a stage for all rows that have the step; beyond their end, y is
        zero."""
        cell = self._cell
        bounds = self._columns(share)
        parameters = {}
        if cell.rounds:
            places = self._rounded.parameters(share[1]).items()
            parameters = {n: self.load(p, typ=scalar_type(self._dtype)) for n, p in places}
        gives_y = any(plane == "h" for plane, _ in stage.results)
        x_step = self.at(self._buffers["x"], step, self.dim(Recurrence.X_STEP))
        y_step = self.at(self._buffers["y"], step, self.dim(Recurrence.Y_STEP))
        with self.counted_loop(first, end) as row:
            x = self.at(x_step, row, self.dim(Recurrence.X_ROW))
            y = self.at(y_step, row, self.dim(Recurrence.Y_ROW))
            with ExitStack() as branches:
                if cell.lengths:
                    valid = self.icmp_signed("<", step, self._length(row))
                    if gives_y:
                        with self.if_then(self.not_(valid)):
                            self._vectors.clear(bounds, y)
                    branches.enter_context(self.if_then(valid))
                self._row_elements(stage, row, x, y, bounds, parameters)

    def _row_elements(
        self, stage: Stage, row: ir.Value, x: ir.Value, y: ir.Value,
        bounds: tuple[ir.Value, ir.Value], parameters: Mapping[str, ir.Value],
    ) -> None:  # fmt: skip
        cell = self._cell
        sums = self.at(self._buffers["memory"], row, self._sum_bytes)
        places = {plane: self._row(plane, row) for plane in cell.planes}
        following = self.at(self._next, row, self._row_bytes)
        for number, gate in enumerate(cell.gates):
            offset = self.mul(self._row_bytes, number)
            places[f"x_{gate}"] = self.at(x, offset)
            places[f"s_{gate}"] = self.at(sums, offset)
        for number, name in enumerate(cell.columns):
            offset = self.mul(self._row_bytes, number)
            places[name] = self.at(self._buffers["columns"], offset)

        def vector(offset: ir.Value, mask: ir.Value | None, lanes: int) -> None:
            type_ = ir.VectorType(scalar_type(self._dtype), lanes)
            env: dict[str, ir.Value] = {}
            for plane, expr in stage.results:
                for operand in operands(expr):
                    if operand.name in env:
                        continue
                    if operand.kind == "row":
                        env[operand.name] = self.splat(parameters[operand.name], lanes)
                    else:
                        place = self.at(places[operand.name], offset)
                        env[operand.name] = load_lanes(self, place, type_, self._size, mask)
                value = elements.emit(self, expr, env, self._fused)
                env[plane] = value
                target = following if plane == "h" else places[plane]
                self._vectors.store(value, self.at(target, offset), mask)
                if plane == "h":
                    self._vectors.store(value, self.at(y, offset), mask)

        # Each instruction waits for the one before: two vectors take less than twice as long.
        begin, end = bounds
        pair = 2 * self._lanes
        pairs = self.and_(self.sub(end, begin), -pair)
        middle = self.add(begin, pairs)
        with self.counted_loop(begin, middle, pair) as base:
            vector(self.mul(base, self._size), None, pair)
        self._vectors.along((middle, end), lambda place, mask: vector(place, mask, self._lanes))
