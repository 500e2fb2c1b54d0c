"""Operators of several axes become one for each axis, where that reads less.

The largest element of 9 x 9 is the largest of nine that are the largest of nine each; elements
outside the operand count in neither. Interpolation is a sum of sums in the same way.
"""

from __future__ import annotations

import math

from ftuner.core.dim import maximum
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Node, Value
from ftuner.graph.ops.resampling import written_out
from ftuner.graph.ops.windows import ARGMAX
from ftuner.graph.rewrite.rule import rule, together

PASS_ELEMENTS = 2
"""Elements of a window that take as long as writing and reading a result in between. Derived: a
store and a load."""


@rule("window_reduce")
def separate_windows(node: Node) -> Value | None:
    attributes, (x,) = node.attributes, node.inputs
    kernel, strides = attributes["kernel"], attributes["strides"]
    if attributes["kind"] == ARGMAX or not all(isinstance(n, int) for n in kernel):
        return None
    # Results in between are longer by the strides that are still to come.
    reads = [n * math.prod(strides[axis + 1 :]) for axis, n in enumerate(kernel)]
    # Elements apart along vectors are put together from as many loads.
    apart = 1 + strides[-1] if x.shape[-1] == 1 and strides[-1] > 1 else 1
    reads[-1] *= apart
    if sum(reads) + PASS_ELEMENTS * (len(kernel) - 1) >= math.prod(kernel) * apart:
        return None
    extents = list(x.shape[1:-1])
    for axis in range(len(kernel)):
        extents[axis] = attributes["extents"][axis]
        own = {"extents": tuple(extents), "kind": attributes["kind"]}
        for name, other in (("kernel", 1), ("strides", 1), ("dilations", 1), ("begin", 0)):
            values = [other] * len(kernel)
            values[axis] = attributes[name][axis]
            own[name] = tuple(values)
        x = apply("window_reduce", x, **own)
    return x


@rule("resample")
def separate_resampling(node: Node) -> Value | None:
    """Where elements are looked up along the last axis, unless few are summed of an axis that may
    shrink: of these lines fewer are left than a result in between would have. Where channels are
    last whole vectors are read instead, and a result in between would not pay."""
    x, *tables = node.inputs
    axes = node.attributes["axes"]
    count = len(axes)
    order = sorted(range(count), key=lambda number: axes[number])
    if count < 2 or x.rank - 1 not in axes:
        return None
    size = tables[order[-1]].shape[1]
    if maximum(size, x.shape[-1]) == size:
        # The look-ups of the last axis before there are more lines.
        order.reverse()
    elif written_out(tuple(table.shape[0] for table in tables[:count])):
        return None
    for number in order:
        x = apply("resample", x, *tables[number::count], axes=(axes[number],))
    return x


separate_axes = together(separate_windows, separate_resampling)
