"""What definitions are written in, beside Python's operators: reductions, scalar functions, `where`
and `cast`.

    sum(a[i, k] * b[k, j] for k in axis)

`axis` is as long as the axes that its index selects from; `axis(n)` has n positions.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial, reduce

from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.define.elements import (
    BOOL,
    INDEX,
    TYPES,
    Apply,
    Element,
    Extent,
    Index,
    Number,
    Operand,
    Reduction,
    Tensor,
    apply,
    common,
    converted,
    element,
    kind_of,
    made,
    new_index,
    place,
    wrong,
)

OPENED: ContextVar[list[Index] | None] = ContextVar("OPENED", default=None)
"""The axes of the reduction that is being written."""


class Axis:
    """An axis of a reduction: each loop over it, in a generator expression, is a new index."""

    def __init__(self, extent: Element | None) -> None:
        self._extent = extent

    def __call__(self, extent: Operand) -> Axis:
        """An axis of a given extent: arithmetic on extents and numbers."""
        return Axis(extent_of(extent))

    def __iter__(self) -> Iterator[Index]:
        opened = OPENED.get()
        if opened is None:
            hint = "import sum, max, min, any and all from ftuner.define"
            what = f"axis is iterated over outside of a reduction; {hint}"
            raise wrong(f"{what}, and write sum(... for k in axis)")
        found = new_index(self._extent, place())
        opened.append(found)
        yield found


axis = Axis(None)


def extent_of(value: Operand) -> Element:
    """Arithmetic on extents and numbers, as an element."""
    found = element(value)
    if found.type != INDEX or found.free or not _is_extent(found):
        raise wrong("an axis is as long as extents and numbers say; data cannot change it")
    return found


def _is_extent(one: Element) -> bool:
    return isinstance(one, Number | Extent) or (
        isinstance(one, Apply) and builtins.all(map(_is_extent, one.arguments))
    )


def _consumed(elements: object, what: str) -> tuple[list[Element], tuple[Index, ...]]:
    """The elements of a generator expression, and the axes that it iterates over."""
    if isinstance(elements, Element | Tensor | float | int) or not isinstance(elements, Iterable):
        raise wrong(f"{what} takes a generator expression: {what}(x[i, k] for k in axis)")
    opened = list[Index]()
    token = OPENED.set(opened)
    try:
        found, axes = list[Element](), 0
        for one in elements:
            found.append(element(one))
            axes = axes or len(opened)
            if len(opened) != axes:
                raise wrong(f"{what}: put loops over `axis` before those over Python's sequences")
    finally:
        OPENED.reset(token)
    if not found:
        raise wrong(f"{what} of nothing")
    return found, tuple(opened)


def _reduction(kind: str, combine: str, elements: object, what: str) -> Element:
    """A reduction over axes; what iterates over Python's sequences is written out."""
    found, axes = _consumed(elements, what)
    type_ = common(found, what)
    if type_ == BOOL:
        raise wrong(f"{what} of bools; use any or all, or convert them with cast(x, type)")
    body = reduce(partial(apply, combine), found) if len(found) > 1 else found[0]
    return _over(kind, axes, body, body.type) if axes else body


def _over(kind: str, axes: tuple[Index, ...], body: Element, type_: str) -> Element:
    return Reduction(type_, body.free - {*axes}, place(), kind, axes, body)


def sum(elements: Iterable[Operand]) -> Element:
    """The sum over the axes of a generator expression; 0 of nothing."""
    return _reduction("sum", "add", elements, "sum")


def prod(elements: Iterable[Operand]) -> Element:
    """The product; 1 of nothing."""
    return _reduction("product", "multiply", elements, "prod")


def mean(elements: Iterable[Operand]) -> Element:
    """The sum over the number of elements; NaN of nothing."""
    found, axes = _consumed(elements, "mean")
    if len(found) > 1 or not axes or kind_of(found[0].type) != "float":
        raise wrong("mean takes floats, of one generator expression over `axis`")
    return _over("mean", axes, found[0], found[0].type)


def _extreme(kind: str, what: str, given: tuple[object, ...]) -> Element:
    if len(given) == 1:
        return _reduction(kind, kind, given[0], what)
    return reduce(partial(apply, kind), map(element, given))


def max(*given: Operand | Iterable[Operand]) -> Element:
    """The largest of a generator expression's elements, the least number of nothing; or of several
    elements. NaN if one is NaN."""
    return _extreme("maximum", "max", given)


def min(*given: Operand | Iterable[Operand]) -> Element:
    """The smallest, as `max`."""
    return _extreme("minimum", "min", given)


def _truth(kind: str, combine: str, what: str, elements: object) -> Element:
    found, axes = _consumed(elements, what)
    body = reduce(partial(apply, combine), found) if len(found) > 1 else found[0]
    if body.type != BOOL:
        raise wrong(f"{what} of {body.type}; expected bools, such as x[i] > 0")
    return _over(kind, axes, body, BOOL) if axes else body


def any(elements: Iterable[Operand]) -> Element:
    """Whether one of the conditions holds; not of nothing."""
    return _truth("any", "logical_or", "any", elements)


def all(elements: Iterable[Operand]) -> Element:
    """Whether all conditions hold; so of nothing."""
    return _truth("all", "logical_and", "all", elements)


def _position(kind: str, elements: object) -> Element:
    found, axes = _consumed(elements, kind)
    if len(found) > 1 or len(axes) != 1 or found[0].type == BOOL:
        raise wrong(f"{kind} takes numbers, of a generator expression over one axis")
    return _over(kind, axes, found[0], "int64")


def argmax(elements: Iterable[Operand]) -> Element:
    """The first position, along one axis, of the largest element, or of the first NaN."""
    return _position("argmax", elements)


def argmin(elements: Iterable[Operand]) -> Element:
    """The first position, along one axis, of the smallest element, or of the first NaN."""
    return _position("argmin", elements)


def where(condition: Operand, x: Operand, y: Operand) -> Element:
    """x where the condition holds, else y. Operands may be read outside of their axes in the part
    that the condition excludes."""
    holds = element(condition)
    if holds.type != BOOL:
        raise wrong(f"where of a {holds.type}; expected a condition")
    parts = [element(x), element(y)]
    type_ = common(parts, "where")
    return made("where", type_, (holds, *(converted(one, type_) for one in parts)))


def cast(x: Operand, type: str) -> Element:
    """An element in another type: `float` and `int` of the signature, or the name of a dtype."""
    if not isinstance(type, str) or type not in TYPES:
        raise wrong(f"cast to {type!r}; expected one of {', '.join(TYPES)}")
    return converted(element(x), type)


def scalar_function(name: str) -> Callable[..., Element]:
    """A row of `SCALAR_FUNCTIONS` as a function of elements.

    Raises:
        AttributeError: there is no such row.
    """
    if name not in SCALAR_FUNCTIONS:
        raise AttributeError(f"ftuner.define has no function {name!r}")
    arity = SCALAR_FUNCTIONS[name].arity

    def function(*arguments: Operand) -> Element:
        if len(arguments) != arity:
            raise wrong(f"{name} of {len(arguments)} arguments; expected {arity}")
        return apply(name, *arguments)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The scalar function `{name}` of elements."
    return function
