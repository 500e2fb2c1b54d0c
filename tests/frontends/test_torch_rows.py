"""The importers of ATen operators have the signatures of torch's schemas."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ftuner.errors import ConfigurationError  # noqa: E402
from ftuner.frontends.torch.importer import ATEN  # noqa: E402
from ftuner.frontends.torch.registry import MEANINGLESS, aten  # noqa: E402

OTHER_NAMES = ("_pad_circular", "reshape", "split", "swapaxes", "swapdims", "tile")
"""Operators that share the importer of another one, whose arguments have other names."""


def schema(name: str) -> Any:
    """torch's schema of the operator with an importer."""
    whole, overload = name.rsplit(".", 1)
    space, _, op = whole.rpartition("::")
    return getattr(getattr(getattr(torch.ops, space or "aten"), op), overload)._schema


def parameters(name: str) -> list[inspect.Parameter]:
    """The parameters of an importer that are arguments of the operator."""
    row = ATEN[name]
    bound = {"pieces", *(row.keywords if isinstance(row, partial) else ())}
    return [p for p in inspect.signature(row).parameters.values() if p.name not in bound]


@pytest.mark.parametrize("name", sorted(ATEN))
def test_an_importer_has_the_signature_of_the_schema(name: str) -> None:
    arguments = [a for a in schema(name).arguments if a.name not in MEANINGLESS]
    own = parameters(name)
    by_name = {p.name: p for p in own}
    for position, argument in enumerate(arguments):
        if argument.kwarg_only:
            parameter = by_name[argument.name]
        else:
            parameter = own[position]
            is_operand = "Tensor" in str(argument.type) or str(argument.type) == "number"
            if not is_operand and name.split(".")[0] not in OTHER_NAMES:
                assert parameter.name == argument.name
        if argument.has_default_value() and argument.name != "dtype":
            assert _is_default(parameter.default, argument.default_value), parameter
    required = [p for p in own if p.default is p.empty]
    assert len(required) <= len(arguments)


def _is_default(own: Any, default: Any) -> bool:
    """torch lists a number for each spatial axis."""
    if isinstance(default, list):
        return list(own or ()) == default if not isinstance(own, int) else {own} == set(default)
    return bool(own == default)


def test_an_operator_has_one_importer() -> None:
    with pytest.raises(ConfigurationError, match=r"'add\.Tensor' has an importer"):
        aten("add.Tensor")(lambda x, y: x)
