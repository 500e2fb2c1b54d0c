"""The values of a nest's steps at one place, in LLVM IR: loads, arithmetic, checks, stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir import random_numbers
from ftuner.codegen.llvm.ir.builder import I1, I32, I64, const, scalar_type
from ftuner.codegen.llvm.ir.byte_tables import looked_up
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_apart, load_lanes, store_lanes
from ftuner.codegen.llvm.ir.vector_math import exp_flushed
from ftuner.codegen.llvm.kernels.step import fail
from ftuner.core.access import Access, affine_index, guards, terms
from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, UINT8, DType
from ftuner.schedules.nest.cpu_kernel_levels import as_bytes, as_floats, levels_at, shifted_levels
from ftuner.schedules.nest.cpu_kernel_place import MOST_APART, Frame, Place


def load_single_elements(frame: Frame) -> None:
    """Load before all loops what no loop changes: in these, LLVM cannot know that no store does."""
    kernel = frame.kernel
    for number, (access, guard) in enumerate(zip(kernel.accesses, guards(kernel), strict=True)):
        if access is not None and not (any(access.coefficients) or access.rest or guard):
            frame.known[number] = Values(frame, Place({}, None)).value(number)


class Values:
    """The values of steps at one place, each computed once."""

    def __init__(self, frame: Frame, place: Place) -> None:
        self._frame = frame
        self._builder = frame.builder
        self._kernel = frame.kernel
        self._place = place
        self.known = {**frame.known, **place.known}
        """Those that have been computed."""
        self._levels: dict[int, ir.Value | None] = {}

    def value(self, number: int) -> ir.Value:
        found = self.known.get(number)
        if found is None:
            found = self.known[number] = self._compute(number)
        return found

    def _compute(self, number: int) -> ir.Value:
        step = self._kernel.steps[number]
        builder, place = self._builder, self._place
        if number in place.holds:
            return ir.Constant(I1, 1)
        if step.op == "constant":
            assert isinstance(step.payload, (int, float))
            return ir.Constant(scalar_type(step.dtype), step.payload)
        if step.op == "dim":
            return self._frame.dim(step.payload)  # type: ignore[arg-type]
        if step.op == "index":
            return self._index(step.number)
        if step.op == "stage":
            return place.stages[step.number]
        access = self._kernel.accesses[number]
        if access is not None:
            return self._load(number, self._frame.operands[step.number], access, step.dtype)
        source = self._kernel.steps[step.arguments[0]].dtype
        if step.op == "cast" and (shifted := self._shifted(number)) is not None:
            return as_bytes(builder, shifted)
        if step.op == "cast" and step.dtype == FLOAT32:
            shifted = self._shifted(step.arguments[0])
            if shifted is not None:
                return as_floats(builder, shifted)
        arguments = elements.widened(builder, [self.value(a) for a in step.arguments])
        if number in self._frame.powers and source in (FLOAT32, FLOAT64):
            return exp_flushed(builder, arguments[0], fused=self._frame.fused)
        if step.op == "divide" and step.arguments[1] in self._frame.sums:
            one = elements.number(arguments[1].type, 1.0)
            return builder.fmul(arguments[0], builder.fdiv(one, arguments[1]))
        if step.op == "cast":
            return elements.cast(builder, arguments[0], source, step.dtype)
        if step.op == "bit_cast":
            return elements.bit_cast(builder, arguments[0], source, step.dtype)
        if step.op == "checked":
            return self._checked(number, arguments[0], arguments[1], str(step.payload))
        if step.op == "philox":
            return random_numbers.philox(builder, arguments[0], arguments[1])
        if step.op == "normal":
            return random_numbers.normal(builder, arguments[0], arguments[1], step.dtype)
        return elements.apply(builder, step.op, arguments, source, self._frame.fused)

    def _shifted(self, number: int) -> ir.Value | None:
        """The levels that a step rounds to, as of `shifted_levels`, if it does."""
        if number not in self._levels:
            found = levels_at(self._kernel.steps, number)
            if found is not None:
                found = shifted_levels(self._builder, found, self.value, self._frame.fused)
            self._levels[number] = found
        return self._levels[number]

    def _index(self, axis: int) -> ir.Value:
        """Along the vector axis, lanes beyond the last element repeat it."""
        lanes = self._place.lanes
        if axis != self._frame.schedule.vector or lanes is None:
            return self._place.index[axis]
        builder, count = self._builder, self._frame.schedule.lanes
        numbers = ir.Constant(ir.VectorType(I64, count), list(range(count)))
        if lanes.count is not None:
            last = builder.splat(builder.sub(lanes.count, 1), count)
            inside = builder.icmp_signed("<", numbers, last)
            numbers = builder.select(inside, numbers, last)
        return builder.add(builder.splat(lanes.base, count), numbers)

    def _guard(self, number: int) -> ir.Value | None:
        """The condition under which a step is needed; None if it always is."""
        builder = self._builder
        found: ir.Value | None = None
        for condition, wanted in sorted(self._frame.guards[number]):
            if wanted and condition in self._place.holds:
                continue
            term = self.value(condition)
            term = term if wanted else builder.not_(term)
            found = (
                term if found is None else builder.and_(*elements.widened(builder, [found, term]))
            )
        return found

    def _checked(self, number: int, index: ir.Value, extent: ir.Value, text: str) -> ir.Value:
        builder = self._builder
        none, given = elements.zero(index.type), index
        wrapped = builder.add(index, extent)
        index = builder.select(builder.icmp_signed("<", index, none), wrapped, index)
        inside = builder.icmp_unsigned("<", index, extent)
        wrong = builder.not_(inside)
        guard = self._guard(number)
        if guard is not None:
            wrong = builder.and_(*elements.widened(builder, [wrong, guard]))
        lanes = self._place.lanes
        if lanes is not None and lanes.mask is not None and wrong.type == lanes.mask.type:
            wrong = builder.and_(wrong, lanes.mask)
        with builder.if_then(self._builder.any_lane(wrong), likely=False):
            number = self._kernel.checks().index(text) + 1
            fail(builder, self._frame.status, number, wrong, given, extent)
        return builder.select(inside, index, none)

    def _slope(self, number: int) -> int | None:
        """How much a padded index grows along the vector axis; None unless its conditions hold."""
        kernel, place = self._kernel, self._place
        step = kernel.steps[number]
        if place.lanes is None or step.op != "where":
            return None
        condition, index, _ = step.arguments
        own = affine_index(kernel.steps, index, len(kernel.axes))
        known = all(c in place.holds for c, _ in terms(kernel, condition, True))
        slope = own.coefficients[self._frame.schedule.along]
        return slope if known and isinstance(slope, int) and not own.rest else None

    def _step(self, access: Access) -> int | None:
        """The distance of the elements of successive lanes in memory as far as it is even, if it is
        short and known."""
        found = access.coefficients[self._frame.schedule.along]
        for number, factor in access.rest:
            found = found + (self._slope(number) or 0) * factor
        return found if isinstance(found, int) and abs(found) <= MOST_APART else None

    def _first(self, number: int) -> ir.Value:
        """A step of the first lane, if it grows evenly from there; else of all lanes."""
        if self._slope(number) is None:
            return self.value(number)
        place = self._place
        assert place.lanes is not None
        first = {**place.index, self._frame.schedule.along: place.lanes.base}
        return Values(self._frame, replace(place, index=first, lanes=None)).value(number)

    def _offset(self, access: Access, base: bool) -> tuple[ir.Value, ir.Value | None]:
        """The offset of the first lane, and what each lane adds to it beside its number, if
        anything; with `base`, the position along the vector axis is in the former."""
        builder, frame = self._builder, self._frame
        offset = frame.dim(access.constant)
        apart: ir.Value | None = None
        vector = frame.schedule.vector if self._place.lanes is not None else None
        terms: list[tuple[ir.Value, Dim]] = [
            (self._place.index[axis], c)
            for axis, c in enumerate(access.coefficients)
            if c != 0 and axis != vector
        ]
        if vector is not None and base and access.coefficients[vector] != 0:
            assert self._place.lanes is not None
            terms.append((self._place.lanes.base, access.coefficients[vector]))
        terms += [(self._first(step) if base else self.value(step), c) for step, c in access.rest]
        for value, coefficient in terms:
            count = elements.lanes_of(value)
            factor = frame.dim(coefficient)
            if count:
                factor = builder.splat(factor, count)
            term = value if coefficient == 1 else builder.mul(value, factor)
            if not count:
                offset = builder.add(offset, term)
            else:
                apart = term if apart is None else builder.add(apart, term)
        return offset, apart

    def _address(self, buffer: ir.Value, offset: ir.Value, dtype: DType) -> ir.Value:
        element = elements.memory_type(dtype)
        return self._builder.gep(buffer, [offset], source_etype=element)

    def apart(self, number: int) -> ir.Value:
        """What each lane adds to the offset of a load of which other steps say where lanes are."""
        access = self._kernel.accesses[number]
        assert access is not None
        return self._scattered(access)[1]

    def _scattered(self, access: Access) -> tuple[ir.Value, ir.Value]:
        """The offset that all lanes have, and what each lane adds to it."""
        builder, vector = self._builder, self._frame.schedule.vector
        offset, apart = self._offset(access, base=False)
        coefficient = 0 if vector is None else access.coefficients[vector]
        if coefficient != 0:
            factor = builder.splat(self._frame.dim(coefficient), self._frame.schedule.lanes)
            along = builder.mul(self._index(self._frame.schedule.along), factor)
            apart = along if apart is None else builder.add(apart, along)
        assert apart is not None
        return offset, apart

    def _load(self, number: int, buffer: ir.Value, access: Access, dtype: DType) -> ir.Value:
        builder, lanes = self._builder, self._place.lanes
        window = self._place.windows.get(number)
        if window is not None:
            offset = builder.add(self._offset(access, base=False)[0], window.low)
            address, element = self._address(buffer, offset, dtype), elements.memory_type(dtype)
            value = window.picked(builder, address, element, dtype.itemsize)
            return elements.from_memory(builder, value, dtype)
        guard = self._guard(number)
        # Where one lane is needed, so is what all lanes read alike.
        needed = None if guard is None else self._builder.any_lane(guard)
        own = guard if guard is not None and elements.lanes_of(guard) else None
        step = 0 if lanes is None else self._step(access)
        offset, apart = self._offset(access, base=step is not None)
        element = elements.memory_type(dtype)
        count = self._frame.schedule.lanes
        type_ = ir.VectorType(element, count)
        address = self._address(buffer, offset, dtype)
        if apart is None and step == 0:
            address = self._chosen(needed, address)
            value = builder.load(address, typ=element, align=dtype.itemsize)
            return elements.from_memory(builder, value, dtype)
        if apart is None and step == 1:
            assert lanes is not None
            mask = lanes.mask
            if own is None:
                address = self._chosen(needed, address)
            else:
                mask = own if mask is None else builder.and_(mask, own)
            value = load_lanes(builder, address, type_, dtype.itemsize, mask)
            return elements.from_memory(builder, value, dtype)
        mask = own
        if lanes is not None and lanes.mask is not None:
            mask = lanes.mask if own is None else builder.and_(lanes.mask, own)
        reaches = own is not None or needed is None or (step is not None and step > 0)
        # Narrower elements are not loaded under a mask by all instruction sets.
        if (
            apart is None
            and step is not None
            and lanes
            and reaches
            and (mask is None or dtype.itemsize >= 4)
        ):
            address = address if own is not None else self._chosen(needed, address)
            value = load_apart(builder, address, type_, dtype.itemsize, step, mask)
            return elements.from_memory(builder, value, dtype)
        if guard is None and (levels := self._looked_up(access, dtype)) is not None:
            return looked_up(builder, self._frame.table(number), levels)
        # Large strides, or data-dependent positions: compute from positions, which stay in range.
        offset, apart = self._scattered(access)
        if needed is None:
            # Loads that differ in the scalar part alone share the offsets of their lanes.
            return self._gather(self._address(buffer, offset, dtype), apart, dtype)
        offsets = builder.add(apart, builder.splat(offset, count))
        each = needed if own is None else own
        offsets = builder.select(each, offsets, elements.zero(offsets.type))
        return self._gather(self._chosen(needed, buffer), offsets, dtype)

    def _looked_up(self, access: Access, dtype: DType) -> ir.Value | None:
        """The bytes that are indices of a load of bytes, if they are that. It is not checked, so
        that there are 256 of these."""
        if not self._frame.shuffles or dtype.itemsize > 1 or dtype == BOOL:
            return None
        if access.constant != 0 or any(access.coefficients) or len(access.rest) != 1:
            return None
        ((number, factor),) = access.rest
        steps = self._kernel.steps
        if factor != 1 or steps[number].op != "cast":
            return None
        (source,) = steps[number].arguments
        levels = self.value(source) if steps[source].dtype == UINT8 else None
        return levels if levels is not None and elements.lanes_of(levels) else None

    def _chosen(self, needed: ir.Value | None, address: ir.Value) -> ir.Value:
        """An address, or that of zeros where nothing may be read."""
        if needed is None:
            return address
        return self._builder.select(needed, address, self._frame.nothing)

    def _gather(self, buffer: ir.Value, offsets: ir.Value, dtype: DType) -> ir.Value:
        builder, count = self._builder, self._frame.schedule.lanes
        element = elements.memory_type(dtype)
        value: ir.Value = ir.Constant(ir.VectorType(element, count), ir.Undefined)
        for lane in range(count):
            offset = builder.extract_element(offsets, ir.Constant(I32, lane))
            address = self._address(buffer, offset, dtype)
            one = builder.load(address, typ=element, align=dtype.itemsize)
            value = builder.insert_element(value, one, ir.Constant(I32, lane))
        return elements.from_memory(builder, value, dtype)

    def recall(self, step: int, result: int) -> None:
        """Load the value of a step that `store` kept in the place of a result."""
        target, dtype = self._kernel.targets[result], self._kernel.steps[step].dtype
        self.known[step] = self._load(step, self._frame.results[result], target, dtype)

    def store(self, result: int, step: int | None = None) -> None:
        """Store one result at this place, or a step in its place."""
        builder, kernel = self._builder, self._kernel
        number, access = kernel.values[result] if step is None else step, kernel.targets[result]
        dtype = kernel.steps[number].dtype
        buffer = self._frame.results[result]
        value = elements.to_memory(builder, self.value(number), dtype)
        lanes = self._place.lanes
        offset, apart = self._offset(access, base=True)
        assert apart is None, "vectors of results have affine offsets"
        if lanes is None:
            address = self._address(buffer, offset, dtype)
            if kernel.combine:
                before = builder.load(address, typ=value.type, align=dtype.itemsize)
                value = elements.combine(builder, kernel.combine, before, value, dtype)
            builder.store(value, address, align=dtype.itemsize)
            return
        count = self._frame.schedule.lanes
        if not elements.lanes_of(value):
            value = builder.splat(value, count)
        coefficient = access.coefficients[self._frame.schedule.along]
        if coefficient == 1:
            address = self._address(buffer, offset, dtype)
            if kernel.combine:
                before = load_lanes(builder, address, value.type, dtype.itemsize, lanes.mask)
                before = builder.frozen(before)
                value = elements.combine(builder, kernel.combine, before, value, dtype)
            store_lanes(builder, value, address, dtype.itemsize, lanes.mask)
            return
        scratch = builder.reserve(value.type)
        builder.store(value, scratch)
        element = elements.memory_type(dtype)
        last = const(count) if lanes.count is None else lanes.count
        with builder.counted_loop(0, last) as lane:
            place = builder.gep(scratch, [lane], source_etype=element)
            moved = builder.add(offset, builder.mul(lane, self._frame.dim(coefficient)))
            one = builder.load(place, typ=element)
            builder.store(one, self._address(buffer, moved, dtype), align=dtype.itemsize)

    def ahead(self) -> ir.Value | None:
        """The elements from this one, along the vector axis, to where vectors of the first result
        are aligned in memory: `lanes` if they are here. None if they are not side by side."""
        builder, schedule, vector = self._builder, self._frame.schedule, self._frame.schedule.vector
        target, dtype = self._kernel.targets[0], self._kernel.steps[self._kernel.values[0]].dtype
        if vector is None or target.coefficients[vector] != 1:
            return None
        address = self._address(self._frame.results[0], self._offset(target, base=True)[0], dtype)
        number = builder.udiv(builder.ptrtoint(address, I64), dtype.itemsize)
        after = builder.and_(number, schedule.lanes - 1)
        return builder.sub(const(schedule.lanes), after)

    def _mask_of_part(self, lanes: ir.Value, vectors: int, part: int) -> ir.Value:
        """The mask of one of several vectors, whose elements were interleaved of `lanes` each."""
        builder, count = self._builder, self._frame.schedule.lanes
        if isinstance(lanes, ir.Constant):
            return lanes_below(builder, const(lanes.constant * vectors - part * count), count)
        left = builder.sub(builder.mul(lanes, vectors), part * count)
        return lanes_below(builder, left, count)

    def store_interleaved(self, result: int, others: Sequence[Values]) -> None:
        """Store one result at this place and at those that follow it in memory: for each lane, the
        elements of all places one after the other."""
        builder, kernel, lanes = self._builder, self._kernel, self._place.lanes
        assert lanes is not None
        number, count = kernel.values[result], self._frame.schedule.lanes
        dtype = kernel.steps[number].dtype
        vectors = []
        for place in (self, *others):
            value = elements.to_memory(builder, place.value(number), dtype)
            vectors.append(value if elements.lanes_of(value) else builder.splat(value, count))
        offset, apart = self._offset(kernel.targets[result], base=True)
        assert apart is None, "vectors of results have affine offsets"
        for part, value in enumerate(builder.interleave(vectors)):
            here = builder.add(offset, part * count)
            address = self._address(self._frame.results[result], here, dtype)
            mask = None
            if lanes.count is not None:
                mask = self._mask_of_part(lanes.count, len(vectors), part)
            store_lanes(builder, value, address, dtype.itemsize, mask)
