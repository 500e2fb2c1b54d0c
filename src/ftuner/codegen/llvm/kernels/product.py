"""The body of a uKernel: a register-tile outer product over run-time k, in LLVM IR.

Signature of the compiled function::

    void kernel(context, a, b, c, row, column, k, tiles)

computes `tiles` row tiles, one below the other, of one panel of B. `context` is a
`records.Context`; `row` and `column` place the first tile in C, for the epilogue's operands.
Accumulators are SSA values from the first multiply-add to the last store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const, scalar_type
from ftuner.codegen.llvm.ir.functions import cast, emit
from ftuner.codegen.llvm.ir.half_precision import ROUNDED
from ftuner.codegen.llvm.ir.instructions import L1, prefetch
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_lanes, store_lanes
from ftuner.codegen.llvm.ir.rows import Rows, copy_rows
from ftuner.codegen.llvm.kernels.block_loop import BlockLoop, ByteBlockLoop
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions, KLoop
from ftuner.codegen.llvm.kernels.matrix_tile import MatrixTile
from ftuner.codegen.llvm.kernels.widen import WORD_BYTES
from ftuner.codegen.llvm.kernels.window import WindowRows
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.common_epilogue import has_shared_code, stages
from ftuner.core.cpu.tile import WINDOW, UKernel
from ftuner.core.dtype import UINT16
from ftuner.core.expr import ACCUMULATOR, Expr, operands
from ftuner.core.product import ProductTypes

Sums = list[list[ir.Value]]
"""Vectors of a tile, row by row."""
KERNEL_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, PTR, I64, I64, I64, I64])
FINISH_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64, I64, I64])
"""`void finish(context, c, row, column, rows, columns)` applies an epilogue to what C holds. `row`
and `column` place the corner `c`."""


def emit_ukernel(module: ir.Module, kernel: UKernel, options: CodeOptions) -> ir.Function:
    """Add the function of a uKernel to a module. Where the ISA loads and stores under a mask, tails
    need no scratch tile."""
    isa = options.isa
    builder, given = begun(module, KERNEL_TYPE, kernel.symbol)
    context, a, b, c, row, column, k, tiles = given
    names = ("context", "a", "b", "c", "row", "column", "k", "tiles")
    for argument, name in zip(given, names, strict=True):
        argument.name = name
    for pointer in (context, a, b, c):
        pointer.add_attribute("noalias")
    types = kernel.types
    steps, of_levels = types.steps, types.a.kind == "block" and types.a != types.b
    if steps > 1 and not of_levels:
        kernel, k = replace(kernel, types=kernel.types.multiplied), builder.mul(k, steps)
    # Words of blocks are side by side.
    b_bytes = WORD_BYTES if of_levels else kernel.types.b.itemsize
    dtype = kernel.types.c
    size = dtype.itemsize
    c_stride = builder.slot(context, Context.C_ROW_STRIDE)
    scratch = None
    if kernel.tail and not isa.masked:
        scratch = builder.reserve(ir.ArrayType(scalar_type(dtype), kernel.mr * kernel.nr))
    tile_step = builder.slot(context, Context.A_TILE_STRIDE)
    window = None
    if kernel.a_layout == WINDOW:
        window = WindowRows(builder, context, a, row, kernel.mr, kernel.types.a.itemsize)
    matrix = None
    if kernel.tile.matrix:
        matrix = MatrixTile(builder, kernel, options, context, k, window)
    parts = const(kernel.tile.parts)
    with builder.counted_loop(0, builder.mul(tiles, parts)) as number:
        tile, part = builder.udiv(number, parts), builder.urem(number, parts)
        first_row = builder.mul(tile, kernel.mr)
        first_column = builder.mul(part, kernel.tile.vectors * kernel.lanes)
        a_tile = builder.at(a, tile, tile_step)
        b_part = builder.at(b, first_column, b_bytes)
        c_tile = builder.at(c, first_row, c_stride)
        c_tile = builder.at(c_tile, first_column, size)
        c_rows = Rows(c_tile, c_stride)
        corner = builder.add(row, first_row), builder.add(column, first_column)
        _prefetch_rows(builder, kernel, c_rows, options.line_bytes)
        finish = partial(finish_tile, builder, fused=isa.fused, context=context)
        if window is not None:
            window.enter_tile()
        if matrix is not None:
            with matrix.sums(number, a_tile, b_part, k) as (first, sums):
                rows = Rows(builder.at(c_tile, first, c_stride), c_stride)
                place = builder.add(corner[0], first), corner[1]
                valid = _valid_columns(builder, kernel, context)
                sums = _as_stored(builder, kernel, sums)
                finish(matrix.rows, sums=sums, c=rows, corner=place, valid=valid, masked=True)
        else:
            if of_levels:
                block_loop = ByteBlockLoop if types.of_bytes else BlockLoop
                sums = block_loop(builder, kernel, options, context).sums(a_tile, b_part, k)
            else:
                loop = KLoop(builder, kernel, options, context, window, steps)
                sums = loop.sums(number, a_tile, b_part, k)
            sums = _as_stored(builder, kernel, sums)
            valid = _valid_columns(builder, kernel, context)
            with _rows_of_c(builder, kernel, context, c_rows, scratch, valid) as rows:
                finish(kernel, sums=sums, c=rows, corner=corner, valid=valid, masked=isa.masked)
        if has_shared_code(kernel.types, kernel.epilogue):
            columns = _valid_columns(builder, kernel, context)
            columns = columns or const(kernel.tile.vectors * kernel.lanes)
            finish_stored(builder, context, c_tile, corner, const(kernel.mr), columns)
    if matrix is not None:
        matrix.release()
    builder.ret_void()
    return builder.function


def finish_stored(
    builder: IRBuilder, context: ir.Value, c: ir.Value, corner: tuple[ir.Value, ir.Value],
    rows: ir.Value, columns: ir.Value,
) -> None:  # fmt: skip
    """Apply an epilogue that the code itself has not, if the context has one, to stored results."""
    function = builder.slot(context, Context.FINISH)
    with builder.if_then(builder.icmp_unsigned(">", function, 1)):
        builder.call_address(FINISH_TYPE, function, [context, c, *corner, rows, columns])


def _valid_columns(builder: IRBuilder, kernel: UKernel, context: ir.Value) -> ir.Value | None:
    """How many columns of a tail exist; None of full panels."""
    return builder.slot(context, Context.VALID_COLUMNS) if kernel.tail else None


@contextmanager
def _rows_of_c(
    builder: IRBuilder, kernel: UKernel, context: ir.Value, c: Rows, scratch: ir.Value | None,
    valid: ir.Value | None,
) -> Iterator[Rows]:  # fmt: skip
    """Where a tile is stored: `c`, or where there is a scratch tile and columns are missing, that
    one, from which they are copied afterwards."""
    if scratch is None:
        yield c
        return
    assert valid is not None
    types = UINT16 if kernel.types.c in ROUNDED else kernel.types.c, kernel.lanes
    ragged = builder.icmp_signed("<", valid, kernel.nr)
    own = Rows(scratch, const(kernel.nr * kernel.types.c.itemsize))
    given = builder.slot(context, Context.ACCUMULATE)
    accumulate = builder.icmp_signed("!=", given, 0)
    with builder.if_then(builder.and_(ragged, accumulate)):
        copy_rows(builder, types, c, own, const(kernel.mr), valid)
    yield Rows(*(builder.select(ragged, x, y) for x, y in zip(own, c, strict=True)))
    with builder.if_then(ragged):
        copy_rows(builder, types, own, c, const(kernel.mr), valid)


def _as_stored(builder: IRBuilder, kernel: UKernel, sums: Sums) -> Sums:
    """Complete sums in the dtype of the epilogue."""
    if kernel.types.finished == kernel.types.accumulator:
        return sums
    floats = ir.VectorType(scalar_type(kernel.types.finished), kernel.lanes)
    return [[builder.sitofp(x, floats) for x in row] for row in sums]


def _prefetch_rows(builder: IRBuilder, kernel: UKernel, c: Rows, line_bytes: int) -> None:
    """Ask for the tile's lines of C now: they are written a whole reduction later."""
    last = kernel.tile.vectors * kernel.lanes * kernel.types.c.itemsize - 1

    def ask(row: list[ir.Value]) -> list[ir.Value]:
        for offset in (*range(0, last, line_bytes), last):
            prefetch(builder, builder.at(row[0], offset), L1, write=True)
        return [builder.at(row[0], c.stride)]

    if kernel.mr == 1:
        ask([c.first])
    else:
        builder.carried_loop(const(kernel.mr), [c.first], ask, some=True)


