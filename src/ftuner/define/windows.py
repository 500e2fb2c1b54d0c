"""Recognises convolutions among sums of products: x at `stride * output + dilation * tap - begin`
along some axes, times a weight of the taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ftuner.core.dim import product
from ftuner.core.dtype import DType
from ftuner.define.bounds import DATA, PADDED, Bounds, Linear
from ftuner.define.elements import Apply, Element, Index, Read
from ftuner.graph.algebra import apply
from ftuner.graph.einsum import Term, arranged
from ftuner.graph.ir import Value


class Lowering(Protocol):
    """What `define.values` makes of elements."""

    bounds: Bounds

    def operand(self, read: Read) -> tuple[Value, str]: ...
    def forms(self, read: Read) -> list[Linear | None]: ...
    def label(self, index: Index) -> str: ...
    def term(self, one: Element, dtype: DType | None = None) -> Term: ...
    def padded(self, one: Apply) -> Read | None: ...


class _Spatial(NamedTuple):
    """An axis along which a window moves."""

    axis: int
    output: Index
    tap: Index
    stride: int
    dilation: int
    begin: int


def convolved(lowering: Lowering, factors: Sequence[Element], axes: str) -> Term | None:
    """The sum over axes of the product of two factors, as a convolution of the first by the second;
    None if it is no convolution."""
    read: Element | None
    read, weight = factors
    if isinstance(read, Apply) and read.function == "where":
        read = lowering.padded(read)
    if not isinstance(read, Read):
        return None
    bounds, kinds = lowering.bounds, lowering.bounds.kinds(read)
    if DATA in kinds:
        return None
    x, batch = lowering.operand(read)
    forms = lowering.forms(read)
    spatial, others = list[_Spatial](), list[tuple[int, str]]()
    for axis, form in enumerate(forms, len(batch)):
        moving = _spatial(lowering, axis, form, axes)
        if moving is not None:
            spatial.append(moving)
        elif form is not None and len(form.coefficients) == 1 and form.constant == 0:
            ((index, step),) = form.coefficients.items()
            if step != 1 or kinds[axis - len(batch)] == PADDED:
                return None
            if bounds.extent(index) != bounds.axis_extent(read.tensor, axis - len(batch)):
                x = x.slice(axis, 0, bounds.extent(index))
            others.append((axis, lowering.label(index)))
        else:
            return None
    w = lowering.term(weight, x.dtype)
    taps = "".join(lowering.label(s.tap) for s in spatial)
    outputs = "".join(lowering.label(s.output) for s in spatial)
    lead = [*enumerate(batch), *((a, label) for a, label in others if label not in w.labels)]
    depth = [(a, label) for a, label in others if label in w.labels]
    columns = "".join(c for c in w.labels if c not in taps and c not in [d for _, d in depth])
    labels = [*batch, *outputs, *taps, *(label for _, label in others)]
    fits = (
        spatial and len(depth) <= 1 and len(set(labels)) == len(labels)
        and {*taps} <= {*w.labels} and {*axes} == {*taps} | {d for _, d in depth if d in axes}
        and {*columns}.isdisjoint({*labels, *axes})
    )  # fmt: skip
    if not fits:
        return None
    groups = 1
    apart = bool(depth) and depth[0][1] not in axes
    if apart:
        channels = x.shape[depth[0][0]]
        if columns or not isinstance(channels, int):
            return None
        groups, columns = channels, depth[0][1]
    inner = "".join(label for _, label in depth) if not apart else ""
    order = [a for a, _ in lead] + [s.axis for s in spatial] + [a for a, _ in depth]
    given = x.transpose(order)
    images = given.shape[: len(lead)]
    shape = (product(images), *given.shape[len(lead) :], *(() if depth else (1,)))
    w_value = arranged(w, taps + inner + columns)
    extents = w_value.shape
    depths = extents[len(taps) : len(taps) + len(inner)] or (1,)
    found = apply(
        "convolution", given.reshape(shape),
        w_value.reshape((*extents[: len(taps)], *depths, product(extents[len(taps + inner) :]))),
        groups=groups, strides=tuple(s.stride for s in spatial),
        dilations=tuple(s.dilation for s in spatial), begin=tuple(s.begin for s in spatial),
        extents=tuple(bounds.extent(s.output) for s in spatial),
    )  # fmt: skip
    result = "".join(label for _, label in lead) + outputs + columns
    columns_shape = extents[len(taps + inner) :]
    return Term(result, found.reshape((*images, *found.shape[1:-1], *columns_shape)))


def _spatial(lowering: Lowering, axis: int, form: Linear | None, axes: str) -> _Spatial | None:
    if form is None or len(form.coefficients) != 2 or not isinstance(form.constant, int):
        return None
    taps = [i for i in form.coefficients if lowering.label(i) in axes]
    outputs = [i for i in form.coefficients if lowering.label(i) not in axes]
    if len(taps) != 1:
        return None
    stride, dilation = form.coefficients[outputs[0]], form.coefficients[taps[0]]
    if not (isinstance(stride, int) and isinstance(dilation, int) and stride > 0 < dilation):
        return None
    return _Spatial(axis, outputs[0], taps[0], stride, dilation, -form.constant)
