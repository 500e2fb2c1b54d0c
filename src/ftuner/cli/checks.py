"""The checks of `ftuner doctor`. They read what is known, and tune, compile and probe nothing."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ftuner
from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import own_affinity
from ftuner.core.units import capacity, count
from ftuner.errors import CacheWarning, ConfigurationError, FTunerError
from ftuner.hardware import system
from ftuner.hardware.isa import instruction_sets
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cache import (
    CACHE_VARIABLE,
    MAX_BYTES_VARIABLE,
    MAX_DOCUMENT_BYTES,
    default_cache,
)
from ftuner.runtime.cpu.session import ISA_VARIABLE, remembered_hardware
from ftuner.runtime.cpu.threads import THREADS_VARIABLE, usable_threads
from ftuner.runtime.known_hardware import KeptCalibration

RIGHT, WARNING, PROBLEM = "right", "warning", "problem"
NEEDED = ("numpy", "llvmlite")
OPTIONAL = {
    "onnx": "needed for models from files: pip install 'ftuner[onnx]'",
    "torch": "needed for GPUs: pip install 'ftuner[gpu]'",
    "triton": "needed for GPUs: pip install 'ftuner[gpu]'",
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What libraries beside ftuner heed; ftuner has a variable of its own."""
NEARLY_FULL = 0.9
"""Part of the cache's limit from which on entries will be removed soon."""
UNSURE = 0.5
"""A confidence below this is low: another calibration may differ by 20%."""
LEAST_MEMORY_BYTES = 1 << 30
"""Below this, compiling and packing weights of usual models may not fit."""
HUGE_PAGES = Path("sys/kernel/mm/transparent_hugepage/enabled")
TUNE = "ftuner tune"
DRIVER = Path("proc/driver/nvidia/version")
PCI = Path("sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAYS = "0x03"
"""What the PCI class of display controllers, GPUs without a display among them, begins with."""
PACKAGES = ("torch", "triton")
PART = "GPU"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    part: str
    """The subject: `versions`, `cache`, `hardware`..."""
    state: str
    """`right`; `warning`: ftuner works, but slower than it could or without a part; `problem`:
    ftuner, or what the user asked for, does not work."""
    text: str
    todo: str = ""
    """The remedy; empty if there is nothing to do."""


def checked() -> list[Finding]:
    """All findings, part by part."""
    found: list[Finding] = []
    facts = system.read_system()
    for part, check in _CHECKS.items():
        try:
            found += check(facts)
        except FTunerError as error:
            found.append(Finding(part, PROBLEM, f"{type(error).__name__}: {error}"))
    return found


def check_versions(facts: system.SystemFacts) -> Iterator[Finding]:
    """ftuner, Python, and the packages that it needs or can use."""
    yield Finding("versions", RIGHT, f"ftuner {ftuner.__version__}, "
                  f"Python {platform.python_version()} on {platform.system()}")  # fmt: skip
    for name in NEEDED:
        found = installed(name)
        if found is None:
            yield Finding("versions", PROBLEM, f"{name} is not installed", f"pip install {name}")
        elif name == "llvmlite":
            yield _llvm(found)
        else:
            yield Finding("versions", RIGHT, f"{name} {found}")
    for name, use in OPTIONAL.items():
        found = installed(name)
        text = f"{name} {found}" if found else f"{name}: not installed; {use}"
        yield Finding("versions", RIGHT, text)


def _llvm(found: str) -> Finding:
    try:
        # Importing it finds a library that does not load.
        from llvmlite.binding import llvm_version_info
    except (ImportError, OSError) as error:
        return Finding("versions", PROBLEM, f"llvmlite {found} does not load: {error}",
                       "pip install --force-reinstall llvmlite")  # fmt: skip
    llvm = ".".join(map(str, llvm_version_info))
    return Finding("versions", RIGHT, f"llvmlite {found} with LLVM {llvm}")


def check_cache(facts: system.SystemFacts) -> Iterator[Finding]:
    """The folder: there, writeable, private; its size against the limit."""
    cache = default_cache()
    state = cache.state()
    if state.problem is not None:
        yield Finding("cache", PROBLEM, state.problem, f"or choose another by {CACHE_VARIABLE}")
        return
    if not state.writeable:
        yield Finding("cache", WARNING, f"{cache.folder} cannot be written: each process probes "
                      "and compiles anew",
                      f"choose another folder by {CACHE_VARIABLE}")  # fmt: skip
    elif state.exists:
        yield Finding("cache", RIGHT, f"{cache.folder}: writeable and private")
    else:
        yield Finding("cache", RIGHT, f"{cache.folder}: made when it is first used")
    size, limit = sum(entry.bytes for entry in cache.entries()), cache.max_bytes
    text = f"{capacity(size)} of at most {capacity(limit)}"
    if limit < MAX_DOCUMENT_BYTES:
        yield Finding("cache", WARNING, f"at most {capacity(limit)}, too little to keep anything",
                      f"raise {MAX_BYTES_VARIABLE}")  # fmt: skip
    elif size > NEARLY_FULL * limit:
        yield Finding("cache", WARNING, f"{text}: the least recently used go soon",
                      f"ftuner cache --prune, or raise {MAX_BYTES_VARIABLE}")  # fmt: skip
    else:
        yield Finding("cache", RIGHT, text)


def check_hardware(facts: system.SystemFacts) -> Iterator[Finding]:
    """The CPU, its ISAs, and its model and calibration in the cache."""
    promised = system.promised_isas(facts)
    yield Finding("hardware", RIGHT, f"{facts.model_name} ({facts.architecture}), "
                  f"{count(facts.cores, 'usable core')}")  # fmt: skip
    asked = os.environ.get(ISA_VARIABLE) or None
    yield _isa(promised, asked)
    known = [row.name for row in instruction_sets(facts.architecture)]
    if not facts.features:
        yield Finding("hardware", WARNING, "the system hides what the CPU can do; the probe tries "
                      f"{', '.join(known)}")  # fmt: skip
    found = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CacheWarning)
        if asked is None or asked in promised:
            found = remembered_hardware(default_cache(), asked)
    for warning in caught:
        yield Finding("hardware", WARNING, str(warning.message))
    if found is None:
        yield Finding("hardware", WARNING, "no hardware model in the cache: not tuned yet",
                      f"run {TUNE}; the first call does the same, and takes seconds")  # fmt: skip
        return
    yield Finding("hardware", RIGHT, f"hardware model in the cache; {found[0].widest.name} is the "
                  "widest that the probe has run")  # fmt: skip
    yield from _calibration(*found)


