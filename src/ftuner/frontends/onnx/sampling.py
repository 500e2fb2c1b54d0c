"""Operators that read an image at positions that are data: GridSample and AffineGrid."""

from __future__ import annotations

from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import counted, iota
from ftuner.graph.checks import expect_shape, malformed
from ftuner.graph.compositions.sampling import grid_samples
from ftuner.graph.ir import Value

# GridSample.


_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Modes by the names that they had before opset 20."""


@onnx("GridSample")
def _grid_sample(
    node: NodeView, x: Value, grid: Value, padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Value:  # fmt: skip
    mode = node.text("mode", "bilinear" if node.opset < 20 else "linear")
    mode = _GRID_MODES.get(mode, mode)
    for found, known in ((mode, ("linear", "nearest", "cubic")),
                         (padding_mode, ("zeros", "border", "reflection"))):  # fmt: skip
        if found not in known:
            raise malformed(f"{found!r}; expected one of {', '.join(known)}")
    return grid_samples(x, grid, mode, padding_mode, align_corners)


@onnx("AffineGrid")
def _affine_grid(context: Context, theta: Value, size: Value, align_corners: bool = False) -> Value:
    sizes = context.dims_of(size, "the size")
    rank = len(sizes) - 2
    if theta.rank != 3 or rank not in (2, 3):
        raise malformed(f"a grid of {list(sizes)} by {theta.type}")
    what = f"a grid of {list(sizes)} by {theta.type}"
    expect_shape(theta, (sizes[0], rank, rank + 1), what)
    turned = theta.swapped()

    def column(number: int) -> Value:
        """What one coordinate adds to each coordinate of the result."""
        return turned.slice(1, number, 1).reshape((theta.shape[0], *[1] * rank, rank))

    total = column(rank)
    for axis, extent in enumerate(sizes[2:]):
        numbers = iota(extent, axis, rank + 1).cast(theta.dtype)
        count = counted([extent], theta.dtype)
        last = (count + -1).at_least(1)
        along = numbers * 2 / last if align_corners else (numbers * 2 + 1) / count
        total = total + column(rank - 1 - axis) * (along + -1)
    return total.broadcast((theta.shape[0], *sizes[2:], rank))
