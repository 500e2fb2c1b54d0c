"""A tensor of a shape, as a view of another."""

from __future__ import annotations

from collections.abc import Callable

from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import ONE, Extent, Shape, elements, static, times
from tests.random_graphs.making import Maker
from tests.random_graphs.tensors import MAX_RANK, Tensor
from tests.random_graphs.views import OPEN, reshape_node, slice_node, with_axes


def _form_transposed(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    if len(shape) < 2:
        raise DeclinedError("too few axes")
    perm = maker.draws.shuffled(range(len(shape)))[::-1]
    base: list[Extent] = [ONE] * len(shape)
    for axis, p in enumerate(perm):
        base[p] = shape[axis]
    return maker.moved("Transpose", maker.leaf(tuple(base), dtype), shape, perm=perm)


def _longer(maker: Maker, extent: Extent, by: int, factor: int = 1) -> Extent:
    at = [n * factor + by for n in extent.at]
    return static(at[0]) if extent.static else maker.named(at)


def _form_sliced(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    if not shape:
        raise DeclinedError("no axes")
    axis = maker.draws.below(len(shape))
    before, after = maker.draws.pick((1, 0, 2)), maker.draws.pick((0, 1, 3))
    steps = (1, -1, 2, -2) if maker.opset >= 10 else (1,)
    step = maker.draws.pick(steps)
    base = list(shape)
    base[axis] = _longer(maker, shape[axis], before + after, abs(step))
    if step > 0:
        bounds = (before, -after if after else OPEN[0])
    else:
        bounds = (-1 - after, before - 1 if before else -(2**63))
    if min(shape[axis].at) == 0 and (before or after):
        raise DeclinedError("bounds of nothing")
    x = maker.leaf(tuple(base), dtype)
    return slice_node(maker, x, shape, [axis], [bounds], [step])


def _form_unsqueezed(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    ones = [i for i, e in enumerate(shape) if e.key == "1"]
    axis = maker.draws.pick(ones)
    x = maker.leaf((*shape[:axis], *shape[axis + 1 :]), dtype)
    return with_axes(maker, "Unsqueeze", x, shape, [axis], len(shape))


def _form_squeezed(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    if len(shape) >= MAX_RANK:
        raise DeclinedError("too many axes")
    axis = maker.draws.below(len(shape) + 1)
    x = maker.leaf((*shape[:axis], ONE, *shape[axis:]), dtype)
    return with_axes(maker, "Squeeze", x, shape, [axis], len(shape) + 1)


def _form_expanded(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    if maker.opset < 8 or not all(maker.spells(e) for e in shape):
        raise DeclinedError("no way to write the shape")
    kept = [maker.draws.chance(0.5) for _ in shape]
    skipped = maker.draws.below(2) if kept and not kept[0] else 0
    base = tuple(e if keep else ONE for e, keep in zip(shape, kept, strict=True))[skipped:]
    return maker.moved("Expand", maker.leaf(base, dtype), shape, maker.spelled(shape))


def _form_concatenated(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    axes = [i for i, e in enumerate(shape) if min(e.at) >= 1]
    axis = maker.draws.pick(axes)
    extent = shape[axis]
    first = maker.draws.pick(range(1, min(extent.at) + 1)[:4])
    rest = [n - first for n in extent.at]
    pieces = [static(first), static(rest[0]) if extent.static else maker.named(rest)]
    parts = [
        maker.leaf((*shape[:axis], piece, *shape[axis + 1 :]), dtype)
        for piece in maker.draws.shuffled(pieces)
    ]
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    return maker.add("Concat", parts, shape, dtype, low, high, axis=axis)


def _form_split(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    if not shape:
        raise DeclinedError("no axes")
    axis = maker.draws.below(len(shape))
    count = maker.draws.pick((2, 3))
    base = list(shape)
    base[axis] = _longer(maker, shape[axis], 0, count)
    x = maker.leaf(tuple(base), dtype)
    results = [maker.new(shape, dtype, x.low, x.high) for _ in range(count)]
    maker.node("Split", [x], results, axis=axis, num_outputs=count if maker.opset >= 18 else None)
    return maker.draws.pick(results)


def _form_reshaped(maker: Maker, shape: Shape, dtype: str) -> Tensor:
    if len(shape) < 2:
        raise DeclinedError("too few axes")
    axis = maker.draws.below(len(shape) - 1)
    pair = shape[axis : axis + 2]
    whole = times(pair)
    if not whole.static and whole.key not in maker.symbols:
        whole = maker.named(whole.at)
    x = maker.leaf((*shape[:axis], whole, *shape[axis + 2 :]), dtype)
    return reshape_node(maker, x, shape)


FORMS: tuple[tuple[Callable[[Maker, Shape, str], Tensor], float], ...] = (
    (_form_transposed, 2.5), (_form_sliced, 2.5), (_form_unsqueezed, 1.0), (_form_squeezed, 1.0),
    (_form_expanded, 1.0), (_form_concatenated, 0.7), (_form_split, 0.8), (_form_reshaped, 1.0),
)  # fmt: skip


def formed(maker: Maker, shape: Shape, dtype: str) -> Tensor | None:
    """A view of the shape, or None."""
    if not maker.draws.chance(0.5):
        return None
    if max(elements(shape)) == 0 and maker.draws.chance(0.5):
        return None
    form = maker.draws.weighted([f for f, _ in FORMS], [w for _, w in FORMS])
    mark = maker.mark()
    try:
        found = form(maker, shape, dtype)
        assert [e.at for e in found.shape] == [e.at for e in shape]
    except DeclinedError:
        maker.undo(mark)
        return None
    return found
