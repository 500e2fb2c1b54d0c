"""The reduction of split-k and split keys, as Triton text: the last-arriving program adds up.

Each program of a tile stores its partial sums in a workspace, in float32, and increments the tile's
counter. The last-arriving program, which finds all others counted, adds up all parts in order, so
that results do not depend on the order of arrival. It resets the counter for the next launch.

The threads of a block use ordinary stores and loads, and one thread does the atomic addition. By
the memory model of PTX (ISA, chapter "Memory Consistency Model") three links order the stores of
one block before the loads of another:

1. a barrier of the block, after its stores and before the addition,
2. the addition at the scope of the device, which releases the stores before it and acquires what
   the additions before it released,
3. a barrier of the block, after the addition and before its loads: without it, only the thread of
   the addition has acquired the stores.

L1 caches are not coherent; the acquisition covers that, and cache operators have no part in the
order. Loads still bypass L1 (`.cg`), because each part is read only once.

On AMD's chips this order does not hold: in Triton's code for gfx942 a barrier does not wait for the
stores of other wavefronts. Such kernels are compiled, but not run yet.

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
from ftuner.core.expr import ACCUMULATOR, Operand, flatten, operands
from ftuner.core.gpu.tile import BlockTile, ProductKernel


def arrival_lines(counter: str) -> list[str]:
    """Lines after the stores of a part that count the program. `arrived` is the number of programs
    counted before it.

    Args:
        counter: the address of the tile's counter, an int32 that is zero before the launch.
    """
    return [
        "tl.debug_barrier()",
        f'arrived = tl.atomic_add({counter}, 1, sem="acq_rel", scope="gpu")',
        "tl.debug_barrier()",
    ]


def departure_line(counter: str) -> str:
    """The line of the last-arriving program that resets the counter for the next launch."""
    return f"tl.store({counter}, 0)"


def part_load(place: str, mask: str | None = None) -> str:
    """Returns the load of partial sums of any program, after `arrival_lines`; 0 where the mask is
    false."""
    masked = "" if mask is None else f", mask={mask}, other=0.0"
    return f'tl.load({place}{masked}, cache_modifier=".cg")'


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
    lines, slices = sliced_lines(kernel, tile.bm)
    if operands(kernel.epilogue) or not kernel.stores_by_descriptor:
        lines.append(f"c_rows = row + tl.arange(0, {tile.bm})")
    for number, name in enumerate(slices):
        lines += _slice_lines(kernel, tile, rest, name, number * tile.bn // kernel.slices)
    return lines


def sliced_lines(kernel: ProductKernel, rows: int) -> tuple[list[str], list[str]]:
    """Returns lines that slice `sums` of `rows` rows by columns, and the names of the slices."""
    lines: list[str] = []
    slices = ["sums"]
    while len(slices) < kernel.slices:
        half = kernel.main.bn // len(slices) // 2
        for whole in slices:
            turned = f"{whole}.reshape({rows}, 2, {half}).permute(0, 2, 1)"
            lines.append(f"{whole}0, {whole}1 = tl.split({turned})")
        slices = [f"{whole}{side}" for whole in slices for side in (0, 1)]
    return lines, slices


def value_lines(kernel: ProductKernel, sums: str) -> tuple[list[str], str]:
    """Returns lines that apply the epilogue to the slice `sums` at `c_rows`, `c_columns`, and the
    result in float32."""
    values, lines = {ACCUMULATOR.name: sums}, []
    for operand in operands(kernel.epilogue):
        values[operand.name] = f"value_{operand.name}"
        lines.append(f"value_{operand.name} = {_operand(kernel, operand)}.to(tl.float32)")
    rendered = render_epilogue(kernel.epilogue, values, "e")
    return [*lines, *rendered.lines], rendered.value


def _slice_lines(
    kernel: ProductKernel, tile: BlockTile, rest: bool, sums: str, first: int
) -> list[str]:
    """Lines for the slice that begins at column `first` of its tile."""
    width = tile.bn // kernel.slices
    begin = f"column + {first}" if first else "column"
    lines: list[str] = []
    if operands(kernel.epilogue) or not kernel.stores_by_descriptor:
        lines.append(f"c_columns = {begin} + tl.arange(0, {width})")
    computed, value = value_lines(kernel, sums)
    if all(step.node != ACCUMULATOR for step in flatten(kernel.epilogue)):
        value = f"tl.broadcast_to({value}, ({tile.bm}, {width}))"
    lines += [*computed, f"result = {value}.to({LANGUAGE_TYPES[kernel.dtype.name]})"]
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
