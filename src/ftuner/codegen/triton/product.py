"""Matrix products as Triton text: one persistent kernel, the uKernel of a GPU.

`C[b, m, n] = epilogue(sum over k of A[b, m, k] B[b, k, n])`. Program p of P walks tiles p, p + P,
...: those of the first band, then those of the second. Within a band a tile is numbered by batch
element, then by blocks of `swizzle` row tiles, each walked column by column, so that L2 still holds
what they share, then by part of k.

With descriptors, Triton makes one loop of tiles and k steps (`flatten`), so that the next tile is
loaded while this one is stored. That needs equally many steps for each tile, at least one. And the
last tile along m or n begins early enough to end at the edge, where the matrix has as many rows or
columns: the copy engine takes as long for a row beyond the edge, which it fills with zeros, as for
several others (seen on an H200). What two tiles compute they compute alike.

`C_g[m, n] = sum over k of A_g[m, k] B_g[k, n]`, for groups g of extents m_g, n_g, k_g. The tiles of
all groups form one list; program p of P takes tiles p, p + P, ... Within a group, tiles are
numbered and computed as in `product`.

A program finds the group of a tile in `ends`, the end of each group's tiles in the list. It reads
`LOOKED_AT` ends at once and counts those that are not beyond its tile. Tile numbers only grow, so
it continues from there. The group's row of a table has addresses, extents and strides. Tiles are
loaded by pointers, because descriptors would need a tensor map in memory for each matrix.
"""

from __future__ import annotations

from ftuner.codegen.triton.expressions import epilogue_prelude
from ftuner.codegen.triton.product_arguments import c_granule, gemm_arguments, granule
from ftuner.codegen.triton.product_results import result_lines
from ftuner.codegen.triton.product_specialised import specialised_source
from ftuner.codegen.triton.product_tiles import sum_lines
from ftuner.codegen.triton.source import LANGUAGE_TYPES, Argument, Source, function_source
from ftuner.core.expr import ACCUMULATOR, BEFORE, operands
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, BlockTile, ProductKernel


def gemm_source(kernel: ProductKernel) -> Source:
    """Returns the source of a kernel; its arguments are `gemm_arguments`."""
    main = kernel.main
    if kernel.warpgroups > 1:
        place = [*place_lines(main), *_shifted(kernel, main, False)]
        return specialised_source(kernel, place)
    arguments = gemm_arguments(kernel)
    steps = f"tl.cdiv(k, {main.bk})"
    if kernel.window:
        steps = f"taps * tl.cdiv(run, {main.bk})"
    lines = [
        "program = tl.program_id(0)",
        "programs = tl.num_programs(0)",
        f"columns = tl.cdiv(n, {main.bn})",
        f"steps = {f'tl.maximum({steps}, 1)' if _flattened(kernel) else steps}",
        *_band_lines(kernel, main, "rows" if len(kernel.tiles) > 1 else "m"),
    ]
    if len(kernel.tiles) > 1:
        lines.append("before = tiles")
        if kernel.split:
            lines += [
                "counted = in_element * batch",
                f"used = tiles.to(tl.int64) * {main.bm * main.bn}",
            ]
        lines += _band_lines(kernel, kernel.tiles[1], "m - rows")
    prelude = epilogue_prelude(kernel.epilogue)
    return function_source(kernel.symbol, prelude, arguments, lines, main.warps, main.stages)


def place_lines(tile: BlockTile, rest: bool = False) -> list[str]:
    """Lines for `row` and `column` of tile number `place` of its matrix; `rest`: of the second
    band."""
    return [
        "first = place // in_swizzle * swizzle",
        "height = tl.minimum(row_tiles - first, swizzle)",
        f"row = (first + place % in_swizzle % height) * {tile.bm}{' + rows' if rest else ''}",
        f"column = place % in_swizzle // height * {tile.bn}",
    ]


def _shifted(kernel: ProductKernel, tile: BlockTile, rest: bool) -> list[str]:
    """Lines that move the last tiles to end at the edge, or, along a contiguous axis, within 16
    bytes behind it; none if the epilogue reads C itself."""
    if kernel.loads != "descriptors" or BEFORE in operands(kernel.epilogue):
        return []
    lines, g = [], granule(kernel)
    if tile is kernel.tiles[-1]:
        last = f"m - {tile.bm}"
        if kernel.a_order == "spatial":
            last = f"tl.cdiv({last}, {g}) * {g}"
        lines.append(f"row = tl.minimum(row, tl.maximum({last}, {'rows' if rest else 0}))")
    if not any(operand.kind == "matrix" for operand in operands(kernel.epilogue)):
        # The addresses of a matrix would no longer be known to be aligned.
        last = f"tl.cdiv(n - {tile.bn}, {g}) * {g}"
        lines.append(f"column = tl.minimum(column, tl.maximum({last}, 0))")
    return lines


def _flattened(kernel: ProductKernel) -> bool:
    return kernel.loads == "descriptors" and not kernel.split


def _band_lines(kernel: ProductKernel, tile: BlockTile, extent: str) -> list[str]:
    """Lines of the loop over the tiles of one band of `extent` rows."""
    rest = tile is not kernel.main
    lines = [
        f"row_tiles = tl.cdiv({extent}, {tile.bm})",
        "in_element = row_tiles * columns",
        "in_swizzle = swizzle * columns",
        f"tiles = in_element * batch{' * split_k' if kernel.split else ''}",
    ]
    begin = "program"
    if rest:
        begin = "begin"
        lines.append("begin = (programs - before % programs + program) % programs")
    options = ", flatten=True" if _flattened(kernel) else ""
    if kernel.specialised:
        options += ", warp_specialize=True"
    number = ["tile = index"]
    if kernel.split:
        number = ["part = index % split_k", "tile = index // split_k"]
    inside = [
        *number,
        "element = tile // in_element",
        "place = tile % in_element",
        *place_lines(tile, rest),
        *_shifted(kernel, tile, rest),
        *sum_lines(kernel, tile, rest),
        *result_lines(kernel, tile, rest),
    ]
    lines.append(f"for index in tl.range({begin}, tiles, programs{options}):")
    return lines + [f"    {line}" for line in inside]


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
