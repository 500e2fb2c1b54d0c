"""The check of NVIDIA GPUs in `ftuner doctor`. torch is imported only where a driver is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ftuner.cli.findings import PROBLEM, RIGHT, WARNING, Finding
from ftuner.core.units import capacity
from ftuner.errors import FTunerError
from ftuner.hardware.system import read_text

DRIVER = Path("proc/driver/nvidia/version")
PCI = Path("sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAYS = "0x03"
"""What the PCI class of display controllers, GPUs without a display among them, begins with."""
PACKAGES = ("torch", "triton")
PART = "GPU"


def check_gpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Whether there is an NVIDIA GPU, its driver, the packages, and what kernels can run on."""
    driver = read_text(root / DRIVER)
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
        read_text(folder / "vendor") == NVIDIA
        and (read_text(folder / "class") or "").startswith(DISPLAYS)
        for folder in folders
    )
