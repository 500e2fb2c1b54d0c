"""onnxruntime's enumerations, and devices as it names them: `cpu` and `cuda`, with a number."""

from __future__ import annotations

from enum import IntEnum

from ftuner.ort.exceptions import ArgumentError


class _Enumeration(IntEnum):
    """Numbers that print as onnxruntime's do, with their class."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_Enumeration):
    """How much a graph is rewritten. ftuner always runs all its passes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Enumeration):
    """Whether nodes run in parallel. ftuner runs independent steps in parallel where it pays."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Enumeration):
    """The order of nodes. ftuner decides it when it lowers a graph."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Enumeration):
    """Kinds of allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Enumeration):
    """Where the memory of a device is used."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceVendorId(_Enumeration):
    """PCI numbers of the makers of devices."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


_TYPES = {"cpu": 0, "cuda": 1, "gpu": 1, "webgpu": 1, "fpga": 2, "npu": 3, "cann": 3, "dml": 4}
"""onnxruntime's numbers of kinds of devices."""
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA, "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
}  # fmt: skip


class OrtDevice:
    """A device by its kind and number."""

    def __init__(self, name: str, device_id: int, vendor_id: int) -> None:
        """See `make`."""
        self._name, self._device_id, self._vendor_id = name, device_id, vendor_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The device of a kind (`cpu`, `cuda`, ...) and number.

        Raises:
            ArgumentError: an unknown kind.
        """
        if ort_device_name not in _TYPES:
            raise ArgumentError(
                f"no device is called {ort_device_name!r}; expected {', '.join(_TYPES)}"
            )
        if vendor_id < 0:
            vendor_id = _VENDORS.get(ort_device_name, OrtDeviceVendorId.NONE)
        return OrtDevice(ort_device_name, device_id, int(vendor_id))

    def device_id(self) -> int:
        return self._device_id

    def device_type(self) -> int:
        """0 is a CPU, 1 a GPU."""
        return _TYPES[self._name]

    def device_vendor_id(self) -> int:
        return self._vendor_id

    def device_mem_type(self) -> int:
        """0: the device's own memory."""
        return 0


def device_index(device_type: str, device_id: int) -> int | None:
    """The number of a CUDA device, or None for the CPU.

    Raises:
        ArgumentError: a device that ftuner does not compute on.
    """
    device = OrtDevice.make(device_type, device_id)
    if device_type == "cpu":
        return None
    if device_type in ("cuda", "gpu"):
        return device.device_id()
    raise ArgumentError(f"ftuner computes on cpu and cuda; {device_type!r} was given")
