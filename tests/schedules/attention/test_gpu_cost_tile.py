"""What tiles of attention take, next to what ptxas reported of them; and how it grows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32
from ftuner.core.gpu.attention import AttentionForm, AttentionMask, AttentionTile
from ftuner.schedules.attention.gpu_cost_tile import (
    attention_tile_cost,
    instruction_of,
    registers_per_thread,
    resident_tiles,
    shared_bytes,
)

REPORTED = (
    # Chip, what is multiplied, elements, tile (rows, keys, warps, stages); registers and spilled
    # bytes of a thread, shared memory. Causal kernels, compiled by Triton 3.9.
    ("h200", "bfloat16", 64, (16, 64, 4, 2), 68, 0, 20512),
    ("h200", "bfloat16", 64, (64, 64, 4, 2), 132, 0, 41984),
    ("h200", "bfloat16", 64, (64, 128, 4, 2), 195, 0, 74752),
    ("h200", "bfloat16", 64, (128, 64, 4, 2), 228, 0, 49184),
    ("h200", "bfloat16", 64, (128, 128, 8, 2), 195, 0, 82944),
    ("h200", "bfloat16", 128, (16, 128, 4, 2), 97, 0, 73760),
    ("h200", "bfloat16", 128, (64, 64, 4, 2), 154, 0, 82944),
    ("h200", "bfloat16", 128, (128, 64, 8, 2), 171, 0, 98336),
    ("h200", "bfloat16", 128, (128, 128, 8, 2), 219, 0, 164864),
    ("h200", "bfloat16", 128, (128, 64, 4, 2), 255, 112, 98336),
    ("h200", "bfloat16", 128, (128, 128, 4, 2), 255, 856, 164864),
    ("h200", "tf32", 128, (64, 32, 4, 2), 166, 0, 98328),
    ("h200", "tf32", 128, (128, 32, 8, 2), 195, 0, 131096),
    ("h200", "tf32", 128, (128, 64, 4, 2), 255, 384, 196632),
    ("h200", "float32", 128, (32, 32, 4, 2), 255, 544, 53248),
    ("h200", "float32", 128, (64, 32, 4, 2), 32, 7384, 73984),
    ("a100-sxm-80gb", "bfloat16", 64, (16, 128, 4, 2), 128, 0, 38912),
    ("a100-sxm-80gb", "bfloat16", 64, (64, 64, 4, 2), 224, 0, 24576),
    ("a100-sxm-80gb", "bfloat16", 64, (128, 64, 8, 2), 178, 0, 32768),
    ("a100-sxm-80gb", "bfloat16", 64, (128, 128, 8, 2), 244, 0, 49152),
    ("a100-sxm-80gb", "bfloat16", 64, (128, 128, 4, 2), 255, 512, 49152),
    ("a100-sxm-80gb", "bfloat16", 128, (16, 64, 4, 2), 128, 0, 38912),
    ("a100-sxm-80gb", "bfloat16", 128, (128, 64, 8, 2), 243, 0, 65536),
    ("a100-sxm-80gb", "bfloat16", 128, (128, 64, 4, 2), 255, 352, 65536),
    ("a100-sxm-80gb", "bfloat16", 256, (16, 64, 4, 2), 228, 0, 75776),
)  # fmt: skip


def form_of(name: str, multiply: Any, depth: int) -> AttentionForm:
    dtype = BFLOAT16 if multiply == "bfloat16" else FLOAT32
    described = gpu(name).bulk_copy and multiply != "float32"
    loads = "descriptors" if described else "pointers"
    return AttentionForm.over(dtype, multiply, depth, depth, causal="first", loads=loads)


@pytest.mark.parametrize("number", range(len(REPORTED)))
def test_what_was_reported(number: int) -> None:
    name, multiply, depth, sizes, registers, spilled, shared = REPORTED[number]
    hardware, form, tile = gpu(name), form_of(name, multiply, depth), AttentionTile(*sizes)
    instruction = instruction_of(hardware, form, tile)
    assert instruction is not None
    assert 0 <= shared_bytes(hardware, form, tile, instruction) - shared <= 1536
    if spilled:
        assert resident_tiles(hardware, form, tile) == 0
        assert attention_tile_cost(hardware, form, tile) is None
        assert attention_tile_cost(hardware, form, tile, spilling=True) is not None
    else:
        modelled = registers_per_thread(hardware, form, tile, instruction)
        assert modelled == pytest.approx(registers, rel=0.25)
        assert resident_tiles(hardware, form, tile) > 0


TILES = [
    AttentionTile(bq, bk, 4, stages)
    for bq, bk, stages in product((16, 32, 64), (16, 32, 64), (2, 3))
]


@settings(max_examples=100)
@given(name=st.sampled_from(GPUS), tile=st.sampled_from(TILES), depth=st.sampled_from((16, 32, 64)))
def test_what_more_takes(name: str, tile: AttentionTile, depth: int) -> None:
    hardware = gpu(name)
    form = AttentionForm.over(FLOAT16, "float16", depth, depth)
    instruction = instruction_of(hardware, form, tile)
    assert instruction is not None

    def taken(form: AttentionForm, tile: AttentionTile) -> tuple[int, int]:
        return (
            registers_per_thread(hardware, form, tile, instruction),
            shared_bytes(hardware, form, tile, instruction),
        )

    registers, shared = taken(form, tile)
    for other in (replace(tile, bk=2 * tile.bk), replace(tile, stages=tile.stages + 1)):
        more, larger = taken(form, other)
        assert more >= registers
        assert larger > shared
    masked = replace(form, mask=AttentionMask(BOOL, layout="aligned"))
    byte_by_byte = replace(form, mask=AttentionMask(BOOL, layout="contiguous"))
    assert taken(masked, tile)[0] > registers
    assert taken(byte_by_byte, tile)[0] > registers
    assert taken(masked, tile)[1] > shared
    assert taken(replace(form, aligned=False), tile)[0] > registers
    # A mask with one number for a key takes next to nothing.
    assert taken(replace(form, mask=AttentionMask(BOOL, "keys")), tile) == (registers, shared)


@pytest.mark.parametrize("depth", [16, 64, 128])
@pytest.mark.parametrize("name", GPUS)
def test_seconds(name: str, depth: int) -> None:
    hardware = gpu(name)
    form = AttentionForm.over(FLOAT16, "float16", depth, depth)
    peak = hardware.matrix_flops_per_s["float16"] / hardware.multiprocessors
    costs = [attention_tile_cost(hardware, form, tile, spilling=True) for tile in TILES]
    kept = [cost for cost in costs if cost is not None]
    # Shared memory of some chips is too little for the largest tiles of long vectors.
    assert len(kept) >= (len(TILES) // 2 if depth == 128 else len(TILES))
    for cost in kept:
        assert len(cost.step_s) == cost.blocks + 1
        busy_s = max(cost.matrix_s, cost.power_s, cost.shared_s)
        assert all(s >= busy_s for s in cost.step_s[1:])
        # More tiles of a multiprocessor hide more of what each waits for.
        assert all(s >= t for s, t in zip(cost.step_s[1:], cost.step_s[2:], strict=False))
        assert 4.0 * cost.tile.bq * cost.tile.bk * depth / cost.matrix_s <= peak


@pytest.mark.parametrize("multiply", ["float16", "float32"])
def test_wide_warps_share_the_registers_of_a_tile(multiply: Any) -> None:
    """A warp of 64 threads holds what two of 32 do, so that a thread needs fewer registers."""
    wide = gpu("mi300x")
    narrow = replace(wide, warp_threads=32)
    dtype = FLOAT32 if multiply == "float32" else FLOAT16
    form = AttentionForm.over(dtype, multiply, 64, 64)
    found = [
        registers_per_thread(hardware, form, AttentionTile(64, 64, warps, 2), instruction)
        for hardware, warps in ((wide, 2), (narrow, 4), (narrow, 2))
        if (instruction := instruction_of(hardware, form, AttentionTile(64, 64, 2, 2)))
    ]
    assert found[0] == found[1] < found[2]
