"""The funnel: every tile is accounted for, what is kept can run, and no library is empty."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.conftest import recorded_cpus

from ftuner.core.cpu.tile import COLUMN, PACKED, ROW, WINDOW, RegisterTile
from ftuner.core.dtype import BFLOAT16, DTYPES, FLOAT32, UINT8
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import WORD_PRODUCTS, product_types
from ftuner.cost.cpu.tile import step_cycles
from ftuner.errors import HardwareError
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.ops.layer import layer_epilogue
from ftuner.ukernels.cpu.filters import (
    register_tiles,
    registers_needed,
    run_filters,
    with_matrix_tiles,
)
from ftuner.ukernels.cpu.library import Library, build_library, families_of_calls


def libraries(machine: CpuHardware) -> Iterator[Library]:
    for isa in machine.isas:
        for dtype in DTYPES.values():
            yield build_library(machine, isa.name, product_types(dtype))


def test_every_tile_is_accounted_for(recorded: CpuHardware) -> None:
    for library in libraries(recorded):
        funnel = library.funnel
        tiles = register_tiles(library.isa)
        assert funnel.enumerated == len(tiles) == len(set(tiles))
        pruned = [tile for stage in funnel.pruned for tile in stage.tiles]
        assert len(pruned) + len(funnel.kept) == funnel.enumerated
        assert sorted([*pruned, *funnel.kept], key=str) == sorted(tiles, key=str)
        assert all(stage.name and stage.reason for stage in funnel.pruned)


def test_kept_tiles_fit_the_registers(recorded: CpuHardware) -> None:
    for library in libraries(recorded):
        isa = library.isa
        for tile in library.funnel.kept:
            assert registers_needed(tile, isa.fused) <= isa.vector_registers
            assert tile.accumulators + tile.vectors + 1 <= isa.vector_registers


def test_the_tallest_tile_fills_the_registers(recorded: CpuHardware) -> None:
    """One more row would not fit."""
    for library in libraries(recorded):
        for width in library.widths:
            tallest = max(
                (t for t in library.funnel.kept if t.vectors == width), key=lambda t: t.mr
            )
            taller = replace(tallest, mr=tallest.mr + 1, chains=1)
            assert registers_needed(taller, library.isa.fused) > library.isa.vector_registers


def test_one_tile_for_each_height_and_width(recorded: CpuHardware) -> None:
    for library in libraries(recorded):
        places = [(t.mr, t.width) for t in library.funnel.kept]
        assert len(set(places)) == len(places)
        for width in range(1, max(library.widths) + 1):
            heights = sorted(mr for mr, w in places if w == width)
            assert heights == list(range(1, len(heights) + 1))
            assert heights


def test_no_library_is_empty(recorded: CpuHardware) -> None:
    for library in libraries(recorded):
        assert 1 <= len(library.widths) <= CpuTuning().max_widths
        assert list(library.widths) == sorted(library.widths)
        assert families_of_calls(library)


def test_the_tallest_tiles_hide_latency_and_loads(recorded: CpuHardware) -> None:
    for library in libraries(recorded):
        for width in library.widths:
            tallest = max(
                (t for t in library.funnel.kept if t.vectors == width), key=lambda t: t.mr
            )
            step = step_cycles(tallest, library.isa, library.types)
            assert step.issue >= 0.95 * step.cycles


@pytest.mark.parametrize("registers", [4, 6, 8, 16, 64])
@pytest.mark.parametrize("latency", [1.0, 20.0])
@pytest.mark.parametrize("bandwidth", [1e6, 1e12])
def test_odd_machines_get_a_library(registers: int, latency: float, bandwidth: float) -> None:
    """Thresholds relax until something is left."""
    machine = recorded_cpus()[0]
    isa = replace(machine.widest, vector_registers=registers, fma_latency_cycles=latency)
    levels = tuple(replace(level, bandwidth_bytes_per_s=bandwidth) for level in machine.levels)
    odd = replace(machine, isas=(isa,), levels=levels)
    funnel = run_filters(isa, product_types(FLOAT32), odd)
    assert funnel.widths
    assert funnel.kept
    library = Library(odd, isa, product_types(FLOAT32), ACCUMULATOR, funnel)
    assert all(family.kernels for family in families_of_calls(library))


def test_families_hold_each_height_once(recorded: CpuHardware) -> None:
    for library in libraries(recorded):
        families = families_of_calls(library)
        assert len({family.name for family in families}) == len(families)
        symbols = [kernel.symbol for family in families for kernel in family.kernels]
        assert len(set(symbols)) == len(symbols)
        for family in families:
            assert [kernel.mr for kernel in family.kernels] == list(range(1, family.max_mr + 1))
            assert {kernel.nr for kernel in family.kernels} == {family.nr}
            assert family.b_layout == PACKED or not family.tail
        for vectors in range(1, max(library.widths) + 1):
            for a_layout in (ROW, COLUMN):
                assert library.family(vectors, True, a_layout, PACKED) in families


def test_tails_of_windows_may_be_taller(recorded: CpuHardware) -> None:
    """A window costs each tile some cycles, which more rows share."""
    for library in libraries(recorded):
        for vectors in range(1, max(library.widths) + 1):
            in_rows, window = (
                library.family(vectors, True, layout, PACKED).max_mr for layout in (ROW, WINDOW)
            )
            assert in_rows <= window <= library.hardware.tuning.max_tail_rows or (
                vectors in library.widths and in_rows == window
            )


def test_layers_pack_their_weight(recorded: CpuHardware) -> None:
    library = build_library(
        recorded, recorded.widest.name, product_types(FLOAT32), layer_epilogue(True, "relu", False)
    )
    assert all(family.b_layout == PACKED for family in families_of_calls(library))


def test_unknown_isa(recorded: CpuHardware) -> None:
    with pytest.raises(HardwareError, match="has no ISA 'amx'; it has"):
        build_library(recorded, "amx", product_types(FLOAT32))


def test_a_matrix_unit_has_the_tiles_that_it_multiplies_faster() -> None:
    (hardware,) = (m for m in recorded_cpus() if m.name == "xeon-8375c")
    types, of_floats = WORD_PRODUCTS[UINT8], WORD_PRODUCTS[BFLOAT16]
    rates = {"of_bytes_per_cycle": 2.0, "of_bfloat16_per_cycle": 0.5}
    vectors = replace(hardware.widest, **rates)
    with_unit = replace(vectors, tiles_of_bytes_per_cycle=16.0, tiles_of_bfloat16_per_cycle=16.0)
    machine = replace(hardware, isas=(*hardware.isas[:-1], vectors))
    tiles = [RegisterTile(mr, 4, 2 if mr == 1 else 1) for mr in range(1, 7)]
    assert with_matrix_tiles(tiles, 4, vectors, types, True) == tiles
    found = with_matrix_tiles(tiles, 4, with_unit, types, True)
    assert [tile.mr for tile in found] == [*range(1, 17), 32]
    windows = with_matrix_tiles(tiles, 4, with_unit, types, False)
    assert windows == found[:-1]
    assert [tile.mr for tile in found if not tile.matrix] == [1]
    # Sums of floats are rounded: all rows by one unit.
    assert all(tile.matrix for tile in with_matrix_tiles(tiles, 4, with_unit, of_floats, True))
    # Tiles of more vectors than the unit has registers for are left as they are.
    wide = [RegisterTile(1, 5, 1)]
    assert with_matrix_tiles(wide, 5, with_unit, types, True) == wide
    for isa in (vectors, with_unit):
        library = build_library(replace(machine, isas=(isa,)), isa.name, types)
        family = library.family(library.widths[0], False, ROW, PACKED)
        assert (family.max_mr == 32) == (isa is with_unit)
        column = library.family(library.widths[0], False, COLUMN, PACKED)
        assert not any(kernel.tile.matrix for kernel in column.kernels)
