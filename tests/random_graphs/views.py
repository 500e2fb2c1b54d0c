"""Operators that only move elements, in front of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import ONE, Extent, derived, number, static, times
from tests.random_graphs.making import Maker
from tests.random_graphs.tensors import FLOATS, MAX_RANK, Tensor

View = Callable[[Maker, Tensor], Tensor]
OPEN = (2**31 - 1, 2**63 - 1)
"""What exporters write for the end of an axis."""


def identity(maker: Maker, x: Tensor) -> Tensor:
    return maker.moved("Identity", x, x.shape)


def transpose(maker: Maker, x: Tensor) -> Tensor:
    if x.rank < 2:
        raise DeclinedError("too few axes")
    if maker.draws.chance(0.1):
        return maker.moved("Transpose", x, x.shape[::-1])
    if maker.draws.chance(0.4):
        # The last two axes, as products are fed.
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    else:
        perm = maker.draws.shuffled(range(x.rank))
    return maker.moved("Transpose", x, [x.shape[p] for p in perm], perm=perm)


def slice_length(n: int, start: int, end: int, step: int) -> int:
    """How many elements ONNX's Slice takes of n: unlike in Python, a start before the first element
    is the first element, with steps back too."""
    if n and step < 0 and start + n < 0:
        start = 0
    return len(range(*slice(start, end, step).indices(n)))


def _sliced(maker: Maker, extent: Extent, start: int, end: int, step: int) -> Extent:
    at = [slice_length(n, start, end, step) for n in extent.at]
    if extent.static:
        return static(at[0])
    return extent if tuple(at) == extent.at and (start, step) == (0, 1) and end in OPEN else (
        derived(f"{extent.key}[{start}:{end}:{step}]", at))  # fmt: skip


def _bounds(maker: Maker, step: int) -> tuple[int, int]:
    """Where a slice begins and ends: about its axis, whatever its extent."""
    draws = maker.draws
    if step > 0:
        start = draws.pick((0, 1, 2, -1, -2, -3, 3, 5, -100))
        end = draws.pick((OPEN[0], OPEN[1], -1, -2, 4, 8, 1, 3, 16, 100, 0))
    else:
        start = draws.pick((-1, -2, OPEN[0], 3, 1, 0, 7, 100, -3))
        end = draws.pick((-(2**31), -(2**63), 0, 1, -5, -4, 2))
    return start, end


def slice_(maker: Maker, x: Tensor) -> Tensor:
    if not x.rank:
        raise DeclinedError("no axes")
    draws = maker.draws
    axes = draws.some(draws.shuffled(range(x.rank)), 1)
    steps = [1] * len(axes)
    if maker.opset >= 10:
        steps = [draws.weighted((1, -1, 2, -2, 3, -3), (5, 3, 2, 1.5, 0.5, 0.5)) for _ in axes]
    bounds = [_bounds(maker, step) for step in steps]
    shape = list(x.shape)
    for axis, (start, end), step in zip(axes, bounds, steps, strict=True):
        shape[axis] = _sliced(maker, x.shape[axis], start, end, step)
        if min(shape[axis].at) == 0 and min(x.shape[axis].at) > 0 and not draws.chance(0.1):
            raise DeclinedError("nothing is left")
    return slice_node(maker, x, shape, axes, bounds, steps)


def slice_node(
    maker: Maker, x: Tensor, shape: Sequence[Extent], axes: Sequence[int],
    bounds: Sequence[tuple[int, int]], steps: Sequence[int],
) -> Tensor:  # fmt: skip
    starts, ends = [s for s, _ in bounds], [e for _, e in bounds]
    if maker.opset < 10:
        return maker.moved("Slice", x, shape, axes=list(axes), starts=starts, ends=ends)
    if all(-(2**31) <= e < 2**31 for e in ends) and maker.draws.chance(0.1):
        dtype = "int32"
    else:
        dtype = "int64"
    axes = [a - x.rank for a in axes] if maker.draws.chance(0.2) else list(axes)
    others = [maker.integers(v, dtype) for v in (starts, ends, axes, steps)]
    if all(s == 1 for s in steps):
        others = others[:3] if maker.draws.chance(0.5) else others
    return maker.moved("Slice", x, shape, *others)


def reshape_node(maker: Maker, x: Tensor, shape: Sequence[Extent]) -> Tensor:
    """A Reshape whose target is written in one of the ways of exporters."""
    inferred = [i for i, e in enumerate(shape) if not e.static]
    zeros = [
        i for i, e in enumerate(shape) if i < x.rank and e.key == x.shape[i].key and not e.static
    ]
    others = [e for i, e in enumerate(shape) if i not in inferred]
    whole = all(n > 0 for e in shape for n in e.at)
    rest = [i for i in inferred if i not in zeros]
    target: list[int] | None = None
    if not inferred:
        target = [e.at[0] for e in shape]
        if shape and whole and maker.draws.chance(0.3):
            target[maker.draws.below(len(shape))] = -1
    elif len(rest) <= 1 and whole:
        target = [e.at[0] if e.static else (-1 if i in rest else 0) for i, e in enumerate(shape)]
    elif len(inferred) == 1 and all(e.at[0] for e in others) and maker.draws.chance(0.7):
        target = [-1 if i in inferred else e.at[0] for i, e in enumerate(shape)]
    if target is not None and (inferred or 0 not in target):
        return maker.moved("Reshape", x, shape, maker.integers(target))
    if target is None and not all(maker.spells(e) for e in shape):
        raise DeclinedError("no way to write the shape")
    if target is None and whole:
        return maker.moved("Reshape", x, shape, maker.spelled(shape))
    if maker.opset < 14:
        raise DeclinedError("a zero stands for an extent of the operand")
    written = maker.spelled(shape) if target is None else maker.integers(target)
    return maker.moved("Reshape", x, shape, written, allowzero=1)


def _divisors(n: int) -> list[int]:
    return [d for d in (2, 3, 4, 5, 7, 8, 16, 32) if n % d == 0 and d < n]


def reshape(maker: Maker, x: Tensor) -> Tensor:
    shape = list(x.shape)
    kinds = ["merge", "split", "one", "flat", "back"]
    kind = maker.draws.pick(kinds)
    if kind == "merge" and x.rank >= 2:
        axis = maker.draws.below(x.rank - 1)
        shape[axis : axis + 2] = [times(shape[axis : axis + 2])]
    elif kind == "split" and x.rank < MAX_RANK:
        axis = maker.draws.pick([i for i, e in enumerate(shape) if e.static and _divisors(e.at[0])])
        n = shape[axis].at[0]
        d = maker.draws.pick(_divisors(n))
        shape[axis : axis + 1] = [static(d), static(n // d)]
    elif kind == "one" and x.rank < MAX_RANK:
        shape.insert(maker.draws.below(x.rank + 1), ONE)
    elif kind == "flat":
        shape = [times(shape)]
    else:
        if not all(e.static for e in shape):
            raise DeclinedError("extents that are not known")
        shape = maker.draws.shuffled(shape)
    return reshape_node(maker, x, shape)


def flatten(maker: Maker, x: Tensor) -> Tensor:
    if maker.opset < 9 and x.dtype not in FLOATS:
        raise DeclinedError("this Flatten takes floats only")
    axis = maker.draws.below(x.rank + 1)
    shape = [times(x.shape[:axis]), times(x.shape[axis:])]
    written = (
        axis - x.rank if maker.opset >= 11 and axis < x.rank and maker.draws.chance(0.3) else axis
    )
    return maker.moved("Flatten", x, shape, axis=written)


def squeeze(maker: Maker, x: Tensor) -> Tensor:
    ones = [i for i, e in enumerate(x.shape) if e.key == "1"]
    axes = maker.draws.some(ones, 1)
    if not axes:
        raise DeclinedError("no axis of one element")
    shape = [e for i, e in enumerate(x.shape) if i not in axes]
    everything = all(e.static for e in x.shape) and axes == ones
    if everything and maker.draws.chance(0.3):
        return maker.moved("Squeeze", x, shape)
    return with_axes(maker, "Squeeze", x, shape, axes, x.rank)


def unsqueeze(maker: Maker, x: Tensor) -> Tensor:
    count = maker.draws.pick((1, 2))
    if x.rank + count > MAX_RANK:
        raise DeclinedError("too many axes")
    axes = sorted(maker.draws.shuffled(range(x.rank + count))[:count])
    shape = list(x.shape)
    for axis in axes:
        shape.insert(axis, ONE)
    return with_axes(maker, "Unsqueeze", x, shape, axes, x.rank + count)


def with_axes(
    maker: Maker, op: str, x: Tensor, shape: Sequence[Extent], axes: Sequence[int], rank: int
) -> Tensor:
    """A node whose axes became an input in version 13."""
    if maker.opset >= 11 and maker.draws.chance(0.3):
        axes = [a - rank for a in axes]
    if maker.opset >= 13:
        return maker.moved(op, x, shape, maker.integers(axes))
    return maker.moved(op, x, shape, axes=list(axes))


def expand(maker: Maker, x: Tensor) -> Tensor:
    if maker.opset < 8:
        raise DeclinedError("no Expand yet")
    shape = list(x.shape)
    ones = [i for i, e in enumerate(shape) if e.key == "1"]
    for axis in maker.draws.some(ones):
        known = list(maker.symbols.values())
        shape[axis] = (
            maker.draws.pick(known) if known and maker.draws.chance(0.5)
            else static(number(maker.draws, large=0))
        )  # fmt: skip
    if len(shape) < MAX_RANK and maker.draws.chance(0.3):
        shape.insert(0, static(maker.draws.pick((2, 3, 1))))
    if not all(maker.spells(e) for e in shape):
        raise DeclinedError("no way to write the shape")
    kept = shape
    if len(shape) == x.rank and maker.draws.chance(0.3):
        # One leaves an axis as it is.
        kept = [ONE if e.key == own.key else e for e, own in zip(shape, x.shape, strict=True)]
    return maker.moved("Expand", x, shape, maker.spelled(kept))


def split(maker: Maker, x: Tensor) -> Tensor:
    if not x.rank:
        raise DeclinedError("no axes")
    axis = maker.draws.below(x.rank)
    extent = x.shape[axis]
    count = maker.draws.pick((2, 3))
    pieces: list[Extent]
    lengths: list[int] | None = None
    if extent.static and extent.at[0] >= count:
        n = extent.at[0]
        if n % count == 0 and maker.draws.chance(0.5):
            pieces = [static(n // count)] * count
        else:
            lengths = [maker.draws.pick(range(1, max(n // count, 1) + 1)) for _ in range(count - 1)]
            lengths.append(n - sum(lengths))
            pieces = [static(length) for length in lengths]
    elif not extent.static and maker.opset >= 18:
        # Equal pieces, the last one shorter.
        first = [-(-n // count) for n in extent.at]
        last = [n - f * (count - 1) for n, f in zip(extent.at, first, strict=True)]
        if min(last) < 1:
            # Whether pieces may be empty, implementations do not agree on.
            raise DeclinedError("too few for the pieces")
        pieces = [derived(f"{extent.key}/{count}", first)] * (count - 1)
        pieces.append(derived(f"{extent.key}%{count}", last))
    elif not extent.static and all(n % count == 0 for n in extent.at):
        pieces = [derived(f"{extent.key}/{count}", [n // count for n in extent.at])] * count
    else:
        raise DeclinedError("no equal pieces")
    results = [
        maker.new((*x.shape[:axis], piece, *x.shape[axis + 1 :]), x.dtype, x.low, x.high)
        for piece in pieces
    ]
    written = axis - x.rank if maker.opset >= 11 and maker.draws.chance(0.2) else axis
    if lengths is None:
        outputs = count if maker.opset >= 18 else None
        maker.node("Split", [x], results, axis=written, num_outputs=outputs)
    elif maker.opset >= 13:
        maker.node("Split", [x, maker.integers(lengths)], results, axis=written)
    else:
        maker.node("Split", [x], results, axis=written, split=lengths)
    return maker.draws.pick(results)


def concat(maker: Maker, x: Tensor) -> Tensor:
    if not x.rank:
        raise DeclinedError("no axes")
    axis = maker.draws.below(x.rank)

    def fits(y: Tensor) -> bool:
        return y.dtype == x.dtype and y.rank == x.rank and all(
            a.at == b.at for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis
        )  # fmt: skip

    known = [x, *(y for y in reversed(maker.tensors) if fits(y) and y is not x)]
    parts = [x, *(maker.draws.pick(known[:6]) for _ in range(maker.draws.pick((1, 2))))]
    if maker.draws.chance(0.2):
        shape = [*x.shape[:axis], static(maker.draws.pick((1, 3))), *x.shape[axis + 1 :]]
        parts[-1] = maker.leaf(tuple(shape), x.dtype)
    parts = maker.draws.shuffled(parts)
    extents = [p.shape[axis] for p in parts]
    at = np.sum([e.at for e in extents], 0)
    if all(e.static for e in extents):
        whole = static(int(at[0]))
    else:
        whole = derived("+".join(e.key for e in extents), at)
    shape = [*x.shape[:axis], whole, *x.shape[axis + 1 :]]
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    written = axis - x.rank if maker.opset >= 11 and maker.draws.chance(0.2) else axis
    return maker.add("Concat", parts, shape, x.dtype, low, high, axis=written)


def select(maker: Maker, x: Tensor) -> Tensor:
    """A Gather of one element along an axis, which is a view."""
    axes = [i for i, e in enumerate(x.shape) if min(e.at) > 0]
    axis = maker.draws.pick(axes)
    least = min(x.shape[axis].at)
    index = maker.draws.pick([0, -1, least - 1, -least])
    others = (*x.shape[:axis], *x.shape[axis + 1 :])
    if maker.draws.chance(0.3):
        others = (*x.shape[:axis], ONE, *x.shape[axis + 1 :])
        at = maker.integers([index])
    else:
        at = maker.constant(np.int64(index), share=True)
    return maker.moved("Gather", x, others, at, axis=axis)


VIEWS: tuple[tuple[View, float], ...] = (
    (identity, 0.2), (transpose, 2.5), (slice_, 3.0), (reshape, 2.0), (unsqueeze, 1.0),
    (squeeze, 1.0), (split, 1.2), (concat, 1.0), (expand, 0.7), (flatten, 0.4), (select, 0.6),
)  # fmt: skip


def viewed(maker: Maker, x: Tensor) -> Tensor:
    """The tensor behind none to three views."""
    draws = maker.draws
    for _ in range(draws.weighted((0, 1, 2, 3), (0.4, 0.35, 0.17, 0.08))):
        view = draws.weighted([v for v, _ in VIEWS], [w for _, w in VIEWS])
        mark = maker.mark()
        try:
            x = view(maker, x)
        except DeclinedError:
            maker.undo(mark)
    return x
