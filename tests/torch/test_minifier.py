"""torch's minifier finds the operator at which the back end fails."""

from __future__ import annotations

from unittest import mock

import pytest

# torch's tests import it.
pytest.importorskip("expecttest")

import torch
from torch._dynamo.test_minifier_common import MinifierTestBase

from ftuner.frontends.torch.registry import ATEN
from ftuner.graph.ir import Value
from ftuner.torch import backend, cut

NAME = "ftuner_minified"
CODE = f"""
def function(x):
    for _ in range(3):
        x = torch.sin(x) * 2
    x = torch.tanh(x)
    for _ in range(3):
        x = torch.cos(x) + 1
    return x

with torch.no_grad():
    torch.compile(function, backend="{NAME}")(torch.randn(4, 5))
"""


def raises(x: Value) -> Value:
    raise AssertionError("deliberately")


class Minifier(MinifierTestBase):
    """Has torch's assertions and folders."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        if NAME not in torch._dynamo.list_backends():
            torch._dynamo.register_backend(backend, name=NAME)

    def test_an_operator_that_raises(self) -> None:
        """What torch compares, it compares for back ends alone that return a module."""
        patched = mock.patch.dict(ATEN, {"tanh.default": raises})
        with patched, mock.patch.object(cut, "FEWEST_OPERATORS", 1):
            found = self._run_full_test(CODE, "dynamo", "deliberately", isolate=False)
        assert "tanh" in found.repro_module()
        assert "cos" not in found.repro_module()
