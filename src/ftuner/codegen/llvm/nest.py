"""The general schedule of a definition: loops over its axes, in LLVM IR.

The function made is `void kernel(buffers, dims, status, worker, begin, end)`: tasks `begin` to
`end` of `task_count`. `buffers` holds an address for each operand, then for each result; `dims` the
values of `Kernel.parameters()`; `status` is a word that a failed check writes its number to.

One axis is walked by vectors, the last ones under a mask: a kept axis, and then reductions
gather in lanes, or a reduced one, and then lanes are added up at the end. All other kept axes are
tasks; where there are none, blocks of the vector axis are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import llvmlite.ir as ir

from ftuner.codegen.llvm import elements
from ftuner.codegen.llvm.build import (
    I1,
    I32,
    I64,
    PTR,
    VOID,
    const,
    intrinsic,
    lanes_below,
    pointer_slot,
    reserve,
    slot,
    splat,
)
from ftuner.codegen.llvm.loops import counted_loop
from ftuner.core.affine import Access, Kernel
from ftuner.core.definition import Stage
from ftuner.core.dim import Dim
from ftuner.core.dtype import DType
from ftuner.core.schedule import BLOCK, Schedule, checks, operand_numbers, schedule_of

KERNEL_TYPE = ir.FunctionType(VOID, [PTR, PTR, PTR, I64, I64, I64])


def emit_nest(
    module: ir.Module, symbol: str, kernel: Kernel, vector_bytes: int, fused: bool
) -> ir.Function:
    """Add the function of a kernel to a module."""
    function = ir.Function(module, KERNEL_TYPE, symbol)
    _Emission(function, kernel, schedule_of(kernel, vector_bytes), fused).emit()
    return function


@dataclass(frozen=True)
class _Lanes:
    """A part of the vector axis: from `base` on, `count` elements of a vector, all if None."""

    base: ir.Value
    mask: ir.Value | None
    count: ir.Value | None


@dataclass(frozen=True)
class _Place:
    """Where values are computed: the index along each axis but the vector one, the lanes (None for
    scalars), and the reductions known so far."""

    index: Mapping[int, ir.Value]
    lanes: _Lanes | None
    stages: tuple[ir.Value, ...]


class _Emission:
    """The writing of one function."""

    def __init__(
        self, function: ir.Function, kernel: Kernel, schedule: Schedule, fused: bool
    ) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.fused = fused
        self.module = function.module
        buffers, dims, self.status, _, self.begin, self.end = function.args
        self.builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.parameters = {dim: slot(builder, dims, i) for i, dim in enumerate(kernel.parameters())}
        # Operands are numbered as the nest numbers them, results come behind.
        numbers = operand_numbers(kernel)
        self.operands = {n: pointer_slot(builder, buffers, i) for i, n in enumerate(numbers)}
        self.results = [
            pointer_slot(builder, buffers, len(numbers) + i) for i in range(len(kernel.values))
        ]

    def emit(self) -> None:
        kernel, schedule, builder = self.kernel, self.schedule, self.builder
        vector = schedule.vector
        blocks = vector is not None and not schedule.tasks and vector < len(kernel.kept)
        with counted_loop(builder, self.begin, self.end) as task:
            if blocks:
                assert vector is not None
                first = builder.mul(task, const(BLOCK))
                extent = self.dim(kernel.axes[vector])
                last = builder.add(first, const(BLOCK))
                last = builder.select(builder.icmp_signed("<", last, extent), last, extent)
                self._kept_vectors({}, first, last)
            else:
                index = self._digits(task, schedule.tasks)
                if vector is not None and vector < len(kernel.kept):
                    self._kept_vectors(index, const(0), self.dim(kernel.axes[vector]))
                else:
                    self._task(_Place(index, None, ()))
        builder.ret_void()

    def dim(self, dim: Dim) -> ir.Value:
        return const(dim) if isinstance(dim, int) else self.parameters[dim]

    def _digits(self, number: ir.Value, axes: Sequence[int]) -> dict[int, ir.Value]:
        """The index along each axis of the task with a number."""
        builder = self.builder
        index: dict[int, ir.Value] = {}
        for position in reversed(range(len(axes))):
            if position == 0:
                index[axes[0]] = number
                break
            extent = self.dim(self.kernel.axes[axes[position]])
            index[axes[position]] = builder.urem(number, extent)
            number = builder.udiv(number, extent)
        return index

    def _kept_vectors(self, index: Mapping[int, ir.Value], first: ir.Value, last: ir.Value) -> None:
        self._by_vectors(first, last, lambda lanes: self._task(_Place(index, lanes, ())))

    def _by_vectors(self, first: ir.Value, last: ir.Value, body: Callable[[_Lanes], None]) -> None:
        """`body` for whole vectors from `first` on, and for what is left under a mask."""
        builder, lanes = self.builder, self.schedule.lanes
        whole = builder.and_(builder.sub(last, first), const(-lanes))
        behind = builder.add(first, whole)
        with counted_loop(builder, first, behind, lanes) as base:
            body(_Lanes(base, None, None))
        left = builder.sub(last, behind)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            body(_Lanes(behind, lanes_below(builder, left, lanes), left))

    def _task(self, place: _Place) -> None:
        """All stages, then the results, of one kept index or of a vector of them."""
        kernel = self.kernel
        if any(stage.kind == "scan" for stage in kernel.stages):
            self._scan(place)
            return
        for stage in kernel.stages:
            total = self._stage(place, stage)
            place = _Place(place.index, place.lanes, (*place.stages, total))
        narrow = [i for i, wide in enumerate(kernel.wide) if not wide]
        if narrow:
            values = _Values(self, place)
            for i in narrow:
                values.store(i)
        if len(narrow) < len(kernel.values):

            def store(inner: _Place) -> None:
                values = _Values(self, inner)
                for i, wide in enumerate(kernel.wide):
                    if wide:
                        values.store(i)

            self._over_reduced(place, store)

    def _over_reduced(self, place: _Place, body: Callable[[_Place], None]) -> None:
        """`body` for each index along the reduced axes, by vectors along the vector axis."""
        kernel, vector = self.kernel, self.schedule.vector
        inner = range(len(kernel.kept), len(kernel.axes))
        with ExitStack() as loops:
            index = dict(place.index)
            for axis in inner:
                if axis != vector:
                    extent = self.dim(kernel.axes[axis])
                    index[axis] = loops.enter_context(counted_loop(self.builder, 0, extent))
            if vector is not None and vector in inner:
                extent = self.dim(kernel.axes[vector])
                self._by_vectors(
                    const(0), extent, lambda lanes: body(_Place(index, lanes, place.stages))
                )
            else:
                body(_Place(index, place.lanes, place.stages))

    def _stage(self, place: _Place, stage: Stage) -> ir.Value:
        if stage.kind in ("argmax", "argmin"):
            return self._position(place, stage)
        builder = self.builder
        dtype = self.kernel.steps[stage.value].dtype
        across = self.schedule.vector is not None and self.schedule.vector >= len(self.kernel.kept)
        lanes = self.schedule.lanes if across or place.lanes is not None else 0
        type_ = elements.register_type(dtype)
        if lanes:
            type_ = ir.VectorType(type_, lanes)
        nothing = elements.neutral(stage.kind, type_, dtype)
        total = reserve(builder, type_)
        builder.store(nothing, total)

        def gather(inner: _Place) -> None:
            value = _Values(self, inner).value(stage.value)
            if lanes and not elements.lanes_of(value):
                value = splat(builder, value, lanes)
            if across and inner.lanes is not None and inner.lanes.mask is not None:
                value = builder.select(inner.lanes.mask, value, nothing)
            before = builder.load(total, typ=type_)
            builder.store(elements.combine(builder, stage.kind, before, value, dtype), total)

        self._over_reduced(place, gather)
        result = builder.load(total, typ=type_)
        return elements.across(builder, stage.kind, result, dtype) if across else result

    def _scan(self, place: _Place) -> None:
        """Store the sum so far at each index along the one reduced axis."""
        builder, kernel = self.builder, self.kernel
        (stage,) = kernel.stages
        dtype = kernel.steps[stage.value].dtype
        type_ = elements.register_type(dtype)
        if place.lanes is not None:
            type_ = ir.VectorType(type_, self.schedule.lanes)
        total = reserve(builder, type_)
        builder.store(elements.zero(type_), total)

        def advance(inner: _Place) -> None:
            before = builder.load(total, typ=type_)
            value = _Values(self, inner).value(stage.value)
            if place.lanes is not None and not elements.lanes_of(value):
                value = splat(builder, value, self.schedule.lanes)
            after = elements.combine(builder, "sum", before, value, dtype)
            builder.store(after, total)
            seen = after if stage.last else before
            values = _Values(self, _Place(inner.index, inner.lanes, (seen,)))
            for result in range(len(kernel.values)):
                values.store(result)

        self._over_reduced(place, advance)

    def _position(self, place: _Place, stage: Stage) -> ir.Value:
        """The index of the largest or smallest element, along the one reduced axis."""
        builder = self.builder
        dtype = self.kernel.steps[stage.value].dtype
        lanes = self.schedule.lanes if place.lanes is not None else 0
        kind = "maximum" if stage.kind == "argmax" else "minimum"
        type_, where = elements.register_type(dtype), I64
        if lanes:
            type_, where = ir.VectorType(type_, lanes), ir.VectorType(I64, lanes)
        best, position = reserve(builder, type_), reserve(builder, where)
        builder.store(elements.neutral(kind, type_, dtype), best)
        builder.store(elements.zero(where), position)
        (axis,) = range(len(self.kernel.kept), len(self.kernel.axes))

        def compare(inner: _Place) -> None:
            value = _Values(self, inner).value(stage.value)
            at = inner.index[axis]
            if lanes:
                value = value if elements.lanes_of(value) else splat(builder, value, lanes)
                at = splat(builder, at, lanes)
            before = builder.load(best, typ=type_)
            name = "less_equal" if stage.last else "less"
            sides = (before, value) if kind == "maximum" else (value, before)
            better = elements.apply(builder, name, sides, dtype, self.fused)
            builder.store(builder.select(better, value, before), best)
            old = builder.load(position, typ=where)
            builder.store(builder.select(better, at, old), position)

        self._over_reduced(place, compare)
        return builder.load(position, typ=where)


class _Values:
    """The values of steps at one place, each computed once."""

    def __init__(self, emission: _Emission, place: _Place) -> None:
        self._emission = emission
        self._builder = emission.builder
        self._kernel = emission.kernel
        self._place = place
        self._known: dict[int, ir.Value] = {}

    def value(self, number: int) -> ir.Value:
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = self._compute(number)
        return found

    def _compute(self, number: int) -> ir.Value:
        step = self._kernel.steps[number]
        builder, place = self._builder, self._place
        if step.op == "constant":
            assert isinstance(step.payload, (int, float))
            return ir.Constant(elements.register_type(step.dtype), step.payload)
        if step.op == "dim":
            return self._emission.dim(step.payload)  # type: ignore[arg-type]
        if step.op == "index":
            assert isinstance(step.payload, int)
            return self._index(step.payload)
        if step.op == "stage":
            assert isinstance(step.payload, int)
            return place.stages[step.payload]
        access = self._kernel.accesses[number]
        if access is not None:
            assert isinstance(step.payload, int)
            return self._load(self._emission.operands[step.payload], access, step.dtype)
        arguments = elements.widened(builder, [self.value(a) for a in step.arguments])
        source = self._kernel.steps[step.arguments[0]].dtype
        if step.op == "cast":
            return elements.cast(builder, arguments[0], source, step.dtype)
        if step.op == "where":
            return builder.select(*arguments)
        if step.op == "checked":
            return self._checked(arguments[0], arguments[1], str(step.payload))
        return elements.apply(builder, step.op, arguments, source, self._emission.fused)

    def _index(self, axis: int) -> ir.Value:
        """Along the vector axis, lanes beyond the last element repeat it."""
        lanes = self._place.lanes
        if axis != self._emission.schedule.vector or lanes is None:
            return self._place.index[axis]
        builder, count = self._builder, self._emission.schedule.lanes
        numbers = ir.Constant(ir.VectorType(I64, count), list(range(count)))
        if lanes.count is not None:
            last = splat(builder, builder.sub(lanes.count, const(1)), count)
            inside = builder.icmp_signed("<", numbers, last)
            numbers = builder.select(inside, numbers, last)
        return builder.add(splat(builder, lanes.base, count), numbers)

    def _checked(self, index: ir.Value, extent: ir.Value, text: str) -> ir.Value:
        builder = self._builder
        none = elements.zero(index.type)
        wrapped = builder.add(index, extent)
        index = builder.select(builder.icmp_signed("<", index, none), wrapped, index)
        inside = builder.icmp_unsigned("<", index, extent)
        wrong = builder.not_(inside)
        count = elements.lanes_of(index)
        if count:
            name = f"llvm.vector.reduce.or.v{count}i1"
            wrong = builder.call(intrinsic(builder.module, name, I1, [wrong.type]), [wrong])
        with builder.if_then(wrong, likely=False):
            number = checks(self._kernel).index(text) + 1
            builder.store(const(number), self._emission.status)
        return builder.select(inside, index, none)

    def _offset(self, access: Access, base: bool) -> tuple[ir.Value, ir.Value | None]:
        """The offset of the first lane, and what each lane adds to it beside its number, if
        anything; with `base`, the position along the vector axis is in the former."""
        builder, emission = self._builder, self._emission
        offset = emission.dim(access.constant)
        apart: ir.Value | None = None
        vector = emission.schedule.vector if self._place.lanes is not None else None
        terms: list[tuple[ir.Value, Dim]] = [
            (self._place.index[axis], c)
            for axis, c in enumerate(access.coefficients)
            if c != 0 and axis != vector
        ]
        if vector is not None and base and access.coefficients[vector] != 0:
            assert self._place.lanes is not None
            terms.append((self._place.lanes.base, access.coefficients[vector]))
        terms += [(self.value(step), c) for step, c in access.rest]
        for value, coefficient in terms:
            count = elements.lanes_of(value)
            factor = emission.dim(coefficient)
            if count:
                factor = splat(builder, factor, count)
            term = value if coefficient == 1 else builder.mul(value, factor)
            if not count:
                offset = builder.add(offset, term)
            else:
                apart = term if apart is None else builder.add(apart, term)
        return offset, apart

    def _address(self, buffer: ir.Value, offset: ir.Value, dtype: DType) -> ir.Value:
        element = elements.memory_type(dtype)
        return self._builder.gep(buffer, [offset], source_etype=element)

    def _load(self, buffer: ir.Value, access: Access, dtype: DType) -> ir.Value:
        builder, lanes = self._builder, self._place.lanes
        vector = self._emission.schedule.vector
        coefficient: Dim = 0
        if lanes is not None:
            assert vector is not None
            coefficient = access.coefficients[vector]
        straight = coefficient in (0, 1)
        offset, apart = self._offset(access, base=straight)
        element = elements.memory_type(dtype)
        if apart is None and coefficient == 0:
            address = self._address(buffer, offset, dtype)
            value = builder.load(address, typ=element, align=dtype.itemsize)
            return elements.from_memory(builder, value, dtype)
        count = self._emission.schedule.lanes
        type_ = ir.VectorType(element, count)
        if apart is None and coefficient == 1:
            assert lanes is not None
            address = self._address(buffer, offset, dtype)
            value = _vector_load(builder, address, type_, dtype.itemsize, lanes.mask)
            return elements.from_memory(builder, value, dtype)
        if coefficient != 0:
            # Far apart, or beside what data tells: from the positions, which never go too far.
            assert vector is not None
            if straight:
                offset, apart = self._offset(access, base=False)
            factor = splat(builder, self._emission.dim(coefficient), count)
            along = builder.mul(self._index(vector), factor)
            apart = along if apart is None else builder.add(apart, along)
        assert apart is not None
        return self._gather(buffer, builder.add(apart, splat(builder, offset, count)), dtype)

    def _gather(self, buffer: ir.Value, offsets: ir.Value, dtype: DType) -> ir.Value:
        builder, count = self._builder, self._emission.schedule.lanes
        element = elements.memory_type(dtype)
        value: ir.Value = ir.Constant(ir.VectorType(element, count), ir.Undefined)
        for lane in range(count):
            offset = builder.extract_element(offsets, ir.Constant(I32, lane))
            address = self._address(buffer, offset, dtype)
            one = builder.load(address, typ=element, align=dtype.itemsize)
            value = builder.insert_element(value, one, ir.Constant(I32, lane))
        return elements.from_memory(builder, value, dtype)

    def store(self, result: int) -> None:
        """Store one result at this place."""
        builder, kernel = self._builder, self._kernel
        number, access = kernel.values[result], kernel.targets[result]
        dtype = kernel.steps[number].dtype
        buffer = self._emission.results[result]
        value = elements.to_memory(builder, self.value(number), dtype)
        lanes = self._place.lanes
        vector = self._emission.schedule.vector
        offset, apart = self._offset(access, base=True)
        assert apart is None, "vectors of results lie at affine offsets"
        if lanes is None:
            address = self._address(buffer, offset, dtype)
            if kernel.combine:
                before = builder.load(address, typ=value.type, align=dtype.itemsize)
                value = elements.combine(builder, kernel.combine, before, value, dtype)
            builder.store(value, address, align=dtype.itemsize)
            return
        assert vector is not None
        count = self._emission.schedule.lanes
        if not elements.lanes_of(value):
            value = splat(builder, value, count)
        coefficient = access.coefficients[vector]
        if coefficient == 1:
            address = self._address(buffer, offset, dtype)
            _vector_store(builder, value, address, dtype.itemsize, lanes.mask)
            return
        scratch = reserve(builder, value.type)
        builder.store(value, scratch)
        element = elements.memory_type(dtype)
        last = const(count) if lanes.count is None else lanes.count
        with counted_loop(builder, 0, last) as lane:
            place = builder.gep(scratch, [lane], source_etype=element)
            moved = builder.add(offset, builder.mul(lane, self._emission.dim(coefficient)))
            one = builder.load(place, typ=element)
            builder.store(one, self._address(buffer, moved, dtype), align=dtype.itemsize)


def _vector_load(
    builder: ir.IRBuilder, address: ir.Value, type_: ir.VectorType, align: int,
    mask: ir.Value | None,
) -> ir.Value:  # fmt: skip
    if mask is None:
        return builder.load(address, typ=type_, align=align)
    name = f"llvm.masked.load.{elements.suffix(type_)}.p0"
    function = intrinsic(builder.module, name, type_, [PTR, I32, mask.type, type_])
    return builder.call(function, [address, ir.Constant(I32, align), mask, elements.zero(type_)])


def _vector_store(
    builder: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int, mask: ir.Value | None
) -> None:
    if mask is None:
        builder.store(value, address, align=align)
        return
    name = f"llvm.masked.store.{elements.suffix(value.type)}.p0"
    function = intrinsic(builder.module, name, VOID, [value.type, PTR, I32, mask.type])
    builder.call(function, [value, address, ir.Constant(I32, align), mask])
