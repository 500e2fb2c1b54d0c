"""Devices by name: `cpu`, or a GPU as torch names it, such as `cuda` or `cuda:1`."""

from __future__ import annotations

from ftuner.errors import ConfigurationError
from ftuner.hardware.model import CpuHardware, GpuHardware
from ftuner.runtime.backend import Backend
from ftuner.runtime.gpu_modules import gpu_module
from ftuner.runtime.session import default_session, known_hardware

CPU = "cpu"
"""The device that is always there."""


def backend_of(device: str) -> Backend:
    """The back end of a device.

    Raises:
        ConfigurationError: no such device, or its extra is not installed.
        HardwareError: a GPU that kernels cannot run on.
    """
    if _is_cpu(device):
        return default_session().backend
    gpu = gpu_module("ftuner.runtime.gpu.backend")
    found: Backend = gpu.session_of(gpu.device_named(device))
    return found


def _is_cpu(device: object) -> bool:
    if not isinstance(device, str):
        raise ConfigurationError(f"device is {device!r}; expected its name, such as cpu or cuda")
    return device == CPU


def hardware_on(device: str, again: bool = False) -> CpuHardware | GpuHardware:
    """The hardware model of a device; `again` probes it even if the cache has it.

    Raises:
        ConfigurationError, HardwareError: as of `backend_of`.
    """
    session = default_session()
    if _is_cpu(device):
        return known_hardware(session.cache, again) if again else session.hardware
    gpu = gpu_module("ftuner.runtime.gpu.backend")
    found: GpuHardware = gpu.known_gpu(gpu.device_named(device), session.cache, again)
    return found
