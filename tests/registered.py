"""The operators that a module of the ONNX front end imports."""

from __future__ import annotations

from ftuner.frontends.onnx.importer import IMPORTERS


def operators_of(module: str) -> set[tuple[str, str]]:
    """Domain and type of each operator whose importers a module of `frontends/onnx` decorates."""
    found = {
        key
        for key, importer in IMPORTERS.items()
        if importer.module == f"ftuner.frontends.onnx.{module}"
    }
    assert found, module
    return found
