"""The house: layers in one order, and a light front door."""

from __future__ import annotations

import ast
import importlib
import time
from functools import cache
from pathlib import Path

import pytest
from tests.child import printed

import ftuner
from ftuner.graph.schedules import SCHEDULES, binding_name

ROOT = Path(ftuner.__file__).parent
LAYERS = (
    "errors", "schedules", "core", "hardware", "cost", "ukernels", "planner", "graph", "define",
    "codegen", "runtime", "tasks", "ops", "frontends", "learn", "report", "models", "api",
    "compiler", "inference", "quantised", "serving", "ort", "torch", "operators", "", "cli",
    "__main__", "__pyinstaller",
)  # fmt: skip
"""Lowest first; the empty name is `ftuner/__init__.py`. A layer imports itself and those below.
`schedules` are packages alone: their modules are in the layers that their names say."""
FILES_OF_SCHEDULES = {
    "step": "graph", "cost": "cost", "plan": "planner", "record": "codegen", "kernel": "codegen",
    "binding": "runtime",
}  # fmt: skip
"""The layer of each file of a schedule, by a word of its name."""
BUILT_ON = {
    "winograd": {"convolution"},
    "line_winograd": {"convolution", "winograd"},
    "stripes": {"convolution", "depthwise"},
}
"""The schedules that extend others, besides `product`, which any may: what they do faster, or in
another order."""
FROM_OUTSIDE = {
    "nest": "lowering makes nests of all that no other schedule takes",
    "product": "the public products",
    "attention": "the public attention on a GPU, and its calibration",
    "winograd": "calibration measures it",
}
"""The schedules that are imported by modules which are no schedules, and why."""
HEAVY = ("llvmlite", "torch", "triton", "onnx", "matplotlib", "scipy", "typer", "rich")
ONLY_ON_CPU = {
    "cost.correction": "a GPU's estimates are not corrected by a learned model",
    "cost.correction_features": "the same",
    "core.common_epilogue": "a GPU's kernels are compiled when a shape first needs them",
    "cost.selection": "torch selects elements on a GPU",
    "planner.cover": "a GPU covers n by tiles of one width and needs no table of covers",
    "runtime.appending": "outputs that append to inputs in place",
    "runtime.joint_program": "one table of the steps of a batch; a stream orders launches",
    "runtime.shared_panels": "the same: weights that requests read in turns",
    "runtime.repeated": "iterations of a loop that change addresses alone, without a launch each",
    "runtime.compilation": "cached objects of LLVM; Triton keeps a cache of its own",
    "runtime.memory": "huge pages; a GPU's memory comes from torch",
    "runtime.output_forms": "dims of outputs, evaluated once for all layers of a decoder",
    "runtime.kept_plans": "a saved model is one for a CPU",
    "runtime.packed_weights": "only a CPU packs weights into panels",
    "runtime.plan_records": "the records that native code reads; a GPU passes arguments",
    "runtime.run_states": "concurrent runs of one program; on a GPU runs follow each other",
    "runtime.targets": "Triton queries the target of a GPU itself",
    "runtime.step_compilation": "on a GPU, programs compile the kernels of their steps",
    "runtime.record_layout": "the records that native code reads; a GPU passes arguments",
    "runtime.tasks": "shares of workers; on a GPU a step is launches",
    "runtime.task_groups": "the same",
    "runtime.work_distribution": "the same",
    "runtime.words": "strings that a host node looks up; on a GPU its reference does",
    "runtime.threads": "the thread pool",
    "runtime.trials": "a GPU's trials are launches, timed by events",
}
ONLY_ON_GPU = {
    "core.attention": "attention is one kernel; a CPU composes it of product uKernels",
    "planner.grouped": "grouped products are one launch; a CPU plans each product by itself",
    "runtime.packing": "operands are copied for a call; a CPU packs panels within its kernels",
    "ukernels.cover": "each tile of a GPU is a kernel to compile; a CPU's heights are one family",
}
"""Modules of a `cpu` or `gpu` folder, by room and file, that the other device has no need of, and
why. All others stand for the same concept on both devices, and have the same name."""
OF_THE_SYSTEM = {"ftuner.core.operating_system", "ftuner.core.fork_safety"}
"""The modules that ask the operating system for what only some have; the second for forks alone."""
OF_SOME_SYSTEMS = {
    "CDLL", "MADV_HUGEPAGE", "MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_EXEC", "fork", "libc_ver",
    "madvise", "memfd_create", "prctl", "register_at_fork", "sched_getaffinity",
    "sched_setaffinity", "syscall", "sysconf",
}  # fmt: skip
SECONDS_TO_IMPORT = 1.0
"""The aim is 0.3 s; the rest is for machines that are busy."""


def layer_of(module: str) -> str:
    parts = module.split(".")
    assert parts[0] == "ftuner"
    if schedule_of(module):
        words = set(parts[-1].split("_")) & {*FILES_OF_SCHEDULES}
        assert len(words) == 1, f"{module}: its name has one of {[*FILES_OF_SCHEDULES]}"
        return FILES_OF_SCHEDULES[words.pop()]
    return parts[1] if len(parts) > 1 else ""


def schedule_of(module: str) -> str:
    """The schedule that a module is a file of; empty if it is of none."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["schedules"] and len(parts) == 4 else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}

NAMES = {module for module in MODULES if "." in module}


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def names_of(module: str) -> set[str]:
    """Modules that a module imports, wherever in its text, by statement or, if it is ours, by
    name."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            for alias in node.names:
                assert alias.name != "*", f"{module} imports all names of {node.module}"
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
        elif isinstance(node, ast.Constant) and node.value in NAMES:
            assert isinstance(node.value, str)
            found.add(node.value)
    return found


