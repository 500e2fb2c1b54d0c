"""Operators that users define, as custom operators of PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, Protocol

import torch

from ftuner.define.bounds import dim_of
from ftuner.define.elements import FLOAT, INT
from ftuner.define.signature import Signature
from ftuner.errors import ConfigurationError
from ftuner.frontends.torch.registry import ATEN, aten


class Operator(Protocol):
    """`ftuner.Operator`, which is in a room above."""

    signature: Signature
    attributes: list[Parameter]

    @property
    def importer(self) -> Callable[..., Any]: ...

    def __call__(self, *operands: Any, **attributes: Any) -> Any: ...


_SCHEMAS = {"int": "int", "float": "float", "bool": "bool", "str": "str",
            "tuple[int, ...]": "int[]", "tuple[float, ...]": "float[]"}  # fmt: skip
"""The types of attributes in torch's schemas."""


def registered(operator: Operator, name: str) -> Any:
    """`Operator.torch`."""
    namespace, colons, base = name.partition("::")
    if not (colons and namespace.isidentifier() and base.isidentifier()):
        raise ConfigurationError(f"operator {name!r}; expected a name such as my_library::gated")
    if f"{name}.default" in ATEN or hasattr(getattr(torch.ops, namespace), base):
        raise ConfigurationError(f"operator {name!r} is registered; choose a name")

    def called(*operands: torch.Tensor, **attributes: Any) -> Any:
        found = operator(*(x.detach() for x in operands), **attributes)
        return list(found) if isinstance(found, tuple) and several else found

    several = len(operator.signature.results) > 1
    made = torch.library.custom_op(name, called, mutates_args=(), schema=_schema(operator))
    made.register_fake(lambda *operands, **attributes: _fake(operator, operands))
    aten(name + ".default")(_row(operator))
    return made


def _row(operator: Operator) -> Any:
    """The row of `frontends.torch.registry`."""
    names = _operands(operator)
    return lambda **given: operator.importer(*[given.pop(n) for n in names], **given)


def _operands(operator: Operator) -> list[str]:
    parameters = inspect.signature(operator.importer).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]


def _schema(operator: Operator) -> str:
    attributes = []
    for p in operator.attributes:
        kind = inspect.signature(operator.importer).parameters[p.name].annotation
        default = "" if p.default is p.empty else f"={_text(p.default)}"
        attributes.append(f"{_SCHEMAS[kind]} {p.name}{default}")
    operands = [f"Tensor {name}" for name in _operands(operator)]
    taken = operands + ["*"] * bool(attributes) + attributes
    results = len(operator.signature.results)
    returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    return f"({', '.join(taken)}) -> {returned}"


def _text(default: object) -> str:
    if isinstance(default, tuple):
        return f"[{', '.join(map(_text, default))}]"
    return f'"{default}"' if isinstance(default, str) else str(default)


def _fake(operator: Operator, operands: tuple[torch.Tensor, ...]) -> Any:
    """Tensors of the results' shapes, whose extents may be symbols of torch."""
    signature = operator.signature
    names: dict[str, Any] = {}
    leads, dtypes = [], {FLOAT: torch.float32, INT: torch.int64}
    for one, x in zip(signature.operands, operands, strict=True):
        lead = x.dim() - len(one.shape)
        leads.append(x.shape[:lead])
        if one.type in dtypes:
            dtypes[one.type] = x.dtype
        for extent, size in zip(one.shape, x.shape[lead:], strict=True):
            if hasattr(extent, "name"):
                names.setdefault(extent.name, size)
    broadcast: Any = torch.broadcast_shapes
    batch = broadcast(*leads)
    found = []
    for one in signature.results:
        shape: list[Any] = [dim_of(extent, names) for extent in one.shape]
        dtype = dtypes.get(one.type) or getattr(torch, one.type)
        whole = (*batch, *shape) if one.batched else tuple(shape)
        found.append(operands[0].new_empty(whole, dtype=dtype))
    return found[0] if len(found) == 1 else tuple(found)
