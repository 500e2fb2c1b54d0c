"""The importers of ATen operators, whose schema is their Python signature.

    @aten("leaky_relu")
    def _leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
        return where(x < 0, x * negative_slope, x)

A row takes the operator's arguments under the names that torch's schema has for them, with its
defaults, and the first operands by their order, under any name; `tests/frontends` compares the two.
So one row serves operators and overloads whose arguments have one meaning, in whatever order these
have them. Tensors come as `Value`, integers as dims, dtypes as `DType`. What has no meaning for
values, such as a memory format or a device, is left out before the row is called. A row with a
parameter `pieces` gets the number of results, which torch knows, with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import signature
from typing import Any, TypeVar

from ftuner.errors import ConfigurationError
from ftuner.graph.ir import Value

Row = Callable[..., Value | Sequence[Value | None]]
ATEN: dict[str, Row] = {}
"""Importers by the name of the operator and its overload: `add.Tensor`. Operators of other
namespaces have it before them: `torchvision::nms.default`."""
MEANINGLESS = frozenset({
    "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit",
    "sparse_grad", "cudnn_enable", "cudnn_enabled", "scale_grad_by_freq", "sparse", "momentum",
    "generator", "compute_mode", "path", "assume_unique", "stable", "sorted",
})  # fmt: skip
"""Arguments that say where and how a tensor is stored, or how it is computed, that concern training
alone, and that allow more results than ours, such as those in any order."""
F = TypeVar("F", bound=Row)


def aten(*ops: str, **bound: object) -> Callable[[F], F]:
    """Make a function the importer of operators: of the overload that is named, else `default`.
    `bound`: arguments of the function that are the same for all nodes.

    Raises:
        ConfigurationError: the operator has an importer.
    """

    def register(function: F) -> F:
        for op in ops:
            name = op if "." in op else f"{op}.default"
            if name in ATEN:
                raise ConfigurationError(f"operator {name!r} has an importer")
            ATEN[name] = partial(function, **bound) if bound else function
        return function

    return register


def name_of(target: Any) -> str:
    """The name under which the importer of an operator (`torch._ops.OpOverload`) is found."""
    name = str(target._schema.name)
    overload = target._overloadname
    return f"{name.removeprefix('aten::')}.{overload}"


@cache
def places_of(target: Any, row: Row) -> Mapping[str, str]:
    """The parameter of a row for each argument of an operator, in their order, but for those
    without a meaning. A row may take all by their names."""
    names = [a.name for a in target._schema.arguments if a.name not in MEANINGLESS]
    bound = {"pieces", *(row.keywords if isinstance(row, partial) else ())}
    parameters = signature(row).parameters
    own = [p for p in parameters if p not in bound]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        own = names
    operands = (p for p in own if p not in names)
    return {name: name if name in own else next(operands) for name in names}


def imported(target: Any, args: Sequence[Any], named: Mapping[str, Any], **more: Any) -> Any:
    """What the row of an operator returns for arguments with a meaning, as torch has them. `more`:
    what else the row takes."""
    row = ATEN[name_of(target)]
    places = places_of(target, row)
    given = {**dict(zip(places, args, strict=False)), **named}
    return row(**{places[name]: x for name, x in given.items()}, **more)
