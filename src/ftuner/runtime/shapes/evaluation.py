"""Dims and layouts of a program, numbered, so that all of them are evaluated at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.dtype import ADDRESSABLE_BYTES
from ftuner.core.evaluation import compiled
from ftuner.core.index_expr import Operand
from ftuner.errors import AllocationError, ShapeError
from ftuner.runtime.cpu.memory import not_allocated
from ftuner.runtime.shapes.strides import StridedArray

MAX_LOOP = 1 << 40
"""Elements that the loops of a step may compute. At one in a nanosecond a core takes a quarter of
an hour for them, and a run cannot be interrupted."""
Outputs = tuple[tuple[tuple[int, ...], Any], ...]
"""Shape and dtype of each, of NumPy's or torch's."""


class Dims:
    """All dims of a program, evaluated together."""

    def __init__(self) -> None:
        self._numbers: dict[Dim, int] = {}

    def number(self, dim: Dim) -> int:
        return self._numbers.setdefault(dim, len(self._numbers))

    def numbers(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(self.number(d) for d in dims)

    def compiled(self, names: Sequence[str]) -> Callable[[Sequence[int]], list[int]]:
        return compiled(list(self._numbers), names)


def loops_of(loops: Iterable[Shape], dims: Dims) -> npt.NDArray[np.int64]:
    """For the loops of each step, the number of the dim that counts their iterations."""
    return np.array([dims.number(product(axes)) for axes in loops if axes], np.int64)


class Layouts:
    """All layouts of a program, each once."""

    def __init__(self, dims: Dims) -> None:
        self._dims = dims
        self._numbers: dict[Operand, int] = {}
        self._rows: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.offsets: list[int] = []
        """Of each layout, the number of its offset's dim."""

    def number(self, layout: Operand) -> int:
        found = self._numbers.get(layout)
        if found is None:
            dims = self._dims
            found = self._numbers[layout] = len(self._rows)
            size = layout.dtype.itemsize
            self._rows.append((dims.numbers(layout.shape), dims.numbers(layout.strides), size))
            self.offsets.append(dims.number(layout.offset))
        return found

    def likeness(self, numbers: Sequence[int]) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """Of some layouts, what the dims do not decide, and the numbers of the dims of their
        extents and strides."""
        rows = [self._rows[n] for n in numbers]
        forms = tuple((len(shape), size) for shape, _, size in rows)
        return forms, tuple(n for shape, strides, _ in rows for n in (*shape, *strides))

    def strided(self, number: int, values: Sequence[int]) -> StridedArray:
        """A layout for values of the dims."""
        shape, strides, size = self._rows[number]
        return StridedArray(
            tuple([values[n] for n in shape]), tuple([values[n] * size for n in strides]), size
        )


def evaluated(
    evaluate: Callable[[Sequence[int]], list[int]], symbols: Sequence[int], extents: Iterable[int]
) -> list[int]:
    """The values of all dims; `extents` are the numbers of those that count elements.

    Raises:
        ShapeError: extents that come out negative or are divided by zero.
    """
    try:
        values = evaluate(symbols)
    except ZeroDivisionError:
        raise ShapeError(f"an extent is divided by zero where symbols are {symbols}") from None
    if any(values[number] < 0 for number in extents):
        raise ShapeError(f"an extent is negative where symbols are {list(symbols)}")
    return values


def check_arena(arena_bytes: int) -> None:
    """Raises AllocationError for intermediate results that are too large for any process."""
    if arena_bytes > ADDRESSABLE_BYTES:
        raise AllocationError(f"no memory for {arena_bytes} bytes of intermediate results")


def addressable(
    values: Sequence[int], outputs: Outputs, loops: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The values of dims as native code has them. `loops`: see `loops_of`.

    Raises:
        AllocationError: outputs are too large for any process.
        ShapeError: the loops of a step compute more than `MAX_LOOP` elements.
    """
    for shape, dtype in outputs:
        elements = math.prod(shape)
        if elements > MAX_LOOP or elements * dtype.itemsize > ADDRESSABLE_BYTES:
            raise not_allocated(shape, dtype, "it has more elements than a run computes")
    try:
        found: npt.NDArray[np.int64] = np.array(values, np.int64)
    except OverflowError as error:
        raise AllocationError(f"extents and strides of up to {max(values)}: {error}") from error
    most = found[loops].max(initial=0)
    if most > MAX_LOOP:
        raise ShapeError(
            f"a step would compute {most} elements, one after the other; at most {MAX_LOOP}"
        )
    return found
