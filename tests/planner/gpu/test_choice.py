"""The plan beside the best of all tiles that fit a chip, under the planner's own estimate."""

import pytest
from tests.recorded_gpus import gpu

from ftuner.core.dtype import BFLOAT16
from ftuner.cost.gpu.product import chip_of, tiling_of
from ftuner.cost.gpu.tile import ProductForm, tile_cost
from ftuner.planner.gpu.candidates import Candidate
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.ukernels.gpu.filters import block_tiles
from ftuner.ukernels.gpu.library import build_gpu_library

SHAPES = (
    (1, 4096, 4096), (5, 768, 768), (16, 6144, 4096), (33, 28672, 4096), (48, 4096, 4096),
    (64, 4096, 14336), (77, 768, 768), (77, 3072, 768), (128, 3072, 768), (200, 4096, 14336),
    (256, 768, 3072), (333, 6144, 4096), (384, 2304, 768), (511, 384, 1536), (777, 3001, 1001),
    (992, 768, 3072), (1024, 1024, 16384), (1531, 4096, 4096), (2048, 2304, 768),
    (4096, 4096, 4096), (35, 700, 2048), (3000, 7680, 2560),
)  # fmt: skip
LEAST_COLUMNS = 32
MOST_KERNELS = 32


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h200", "b200"])
def test_the_plan_is_nearly_the_best_of_all_tiles(name: str) -> None:
    hardware = gpu(name)
    library = build_gpu_library(hardware, BFLOAT16)
    planner, chip = product_planner_for(library), chip_of(hardware, BFLOAT16)
    costs = [
        cost
        for tile in block_tiles(BFLOAT16.itemsize)
        if (cost := tile_cost(hardware, tile, ProductForm(BFLOAT16, "bfloat16"))) is not None
        and tile.stages > 2
        and tile.bn >= LEAST_COLUMNS
    ]
    assert len(costs) > 300
    assert len(library.kernels("k", "k")) <= MOST_KERNELS
    for m, n, k in SHAPES:
        best_s = min(
            Candidate(chip, (cost.tile,), tiling_of((cost,), n, k, 1, hardware.bulk_copy),
                      hardware.tuning).at(m).seconds(m, chip.overlap_exponent)
            for cost in costs
        )  # fmt: skip
        chosen_s = planner.estimate(planner.plan(ProductProblem(m, n, k))).seconds
        assert chosen_s <= 1.03 * best_s, (m, n, k)