def _isa(promised: tuple[str, ...], asked: str | None) -> Finding:
    available = ", ".join(promised)
    if asked is None:
        return Finding("hardware", RIGHT, f"{promised[-1]} is used, the widest of {available}")
    if asked not in promised:
        return Finding("hardware", PROBLEM, f"{ISA_VARIABLE} is {asked!r}; this machine has "
                       f"{available}", f"unset {ISA_VARIABLE}, or choose one of these")  # fmt: skip
    if asked != promised[-1]:
        return Finding("hardware", WARNING, f"{asked} is used, as {ISA_VARIABLE} says; the widest "
                       f"is {promised[-1]}", f"unset {ISA_VARIABLE} for full speed")  # fmt: skip
    return Finding("hardware", RIGHT, f"{asked} is used, as {ISA_VARIABLE} says")


def _calibration(hardware: CpuHardware, known: KeptCalibration | None) -> Iterator[Finding]:
    tuning = hardware.tuning
    if not tuning.is_calibrated:
        yield Finding("calibration", WARNING, "constants are of the nearest known machine, not "
                      "measured here", f"run {TUNE}")  # fmt: skip
        return
    sure = [c for name, c in tuning.confidence.items() if tuning.provenance.get(name) == "fitted"]
    text = f"{count(len(sure), 'constant')} measured here"
    if known is not None:
        days = int(max(time.time() - known.at_s, 0.0) // 86400)
        text += f" {count(days, 'day')} ago" if days else " today"
    unsure = sum(c < UNSURE for c in sure)
    if sure:
        text += f", confidence {min(sure):.2f} to {max(sure):.2f}"
    if known is not None and known.noisy:
        yield Finding("calibration", WARNING, f"{text}, beside other load ({known.slow_share:.0%} "
                      "of the time)", f"run {TUNE} --thorough when it is quiet")  # fmt: skip
    elif unsure > len(sure) / 2:
        yield Finding("calibration", WARNING, f"{text}; {unsure} below {UNSURE}",
                      f"run {TUNE} --thorough when the machine is quiet")  # fmt: skip
    else:
        yield Finding("calibration", RIGHT, text)


def check_threads(facts: system.SystemFacts) -> Iterator[Finding]:
    """Threads against usable cores, affinity and quota."""
    affinity, cpus = len(own_affinity()), os.cpu_count() or 1
    try:
        threads = usable_threads(facts.cores)
    except ConfigurationError as error:
        yield Finding("threads", PROBLEM, str(error), f"unset {THREADS_VARIABLE}")
        return
    asked = os.environ.get(THREADS_VARIABLE, "").strip()
    reason = f", as {THREADS_VARIABLE} says" if asked else ""
    text = f"{count(threads, 'thread')}{reason}; {count(facts.cores, 'usable core')}"
    if threads > facts.cores:
        yield Finding("threads", WARNING, f"{text}: they wait for each other",
                      f"set {THREADS_VARIABLE} to {facts.cores} or less, or unset it")  # fmt: skip
    else:
        yield Finding("threads", RIGHT, text)
    if affinity < cpus:
        yield Finding("threads", RIGHT, f"affinity: {affinity} of {cpus} CPUs (taskset, cpuset)")
    others = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if os.environ.get(name)]
    if others:
        yield Finding("threads", RIGHT, f"{', '.join(others)}: of other libraries; ftuner heeds "
                      f"{THREADS_VARIABLE} alone")  # fmt: skip


