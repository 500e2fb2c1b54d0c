"""Grouped products as Triton text: many pairs of matrices of their own extents in one launch.

`C_g[m, n] = sum over k of A_g[m, k] B_g[k, n]`, for groups g of extents m_g, n_g, k_g. The tiles of
all groups form one list; program p of P takes tiles p, p + P, ... Within a group, tiles are
numbered and computed as in `product`.

A program finds the group of a tile in `ends`, the end of each group's tiles in the list. It reads
`LOOKED_AT` ends at once and counts those that are not beyond its tile. Tile numbers only grow, so
it continues from there. The group's row of a table has addresses, extents and strides. Tiles are
loaded by pointers, because descriptors would need a tensor map in memory for each matrix.
"""

from __future__ import annotations

from ftuner.codegen.triton.product import place_lines
from ftuner.codegen.triton.product_arguments import c_granule, granule
from ftuner.codegen.triton.product_results import result_lines
from ftuner.codegen.triton.product_tiles import sum_lines
from ftuner.codegen.triton.source import LANGUAGE_TYPES, Argument, Source, function_source
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, ProductKernel

COLUMNS = ("a", "b", "c", "m", "n", "k", "a_stride", "b_stride", "c_row", "begin")
"""Columns of the table, all int64: addresses, extents, strides as in `gemm_arguments`, and the
number of the group's first tile."""
LOOKED_AT = 32
"""Ends that are read at once: one for each thread of a warp of NVIDIA's chips, so that warps count
them without exchanges between warps. In wider warps two threads hold the same end. The length of
`ends` is a multiple of this."""
BEYOND_ALL = 2**62
"""The end that pads `ends`."""
ARGUMENTS = (
    Argument("ends", "*i64", ALIGNMENT_BYTES),
    Argument("table", "*i64", ALIGNMENT_BYTES),
    Argument("tiles", "i32"),
    Argument("swizzle", "i32"),
)
"""`ends`: the end of each group in the list of tiles, ascending. `table`: a row of `COLUMNS` for
each group. `tiles`: of all groups. `swizzle`: as in `ProductPlan`."""


def grouped_source(kernel: ProductKernel) -> Source:
    """Returns the source of a kernel; its arguments are `ARGUMENTS`."""
    assert kernel.grouped
    assert len(kernel.tiles) == 1
    assert kernel.loads == "pointers"
    assert not kernel.split
    assert kernel.epilogue == ACCUMULATOR
    tile = kernel.main
    inside = [
        f"while tl.load(ends + looked + {LOOKED_AT - 1}) <= index:",
        f"    looked += {LOOKED_AT}",
        f"found = tl.load(ends + looked + tl.arange(0, {LOOKED_AT}))",
        "number = looked + tl.sum((found <= index).to(tl.int32), 0)",
        f"at = table + number.to(tl.int64) * {len(COLUMNS)}",
        *_table_lines(kernel),
        f"row_tiles = tl.cdiv(m, {tile.bm})",
        f"in_swizzle = swizzle * tl.cdiv(n, {tile.bn})",
        f"steps = tl.cdiv(k, {tile.bk})",
        "place = index - begin",
        *place_lines(tile),
        *sum_lines(kernel, tile, False),
        *result_lines(kernel, tile, False),
    ]
    lines = [
        "looked = 0",
        "for index in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):",
        *(f"    {line}" for line in inside),
    ]
    return function_source(kernel.symbol, "", ARGUMENTS, lines, tile.warps, tile.stages)


def _table_lines(kernel: ProductKernel) -> list[str]:
    """Lines that load the row of the table at `at`, with the alignment that the kernel assumes."""
    ab, c, size = granule(kernel), c_granule(kernel), kernel.dtype.itemsize
    divisors = {"a": ab * size, "b": ab * size, "c": c * size}
    divisors |= {"a_stride": ab, "b_stride": ab, "c_row": c}
    if "k" in (kernel.a_order, kernel.b_order):
        divisors["k"] = ab
    pointer = f"tl.pointer_type({LANGUAGE_TYPES[kernel.dtype.name]})"
    lines = []
    for number, name in enumerate(COLUMNS):
        value = f"tl.load(at + {number})" if number else "tl.load(at)"
        if name in ("m", "n", "k", "begin"):
            value += ".to(tl.int32)"
        if name in ("a", "b", "c"):
            value = f"tl.cast({value}, {pointer})"
        if divisors.get(name, 1) > 1:
            value = f"tl.multiple_of({value}, {divisors[name]})"
        lines.append(f"{name} = {value}")
    return lines
