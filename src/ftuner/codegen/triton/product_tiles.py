"""The sums of one tile of a product, as Triton text.

With *pointers*, rows and columns beyond an edge repeat the edge or are zeros; their results are not
stored. Every k step is masked, with zeros beyond the end: a separate last step would be a second
product in the text. Along a contiguous axis an aligned kernel reads whole granules of 16 bytes, up
to the one with the last element, because with a mask by the element Triton loads elements one by
one. With *descriptors* the copy engine fills with zeros. `product_window` has the loads of an A
that is read through a window.
"""

from __future__ import annotations

from typing import NamedTuple

from ftuner.codegen.triton.product_arguments import granule, stored_block
from ftuner.codegen.triton.product_window import window_lines
from ftuner.core.gpu.tile import BlockTile, Multiply, Order, ProductKernel

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
