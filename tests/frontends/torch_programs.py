"""Exported PyTorch programs as graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.frontends.aten_samples import by_reference

from ftuner.frontends.torch.exported import decomposed
from ftuner.frontends.torch.importer import Imported, import_fx
from ftuner.frontends.torch.tracing import extents_kept

AUTO = torch.export.Dim.AUTO


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Any) -> Any:
        return self.function(*operands)


def imported(
    module: torch.nn.Module, operands: Sequence[torch.Tensor], dynamic: Sequence[Any]
) -> Imported:
    """The graph of a module. `dynamic`: the axes of each operand that vary."""
    shapes: Any = tuple(dict.fromkeys(axes, AUTO) for axes in dynamic)
    if isinstance(module, Function):
        shapes = (shapes,)  # Of its one parameter, `operands`.
    with torch.no_grad(), extents_kept():
        exported = torch.export.export(module.eval(), tuple(operands), dynamic_shapes=shapes)
        program = decomposed(exported)
    stored = {**program.state_dict, **program.constants}
    constants = {
        spec.arg.name: stored[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.target is not None and isinstance(stored.get(spec.target), torch.Tensor)
    }
    return import_fx(program.graph_module, constants, {})


def agrees(found: Imported, module: torch.nn.Module, operands: Sequence[torch.Tensor]) -> None:
    """Raise AssertionError unless the graph gives what the module gives."""
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*operands))
    got = by_reference(found, operands)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