def finish_tile(
    builder: IRBuilder, kernel: UKernel, fused: bool, context: ir.Value, sums: Sums,
    c: Rows, corner: tuple[ir.Value, ir.Value], valid: ir.Value | None = None,
    masked: bool = False,
) -> None:  # fmt: skip
    """Add what C holds if asked to, apply the epilogue on the last block of k, store. `corner`: the
    tile's first row and column.

    `valid` is given for tails, because nothing after the last column may be touched: the last
    vector is loaded and stored under a mask, or if the ISA has none (not `masked`) and `valid` is
    less than the width, C is a scratch tile and operands are read through scratch too.
    """
    types, size = kernel.types, kernel.types.c.itemsize
    access = Access(builder, kernel, valid if masked else None)
    rows = [builder.at(c.first, c.stride, i) for i in range(kernel.mr)]
    offsets = range(0, kernel.tile.vectors * kernel.lanes * size, kernel.lanes * size)
    addresses = [[builder.at(row, offset) for offset in offsets] for row in rows]

    if types.c == types.finished:
        accumulate = builder.icmp_signed("!=", builder.slot(context, Context.ACCUMULATE), 0)
        sums = _if(
            builder,
            accumulate,
            sums,
            lambda: [
                [
                    builder.fadd(s, access.load(p, v))
                    for v, (s, p) in enumerate(zip(*r, strict=True))
                ]
                for r in zip(sums, addresses, strict=True)
            ],
        )
    if kernel.epilogue != ACCUMULATOR:
        last = builder.icmp_signed("==", builder.slot(context, Context.FINISH), 1)
        given = sums
        slots = builder.slot_address(context, Context.OPERANDS)
        place = Place(slots, *corner, access, None if masked else valid, fused)
        sums = _if(builder, last, given, lambda: _finished(builder, kernel, place, given))
    for values, pointers in zip(sums, addresses, strict=True):
        for v, (value, pointer) in enumerate(zip(values, pointers, strict=True)):
            access.store(_as_c(builder, value, types), pointer, v)


