"""The sums of one tile of a convolution, as Triton text: A is read through a window.

Row r of A is the window of position r of the result. x is (images, spatial axes..., channels), and
an element of a window is `run` consecutive elements of x. k goes through the window element by
element, and through the run of each in steps of `bk`; no step has parts of two elements.

What depends on the row alone comes before the loop over k: the coordinates of its position, by
division, and its address. A step adds one number to all addresses, and compares the indices along
each spatial axis with the extents of x: what lies outside is zero.

B is contiguous along k, as A is: then unaligned columns do not matter, and matrix instructions read
elements of any size as they are stored.

With *pointers*, rows and columns beyond an edge repeat the edge or are zeros; their results are not
stored. Every k step is masked, with zeros beyond the end: a separate last step would be a second
product in the text. Along a contiguous axis a kernel reads whole granules of its alignment, up to
the one with the last element, because with a mask by the element Triton loads elements one by
one. With *descriptors* the copy engine fills with zeros. `product_window` has the loads of an A
that is read through a window.
"""

from __future__ import annotations

from typing import NamedTuple

from ftuner.codegen.triton.product_arguments import granule, stored_block
from ftuner.core.gpu.tile import BlockTile, Multiply, Order, ProductKernel


def window_lines(kernel: ProductKernel, tile: BlockTile) -> tuple[list[str], list[str]]:
    """Returns the lines that load `a_tile` and `b_tile` of the tile at `row`, `column` of group
    `element`: before the loop over k, which begins with `begin_step` if k is split, and in it."""
    assert (kernel.a_order, kernel.b_order) == ("k", "k")
    axes, bk, g = range(kernel.window), tile.bk, granule(kernel)
    before = [
        f"inner = tl.arange(0, {bk})",
        *_first_element(kernel, bk),
        f"place_in_x = tl.minimum(row + tl.arange(0, {tile.bm}), m - 1)",
    ]
    for i in reversed(axes):
        before += [
            f"first{i} = place_in_x % positions{i} * stride{i} - begin{i}",
            f"place_in_x = place_in_x // positions{i}",
        ]
    apart = [f"first{i}.to(tl.int64) * axis{i}" for i in axes]
    before += [
        f"a_rows = place_in_x.to(tl.int64) * image + {' + '.join(apart)}",
        "a_at = a + element.to(tl.int64) * a_batch + a_rows[:, None] + inner[None, :]",
        f"b_columns = tl.minimum(column + tl.arange(0, {tile.bn}), n - 1).to(tl.int64)",
        "b_at = b + element.to(tl.int64) * b_batch + (b_columns * b_stride)[None, :]"
        " + inner[:, None]",
    ]
    inside = [f"at{i} = tap{i} * dilation{i}" for i in axes]
    inside += [f"index{i} = first{i} + at{i}" for i in axes]
    borders = [f"(index{i} >= 0) & (index{i} < extent{i})" for i in axes]
    moved = [f"at{i}.to(tl.int64) * axis{i}" for i in axes]
    inside += [
        f"left = {_whole('run - channel', g)}",
        f"a_mask = ({' & '.join(borders)})[:, None] & (inner < left)[None, :]",
        f"a_moved = {_whole(' + '.join((*moved, 'channel')), g)}",
        "a_tile = tl.load(a_at + a_moved, mask=a_mask, other=0.0)",
        f"b_moved = {_whole('passed', g)}",
        "b_tile = tl.load(b_at + b_moved, mask=(inner < left)[:, None], other=0.0)",
        *_next_element(kernel, bk),
    ]
    return before, inside


def _whole(text: str, g: int) -> str:
    """The text of an integer that is known to be a multiple of a number of elements."""
    return text if g == 1 else f"tl.multiple_of({text}, {g})"


def _first_element(kernel: ProductKernel, bk: int) -> list[str]:
    """Lines for the first step: `channel`, the first of the run; `tapI`, the element's index along
    each axis of the window; `passed`, the elements of k before it."""
    axes = range(kernel.window)
    if not kernel.split:
        return ["channel = 0", "passed = 0", *(f"tap{i} = 0" for i in axes)]
    lines = [
        f"in_run = tl.cdiv(run, {bk})",
        f"channel = begin_step % in_run * {bk}",
        "number = begin_step // in_run",
        "passed = number * run + channel",
    ]
    for i in reversed(axes):
        lines += [f"tap{i} = number % taps{i}", f"number = number // taps{i}"]
    return lines


def _next_element(kernel: ProductKernel, bk: int) -> list[str]:
    """Lines that move on to the next step."""
    lines = [
        f"passed += tl.minimum(run - channel, {bk})",
        f"channel += {bk}",
        "ends = channel >= run",
        "channel = tl.where(ends, 0, channel)",
    ]
    last, *others = reversed(range(kernel.window))
    lines.append(f"tap{last} += ends.to(tl.int32)")
    inner = last
    for i in others:
        lines += [
            f"ends = tap{inner} == taps{inner}",
            f"tap{inner} = tl.where(ends, 0, tap{inner})",
            f"tap{i} += ends.to(tl.int32)",
        ]
        inner = i
    return lines


