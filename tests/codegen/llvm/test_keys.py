"""Keys of objects: whatever decides machine code changes them, and LLVM is not loaded for them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import HOST_ISAS

import ftuner
from ftuner.codegen.llvm.objects import jit
from ftuner.codegen.llvm.objects import keys as keys_module
from ftuner.codegen.llvm.objects.bundle import (
    Bundle,
    family_bundle,
    kernel_bundle,
    reduce_bundle,
    runtime_bundle,
)
from ftuner.codegen.llvm.objects.jit import Target, compiler_build, host_target
from ftuner.codegen.llvm.objects.keys import (
    COMPILER_MODULE,
    Folder,
    Sources,
    bundle_key,
    generator_digest,
)
from ftuner.core import functions
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import Apply, Operand
from ftuner.core.functions import FLOATS, ScalarFunction
from ftuner.core.product import product_types
from ftuner.hardware.constants import constants, part_of
from ftuner.hardware.intake_tuning import Intake
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import CpuTuning, KLoopTuning, NativeTuning

EMITTERS = tuple(
    f"ftuner.{name}"
    for name in ("codegen.llvm.kernels.family", "codegen.llvm.kernels.split_k",
                 "codegen.llvm.native.runtime", "schedules.attention.cpu_kernel",
                 "schedules.nest.cpu_kernel", "schedules.top_k.cpu_kernel")
)  # fmt: skip
BIAS = Operand("bias", "column")
IMPORTED = f"""
import sys, types
# The package without its front door, which imports all of it.
package = sys.modules["ftuner"] = types.ModuleType("ftuner")
package.__path__ = [sys.argv[1]]
import {", ".join((COMPILER_MODULE, *EMITTERS))}
for name, module in sys.modules.items():
    # An empty package says no more than that its folder is there.
    if name.startswith("ftuner.") and open(module.__file__).read():
        print(name)
"""


@pytest.fixture(scope="module")
def imported() -> tuple[str, ...]:
    """Our modules in a process that has imported the compiler."""
    command = [sys.executable, "-c", IMPORTED, str(Path(ftuner.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return tuple(done.stdout.split())


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(Path(ftuner.__file__).parent, tmp_path / "ftuner", ignore=ignored))


def digest(package: Folder) -> str:
    return Sources(package).digest(COMPILER_MODULE, *EMITTERS)


def test_all_that_the_compiler_imports_is_covered(imported: tuple[str, ...]) -> None:
    found = Sources(resources.files("ftuner")).imported(COMPILER_MODULE, *EMITTERS)
    assert "ftuner.codegen.coefficients" in imported
    assert set(imported) <= found.keys()
    # Texts that mention others may add some, but not the house.
    assert len(found) < 2 * len(imported)


def test_any_edit_changes_the_digest(imported: tuple[str, ...], package: Path) -> None:
    before = digest(package)
    assert before == generator_digest(*EMITTERS)
    for name in imported:
        path = package.joinpath(*name.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        source, status = file.read_bytes(), file.stat()
        # The same size and time, and other bytes.
        file.write_bytes(source[:-2] + bytes([source[-2] ^ 1]) + source[-1:])
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert digest(package) != before, name
        file.write_bytes(source)
    assert digest(package) == before


@pytest.mark.parametrize(
    "statement",
    [
        "import ftuner.graph.newcomer",
        "from ftuner.graph.newcomer import x",
        "from ftuner.graph import newcomer",
        "from ftuner.graph import builder, newcomer as other",
        "from ftuner.graph import (  # (of old)\n    builder,  # one)\n    newcomer,\n)",
        "from ftuner.graph import builder, \\\n    newcomer",
        "def f():\n    from ftuner.graph.newcomer import x",
        "import_module('ftuner.graph.newcomer')",
    ],
)
@pytest.mark.parametrize("of_package", [False, True], ids=["module", "package"])
def test_a_new_module_counts_from_its_first_import_on(
    package: Path, statement: str, of_package: bool
) -> None:
    before = digest(package)
    added = package / "graph" / ("newcomer/__init__.py" if of_package else "newcomer.py")
    added.parent.mkdir(exist_ok=True)
    added.write_text("x = 1\n")
    assert digest(package) == before
    with (package / "codegen" / "coefficients.py").open("a") as file:
        file.write(f"{statement}\n")
    one = digest(package)
    added.write_text("x = 2\n")
    assert len({before, one, digest(package)}) == 3


@pytest.mark.parametrize("emitter", ["newcomer", "newcomers.kernels.emitting"])
def test_emitters_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emitter: str
) -> None:
    """Their own package counts, and what they import of ftuner."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path.joinpath(*emitter.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True, parents=True)
    package, *_ = emitter.split(".")
    helper = tmp_path / "newcomers" / "helper.py"
    text = "import llvmlite.ir as ir\nfrom ftuner.cost.step import x\n"
    if package == "newcomers":
        text += "from newcomers import helper\n"
        helper.write_text("x = 1\n")
    path.write_text(text)

    def found() -> dict[str, bytes]:
        return Sources(resources.files("ftuner")).imported(emitter)

    before = found()
    assert {emitter, "ftuner.cost.step"} <= before.keys()
    assert ("newcomers.helper" in before) == (package == "newcomers")
    for file in (path, helper):
        if file.exists():
            file.write_text(file.read_text() + "# Another.\n")
            after = found()
            assert before != after
            before = after


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no source of ftuner"):
        digest(tmp_path)


