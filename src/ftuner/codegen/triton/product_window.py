"""The sums of one tile of a convolution, as Triton text: A is read through a window.

Row r of A is the window of position r of the result. x is (images, spatial axes..., channels), and
an element of a window is `run` consecutive elements of x. k goes through the window element by
element, and through the run of each in steps of `bk`; no step has parts of two elements.

What depends on the row alone comes before the loop over k: the coordinates of its position, by
division, and its address. A step adds one number to all addresses, and compares the indices along
each spatial axis with the extents of x: what lies outside is zero.

B is contiguous along k, as A is: then unaligned columns do not matter, and matrix instructions read
elements of any size as they are stored.
"""

from __future__ import annotations

from ftuner.codegen.triton.product_arguments import granule
from ftuner.core.gpu.tile import BlockTile, ProductKernel


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
