"""The importers of ATen operators have the signatures of torch's schemas."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ftuner.errors import ConfigurationError  # noqa: E402
from ftuner.frontends.torch.importer import ATEN  # noqa: E402
from ftuner.frontends.torch.registry import MEANINGLESS, aten, places_of  # noqa: E402

OTHER_NAMES = ("_pad_circular", "reshape", "split", "swapaxes", "swapdims", "tile")
"""Operators that share the importer of another one, whose arguments have other names."""


def operator(name: str) -> Any:
    """torch's operator with an importer."""
    whole, overload = name.rsplit(".", 1)
    space, _, op = whole.rpartition("::")
    return getattr(getattr(getattr(torch.ops, space or "aten"), op), overload)


OF_OTHERS = "ftuner_tests::", "transformers::"
"""Operators that torch has when other packages are imported."""


def schema(name: str) -> Any:
    return operator(name)._schema


def parameters(name: str) -> list[inspect.Parameter]:
    """The parameters of an importer that are arguments of the operator."""
    row = ATEN[name]
    bound = {"pieces", *(row.keywords if isinstance(row, partial) else ())}
    return [p for p in inspect.signature(row).parameters.values() if p.name not in bound]


@pytest.mark.parametrize("name", sorted(x for x in ATEN if not x.startswith(OF_OTHERS)))
def test_an_importer_has_the_signature_of_the_schema(name: str) -> None:
    arguments = {a.name: a for a in schema(name).arguments if a.name not in MEANINGLESS}
    own = parameters(name)
    by_name = {p.name: p for p in own}
    places = places_of(operator(name), ATEN[name])
    assert list(places) == list(arguments)
    for position, (argument, place) in enumerate(places.items()):
        found = arguments[argument]
        if place != argument:
            # An operand, which has its place by the order.
            is_operand = "Tensor" in str(found.type) or str(found.type) == "number"
            assert is_operand or name.split(".")[0] in OTHER_NAMES
            assert own[position].name == place
            assert not found.kwarg_only
        if found.has_default_value() and argument != "dtype":
            assert _is_default(by_name[place].default, found.default_value), argument
    assert {p.name for p in own if p.default is p.empty} <= set(places.values())


def _is_default(own: Any, default: Any) -> bool:
    """torch lists a number for each spatial axis."""
    if isinstance(default, list):
        return list(own or ()) == default if not isinstance(own, int) else {own} == set(default)
    return bool(own == default)


def test_an_operator_has_one_importer() -> None:
    with pytest.raises(ConfigurationError, match=r"'add\.Tensor' has an importer"):
        aten("add.Tensor")(lambda x, y: x)