def _as_c(builder: IRBuilder, value: ir.Value, types: ProductTypes) -> ir.Value:
    """A vector of results as memory has it."""
    if types.c in ROUNDED:
        return ROUNDED[types.c](builder, value)
    return cast(builder, value, types.finished, types.c)


class Access:
    """Loads and stores of a tile's vectors; of the last one only lanes that exist, if `valid`
    columns are given. Masks follow from `valid` when the code runs."""

    def __init__(self, builder: IRBuilder, kernel: UKernel, valid: ir.Value | None) -> None:
        self._builder = builder
        self._c_size, dtype = kernel.types.c.itemsize, kernel.types.finished
        self._size = dtype.itemsize
        self._vector = ir.VectorType(scalar_type(dtype), kernel.lanes)
        self._last = kernel.tile.vectors - 1
        self._mask: ir.Value | None = None
        if valid is not None:
            left = builder.sub(valid, self._last * kernel.lanes)
            self._mask = lanes_below(builder, left, kernel.lanes)

    def load(self, address: ir.Value, v: int) -> ir.Value:
        """The `v`-th vector of a row, zero in lanes that do not exist."""
        return load_lanes(self._builder, address, self._vector, self._size, self._mask_of(v))

    def store(self, value: ir.Value, address: ir.Value, v: int) -> None:
        """Store the `v`-th vector of a row."""
        store_lanes(self._builder, value, address, self._c_size, self._mask_of(v))

    def _mask_of(self, v: int) -> ir.Value | None:
        return self._mask if v == self._last else None


