"""The back end of a device, by its name (`cpu`, or a GPU as torch names it, such as `cuda:1`) or by
the operands that are on it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ftuner.errors import ConfigurationError
from ftuner.runtime.backend import Backend
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.ops.operands import on_gpu

CPU = "cpu"
"""The device that is always there."""


def backend_of(device: str) -> Backend:
    """The back end of a device by name.

    Raises:
        ConfigurationError: no such device, or its extra is not installed.
        HardwareError: a GPU that kernels cannot run on.
    """
    if not isinstance(device, str):
        raise ConfigurationError(f"device is {device!r}; expected its name, such as cpu or cuda")
    if device == CPU:
        return default_backend()
    found: Backend = _gpu().backend_named(device)
    return found


def backend_for(*operands: object) -> Backend:
    """The back end that computes with operands: of the first one on a GPU, else the CPU's.

    Raises:
        ConfigurationError: the extra of GPUs is not installed.
        HardwareError: a GPU that kernels cannot run on.
    """
    for operand in operands:
        if on_gpu(operand):
            device: Any = operand
            found: Backend = _gpu().backend_on(device.device)
            return found
    return default_backend()


def _gpu() -> Any:
    """The room of GPUs, which needs torch and triton; importing ftuner must not."""
    try:
        return import_module("ftuner.runtime.gpu.backend")
    except ImportError as error:
        raise ConfigurationError(f"{error}; install the extra: pip install 'ftuner[gpu]'") from None