def test_a_program_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are its own, and found within it."""
    monkeypatch.setattr(keys_module, "_installed", lambda: Sources(tmp_path))
    keys_module.generator_digest.cache_clear()
    bundle, target = kernel_bundle(EMITTERS[0], "f", FLOAT32), host_target(HOST_ISAS[0])
    one = bundle_key(bundle, target)
    assert bundle_key(bundle, target) == one
    keys_module.generator_digest.cache_clear()
    assert bundle_key(bundle, target) != one
    monkeypatch.undo()
    keys_module.generator_digest.cache_clear()


def test_keys_depend_on_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, target = kernel_bundle(EMITTERS[0], "f", FLOAT32), host_target(HOST_ISAS[0])
    assert target.llvm
    keys = {bundle_key(bundle, target)}
    others = [Target("x", "y", "z"), replace(target, features=f"{target.features},-sse4a")]
    for other in (*others, replace(target, llvm="0.0.1")):
        keys.add(bundle_key(bundle, other))
    for function in ("compiler_version", "generator_digest"):
        with monkeypatch.context() as patch:
            patch.setattr(f"ftuner.codegen.llvm.objects.keys.{function}", lambda *_: "other")
            keys.add(bundle_key(bundle, target))
    assert len(keys) == 6


def test_keys_depend_on_the_tuning_of_their_code() -> None:
    target, row = host_target(HOST_ISAS[0]), instruction_set(HOST_ISAS[0])
    kernel = UKernel(RegisterTile(1, 1, 1), product_types(FLOAT32), HOST_ISAS[0], 4)
    bundles: list[Callable[[CpuTuning], Bundle]] = [
        lambda t: family_bundle((kernel,), row, part_of(t, KLoopTuning), 64),
        lambda t: runtime_bundle(16, 16, part_of(t, NativeTuning)),
        lambda t: reduce_bundle(kernel, False),
    ]
    parts: list[set[str]] = [{*constants(KLoopTuning)}, {*constants(NativeTuning)}, set()]
    for bundle, part in zip(bundles, parts, strict=True):
        key = bundle_key(bundle(CpuTuning()), target)
        for name in constants(CpuTuning):
            usual = getattr(CpuTuning(), name)
            other = replace(usual, share=0.5) if isinstance(usual, Intake) else 2 * usual
            changed = replace(CpuTuning(), **{name: other})
            assert (bundle_key(bundle(changed), target) != key) == (name in part), name


def test_another_library_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(jit, "find_spec", lambda _: Installed)
    library = tmp_path / "binding" / "libllvmlite.so"
    library.parent.mkdir()
    found = {compiler_build()}
    for content in (b"one", b"another"):
        library.write_bytes(content)
        found.add(compiler_build())
    os.utime(library, ns=(1, 1))
    found.add(compiler_build())
    assert len(found) == 4
    monkeypatch.undo()
    assert "llvmlite" in compiler_build()


@pytest.mark.usefixtures("tables_put_back")
def test_functions_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row counts for the bundles that apply it, and so does the module of its emitter."""
    monkeypatch.syspath_prepend(tmp_path)
    target = host_target(HOST_ISAS[0])
    emitter = tmp_path / "cbrt_llvm.py"
    row = ScalarFunction(1, FLOATS, np.cbrt, llvm="cbrt_llvm", triton="cbrt_triton")

    def keys(text: str, row: ScalarFunction) -> tuple[str, str]:
        """The keys of a bundle that applies the function, and of one that does not."""
        emitter.write_text(text)
        functions._TABLE.pop("cbrt", None)
        functions.register("cbrt", row)
        bundles = [kernel_bundle(EMITTERS[0], "f", e) for e in (Apply("cbrt", (BIAS,)), BIAS)]
        assert [len(bundle.functions) for bundle in bundles] == [1, 0]
        one, other = (bundle_key(bundle, target) for bundle in bundles)
        return one, other

    monkeypatch.setattr(
        "ftuner.codegen.llvm.objects.keys.generator_digest",
        lambda *modules: Sources(resources.files("ftuner")).digest(*modules),
    )
    found = [keys("one", row), keys("two", row), keys("one", replace(row, cost=2))]
    assert len({one for one, _ in found}) == 3
    assert len({other for _, other in found}) == 1
    assert keys("one", row) == found[0]
