"""Matrix products as Triton text: one persistent kernel, the uKernel of a GPU.

`C[b, m, n] = epilogue(sum over k of A[b, m, k] B[b, k, n])`. Each program walks tiles p,
p + programs, ...: all tiles of the first band, then those of the second. Within a band a tile is
numbered by batch element, then by groups of `group` row tiles, which are walked column by column,
then by part of k.

Loads. With *pointers*, rows and columns behind an edge are those of the edge once more, or zeros;
their results are not stored. The step of k is masked, with zeros for what is behind the end. Along
a contiguous axis an aligned kernel reads whole granules of 16 bytes, up to the granule that holds
the last element. With *descriptors*, the copy engine fills with zeros; where it can, Triton then
makes one loop of tiles and steps, so that the next tile is loaded while the last one is stored.

Split k. Each part stores its sums to a workspace, in float32, and counts itself; the last one adds
all parts in their order, whichever finished first, and applies the epilogue. It sets the counter to
zero, for the next launch. Adding to the counter releases what the program has stored, once all its
threads have (the barrier), and acquires what others have.
"""

from __future__ import annotations

from textwrap import indent
from typing import NamedTuple

from ftuner.codegen.triton.epilogue import RenderedEpilogue, render_epilogue
from ftuner.codegen.triton.source import HEADER, LANGUAGE_TYPES, TRITON_TYPES, Argument, Source
from ftuner.core.block import BlockKernel, BlockTile, Order
from ftuner.core.expr import ACCUMULATOR, Operand, flatten, operands

ALIGNMENT_BYTES = 16
"""Of the widest load of a thread, and of what the copy engine takes."""
_STRIDE_TYPE = "i64"


def stores_by_descriptor(kernel: BlockKernel) -> bool:
    """Whether C too is written by the copy engine."""
    return kernel.loads == "descriptors" and kernel.aligned and kernel.c_aligned


def operand_argument(name: str) -> str:
    """The name of the argument that holds an epilogue operand; its strides follow it in name, as
    `_row` and `_batch`."""
    return f"operand_{name}"


def gemm_arguments(kernel: BlockKernel) -> tuple[Argument, ...]:
    """The run-time arguments of a kernel, in their order; this is the one place that knows it.

    `a`, `b`, `c`: the matrices, as pointers or as descriptors of rank 3, (batch element, axis that
    is not contiguous, contiguous axis), with blocks of one element, and of the tile's extents.
    `a_rest`, `c_rest`: descriptors of the same matrices with blocks for the second band.
    `workspace`: float32, `workspace_elements` of them, undefined; `counters`: int32, one a tile of
    C, zero before the first launch and after each. Both only if k is split.
    `operand_NAME`: what the epilogue reads, [n], [m], or a matrix.
    `m`, `n`, `k`, `batch`: extents. `rows`: rows of the first band, if there are two.
    `a_stride`, `b_stride`: elements from one row of the stored matrix to the next, whatever axis
    that is; `c_row` and `operand_NAME_row` likewise. Not of descriptors.
    `a_batch`, `b_batch`, `c_batch`, `operand_NAME_batch`: elements from one batch element to the
    next, 0 if all share one; with descriptors 1 or 0 for A and B, and none for C.
    `group`: row tiles that are walked together. `parts`: parts of k, if it is split.
    """
    dtype, itemsize = TRITON_TYPES[kernel.dtype.name], kernel.dtype.itemsize
    granule = ALIGNMENT_BYTES // itemsize if kernel.aligned else 1
    c_granule = granule if kernel.c_aligned else 1
    described = kernel.loads == "descriptors"
    found: list[Argument] = []

    def add(name: str, type_: str, divisor: int = 1) -> None:
        found.append(Argument(name, type_, divisor))

    def matrix(name: str, block: tuple[int, int], by_descriptor: bool, divisor: int) -> None:
        if by_descriptor:
            add(name, f"tensordesc<{dtype}[1, {block[0]}, {block[1]}]>")
        else:
            add(name, f"*{dtype}", divisor * itemsize)

    stored = stores_by_descriptor(kernel)
    extra = operands(kernel.epilogue)
    main = kernel.main
    matrix("a", stored_block(kernel.a_order, main.bm, main.bk), described, granule)
    matrix("b", stored_block(kernel.b_order, main.bn, main.bk), described, granule)
    matrix("c", (main.bm, main.bn), stored, c_granule)
    for rest in kernel.tiles[1:]:
        if described:
            matrix("a_rest", stored_block(kernel.a_order, rest.bm, rest.bk), True, granule)
        if stored:
            matrix("c_rest", (rest.bm, rest.bn), True, c_granule)
    if kernel.split:
        add("workspace", "*fp32", ALIGNMENT_BYTES)
        add("counters", "*i32")
    for operand in extra:
        divisor = c_granule * itemsize if operand.kind == "matrix" else itemsize
        add(operand_argument(operand.name), f"*{dtype}", divisor)
    add("m", "i32")
    add("n", "i32")
    walks_k = not described and "k" in (kernel.a_order, kernel.b_order)
    add("k", "i32", granule if walks_k else 1)
    add("batch", "i32")
    if len(kernel.tiles) > 1:
        add("rows", "i32")
    if described:
        add("a_batch", "i32")
        add("b_batch", "i32")
    else:
        for name in ("a_stride", "b_stride", "a_batch", "b_batch"):
            add(name, _STRIDE_TYPE, granule)
    if not stored:
        add("c_row", _STRIDE_TYPE, c_granule)
        add("c_batch", _STRIDE_TYPE, c_granule)
    for operand in extra:
        if operand.kind == "matrix":
            add(f"{operand_argument(operand.name)}_row", _STRIDE_TYPE, c_granule)
            add(f"{operand_argument(operand.name)}_batch", _STRIDE_TYPE, c_granule)
    add("group", "i32")
    if kernel.split:
        add("parts", "i32")
    return tuple(found)


