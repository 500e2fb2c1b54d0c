"""Runs a user's function once, which gives the definition of its operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from ftuner.core.frozen import dataclass
from ftuner.define.elements import (
    Element,
    Index,
    Read,
    Tensor,
    element,
    elements_of,
    new_index,
    typed,
    wrong,
)
from ftuner.define.recurrences import Recurrence, expect_parameters, reached
from ftuner.define.signature import Signature
from ftuner.errors import DefinitionError, FTunerError


@dataclass(frozen=True)
class Result:
    """One result: the element at an index."""

    index: tuple[Index, ...]
    value: Element
    type: str
    batched: bool


@dataclass(frozen=True)
class Definition:
    """What an operator computes."""

    name: str
    operands: tuple[Tensor, ...]
    results: tuple[Result, ...]
    recurrences: tuple[Recurrence, ...]
    """Those that the results are made of."""

    @property
    def roots(self) -> list[Element]:
        """The elements of all results and recurrences."""
        values = [one.value for one in self.results]
        return [*values, *(one.value for one in self.recurrences)]


def parameters(function: Callable[..., Any], given: Signature, where: str) -> list[Parameter]:
    """The attributes of an operator: the keyword-only parameters of its function.

    Raises:
        DefinitionError: the function takes other tensors than the signature has.
    """
    found = list(signature(function, eval_str=False).parameters.values())
    tensors = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    attributes = [p for p in found if p.kind is p.KEYWORD_ONLY]
    if len(tensors) + len(attributes) < len(found):
        raise wrong(f"{function.__name__} takes *args or **kwargs; name each tensor", where)
    if len(tensors) != len(given.operands):
        what = f"{len(given.operands)} tensors in {given.text!r}, {len(tensors)} parameters"
        raise wrong(f"{function.__name__}: {what}; attributes come after *", where)
    for p in attributes:
        if p.default is not p.empty and not isinstance(p.default, int | float | str | tuple):
            raise wrong(f"attribute {p.name} is {p.default!r}; expected a number or a text", where)
    return attributes


def traced(
    function: Callable[..., Any], given: Signature, attributes: Mapping[str, Any], where: str
) -> Definition:
    """The definition that a function gives, for some attributes.

    Raises:
        DefinitionError: it is malformed, or the function fails.
    """
    names = [p.name for p in signature(function).parameters.values()]
    operands = tuple(
        Tensor(name, one.type, one.shape, number, one.batched)
        for number, (name, one) in enumerate(zip(names, given.operands, strict=False))
    )
    returned = _called(function, operands, attributes, where)
    several = isinstance(returned, tuple | list)
    bodies: Sequence[Any] = returned if several else (returned,)
    if len(bodies) != len(given.results):
        what = f"{len(given.results)} results in {given.text!r}, {len(bodies)} returned"
        raise wrong(f"{function.__name__}: {what}", where)
    results = []
    for body, wanted in zip(bodies, given.results, strict=True):
        index = tuple(new_index(extent, where) for extent in wanted.shape)
        if isinstance(body, Element) and not index:
            value = body
        elif isinstance(body, Recurrence):
            value = _called(body.__getitem__, (index,), {}, where)
        elif callable(body) and not isinstance(body, Element | Tensor):
            expect_parameters(body, len(index), where)
            value = element(_called(body, index, {}, where))
        else:
            shown = "nothing" if body is None else type(body).__name__
            what = f"expected a function of {len(index)} indices, such as lambda i, j: ..."
            raise wrong(f"{function.__name__} returns {shown}; {what}", where)
        value = typed(value, wanted.type, "the result")
        results.append(Result(index, value, wanted.type, wanted.batched))
    recurrences = reached([result.value for result in results])
    found = Definition(function.__name__, operands, tuple(results), recurrences)
    for result in results:
        for free in sorted(result.value.free - {*result.index}, key=lambda i: i.number):
            what = "the index of this `axis` is used outside of its reduction"
            hint = "are sum, max, min, any and all those of ftuner.define?"
            raise wrong(f"{what}; {hint}", free.place)
        if not result.batched and any(
            isinstance(one, Read) and one.tensor.batched for one in elements_of(result.value)
        ):
            raise wrong("the result has no axes '...', and depends on an operand that has", where)
    for root in found.roots:
        for one in elements_of(root):
            if isinstance(one, Index) and not one.extents:
                what = "axis has no extent: no tensor is read at its index; use axis(n)"
                raise wrong(what, one.place)
    return found


def _called(
    function: Callable[..., Any], operands: Iterable[object], attributes: Mapping[str, Any],
    where: str,
) -> Any:  # fmt: skip
    try:
        return function(*operands, **attributes)
    except FTunerError:
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None and trace.tb_frame.f_code.co_filename != __file__:
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        raise DefinitionError(f"{where}: {type(error).__name__}: {error}") from error
