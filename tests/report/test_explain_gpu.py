"""Explanations of plans for GPUs: what adds up, what is drawn, what is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.recorded_gpus import GPUS

from ftuner.errors import ConfigurationError, DTypeError, HardwareError, ShapeError
from ftuner.hardware.recorded import load_recorded
from ftuner.report.explain import BlockExplanation, explain
from ftuner.report.picture import plan_picture
from ftuner.report.plots import save_picture


def explained(
    m: int, n: int, k: int, batch: int = 1, dtype: str = "float16", name: str = "h200"
) -> BlockExplanation:
    found = explain(m, n, k, batch, dtype, None, load_recorded(name))
    assert isinstance(found, BlockExplanation)
    return found


def drawn(found: BlockExplanation) -> list[str]:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(plan_picture(found.plan))
    return capture.get().splitlines()


@settings(max_examples=60)
@given(
    m=st.integers(1, 3000), n=st.integers(1, 3000), k=st.integers(1, 5000),
    batch=st.integers(1, 5), name=st.sampled_from(GPUS),
)  # fmt: skip
def test_bands_cover_all_rows_and_tiles_are_numbered_once(
    m: int, n: int, k: int, batch: int, name: str
) -> None:
    found = explained(m, n, k, batch, name=name)
    bands, plan = found.bands(), found.plan
    assert [b.rows[0] for b in bands] == [0, *(b.rows[1] for b in bands[:-1])]
    assert bands[-1].rows[1] == m
    assert batch * sum(b.tiles for b in bands) == plan.tiles
    assert 0 <= found.plan.idle < plan.programs
    numbers = [
        plan.number(row, column)
        for tile, first, last in plan.bands
        for row in range(first, last, tile.bm)
        for column in range(0, n, tile.bn)
    ]
    assert len(set(numbers)) == len(numbers) == plan.tiles // batch
    assert max(numbers) < plan.tiles
    assert max(plan.wave(row, n - 1) for row in (0, m - 1)) < plan.waves
    assert 0 <= found.wasted_fraction < 1
    json.dumps(found.to_document())


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_chip_has_plans(name: str, dtype: str) -> None:
    found = explained(1000, 4096, 4096, dtype=dtype, name=name)
    assert 0 < found.roofline.fraction_of_peak < 1
    assert found.kept <= found.enumerated
    assert found.estimate.seconds >= found.contraction.flops / found.roofline.peak_flops_per_s


def test_a_picture_of_waves() -> None:
    found = explained(4096, 4096, 1024)
    lines = drawn(found)
    assert found.plan.waves > 1
    assert {"a", "b"} <= set("".join(lines))
    assert lines[-1].startswith(f"C is 4096 x 4096; {found.plan.units} units in")
    assert any(line.startswith("wave   1") for line in lines)


def test_a_picture_of_one_element() -> None:
    assert drawn(explained(1, 1, 1))[0] == "0 a"


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_drawing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    save_picture(explained(1000, 4096, 4096), path)
    assert path.stat().st_size > 5000


def test_what_is_refused() -> None:
    h200, v100 = load_recorded("h200"), load_recorded("v100")
    with pytest.raises(DTypeError, match="tf32"):
        explain(5, 5, 5, 1, "float64", None, h200)
    with pytest.raises(HardwareError, match="bfloat16"):
        explain(5, 5, 5, 1, "bfloat16", None, v100)
    with pytest.raises(ShapeError, match="m is 0"):
        explain(0, 5, 5, 1, "float16", None, h200)
    with pytest.raises(ConfigurationError, match="workers"):
        explain(5, 5, 5, 1, "float16", 3, h200)
    with pytest.raises(ConfigurationError, match="isa"):
        explain(5, 5, 5, 1, "float16", None, h200, "avx2")
