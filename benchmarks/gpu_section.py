"""The process of one section of `benchmarks.gpu`, which starts it; see `gpu_journal`."""

import importlib
import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu_journal import Fault, Journal
from ftuner.core.operating_system import end_with_parent

SECTIONS = {
    "tuning": "benchmarks.gpu_tuning",
    "correct": "benchmarks.gpu_correct",
    "calibration": "benchmarks.gpu_calibration",
    "regret": "benchmarks.gpu_regret",
    "gemm": "benchmarks.gpu_products",
    "bmm": "benchmarks.gpu_products",
    "attention": "benchmarks.gpu_attention",
    "compiled": "benchmarks.gpu_products",
    "models": "benchmarks.gpu_models",
    "convolutions": "benchmarks.gpu_convolutions",
    "networks": "benchmarks.gpu_networks",
    "recurrent": "benchmarks.gpu_recurrent",
}
"""The module that has the section as a function of its name."""
UNCALIBRATED = ("tuning", "correct", "calibration")
"""Sections that begin with the constants of a device that was never tuned."""
DRY_HARDWARE = "h200"
AGAIN = 75
"""Exit status: the device does not get over an error, and another process may go on."""


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


def device_bench(is_calibrated: bool) -> tuple[Any, dict[str, float]]:
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
    if is_calibrated:
        backend = backend.calibrated("default")
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


def monitor_of(bench: Any) -> Any:
    """Samples of the device's state."""
    import torch

    from benchmarks.gpu_monitor import Monitor

    if bench.dry:
        return None
    return Monitor(f"GPU-{torch.cuda.get_device_properties(bench.device).uuid}")


def measure(bench: Any, journal: Journal, attempts: Iterator[Any], most: int) -> None:
    """Run cases one after the other, until the section's time is over. A case that raises is lost;
    one that the device does not get over ends the process, with the exit status `AGAIN`."""
    from benchmarks.gpu_plans import calls, new_plans

    document, monitor = journal.document, monitor_of(bench)
    document["left"] = 0
    try:
        for label, work, needs_s, is_extra in attempts:
            if journal.known(label):
                continue
            if bench.left_s <= needs_s or len(document["cases"]) >= most:
                document["left"] += not is_extra
                continue
            kernels, before, began = bench.kernels, calls(bench), time.perf_counter()
            try:
                journal.begin(label)
                result = work()
                bench.synchronize()
            except Exception as error:
                traceback.print_exc()
                journal.lose(label, f"{type(error).__name__}: {error}")
                try:
                    bench.synchronize()
                except Exception:
                    sys.exit(AGAIN)
                continue
            result |= {"compiled": bench.kernels - kernels, "took_s": time.perf_counter() - began}
            if plans := new_plans(bench, before):
                result["plans"] = plans
            if monitor and (state := monitor.since(began)):
                result["device"] = state
            journal.add(label, result)
    finally:
        if monitor is not None:
            monitor.close()


def main(
    path: Annotated[Path | None, typer.Argument(help="The section's document.")] = None,
    until: Annotated[float, typer.Option(help="By the clock of time.monotonic.")] = 0.0,
    most: Annotated[int, typer.Option(help="Most cases.")] = sys.maxsize,
    fault: Annotated[str, typer.Option(help="As in `gpu_journal.Fault`.")] = "",
    dry: Annotated[bool, typer.Option("--dry")] = False,
) -> None:
    """Measure a section; without a document, print what the machine is."""
    end_with_parent()
    if dry:
        # Read by Triton when it is imported, as every module is that comes later.
        os.environ["TRITON_INTERPRET"] = "1"
    if path is None:
        print(json.dumps(machine_of_interpreter() if dry else machine_of_device()))
        return
    journal = Journal(path, Fault.read(fault) if fault else None)
    document = journal.document
    name = document["set"]
    bench, made = dry_bench() if dry else device_bench(name not in UNCALIBRATED)
    document |= made
    bench.deadline, bench.journal = until, journal
    measure(bench, journal, getattr(importlib.import_module(SECTIONS[name]), name)(bench), most)
    document["complete"] = not document["left"] and not document["lost"]
    journal.save()


if __name__ == "__main__":
    typer.run(main)
