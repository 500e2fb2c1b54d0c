"""Dims and layouts of a program, numbered, so that all of them are evaluated at once."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.dtype import ADDRESSABLE_BYTES
from ftuner.core.evaluation import Renaming, compiled
from ftuner.core.index_expr import Operand
from ftuner.errors import AllocationError, ShapeError
from ftuner.runtime.cpu.memory import not_allocated
from ftuner.runtime.shapes.instructions import Instructions
from ftuner.runtime.shapes.layout import StridedArray

MAX_LOOP = 1 << 40
"""Elements that the loops of a step may compute. At one in a nanosecond a core takes a quarter of
an hour for them, and a run cannot be interrupted."""
Outputs = tuple[tuple[tuple[int, ...], Any], ...]
"""Shape and dtype of each, of NumPy's or torch's."""
Picked = Callable[["Sequence[int] | Mapping[int, int]"], tuple[int, ...]]
"""Takes the values of some dims from those of all, or from a mapping by their numbers."""


class Dims:
    """All dims of a program, evaluated together."""

    def __init__(self, equal: Mapping[str, str] = MappingProxyType({})) -> None:
        """`equal`: for symbols whose values are always those of another one, its name. Dims that
        differ in these alone are one."""
        self._renamed = Renaming(equal)
        self._numbers: dict[Dim, int] = {}
        """Of dims as they are given, and of those that are evaluated."""
        self._evaluated: list[Dim] = []

    def number(self, dim: Dim) -> int:
        found = self._numbers.get(dim)
        if found is None:
            renamed = self._renamed(dim)
            found = self._numbers.setdefault(renamed, len(self._evaluated))
            if found == len(self._evaluated):
                self._evaluated.append(renamed)
            self._numbers[dim] = found
        return found

    def numbers(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(self.number(d) for d in dims)

    def constant(self, number: int) -> int | None:
        """The value of a dim, if symbols do not decide it."""
        dim = self._evaluated[number]
        return dim if isinstance(dim, int) else None

    @property
    def count(self) -> int:
        """The number of dims so far."""
        return len(self._evaluated)

    def compiled(self, names: Sequence[str]) -> Callable[[Sequence[int]], list[int]]:
        return compiled(self._evaluated, names)

    def instructions(self, names: Sequence[str]) -> Instructions:
        return Instructions(self._evaluated, names)


def picked(numbers: Iterable[int]) -> Picked:
    """A function that takes the values of some dims."""
    wanted = (*numbers,)
    if len(wanted) > 1:
        # In C: a new shape calls dozens of these.
        return itemgetter(*wanted)
    return lambda values: tuple([values[number] for number in wanted])


def loops_of(loops: Iterable[Shape], dims: Dims) -> set[int]:
    """The numbers of the dims that are iterations of the loops of all steps."""
    return {dims.number(product(axes)) for axes in loops if axes}


class DimValues(list[int]):
    """The values of all dims, and what decisions for ranges are made for
    (`ftuner.core.caching`)."""

    __slots__ = ("coarse", "fine", "middle")

    def __init__(
        self, values: Sequence[int], fine: Sequence[int], middle: Sequence[int],
        coarse: Sequence[int],
    ) -> None:  # fmt: skip
        """`fine` and `middle`: by the number of a dim, the first value of its fine range and the
        middle of its coarse one; `coarse`: the values of all dims where all symbols are in the
        middle of their coarse ranges. What no decision needs is not set."""
        super().__init__(values)
        self.fine, self.middle, self.coarse = fine, middle, coarse


class Layouts:
    """All layouts of a program, each once."""

    def __init__(self, dims: Dims) -> None:
        self._dims = dims
        self._numbers: dict[object, int] = {}
        """Of operands, and of the numbers of their dims and the bytes of an element."""
        self._rows: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.offsets: list[int] = []
        """Of each layout, the number of its offset's dim."""

    def number(self, layout: Operand) -> int:
        found = self._numbers.get(layout)
        if found is None:
            dims = self._dims
            row = dims.numbers(layout.shape), dims.numbers(layout.strides), layout.dtype.itemsize
            offset = dims.number(layout.offset)
            found = self._numbers.setdefault((row, offset), len(self._rows))
            if found == len(self._rows):
                self._rows.append(row)
                self.offsets.append(offset)
            self._numbers[layout] = found
        return found

    def plan_key(self, numbers: Sequence[int]) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """The key of some layouts: what the symbols do not decide, and the numbers of the dims that
        they do, each once."""
        rows = [self._rows[n] for n in numbers]
        read = [n for shape, strides, _ in rows for n in (*shape, *strides)]
        decided = list(dict.fromkeys(n for n in read if self._dims.constant(n) is None))
        places = {number: place for place, number in enumerate(decided)}
        pattern = tuple((places.get(n), self._dims.constant(n)) for n in read)
        return (tuple((len(shape), size) for shape, _, size in rows), pattern), tuple(decided)

    def numbered(self, number: int) -> StridedArray:
        """A layout with the numbers of dims as extents and strides, which count elements."""
        return StridedArray(*self._rows[number])

    def strided(self, number: int, values: Sequence[int]) -> StridedArray:
        """A layout for values of the dims."""
        shape, strides, size = self._rows[number]
        return StridedArray(
            tuple([values[n] for n in shape]), tuple([values[n] * size for n in strides]), size
        )


def evaluated(
    evaluate: Callable[[Sequence[int]], list[int]], symbols: Sequence[int], extents: Picked
) -> list[int]:
    """The values of all dims; `extents` takes those that count elements.

    Raises:
        ShapeError: extents that come out negative or are divided by zero.
    """
    try:
        values = evaluate(symbols)
    except ZeroDivisionError:
        raise ShapeError(f"an extent is divided by zero where symbols are {symbols}") from None
    if min(extents(values), default=0) < 0:
        raise ShapeError(f"an extent is negative where symbols are {list(symbols)}")
    return values


def check_arena(arena_bytes: int) -> None:
    """Raises AllocationError for intermediate results that are too large for any process."""
    if arena_bytes > ADDRESSABLE_BYTES:
        raise AllocationError(f"no memory for {arena_bytes} bytes of intermediate results")


def addressable(values: Sequence[int], outputs: Outputs, loops: Picked) -> array[int]:
    """The values of dims as native code has them. `loops` takes those of `loops_of`.

    Raises:
        AllocationError: outputs are too large for any process.
        ShapeError: the loops of a step compute more than `MAX_LOOP` elements.
    """
    for shape, dtype in outputs:
        elements = math.prod(shape)
        if elements > MAX_LOOP or elements * dtype.itemsize > ADDRESSABLE_BYTES:
            raise not_allocated(shape, dtype, "it has more elements than a run computes")
    try:
        found = array("q", values)
    except OverflowError as error:
        raise AllocationError(f"extents and strides of up to {max(values)}: {error}") from error
    most = max(loops(values), default=0)
    if most > MAX_LOOP:
        raise ShapeError(
            f"a step would compute {most} elements, one after the other; at most {MAX_LOOP}"
        )
    return found
