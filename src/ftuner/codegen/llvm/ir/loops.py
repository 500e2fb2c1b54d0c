"""Loops in LLVM IR, and the bounds of a worker's tasks. All indices are i64.

Rows are copied by one internal function for each element type of a module: in whole vectors, then
in halves down to one element. There are no masks, so that every ISA can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, at, begun, const, scalar_type
from ftuner.core.dtype import DType


@contextmanager
def counted_loop(
    builder: ir.IRBuilder, begin: ir.Value | int, end: ir.Value | int, step: ir.Value | int = 1
) -> Iterator[ir.Value]:
    """Emit `for (index = begin; index < end; index += step)`; yields the i64 index.

    `begin` and `end` are i64 values, compared as signed, or Python integers; the body runs zero
    times if `begin >= end`. `step` is positive, and `end + step` must not overflow. Inside the
    context the builder is in the body, afterwards after the loop; the body may add blocks.
    """
    assert not isinstance(step, int) or step > 0, f"step {step} of a counted loop"
    begin, end, step = _i64(begin), _i64(end), _i64(step)
    entry = builder.block
    head = builder.append_basic_block("loop.head")
    body = builder.append_basic_block("loop.body")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64, "index")
    index.add_incoming(begin, entry)
    inside = builder.icmp_signed("<", index, end)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, step, flags=("nsw",)), builder.block)
    builder.branch(head)
    # Appended only now, so that the text of nested loops nests as well.
    done = builder.append_basic_block("loop.done")
    builder.position_at_end(head)
    builder.cbranch(inside, body, done)
    builder.position_at_end(done)


def carried_loop(
    builder: ir.IRBuilder,
    count: ir.Value,
    values: Sequence[ir.Value],
    body: Callable[[list[ir.Value]], list[ir.Value]],
    some: bool = False,
) -> list[ir.Value]:
    """Emit a loop of `count` (i64) rounds that keeps `values` in registers; returns the last ones.

    `body` gets the values of a round and returns those of the next, of the same types; it may add
    blocks. With a count of zero or less no round runs; `some`: the count is known to be positive.
    """
    before = builder.block
    inside = builder.append_basic_block("carried.body")
    after = builder.append_basic_block("carried.done")
    # Where the count may be zero, it is compared first: values then have one place before the loop.
    head = inside if some else builder.append_basic_block("carried.head")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    carried = [builder.phi(value.type) for value in values]
    if not some:
        builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
        builder.position_at_end(inside)
    result = body(list(carried))
    following = builder.add(index, _i64(1))
    if some:
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    else:
        builder.branch(head)
    for phi, initial, update in zip(
        (index, *carried), (_i64(0), *values), (following, *result), strict=True
    ):
        phi.add_incoming(initial, before)
        phi.add_incoming(update, builder.block)
    builder.position_at_end(after)
    return result if some else carried


@contextmanager
def while_holds(builder: ir.IRBuilder, condition: Callable[[], ir.Value]) -> Iterator[None]:
    """Emit a loop, which begins with its condition."""
    head, body, done = (builder.append_basic_block(f"while.{x}") for x in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    builder.cbranch(condition(), body, done)
    builder.position_at_end(body)
    yield
    builder.branch(head)
    builder.position_at_end(done)


def partition_bounds(
    builder: ir.IRBuilder, extent: ir.Value | int, parts: ir.Value | int, worker: ir.Value | int
) -> tuple[ir.Value, ir.Value]:
    """Emit `ftuner.core.ranges.bounds`: the half-open i64 range (begin, end) of `worker`.

    All are i64 values or Python integers, with `extent >= 0`, `0 <= worker < parts`, and
    `extent * parts` below 2**63.
    """
    extent, parts, worker = _i64(extent), _i64(parts), _i64(worker)
    # Unsigned division, which the ranges above allow, spares the sign fix-ups of a signed one.
    flags = ("nuw", "nsw")
    following = builder.add(worker, _i64(1), flags=flags)
    begin = builder.udiv(builder.mul(worker, extent, flags=flags), parts)
    end = builder.udiv(builder.mul(following, extent, flags=flags), parts)
    return begin, end


def _i64(value: ir.Value | int) -> ir.Value:
    if isinstance(value, int):
        return ir.Constant(I64, value)
    assert value.type == I64, f"expected an i64 value, got {value.type}"
    return value


class Rows(NamedTuple):
    """Where rows begin, and the bytes from one to the next."""

    first: ir.Value
    stride: ir.Value


def copy_rows(
    builder: ir.IRBuilder, types: tuple[DType, int], source: Rows, target: Rows, rows: ir.Value,
    columns: ir.Value,
) -> None:  # fmt: skip
    """Copy `rows` rows of `columns` elements. `types`: of elements, and the lanes of a vector."""
    function = _copy_function(builder.module, *types)
    builder.call(function, [*source, *target, rows, columns])


def _copy_function(module: ir.Module, dtype: DType, lanes: int) -> ir.Function:
    name = f"copy_rows_{dtype}_{lanes}"
    found = module.globals.get(name)
    if found is not None:
        return found
    kind = ir.FunctionType(VOID, [PTR, I64, PTR, I64, I64, I64])
    builder, (*both, rows, columns) = begun(module, kind, name, internal=True)
    builder.function.attributes.add("noinline")
    source, source_stride, target, target_stride = both
    element = scalar_type(dtype)
    whole = builder.udiv(columns, const(lanes))
    with counted_loop(builder, const(0), rows) as row:
        from_row = at(builder, source, builder.mul(row, source_stride))
        to_row = at(builder, target, builder.mul(row, target_stride))
        vector = ir.VectorType(element, lanes)
        with counted_loop(builder, const(0), whole) as i:
            offset = builder.mul(i, const(lanes * dtype.itemsize))
            _move(
                builder, dtype, vector, at(builder, from_row, offset), at(builder, to_row, offset)
            )
        offset = builder.mul(whole, const(lanes * dtype.itemsize))
        part = lanes // 2
        while part >= 1:
            bit = builder.and_(columns, const(part))
            kind = ir.VectorType(element, part) if part > 1 else element
            with builder.if_then(builder.icmp_signed("!=", bit, const(0))):
                _move(
                    builder, dtype, kind, at(builder, from_row, offset), at(builder, to_row, offset)
                )
            offset = builder.add(offset, builder.mul(bit, const(dtype.itemsize)))
            part //= 2
    builder.ret_void()
    return builder.function


def _move(
    builder: ir.IRBuilder, dtype: DType, kind: ir.Type, source: ir.Value, target: ir.Value
) -> None:
    value = builder.load(source, typ=kind, align=dtype.itemsize)
    builder.store(value, target, align=dtype.itemsize)
