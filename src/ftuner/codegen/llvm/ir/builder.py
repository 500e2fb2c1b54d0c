"""Shorthands for writing LLVM IR: types, byte addressing, slots of records, vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

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


def at(builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value | int) -> ir.Value:
    """The address `offset` bytes from `pointer`."""
    index = const(offset) if isinstance(offset, int) else offset
    if isinstance(index, ir.Constant) and index.constant == 0:
        return pointer
    return builder.gep(pointer, [index], source_etype=I8)


def begun(
    module: ir.Module, kind: ir.FunctionType, symbol: str, internal: bool = False
) -> tuple[ir.IRBuilder, Sequence[ir.Argument]]:
    """Add a function to a module: a builder at its begin, and its arguments. `internal`: whether
    nothing outside of the module calls it."""
    function = ir.Function(module, kind, symbol)
    if internal:
        function.linkage = "internal"
    return ir.IRBuilder(function.append_basic_block("entry")), function.args


def slot_address(builder: ir.IRBuilder, record: ir.Value, index: int) -> ir.Value:
    """The address of a slot of a record."""
    return at(builder, record, index * SLOT_BYTES)


def slot(builder: ir.IRBuilder, record: ir.Value, index: int) -> ir.Value:
    """The integer in a slot of a record."""
    return builder.load(slot_address(builder, record, index), typ=I64)


def pointer_slot(builder: ir.IRBuilder, record: ir.Value, index: int) -> ir.Value:
    """The pointer in a slot of a record."""
    return builder.load(slot_address(builder, record, index), typ=PTR)


def set_slot(builder: ir.IRBuilder, record: ir.Value, index: int, value: ir.Value) -> None:
    builder.store(value, slot_address(builder, record, index))


def record_at(
    builder: ir.IRBuilder, records: ir.Value, index: ir.Value, slots: int = 1
) -> ir.Value:
    """The address of one of some records, of `slots` slots each."""
    return at(builder, records, builder.mul(index, const(slots * SLOT_BYTES)))


def minimum(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The smaller of two signed integers."""
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def maximum(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger of two signed integers."""
    return builder.select(builder.icmp_signed(">", x, y), x, y)


def reserve(builder: ir.IRBuilder, kind: ir.Type, align: int = 64) -> ir.Value:
    """Stack memory for one value of `kind`, reserved once per call of the function."""
    with builder.goto_entry_block():
        memory = builder.alloca(kind)
    memory.align = align
    # llvmlite still gives stack memory a typed pointer, which does not mix with opaque ones.
    memory.type = PTR
    return memory


def variable(builder: ir.IRBuilder, value: ir.Value, align: int = SLOT_BYTES) -> ir.Value:
    """Stack memory, as of `reserve`, that holds a value from here on."""
    memory = reserve(builder, value.type, align)
    builder.store(value, memory)
    return memory


def joined(
    builder: ir.IRBuilder, values: Sequence[ir.Value], blocks: Sequence[ir.Block]
) -> ir.Value:
    """The value of the block that control came from."""
    phi = builder.phi(values[0].type)
    for value, block in zip(values, blocks, strict=True):
        phi.add_incoming(value, block)
    return phi


def splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    undefined, zeros = _splat_operands(scalar.type, lanes)
    first = builder.insert_element(undefined, scalar, const(0))
    return builder.shuffle_vector(first, undefined, zeros)


@cache
def _splat_operands(element: ir.Type, lanes: int) -> tuple[ir.Constant, ir.Constant]:
    """A vector of nothing, and the number of its first lane for all lanes."""
    undefined = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
    return undefined, ir.Constant(ir.VectorType(I32, lanes), None)


def shuffle(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Lanes of the concatenation of `x` and `y`."""
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
    return builder.shuffle_vector(x, y, mask)


def quarter_lanes(dtype: DType) -> int:
    return QUARTER_BYTES // dtype.itemsize


def transpose(builder: ir.IRBuilder, rows: list[ir.Value], n: int) -> list[ir.Value]:
    """`n` vectors, transposed in each group of `n` lanes: lane `i` of group `g` of the result `j`
    is lane `j` of group `g` of vector `i`. `n` is a power of two."""
    lanes, half = rows[0].type.count, n // 2
    pairs = [[(g + i, lanes + g + i) for i in range(n)] for g in range(0, lanes, n)]
    low = [lane for group in pairs for pair in group[:half] for lane in pair]
    high = [lane for group in pairs for pair in group[half:] for lane in pair]
    # Each round interleaves a vector with the one half of all vectors further on.
    for _ in range(n.bit_length() - 1):
        rows = [
            shuffle(builder, x, y, lanes_taken)
            for x, y in zip(rows[:half], rows[half:], strict=True)
            for lanes_taken in (low, high)
        ]
    return rows


def interleave(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> list[ir.Value]:
    """As many vectors, with lane 0 of all given ones first, then lane 1 of all, and so on."""
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
            value = shuffle(builder, value, vector, taken)
        found.append(value)
    return found


def intrinsic(
    module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]
) -> ir.Function:
    """The declaration of an LLVM intrinsic or an external function, once per module."""
    found = module.globals.get(name)
    if found is not None:
        return found
    return ir.Function(module, ir.FunctionType(result, arguments), name)


def any_lane(builder: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    """Whether a condition, a vector or a scalar, holds in any lane."""
    if not isinstance(condition.type, ir.VectorType):
        return condition
    name = f"llvm.vector.reduce.or.{type_suffix(condition.type)}"
    return builder.call(intrinsic(builder.module, name, I1, [condition.type]), [condition])


def type_suffix(type_: ir.Type) -> str:
    """LLVM's name of a type, as intrinsics carry it: `v8f32`, `f64`, `v16i8`."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{type_suffix(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    assert isinstance(type_, (ir.FloatType, ir.DoubleType)), type_
    return "f32" if isinstance(type_, ir.FloatType) else "f64"


def opaque(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The same integer, of which the compiler knows nothing: it stays in a register as it is."""
    same = ir.FunctionType(value.type, [value.type])
    return builder.asm(same, "", "=r,0", [value], False)


def frozen(builder: ir.IRBuilder, loaded: ir.Value) -> ir.Value:
    """A loaded value that LLVM does not trace back to its load. It makes a masked store of the
    choice between what memory holds and another vector, which takes AMD Zen 3 three times as long
    as a store of the chosen one. No instruction."""
    instruction = ir.instructions.Instruction(builder.block, loaded.type, "freeze", [loaded])
    builder._insert(instruction)
    return instruction


def in_order(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> None:
    """Have vectors in registers of x86 here: what they follow from comes before, and loads and
    stores stay on their side. No instruction."""
    kinds = [vector.type for vector in vectors]
    constraints = ",".join([*["v"] * len(kinds), "~{memory}"])
    builder.asm(ir.FunctionType(VOID, kinds), "", constraints, vectors, True)


def add_chains(builder: ir.IRBuilder, sums: Sequence[ir.Value], tile: int) -> list[ir.Value]:
    """The sums of all chains together; `sums` holds `tile` values for each chain."""
    total = list(sums[:tile])
    for chain in range(tile, len(sums), tile):
        added = sums[chain : chain + tile]
        add = builder.add if isinstance(total[0].type.element, ir.IntType) else builder.fadd
        total = [add(x, y) for x, y in zip(total, added, strict=True)]
    return total


def call_address(
    builder: ir.IRBuilder, kind: ir.FunctionType, address: ir.Value, arguments: Sequence[ir.Value]
) -> ir.Value:
    """Call the function of type `kind` at an address."""
    # llvmlite finds a callee's type in the type of its pointer, which a cast to itself would not
    # change: go through an integer, which LLVM folds away.
    callee = builder.inttoptr(builder.ptrtoint(address, I64), kind.as_pointer())
    return builder.call(callee, arguments)
