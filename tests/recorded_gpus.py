"""GPUs that are recorded, for tests that hold on all of them."""

from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names

GPUS = [name for name in recorded_names() if isinstance(load_recorded(name), GpuHardware)]


def gpu(name: str) -> GpuHardware:
    found = load_recorded(name)
    assert isinstance(found, GpuHardware)
    return found
