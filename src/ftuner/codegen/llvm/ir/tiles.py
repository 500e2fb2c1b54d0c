"""Tiles of x86's matrix unit (AMX) in LLVM IR, by the numbers of their registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I8, I16, VOID, at, const, intrinsic, reserve
from ftuner.codegen.llvm.ir.instructions import TILE_MULTIPLY_ADDS
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.hardware.isa import MultiplyAdd

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

    def __init__(self, builder: ir.IRBuilder) -> None:
        self._builder = builder

    def configure(self, shapes: Mapping[int, TileShape]) -> None:
        """Give tiles their rows and the bytes of each; all become zeros."""
        builder = self._builder
        place = reserve(builder, ir.ArrayType(I8, _CONFIGURATION_BYTES))
        for first in range(0, _CONFIGURATION_BYTES, SLOT_BYTES):
            builder.store(const(_PALETTE if first == 0 else 0), at(builder, place, first))
        for tile, (rows, row_bytes) in shapes.items():
            narrow = builder.trunc(row_bytes, I16), builder.trunc(rows, I8)
            builder.store(narrow[0], at(builder, place, _ROW_BYTES + 2 * tile), align=2)
            builder.store(narrow[1], at(builder, place, _ROWS + tile), align=1)
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
        kinds = [argument.type for argument in arguments]
        self._builder.call(intrinsic(self._builder.module, name, VOID, kinds), arguments)


def _number(tile: int) -> ir.Constant:
    return ir.Constant(I8, tile)
