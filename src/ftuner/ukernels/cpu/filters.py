"""Enumeration: every register tile that an ISA could hold, before any filter; dot tiles.

Thresholds start where FTuner (arXiv 2407.21418) starts, at 0.95, and are relaxed by 0.05 until
something is left, so that no machine ends with an empty library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from math import ceil

from ftuner.core.cpu.tile import RegisterTile
from ftuner.core.frozen import dataclass
from ftuner.core.product import ProductTypes
from ftuner.cost.cpu.tile import (
    StepCycles,
    efficiency,
    panel_intensity,
    step_cycles,
    step_cycles_at,
    tile_cycles,
)
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.hardware.tuning import CpuTuning
from ftuner.ukernels.funnel import THRESHOLD, THRESHOLD_STEP, Funnel, Sieve

MAX_VECTORS = 8
MAX_CHAINS = 8
MAX_PARTS = 2
"""Of more, each would read too narrow a strip of a panel: cache lines are fetched in pairs."""


def register_tiles(isa: Isa) -> list[RegisterTile]:
    """All tiles with no more accumulators than registers, smallest first."""
    return [
        RegisterTile(mr, vectors, chains, parts)
        for parts in range(1, MAX_PARTS + 1)
        for vectors in range(1, MAX_VECTORS + 1)
        for mr in range(1, isa.vector_registers // vectors + 1)
        for chains in range(1, MAX_CHAINS + 1)
        if mr * vectors * chains <= isa.vector_registers
    ]


def dot_tiles(isa: Isa, types: ProductTypes, tuning: CpuTuning) -> list[RegisterTile]:
    """Dot tiles (`tile.DOT`), one for each height and number of columns that the registers hold
    together with the operands of the shorter side and one of the other; as many chains as hide the
    latency of a multiply-add, if there is room."""
    rate = isa.multiply_add(types)
    needed = rate.latency_cycles * rate.per_cycle
    found = []
    for columns in range(1, tuning.max_dot_columns + 1):
        for mr in range(1, max(tuning.max_dot_rows, columns) + 1):
            room = isa.vector_registers - min(mr, columns) - (1 if rate.fused else 2)
            if mr * columns <= room:
                chains = min(ceil(needed / (mr * columns)), room // (mr * columns))
                found.append(RegisterTile(mr, columns, max(chains, 1)))
    return found


def with_matrix_tiles(
    tiles: Sequence[RegisterTile], vectors: int, isa: Isa, types: ProductTypes, in_place: bool
) -> list[RegisterTile]:
    """Tiles of one width, one for each height, where the machine may have a matrix unit: up to the
    rows of its registers, those that it multiplies in fewer cycles. All of them where sums are
    rounded: a row's bits then do not depend on the rows beside it. Where rows of A are read in
    place, two registers of rows by two of columns are a tile, too: each that is loaded is
    multiplied twice."""
    unit = instruction_set(isa.name).matrix
    if isa.tile_multiply_add(types) is None or unit is None or vectors > unit.registers - 4:
        return list(tiles)

    def cycles(tile: RegisterTile) -> float:
        return step_cycles(tile, isa, types).cycles

    by_height = {tile.mr: tile for tile in tiles if tile.parts == 1}
    for height in range(1, unit.rows + 1):
        tile = RegisterTile(height, vectors, 1, matrix=True)
        known = by_height.get(height)
        if known is None or types.accumulator.kind == "float" or cycles(tile) < cycles(known):
            by_height[height] = tile
    found = [tile for height, tile in by_height.items() if height <= unit.rows]
    if in_place and vectors % 2 == 0:
        found.append(RegisterTile(2 * unit.rows, 2, 1, vectors // 2, matrix=True))
    return found


@dataclass(frozen=True, repr=False)
class RegisterFunnel(Funnel[RegisterTile]):
    """A funnel of register tiles, with the panel widths that were kept."""

    widths: tuple[int, ...]
    """Widths of full panels, in vectors, narrowest first; narrower ones serve tails only."""
    tail_heights: tuple[int, ...]
    """For each width up to the widest, the tallest tile of tails of an A in rows or columns. Taller
    ones are for windows."""


def registers_needed(tile: RegisterTile, fused: bool) -> int:
    """Accumulators, one row of B, one element of A, and where multiply-add is not one instruction
    the product on its way."""
    return tile.accumulators + tile.vectors + 1 + (0 if fused else 1)


@lru_cache(maxsize=64)
def run_filters(isa: Isa, types: ProductTypes, hardware: CpuHardware) -> RegisterFunnel:
    """Enumerate register tiles, and apply all filters in order.

    The result holds exactly one tile for each height and width that it covers.
    """
    tuning, rate = hardware.tuning, isa.multiply_add(types)
    fused = rate.fused
    sieve = Sieve(register_tiles(isa))
    keep = sieve.keep

    @cache
    def step(tile: RegisterTile) -> StepCycles:
        return step_cycles_at(rate, tile, isa)

    keep(
        "registers",
        "accumulators, a row of B and an element of A do not fit the vector registers",
        lambda t: registers_needed(t, fused) <= isa.vector_registers,
    )
    keep(
        "chains",
        "fewer chains already hide the latency of a multiply-add",
        lambda t: (
            t.chains == 1
            or step(RegisterTile(t.mr, t.vectors, t.chains - 1)).latency > step(t).issue
        ),
    )
    best_chains: dict[tuple[int, int, int], RegisterTile] = {}
    for tile in sieve.left:
        place = (tile.mr, tile.vectors, tile.parts)
        found = best_chains.get(place)
        if found is None or step(tile).cycles < step(found).cycles:
            best_chains[place] = tile
    keep(
        "latency",
        "more chains of the same tile hide more of the latency",
        lambda t: best_chains[t.mr, t.vectors, t.parts] == t,
    )
    whole = [t for t in sieve.left if t.parts == 1]
    tallest = {t.vectors: t.mr for t in sorted(whole, key=lambda t: t.mr)}
    widths, reason = _kept_widths(whole, isa, types, hardware)
    keep("width", reason, lambda t: t.width in widths or (t.parts == 1 and t.width < max(widths)))
    in_parts = _heights_in_parts([t for t in sieve.left if t.parts > 1], tallest, isa, types)
    keep(
        "parts",
        "one tile of the width is as tall, or loads or latency hold the parts, or lower ones that "
        f"are not, under {THRESHOLD} of the peak",
        lambda t: t.parts == 1 or t.mr in in_parts[t.width],
    )
    by_width = {v: [t for t in whole if t.vectors == v] for v in range(1, max(widths) + 1)}
    heights = {v: _tail_height(tiles, step, tuning, 0) for v, tiles in by_width.items()}
    of_windows = {
        v: _tail_height(tiles, step, tuning, tuning.short_window_elements)
        for v, tiles in by_width.items()
    }
    keep(
        "tail height",
        "a lower tile of a width that only tails use comes within 0.95 of its best at short k, or "
        f"it has more than {tuning.max_tail_rows} rows",
        lambda t: t.width in widths or t.mr <= max(heights[t.width], of_windows[t.width]),
    )
    left = tuple(sieve.left)
    of_tails = tuple(tallest[v] if v in widths else heights[v] for v in by_width)
    return RegisterFunnel(sieve.enumerated, sieve.pruned, left, tuple(sorted(widths)), of_tails)


def _kept_widths(
    tiles: list[RegisterTile], isa: Isa, types: ProductTypes, hardware: CpuHardware
) -> tuple[set[int], str]:
    """Widths whose tallest tile is neither load-bound nor bound by L2, fewest loads first."""
    tuning = hardware.tuning
    tallest = {t.vectors: t for t in sorted(tiles, key=lambda t: t.mr)}
    l2 = hardware.levels[min(1, len(hardware.levels) - 1)]
    threshold = THRESHOLD
    while threshold > 0:
        passing = [
            t
            for t in tallest.values()
            if efficiency(t, isa, types) >= threshold
            and panel_intensity(t, isa, types, hardware, l2) >= threshold
        ]
        if passing:
            break
        threshold -= THRESHOLD_STEP
    else:
        passing = list(tallest.values())

    def loads_per_multiply_add(tile: RegisterTile) -> tuple[float, int]:
        return ((tile.mr + tile.vectors) / (tile.mr * tile.vectors), tile.vectors)

    chosen = sorted(passing, key=loads_per_multiply_add)[: tuning.max_widths]
    most, least = (loads_per_multiply_add(t)[0] for t in (chosen[-1], chosen[0]))
    if most < tuning.same_loads_ratio * least:
        lanes = isa.lanes(types.accumulator)
        chosen = sorted(chosen, key=lambda t: tuning.common_columns % (t.vectors * lanes) > 0)[:1]
    reason = (
        f"load ports or L2 hold its tallest tile under {threshold:.2f} of the peak, "
        "or other widths load less for each multiply-add, or as little and divide common extents"
    )
    return {t.vectors for t in chosen}, reason


def _heights_in_parts(
    tiles: list[RegisterTile], tallest: Mapping[int, int], isa: Isa, types: ProductTypes
) -> Mapping[int, range]:
    """By width, the heights from `tallest` on that tiles in parts reach at near the peak."""
    found = {}
    for width, height in tallest.items():
        fast = {t.mr for t in tiles if t.width == width and efficiency(t, isa, types) >= THRESHOLD}
        end = height + 1
        while end in fast:
            end += 1
        found[width] = range(height + 1, end)
    return found


def _tail_height(
    tiles: list[RegisterTile], step: Callable[[RegisterTile], StepCycles], tuning: CpuTuning,
    elements: int,
) -> int:  # fmt: skip
    """The height of the lowest tile that comes within the threshold of the best of its width at
    short k, or `tuning.max_tail_rows`. `step`: cycles of a k step. `elements`: of the window that A
    is read through; 0 if there is none."""
    steps = tuning.short_window_steps if elements else tuning.short_k_steps

    def rate(tile: RegisterTile) -> float:
        of_steps = steps * step(tile).cycles
        of_window = elements * tuning.window_element_cycles
        return tile.mr / (of_steps + of_window + tile_cycles(tile, tuning))

    best = max(rate(t) for t in tiles)
    height = min(t.mr for t in tiles if rate(t) >= THRESHOLD * best)
    return min(height, tuning.max_tail_rows)
