"""Emitters of multiply-adds, by the names that rows of `ftuner.hardware.isa` give them, of
prefetches, and of tiles of x86's matrix unit (AMX), by the numbers of their registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import NamedTuple

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I8, I16, I32, VOID, IRBuilder, type_suffix
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.product import ProductTypes
from ftuner.hardware.isa import InstructionSet, MultiplyAdd

Emitter = Callable[[IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]
"""`emit(builder, a, b, sums)`: the accumulators `sums` with the products of `a` and `b` added. All
are vectors; of floats they may be scalars."""


def _fused(builder: IRBuilder, a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
    return builder.external(f"llvm.fma.{type_suffix(a.type)}", a.type, a, b, sums)


def _of_bytes(builder: IRBuilder, a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
    kind = sums.type
    name = f"llvm.x86.avx512.vpdpbusd.{kind.count * kind.element.width}"
    return builder.external(name, kind, sums, a, b)


def _usdot(builder: IRBuilder, a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
    kind, quads = sums.type, ir.VectorType(I8, 4 * sums.type.count)
    name = f"llvm.aarch64.neon.usdot.v{kind.count}i32.v{quads.count}i8"
    return builder.external(name, kind, sums, *(builder.bitcast(x, quads) for x in (a, b)))


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's `bfloat`, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


def _of_bfloat16(intrinsic_of: Callable[[int], str]) -> Emitter:
    """The emitter of pairs of products, by the name of LLVM's intrinsic for some float32."""

    def emit(builder: IRBuilder, a: ir.Value, b: ir.Value, sums: ir.Value) -> ir.Value:
        kind, pairs = sums.type, ir.VectorType(_BFloat16(), 2 * sums.type.count)
        operands = (builder.bitcast(x, pairs) for x in (a, b))
        return builder.external(intrinsic_of(kind.count), kind, sums, *operands)

    return emit


def to_bfloat16(builder: IRBuilder, x: ir.Value) -> ir.Value:
    """Return a vector of float32 rounded to bfloat16, as words of 16 bits, by the instruction of
    targets that multiply bfloat16. Subnormal numbers may become zeros, as in these products."""
    narrow = builder.fptrunc(x, ir.VectorType(_BFloat16(), x.type.count))
    return builder.bitcast(narrow, ir.VectorType(I16, x.type.count))


EMITTERS: dict[str, Emitter] = {
    "separate": lambda builder, a, b, sums: builder.fadd(builder.fmul(a, b), sums),
    "fused": _fused, "of_bytes": _of_bytes,
    "of_bfloat16": _of_bfloat16(lambda n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}"),
}  # fmt: skip
ARM_EMITTERS: Mapping[str, Emitter] = EMITTERS | {
    "of_bytes": _usdot,
    "of_bfloat16": _of_bfloat16(lambda n: f"llvm.aarch64.neon.bfdot.v{n}f32.v{2 * n}bf16"),
}

TILE_MULTIPLY_ADDS: Mapping[str, str] = {
    "tiles_of_bytes": "llvm.x86.tdpbusd", "tiles_of_bfloat16": "llvm.x86.tdpbf16ps",
}  # fmt: skip
"""LLVM's intrinsics of a matrix unit, by the names that rows of `ftuner.hardware.isa` give them."""


def emitter_of(isa: InstructionSet, types: ProductTypes) -> Emitter:
    """The emitter of a product's multiply-adds on an ISA.

    Raises:
        HardwareError: the ISA has no multiply-add for these dtypes.
    """
    row = isa.multiply_add(types)
    if row.llvm is None:
        return (ARM_EMITTERS if isa.architecture == "aarch64" else EMITTERS)[row.emitter]
    emitter: Emitter = getattr(import_module(row.llvm), row.emitter)
    return emitter


L1, L2 = 3, 2
"""Where a prefetch puts its line, as LLVM's locality."""


def prefetch(builder: IRBuilder, address: ir.Value, level: int, write: bool = False) -> None:
    """Ask for the cache line at an address, which need not exist."""
    builder.external("llvm.prefetch.p0", VOID, address, *_prefetch_options(level, write))


@cache
def _prefetch_options(level: int, write: bool) -> list[ir.Constant]:
    """Returns the constant operands of `llvm.prefetch`: write or read, the level, and data."""
    return [ir.Constant(I32, number) for number in (int(write), level, 1)]


_PALETTE = 1
_ROW_BYTES, _ROWS, _CONFIGURATION_BYTES = 16, 48, 64
"""Where a configuration has the bytes of a row, 16 bits, and the rows, 8 bits, of each tile."""


class TileShape(NamedTuple):
    """The shape of a tile in a register, as positive i64 values."""

    rows: ir.Value
    row_bytes: ir.Value


class Tiles:
    """Emits the instructions of tiles. A thread has one configuration, and other libraries have
    theirs: code configures the unit before it uses it, and releases it then."""

    def __init__(self, builder: IRBuilder) -> None:
        self._builder = builder

    def configure(self, shapes: Mapping[int, TileShape]) -> None:
        """Give tiles their rows and the bytes of each; all become zeros."""
        builder = self._builder
        place = builder.reserve(ir.ArrayType(I8, _CONFIGURATION_BYTES))
        for first in range(0, _CONFIGURATION_BYTES, SLOT_BYTES):
            builder.store(_PALETTE if first == 0 else 0, builder.at(place, first))
        for tile, (rows, row_bytes) in shapes.items():
            narrow = builder.trunc(row_bytes, I16), builder.trunc(rows, I8)
            builder.store(narrow[0], builder.at(place, _ROW_BYTES + 2 * tile), align=2)
            builder.store(narrow[1], builder.at(place, _ROWS + tile), align=1)
        self._call("llvm.x86.ldtilecfg", place)

    def release(self) -> None:
        self._call("llvm.x86.tilerelease")

    def zero(self, tile: int) -> None:
        self._call("llvm.x86.tilezero", _number(tile))

    def load(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Load rows that are `stride` bytes apart."""
        self._call("llvm.x86.tileloadd64", _number(tile), address, stride)

    def store(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        self._call("llvm.x86.tilestored64", _number(tile), address, stride)

    def multiply_add(self, row: MultiplyAdd, sums: int, a: int, b: int) -> None:
        """Add the product of two tiles to a third."""
        self._call(TILE_MULTIPLY_ADDS[row.emitter], *map(_number, (sums, a, b)))

    def _call(self, name: str, *arguments: ir.Value) -> None:
        self._builder.external(name, VOID, *arguments)


def _number(tile: int) -> ir.Constant:
    return ir.Constant(I8, tile)
