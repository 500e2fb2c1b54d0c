"""Windows that products on a GPU read A through, at concrete extents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.gpu.tile import ALIGNMENT_BYTES, MOST_COUNTED
from ftuner.core.product import ReadWindow
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import Tensor, aligned


class BoundWindow(NamedTuple):
    """A window of x at known extents. The A of the product is `matrix_of`."""

    read: ReadWindow
    arguments: tuple[tuple[str, int], ...]
    """The values of `window_arguments` by name."""
    aligned: bool
    """Whether addresses of runs are multiples of 16 bytes, and their lengths."""


def matrix_of(x: Tensor, groups: int, run: int) -> Tensor:
    """Returns what a product is given for its A: the first element of each group, as a matrix of
    one element."""
    if not x.numel():
        # No window reads an element of it.
        return x.new_zeros((groups, 1, 1))
    return x.as_strided((groups, 1, 1), (run, 1, 1))


def expect_within_reach(
    extent: int, positions: int, kernel: int, stride: int, dilation: int, begin: int
) -> None:
    """Raises ShapeError if indices along a spatial axis of x are more than kernels count."""
    reach = max(positions - 1, 0) * stride + (kernel - 1) * dilation + abs(begin)
    if max(reach, extent) > MOST_COUNTED:
        raise ShapeError(
            f"windows reach {reach} elements along an axis of {extent}; at most {MOST_COUNTED} are "
            "possible"
        )


def bound_window(
    x: Tensor, read: ReadWindow, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], begin: Sequence[int], positions: Sequence[int],
) -> BoundWindow:  # fmt: skip
    """Returns the window of x, (images, spatial axes..., channels) with contiguous channels. The
    other lists have an entry for each spatial axis; see `graph.steps.Window`.

    Raises:
        ShapeError: as for `expect_within_reach`.
    """
    numbers: list[tuple[str, int]] = [("taps", math.prod(kernel)), ("run", read.run)]
    for i in range(read.axes):
        # What is never added to may be of any size.
        stride = strides[i] if positions[i] > 1 else 0
        dilation = dilations[i] if kernel[i] > 1 else 0
        expect_within_reach(x.shape[1 + i], positions[i], kernel[i], stride, dilation, begin[i])
        numbers += [
            (f"extent{i}", x.shape[1 + i]), (f"positions{i}", positions[i]),
            (f"taps{i}", kernel[i]), (f"stride{i}", stride), (f"dilation{i}", dilation),
            (f"begin{i}", begin[i]), (f"axis{i}", x.stride(1 + i)),
        ]  # fmt: skip
    numbers.append(("image", x.stride(0)))
    whole = read.run * x.element_size() % ALIGNMENT_BYTES == 0
    return BoundWindow(read, tuple(numbers), whole and aligned([x]))