def check_limits(facts: system.SystemFacts, root: Path = Path("/")) -> Iterator[Finding]:
    """Control groups, and huge pages."""
    quota, limit = system.cpu_quota(root), system.memory_limit(root)
    threads = _threads_or(facts.cores)
    if quota is None:
        yield Finding("limits", RIGHT, "no CPU quota")
    elif threads > quota:
        yield Finding("limits", WARNING, f"CPU quota of {quota:g}, and {count(threads, 'thread')}: "
                      "the system stops all of them once it is used up",
                      f"set {THREADS_VARIABLE} to {max(int(quota), 1)}" if quota >= 1
                      else "grant one CPU at least")  # fmt: skip
    else:
        yield Finding("limits", RIGHT, f"CPU quota of {quota:g}")
    if limit is None:
        yield Finding("limits", RIGHT, "no memory limit of a control group")
    elif limit < LEAST_MEMORY_BYTES:
        yield Finding("limits", WARNING, f"memory limit of {capacity(limit)}: larger models may be "
                      "killed", "raise it to the size of the weights and 1 GiB")  # fmt: skip
    else:
        yield Finding("limits", RIGHT, f"memory limit of {capacity(limit)}")
    pages = system.read_text(root / HUGE_PAGES)
    if pages is None:
        yield Finding("limits", RIGHT, "transparent huge pages: the system does not say")
    elif "[never]" in pages:
        yield Finding("limits", WARNING, "transparent huge pages are off: large weights read "
                      "slower", f"echo madvise | sudo tee /{HUGE_PAGES}")  # fmt: skip
    else:
        chosen = pages.partition("[")[2].partition("]")[0]
        yield Finding("limits", RIGHT, f"transparent huge pages: {chosen}")


def _threads_or(cores: int) -> int:
    try:
        return usable_threads(cores)
    except ConfigurationError:  # Said under `threads`.
        return cores


def installed(name: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_gpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Whether there is an NVIDIA GPU, its driver, the packages, and what kernels can run on."""
    driver = system.read_text(root / DRIVER)
    if driver is None:
        if _on_the_bus(root):
            yield Finding(PART, WARNING, "an NVIDIA GPU without a driver: the CPU alone is used",
                          "install NVIDIA's driver, or pass the device to the container"
                          )  # fmt: skip
        else:
            yield Finding(PART, RIGHT, "no NVIDIA GPU; nothing but --device cuda needs one")
        return
    yield Finding(PART, RIGHT, _driver_text(driver))
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        yield Finding(PART, WARNING, f"not used: {' and '.join(missing)} not installed",
                      "pip install 'ftuner[gpu]'")  # fmt: skip
        return
    yield from devices()


def devices() -> Iterator[Finding]:
    """A finding for each device that torch has, by the checks of the back end of GPUs."""
    try:
        torch: Any = import_module("torch")
        probe: Any = import_module("ftuner.runtime.gpu.probe")
        session: Any = import_module("ftuner.runtime.gpu.session")
    except (ImportError, OSError) as error:
        yield Finding(PART, PROBLEM, f"torch or triton does not load: {error}",
                      "pip install --force-reinstall torch triton")  # fmt: skip
        return
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch {torch.__version__} " + (
            f"is built for CUDA {built}, and finds no device" if built else "is built without CUDA"
        )
        yield Finding(PART, WARNING, f"not usable: {why}",
                      "install a torch for this driver: https://pytorch.org")  # fmt: skip
        return
    for index in range(torch.cuda.device_count()):
        device, name = torch.device("cuda", index), f"cuda:{index}"
        try:
            facts = probe.read_device(device)
            memory = capacity(facts.dram_bytes)
            name += f": {facts.name}, {facts.architecture}, {memory}"
            session.expect_runnable(device)
            probe.nearest_recorded(facts)
        # torch raises the other ones for a device that its driver does not give.
        except (FTunerError, RuntimeError, AssertionError) as error:
            yield Finding(PART, WARNING, f"{name}: not usable: {error}",
                          "hide it with CUDA_VISIBLE_DEVICES, or use the CPU")  # fmt: skip
        else:
            yield Finding(PART, RIGHT, f"{name}: usable")


def _driver_text(text: str) -> str:
    """`NVIDIA driver 550.54` from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54 ...`."""
    words = text.splitlines()[0].split()
    numbers = [word for word in words if word[0].isdigit() and "." in word]
    return f"NVIDIA driver {numbers[0] if numbers else 'of an unknown version'}"


def _on_the_bus(root: Path) -> bool:
    """Whether a GPU of NVIDIA is among the PCI devices."""
    try:
        folders = list((root / PCI).iterdir())
    except OSError:
        return False
    return any(
        system.read_text(folder / "vendor") == NVIDIA
        and (system.read_text(folder / "class") or "").startswith(DISPLAYS)
        for folder in folders
    )


_CHECKS: dict[str, Callable[[system.SystemFacts], Iterator[Finding]]] = {
    "versions": check_versions,
    "cache": check_cache,
    "hardware": check_hardware,
    "threads": check_threads,
    "limits": check_limits,
    "GPU": lambda facts: check_gpu(),
}
"""The check of each part, in the order in which they are shown."""
