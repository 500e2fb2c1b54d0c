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
        # Its windows lie outside of it, and nothing is read.
        return x.new_zeros((groups, 1, 1))
    return x.as_strided((groups, 1, 1), (run, 1, 1))


def bound_window(
    x: Tensor, read: ReadWindow, kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], begin: Sequence[int], positions: Sequence[int],
) -> BoundWindow:  # fmt: skip
    """Returns the window of x, (images, spatial axes..., channels) with contiguous channels. The
    other lists have an entry for each spatial axis; see `graph.steps.Window`.

    Raises:
        ShapeError: an index along an axis is beyond `MOST_COUNTED`.
    """
    numbers: list[tuple[str, int]] = [("taps", math.prod(kernel)), ("run", read.run)]
    for i in range(read.axes):
        # What is never added to may be of any size.
        stride = strides[i] if positions[i] > 1 else 0
        dilation = dilations[i] if kernel[i] > 1 else 0
        reach = (positions[i] - 1) * stride + (kernel[i] - 1) * dilation + abs(begin[i])
        if max(reach, x.shape[1 + i]) > MOST_COUNTED:
            raise ShapeError(
                f"a convolution reaches {reach} elements along spatial axis {i} of "
                f"{tuple(x.shape)}; at most {MOST_COUNTED} are possible"
            )
        numbers += [
            (f"extent{i}", x.shape[1 + i]), (f"positions{i}", positions[i]),
            (f"taps{i}", kernel[i]), (f"stride{i}", stride), (f"dilation{i}", dilation),
            (f"begin{i}", begin[i]), (f"axis{i}", x.stride(1 + i)),
        ]  # fmt: skip
    numbers.append(("image", x.stride(0)))
    whole = read.run * x.element_size() % ALIGNMENT_BYTES == 0
    return BoundWindow(read, tuple(numbers), whole and aligned([x]))
