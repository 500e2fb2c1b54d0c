"""Operators that run graphs: loops, and the choice between two graphs.

A host runs them between two programs (`graph.splitting`). The graphs are attributes, of which the
references get functions from a list of arrays to a list of arrays. Arrays may be of any library:
references only count, choose and stack, so that tensors stay on their device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Nest
from ftuner.errors import GraphError, IterationLimitError, ShapeError
from ftuner.graph.ir import Graph, TensorType
from ftuner.graph.operator import Attributes, Operator, Require, Types

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""A graph that is run on arrays."""

MAX_TRIPS = 1 << 24
"""Most iterations of a loop, unless a limit is set: minutes of the shortest ones."""


@dataclass(frozen=True)
class Host:
    """What runs the graphs of a node."""

    join: Callable[[Sequence[Any]], Any] = np.concatenate
    """Concatenates arrays along the first axis."""
    max_trips: int = MAX_TRIPS
    """Most iterations of a loop."""
    repeat: Repeat | None = None
    """Runs iterations of the loop; by default each is a run of its graph."""


BY_ITSELF = Host()
"""Of a node that its reference alone computes."""


class Iterations(NamedTuple):
    """What one or more iterations of a loop give."""

    trips: int
    going: bool
    """Whether to go on."""
    values: Sequence[Any]
    """The carried values after them."""
    stacked: Sequence[Sequence[Any]]
    """For each stacked result arrays, with the iterations along the first axis."""


Repeat = Callable[[Sequence[Any], int, bool, int], Iterations]
"""Runs iterations: of the operands of the first one, of which some are carried, whether the graph
gives a condition, and the most iterations."""


def once(
    body: Run, operands: Sequence[Any], carried: int, conditional: bool, most: int
) -> Iterations:
    """One iteration of a loop, as `Repeat`."""
    results, going = body(operands), True
    if conditional:
        going, results = bool(results[0].item()), results[1:]
    return Iterations(1, going, results[:carried], [[x[None]] for x in results[carried:]])


def _expect_operands(what: str, body: Graph, types: Types) -> None:
    given = [(t.dtype, t.rank) for t in types]
    if given != [(v.dtype, v.rank) for v in body.inputs]:
        raise GraphError(f"{what} of {', '.join(map(str, types))} by {body}")


def _expect_results(what: str, body: Graph, types: Types) -> None:
    """Nothing converts the last results of a graph: they have the types of the node's."""
    given = [(v.dtype, v.rank) for _, v in body.outputs[len(body.outputs) - len(types) :]]
    if given != [(t.dtype, t.rank) for t in types]:
        raise GraphError(f"{what} of results {', '.join(map(str, types))} by {body}")


def _infer_loop(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    results: tuple[TensorType, ...] = attributes["types"]
    stacked = len(results) - attributes["carried"]
    body, carried = attributes["body"], attributes["carried"]
    _expect_operands("loop", body, types[2 : len(types) - stacked])
    elements = [replace(t, shape=t.shape[1:]) for t in results[carried:]]
    _expect_results("loop", body, [*results[:carried], *elements])
    return results


def _reference_loop(
    trips: Any, going: Any, *operands: Any, body: Run, carried: int, conditional: bool,
    types: Types, counts: tuple[str, ...], host: Host = BY_ITSELF,
) -> Any:  # fmt: skip
    limit, goes_on = trips.item(), bool(going.item())
    empty = operands[len(operands) - (len(types) - carried) :]
    values: Sequence[Any] = operands[:carried]
    captured = operands[carried : len(operands) - len(empty)]
    stacked: list[list[Any]] = [[] for _ in empty]
    repeat = host.repeat or partial(once, body)
    number = 0
    while goes_on and number < limit:
        if number == host.max_trips:
            raise IterationLimitError(f"a loop has not ended after {number} iterations")
        most = min(limit, host.max_trips) - number
        done, goes_on, values, found = repeat([*values, *captured], carried, conditional, most)
        for parts, more in zip(stacked, found, strict=True):
            parts += more
        number += done
    for parts in stacked:
        shapes = {tuple(part.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise ShapeError(
                f"iterations of a loop give tensors of the shapes {sorted(shapes)} to be stacked; "
                "expected one shape"
            )
    results = (*values, *(host.join(p) if p else x for p, x in zip(stacked, empty, strict=True)))
    return results if len(results) > 1 else results[0]


def _infer_independent(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType, ...]:
    operands, constants = attributes["nest"].operands, attributes["constants"]
    if [(x.dtype, x.shape) for x in operands] != [(t.dtype, t.shape) for t in types]:
        raise GraphError(f"independent_loop of {', '.join(map(str, types))}")
    return _infer_loop(types[: len(types) - constants], attributes, require)[-1:]


def _reference_independent(
    *operands: Any, nest: Nest, constants: int, body: Run, carried: int, conditional: bool,
    types: Types,
) -> Any:  # fmt: skip
    results = _reference_loop(
        *operands[: len(operands) - constants], body=body, carried=carried, conditional=conditional,
        types=types, counts=(),
    )  # fmt: skip
    return results[-1] if carried else results


def _infer_choose(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    for branch in ("then", "otherwise"):
        _expect_operands("choose", attributes[branch], types[1:])
        _expect_results("choose", attributes[branch], attributes["types"])
    results: tuple[TensorType, ...] = attributes["types"]
    return results


def _reference_choose(
    condition: Any, *operands: Any, then: Run, otherwise: Run, types: Types,
    counts: tuple[str, ...], host: Host = BY_ITSELF,
) -> Any:  # fmt: skip
    results = (then if condition.item() else otherwise)(operands)
    return tuple(results) if len(results) > 1 else results[0]


OPERATORS = (
    Operator("loop", _infer_loop, _reference_loop),
    Operator("independent_loop", _infer_independent, _reference_independent,
             lambda types, attributes, results: cast(Nest, attributes["nest"])),
    Operator("choose", _infer_choose, _reference_choose),
)  # fmt: skip
"""`loop` takes a number of iterations, whether to begin, the first carried values (`carried` of
them), values that every iteration reads, and an empty array for each stacked result. The graph
`body` takes carried values and the values that every iteration reads. It gives, if the loop is
`conditional`, whether to go on, then carried values, then an element of each stacked result. The
results are the last carried values and the stacked ones; these are the empty arrays if there is no
iteration.

`independent_loop` gives one stacked result of a loop whose iterations depend on their number alone,
which `nest` computes, for the operands of the loop, then as many as `constants` of the body.

`choose` takes a condition and the operands of both graphs, `then` and `otherwise`, and gives what
the chosen one gives. `types` are the types of the results; `counts` names the symbols of their
data-dependent extents."""
