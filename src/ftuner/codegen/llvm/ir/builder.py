"""The builder of LLVM IR: types, byte addressing, slots of records, vectors, loops.

All indices of loops are i64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import llvmlite.ir as ir

from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.dtype import (
    BFLOAT16,
    BFLOAT16X2,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8X4,
    TENSOR_DTYPES,
    UINT8X4,
    DType,
)

VOID = ir.VoidType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
PTR = ir.PointerType()

Values = Sequence[ir.Value]
QUARTER_BYTES = 16
"""The unit that shuffles of any ISA move freely: a vector of SSE2 and NEON, a quarter of one of
AVX-512."""


SCALAR_TYPES: Mapping[DType, ir.Type] = {
    FLOAT32: ir.FloatType(),
    FLOAT64: ir.DoubleType(),
    # Values of half precision are in memory alone.
    FLOAT16: ir.FloatType(),
    BFLOAT16: ir.FloatType(),
    BOOL: I1,
    BFLOAT16X2: I32,
    UINT8X4: I32,
    INT8X4: I32,
    **{t: ir.IntType(t.bits) for t in TENSOR_DTYPES.values() if t.kind in ("int", "uint")},
}
"""The type of an element in a register, by dtype."""


FLOAT_DTYPES: Mapping[str, DType] = {"f32": FLOAT32, "f64": FLOAT64}
"""By the end of `type_suffix`."""


def scalar_type(dtype: DType) -> ir.Type:
    """The type of an element in a register. Raises KeyError for a dtype without one."""
    return SCALAR_TYPES[dtype]


@lru_cache(maxsize=4096)
def const(value: int) -> ir.Constant:
    """An i64. Constants write their text once: one object for all of a value."""
    return ir.Constant(I64, value)


@cache
def _splat_operands(element: ir.Type, lanes: int) -> tuple[ir.Constant, ir.Constant]:
    """A vector of nothing, and the number of its first lane for all lanes."""
    undefined = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
    return undefined, ir.Constant(ir.VectorType(I32, lanes), None)


def quarter_lanes(dtype: DType) -> int:
    return QUARTER_BYTES // dtype.itemsize


def intrinsic(
    module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]
) -> ir.Function:
    """The declaration of an LLVM intrinsic or an external function, once per module."""
    found = module.globals.get(name)
    if found is not None:
        return found
    return ir.Function(module, ir.FunctionType(result, arguments), name)


def type_suffix(type_: ir.Type) -> str:
    """LLVM's name of a type, as intrinsics carry it: `v8f32`, `f64`, `v16i8`."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{type_suffix(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    assert isinstance(type_, (ir.FloatType, ir.DoubleType)), type_
    return "f32" if isinstance(type_, ir.FloatType) else "f64"


def _operand(value: ir.Value | int) -> ir.Value:
    return const(value) if isinstance(value, int) else value


def _of_two(operation: str) -> Callable[..., ir.Value]:
    """An instruction of two operands of one type, of which the second may be a Python integer."""

    def emit(
        builder: IRBuilder, x: ir.Value, y: ir.Value | int, name: str = "",
        flags: Sequence[str] = (),
    ) -> ir.Value:  # fmt: skip
        if isinstance(y, int):
            y = const(y)
        kind, block = x.type, builder._block
        assert kind is y.type or kind == y.type, (operation, kind, y.type)
        found = ir.instructions.Instruction(block, kind, operation, (x, y), name, flags)
        builder._insert(found)
        return found

    return emit


