"""The back end of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from ftuner.codegen.triton.targets import Target
from ftuner.core.dtype import GPU_DTYPES, HALF_DTYPES
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.errors import ConfigurationError
from ftuner.graph.appending import Appended
from ftuner.graph.ir import Graph
from ftuner.graph.splitting import Part
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.runtime.backend import Backend, Effort, Executable, Options
from ftuner.runtime.cache import default_cache
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.attention import Attention
from ftuner.runtime.gpu.boundary import GpuBoundary
from ftuner.runtime.gpu.calibration.calibrate import calibrate
from ftuner.runtime.gpu.calibration.device_clock import DeviceClock
from ftuner.runtime.gpu.dense import Dense
from ftuner.runtime.gpu.executable import CompiledGraph
from ftuner.runtime.gpu.grouped import GroupedMatmul
from ftuner.runtime.gpu.kernels import target_of
from ftuner.runtime.gpu.matmul import Matmul
from ftuner.runtime.gpu.session import GpuSession, keep_calibrated, known_gpu
from ftuner.runtime.ops.layer import Activation
from ftuner.runtime.shown_progress import Progress


class GpuBackend(GpuSession, Backend):
    """A session with its operators on tensors of its device. Launches go to the current stream."""

    product_dtypes = GPU_DTYPES
    multiplies_halves = True
    appends_in_place = limits_memory = False
    held_dtypes = HALF_DTYPES

    def __init__(self, device: torch.device, hardware: GpuHardware, target: Target | None) -> None:
        super().__init__(device, hardware, target)
        self.matmul = Matmul(self.products)
        self.grouped_matmul = GroupedMatmul(self.kernels, self.block_library)
        self._attention = Attention(self.attentions)

    def probe(self) -> GpuHardware:
        return known_gpu(self.device, default_cache(), again=True)

    def calibrated(self, effort: Effort, progress: Progress | None = None) -> GpuBackend:
        known = effort == "default" and self.hardware.tuning.is_calibrated
        if effort == "none" or known or self.device.type != "cuda":
            return self
        found = calibrate(self.hardware, DeviceClock(self), effort, progress)
        if not found.hardware.tuning.is_calibrated:
            self.calibration = found.summary
            return self
        keep_calibrated(default_cache(), self.device, found.hardware)
        with _LOCK:
            # Models and layers that were made before keep theirs.
            result = GpuBackend(self.device, found.hardware, target_of(self.device))
            result.calibration = found.summary
            _BACKENDS[self.device] = result
        return result

    def dense(
        self, weight: object, bias: object | None, activation: Activation, residual: bool,
        width: SupportsIndex | None,
    ) -> Dense:  # fmt: skip
        if width is not None:
            raise ConfigurationError(f"width is {width!r}; a layer on a GPU has no panels")
        return Dense(weight, bias, activation, residual, session=self)

    def attention(self, q: object, k: object, v: object, **options: Any) -> Tensor:
        return self._attention(q, k, v, **options)

    def compile(
        self, part: Part, options: Options, appended: Sequence[Appended] = ()
    ) -> Executable:
        assert not appended, "a GPU appends nothing in place"
        assert part.compiled is None, "what is compiled for a GPU is not saved"
        return CompiledGraph(part.graph, self, options)

    def boundary(
        self, graph: Graph, in_parts: bool, appended: Sequence[Appended] = ()
    ) -> GpuBoundary:
        return GpuBoundary(graph, in_parts, self.device)


_BACKENDS: dict[torch.device, GpuBackend] = {}
_LOCK = fork_safe_lock()


def backend_on(device: torch.device) -> GpuBackend:
    """Returns the back end of a device, made on first use.

    Raises:
        HardwareError: kernels cannot run on the device.
    """
    found = _BACKENDS.get(device)
    if found is None:
        with _LOCK:
            found = _BACKENDS.get(device)
            if found is None:
                hardware = known_gpu(device, default_cache())
                found = _BACKENDS[device] = GpuBackend(device, hardware, target_of(device))
    return found


def backend_named(name: str) -> GpuBackend:
    """Returns the back end of a device by torch's name, such as `cuda` or `cuda:1`.

    Raises:
        ConfigurationError: there is no such device.
        HardwareError: kernels cannot run on the device.
    """
    return backend_on(_device_named(name))


def _device_named(name: str) -> torch.device:
    try:
        found = torch.device(name)
        if found.type == "cuda":
            index = torch.cuda.current_device() if found.index is None else found.index
            found = torch.device("cuda", index)
            torch.cuda.get_device_properties(found)
            return found
    except (RuntimeError, AssertionError, TypeError) as error:
        if name.partition(":")[0] == "cuda":
            raise ConfigurationError(f"device is {name!r}: {error}") from None
    raise ConfigurationError(f"device is {name!r}; expected cpu, or a GPU such as cuda")