PRECISION: dict[Multiply, str] = {
    "float32": ', input_precision="ieee"',
    "tf32": ', input_precision="tf32"',
    "tf32x3": ', input_precision="tf32x3"',
}
"""The precision of float32 products in Triton; other elements need none."""


def element_base(kernel: ProductKernel, name: str) -> str:
    """Returns the address of a matrix of the batch element; groups have their own addresses."""
    return name if kernel.grouped else f"{name} + element.to(tl.int64) * {name}_batch"


class _Side(NamedTuple):
    """A or B and how its tiles are loaded."""

    name: str
    order: Order
    spatial: int
    """Rows of A, or columns of B, in a tile."""
    place: str
    """The index of its first row or column, as text."""
    extent: str
    across: str
    """The index expression that broadcasts the spatial axis over the tile of the product."""
    along: str
    """The same for k."""


def _sides(kernel: ProductKernel, tile: BlockTile) -> tuple[_Side, _Side]:
    rows, columns = "[:, None]", "[None, :]"
    return (
        _Side("a", kernel.a_order, tile.bm, "row", "m", rows, columns),
        _Side("b", kernel.b_order, tile.bn, "column", "n", columns, rows),
    )


def sum_lines(kernel: ProductKernel, tile: BlockTile, rest: bool) -> list[str]:
    """Lines for `sums`, float32, of the tile at `row`, `column` of batch element `element`, or of
    the matrices of a group at `a` and `b`: over all `steps`, or over those of part `part` of
    `split_k`. `rest`: whether the descriptors for the second band are read."""
    before: list[str] = []
    steps = "steps"
    if kernel.split:
        before = [
            "begin_step = part * steps // split_k",
            "end_step = (part + 1) * steps // split_k",
        ]
        steps = "begin_step, end_step"
    inside: list[str] = []
    if kernel.window:
        placed, inside = window_lines(kernel, tile)
        before += placed
    elif kernel.loads == "descriptors":
        for side in _sides(kernel, tile):
            inside.append(f"{side.name}_tile = {_described(side, tile.bk, rest)}")
    else:
        before.append(f"inner = tl.arange(0, {tile.bk})")
        inside.append(f"left = k - step * {tile.bk}")
        for side in _sides(kernel, tile):
            placed, loaded = _pointed(side, tile.bk, kernel)
            before += placed
            inside += loaded
    precision = PRECISION.get(kernel.multiply, "")
    return [
        *before,
        f"sums = tl.zeros(({tile.bm}, {tile.bn}), dtype=tl.float32)",
        f"for step in range({steps}):",
        *(f"    {line}" for line in inside),
        f"    sums = tl.dot(a_tile, b_tile, sums{precision})",
    ]


def _described(side: _Side, bk: int, rest: bool) -> str:
    """Returns the load of a tile by its descriptor, transposed for the product."""
    name = "a_rest" if rest and side.name == "a" else side.name
    step = f"step * {bk}"
    offsets = (side.place, step) if side.order == "k" else (step, side.place)
    extents = stored_block(side.order, side.spatial, bk)
    turned = ".T" if (side.order == "k") == (side.name == "b") else ""
    return (
        f"{name}.load([element * {side.name}_batch, {', '.join(offsets)}])"
        f".reshape({extents[0]}, {extents[1]}){turned}"
    )


def _pointed(side: _Side, bk: int, kernel: ProductKernel) -> tuple[list[str], list[str]]:
    """Returns the lines of loads by pointers: before the loop over k, and in it."""
    name, across, along = side.name, side.across, side.along
    base = element_base(kernel, name)
    places = f"{side.place} + tl.arange(0, {side.spatial})"
    first = f"(inner + begin_step * {bk})" if kernel.split else "inner"
    mask = f"(inner < left){along}"
    if side.order == "k":
        before = [
            f"{name}_places = tl.minimum({places}, {side.extent} - 1).to(tl.int64){across}",
            f"{name}_at = {base} + {name}_places * {name}_stride + {first}{along}",
        ]
        step = str(bk)
    else:
        g = granule(kernel)
        behind = side.extent if g == 1 else f"tl.cdiv({side.extent}, {g}) * {g}"
        before = [
            f"{name}_places = ({places}){across}",
            f"{name}_within = {name}_places < {behind}",
            f"{name}_at = {base} + {first}.to(tl.int64){along} * {name}_stride + {name}_places",
        ]
        mask += f" & {name}_within"
        step = f"{name}_stride * {bk}"
    return before, [
        f"{name}_tile = tl.load({name}_at, mask={mask}, other=0.0)",
        f"{name}_at += {step}",
    ]
