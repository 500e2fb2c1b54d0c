"""CPUs that are recorded, and planners for them, for tests that need none of them at hand."""

from ftuner.core.dtype import FLOAT32, DType
from ftuner.core.product import product_types
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.planner.cpu.planner import Planner, planner_for
from ftuner.ukernels.cpu.library import Library, build_library

MACHINES = ("core-i7-8700", "epyc-milan-2", "graviton2", "xeon-8375c")


def cpu(name: str) -> CpuHardware:
    found = load_recorded(name)
    assert isinstance(found, CpuHardware)
    return found


def library_of(machine: CpuHardware | str, dtype: DType = FLOAT32) -> Library:
    """The library of products without an epilogue, by the widest ISA."""
    machine = cpu(machine) if isinstance(machine, str) else machine
    return build_library(machine, machine.widest.name, product_types(dtype))


def planner_of(machine: CpuHardware | str) -> Planner:
    return planner_for(library_of(machine))
