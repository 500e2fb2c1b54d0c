"""The operands of a program that runs again and again, as the iterations of a loop."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import repeat

from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.graph.ops.control import Iterations
from ftuner.runtime.cpu.arrays import DATA_WORD, Array
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.cpu.output_forms import Make
from ftuner.runtime.shapes.evaluation import Outputs

_FIRST_ROWS = 64
"""Rows of the first memory for stacked results; each further one doubles their number."""


class Repeated:
    """The addresses of the operands and results of each iteration. Carried values alternate between
    two memories, so that an iteration never writes what it reads; elements of stacked results are
    written to rows."""

    def __init__(
        self, outputs: Outputs, makes: Sequence[Make], arrays: Sequence[Array], carried: int,
        conditional: bool,
    ) -> None:  # fmt: skip
        """`outputs`: shapes and dtypes of whether to go on, if the loop is conditional, of carried
        values, as large as their operands, and of elements of stacked results; `makes`: what makes
        an array of each."""
        first = int(conditional)
        forms = [(*form, make) for form, make in zip(outputs, makes, strict=True)]
        self._condition = [allocated(*form) for form in forms[:first]]
        self._carried = [[allocated(*x) for x in forms[first : first + carried]] for _ in "ab"]
        self._arrays = arrays
        self._rows = outputs[first + carried :]
        self._row_bytes = [math.prod(shape) * dtype.itemsize for shape, dtype in self._rows]
        self._stacked: list[list[Array]] = [[] for _ in self._rows]
        self._left = 0
        """Rows that are left in the newest memory."""
        self._addresses = [_addresses(values) for values in self._carried]
        given = [*arrays, *self._condition, *self._carried[0]]
        self._table = array("Q", [*_addresses(given), *repeat(0, len(self._rows))])
        at = self._table.buffer_info()[0]
        places = range(at - DATA_WORD, at - DATA_WORD + SLOT_BYTES * len(self._table), SLOT_BYTES)
        self._objects = array("Q", places)
        self.objects = self._objects.buffer_info()[0]
        """Where native code finds the addresses of array objects: a word of the table is where the
        data pointer of one would be."""
        self._operands = slice(0, carried)
        self._results = slice(len(arrays) + first, len(arrays) + first + carried)
        self._elements = slice(self._results.stop, None)
        self._into = 0

    def begin(self, number: int, most: int) -> None:
        """Have the iteration `number`, of `most` or less, write where nothing is read."""
        self._table[self._results] = self._addresses[self._into]
        if not self._rows:
            return
        if self._left:
            rows = zip(self._table[self._elements], self._row_bytes, strict=True)
            self._table[self._elements] = array("Q", [row + size for row, size in rows])
        else:
            self._left = min(most - number, max(number, _FIRST_ROWS))
            made = [allocated((self._left, *shape), dtype) for shape, dtype in self._rows]
            for parts, memory in zip(self._stacked, made, strict=True):
                parts.append(memory)
            self._table[self._elements] = _addresses(made)
        self._left -= 1

    def end(self) -> bool:
        """Have the next iteration read what this one has written; returns whether to go on."""
        self._table[self._operands] = self._addresses[self._into]
        self._into = 1 - self._into
        return bool(self._condition[0].item()) if self._condition else True

    def results(self, count: int, going: bool) -> Iterations:
        """What `count` iterations, one or more, have given."""
        for parts in self._stacked:
            parts[-1] = parts[-1][: len(parts[-1]) - self._left]
        return Iterations(count, going, self._carried[1 - self._into], self._stacked)


def _addresses(arrays: Sequence[Array]) -> array[int]:
    return array("Q", [int(x.ctypes.data) for x in arrays])
