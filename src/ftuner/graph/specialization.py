"""Numbers that are known only at run time, and what a front end needs them for.

A front end asks for elements of a tensor, such as the axes of a reduction or a shape. Where they
are known only at run time it raises `RunTimeNumberError`, with a graph that computes them. When
that has run, the front end starts again with an `Answer`. Elements that decide the structure of the
graph, such as axes, are exact: other ones make another graph. Of those that are extents the answer
holds a pattern alone, in which most numbers are symbols, so that one graph serves all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import Dim, Symbolic
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.ir import Array, Graph, Value

MOST_SYMBOLIC = 1 << 24
"""Larger numbers have a meaning, such as "to the end", and are part of the pattern."""


class RunTimeNumberError(UnsupportedOperatorError):
    """Elements of a tensor must be known before the graph can be made."""

    def __init__(self, value: Value, exact: bool, message: str) -> None:
        super().__init__(message)
        self.value, self.exact = value, exact
        self.graph: Graph | None = None
        """Set by the front end."""

    def computed(self) -> Graph:
        """The graph that computes the elements from the inputs of the model."""
        assert self.graph is not None
        return self.graph


class Entry(NamedTuple):
    """A number of a pattern: itself, or its sign, where its size is a symbol."""

    number: int | None
    sign: int


class Answer(NamedTuple):
    """What was found of a tensor, by its name in the graph, which the front end gives again."""

    name: str
    exact: Array | None
    pattern: tuple[Entry, ...] = ()


def answered(name: str, exact: bool, elements: Array) -> tuple[Answer, list[int]]:
    """The answer for some elements, and the sizes of its symbols."""
    if exact:
        return Answer(name, elements), []
    pattern, sizes = [], []
    for number in map(int, elements.ravel()):
        # One is special: extents of one are broadcast, minus one is what is left.
        if abs(number) <= 1 or abs(number) > MOST_SYMBOLIC:
            pattern.append(Entry(number, 0))
        else:
            pattern.append(Entry(None, 1 if number > 0 else -1))
            sizes.append(abs(number))
    return Answer(name, None, tuple(pattern)), sizes


def key_of(answer: Answer) -> object:
    """A key that is equal for answers to one question that make the same model."""
    if answer.exact is None:
        return answer.pattern
    return answer.exact.shape, answer.exact.dtype.str, answer.exact.tobytes()


def answer_of(name: str, exact: bool, key: Any) -> Answer:
    """The answer whose key this is. Raises TypeError or ValueError for another object."""
    if not exact:
        return Answer(name, None, key)
    shape, dtype, elements = key
    return Answer(name, np.frombuffer(elements, dtype).reshape(shape))


def input_name(name: str, number: int) -> str:
    """The name of the input whose extent is the size of a symbol of an answer."""
    return f"{name} at run time [{number}]"


def sized(size: int) -> Array:
    """An operand of such an input. Nothing reads its elements."""
    return np.zeros(size, np.int8)


def dims_of_pattern(answer: Answer, symbols: Sequence[Symbolic]) -> tuple[Dim, ...]:
    """The numbers of a pattern, with symbols for those that are not part of it."""
    left = iter(symbols)
    return tuple(
        entry.number if entry.number is not None else entry.sign * next(left)
        for entry in answer.pattern
    )
