"""From LLVM IR to machine code: compile a module to an object; and what LLVM knows of this machine.

llvmlite is imported on first use. LLVM's library makes 45 MB resident: a process that finds all it
needs in the cache never loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ftuner.core.forks import import_undivided, undivided, wait_before_fork
from ftuner.hardware.system import read_system

ISA_FEATURES: Mapping[str, str] = {
    "sse2": "+sse2",
    "avx2": "+avx,+avx2,+fma,+bmi,+bmi2",
    "avx512": "+avx,+avx2,+fma,+bmi,+bmi2,+avx512f,+avx512vl,+avx512bw,+avx512dq",
    "neon": "+neon",
}
"""LLVM feature strings by ISA name."""
SCHEDULING_MODELS: Mapping[str, str] = {"neon": "generic"}
"""ISAs that are not scheduled for the host CPU. With LLVM 22's model of Neoverse N1, elements of A
are loaded so early that the k loop of a 5x20 tile moves and spills accumulators; the generic one
keeps every tile in registers."""
_LISTED = ("avx", "f16c", "fma", "gfni", "vaes", "vpclmul", "xop")
"""Beginnings of the names of x86 vector features, which LLVM and Linux spell alike but for `_`."""


@dataclass(frozen=True)
class Target:
    """What code is generated for: an LLVM triple, CPU (scheduling model) and feature string; and
    by which LLVM."""

    triple: str
    cpu: str
    features: str
    llvm: str = ""
    """The version; empty in a target whose objects are not kept."""


@cache
def _binding() -> Any:
    llvm = import_undivided("llvmlite.binding")
    # llvmlite holds one lock around LLVM, and has no function that gives it.
    wait_before_fork(llvm.ffi.lib._lock)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def compiler_version() -> str:
    """The version of llvmlite."""
    # The package alone, without `binding` or `ir`: it knows its version, and costs nothing.
    return str(import_undivided("llvmlite").__version__)


def compiler_build() -> str:
    """What distinguishes llvmlite's library from another build of the same version, which may have
    another LLVM in it: its name, size and time of change. The library is not loaded."""
    folder = Path(import_undivided("llvmlite").__file__).parent / "binding"
    found = [(file.name, file.stat()) for file in sorted(folder.glob("*llvmlite.*"))]
    return repr([(name, status.st_size, status.st_mtime_ns) for name, status in found])


def host_features() -> dict[str, bool]:
    """Features of this machine's CPU by LLVM's names, and whether code may use them: LLVM finds
    them, and the operating system lists them. A hypervisor may hide a feature from both, and a
    system may leave out what the CPU reports. Vector features that the system does not list are
    off; other features, and systems that list nothing, are left to LLVM."""
    found = dict(_binding().get_host_cpu_features())
    listed = {name.replace("_", "") for name in read_system().features}
    if listed:
        for name in found:
            if name.startswith(_LISTED) and name not in listed:
                found[name] = False
    return found


def host_target(isa: str) -> Target:
    """The target that runs in this process, restricted to the features of `isa`; the scheduling
    model is the host CPU's own, unless `SCHEDULING_MODELS` knows a better one."""
    llvm = _binding()
    cpu = SCHEDULING_MODELS.get(isa) or llvm.get_host_cpu_name()
    host = host_features()
    wanted = ISA_FEATURES[isa].split(",")
    missing = [f for f in wanted if not host.get(f[1:])]
    assert not missing, f"host lacks {missing} for {isa}"
    # The name of a CPU alone switches on all that such CPUs have: switch off what the ISA does not
    # have, and what this machine lacks, as where a hypervisor hides it.
    off = (f"-{name}" for name, on in sorted(host.items()) if not on or _is_wider(name, isa))
    version = ".".join(map(str, llvm.llvm_version_info))
    return Target(llvm.get_process_triple(), cpu, ",".join((*wanted, *off)), version)


def _is_wider(feature: str, isa: str) -> bool:
    if isa == "sse2":
        return feature.startswith(("avx", "fma", "f16c", "xop", "vaes", "vpclmul"))
    if isa == "avx2":
        return feature.startswith(("avx512", "avx10", "evex512"))
    return False


@lru_cache(maxsize=16)
def _machine(target: Target) -> Any:
    llvm = _binding()
    if target.triple != llvm.get_process_triple():
        # All targets take ten megabytes, which only code for another machine needs.
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def _optimised(module: Any, target: Target, inlines: bool) -> Any:
    llvm = _binding()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    # Kernels arrive vectorised and unrolled as the plan wants them.
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(_machine(target), options)
    if inlines:
        passes = builder.getModulePassManager()
    else:
        # Of the whole pipeline, these are what changes a kernel: a tenth of the time.
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    passes.run(parsed, builder)
    return parsed


def compile_object(module: Any, target: Target, inlines: bool = False) -> bytes:
    """Optimise an IR module (an `llvmlite.ir.Module` or IR text) and return the object file;
    `inlines`: with the whole pipeline, for functions that call each other."""
    return bytes(_machine(target).emit_object(_optimised(module, target, inlines)))


def compile_assembly(module: Any, target: Target, inlines: bool = False) -> str:
    """The assembly of a module, for reading what the compiler made of a kernel."""
    return str(_machine(target).emit_assembly(_optimised(module, target, inlines)))


class Engine:
    """Objects in this process, placed by LLVM's own loader: of the formats that ours does not
    know. Symbols have addresses for as long as this value lives."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        llvm = _binding()
        with undivided:
            # MCJIT takes ownership of its target machine and its module: both are made for it.
            machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
                opt=0, jit=True
            )
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            for data in objects:
                self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(data))
            self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """The address of a symbol; 0 if no object defines it."""
        return int(self._engine.get_function_address(symbol))
