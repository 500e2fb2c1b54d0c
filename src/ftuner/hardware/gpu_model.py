"""The hardware-information model of a GPU: units and provenance are as in `hardware.model`.

A file of its own, so that a process without a GPU does not load the constants of GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from ftuner.core.frozen import dataclass
from ftuner.core.shown import Shown
from ftuner.core.units import capacity, rate
from ftuner.hardware.gpu_tuning import GpuTuning


@dataclass(frozen=True, repr=False)
class MatrixInstruction(Shown):
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

    def summary(self) -> str:
        return (
            f"{self.name}: {self.rows} rows by multiples of {self.columns} columns, {self.k_bytes} "
            f"bytes of k, issued by {self.warps} warps, {self.rate:.0%} of the peak"
        )


@dataclass(frozen=True, repr=False)
class GpuHardware(Shown):
    """A GPU, by its datasheet and, where there is one, by a probe."""

    kind: ClassVar[str] = "gpu"

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
    matrix_flops_per_s: Mapping[str, float]
    """Dense rate of the matrix units by input dtype (`float16`, `bfloat16`, `tf32`, `float64`)."""
    vector_flops_per_s: Mapping[str, float]
    """Rate without matrix units by dtype."""
    launch_s: float
    tuning: GpuTuning = field(default_factory=GpuTuning)
    """Constants that were fitted, measured or assumed."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def __hash__(self) -> int:
        """A hash of few fields, because tiles are looked up by their machine and machines are
        few."""
        return hash((self.name, self.clock_hz, self.tuning))

    def summary(self) -> str:
        rates = ", ".join(
            f"{name} {rate(per_s, 'flop/s')}"
            for name, per_s in {**self.vector_flops_per_s, **self.matrix_flops_per_s}.items()
        )
        return (
            f"{self.name}: {self.architecture}, {self.multiprocessors} multiprocessors at "
            f"{rate(self.clock_hz, 'Hz')}; L2 {capacity(self.l2_bytes)}, DRAM "
            f"{capacity(self.dram_bytes)} at {rate(self.dram_bandwidth_bytes_per_s, 'B/s')}; "
            f"{rates}"
        )
