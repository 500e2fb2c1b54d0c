"""Shapes, dtypes and memory of a graph's outputs. Those that are alike are evaluated once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import Shape, product
from ftuner.core.dtype import ADDRESSABLE_BYTES, DType
from ftuner.graph.steps import Lowered
from ftuner.runtime.cpu.appending import Growth
from ftuner.runtime.cpu.arrays import Array, numpy_dtype
from ftuner.runtime.shapes.evaluation import MAX_LOOP, Dims, Outputs, picked

Make = Callable[[Sequence[int], Any], Array]
"""Makes an array of a shape and dtype, whose elements are not set."""
_NOTHING: Array = np.empty(0)


def made_elsewhere(shape: Sequence[int], dtype: Any) -> Array:
    """For an output that is appended to an input, or part of an array of several requests."""
    return _NOTHING


class OutputForms:
    """Shapes and dtypes of outputs. Most layers of a decoder have the same, evaluated once."""

    def __init__(self, lowered: Lowered, dims: Dims, make_large: Make, large_bytes: int) -> None:
        """`make_large` makes the arrays of `large_bytes` or more."""
        self._make_large = make_large
        numbers: dict[tuple[tuple[int, ...], Any], int] = {}
        counts: list[int] = []
        self.most: dict[int, int] = {}
        """By the number of each dim that counts elements of an output, how many it may have."""

        def number(shape: Shape, dtype: DType) -> int:
            key = dims.numbers(shape), numpy_dtype(dtype)
            if key not in numbers:
                counts.append(elements := dims.number(product(shape)))
                most = min(MAX_LOOP, ADDRESSABLE_BYTES // key[1].itemsize)
                self.most[elements] = min(most, self.most.get(elements, most))
            return numbers.setdefault(key, len(numbers))

        dtypes = [v.layout.dtype for v in lowered.outputs]
        self._outputs = [number(v.shape, v.layout.dtype) for v in lowered.outputs]
        self._rooms = list(self._outputs)
        appended = {pair.output for pair in lowered.appended}
        self._fresh = [number not in appended for number in range(len(dtypes))]
        """Whether an output has memory of its own: whether it is none of `Lowered.appended`."""
        self._small = tuple([np.empty if fresh else made_elsewhere for fresh in self._fresh])
        self._plain = all(self._fresh)
        growths: dict[tuple[int, int, tuple[int, ...], int, int, bool, bool], int] = {}
        self._growths = []
        """For each of `Lowered.appended`, the number of its growth."""
        for pair in lowered.appended:
            self._rooms[pair.output] = room = number(pair.room, dtypes[pair.output])
            growth = (
                pair.axis, dims.number(pair.rows), dims.numbers(pair.whole.shape),
                self._outputs[pair.output], room, pair.slides, pair.writes,
            )  # fmt: skip
            self._growths.append(growths.setdefault(growth, len(growths)))
        self._known = [(picked(shape), dtype) for shape, dtype in numbers]
        self._large = [
            (elements, -(-large_bytes // dtype.itemsize))
            for (_, dtype), elements in zip(numbers, counts, strict=True)
        ]
        """For each form the number of the dim that counts elements, and from how many on an output
        is large."""
        self._growing = [
            (axis, kept, picked(whole), output, room, slides, writes)
            for axis, kept, whole, output, room, slides, writes in growths
        ]
        self.extents = {extent for shape, _ in numbers for extent in shape}
        """The numbers of all dims that count elements."""

    def at(self, values: Sequence[int]) -> Outputs:
        """Each shape and dtype once, at values of the dims."""
        return tuple([(shape(values), dtype) for shape, dtype in self._known])

    def makes(self, values: Sequence[int]) -> tuple[tuple[Make, ...], bool]:
        """What makes each output, and whether that is `np.empty` for all."""
        large = [values[elements] >= least for elements, least in self._large]
        if True not in large:
            return self._small, self._plain
        found = tuple([
            self._make_large if fresh and large[number] else small
            for number, fresh, small in zip(self._outputs, self._fresh, self._small, strict=True)
        ])  # fmt: skip
        return found, all(make is np.empty for make in found)

    def outputs(
        self, values: Sequence[int], forms: Outputs
    ) -> tuple[Outputs, Outputs, tuple[Growth, ...]]:
        """The outputs, the memory of each, and the extents of those that are appended; `forms`:
        what `at` gives."""
        outputs = tuple([forms[number] for number in self._outputs])
        if not self._growths:
            return outputs, outputs, ()
        growths = [
            Growth(
                axis, values[kept], whole(values), forms[output][0], forms[room][0], slides, writes
            )
            for axis, kept, whole, output, room, slides, writes in self._growing
        ]
        rooms = tuple([forms[number] for number in self._rooms])
        return outputs, rooms, tuple([growths[number] for number in self._growths])
