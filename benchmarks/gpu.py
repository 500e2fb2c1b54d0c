"""`python -m benchmarks.gpu`: measure ftuner on this machine's GPU, and save the results as JSON.

Sections run one after the other, the most telling first, each within its share of the time; what a
section leaves over goes to those that follow. Results are written while they come in, so that a run
that is cut off keeps them, and `--resume` goes on from there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

if importlib.util.find_spec("typer") is None:
    sys.exit("benchmarks.gpu needs the package typer, which is not installed")
import typer

from benchmarks.results import SCHEMA

RESULTS = Path(__file__).parent / "results"
NEEDED = ("numpy", "torch", "triton", "llvmlite", "platformdirs", "filelock", "rich")
"""Packages that are imported on the way; ONNX models need `onnx`, too."""
VERSIONS = ("ftuner", "numpy", "torch", "triton", "onnx")
SECTIONS: dict[str, tuple[str, str, float]] = {
    "tuning": ("benchmarks.gpu_tuning", "tuning", 45.0),
    "correct": ("benchmarks.gpu_correct", "correct", 80.0),
    "gemm": ("benchmarks.gpu_products", "gemm", 150.0),
    "regret": ("benchmarks.gpu_regret", "regret", 60.0),
    "calibration": ("benchmarks.gpu_calibration", "calibration", 60.0),
    "bmm": ("benchmarks.gpu_products", "bmm", 90.0),
    "attention": ("benchmarks.gpu_attention", "attention", 60.0),
    "models": ("benchmarks.gpu_models", "models", 240.0),
    "convolutions": ("benchmarks.gpu_convolutions", "convolutions", 90.0),
    "networks": ("benchmarks.gpu_networks", "networks", 150.0),
    "recurrent": ("benchmarks.gpu_recurrent", "recurrent", 90.0),
    "compiled": ("benchmarks.gpu_products", "compiled", 90.0),
}
"""Module, function and share of the time, in the order of a run. Compiling from an empty cache
comes first: what follows runs what it compiled."""
DRY_HARDWARE = "h200"
DRY_SECONDS = 600.0
NO_GPU = 2
"""Exit status where there is nothing to measure."""


def fail(message: str) -> None:
    """Say why nothing can be measured, and exit."""
    print(message, file=sys.stderr)
    raise typer.Exit(NO_GPU)


def check_packages() -> None:
    """Exit with the names of the packages that are missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"benchmarks.gpu needs packages that are not installed: {', '.join(missing)}")


def versions() -> dict[str, str]:
    """Of Python and the packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine_of_device() -> dict[str, Any]:
    """The chip, its driver and its memory."""
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "cpu_model": found.name,
        "architecture": f"sm_{found.major}{found.minor}",
        "system": platform.system(),
        "cores": found.multi_processor_count,
        "cache_bytes": {"L2": found.L2_cache_size},
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "dram_bytes": found.total_memory,
    }


def driver_version() -> str:
    """As the kernel module or the driver's own tool tells it."""
    tool = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        try:
            text = subprocess.run(tool, capture_output=True, text=True, check=False).stdout
        except OSError:
            return "unknown"
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return found.group() if found else "unknown"


def machine_of_interpreter() -> dict[str, Any]:
    """The same of a dry run, of which nothing was measured."""
    return {
        "cpu_model": "Triton's interpreter",
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": 0,
        "cache_bytes": {"L2": 0},
        "driver": "none",
        "cuda": "none",
        "dram_bytes": 0,
    }


def device_bench() -> tuple[Any, dict[str, float]]:
    """The bench of the current device, and how long its back end took to make."""
    import torch

    from benchmarks.gpu_bench import Bench
    from benchmarks.gpu_timing import DeviceMeter
    from ftuner.runtime.gpu.backend import backend_on

    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    backend = backend_on(device)
    probe_s = time.perf_counter() - began
    return Bench(backend, DeviceMeter(device), dry=False), {"probe_s": probe_s}


