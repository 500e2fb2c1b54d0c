"""Devices by name: `cpu`, or a GPU as torch names it, such as `cuda` or `cuda:1`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ftuner.errors import ConfigurationError
from ftuner.hardware.model import CpuHardware, GpuHardware
from ftuner.runtime.backend import Backend
from ftuner.runtime.cache import default_cache
from ftuner.runtime.session import default_session, known_hardware

CPU = "cpu"
"""The device that is always there."""


def backend_of(device: str) -> Backend:
    """The back end of a device.

    Raises:
        ConfigurationError: no such device, or its extra is not installed.
        HardwareError: a GPU that kernels cannot run on.
    """
    if device == CPU:
        return default_session().backend
    gpu = _gpu_sessions()
    found: Backend = gpu.session_of(gpu.device_named(device))
    return found


def hardware_on(device: str, again: bool = False) -> CpuHardware | GpuHardware:
    """The hardware model of a device; `again` probes it even if the cache has it.

    Raises:
        ConfigurationError, HardwareError: as of `backend_of`.
    """
    if device == CPU:
        return known_hardware(default_cache(), again)
    gpu = _gpu_sessions()
    found: GpuHardware = gpu.known_gpu(gpu.device_named(device), default_cache(), again)
    return found


def _gpu_sessions() -> Any:
    try:
        # Imported by name: it needs torch and triton.
        return import_module("ftuner.runtime.gpu.session")
    except ImportError as error:
        raise ConfigurationError(f"{error}; install the extra: pip install 'ftuner[gpu]'") from None
