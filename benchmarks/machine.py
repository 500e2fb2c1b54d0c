"""What the results say about where they were taken: processor, caches, package versions."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

PACKAGES = (
    "ftuner", "numpy", "llvmlite", "torch", "onnxruntime", "openvino", "MNN", "onnx", "apache-tvm",
    "transformers", "onnxscript",
)  # fmt: skip

ASSUMED_L2_BYTES = 1 << 20
"""Assumed where the system does not tell: no current server core has much less than this."""

_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Machine:
    """The processor as the operating system describes it."""

    cpu_model: str
    architecture: str
    system: str
    cores: int
    """Cores that this process may use."""
    cache_bytes: dict[str, int]
    """Capacity of one instance of each data or unified cache, by name (`L1`, `L2`, ...)."""

    @property
    def name(self) -> str:
        """A short name, of which results' folder is called."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.cpu_model.lower()).strip("-")
        return f"{slug}-{self.cores}"

    @property
    def l2_bytes(self) -> int:
        return self.cache_bytes.get("L2", ASSUMED_L2_BYTES)

    def level_holding(self, size_bytes: int) -> str:
        """Name of the first level as large as `size_bytes`."""
        for name, capacity_bytes in sorted(self.cache_bytes.items()):
            if size_bytes <= capacity_bytes:
                return name
        return "DRAM"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def _cpu_model() -> str:
    """The name of the processor; with its family and model where virtual machines of several
    generations have the same name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "model" not in fields or any(c.isdigit() for c in name):
        return name
    return f"{name} (family {fields['cpu family']}, model {fields['model']})"


def _cache_bytes() -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            sizes[f"L{level}"] = int(size[:-1]) * _SUFFIXES[size[-1]]
    return sizes


def describe() -> Machine:
    """The machine that this process runs on."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return Machine(_cpu_model(), platform.machine(), platform.system(), cores, _cache_bytes())


def now() -> str:
    """The time as results have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of the packages that are installed among some."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
