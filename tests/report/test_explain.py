"""Explanations: the patches tile the iteration space, and the numbers agree with each other."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftuner.errors import ConfigurationError, DTypeError, HardwareError, ShapeError
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.report.explain import Explanation, explain
from ftuner.report.roofline import COMPUTE

CPUS = [name for name in recorded_names() if isinstance(load_recorded(name), CpuHardware)]
EXTENTS = st.one_of(st.integers(1, 40), st.integers(41, 300))


def _explain(m: int, n: int, k: int, **more: object) -> Explanation:
    given_ = {"batch": 1, "dtype": "float32", "workers": None, "hardware": "epyc-milan-2", **more}
    machine = load_recorded(str(given_.pop("hardware")))
    return explain(m, n, k, hardware=machine, **given_)  # type: ignore[arg-type]


@settings(max_examples=60)
@given(
    m=EXTENTS,
    n=EXTENTS,
    k=st.sampled_from((1, 7, 64, 700, 5000)),
    batch=st.sampled_from((1, 2, 5)),
    dtype=st.sampled_from(("float32", "float64")),
    machine=st.sampled_from(CPUS),
    workers=st.sampled_from((1, 2, None)),
)
def test_patches_tile_the_iteration_space(
    m: int, n: int, k: int, batch: int, dtype: str, machine: str, workers: int | None
) -> None:
    found = _explain(m, n, k, batch=batch, dtype=dtype, hardware=machine, workers=workers)
    once = np.zeros((m, n), np.int64)
    for region in found.regions():
        once[slice(*region.rows), slice(*region.columns)] += 1
    assert (once == 1).all()
    # Along batch and k, ranges are coarse: the cells between their edges stand for all.
    steps = np.zeros((m, n), np.int64)
    for patch in found.patches():
        depth = (patch.batch[1] - patch.batch[0]) * (patch.k[1] - patch.k[0])
        steps[slice(*patch.rows), slice(*patch.columns)] += depth
        assert patch.rows[1] - patch.rows[0] == patch.tiles * patch.kernel.mr
        assert patch.columns[1] - patch.columns[0] <= patch.panels * patch.kernel.nr
    assert (steps == batch * k).all()
    assert found.wasted_rows == 0
    assert 0 <= found.wasted_columns < found.isa.lanes(found.contraction.types.accumulator)


@pytest.mark.parametrize("machine", CPUS)
def test_numbers_agree(machine: str) -> None:
    found = _explain(77, 770, 768, hardware=machine)
    line = found.roofline
    assert found.widths[0].vectors == found.plan.choice.vectors
    assert found.widths[0].seconds == found.estimate.seconds == min(w.seconds for w in found.widths)
    assert math.isclose(line.predicted_flops_per_s * found.estimate.seconds, 2 * 77 * 770 * 768)
    assert 0 < line.fraction_of_peak <= 1
    assert line.peak_flops_per_s == found.hardware.peak_flops_per_s(
        found.isa, found.contraction.types, found.hardware.cores
    )
    assert [roof.level for roof in line.roofs] == [level.name for level in found.hardware.levels]
    assert all(roof.attainable_flops_per_s <= line.peak_flops_per_s for roof in line.roofs)


def test_roofline_bounds() -> None:
    """A large square product is bound by computing; a vector times a large matrix by DRAM."""
    assert _explain(2048, 2048, 2048).roofline.bound == COMPUTE
    thin = _explain(1, 16384, 16384).roofline
    assert (thin.home, thin.bound) == ("DRAM", "DRAM")
    assert _explain(8, 8, 8).roofline.home == "L1"


def test_wasted_columns() -> None:
    assert _explain(5, 770, 64).wasted_columns == 6
    found = _explain(5, 768, 64)
    assert found.wasted_columns == 0
    assert found.wasted_fraction == 0


def test_document_is_json() -> None:
    found = _explain(77, 770, 768, workers=1, isa="sse2")
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert document["isa"] == "sse2"
    assert document["workers"] == 1
    assert document["contraction"]["flops"] == 2 * 77 * 770 * 768
    assert document["estimate"]["seconds"] == found.estimate.seconds
    area = sum(
        (p["rows"][1] - p["rows"][0]) * (p["columns"][1] - p["columns"][0])
        for p in document["plan"]["patches"]
    )
    assert area == 77 * 770


def test_errors() -> None:
    with pytest.raises(HardwareError, match="avx9"):
        _explain(1, 1, 1, isa="avx9")
    with pytest.raises(ShapeError, match="n is 0"):
        _explain(1, 0, 1)
    with pytest.raises(DTypeError, match="int8"):
        _explain(1, 1, 1, dtype="int8")
    for workers in (0, 3):
        with pytest.raises(ConfigurationError, match=f"workers is {workers}"):
            _explain(1, 1, 1, workers=workers)
