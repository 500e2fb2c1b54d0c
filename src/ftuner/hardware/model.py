"""The hardware-information model: frozen descriptions of one machine.

Every number carries its unit in its name. `provenance` maps a field's name to where its value came
from: `system` (read from the operating system or the CPU), `probed` (a micro-benchmark on the
machine), `datasheet`, `fitted`, or `assumed` (a conservative default because nothing else was to
be had).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.product import ProductTypes
from ftuner.errors import HardwareError
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import CpuTuning


class MultiplyAddRate(NamedTuple):
    """What one core does of one kind of vector multiply-add."""

    per_cycle: float
    """Issued per cycle."""
    latency_cycles: float
    k_steps: int
    """k steps that each takes."""
    fused: bool
    """Whether it is one instruction."""


@dataclass(frozen=True)
class Isa:
    """One vector instruction set as one core of the machine executes it."""

    name: str
    """That of its row in `ftuner.hardware.isa`, whose fixed values are repeated here."""
    vector_bytes: int
    vector_registers: int
    fused: bool
    """Whether multiply-add of floats is one instruction; if not, it is a multiply and an add."""
    fma_per_cycle: float
    """Vector multiply-adds of floats issued per cycle."""
    fma_latency_cycles: float
    load_per_cycle: float
    """Full-width vector loads per cycle from L1."""
    store_per_cycle: float
    masked: bool
    """Whether loads and stores take a mask per lane at full speed."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def lanes(self, dtype: DType) -> int:
        return self.vector_bytes // dtype.itemsize

    def multiply_add(self, types: ProductTypes) -> MultiplyAddRate:
        """What one core does of the multiply-adds of a product. Those of all floats have one rate
        and latency.

        Raises:
            HardwareError: the ISA has none for these dtypes.
        """
        row = instruction_set(self.name).multiply_add(types)
        return MultiplyAddRate(self.fma_per_cycle, self.fma_latency_cycles, row.k_steps, row.fused)

    def peak_flops_per_cycle(self, types: ProductTypes) -> float:
        """Floating-point operations per cycle of one core, a multiply-add counted as two."""
        rate = self.multiply_add(types)
        return 2.0 * self.lanes(types.accumulator) * rate.per_cycle * rate.k_steps


@dataclass(frozen=True)
class MemoryLevel:
    """One level of the memory hierarchy; the last one is DRAM."""

    name: str
    capacity_bytes: int
    line_bytes: int
    associativity: int
    """Ways of a set; 0 where it does not apply (DRAM) or is not known."""
    shared_by_cores: int
    """Cores of this machine that share one instance of the level."""
    bandwidth_bytes_per_s: float
    """Sequential read by one core."""
    bandwidth_all_bytes_per_s: float
    """Sequential read by all cores at once, together."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)


@dataclass(frozen=True)
class CpuHardware:
    """A CPU: what `cores` equal cores, each with every ISA in `isas`, can do."""

    name: str
    architecture: str
    """`x86_64` or `aarch64`."""
    model_name: str
    cores: int
    """Cores that this process may use (affinity and cgroup limits respected)."""
    clock_hz: float
    """Sustained clock of a core under load of its widest vectors: where those lower it, narrower
    ones run at a higher clock."""
    isas: tuple[Isa, ...]
    """Widest last."""
    levels: tuple[MemoryLevel, ...]
    """L1 first, DRAM last."""
    page_bytes: int
    tuning: CpuTuning = field(default_factory=CpuTuning)
    """Constants that were fitted, measured or assumed."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    @property
    def fingerprint(self) -> str:
        """A short hash of what identifies the machine; measured rates are left out, so that two
        probes of one machine agree."""
        identity = (
            self.architecture,
            self.model_name,
            self.cores,
            tuple((i.name, i.vector_bytes, i.vector_registers) for i in self.isas),
            tuple((m.name, m.capacity_bytes, m.line_bytes) for m in self.levels[:-1]),
        )
        return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]

    @property
    def widest(self) -> Isa:
        return self.isas[-1]

    def isa(self, name: str) -> Isa:
        """Raises HardwareError where the machine has no such ISA."""
        for isa in self.isas:
            if isa.name == name:
                return isa
        known = ", ".join(isa.name for isa in self.isas)
        raise HardwareError(f"{self.name} has no ISA {name!r}; it has {known}")

    def peak_flops_per_s(self, isa: Isa, types: ProductTypes, cores: int = 1) -> float:
        return cores * self.clock_hz * isa.peak_flops_per_cycle(types)


@dataclass(frozen=True)
class MatrixInstruction:
    """One instruction of the matrix units, as the warps that issue it see it.

    It multiplies `rows` rows of A by some columns of B, any multiple of `columns`, over `k_bytes`
    bytes of k.
    """

    name: str
    """`mma`, `wgmma`, `tcgen05` or `mfma`, with a suffix where there are several."""
    rows: int
    columns: int
    k_bytes: int
    warps: int
    """Warps that issue it together and share its accumulators."""
    rate: float
    """The part of the matrix units' dense rate that it reaches at most."""
    asynchronous: bool
    """Whether it reads A and B from shared memory while its warps go on. If not, they load
    fragments of both into registers first."""
    accumulator_bytes: int
    """Memory of a multiprocessor that only holds its accumulators; 0 where registers hold them."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)


@dataclass(frozen=True)
class GpuHardware:
    """A GPU, by its datasheet and, where there is one, by a probe."""

    name: str
    architecture: str
    """`sm_80`, `sm_90`, ..., or `gfx942`."""
    multiprocessors: int
    subpartitions_per_multiprocessor: int
    warp_threads: int
    """Threads of a warp: 32 on NVIDIA's chips, 64 on AMD's of the CDNA line (wavefronts)."""
    registers_per_multiprocessor: int
    """Of 32 bits."""
    registers_per_thread: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    """Blocks resident at once, however small."""
    shared_bytes_per_multiprocessor: int
    """What it has more than a block may use is kept back from each block."""
    shared_bytes_per_block: int
    shared_bytes_per_clock: int
    """Read from, or written to, the shared memory of one multiprocessor."""
    clock_hz: float
    l2_bytes: int
    l2_bandwidth_bytes_per_s: float
    """Read by all multiprocessors together."""
    l2_bytes_per_clock: int
    """Read by one multiprocessor."""
    dram_bytes: int
    dram_bandwidth_bytes_per_s: float
    dram_latency_s: float
    """From a load to its data, with nothing else under way."""
    asynchronous_copy: bool
    """Whether data reaches shared memory without passing through registers."""
    bulk_copy: bool
    """Whether a copy engine walks whole tiles by a descriptor (TMA)."""
    matrix_instructions: tuple[MatrixInstruction, ...]
    """Fastest first: a tile is computed by the first one that fits it."""
    matrix_flops_per_s: Mapping[str, float] = field(hash=False)
    """Dense rate of the matrix units by input dtype (`float16`, `bfloat16`, `tf32`, `float64`)."""
    vector_flops_per_s: Mapping[str, float] = field(hash=False)
    """Rate without matrix units by dtype."""
    launch_s: float
    tuning: GpuTuning = field(default_factory=GpuTuning)
    """Constants that were fitted, measured or assumed."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
