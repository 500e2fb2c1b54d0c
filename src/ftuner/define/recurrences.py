"""Recurrences: arrays within a definition whose elements are made of earlier ones.

    @recurrence(t, d)
    def h(i, j):
        return where(i > 0, a[j] * h[i - 1, j], 0) + x[i, j]

The name of the array is that of the function, which reads it. It runs at the first read, on new
indices. Arrays that read each other are a *group*, which is computed step by step along one axis:
all reads within a group are at the element's own index, but for earlier positions along that axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from ftuner.define.elements import (
    FLOAT,
    TYPES,
    Element,
    Operand,
    Read,
    Tensor,
    element,
    elements_of,
    kind_of,
    new_index,
    place,
    typed,
    wrong,
)
from ftuner.define.functions import OPENED, extent_of

_OUTSIDE = -1
"""The number of arrays that are not operands."""


class Recurrence(Tensor):
    """An array whose elements a function gives, of any of its elements before."""

    def __init__(
        self, function: Callable[..., Operand], shape: tuple[Element, ...], type_: str, where: str
    ) -> None:
        super().__init__(function.__name__, type_, shape, _OUTSIDE, False)
        self._function, self.place = function, where
        self.index = tuple(new_index(extent, where) for extent in shape)
        self._value: Element | None = None
        self._running = False

    def __getitem__(self, index: Operand | tuple[Operand, ...]) -> Element:
        if self._value is None and not self._running:
            self._running = True
            # Its axes are not those of the reduction that reads it.
            token = OPENED.set(None)
            try:
                value = element(self._function(*self.index))
            finally:
                OPENED.reset(token)
            for one in sorted(value.free - {*self.index}, key=lambda i: i.number):
                raise wrong(f"{self.name} depends on an index of another function", one.place)
            self._value = typed(value, self.type, f"an element of {self.name}")
        return super().__getitem__(index)

    @property
    def value(self) -> Element:
        """The element at `index`."""
        assert self._value is not None
        return self._value


def recurrence(
    *extents: Operand, type: str = FLOAT
) -> Callable[[Callable[..., Operand]], Recurrence]:
    """An array with these extents, whose elements may be made of earlier ones of the same array, or
    of others that read it.

    Args:
        extents: arithmetic on extents and numbers, one or more.
        type: of the elements, as in a signature: a kind of float.

    Returns:
        A decorator of a function from indices to the element there.

    Raises:
        DefinitionError: another type, or extents that are data. Reads of the array that
            are not at its own index, or at an earlier one along one axis, are errors where the
            operator is defined.
    """
    where = place()
    if not extents:
        raise wrong("a recurrence has one extent or more, as in @recurrence(t, d)")
    if type not in TYPES or kind_of(type) != "float":
        raise wrong(f"a recurrence of {type!r}; expected a type of floats")
    shape = tuple(map(extent_of, extents))

    def made(function: Callable[..., Operand]) -> Recurrence:
        expect_parameters(function, len(shape), where)
        return Recurrence(function, shape, type, where)

    return made


def expect_parameters(body: Callable[..., Any], rank: int, where: str) -> None:
    """Raise DefinitionError unless a function takes an index for each axis."""
    code = getattr(body, "__code__", None)
    at = where if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    try:
        signature(body).bind(*range(rank))
    except TypeError as error:
        raise wrong(
            f"an array with {rank} axes is a function of {rank} indices: {error}", at
        ) from None


def reached(roots: Sequence[Element]) -> tuple[Recurrence, ...]:
    """The recurrences that elements are made of, and whether each has the axes `...`."""
    found: dict[Recurrence, set[Tensor]] = {}
    left = [*roots]
    while left:
        for one in elements_of(left.pop()):
            if isinstance(one, Read) and isinstance(one.tensor, Recurrence):
                if one.tensor in found:
                    continue
                value = one.tensor.value
                found[one.tensor] = {x.tensor for x in elements_of(value) if isinstance(x, Read)}
                left.append(value)
    for _ in found:
        for array, read in found.items():
            array.batched = array.batched or any(x.batched for x in read)
    return tuple(found)
