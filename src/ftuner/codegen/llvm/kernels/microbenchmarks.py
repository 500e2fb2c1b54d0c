"""Native micro-benchmarks that tell what one core does in a cycle.

All have one signature, `void(data, bytes, repeats, sink)`: the address of the operands or of the
memory to read, its size, how often to go round, and where to store the accumulators.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const, scalar_type
from ftuner.codegen.llvm.ir.instructions import Tiles, TileShape, emitter_of
from ftuner.codegen.llvm.objects.jit import compile_object, has_instruction, host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import ProductTypes, product_types
from ftuner.hardware.isa import InstructionSet, MatrixUnit, MultiplyAdd

SYMBOLS = ("clock", "issue", "latency", "read")
CHAIN_STEPS = 32
"""Dependent operations that a repeat of `clock` or `latency` does; enough to hide the loop."""
ISSUE_STEPS = 4
"""Multiply-adds of each chain that a repeat of `issue` does."""
TILES = 4
"""Chains of multiply-adds of tiles; enough to hide the latency of x86's."""
SINK_BYTES = 4096
"""Room that the largest set of accumulators fits in (24 vectors of 64 bytes)."""
FILL = 0x3F
"""Byte for memory that is worked on. As float32 it is 0.747: sums neither overflow nor become
subnormal."""

_READ_VECTORS = 8
READ_BYTES = 512
"""What `read` reads a multiple of: its vectors, at the widest."""


class Microbenchmarks:
    """The micro-benchmarks compiled for one ISA, in this process.

    `clock`: `CHAIN_STEPS` dependent integer operations of one cycle each. `issue`: `ISSUE_STEPS`
    multiply-adds of float32 vectors in each of `chains` independent chains. `latency`:
    `CHAIN_STEPS` of them in one chain. `read`: all of the data, a multiple of `READ_BYTES`, aligned
    to 64, once."""

    def __init__(self, isa: InstructionSet) -> None:
        self.isa = isa
        self.chains = _chains(isa)
        of_tiles = isa.matrix.multiply_adds if isa.matrix else ()
        narrow = (*(row for row in isa.multiply_adds if row.flag), *of_tiles)
        self.narrow = [row for row in narrow if has_instruction(row)]
        symbols = (*SYMBOLS, *(row.emitter for row in self.narrow))
        code = compile_object(emit(isa, self.narrow), host_target(isa.name))
        self._object = LoadedObject([code], symbols)
        self.addresses = self._object.addresses
        """Of each function, for native callers."""
        i64, address = ctypes.c_int64, ctypes.c_void_p
        # Called this way a function runs without Python's global lock.
        prototype = ctypes.CFUNCTYPE(None, address, i64, i64, address)
        self._functions: dict[str, Any] = {s: prototype(self.addresses[s]) for s in symbols}

    def multiply_adds(self, row: MultiplyAdd) -> int:
        """Vector multiply-adds that a repeat of a narrow row's function does."""
        unit = self.isa.matrix
        if unit is None or row not in unit.multiply_adds:
            return ISSUE_STEPS * self.chains
        return ISSUE_STEPS * TILES * unit.rows * unit.steps

    def bind(
        self, symbol: str, data: int, size: int, repeats: int, sink: int
    ) -> Callable[[], object]:
        """A call of a micro-benchmark; safe on several threads, each with its own sink."""
        return partial(self._functions[symbol], data, size, repeats, sink)


def emit(isa: InstructionSet, narrow: Sequence[MultiplyAdd] = ()) -> ir.Module:
    """A module of the functions called `SYMBOLS`, for `isa`, and of those of `narrow` rows."""
    module = ir.Module("microbenchmarks")
    _emit_clock(module)
    floats = product_types(FLOAT32)
    _emit_multiply_add(module, isa, "issue", _chains(isa), ISSUE_STEPS, floats)
    _emit_multiply_add(module, isa, "latency", 1, CHAIN_STEPS, floats)
    for row in narrow:
        types = product_types(row.a)
        if isa.matrix is not None and row in isa.matrix.multiply_adds:
            _emit_tiles(module, isa.matrix, row)
            continue
        _emit_multiply_add(module, isa, row.emitter, _chains(isa), ISSUE_STEPS, types)
    _emit_read(module, isa)
    return module


def _chains(isa: InstructionSet) -> int:
    # Three quarters of the registers: 12 chains hide a latency of 6 cycles of two units, which is
    # also that of a multiply and an add apart on Zen 3. 13 would be slower there, unevenly.
    return isa.vector_registers * 3 // 4


def _begin(module: ir.Module, name: str) -> tuple[IRBuilder, Sequence[ir.Value]]:
    return begun(module, ir.FunctionType(VOID, [PTR, I64, I64, PTR]), name)