class IRBuilder(ir.IRBuilder):  # type: ignore[misc]
    """llvmlite's builder with shorthands. Operands after the first may be Python integers: i64."""

    add, sub, mul = _of_two("add"), _of_two("sub"), _of_two("mul")
    udiv, urem, sdiv, srem = _of_two("udiv"), _of_two("urem"), _of_two("sdiv"), _of_two("srem")
    and_, or_, xor = _of_two("and"), _of_two("or"), _of_two("xor")
    shl, lshr, ashr = _of_two("shl"), _of_two("lshr"), _of_two("ashr")

    def icmp_signed(self, comparison: str, x: ir.Value, y: ir.Value | int) -> ir.Value:
        return super().icmp_signed(comparison, x, const(y) if isinstance(y, int) else y)

    def icmp_unsigned(self, comparison: str, x: ir.Value, y: ir.Value | int) -> ir.Value:
        return super().icmp_unsigned(comparison, x, const(y) if isinstance(y, int) else y)

    def select(self, condition: ir.Value, x: ir.Value | int, y: ir.Value | int) -> ir.Value:
        return super().select(condition, _operand(x), _operand(y))

    def store(self, value: ir.Value | int, address: ir.Value, align: int | None = None) -> ir.Value:
        return super().store(const(value) if isinstance(value, int) else value, address, align)

    def at(
        self, pointer: ir.Value, offset: ir.Value | int, unit: ir.Value | int | None = None
    ) -> ir.Value:
        """The address `offset` times `unit` bytes from `pointer`; `offset` bytes without a unit."""
        index = const(offset) if isinstance(offset, int) else offset
        if unit is not None:
            index = self.mul(index, unit)
        if isinstance(index, ir.Constant) and index.constant == 0:
            return pointer
        return self.gep(pointer, [index], source_etype=I8)

    def slot_address(self, record: ir.Value, index: ir.Value | int) -> ir.Value:
        """The address of a slot of a record, or of a word of an array."""
        if isinstance(index, int):
            return self.at(record, index * SLOT_BYTES)
        return self.at(record, index, SLOT_BYTES)

    def slot(self, record: ir.Value, index: ir.Value | int) -> ir.Value:
        """The integer in a slot of a record."""
        return self.load(self.slot_address(record, index), typ=I64)

    def pointer_slot(self, record: ir.Value, index: ir.Value | int) -> ir.Value:
        """The pointer in a slot of a record."""
        return self.load(self.slot_address(record, index), typ=PTR)

    def slots(self, record: ir.Value, *indices: ir.Value | int) -> list[ir.Value]:
        """The integers in some slots of a record."""
        return [self.slot(record, index) for index in indices]

    def pointer_slots(self, record: ir.Value, *indices: ir.Value | int) -> list[ir.Value]:
        """The pointers in some slots of a record."""
        return [self.pointer_slot(record, index) for index in indices]

    def set_slot(self, record: ir.Value, index: ir.Value | int, value: ir.Value | int) -> None:
        self.store(value, self.slot_address(record, index))

    def record_at(self, records: ir.Value, index: ir.Value, slots: int) -> ir.Value:
        """The address of one of some records, of `slots` slots each."""
        return self.at(records, index, slots * SLOT_BYTES)

    def minimum(self, x: ir.Value, y: ir.Value | int) -> ir.Value:
        """The smaller of two signed integers."""
        return self.select(self.icmp_signed("<", x, y), x, y)

    def maximum(self, x: ir.Value, y: ir.Value | int) -> ir.Value:
        """The larger of two signed integers."""
        return self.select(self.icmp_signed(">", x, y), x, y)

    def reserve(self, kind: ir.Type, align: int = 64) -> ir.Value:
        """Stack memory for one value of `kind`, reserved once per call of the function."""
        with self.goto_entry_block():
            memory = self.alloca(kind)
        memory.align = align
        # llvmlite still gives stack memory a typed pointer, which does not mix with opaque ones.
        memory.type = PTR
        return memory

    def variable(self, value: ir.Value | int, align: int = SLOT_BYTES) -> ir.Value:
        """Stack memory, as of `reserve`, that holds a value from here on."""
        value = _operand(value)
        memory = self.reserve(value.type, align)
        self.store(value, memory)
        return memory

    def joined(self, values: Sequence[ir.Value], blocks: Sequence[ir.Block]) -> ir.Value:
        """The value of the block that control came from."""
        phi = self.phi(values[0].type)
        for value, block in zip(values, blocks, strict=True):
            phi.add_incoming(value, block)
        return phi

    def changed_if(
        self, condition: ir.Value, values: Values, change: Callable[[], Values]
    ) -> list[ir.Value]:
        """`change()`, computed where the condition holds, else `values`."""
        before = self.block
        with self.if_then(condition):
            changed = change()
            inside = self.block
        return [self.joined(both, (before, inside)) for both in zip(values, changed, strict=True)]

    def splat(self, scalar: ir.Value, lanes: int) -> ir.Value:
        undefined, zeros = _splat_operands(scalar.type, lanes)
        first = self.insert_element(undefined, scalar, const(0))
        return self.shuffle_vector(first, undefined, zeros)

    def shuffle(self, x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """Lanes of the concatenation of `x` and `y`."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.shuffle_vector(x, y, mask)

    def transpose(self, rows: list[ir.Value], n: int) -> list[ir.Value]:
        """`n` vectors, transposed in each group of `n` lanes: lane `i` of group `g` of the result
        `j` is lane `j` of group `g` of vector `i`. `n` is a power of two."""
        lanes, half = rows[0].type.count, n // 2
        pairs = [[(g + i, lanes + g + i) for i in range(n)] for g in range(0, lanes, n)]
        low = [lane for group in pairs for pair in group[:half] for lane in pair]
        high = [lane for group in pairs for pair in group[half:] for lane in pair]
        # Each round interleaves a vector with the one half of all vectors further on.
        for _ in range(n.bit_length() - 1):
            rows = [
                self.shuffle(x, y, lanes_taken)
                for x, y in zip(rows[:half], rows[half:], strict=True)
                for lanes_taken in (low, high)
            ]
        return rows

    def interleave(self, vectors: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns as many vectors as are given: lane 0 of all of them, then lane 1 of all, and so
        on."""
        lanes, count = vectors[0].type.count, len(vectors)
        found = []
        for part in range(count):
            places = [divmod(part * lanes + lane, count) for lane in range(lanes)]
            value = vectors[0]
            for number, vector in enumerate(vectors[1:], 1):
                # Lanes of the vectors so far are in place, except that the first has not moved yet.
                taken = [
                    lanes + source if of == number else lane if number > 1 else source
                    for lane, (source, of) in enumerate(places)
                ]
                value = self.shuffle(value, vector, taken)
            found.append(value)
        return found

    def any_lane(self, condition: ir.Value) -> ir.Value:
        """Whether a condition, a vector or a scalar, holds in any lane."""
        if not isinstance(condition.type, ir.VectorType):
            return condition
        name = f"llvm.vector.reduce.or.{type_suffix(condition.type)}"
        return self.external(name, I1, condition)

    def opaque(self, value: ir.Value) -> ir.Value:
        """Returns the same integer, hidden from the compiler, which leaves its computation as it
        is."""
        same = ir.FunctionType(value.type, [value.type])
        return self.asm(same, "", "=r,0", [value], False)

    def frozen(self, loaded: ir.Value) -> ir.Value:
        """A loaded value that LLVM does not trace back to its load. It makes a masked store of the
        choice between what memory holds and another vector, which takes AMD Zen 3 three times as
        long as a store of the chosen one. No instruction."""
        instruction = ir.instructions.Instruction(self.block, loaded.type, "freeze", [loaded])
        self._insert(instruction)
        return instruction

    def in_order(self, vectors: Sequence[ir.Value]) -> None:
        """Have vectors in registers of x86 here: what they follow from comes before, and loads and
        stores stay on their side. No instruction."""
        kinds = [vector.type for vector in vectors]
        constraints = ",".join([*["v"] * len(kinds), "~{memory}"])
        self.asm(ir.FunctionType(VOID, kinds), "", constraints, vectors, True)

    def add_chains(self, sums: Sequence[ir.Value], tile: int) -> list[ir.Value]:
        """The sums of all chains together; `sums` holds `tile` values for each chain."""
        total = list(sums[:tile])
        for chain in range(tile, len(sums), tile):
            added = sums[chain : chain + tile]
            add = self.add if isinstance(total[0].type.element, ir.IntType) else self.fadd
            total = [add(x, y) for x, y in zip(total, added, strict=True)]
        return total

    def call_address(
        self, kind: ir.FunctionType, address: ir.Value, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        """Call the function of type `kind` at an address."""
        # llvmlite finds a callee's type in the type of its pointer, which a cast to itself would
        # not change: go through an integer, which LLVM folds away.
        callee = self.inttoptr(self.ptrtoint(address, I64), kind.as_pointer())
        return self.call(callee, arguments)

    def external(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call an LLVM intrinsic or an external function whose parameters have the types of the
        arguments."""
        kinds = [argument.type for argument in arguments]
        return self.call(intrinsic(self.module, name, result, kinds), arguments)

    def shared(
        self, name: str, result: ir.Type, given: Values, body: Callable[..., Any], *attributes: str
    ) -> ir.Value:
        """Call the module's one internal function of a name, which is added on first use:
        `body(builder, *arguments)` emits its result, or None if that is void."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [value.type for value in given])
            inner, arguments = begun(self.module, kind, name, internal=True)
            function = inner.function
            for attribute in attributes:
                function.attributes.add(attribute)
            found = body(inner, *arguments)
            inner.ret_void() if result == VOID else inner.ret(found)
        return self.call(function, given)

    @contextmanager
    def counted_loop(
        self, begin: ir.Value | int, end: ir.Value | int, step: ir.Value | int = 1
    ) -> Iterator[ir.Value]:
        """Emit `for (index = begin; index < end; index += step)`; yields the i64 index.

        `begin` and `end` are i64 values, compared as signed, or Python integers; the body runs zero
        times if `begin >= end`. `step` is positive, and `end + step` must not overflow. Inside the
        context the builder is in the body, afterwards after the loop; the body may add blocks.
        """
        assert not isinstance(step, int) or step > 0, f"step {step} of a counted loop"
        begin, end, step = _operand(begin), _operand(end), _operand(step)
        entry = self.block
        head = self.append_basic_block("loop.head")
        body = self.append_basic_block("loop.body")
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64, "index")
        index.add_incoming(begin, entry)
        inside = self.icmp_signed("<", index, end)
        self.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, step, flags=("nsw",)), self.block)
        self.branch(head)
        # Appended only now, so that the text of nested loops nests as well.
        done = self.append_basic_block("loop.done")
        self.position_at_end(head)
        self.cbranch(inside, body, done)
        self.position_at_end(done)

    def carried_loop(
        self,
        count: ir.Value,
        values: Sequence[ir.Value],
        body: Callable[[list[ir.Value]], list[ir.Value]],
        some: bool = False,
    ) -> list[ir.Value]:
        """Emit a loop of `count` (i64) rounds that keeps `values` in registers; returns the last.

        `body` gets the values of a round and returns those of the next, of the same types; it may
        add blocks. With a count of zero or less no round runs; `some`: the count is known to be
        positive.
        """
        before = self.block
        inside = self.append_basic_block("carried.body")
        after = self.append_basic_block("carried.done")
        # Where the count may be zero, it is compared first: values then have one place before.
        head = inside if some else self.append_basic_block("carried.head")
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        carried = [self.phi(value.type) for value in values]
        if not some:
            self.cbranch(self.icmp_signed("<", index, count), inside, after)
            self.position_at_end(inside)
        result = body(list(carried))
        following = self.add(index, 1)
        if some:
            self.cbranch(self.icmp_signed("<", following, count), inside, after)
        else:
            self.branch(head)
        for phi, initial, update in zip(
            (index, *carried), (const(0), *values), (following, *result), strict=True
        ):
            phi.add_incoming(initial, before)
            phi.add_incoming(update, self.block)
        self.position_at_end(after)
        return result if some else carried

    @contextmanager
    def while_holds(self, condition: Callable[[], ir.Value]) -> Iterator[None]:
        """Emit a loop, which begins with its condition."""
        head, body, done = (self.append_basic_block(f"while.{x}") for x in ("head", "body", "done"))
        self.branch(head)
        self.position_at_end(head)
        self.cbranch(condition(), body, done)
        self.position_at_end(body)
        yield
        self.branch(head)
        self.position_at_end(done)

    def partition_bounds(
        self, extent: ir.Value | int, parts: ir.Value | int, worker: ir.Value | int
    ) -> tuple[ir.Value, ir.Value]:
        """Emit `ftuner.core.ranges.bounds`: the half-open i64 range (begin, end) of `worker`.

        All are i64 values or Python integers, with `extent >= 0`, `0 <= worker < parts`, and
        `extent * parts` below 2**63.
        """
        extent, parts, worker = _operand(extent), _operand(parts), _operand(worker)
        # Unsigned division, which the ranges above allow, spares the sign fix-ups of a signed one.
        flags = ("nuw", "nsw")
        following = self.add(worker, 1, flags=flags)
        begin = self.udiv(self.mul(worker, extent, flags=flags), parts)
        end = self.udiv(self.mul(following, extent, flags=flags), parts)
        return begin, end


def begun(
    module: ir.Module, kind: ir.FunctionType, symbol: str, internal: bool = False
) -> tuple[IRBuilder, Sequence[ir.Argument]]:
    """Add a function to a module: a builder at its begin, and its arguments. `internal`: whether
    nothing outside of the module calls it."""
    function = ir.Function(module, kind, symbol)
    if internal:
        function.linkage = "internal"
    return IRBuilder(function.append_basic_block("entry")), function.args