def stored_block(order: Order, spatial: int, k: int) -> tuple[int, int]:
    """Extents of a tile of A or B as it lies in memory, the contiguous axis last."""
    return (spatial, k) if order == "k" else (k, spatial)


def workspace_elements(
    kernel: BlockKernel, m: int, n: int, batch: int, rows: int, parts: int
) -> int:
    """Numbers of float32 that the parts of a split product leave."""
    columns = -(-n // kernel.main.bn)
    bands = zip(kernel.tiles, (rows, m - rows) if len(kernel.tiles) > 1 else (m,), strict=True)
    return sum(
        batch * -(-extent // tile.bm) * columns * parts * tile.bm * tile.bn
        for tile, extent in bands
    )


class _Band(NamedTuple):
    """One band of a kernel, as far as its text goes."""

    kernel: BlockKernel
    tile: BlockTile
    number: int

    @property
    def suffix(self) -> str:
        """Of the descriptors with this band's blocks."""
        return "_rest" if self.number else ""

    @property
    def granule(self) -> int:
        return ALIGNMENT_BYTES // self.kernel.dtype.itemsize if self.kernel.aligned else 1

    @property
    def c_granule(self) -> int:
        return self.granule if self.kernel.c_aligned else 1


def gemm_source(kernel: BlockKernel) -> Source:
    """The kernel, ready to be compiled; launched with as many programs as the plan says."""
    arguments = gemm_arguments(kernel)
    names = ", ".join(a.name for a in arguments)
    rendered = _epilogue(kernel)
    bands = [_Band(kernel, tile, i) for i, tile in enumerate(kernel.tiles)]
    body = "\n".join((
        "program = tl.program_id(0)",
        "programs = tl.num_programs(0)",
        f"columns = tl.cdiv(n, {kernel.main.bn})",
        f"steps = tl.cdiv(k, {kernel.main.bk})",
        *(line for band in bands for line in _band_lines(band, rendered)),
    ))  # fmt: skip
    text = (
        f"{HEADER}{rendered.prelude}\n\n@triton.jit\ndef {kernel.symbol}({names}):\n"
        f"{indent(body, '    ')}\n"
    )
    return Source(kernel.symbol, text, arguments, kernel.main.warps, kernel.main.stages)


def _epilogue(kernel: BlockKernel) -> RenderedEpilogue:
    values = {ACCUMULATOR.name: "total"}
    values |= {o.name: f"value_{o.name}" for o in operands(kernel.epilogue)}
    return render_epilogue(kernel.epilogue, values, "e")


def _band_lines(band: _Band, rendered: RenderedEpilogue) -> list[str]:
    """The loop over the tiles of one band."""
    kernel, tile = band.kernel, band.tile
    two = len(kernel.tiles) > 1
    extent = ("rows", "m - rows")[band.number] if two else "m"
    parts = " * parts" if kernel.split else ""
    lines = [
        f"row_tiles = tl.cdiv({extent}, {tile.bm})",
        "in_element = row_tiles * columns",
        "in_group = group * columns",
        f"tiles = in_element * batch{parts}",
    ]
    first = "program"
    if band.number:
        lines.append("begin = (programs - before % programs + program) % programs")
        first = "begin"
    if two and band.number == 0:
        lines.append("before = tiles")
        if kernel.split:
            lines.append("counted = in_element * batch")
            lines.append(f"used = tiles.to(tl.int64) * {tile.bm * tile.bn}")
    # One loop of tiles and steps needs a length that no tile changes.
    options = ""
    if kernel.loads == "descriptors" and not kernel.split:
        options = ", flatten=True" + (", warp_specialize=True" if kernel.specialised else "")
    lines.append(f"for index in tl.range({first}, tiles, programs{options}):")
    inner = [
        *(("part = index % parts", "tile = index // parts") if kernel.split else ("tile = index",)),
        "element = tile // in_element",
        "place = tile % in_element",
        "first = place // in_group * group",
        "height = tl.minimum(row_tiles - first, group)",
        f"row = (first + place % in_group % height) * {tile.bm}"
        + (" + rows" if band.number else ""),
        f"column = place % in_group // height * {tile.bn}",
        *_product_lines(band),
        *(_split_lines(band, rendered) if kernel.split else _result_lines(band, rendered)),
    ]
    return lines + [f"    {line}" for line in inner]


def _product_lines(band: _Band) -> list[str]:
    """`total`, the float32 sums of the tile over all steps or those of its part."""
    kernel, tile = band.kernel, band.tile
    precision = ""
    if kernel.dtype.name == "float32":
        precision = f', input_precision="{"tf32" if kernel.multiply == "tf32" else "ieee"}"'
    before: list[str] = []
    steps = "steps"
    if kernel.split:
        before = ["begin_step = part * steps // parts", "end_step = (part + 1) * steps // parts"]
        steps = "begin_step, end_step"
    if kernel.loads == "descriptors":
        inside = [f"x = {_described(band, 'a')}", f"y = {_described(band, 'b')}"]
    else:
        x_before, x_load, x_next = _pointed(band, "a")
        y_before, y_load, y_next = _pointed(band, "b")
        before += [f"inner = tl.arange(0, {tile.bk})", *x_before, *y_before]
        inside = [f"left = k - step * {tile.bk}", x_load, y_load, x_next, y_next]
    return [
        *before,
        f"total = tl.zeros(({tile.bm}, {tile.bn}), dtype=tl.float32)",
        f"for step in range({steps}):",
        *(f"    {line}" for line in inside),
        f"    total = tl.dot(x, y, total{precision})",
    ]


def _described(band: _Band, name: str) -> str:
    """A tile of A or B by descriptor, turned as the product wants it."""
    a, bk = name == "a", band.tile.bk
    order = band.kernel.a_order if a else band.kernel.b_order
    spatial, place = (band.tile.bm, "row") if a else (band.tile.bn, "column")
    offsets = (place, f"step * {bk}") if order == "k" else (f"step * {bk}", place)
    extents = stored_block(order, spatial, bk)
    turned = ".T" if (order == "k") != a else ""
    return (
        f"{name}{band.suffix if a else ''}.load([element * {name}_batch, {offsets[0]}, "
        f"{offsets[1]}]).reshape({extents[0]}, {extents[1]}){turned}"
    )


def _pointed(band: _Band, name: str) -> tuple[list[str], str, str]:
    """A tile of A or B by pointers: what stands before the loop over k; the load; the step."""
    a, bk = name == "a", band.tile.bk
    order = band.kernel.a_order if a else band.kernel.b_order
    spatial, place, extent = (band.tile.bm, "row", "m") if a else (band.tile.bn, "column", "n")
    across, along = ("[:, None]", "[None, :]") if a else ("[None, :]", "[:, None]")
    begin = f" + begin_step * {bk}" if band.kernel.split else ""
    block = "x" if a else "y"
    base = f"{name} + element.to(tl.int64) * {name}_batch"
    places = f"{place} + tl.arange(0, {spatial})"
    mask = f"(inner < left){along}"
    if order == "k":
        before = [
            f"{block}_places = tl.minimum({places}, {extent} - 1).to(tl.int64)",
            f"{block}_at = {base} + {block}_places{across} * {name}_stride + (inner{begin}){along}",
        ]
        stride = str(bk)
    else:
        g = band.granule
        whole = extent if g == 1 else f"tl.cdiv({extent}, {g}) * {g}"
        before = [
            f"{block}_places = {places}",
            f"{block}_within = ({block}_places < {whole}){across}",
            f"{block}_at = {base} + {block}_places{across}"
            f" + (inner{begin}).to(tl.int64){along} * {name}_stride",
        ]
        mask += f" & {block}_within"
        stride = f"{name}_stride * {bk}"
    load = f"{block} = tl.load({block}_at, mask={mask}, other=0.0)"
    return before, load, f"{block}_at += {stride}"


def _split_lines(band: _Band, rendered: RenderedEpilogue) -> list[str]:
    """Leave the part's sums; the last part adds them all and goes on."""
    area = band.tile.bm * band.tile.bn
    offset, counter = ("used + ", "counted + tile") if band.number else ("", "tile")
    return [
        f"within = tl.arange(0, {band.tile.bm})[:, None] * {band.tile.bn}"
        f" + tl.arange(0, {band.tile.bn})[None, :]",
        f"slots = workspace + ({offset}(tile * parts).to(tl.int64) * {area})",
        f"tl.store(slots + part * {area} + within, total)",
        "tl.debug_barrier()",
        f'arrived = tl.atomic_add(counters + {counter}, 1, sem="acq_rel", scope="gpu")',
        "if arrived == parts - 1:",
        f"    total = tl.zeros(({band.tile.bm}, {band.tile.bn}), dtype=tl.float32)",
        "    for other in range(parts):",
        f"        total += tl.load(slots + other * {area} + within)",
        f"    tl.store(counters + {counter}, 0)",
        *(f"    {line}" for line in _result_lines(band, rendered)),
    ]


def _result_lines(band: _Band, rendered: RenderedEpilogue) -> list[str]:
    """Apply the epilogue to `total` and store the tile."""
    kernel, tile = band.kernel, band.tile
    extra = operands(kernel.epilogue)
    stored = stores_by_descriptor(kernel)
    lines: list[str] = []
    if extra or not stored:
        lines += [
            f"c_rows = row + tl.arange(0, {tile.bm})",
            f"c_columns = column + tl.arange(0, {tile.bn})",
        ]
    for operand in extra:
        lines.append(f"value_{operand.name} = {_operand(band, operand)}.to(tl.float32)")
    lines += rendered.lines
    value = rendered.value
    if ACCUMULATOR not in (step.node for step in flatten(kernel.epilogue)):
        value = f"tl.broadcast_to({value}, ({tile.bm}, {tile.bn}))"
    rounded = f"{value}.to({LANGUAGE_TYPES[kernel.dtype.name]})"
    if stored:
        block = f"{rounded}.reshape(1, {tile.bm}, {tile.bn})"
        return [*lines, f"c{band.suffix}.store([element, row, column], {block})"]
    lines += [
        f"result = {rounded}",
        "c_at = c + element.to(tl.int64) * c_batch"
        " + c_rows.to(tl.int64)[:, None] * c_row + c_columns[None, :]",
    ]
    whole = "tl.store(c_at, result, mask=(c_rows < m)[:, None])"
    masked = "tl.store(c_at, result, mask=(c_rows < m)[:, None] & (c_columns < n)[None, :])"
    if band.c_granule == 1:
        return [*lines, masked]
    # A mask along a row would make every element a store of its own.
    return [*lines, f"if column + {tile.bn} <= n:", f"    {whole}", "else:", f"    {masked}"]


def _operand(band: _Band, operand: Operand) -> str:
    """The load of what an epilogue reads."""
    name = operand_argument(operand.name)
    if operand.kind == "column":
        return f"tl.load({name} + c_columns, mask=c_columns < n, other=0.0)[None, :]"
    if operand.kind == "row":
        return f"tl.load({name} + c_rows, mask=c_rows < m, other=0.0)[:, None]"
    g = band.c_granule
    whole = "n" if g == 1 else f"tl.cdiv(n, {g}) * {g}"
    return (
        f"tl.load({name} + element.to(tl.int64) * {name}_batch"
        f" + c_rows.to(tl.int64)[:, None] * {name}_row + c_columns[None, :],"
        f" mask=(c_rows < m)[:, None] & (c_columns < {whole})[None, :], other=0.0)"
    )
