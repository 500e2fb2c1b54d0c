"""Values in their part of a concatenation.

A concatenation copies nothing if each operand is computed to its part of the result. Other nodes
that read the operand read it there, with the strides of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ftuner.core.dim import Dim
from ftuner.graph.buffers import View, as_rows, permuted, reshaped
from ftuner.graph.ir import Graph, Node, TensorType, Value, consumers, producers


def parts(
    graph: Graph,
    place: Callable[[Value], View],
    type_of: Callable[[Value], TensorType],
    known: Mapping[Value, View] = MappingProxyType({}),
) -> dict[Value, View]:
    """The memory of concatenations, and of values that can be computed to a part of one. What has
    other readers is among them only if every kernel can read it there: if it is rows with one
    stride.

    Args:
        place: where the result of a concatenation is stored, unless it is itself an operand of
            another concatenation and is written to its part of that result.
        type_of: the type of a value in memory.
        known: values whose memory is known.
    """
    made_by = producers(graph)
    readers = consumers(graph)
    outputs = {value for _, value in graph.outputs}
    found = dict(known)
    # Backwards, so that the memory of a result is known before its operands are reached.
    for node in reversed(graph.nodes):
        if node.op == "concat" and node.output not in found:
            found[node.output] = place(node.output)
        for value, view in _operands(node, found, made_by):
            given = value.constant is not None or value not in made_by
            if given or value in outputs or value in found:
                continue
            # The operands of another concatenation are better copied together.
            alone = len(readers[value]) == 1 and made_by[value].op != "concat"
            fits = alone or _has_rows(view)
            if fits and view.layout.dtype == type_of(value).dtype:
                found[value] = view
    return found


def pieces(node: Node, whole: View) -> Iterator[tuple[Value, View]]:
    """The operands of a concatenation, and the part of the result that each of them is."""
    axis, layout = node.attributes["axis"], whole.layout
    begin: Dim = 0
    for value in node.inputs:
        offset = layout.offset + begin * layout.strides[axis]
        yield value, View(whole.buffer, replace(layout, shape=value.shape, offset=offset))
        begin = begin + value.shape[axis]


def _operands(
    node: Node, found: Mapping[Value, View], made_by: Mapping[Value, Node]
) -> Iterator[tuple[Value, View]]:
    """The values that have memory if the result of the node has, and that memory."""
    if node.op == "concat":
        operands = list(pieces(node, found[node.output]))
        yield from operands
        yield from _whole_again(node.attributes["axis"], operands, made_by)
    elif node.op in ("reshape", "transpose") and node.output in found:
        (value,) = node.inputs
        if node.op == "reshape":
            view = reshaped(found[node.output], value.shape)
        else:
            perm = node.attributes["perm"]
            view = permuted(found[node.output], [perm.index(a) for a in range(len(perm))])
        if view is not None:
            yield value, view


def _whole_again(
    axis: int, operands: list[tuple[Value, View]], made_by: Mapping[Value, Node]
) -> Iterator[tuple[Value, View]]:
    """Values of which all elements along the axis are neighbouring operands, as slices."""
    base: Value | None = None
    first: View | None = None
    begin: Dim = 0
    for value, view in operands:
        node = made_by.get(value)
        x = node.inputs[0] if node is not None and node.op == "slice" else None
        if node is None or x is None or not is_slice_along(node, axis):
            base = None
            continue
        start = node.attributes["starts"][axis]
        if start == 0:
            base, first, begin = x, view, 0
        if base is not x or start != begin or first is None:
            base = None
            continue
        begin = begin + value.shape[axis]
        if begin == x.shape[axis]:
            yield x, View(first.buffer, replace(first.layout, shape=x.shape))
            base = None


def is_slice_along(node: Node, axis: int) -> bool:
    """Whether a slice takes neighbouring elements along one axis, and all of the others."""
    attributes, (x,) = node.attributes, node.inputs
    if attributes["steps"][axis] != 1:
        return False
    return all(
        i == axis or (start == 0 and step == 1 and extent == whole)
        for i, (start, step, extent, whole) in enumerate(
            zip(attributes["starts"], attributes["steps"], node.output.shape, x.shape, strict=True)
        )
    )


def _has_rows(view: View) -> bool:
    layout = view.layout
    return bool(layout.shape) and layout.strides[-1] == 1 and as_rows(view) is not None