class Place(NamedTuple):
    """Where a tile is in C, and how it reads the operands of the epilogue."""

    operand_slots: ir.Value
    """The address and the stride of each."""
    row: ir.Value
    column: ir.Value
    access: Access
    valid: ir.Value | None
    """Columns that exist, for tails that read operands through scratch."""
    fused: bool
    """Whether the ISA has fused multiply-adds."""


def _finished(builder: IRBuilder, kernel: UKernel, place: Place, sums: Sums) -> Sums:
    """The epilogue of every vector of a tile; of stages, those whose first operand is there."""
    of_common = stages(kernel.epilogue)
    if not of_common:
        return applied(builder, kernel, kernel.epilogue, place, sums)
    numbers = _numbers(kernel)
    for stage in of_common:
        given, first = sums, min(numbers[operand.name] for operand in operands(stage))
        pointer = builder.pointer_slot(place.operand_slots, 2 * first)
        sums = _if(
            builder, builder.icmp_unsigned("!=", pointer, ir.Constant(PTR, None)), given,
            partial(applied, builder, kernel, stage, place, given),
        )  # fmt: skip
    return sums


def _numbers(kernel: UKernel) -> dict[str, int]:
    """The numbers of the operands of an epilogue, by name."""
    return {operand.name: i for i, operand in enumerate(operands(kernel.epilogue))}


def applied(builder: IRBuilder, kernel: UKernel, expr: Expr, place: Place, sums: Sums) -> Sums:
    """The epilogue of a uKernel, or a part of it, of every vector of a tile."""
    numbers = _numbers(kernel)
    dtype, lanes = kernel.types.finished, kernel.lanes
    size, element = dtype.itemsize, scalar_type(dtype)
    operand_slots, row, column, access, valid, fused = place
    column_bytes = builder.mul(column, size)
    sources = {}
    for operand in operands(expr):
        base = builder.pointer_slot(operand_slots, 2 * numbers[operand.name])
        stride = builder.slot(operand_slots, 2 * numbers[operand.name] + 1)
        if operand.kind in ("row", "matrix"):
            base = builder.at(base, row, stride)
        if operand.kind in ("column", "matrix"):
            base = builder.at(base, column_bytes)
            if valid is not None:
                rows = kernel.mr if operand.kind == "matrix" else 1
                scratch = builder.reserve(ir.ArrayType(element, rows * kernel.nr))
                scratch_stride = const(kernel.nr * size)
                ragged = builder.icmp_signed("<", valid, kernel.nr)
                with builder.if_then(ragged):
                    given, own = Rows(base, stride), Rows(scratch, scratch_stride)
                    copy_rows(builder, (dtype, lanes), given, own, const(rows), valid)
                base = builder.select(ragged, scratch, base)
                stride = builder.select(ragged, scratch_stride, stride)
        sources[operand.name] = (operand.kind, base, stride)
    columns = {
        name: [
            access.load(builder.at(base, v * lanes * size), v) for v in range(kernel.tile.vectors)
        ]
        for name, (kind, base, _) in sources.items()
        if kind == "column"
    }
    done = []
    for i, values in enumerate(sums):
        at_row = {
            name: (kind, builder.at(base, stride, i))
            for name, (kind, base, stride) in sources.items()
            if kind != "column"
        }
        of_row = {
            name: builder.splat(builder.load(address, typ=element, align=size), lanes)
            for name, (kind, address) in at_row.items()
            if kind == "row"
        }
        results = []
        for v, value in enumerate(values):
            env = {ACCUMULATOR.name: value, **of_row}
            env |= {name: vectors[v] for name, vectors in columns.items()}
            for name, (kind, address) in at_row.items():
                if kind == "matrix":
                    env[name] = access.load(builder.at(address, v * lanes * size), v)
            results.append(emit(builder, expr, env, fused))
        done.append(results)
    return done


def _if(builder: IRBuilder, condition: ir.Value, otherwise: Sums, then: Callable[[], Sums]) -> Sums:
    """`then()` where the condition holds, else `otherwise`; both nested lists of vectors."""
    width = len(otherwise[0])
    found = builder.changed_if(condition, [*chain(*otherwise)], lambda: [*chain(*then())])
    return [found[first : first + width] for first in range(0, len(found), width)]
