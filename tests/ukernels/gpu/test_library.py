"""Block tiles of every recorded chip: what is kept can run, and nothing is lost on the way."""

import pytest
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ftuner.cost.gpu.tile import MULTIPLIES, multiplied_on, supports
from ftuner.errors import DTypeError, HardwareError
from ftuner.ukernels.gpu.library import build_gpu_library

CASES = [(name, d, m) for name in GPUS for d, known in MULTIPLIES.items() for m in known]


@pytest.mark.parametrize(("name", "dtype", "multiply"), CASES, ids=str)
def test_libraries(name, dtype, multiply) -> None:  # type: ignore[no-untyped-def]
    hardware = gpu(name)
    if not supports(hardware, multiply):
        with pytest.raises(HardwareError, match="has no matrix units for"):
            build_gpu_library(hardware, dtype, multiply)
        return
    library = build_gpu_library(hardware, dtype, multiply)
    funnel = library.funnel
    assert len(funnel.kept) + sum(len(p.tiles) for p in funnel.pruned) == funnel.enumerated
    assert all(p.name and p.reason for p in funnel.pruned)
    # Where vector units are faster, parts in tf32 need no large tiles.
    assert 5 <= len(library.tiles) <= 14 or multiplied_on(hardware, "float32") != multiply
    # One row alone is no reason for a tall tile.
    assert min(tile.bm for tile in library.tiles) <= 32
    for tile in (*library.tiles, *(low for _, low in library.pairs)):
        cost = library.cost(tile)
        assert cost.blocks >= 1
        kernel = library.kernel((tile,), "k", "k", 16)
        assert kernel.shared_bytes(hardware.architecture) <= hardware.shared_bytes_per_block
        assert tile.warps * hardware.warp_threads * cost.blocks <= (
            hardware.threads_per_multiprocessor
        )
    for tall, low in library.pairs:
        assert tall in library.tiles
        assert low.bm < tall.bm
        assert (tall.bn, tall.bk, tall.warps, tall.stages) == (
            low.bn, low.bk, low.warps, low.stages,
        )  # fmt: skip


def test_warps_are_specialised_where_that_is_done() -> None:
    """What is stored by the copy engine, in one part, where a block has room for it."""
    for name in GPUS:
        hardware = gpu(name)
        if not supports(hardware, "bfloat16"):
            continue
        kernels = build_gpu_library(hardware, BFLOAT16).kernels("k", "k")
        found = [kernel for kernel in kernels if kernel.specialised]
        assert bool(found) == (hardware.architecture == "sm_100")
        for kernel in found:
            assert kernel.stores_by_descriptor
            assert not kernel.split
            assert kernel.shared_bytes("sm_100") <= hardware.shared_bytes_per_block
    loose = build_gpu_library(gpu("b200"), BFLOAT16).kernels("k", "k", c_aligned=False)
    assert not any(kernel.specialised for kernel in loose)


def test_what_is_refused() -> None:
    with pytest.raises(DTypeError, match="float64"):
        build_gpu_library(gpu("h200"), FLOAT64)
    with pytest.raises(DTypeError, match="not multiplied as tf32"):
        build_gpu_library(gpu("h200"), FLOAT16, "tf32")
    assert build_gpu_library(gpu("h200"), FLOAT32).multiply == "float32"
