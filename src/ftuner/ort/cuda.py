"""The memory of GPUs, as torch's tensors. Needs the extra `gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ftuner.core.dtype import BFLOAT16
from ftuner.ort.description import Array, ElementType, element_type
from ftuner.ort.exceptions import ArgumentError

_SIGNS_OF_A_DRIVER = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")
"""Files of NVIDIA's driver on Linux, and of its stand-in on WSL."""


def has_cuda() -> bool:
    """Whether kernels can run on a GPU of this machine. Imports torch only if there may be one."""
    if not all(find_spec(name) for name in ("torch", "triton")):
        return False
    if not any(Path(sign).exists() for sign in _SIGNS_OF_A_DRIVER):
        return False
    return bool(import_module("torch").cuda.is_available())


def empty(shape: Sequence[int], kind: ElementType, device_id: int) -> Any:
    """A tensor on a GPU whose elements are not set."""
    torch = _torch()
    dtype = getattr(torch, kind.dtype.name)
    return torch.empty(tuple(shape), dtype=dtype, device=f"cuda:{device_id}")


def to_device(array: Array, device_id: int) -> Any:
    """A copy of an array on a GPU."""
    torch = _torch()
    kind = element_type(array.dtype)
    if kind.dtype == BFLOAT16:
        # torch does not know ml_dtypes' bfloat16.
        tensor = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array.copy())
    return tensor.to(f"cuda:{device_id}")


def to_host(tensor: Any) -> Array:
    """A copy of a tensor as an array."""
    torch = _torch()
    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.int16).numpy().view(element_type(16).numpy))
    return np.asarray(host.numpy())


def at_address(address: int, shape: Sequence[int], kind: ElementType, device_id: int) -> Any:
    """The memory at an address of a GPU as a tensor; its owner keeps it alive."""
    torch = _torch()
    held = np.dtype(np.int16) if kind.dtype == BFLOAT16 else kind.numpy
    memory = _Memory(
        {"data": (address, False), "shape": tuple(shape), "typestr": held.str, "version": 3}
    )
    tensor = torch.as_tensor(memory, device=f"cuda:{device_id}")
    return tensor.view(torch.bfloat16) if kind.dtype == BFLOAT16 else tensor


class _Memory:
    """What torch reads an address from."""

    def __init__(self, interface: dict[str, object]) -> None:
        self.__cuda_array_interface__ = interface


def _torch() -> Any:
    if not has_cuda():
        raise ArgumentError(
            "there is no GPU that ftuner can use; expected the device cpu, or an NVIDIA GPU and "
            "the extra: pip install 'ftuner[gpu]'"
        )
    return import_module("torch")