def imports_of(module: str) -> set[str]:
    """Those that are ours."""
    return {name for name in names_of(module) if name.split(".")[0] == "ftuner"}


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


def test_one_module_knows_the_system() -> None:
    """What only some systems have is asked for where the fall-back is, too."""
    for module in MODULES.keys() - OF_THE_SYSTEM:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Attribute):
                assert node.attr not in OF_SOME_SYSTEMS, f"{module}:{node.lineno}: {node.attr}"
                assert ast.unparse(node) != "sys.platform", f"{module}:{node.lineno}"


def test_the_tools_are_not_imported() -> None:
    """They import ftuner; `cli/routing.py` looks for them by name."""
    for module in MODULES:
        assert not [name for name in names_of(module) if name.startswith("ftuner_tools")], module


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
    for node in tree_of(module).body:
        lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        assert isinstance(node, allowed) or lazy or typing, ast.unparse(node)


def files_of(device: str) -> set[str]:
    """The modules right inside each room's folder of a device, as `room.file`."""
    paths = ROOT.glob(f"*/{device}/*.py")
    return {f"{p.parts[-3]}.{p.stem}" for p in paths if p.name != "__init__.py"}


def test_devices_have_files_of_the_same_names() -> None:
    cpu, gpu = files_of("cpu"), files_of("gpu")
    assert cpu & gpu, "no room has both devices"
    assert cpu - gpu == set(ONLY_ON_CPU), "name both files alike, or say why one device has none"
    assert gpu - cpu == set(ONLY_ON_GPU), "name both files alike, or say why one device has none"
    assert all({*ONLY_ON_CPU.values(), *ONLY_ON_GPU.values()})


def test_frozen_dataclasses_compile_nothing() -> None:
    """Only `core.frozen` has the decorator of `dataclasses` for them."""
    for module in MODULES:
        frozen = [
            node
            for node in ast.walk(tree_of(module))
            if isinstance(node, ast.ClassDef)
            for decorator in map(ast.unparse, node.decorator_list)
            if decorator.startswith("dataclass(frozen=True")
        ]
        assert not frozen or "ftuner.core.frozen" in imports_of(module), module


@pytest.mark.alone
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
        done = printed("-c", script)
        taken, loaded = done.split("\n")[:2]
        assert loaded == ""
        seconds.append(float(taken))
    assert min(seconds) < SECONDS_TO_IMPORT


def test_names_are_imported_when_they_are_asked_for() -> None:
    """The function `ftuner.hardware` stays one after the package of that name is imported."""
    script = (
        "import sys, ftuner; print('numpy' in sys.modules, 'ftuner.api' in sys.modules); "
        "import ftuner.hardware.model; from ftuner.hardware.model import CpuHardware; "
        "print(callable(ftuner.hardware), callable(ftuner.matmul), 'numpy' in sys.modules)"
    )
    done = printed("-c", script)
    assert done.split() == ["False", "False", "True", "True", "True"]


def test_import_loads_what_operators_need_alone() -> None:
    """Reports, models and GPUs are loaded on first use."""
    script = "import sys, ftuner; print(*(m for m in sys.modules if m.startswith('ftuner.')))"
    done = printed("-c", script)
    loaded = {module.removeprefix("ftuner.") for module in done.split()}
    late = (
        "cli", "inference", "compiler", "models", "learn", "frontends", "graph.ir", "core.dim",
        "report.explain", "report.shown", "hardware.gpu_model",
    )  # fmt: skip
    assert [m for m in loaded if m.startswith(late) or ".gpu" in m] == []


@pytest.mark.alone
def test_public_names() -> None:
    for name in ftuner.__all__:
        assert getattr(ftuner, name) is not None
        assert name in dir(ftuner)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ftuner.nothing  # type: ignore[attr-defined]
    assert sorted(set(ftuner.__all__)) == sorted(ftuner.__all__)
    began = time.perf_counter()
    assert callable(ftuner.matmul)
    assert time.perf_counter() - began < SECONDS_TO_IMPORT


def test_schedules_import_no_others() -> None:
    """All but a few can be deleted: the folder, and the line of the table."""
    inside: dict[str, set[str]] = {}
    outside = set()
    for module in MODULES:
        own = schedule_of(module)
        for other in {schedule_of(imported) for imported in imports_of(module)} - {own, ""}:
            if not own:
                outside.add(other)
            elif other != "product":
                inside.setdefault(own, set()).add(other)
    assert inside == BUILT_ON
    assert outside == set(FROM_OUTSIDE), "say why a schedule is imported"


def test_every_schedule_is_a_folder() -> None:
    files = {
        s.name: {m.split(".")[-1] for m in MODULES if schedule_of(m) == s.name}
        for s in SCHEDULES
        if not s.prefix
    }
    assert {p.name for p in (ROOT / "schedules").iterdir() if (p / "__init__.py").exists()} == set(
        files
    )
    for schedule in SCHEDULES:
        kinds = (schedule.name, *schedule.more_kinds)
        found = {binding_name(kind, device) for kind in kinds for device in ("cpu", "gpu")}
        assert found & MODULES.keys(), f"no device runs {schedule.name}"
        step = importlib.import_module(schedule.module_name("step"))
        assert hasattr(step, "lower") == bool(schedule.operators), schedule.name
        assert hasattr(step, "rewritten") == schedule.rewrites, schedule.name
