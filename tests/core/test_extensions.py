"""What is registered from outside ftuner is noted."""

import numpy as np
import pytest

from ftuner.core import extensions, functions
from ftuner.frontends.onnx import importer, signatures
from ftuner.graph import schedules
from ftuner.graph.ir import Node, Value
from ftuner.graph.rewrite import rule as rules
from ftuner.graph.schedules import Schedule, register_schedule


def test_modules_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert importer.IMPORTERS is signatures.REGISTERED
    assert not [name for name in extensions.EXTENSIONS if name.startswith("ftuner.")]
    noted: set[str] = set()
    for where, name, empty in (
        (extensions, "EXTENSIONS", noted), (rules, "_REGISTERED", []), (schedules, "_OUTSIDE", []),
        (signatures, "REGISTERED", {}),
    ):  # fmt: skip
        monkeypatch.setattr(where, name, empty)

    def nothing(node: Node) -> Value | None:
        return None

    def same(x: Value) -> Value:
        return x

    rules.register_rule(rules.rule("add")(nothing))
    assert noted == {__name__}
    register_schedule(Schedule("outside", prefix="outside_"))
    assert noted == {__name__, "outside_step"}
    noted.clear()
    monkeypatch.setattr(functions, "_TABLE", {**functions.SCALAR_FUNCTIONS})
    monkeypatch.setattr(functions, "_REGISTERED", {})
    row = functions.ScalarFunction(1, functions.FLOATS, np.abs, composition="where(x < 0, -x, x)")
    functions.register("outside", row)
    assert noted == {"outside"}
    noted.clear()
    signatures.onnx("Outside", domain="org.tests")(same)
    assert noted == {__name__}
