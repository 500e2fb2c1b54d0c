"""Compiles LLVM IR to object files, and asks LLVM about this machine.

llvmlite is imported on first use, because LLVM's library makes 45 MB resident: a process that finds
everything in the cache never loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftuner.core.fork_safety import wait_before_fork
from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import object_triple
from ftuner.hardware.isa import (
    LISTED_FEATURES,
    MATRIX_UNIT,
    MultiplyAdd,
    instruction_set,
    instruction_sets,
)
from ftuner.hardware.system import read_system


@dataclass(frozen=True)
class Target:
    """A compilation target: LLVM triple, CPU (scheduling model), feature string and LLVM
    version."""

    triple: str
    cpu: str
    features: str
    llvm: str = ""
    """Version of LLVM; empty in a target whose objects are not cached."""


@cache
def llvm_binding() -> Any:
    """`llvmlite.binding`, with LLVM loaded."""
    llvm = import_module("llvmlite.binding")
    # llvmlite holds one lock around LLVM and has no public access to it.
    wait_before_fork(llvm.ffi.lib._lock)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def compiler_version() -> str:
    """The version of llvmlite."""
    # The package without `binding` and `ir` is enough, and light.
    return str(import_module("llvmlite").__version__)


def compiler_build() -> str:
    """Identifies the build of llvmlite's library by name, size and modification time, because
    another build of the same version may have another LLVM. Nothing of it is loaded."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'llvmlite'")
    folder = Path(spec.origin).parent / "binding"
    found = [(file.name, file.stat()) for file in sorted(folder.glob("*llvmlite.*"))]
    return repr([(name, status.st_size, status.st_mtime_ns) for name, status in found])


def host_features() -> dict[str, bool]:
    """Features of this machine's CPU by LLVM's names, and whether code may use them.

    A feature is on if LLVM detects it and, for vector features, if the operating system lists it
    too: a hypervisor may hide features that the CPU has. On systems that list nothing LLVM decides
    alone, but for the matrix unit, which it has to permit. What each CPU of the architecture has is
    on: LLVM reads Arm's features in a file that an emulator may not have. Of Arm's multiply-adds
    the system's list decides, because LLVM does not look for them.
    """
    found = dict(llvm_binding().get_host_cpu_features())
    facts = read_system()
    listed = {name.replace("_", "") for name in facts.features}
    for name in found:
        told = name.startswith(LISTED_FEATURES) if listed else name.startswith(MATRIX_UNIT)
        if told and name.replace("-", "") not in listed:
            found[name] = False
    for row in instruction_sets(facts.architecture):
        if not row.flags:
            found |= dict.fromkeys((name[1:] for name in row.features.split(",")), True)
        if row.architecture == "aarch64":
            found |= {t.flag: t.flag in facts.features for t in row.multiply_adds if t.flag}
    return found


def _feature(row: MultiplyAdd) -> str:
    """LLVM's name of the feature that the instruction of a row needs; empty if it needs none."""
    return row.flag.replace("_", "-" if row.flag.startswith(MATRIX_UNIT) else "")


def has_instruction(row: MultiplyAdd) -> bool:
    """Whether this machine's CPU has the instruction of a multiply-add."""
    return not row.flag or host_features().get(_feature(row), False)


def host_target(isa: str) -> Target:
    """The target of this process, restricted to the features of `isa`. The scheduling model is the
    host CPU's, unless the ISA names a better one.

    Raises:
        HardwareError: `isa` names no known ISA.
    """
    llvm, row = llvm_binding(), instruction_set(isa)
    cpu = row.scheduling_model or llvm.get_host_cpu_name()
    host = host_features()
    wanted = row.features.split(",")
    missing = [f for f in wanted if not host.get(f[1:])]
    assert not missing, f"host lacks {missing} for {isa}"
    of_tiles = row.matrix.multiply_adds if row.matrix else ()
    narrow = {_feature(t) for t in (*row.multiply_adds, *of_tiles)}
    wanted += sorted(f"+{name}" for name in narrow if host.get(name))
    # The CPU's name alone switches on all features of such CPUs. Switch off those that the ISA or
    # this machine (under a hypervisor) lacks.
    off = (
        f"-{name}"
        for name, on in sorted(host.items())
        if not on or name.startswith(row.features_off)
    )
    version = ".".join(map(str, llvm.llvm_version_info))
    return Target(object_triple(llvm.get_process_triple()), cpu, ",".join((*wanted, *off)), version)


@lru_cache(maxsize=16)
def _machine(target: Target) -> Any:
    llvm = llvm_binding()
    if target.triple != object_triple(llvm.get_process_triple()):
        # All targets take 10 MB, which only code for another architecture needs.
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def _optimised(module: Any, target: Target, inlines: bool) -> Any:
    llvm = llvm_binding()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    # Kernels are already vectorised and unrolled.
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(_machine(target), options)
    if inlines:
        passes = builder.getModulePassManager()
    else:
        # Only these passes of the pipeline change a kernel; they take a tenth of its time.
        passes = llvm.create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    passes.run(parsed, builder)
    return parsed


def compile_object(module: Any, target: Target, inlines: bool = False) -> bytes:
    """Optimise an IR module (an `llvmlite.ir.Module` or IR text) and return the object file.
    `inlines`: use the whole pipeline, for functions that call each other; otherwise only those are
    inlined that ask for it."""
    return bytes(_machine(target).emit_object(_optimised(module, target, inlines)))


def compile_assembly(module: Any, target: Target, inlines: bool = False) -> str:
    """The assembly of a module, to inspect what the compiler made of a kernel."""
    return str(_machine(target).emit_assembly(_optimised(module, target, inlines)))


class Engine:
    """Objects loaded by LLVM's own loader, where ftuner's cannot place code. Symbols are valid as
    long as this value exists."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        llvm = llvm_binding()
        # MCJIT takes ownership of its target machine and its module: both are made for it.
        triple = object_triple(llvm.get_process_triple())
        machine = llvm.Target.from_triple(triple).create_target_machine(opt=0, jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        for data in objects:
            self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """The address of a symbol; 0 if no object defines it."""
        return int(self._engine.get_function_address(symbol))
