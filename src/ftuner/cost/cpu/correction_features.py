"""Features of a learned correction: what a machine, a worker's share and a cover look like.

Features are free of scale, so that a model of one machine means something on another: ratios and
counts as binary logarithms, shares of a whole, and flags (0 or 1). Those of a share do not depend
on the rows of a product, those of a cover depend on nothing but its table and its rows.
"""

from __future__ import annotations

from math import log2

from ftuner.core.cpu.tile import RegisterTile
from ftuner.core.product import ProductTypes
from ftuner.cost.cpu.product import Cover, ProductMachine, ProductShare
from ftuner.cost.cpu.tile import LOW, PARTS, SEVERAL, TALL, FarPanel
from ftuner.hardware.model import CpuHardware, Isa

KINDS = (LOW, TALL, PARTS, SEVERAL)
"""Kinds of cover. A candidate's part of a correction has a value for each."""

MACHINE_FEATURES = (
    "machine.element_bytes", "machine.vector_bytes", "machine.registers", "machine.masked",
    "machine.fused", "machine.multiply_adds_per_cycle", "machine.loads_per_multiply_add",
    "machine.multiply_adds_in_flight", "machine.l2_vectors_per_cycle",
    "machine.last_cache_vectors_per_cycle", "machine.dram_vectors_per_cycle",
    "machine.last_cache_scaling", "machine.dram_scaling", "machine.l2_over_l1",
    "machine.last_cache_over_l2",
)  # fmt: skip
SHARE_FEATURES = (
    *MACHINE_FEATURES,
    "share.b_over_l2", "share.b_over_last_cache", "share.from_dram", "share.panel_over_l1",
    "share.panel_over_l2", "share.k_steps", "share.k_blocks", "share.panels", "share.padding",
    "share.workers", "share.workers_over_cores", "share.cut_batch", "share.cut_m", "share.cut_k",
    "share.columns_over_even", "share.vectors_over_registers", "share.rows_that_hide_b",
    "share.in_panels", "share.pack_a", "share.pack_b", "share.shared_pack", "share.widen",
    "share.window", "share.far_rows", "share.page_strides",
)  # fmt: skip
COVER_FEATURES = (
    "cover.rows", "cover.tiles", "cover.first_over_main", "cover.last_over_first",
    "cover.heights", "cover.stall_share", "cover.wait_share", "cover.fixed_share",
    "cover.accumulators_over_registers", "cover.chains", "cover.alone_low", "cover.alone_tall",
    "cover.alone_parts", "cover.far", "cover.from_dram", "cover.fetch_over_step", "cover.in_l1",
)  # fmt: skip


def machine_features(hardware: CpuHardware, isa: Isa, types: ProductTypes) -> tuple[float, ...]:
    """The features of a core of a machine, with an ISA and dtypes, in order of
    `MACHINE_FEATURES`. Bandwidths are in vectors per cycle."""
    rate = isa.multiply_add(types.multiplied)
    levels, vectors_per_s = hardware.levels, isa.vector_bytes * hardware.clock_hz
    l1, l2 = levels[0], levels[min(1, len(levels) - 1)]
    last, dram = levels[max(len(levels) - 2, 0)], levels[-1]
    cores = hardware.cores
    return (
        log2(types.a.itemsize),
        log2(isa.vector_bytes),
        log2(isa.vector_registers),
        float(isa.masked),
        float(rate.fused),
        log2(rate.per_cycle),
        log2(isa.load_per_cycle / rate.per_cycle),
        log2(rate.per_cycle * rate.latency_cycles),
        log2(l2.bandwidth_bytes_per_s / vectors_per_s),
        log2(last.bandwidth_bytes_per_s / vectors_per_s),
        log2(dram.bandwidth_bytes_per_s / vectors_per_s),
        log2(last.bandwidth_all_bytes_per_s / (cores * last.bandwidth_bytes_per_s)),
        log2(dram.bandwidth_all_bytes_per_s / (cores * dram.bandwidth_bytes_per_s)),
        log2(l2.capacity_bytes / l1.capacity_bytes),
        log2(last.capacity_bytes / l2.capacity_bytes),
    )


def share_features(
    machine: ProductMachine, share: ProductShare, *, nr: int, kc: int, registers: float,
    cores: int, from_dram: bool, issue_per_row: float,
) -> tuple[float, ...]:  # fmt: skip
    """The features of a worker's share, at any number of rows, in order of
    `SHARE_FEATURES` after those of the machine. `registers`: share of the vector registers that a
    row of the main tile takes; `issue_per_row`: cycles of multiply-adds of a row, a k step and a
    panel."""
    b_size = machine.types.b.itemsize
    b_bytes = max(share.elements * share.columns * share.k_steps * b_size, 1)
    panel_bytes = kc * nr * b_size
    panels = max(share.columns / nr, 1.0)
    fetch_s = b_bytes / machine.rates(share.workers)[int(from_dram)]
    row_s = share.elements * share.k_steps * panels * issue_per_row * machine.period_s
    even = share.batch * share.n * share.k * share.workers_m / share.workers
    return (
        log2(b_bytes / machine.l2_bytes),
        log2(max(share.batch * share.n * share.k * b_size, 1) / machine.last_cache_bytes),
        float(from_dram),
        log2(panel_bytes / machine.l1_bytes),
        log2(panel_bytes / machine.l2_bytes),
        log2(share.k_steps),
        log2(share.k_blocks),
        log2(panels),
        1.0 - share.panels * nr / max(share.columns, 1),
        log2(share.workers),
        log2(share.workers / cores),
        log2(share.batch / share.elements),
        log2(share.workers_m),
        log2(share.workers_k),
        log2(max(share.elements * share.columns * share.k_steps / max(even, 1.0), 1.0)),
        log2(registers),
        log2(fetch_s / row_s),
        float(share.in_panels),
        float(share.pack_a),
        float(share.pack_b),
        float(share.shared_pack),
        float(share.widen),
        float(share.window_elements > 0),
        float(share.b_k_bytes >= machine.page_bytes),
        float(share.k * machine.types.a.itemsize % machine.page_bytes == 0),
    )


def cover_features(
    cover: Cover, tile: RegisterTile, isa: Isa, *, main: int, kind: int, steps: int,
    far: FarPanel | None, in_l1: bool,
) -> tuple[float, ...]:  # fmt: skip
    """The features of a cover, in order of `COVER_FEATURES`. `tile`: the first one; `steps`:
    length of k that weighs its steps against entering a tile; `far`: where the panel comes from."""
    heights = [mr for mr, _ in cover.segments]
    rows = sum(mr * tiles for mr, tiles in cover.segments)
    cycles = cover.cycles(steps)
    return (
        log2(rows),
        log2(cover.tiles),
        log2(heights[0] / main),
        log2(heights[-1] / heights[0]),
        float(len(heights)),
        (cover.step - cover.issue) / cover.step,
        cover.wait / (cover.step + cover.wait),
        cover.fixed / cycles,
        tile.accumulators / isa.vector_registers,
        log2(tile.chains),
        *(float(KINDS[kind] == alone) for alone in (LOW, TALL, PARTS)),
        float(far is not None),
        float(far is not None and far.from_dram),
        0.0 if far is None else log2(far.cycles / cover.step),
        float(in_l1),
    )
