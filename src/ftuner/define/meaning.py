"""What a definition means: NumPy, one array for each element, with an axis for each of its indices.

Nothing is shared with the way to graphs, which tests compare with it. Floats are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.dtype import ELEMENT_DTYPES, FLOAT64, INT64
from ftuner.core.functions import SCALAR_FUNCTIONS, neutral
from ftuner.define.binding import Binding
from ftuner.define.bounds import dim_of
from ftuner.define.elements import (
    BOOL,
    INDEX,
    NUMBER,
    Apply,
    Element,
    Extent,
    Index,
    Number,
    Read,
    Reduction,
    elements_of,
)
from ftuner.define.groups import Group, groups
from ftuner.define.recurrences import Recurrence
from ftuner.define.tracing import Definition
from ftuner.errors import IndexRangeError, ShapeError
from ftuner.graph.ir import Array

_REDUCED: Mapping[str, Callable[..., Any]] = {
    "sum": np.sum, "product": np.prod, "any": np.any, "all": np.all, "argmax": np.argmax,
    "argmin": np.argmin,
}  # fmt: skip


def meaning(definition: Definition, arrays: Sequence[Array], binding: Binding) -> list[Array]:
    """The results of a definition, floats in float64.

    Raises:
        IndexRangeError: an index in the data is out of range.
    """
    found, batch = _Meaning(arrays, binding), binding.batch
    for group in groups(definition.recurrences, binding.names, proven=True):
        found.compute(group)
    results = []
    for result in definition.results:
        with np.errstate(all="ignore"):
            array = found.of(result.value, result.index)
        shape = tuple(found.extent(index) for index in result.index)
        whole: Any = (*batch, *shape) if result.batched else shape
        if not result.batched:
            array = array.reshape(array.shape[len(batch) :])
        results.append(np.array(np.broadcast_to(array, whole)))
    return results


class _Meaning:
    """Arrays have the axes of the batch, then one for each free index, by their numbers."""

    def __init__(self, arrays: Sequence[Array], binding: Binding) -> None:
        self._arrays, self._binding = arrays, binding
        self._names, self._batch, self._dtypes = binding.names, binding.batch, binding.dtypes
        self._values: dict[Element, tuple[Array, tuple[Index, ...]]] = {}
        self._computed: dict[Recurrence, Array] = {}
        self._step: dict[Index, int] = {}
        """The only position of the indices along which a recurrence goes."""

    def compute(self, group: Group) -> None:
        """Compute the arrays of a group, step by step."""
        for one in group.members:
            extents = [*map(self.extent, one.index)]
            if min(extents, default=0) < 0:
                raise ShapeError(f"{one.name} would have the extents {extents}")
            lead = self._batch if one.batched else (1,) * len(self._batch)
            shape: Any = (*lead, *extents)
            self._computed[one] = np.zeros(shape, self._held(one.type))
        if group.axis is None:
            (one,) = group.members
            with np.errstate(all="ignore"):
                self._computed[one][...] = self.of(one.value, one.index)
            return
        steps = self._computed[group.members[0]].shape[len(self._batch) + group.axis]
        for number in range(steps):
            now = _Meaning(self._arrays, self._binding)
            now._computed = self._computed
            now._step = {one.index[group.axis]: number for one in group.members}
            for one in group.members:
                with np.errstate(all="ignore"):
                    found = now.of(one.value, one.index)
                axis = len(self._batch) + group.axis
                np.moveaxis(self._computed[one], axis, 0)[number] = found.take(0, axis)

    def extent(self, index: Index) -> int:
        found = dim_of(index.extents[0][0], self._names)
        assert isinstance(found, int)
        return found

    def of(self, root: Element, order: Sequence[Index]) -> Array:
        """An element as an array with an axis for each of some indices, of extent one for those
        that it does not depend on."""
        # Reads where a condition excludes them take an element that nothing uses.
        excluded = self._excluded(root)
        for one in elements_of(root):
            if one not in self._values:
                self._values[one] = self._value(one, one in excluded)
        return self._aligned(root, order)

    def _excluded(self, root: Element) -> set[Element]:
        found = set[Element]()
        for one in elements_of(root):
            if isinstance(one, Apply) and one.function == "where":
                for part in one.arguments[1:]:
                    found.update(elements_of(part))
        return found

    def _aligned(self, one: Element, order: Sequence[Index]) -> Array:
        array, indices = self._values[one]
        count = len(self._batch)
        places = {index: number for number, index in enumerate(order)}
        axes = sorted(range(len(indices)), key=lambda n: places[indices[n]])
        moved = array.transpose((*range(count), *(count + n for n in axes)))
        shape = iter(moved.shape[count:])
        present = {*indices}
        found: Array = moved.reshape(
            (*moved.shape[:count], *(next(shape) if i in present else 1 for i in order))
        )
        return found

    def _held(self, type_: str) -> Any:
        name = {INDEX: "int64", NUMBER: "float64", BOOL: "bool"}.get(type_)
        dtype = ELEMENT_DTYPES[name] if name else self._dtypes.get(type_) or ELEMENT_DTYPES[type_]
        return np.dtype("float64" if dtype.kind == "float" else dtype.name)

    def _value(self, one: Element, excluded: bool) -> tuple[Array, tuple[Index, ...]]:
        order = tuple(sorted(one.free, key=lambda i: i.number))
        ones = (1,) * len(self._batch)
        match one:
            case Number(value=value):
                return np.asarray(value, self._held(one.type)).reshape(ones), order
            case Extent(name=name):
                return np.asarray(self._names[name]).reshape(ones), order
            case Index():
                at = self._step.get(one)
                positions = np.arange(self.extent(one)) if at is None else np.array([at])
                return positions.reshape((*ones, -1)), order
            case Read():
                return self._read(one, order, excluded), order
            case Apply(function=function, arguments=arguments):
                given = [self._aligned(argument, order) for argument in arguments]
                return self._applied(function, given, one.type), order
            case Reduction(kind=kind, axes=axes, body=body):
                return self._reduced(kind, axes, body, order), order
        raise AssertionError(one)

    def _applied(self, function: str, given: list[Array], type_: str) -> Array:
        if function == "where":
            return np.where(*given)
        if function == "cast":
            return given[0].astype(self._held(type_))
        if function == "quotient":
            x, y = given
            return np.where(y == 0, 0, x // np.where(y == 0, 1, y)).astype(self._held(type_))
        found: Array = np.asarray(SCALAR_FUNCTIONS[function].meaning(*given))
        return found if type_ == BOOL else found.astype(self._held(type_))

    def _read(self, one: Read, order: tuple[Index, ...], excluded: bool) -> Array:
        if isinstance(one.tensor, Recurrence):
            array = self._computed[one.tensor]
        else:
            array = self._arrays[one.tensor.number]
        rank = len(one.at)
        lead = array.shape[: array.ndim - rank]
        wanted = array.astype(self._held(one.type))
        wanted = wanted.reshape((1,) * (len(self._batch) - len(lead)) + array.shape)
        count = len(self._batch)
        grid = [
            np.arange(wanted.shape[axis]).reshape((-1,) + (1,) * (count - axis - 1 + len(order)))
            for axis in range(count)
        ]
        at: list[Array] = [*grid]
        for axis, index in enumerate(one.at):
            positions, extent = self._aligned(index, order), array.shape[len(lead) + axis]
            data = any(isinstance(x, Read | Reduction) for x in elements_of(index))
            if data:
                positions = np.where(positions < 0, positions + extent, positions)
            if excluded and not data:
                positions = np.clip(positions, 0, max(extent - 1, 0))
            elif positions.size and not ((positions >= 0) & (positions < extent)).all():
                kind = IndexRangeError if data else ShapeError
                raise kind(f"{one.place}: axis {axis} of {one.tensor.name} has {extent} elements")
            at.append(positions)
        if excluded and 0 in array.shape[len(lead) :]:
            shape = np.broadcast_shapes(*(a.shape for a in at)) if at else ()
            return np.zeros(shape, wanted.dtype)
        found: Array = wanted[tuple(at)] if at else wanted
        return found if found.ndim else np.reshape(found, (1,) * count)

    def _reduced(
        self, kind: str, axes: tuple[Index, ...], body: Element, order: tuple[Index, ...]
    ) -> Array:
        whole = (*order, *axes)
        array, count = self._aligned(body, whole), len(self._batch)
        shape = (*array.shape[: count + len(order)], *(self.extent(i) for i in axes))
        array = np.broadcast_to(array, shape)
        over = tuple(range(count + len(order), array.ndim))
        if kind == "mean":
            return np.asarray(array.mean(over) if array.size else array.sum(over) / np.float64(0))
        if kind in ("maximum", "minimum"):
            dtype = FLOAT64 if array.dtype.kind == "f" else ELEMENT_DTYPES[array.dtype.name]
            reduced = np.max if kind == "maximum" else np.min
            worst = array.dtype.type(neutral(kind, dtype))
            return np.asarray(reduced(array, axis=over, initial=worst))
        if kind in ("argmax", "argmin"):
            if not array.size:
                return np.zeros(array.shape[:-1], INT64.name)
            return np.asarray(_REDUCED[kind](array, axis=over[0]))
        return np.asarray(_REDUCED[kind](array, axis=over)).astype(
            array.dtype if kind in ("sum", "product") else bool
        )
