"""The nearest recorded machine: a distance that does not depend on clocks and cores."""

import math
from dataclasses import replace

import pytest
from tests.conftest import recorded_cpus

from ftuner.hardware import priors
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import FEATURES, MAX_DISTANCE, distance, nearest

BY_NAME = {machine.name: machine for machine in recorded_cpus()}
MILAN, ICE_LAKE = BY_NAME["epyc-milan-2"], BY_NAME["xeon-8375c"]
CLIENT, GRAVITON = BY_NAME["core-i7-8700"], BY_NAME["graviton2"]


def scaled(hardware: CpuHardware, clock: float, cores: int) -> CpuHardware:
    """The same cores at another clock and in another number, caches and DRAM included."""
    levels = tuple(
        replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * clock,
            bandwidth_all_bytes_per_s=level.bandwidth_all_bytes_per_s * clock * cores,
        )
        for level in hardware.levels
    )
    return replace(
        hardware, clock_hz=hardware.clock_hz * clock, cores=hardware.cores * cores, levels=levels
    )


def test_the_recorded_ones_are_those_of_the_package() -> None:
    assert priors.recorded_cpus() == recorded_cpus()


def test_a_machine_is_nearest_to_itself(recorded: CpuHardware) -> None:
    assert distance(recorded, recorded) == 0
    assert nearest(recorded, recorded_cpus()) == (recorded, 0.0)


def test_clock_and_cores_do_not_count(recorded: CpuHardware) -> None:
    assert distance(scaled(recorded, 1.7, 4), recorded) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("other", BY_NAME.values(), ids=BY_NAME.keys())
def test_symmetric(recorded: CpuHardware, other: CpuHardware) -> None:
    assert distance(recorded, other) == distance(other, recorded)


def test_architectures_have_no_distance() -> None:
    assert math.isinf(distance(GRAVITON, MILAN))
    assert nearest(GRAVITON, [MILAN, ICE_LAKE]) is None
    assert nearest(GRAVITON, []) is None


def test_every_feature_counts_more_the_more_it_differs() -> None:
    for near, far in ((1.1, 1.2), (1.2, 2.0)):
        for level in range(4):
            distances = []
            for factor in (near, far):
                changed = list(MILAN.levels)
                faster = changed[level].bandwidth_bytes_per_s * factor
                larger = int(changed[level].capacity_bytes * factor)
                changed[level] = replace(
                    changed[level], bandwidth_bytes_per_s=faster, capacity_bytes=larger
                )
                distances.append(distance(replace(MILAN, levels=tuple(changed)), MILAN))
            assert 0 < distances[0] < distances[1]
    assert set(FEATURES) > {"vector_bytes", "l2_bytes", "dram_bytes_per_cycle_of_all"}


def test_a_machine_without_l3() -> None:
    bare = replace(MILAN, levels=(*MILAN.levels[:2], MILAN.levels[3]))
    assert distance(bare, bare) == 0
    assert 0 < distance(bare, MILAN) < math.inf


def test_known_distances() -> None:
    """Machines that share their units are within the limit, others are not."""
    # 512-bit vectors of two cycles each, as Zen 4 computes them, on Zen 3's caches.
    wide = replace(ICE_LAKE.widest, fma_per_cycle=1.0, load_per_cycle=1.0)
    zen4 = replace(MILAN, isas=(*MILAN.isas, wide))
    assert distance(zen4, MILAN) < MAX_DISTANCE < distance(zen4, ICE_LAKE)
    assert distance(CLIENT, MILAN) < MAX_DISTANCE
    assert distance(ICE_LAKE, MILAN) > MAX_DISTANCE
    assert distance(ICE_LAKE, CLIENT) > MAX_DISTANCE
    found = nearest(zen4, recorded_cpus())
    assert found is not None
    assert found.machine == MILAN
