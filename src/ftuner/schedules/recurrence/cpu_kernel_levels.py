"""Exact products of 8-bit levels by a packed panel of levels, in LLVM IR.

A lane of the panel has a column's levels of four k steps, `k0 k1 k2 k3`, in its four bytes. The
bytes at even and at odd places are widened to 16 bits each and multiplied by the pairs `k0 k2` and
`k1 k3` of a row, whose levels are of 16 bits. Sums are of 32 bits. LLVM makes one instruction of
`_pair_sums` on x86.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I16, I32, IRBuilder, const, scalar_type
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.native.records import LevelPanel
from ftuner.core.dtype import FLOAT32, INT16

I32_BYTES = 4
_ORDER = (0, 2, 1, 3)
"""The k steps of a row's levels in memory, among four that follow each other."""

_TILES = (4, 2), (1, LevelPanel.VECTORS)
"""Rows and vectors whose sums are in registers at once: with what they are made of, those of AVX2.
Rows that are left over are computed alone."""


def whole(builder: IRBuilder, count: ir.Value, unit: int) -> ir.Value:
    """A count rounded up to a multiple of a power of two."""
    return builder.and_(builder.add(count, unit - 1), -unit)


def emit_levels(builder: IRBuilder, value: ir.Value, row: ir.Value, k: ir.Value) -> None:
    """Store a vector of floats that are levels, those of the k steps from `k` on."""
    words = elements.cast(builder, value, FLOAT32, INT16)
    order = [lane & ~3 | _ORDER[lane & 3] for lane in range(elements.lanes_of(words))]
    place = builder.gep(row, [k], source_etype=I16)
    builder.store(builder.shuffle(words, words, order), place, align=INT16.itemsize)


def emit_level_panel(
    builder: IRBuilder, rows: ir.Value, k: ir.Value, a: Rows, panel: ir.Value,
    c: tuple[ir.Value, ir.Value], lanes: int,
) -> None:  # fmt: skip
    """Multiply rows of `k` levels by one panel, and store the sums as floats. `c`: the address of
    the first sum, and the bytes between rows."""
    done: ir.Value = const(0)
    for height, vectors in _TILES:
        end = builder.sub(rows, builder.urem(builder.sub(rows, done), height))
        vector_bytes = const(vectors * lanes * LevelPanel.STEPS)
        with (
            builder.counted_loop(done, end, height) as row,
            builder.counted_loop(0, LevelPanel.VECTORS // vectors) as part,
        ):
            state = Rows(builder.at(a.first, row, a.stride), a.stride)
            offset = builder.mul(part, vector_bytes)
            target = builder.add(builder.mul(row, c[1]), offset)
            target = builder.at(c[0], target), c[1]
            _emit_tile(builder, (height, vectors), k, state, builder.at(panel, offset), target,
                       lanes)  # fmt: skip
        done = end


def _emit_tile(
    builder: IRBuilder, tile: tuple[int, int], k: ir.Value, a: Rows, panel: ir.Value,
    c: tuple[ir.Value, ir.Value], lanes: int,
) -> None:  # fmt: skip
    """The sums of some rows by some vectors of a panel."""
    height, vectors = tile
    words, ints = ir.VectorType(I16, 2 * lanes), ir.VectorType(I32, lanes)
    places = builder.splat(ir.Constant(I16, 8), words.count)
    vector_bytes = lanes * LevelPanel.STEPS
    groups = builder.lshr(whole(builder, k, LevelPanel.STEPS), 2)
    totals = [[builder.reserve(ints) for _ in range(vectors)] for _ in range(height)]
    for total in (total for row in totals for total in row):
        builder.store(elements.zero(ints), total)
    with builder.counted_loop(0, groups) as group:
        weights = []
        first = builder.mul(group, LevelPanel.VECTORS * vector_bytes)
        first = builder.at(panel, first)
        for number in range(vectors):
            both = builder.load(builder.at(first, number * vector_bytes), typ=words, align=4)
            low = builder.ashr(builder.shl(both, places), places)
            weights.append((low, builder.ashr(both, places)))
        for row, sums in enumerate(totals):
            here = builder.mul(a.stride, row)
            here = builder.add(here, builder.mul(group, 2 * I32_BYTES))
            here = builder.at(a.first, here)
            even, odd = (
                builder.bitcast(builder.splat(builder.load(place, typ=I32, align=2), lanes), words)
                for place in (here, builder.at(here, I32_BYTES))
            )
            for total, (low, high) in zip(sums, weights, strict=True):
                found = _pair_sums(builder, low, even), _pair_sums(builder, high, odd)
                before = builder.load(total, typ=ints)
                builder.store(builder.add(before, builder.add(*found)), total)
    vector = ir.VectorType(scalar_type(FLOAT32), lanes)
    for row, sums in enumerate(totals):
        target = builder.at(c[0], c[1], row)
        for number, total in enumerate(sums):
            value = builder.sitofp(builder.load(total, typ=ints), vector)
            place = builder.at(target, number * lanes * FLOAT32.itemsize)
            builder.store(value, place, align=FLOAT32.itemsize)


def _pair_sums(builder: IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The products of 16-bit integers, each two neighbours added up, in 32 bits."""
    wide = ir.VectorType(I32, x.type.count)
    products = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
    even, odd = (builder.shuffle(products, products, range(n, x.type.count, 2)) for n in (0, 1))
    return builder.add(even, odd)
