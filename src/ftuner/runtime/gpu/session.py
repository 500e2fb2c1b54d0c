"""The state of one GPU in this process: the hardware model, compiled kernels, and plans."""

from __future__ import annotations

from typing import Any

import torch

from ftuner.codegen.triton.targets import Target
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.gpu.tile import Multiply
from ftuner.cost.gpu.tile import multiplied_on
from ftuner.errors import HardwareError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import from_document
from ftuner.runtime.backend import Tuned
from ftuner.runtime.cache import Cache
from ftuner.runtime.gpu.calibration.calibrate import CALIBRATION_VERSION
from ftuner.runtime.gpu.kernels import INTERPRETED, Kernels, target_of
from ftuner.runtime.gpu.launching import CudaRecorder, Recorder, Repeating, is_capturing
from ftuner.runtime.gpu.probe import (
    PROBE_VERSION,
    DeviceFacts,
    hardware_of,
    measure,
    nearest_recorded,
    read_device,
)
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.known_hardware import keep_model, known_or_probed
from ftuner.runtime.shown_progress import Progress
from ftuner.schedules.attention.gpu_binding_launches import Attentions, planned_for
from ftuner.ukernels.gpu.library import GpuLibrary, build_gpu_library


class GpuSession:
    """The state that the operators and the compiled graphs of one back end share."""

    def __init__(self, device: torch.device, hardware: GpuHardware, target: Target | None) -> None:
        """`target`: None to interpret kernels, on tensors in the CPU's memory."""
        self.device = device
        self._hardware = hardware
        self.kernels = Kernels(device, target, hardware.tuning.sources_per_process)
        scratch = self.scratch = Scratch(device)
        self.products = Products(self.kernels, scratch, self.block_library)
        self._planned = planned_for(hardware, device)
        self.attentions = Attentions(device, self.kernels, scratch, self._planned)

    def recorder(self) -> Recorder:
        """Returns a recorder for programs that never run at the same time."""
        return Repeating() if self.device.type != "cuda" else CudaRecorder(self.device)

    @property
    def hardware(self) -> GpuHardware:
        return self._hardware

    @property
    def target(self) -> str:
        return self._hardware.architecture

    def library(self, dtype: DType, epilogue: Expr = ACCUMULATOR) -> GpuLibrary:
        """Returns the library of a dtype; it does not depend on the epilogue."""
        return self.products.library(dtype)

    def block_library(self, dtype: DType, multiply: Multiply) -> GpuLibrary:
        """Returns the library of a dtype and a way to multiply; float32 for tf32 on a chip without
        it."""
        return build_gpu_library(self._planned, dtype, multiplied_on(self._planned, multiply))

    def tune(self, dtype: DType, epilogue: Expr, progress: Progress | None = None) -> Tuned:
        return self.products.tune(dtype, epilogue, progress)


def known_gpu(device: torch.device, cache: Cache, again: bool = False) -> GpuHardware:
    """Returns the hardware model of a device: from the cache, calibrated if tuning did so before,
    or else probed (in a second or two) and kept.

    `again` probes even if the cache has the model; what was calibrated is then forgotten.

    Raises:
        HardwareError: kernels cannot run on the device.
    """
    expect_runnable(device)
    facts = read_device(device)

    def probe() -> GpuHardware:
        return hardware_of(facts, measure(device, target_of(device), nearest_recorded(facts)))

    return known_or_probed(
        cache, _key(facts), lambda document: _model_of(document, facts), probe, again
    )


def keep_calibrated(cache: Cache, device: torch.device, hardware: GpuHardware) -> None:
    """Keeps the calibrated model of a device in the cache, in the place of the probed one."""
    keep_model(cache, _key(read_device(device)), hardware)


def _key(facts: DeviceFacts) -> str:
    return f"gpu-{facts.fingerprint}-{PROBE_VERSION}.{CALIBRATION_VERSION}.json"


def _model_of(document: Any, facts: DeviceFacts) -> GpuHardware:
    """Returns the model in a document.

    Raises:
        HardwareError: it is not a model of the device that the driver describes.
    """
    found = from_document(document)
    if not isinstance(found, GpuHardware):
        raise HardwareError("a model of a CPU; expected one of a GPU")
    for name, expected in facts.of_model.items():
        if getattr(found, name) != expected:
            raise HardwareError(f"{name} is {getattr(found, name)}; the driver says {expected}")
    return found


def expect_runnable(device: torch.device) -> None:
    """Raises HardwareError if kernels cannot run on a device, or cannot be measured now."""
    if device.type != "cuda":
        raise HardwareError(f"no kernels for tensors on {device}; expected a CUDA device")
    if INTERPRETED:
        raise HardwareError("TRITON_INTERPRET is set: Triton would interpret kernels on the CPU")
    if torch.version.hip is not None:
        raise HardwareError("AMD GPUs are planned for and compiled for, but not run on yet")
    if torch.cuda.is_available() and is_capturing(device):
        raise HardwareError(
            f"{device} is used for the first time while a CUDA graph is captured; use it before"
        )
