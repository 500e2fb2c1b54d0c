"""Cycles of register tiles: never beyond the peak, and fewer where more hides latency."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import recorded_cpus

from ftuner.core.cpu.tile import RegisterTile
from ftuner.core.dtype import DTYPES, FLOAT32
from ftuner.core.product import product_types
from ftuner.cost.cpu.tile import efficiency, panel_intensity, step_cycles, tile_cycles
from ftuner.hardware.model import CpuHardware

FLOATS = product_types(FLOAT32)

tiles = st.builds(RegisterTile, st.integers(1, 12), st.integers(1, 8), st.integers(1, 8))
machines = st.sampled_from(recorded_cpus())


@given(tile=tiles, machine=machines)
def test_step_cycles(tile: RegisterTile, machine: CpuHardware) -> None:
    for isa in machine.isas:
        step = step_cycles(tile, isa, FLOATS)
        assert min(step.issue, step.latency, step.load) > 0
        assert step.cycles == max(step.issue, step.latency, step.load)
        assert 0 < efficiency(tile, isa, FLOATS) <= 1
        taller = step_cycles(RegisterTile(tile.mr + 1, tile.vectors, tile.chains), isa, FLOATS)
        assert taller.cycles >= step.cycles
        chained = step_cycles(RegisterTile(tile.mr, tile.vectors, tile.chains + 1), isa, FLOATS)
        assert chained.cycles <= step.cycles
        assert 0 < tile_cycles(tile, machine.tuning) < tile_cycles(tile, machine.tuning, True)
        l1, l2 = machine.levels[:2]
        for dtype in DTYPES.values():
            assert panel_intensity(tile, isa, product_types(dtype), machine, l1) > 0
            assert panel_intensity(tile, isa, product_types(dtype), machine, l2) > 0


def test_known_step() -> None:
    """6x16 of float32 on a core with two 8-lane multiply-adds and two loads a cycle: 12
    multiply-adds take 6 cycles, 8 loads take 4, and 4 cycles of latency hide."""
    machine = next(m for m in recorded_cpus() if m.name == "core-i7-8700")
    isa = machine.isa("avx2")
    step = step_cycles(RegisterTile(6, 2, 1), isa, FLOATS)
    assert (step.issue, step.latency, step.load) == (6.0, 4.0, 4.0)
    assert efficiency(RegisterTile(6, 2, 1), isa, FLOATS) == 1.0
    assert efficiency(RegisterTile(1, 1, 1), isa, FLOATS) == pytest.approx(0.125)