def dry_bench() -> tuple[Any, dict[str, float]]:
    """A bench whose kernels are interpreted, on a recorded machine's model."""
    import torch

    from benchmarks.gpu_bench import Bench
    from benchmarks.gpu_timing import HostMeter, Settings
    from ftuner.hardware.recorded import load_recorded
    from ftuner.runtime.gpu.backend import GpuBackend

    began = time.perf_counter()
    backend = GpuBackend(torch.device("cpu"), load_recorded(DRY_HARDWARE), None)
    settings = Settings(burst_s=0.0, burst_calls=1, rounds=1)
    seconds = time.perf_counter() - began
    return Bench(backend, HostMeter(), dry=True, settings=settings), {"probe_s": seconds}


def run_section(name: str, bench: Any, head: dict[str, Any], path: Path, resume: bool) -> bool:
    """Run a section and save its document; whether it went to its end."""
    from benchmarks.gpu_bench import Section

    section = Section(path, {**head, "set": name}, resume)
    document = section.document
    if document["complete"]:
        print(f"{name}: measured before")
        return True
    module, function, _ = SECTIONS[name]
    began = time.monotonic()
    document.pop("error", None)
    try:
        run: Callable[[Any, Section], None] = getattr(importlib.import_module(module), function)
        run(bench, section)
        document["complete"] = not document.get("left", 0)
    except Exception as error:  # What fails is a result of this section alone.
        document["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    document["took_s"] = document.get("took_s", 0.0) + time.monotonic() - began
    section.save()
    state = document.get("error") or f"{document.get('left', 0)} cases left"
    print(f"{name}: {len(document['cases'])} cases in {document['took_s']:.1f} s, {state}")
    return "error" not in document


def main(
    minutes: Annotated[float, typer.Option(help="Wall-clock time of all sections.")] = 9.0,
    only: Annotated[str, typer.Option(help=f"Of {', '.join(SECTIONS)}.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what was measured.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry", help="Tiny shapes in Triton's interpreter, on the CPU.")
    ] = False,
) -> None:
    """Measure this machine's GPU."""
    names = [name for name in only.split(",") if name] or list(SECTIONS)
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise typer.BadParameter(f"unknown sections {unknown}; some of {', '.join(SECTIONS)}")
    check_packages()
    began = time.monotonic()
    if dry:
        # Read by Triton when it is imported, as every module is that comes later.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not dry and not torch.cuda.is_available():
        fail("benchmarks.gpu measures a CUDA device, and PyTorch finds none; --dry needs none")
    # PyTorch's compiling processes may write to the end.
    with tempfile.TemporaryDirectory(prefix="ftuner-gpu-", ignore_cleanup_errors=True) as scratch:
        # Empty caches, so that tuning starts from nothing, and PyTorch's compiler does.
        for variable in ("TRITON_CACHE_DIR", "FTUNER_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ[variable] = str(Path(scratch) / variable.lower())
        from benchmarks.gpu_bench import DRY_KIND, KIND

        bench, made = dry_bench() if dry else device_bench()
        machine = machine_of_interpreter() if dry else machine_of_device()
        slug = re.sub(r"[^a-z0-9]+", "-", machine["cpu_model"].lower()).strip("-")
        folder = out or (Path(tempfile.mkdtemp(prefix="dry-")) if dry else RESULTS / slug)
        head = {
            "schema": SCHEMA,
            "kind": DRY_KIND if dry else KIND,
            "threads": 1,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": machine,
            "versions": versions(),
            **made,
        }
        print(f"{machine['cpu_model']}: results go to {folder}")
        end = began + (DRY_SECONDS if dry else 60.0 * minutes)
        ordered = [name for name in SECTIONS if name in names]
        right = True
        for number, name in enumerate(ordered):
            shares = [SECTIONS[other][2] for other in ordered[number:]]
            now = time.monotonic()
            bench.deadline = now + max(end - now, 0.0) * shares[0] / sum(shares)
            path = folder / f"{head['kind']}-{name}.json"
            right = run_section(name, bench, head, path, resume) and right
        print(f"tables: python -m benchmarks.report_gpu {folder}")
    if not right:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
