"""Probing a GPU: facts from its driver, and rates that micro-benchmarks measure in a second."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ftuner.codegen.triton.microbenchmarks import READ_AT_ONCE, reads_source
from ftuner.codegen.triton.targets import Target
from ftuner.core.frozen import dataclass
from ftuner.errors import HardwareError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.runtime.gpu.arrays import tf32_set
from ftuner.runtime.gpu.kernels import Kernel

PROBE_VERSION = 3
"""Version of the measurements: models of older probes are measured again."""
ROUNDS = 5
"""Bursts of each micro-benchmark; the fastest counts, because other load only adds time."""
COPY_BYTES = 1 << 29
"""Size of the copy that measures DRAM: ten times the largest L2."""
L2_BYTES = 1 << 32
"""Bytes read from L2: a millisecond at 4 TB/s, much longer than a launch."""
READERS = 4
"""Programs per multiprocessor that read L2."""
MATRIX_EXTENT = 6144
"""Extents of the product that measures the matrix units: 2 ms at 250 TFLOP/s, 48 x 48 blocks of
128 x 128."""
LAUNCHES = 200
"""Kernels in the CUDA graph that measures the time per launch."""


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about a device from its driver."""

    name: str
    architecture: str
    multiprocessors: int
    warp_threads: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    l2_bytes: int
    dram_bytes: int

    @property
    def fingerprint(self) -> str:
        """A short hash that identifies the chip."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def of_model(self) -> dict[str, Any]:
        """The facts that are fields of a hardware model."""
        return {name: value for name, value in vars(self).items() if name != "name"}


@dataclass(frozen=True)
class Rates:
    """Measured rates of a device: fields of its hardware model."""

    dram_bandwidth_bytes_per_s: float
    l2_bandwidth_bytes_per_s: float
    launch_s: float
    matrix_flops_per_s: Mapping[str, float]


def read_device(device: torch.device) -> DeviceFacts:
    """Returns the facts of an NVIDIA device from its driver."""
    found: Any = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        name=found.name,
        architecture=f"sm_{found.major}{found.minor}",
        multiprocessors=found.multi_processor_count,
        warp_threads=found.warp_size,
        registers_per_multiprocessor=found.regs_per_multiprocessor,
        threads_per_multiprocessor=found.max_threads_per_multi_processor,
        shared_bytes_per_multiprocessor=found.shared_memory_per_multiprocessor,
        shared_bytes_per_block=found.shared_memory_per_block_optin,
        l2_bytes=found.L2_cache_size,
        dram_bytes=found.total_memory,
    )


def nearest_recorded(facts: DeviceFacts) -> GpuHardware:
    """Returns the recorded machine of a device, or else one of the same architecture.

    Raises:
        HardwareError: no recorded machine has the architecture.
    """
    machines = [load_recorded(name) for name in recorded_names()]
    gpus = [machine for machine in machines if isinstance(machine, GpuHardware)]
    alike = [gpu for gpu in gpus if gpu.architecture == facts.architecture]
    if not alike:
        known = ", ".join(sorted({gpu.architecture for gpu in gpus}))
        raise HardwareError(
            f"{facts.name} is a chip of {facts.architecture}, which no recorded machine has; "
            f"recorded are chips of {known}"
        )
    name = "".join(c for c in facts.name.lower() if c.isalnum())
    # Longer parts count more: an L40S is no L4.
    return max(
        alike, key=lambda gpu: sum(len(part) for part in gpu.name.split("-") if part in name)
    )


def hardware_of(facts: DeviceFacts, rates: Rates) -> GpuHardware:
    """Returns the hardware model of a device: facts of its driver, measured rates, and otherwise
    the values of the nearest recorded machine."""
    like = nearest_recorded(facts)
    known = facts.of_model
    flops_per_s = {**like.matrix_flops_per_s, **rates.matrix_flops_per_s}
    measured = {**vars(rates), "matrix_flops_per_s": flops_per_s}
    provenance = {
        **like.provenance,
        **dict.fromkeys(known, "system"),
        **dict.fromkeys(measured, "probed"),
    }
    name = facts.name.lower().replace(" ", "-")
    # Measured rates are what products and copies sustain. Products by parts of float32 sustain a
    # share of the peak, which the measured rate of tf32 is below.
    split = like.tuning.split_matrix_share / like.tuning.sustained_matrix_share
    tuning = replace(
        like.tuning, sustained_matrix_share=1.0, sustained_dram_share=1.0,
        split_matrix_share=min(split, 1.0),
    )  # fmt: skip
    return replace(like, name=name, provenance=provenance, tuning=tuning, **known, **measured)


def measure(device: torch.device, target: Target, like: GpuHardware) -> Rates:
    """Measures an idle device; takes about a second."""
    with torch.cuda.device(device):
        return Rates(
            dram_bandwidth_bytes_per_s=_copy_bytes_per_s(device),
            l2_bandwidth_bytes_per_s=_l2_bytes_per_s(Kernel(reads_source(), device, target), like),
            launch_s=_launch_s(device),
            matrix_flops_per_s={
                name: _matrix_flops_per_s(device, name)
                for name in like.matrix_flops_per_s
                if name in _MATRIX_OPERANDS
            },
        )


_MATRIX_OPERANDS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "tf32": torch.float32}


def _fastest_s(work: Callable[[], object], times: int) -> float:
    """Returns the seconds of one run, in the fastest of some bursts of `times` runs."""
    work()
    found: list[float] = []
    for _ in range(ROUNDS):
        event: Any = torch.cuda.Event
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / times)
    return min(found)


def _copy_bytes_per_s(device: torch.device) -> float:
    source = torch.zeros(COPY_BYTES // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _fastest_s(lambda: target.copy_(source), 3)


def _l2_bytes_per_s(reads: Kernel, like: GpuHardware) -> float:
    """Measures reads of a buffer of half the size of L2: where L2 has two halves, each may hold its
    own copy."""
    device = reads.device
    blocks = like.l2_bytes // 4 // (4 * READ_AT_ONCE)
    programs = READERS * like.multiprocessors
    rounds = L2_BYTES // (programs * 4 * READ_AT_ONCE)
    source = torch.zeros(blocks * READ_AT_ONCE, dtype=torch.float32, device=device)
    target = torch.empty(programs * READ_AT_ONCE, dtype=torch.float32, device=device)
    seconds = _fastest_s(lambda: reads(programs, source, target, blocks, rounds), 1)
    return 4.0 * READ_AT_ONCE * programs * rounds / seconds


def _matrix_flops_per_s(device: torch.device, name: str) -> float:
    generator = torch.Generator(device).manual_seed(0)
    shape = (MATRIX_EXTENT, MATRIX_EXTENT)
    dtype = _MATRIX_OPERANDS[name]
    a, b = (torch.randn(shape, dtype=dtype, device=device, generator=generator) for _ in range(2))
    with tf32_set(name == "tf32"):
        out = torch.empty_like(a)
        seconds = _fastest_s(lambda: torch.matmul(a, b, out=out), 5)
    return 2.0 * MATRIX_EXTENT**3 / seconds


def _launch_s(device: torch.device) -> float:
    """Returns the time between the starts of two kernels of a CUDA graph."""
    x = torch.zeros(1, device=device)
    x.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            x.add_(1)
    return _fastest_s(graph.replay, 1) / LAUNCHES
