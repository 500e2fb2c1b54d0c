"""The house: layers in one order, and a light front door."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ftuner

ROOT = Path(ftuner.__file__).parent
LAYERS = (
    "errors", "core", "hardware", "cost", "ukernels", "planner", "graph", "codegen", "runtime",
    "frontends", "report", "api", "inference", "", "cli",
)  # fmt: skip
"""Lowest first; the empty name is `ftuner/__init__.py`. A layer imports itself and those below."""
HEAVY = ("llvmlite", "torch", "triton", "onnx", "matplotlib", "scipy", "typer", "rich")
SECONDS_TO_IMPORT = 1.0
"""The aim is 0.3 s; the rest is for machines that are busy."""


def layer_of(module: str) -> str:
    parts = module.split(".")
    assert parts[0] == "ftuner"
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}

NAMES = {module for module in MODULES if "." in module}


def imports_of(module: str) -> set[str]:
    """Modules of ours that a module imports, wherever in its text, by statement or by name."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            assert isinstance(node.value, str)
            found.add(node.value)
    return {name for name in found if name.split(".")[0] == "ftuner"}


def test_every_layer_is_known() -> None:
    assert {layer_of(module) for module in MODULES} == set(LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    own = LAYERS.index(layer_of(module))
    for imported in imports_of(module):
        assert imported in MODULES, f"{module} imports {imported}, which is not there"
        assert LAYERS.index(layer_of(imported)) <= own, f"{module} imports {imported}"


@pytest.mark.parametrize("module", [m for m in MODULES if layer_of(m) == "core"])
def test_core_stands_alone(module: str) -> None:
    assert {layer_of(imported) for imported in imports_of(module)} <= {"core", "errors"}


def test_no_cycles() -> None:
    state: dict[str, bool] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert state.get(module, True), f"cycle: {' -> '.join((*path, module))}"
        if module in state:
            return
        state[module] = False
        for imported in imports_of(module) - {module}:
            # A string may name a module that is only imported when it is needed.
            visit(imported, (*path, module))
        state[module] = True

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize("module", [m for m, p in MODULES.items() if p.name == "__init__.py"])
def test_packages_do_nothing(module: str) -> None:
    """An `__init__` hands names on, some of them when they are first asked for."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in tree.body:
        lazy = isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        assert isinstance(node, allowed) or lazy or typing, ast.unparse(node)


def test_no_star_imports() -> None:
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert all(alias.name != "*" for alias in node.names), module


def test_import_is_light() -> None:
    """What ftuner adds to NumPy, in a process of its own; the best of three, because others may
    use the machine."""
    script = (
        "import numpy, sys, time; began = time.perf_counter(); import ftuner; "
        "print(time.perf_counter() - began); "
        f"print(','.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
        taken, loaded = done.stdout.split("\n")[:2]
        assert loaded == ""
        seconds.append(float(taken))
    assert min(seconds) < SECONDS_TO_IMPORT


def test_public_names() -> None:
    for name in ftuner.__all__:
        assert getattr(ftuner, name) is not None
    assert sorted(set(ftuner.__all__)) == sorted(ftuner.__all__)
    began = time.perf_counter()
    assert callable(ftuner.matmul)
    assert time.perf_counter() - began < SECONDS_TO_IMPORT
