"""Operators on permuted axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ftuner.core.dim import Shape, product
from ftuner.graph.ir import Node

Permutation = tuple[int, ...]
"""Axis j of a tensor is axis `permutation[j]` of the tensor that it is a transposition of."""


class Moved(NamedTuple):
    """A node on permuted axes."""

    attributes: Mapping[str, Any]
    permutation: Permutation
    """From the result of the moved node to that of the node."""
    arranged: Permutation | None = None
    """How the operand has to be transposed first, if it has to."""


def inverse(permutation: Permutation) -> Permutation:
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def _along_axis(node: Node, permutation: Permutation) -> Moved:
    """An operator with one axis, whose result has the axes of its operand."""
    axis = permutation[node.attributes["axis"]]
    return Moved({**node.attributes, "axis": axis}, permutation)


def _for_each_axis(*names: str) -> Callable[[Node, Permutation], Moved | None]:
    """An operator with attributes that have an entry for each axis."""

    def rule(node: Node, permutation: Permutation) -> Moved | None:
        order = inverse(permutation)
        attributes = dict(node.attributes)
        for name in names:
            if len(attributes[name]) != len(order):
                return None
            attributes[name] = tuple(attributes[name][j] for j in order)
        return Moved(attributes, permutation)

    return rule


def _without(permutation: Permutation, axes: Sequence[int]) -> Permutation:
    """The permutation of the axes that are left when `axes` of the transposed tensor go."""
    left = [permutation[j] for j in range(len(permutation)) if j not in axes]
    order = sorted(left)
    return tuple(order.index(axis) for axis in left)


def _reduce(node: Node, permutation: Permutation) -> Moved:
    axes = node.attributes["axes"]
    moved = tuple(sorted(permutation[axis] for axis in axes))
    return Moved({**node.attributes, "axes": moved}, _without(permutation, axes))


def _arg_reduce(node: Node, permutation: Permutation) -> Moved:
    axis = node.attributes["axis"]
    return Moved({**node.attributes, "axis": permutation[axis]}, _without(permutation, (axis,)))


def _reshape(node: Node, permutation: Permutation) -> Moved | None:
    """A reshape that splits axes, or merges axes, which have to be neighbours."""
    old, new = node.inputs[0].shape, node.output.shape
    runs = equal_runs(old, new)
    if runs is None:
        return None
    placed = []
    for before, after in runs:
        axes = [permutation[j] for j in before]
        placed.append((min(axes, default=-1), axes, after))
    placed.sort(key=lambda run: run[0])
    arranged = tuple(axis for _, axes, _ in placed for axis in axes)
    order = [axis for *_, after in placed for axis in after]
    shape = tuple(new[axis] for axis in order)
    result = tuple(order.index(axis) for axis in range(len(new)))
    moves = [axis for axis in arranged if old[permutation.index(axis)] != 1]
    return Moved({"shape": shape}, result, None if moves == sorted(moves) else arranged)


def equal_runs(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """The shortest runs of axes of both shapes with equal numbers of elements; None if they are not
    known. Axes of extent 1 join the run before them."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [], []
        if i < len(old):
            before.append(i)
            i += 1
        if j < len(new):
            after.append(j)
            j += 1
        while product(old[a] for a in before) != product(new[a] for a in after):
            left, right = (product(s[a] for a in axes) for s, axes in ((old, before), (new, after)))
            takes_new = j < len(new) and (i == len(old) or _is_part(right, left))
            if takes_new:
                after.append(j)
                j += 1
            elif i < len(old):
                before.append(i)
                i += 1
            else:
                return None
        while i < len(old) and old[i] == 1:
            before.append(i)
            i += 1
        while j < len(new) and new[j] == 1:
            after.append(j)
            j += 1
        runs.append((before, after))
    return runs


def _is_part(part: Any, whole: Any) -> bool:
    """Whether one number of elements is taken to be a factor of another."""
    if isinstance(part, int) and isinstance(whole, int):
        return part < whole
    return isinstance(part, int) or len(str(part)) < len(str(whole))


RULES: Mapping[str, Callable[[Node, Permutation], Moved | None]] = {
    "arg_reduce": _arg_reduce,
    "broadcast": _for_each_axis("shape"),
    "cumulative_product": _along_axis,
    "cumulative_sum": _along_axis,
    "gather": lambda node, p: _along_axis(node, p) if node.inputs[1].rank == 1 else None,
    "pad": _for_each_axis("before", "after"),
    "reduce": _reduce,
    "repeat": _for_each_axis("repeats"),
    "resample": lambda node, p: Moved({"axes": tuple(p[a] for a in node.attributes["axes"])}, p),
    "reshape": _reshape,
    "slice": _for_each_axis("starts", "steps", "shape"),
    "softmax": _along_axis,
    "tile": _for_each_axis("repeats"),
}
