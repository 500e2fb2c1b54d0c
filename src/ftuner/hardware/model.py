"""The hardware-information model: frozen descriptions of one machine.

Every number carries its unit in its name. `provenance` maps a field's name to where its value came
from: `system` (read from the operating system or the CPU), `probed` (a micro-benchmark on the
machine), `datasheet`, `fitted`, or `assumed` (a conservative default because nothing else was to
be had).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.core.product import WORD_PRODUCTS, ProductTypes
from ftuner.core.shown import Shown
from ftuner.core.units import capacity, count, rate
from ftuner.errors import HardwareError
from ftuner.hardware.correction import LearnedCorrection
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import CpuTuning

WORTH_ROUNDING = 1.25
"""How many times as fast as float32 narrow numbers must be multiplied. Assumed: it also takes time
to round them. VDPBF16PS of some Intel cores is slower than two multiply-adds of float32."""
APART = "apart"
"""Metadata of fields that are not part of a machine's document."""


class MultiplyAddRate(NamedTuple):
    """What one core does of one kind of vector multiply-add."""

    per_cycle: float
    """Issued per cycle."""
    latency_cycles: float
    fused: bool
    """Whether it is one instruction."""


@dataclass(frozen=True, repr=False)
class Isa(Shown):
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
    of_bytes_per_cycle: float = 0.0
    of_bfloat16_per_cycle: float = 0.0
    tiles_of_bytes_per_cycle: float = 0.0
    tiles_of_bfloat16_per_cycle: float = 0.0
    """Vector multiply-adds of narrow numbers issued per cycle, by the emitter of their row; 0 where
    the machine does not have the instruction. One of whole tiles counts as those that it does."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def summary(self) -> str:
        return (
            f"{self.name}: {self.vector_registers} vectors of {self.vector_bytes} bytes; "
            f"multiply-adds per cycle: {self.fma_per_cycle:g}, of "
            f"{self.fma_latency_cycles:g} cycles; "
            f"loads per cycle: {self.load_per_cycle:g}, stores: {self.store_per_cycle:g}"
        )

    def lanes(self, dtype: DType) -> int:
        return self.vector_bytes // dtype.itemsize

    def multiply_add(self, types: ProductTypes) -> MultiplyAddRate:
        """What one core does of the multiply-adds of a product. Those of all floats have one rate,
        and all have one latency.

        Raises:
            HardwareError: the ISA has none for these dtypes.
        """
        row = instruction_set(self.name).multiply_add(types)
        rate = getattr(self, f"{row.emitter}_per_cycle") if row.flag else self.fma_per_cycle
        return MultiplyAddRate(rate, self.fma_latency_cycles, row.fused)

    def tile_multiply_add(self, types: ProductTypes) -> MultiplyAddRate | None:
        """What one core's matrix unit does of the multiply-adds of a product, if it has them."""
        unit = instruction_set(self.name).matrix
        row = unit and unit.multiply_add(types)
        rate = getattr(self, f"{row.emitter}_per_cycle") if row else 0.0
        return MultiplyAddRate(rate, unit.latency_cycles, fused=True) if unit and rate else None

    @property
    def narrow_dtypes(self) -> frozenset[DType]:
        """The dtypes of rows, narrower than float32, that are multiplied faster than it."""
        known = {(r.a, r.b, r.accumulator) for r in instruction_set(self.name).multiply_adds}
        worth = WORTH_ROUNDING * self.fma_per_cycle
        return frozenset(
            rows for rows, t in WORD_PRODUCTS.items()
            if (t.a, t.b, t.accumulator) in known
            and self._most_per_cycle(t) * t.a.numbers >= worth
        )  # fmt: skip

    def _most_per_cycle(self, types: ProductTypes) -> float:
        """Vector multiply-adds of a product that one core issues per cycle, by whatever unit."""
        of_tiles = self.tile_multiply_add(types)
        of_vectors = self.multiply_add(types).per_cycle
        return max(of_vectors, of_tiles.per_cycle) if of_tiles else of_vectors

    def peak_flops_per_cycle(self, types: ProductTypes) -> float:
        """Floating-point operations per cycle of one core, a multiply-add counted as two."""
        lanes = self.lanes(types.accumulator)
        return 2.0 * lanes * self._most_per_cycle(types) * types.a.numbers


@dataclass(frozen=True, repr=False)
class MemoryLevel(Shown):
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

    def summary(self) -> str:
        return (
            f"{self.name}: {capacity(self.capacity_bytes)}, shared by "
            f"{count(self.shared_by_cores, 'core')}, {rate(self.bandwidth_bytes_per_s, 'B/s')} by "
            f"one core, {rate(self.bandwidth_all_bytes_per_s, 'B/s')} by all"
        )


@dataclass(frozen=True, repr=False)
class CpuHardware(Shown):
    """A CPU: what `cores` equal cores, each with every ISA in `isas`, can do."""

    kind: ClassVar[str] = "cpu"

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
    correction: LearnedCorrection | None = field(default=None, metadata={APART: True})
    """What was learned of the errors of estimates on this machine."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def summary(self) -> str:
        isas = ", ".join(isa.name for isa in self.isas)
        levels = ", ".join(f"{m.name} {capacity(m.capacity_bytes)}" for m in self.levels)
        return (
            f"{self.name}: {self.model_name}, {self.architecture}, {count(self.cores, 'core')} at "
            f"{rate(self.clock_hz, 'Hz')}; {isas}; {levels}"
        )

    def __hash__(self) -> int:
        """A hash of few fields, because libraries are looked up by their machine and machines are
        few."""
        return hash((self.name, self.cores, self.clock_hz, self.tuning))

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
    def l2_bytes(self) -> int:
        """Capacity of the level after L1."""
        return self.levels[min(1, len(self.levels) - 1)].capacity_bytes

    @property
    def widest(self) -> Isa:
        return self.isas[-1]

    def isa(self, name: str) -> Isa:
        """The ISA of a name. Raises HardwareError if the machine lacks it."""
        for isa in self.isas:
            if isa.name == name:
                return isa
        known = ", ".join(isa.name for isa in self.isas)
        raise HardwareError(f"{self.name} has no ISA {name!r}; it has {known}")

    def peak_flops_per_s(self, isa: Isa, types: ProductTypes, cores: int = 1) -> float:
        return cores * self.clock_hz * isa.peak_flops_per_cycle(types)
