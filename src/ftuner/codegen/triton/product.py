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
"""

from __future__ import annotations

from ftuner.codegen.triton.expressions import epilogue_prelude
from ftuner.codegen.triton.product_arguments import gemm_arguments, granule
from ftuner.codegen.triton.product_results import result_lines
from ftuner.codegen.triton.product_tiles import sum_lines
from ftuner.codegen.triton.source import Source, function_source
from ftuner.core.expr import BEFORE, operands
from ftuner.core.gpu.tile import BlockTile, ProductKernel


def gemm_source(kernel: ProductKernel) -> Source:
    """Returns the source of a kernel; its arguments are `gemm_arguments`."""
    arguments = gemm_arguments(kernel)
    main = kernel.main
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
