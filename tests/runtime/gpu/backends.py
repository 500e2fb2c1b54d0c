"""Back ends of recorded chips, in Triton's interpreter."""

import torch
from tests.codegen.triton.interpreting import complete

from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.runtime.gpu.backend import GpuBackend


def interpreted(name: str) -> GpuBackend:
    """A recorded chip whose kernels are interpreted, on tensors in the CPU's memory."""
    complete()
    hardware = load_recorded(name)
    assert isinstance(hardware, GpuHardware)
    return GpuBackend(torch.device("cpu"), hardware, None)
