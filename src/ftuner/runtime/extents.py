"""Dims and layouts of a program, numbered, so that all of them are evaluated at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ftuner.core.definition import Operand
from ftuner.core.dim import Dim, compiled
from ftuner.errors import ShapeError
from ftuner.runtime.strided import StridedArray


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
