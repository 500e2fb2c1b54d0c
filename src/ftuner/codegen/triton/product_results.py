"""The results of a tile from its sums, as Triton text: reduction of split-k, epilogue, stores.

A tile passes through the epilogue in slices of columns, one after the other, so that a thread holds
few values at once.

With split-k each program stores its sums in a workspace. The last-arriving program adds up the sums
of all parts (`split_k`) and applies the epilogue.
"""

from __future__ import annotations

from ftuner.codegen.triton.expressions import render_epilogue
from ftuner.codegen.triton.product_arguments import c_granule, operand_argument
from ftuner.codegen.triton.product_tiles import element_base
from ftuner.codegen.triton.source import LANGUAGE_TYPES
from ftuner.codegen.triton.split_k import arrival_lines, departure_line, part_load
from ftuner.core.expr import ACCUMULATOR, Operand, flatten, operands
from ftuner.core.gpu.tile import BlockTile, ProductKernel


def result_lines(kernel: ProductKernel, tile: BlockTile, rest: bool) -> list[str]:
    """Lines from `sums` of the tile at `row`, `column` of batch element `element` to C. `rest`:
    whether the tile is of the second band."""
    finished = _finished_lines(kernel, tile, rest)
    if not kernel.split:
        return finished
    area = tile.bm * tile.bn
    used, counter = ("used + ", "counters + counted + tile") if rest else ("", "counters + tile")
    rows, columns = f"tl.arange(0, {tile.bm})[:, None]", f"tl.arange(0, {tile.bn})[None, :]"
    loaded = [
        f"        part{i} = "
        + part_load(
            f"slots + (first + {i}) * {area} + within",
            f"within < (split_k - first - {i}) * {area}" if i else None,
        )
        for i in range(kernel.parts_at_once)
    ]
    return [
        f"within = {rows} * {tile.bn} + {columns}",
        f"slots = workspace + ({used}(tile * split_k).to(tl.int64) * {area})",
        f"tl.store(slots + part * {area} + within, sums)",
        *arrival_lines(counter),
        "if arrived == split_k - 1:",
        f"    sums = tl.zeros(({tile.bm}, {tile.bn}), dtype=tl.float32)",
        f"    for first in range(0, split_k, {len(loaded)}):",
        *loaded,
        f"        sums = {' + '.join(['sums', *(f'part{i}' for i in range(len(loaded)))])}",
        f"    {departure_line(counter)}",
        *(f"    {line}" for line in finished),
    ]


def _finished_lines(kernel: ProductKernel, tile: BlockTile, rest: bool) -> list[str]:
    """Lines that slice the sums, apply the epilogue and store each slice."""
    lines: list[str] = []
    slices = ["sums"]
    while len(slices) < kernel.slices:
        half = tile.bn // len(slices) // 2
        for whole in slices:
            turned = f"{whole}.reshape({tile.bm}, 2, {half}).permute(0, 2, 1)"
            lines.append(f"{whole}0, {whole}1 = {turned}.split()")
        slices = [f"{whole}{side}" for whole in slices for side in (0, 1)]
    if operands(kernel.epilogue) or not kernel.stores_by_descriptor:
        lines.append(f"c_rows = row + tl.arange(0, {tile.bm})")
    for number, name in enumerate(slices):
        lines += _slice_lines(kernel, tile, rest, name, number * tile.bn // kernel.slices)
    return lines


def _slice_lines(
    kernel: ProductKernel, tile: BlockTile, rest: bool, sums: str, first: int
) -> list[str]:
    """Lines for the slice that begins at column `first` of its tile."""
    width = tile.bn // kernel.slices
    extra = operands(kernel.epilogue)
    begin = f"column + {first}" if first else "column"
    lines: list[str] = []
    if extra or not kernel.stores_by_descriptor:
        lines.append(f"c_columns = {begin} + tl.arange(0, {width})")
    values = {ACCUMULATOR.name: sums}
    for operand in extra:
        values[operand.name] = f"value_{operand.name}"
        lines.append(f"value_{operand.name} = {_operand(kernel, operand)}.to(tl.float32)")
    rendered = render_epilogue(kernel.epilogue, values, "e")
    value = rendered.value
    if all(step.node != ACCUMULATOR for step in flatten(kernel.epilogue)):
        value = f"tl.broadcast_to({value}, ({tile.bm}, {width}))"
    lines += [*rendered.lines, f"result = {value}.to({LANGUAGE_TYPES[kernel.dtype.name]})"]
    if kernel.stores_by_descriptor:
        block = f"result.reshape(1, {tile.bm}, {width})"
        return [*lines, f"c{'_rest' if rest else ''}.store([element, row, {begin}], {block})"]
    lines.append(
        f"c_at = {element_base(kernel, 'c')}"
        " + c_rows.to(tl.int64)[:, None] * c_row + c_columns[None, :]"
    )
    whole = "tl.store(c_at, result, mask=(c_rows < m)[:, None])"
    masked = "tl.store(c_at, result, mask=(c_rows < m)[:, None] & (c_columns < n)[None, :])"
    if c_granule(kernel) == 1:
        return [*lines, masked]
    # With a mask by the column, Triton stores elements one by one.
    return [*lines, f"if column + {first + width} <= n:", f"    {whole}", "else:", f"    {masked}"]


def _operand(kernel: ProductKernel, operand: Operand) -> str:
    """Returns the load of an operand of the epilogue, broadcast over the slice."""
    name = operand_argument(operand.name)
    if operand.kind == "column":
        first = element_base(kernel, name) if kernel.window else name
        return f"tl.load({first} + c_columns, mask=c_columns < n, other=0.0)[None, :]"
    if operand.kind == "row":
        return f"tl.load({name} + c_rows, mask=c_rows < m, other=0.0)[:, None]"
    # Whole granules, as in `product_tiles`.
    g = c_granule(kernel)
    behind = "n" if g == 1 else f"tl.cdiv(n, {g}) * {g}"
    return (
        f"tl.load({element_base(kernel, name)}"
        f" + c_rows.to(tl.int64)[:, None] * {name}_row + c_columns[None, :],"
        f" mask=(c_rows < m)[:, None] & (c_columns < {behind})[None, :], other=0.0)"
    )