def _element(builder: IRBuilder, base: ir.Value, kind: ir.Type, index: int) -> ir.Value:
    return builder.gep(base, [ir.Constant(I64, index)], source_etype=kind)


def _variables(builder: IRBuilder, kind: ir.Type, count: int) -> list[ir.Value]:
    """Zeros in memory, which the optimiser turns into registers."""
    variables = [builder.alloca(kind) for _ in range(count)]
    for variable in variables:
        builder.store(ir.Constant(kind, None), variable)
    return variables


def _finish(builder: IRBuilder, sink: ir.Value, kind: ir.Type, variables: list[ir.Value]) -> None:
    """Store the variables, so that none is optimised away."""
    for i, variable in enumerate(variables):
        builder.store(builder.load(variable, typ=kind), _element(builder, sink, kind, i))
    builder.ret_void()


def _emit_clock(module: ir.Module) -> None:
    """A chain of adds and xors, their operands from memory so that it cannot be shortened."""
    builder, (data, _, repeats, sink) = _begin(module, "clock")
    x, y = (builder.load(_element(builder, data, I64, i), typ=I64) for i in range(2))
    variables = _variables(builder, I64, 1)
    with builder.counted_loop(0, repeats):
        value = builder.load(variables[0], typ=I64)
        for _ in range(CHAIN_STEPS // 2):
            value = builder.xor(builder.add(value, x), y)
        builder.store(value, variables[0])
    _finish(builder, sink, I64, variables)


def _emit_multiply_add(
    module: ir.Module, isa: InstructionSet, name: str, chains: int, steps: int, types: ProductTypes
) -> None:
    """`chains` independent chains of `steps` multiply-adds of vectors a repeat."""
    builder, (data, _, repeats, sink) = _begin(module, name)
    lanes = isa.vector_bytes // types.accumulator.itemsize
    kind = ir.VectorType(scalar_type(types.accumulator), lanes)
    read = ir.VectorType(scalar_type(types.a), lanes)
    multiply_add, fused = emitter_of(isa, types), isa.multiply_add(types).fused
    x, y = (builder.load(_element(builder, data, read, i), typ=read) for i in range(2))
    variables = _variables(builder, kind, chains)
    with builder.counted_loop(0, repeats):
        values = [builder.load(v, typ=kind) for v in variables]
        for _ in range(steps):
            if fused:
                values = [multiply_add(builder, x, y, v) for v in values]
            elif chains == 1:
                # A product waits for no accumulator: the chain of a dot product is its adds.
                values = [builder.fadd(v, y) for v in values]
            else:
                # The product must depend on the chain, or it would be computed only once.
                values = [multiply_add(builder, v, x, y) for v in values]
        for variable, value in zip(variables, values, strict=True):
            builder.store(value, variable)
    _finish(builder, sink, kind, variables)


def _emit_tiles(module: ir.Module, unit: MatrixUnit, row: MultiplyAdd) -> None:
    """`TILES` independent chains of `ISSUE_STEPS` multiply-adds of whole tiles a repeat."""
    builder, (data, _, repeats, _) = _begin(module, row.emitter)
    tiles = Tiles(builder)
    of_a, of_b = TILES, TILES + 1
    shape = TileShape(const(unit.rows), const(unit.steps * row.a.itemsize))
    tiles.configure(dict.fromkeys(range(TILES + 2), shape))
    for tile in (of_a, of_b):
        tiles.load(tile, data, ir.Constant(I64, 0))
    for tile in range(TILES):
        tiles.zero(tile)
    with builder.counted_loop(0, repeats):
        for _ in range(ISSUE_STEPS):
            for tile in range(TILES):
                tiles.multiply_add(row, tile, of_a, of_b)
    tiles.release()
    builder.ret_void()


def _emit_read(module: ir.Module, isa: InstructionSet) -> None:
    """Read the data `repeats` times, whole vectors, xor-ing them into accumulators."""
    builder, (data, size, repeats, sink) = _begin(module, "read")
    kind = ir.VectorType(I64, isa.vector_bytes // 8)
    variables = _variables(builder, kind, _READ_VECTORS)
    with (
        builder.counted_loop(0, repeats),
        builder.counted_loop(0, size, _READ_VECTORS * isa.vector_bytes) as offset,
    ):
        base = builder.at(data, offset)
        for i, variable in enumerate(variables):
            address = _element(builder, base, kind, i)
            value = builder.load(address, align=isa.vector_bytes, typ=kind)
            builder.store(builder.xor(builder.load(variable, typ=kind), value), variable)
    _finish(builder, sink, kind, variables)
