"""Attention kernels of a GPU equal attention in float64, whatever extents, masks and strides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.triton.attention_running import (
    EXTENTS,
    SCALE,
    TORCH_DTYPES,
    Launcher,
    Operands,
    assert_attention,
    check,
    kernel_of,
    masks_of,
    operands_of,
    random,
    run,
)

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, GPU_DTYPES, DType
from ftuner.core.gpu.attention import AttentionMask, AttentionTile

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
"""NumPy, in the interpreter, says what a GPU does not: that NaN and infinity arose."""
PLAIN = AttentionSoftmax(SCALE)
LOWEST = float(np.finfo(np.float32).min)
DEPTHS = (1, 15, 16, 17, 40, 64, 72, 80, 112, 129, 192, 256)


@pytest.mark.each_value
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("dtype", GPU_DTYPES.values(), ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_extents(extents: tuple[int, ...], dtype: DType, packed: bool) -> None:
    check(operands_of(extents, dtype), packed=packed)


@pytest.mark.parametrize("depth", DEPTHS)
def test_vectors_of_any_length(depth: int) -> None:
    check(operands_of((1, 1, 1, 5, 19, depth, 20), FLOAT16))
    check(operands_of((1, 1, 1, 5, 19, 20, depth), FLOAT16))


def test_tiles_of_any_shape() -> None:
    for bq, bk in ((16, 32), (32, 16), (64, 16), (16, 64)):
        operands = operands_of((1, 2, 2, 37, 71, 8, 24), FLOAT16)
        check(operands, tile=AttentionTile(bq, bk, 4, 2))
        check(operands, AttentionSoftmax(SCALE, 20), tile=AttentionTile(bq, bk, 4, 2), packed=True)


@pytest.mark.each_value
@pytest.mark.parametrize("scale", [-0.7, 0.0, 1e-3, 3.0])
@pytest.mark.parametrize("causal", [None, 0])
def test_scales(scale: float, causal: int | None) -> None:
    operands = operands_of((1, 2, 1, 20, 40, 8, 8))
    check(operands, AttentionSoftmax(scale, causal), negative=scale < 0)


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(len(EXTENTS)))
@pytest.mark.parametrize("kind", [None, FLOAT32, BOOL], ids=str)
@pytest.mark.parametrize("scale", [8.0, -8.0])
def test_soft_caps(number: int, kind: DType | None, scale: float) -> None:
    """Scores near the cap and beyond it, which masks and causal limits follow."""
    extents = EXTENTS[number]
    mask = None if kind is None else masks_of(extents, (3, 4), kind)
    softmax = AttentionSoftmax(scale, None if number % 2 else 2, softcap=2.5)
    check(operands_of(extents, mask=mask), softmax, capped=True, packed=number % 3 == 0,
          split_keys=1 + number % 2)  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(len(EXTENTS)))
@pytest.mark.parametrize("kind", [None, FLOAT32, BOOL], ids=str)
@pytest.mark.parametrize("level", [-60.0, 0.0, 40.0])
def test_sinks(number: int, kind: DType | None, level: float) -> None:
    """Scores without keys, far below the others, near them and far above; of heads, and of rows."""
    extents = EXTENTS[number]
    mask = None if kind is None else masks_of(extents, (3, 4), kind)
    shape = extents[:4] if number % 2 else (1, *extents[1:3], 1)
    softmax = AttentionSoftmax(SCALE, None if number % 2 else 2, sinks=True)
    operands = operands_of(extents, mask=mask, sinks=random(8, (*shape, 1)) + level)
    for packed, split_keys in ((False, 1), (True, 1), (False, 3), (True, 2)):
        check(operands, softmax, sinks=FLOAT32, packed=packed, split_keys=split_keys)


def test_rows_that_see_a_sink_alone() -> None:
    operands = operands_of((1, 2, 1, 9, 33, 4, 6), sinks=random(8, (1, 2, 1, 1, 1)))
    found = run(operands, AttentionSoftmax(SCALE, -4, sinks=True), sinks=FLOAT32)
    assert not found[:, :, :, :4].any()
    assert found[:, :, :, 4:].all()


def test_large_scores() -> None:
    """Powers are taken of differences: nothing overflows."""
    q, k, v, *_ = operands_of((1, 2, 1, 9, 33, 4, 6))
    operands = Operands(30 * q, 30 * k, 30 * v)
    for scale in (1.0, -1.0):
        found = run(operands, AttentionSoftmax(scale), negative=scale < 0)
        assert torch.isfinite(found).all()
        assert_attention(found, operands, AttentionSoftmax(scale))


# What rows see.


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(len(EXTENTS)))
@pytest.mark.parametrize("past", [0, 3, 30, -3, -1000, 1000])
@pytest.mark.parametrize("split_keys", [1, 3])
def test_causal(number: int, past: int, split_keys: int) -> None:
    extents = EXTENTS[number]
    rows, keys = extents[3:5]
    # As a call gives it.
    limit = min(max(past, -rows), keys)
    packed = (number + split_keys) % 2 == 0
    check(
        operands_of(extents), AttentionSoftmax(SCALE, limit), packed=packed, split_keys=split_keys
    )


def test_the_last_position_sees_all_keys() -> None:
    for extents in EXTENTS:
        rows, keys = extents[3:5]
        operands = operands_of(extents)
        kernel = kernel_of(operands, causal="last")
        found = Launcher(kernel)(operands, AttentionSoftmax(SCALE, 0))
        assert_attention(found, operands, AttentionSoftmax(SCALE, keys - rows))


def test_rows_that_see_nothing_give_zeros() -> None:
    found = run(operands_of((2, 3, 1, 40, 40, 8, 5)), AttentionSoftmax(SCALE, -5))
    assert not found[..., :5, :].any()
    assert found[..., 5:, :].any(-1).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_keys_that_nobody_sees_are_not_read(bad: float) -> None:
    for packed in (False, True):
        operands = operands_of((2, 1, 3, 19, 90, 8, 5))
        operands.k[:, :, 30:] = bad
        operands.v[:, :, 30:] = bad
        found = run(operands, AttentionSoftmax(SCALE, 11), packed=packed)
        assert torch.isfinite(found).all()
        assert_attention(found, operands, AttentionSoftmax(SCALE, 11))


def test_keys_after_a_row_do_not_change_it() -> None:
    operands = operands_of((1, 2, 1, 60, 80, 16, 16))
    before = run(operands, AttentionSoftmax(SCALE, 3))
    operands.k[:, :, 31:] *= -50
    operands.v[:, :, 31:] = 1000
    after = run(operands, AttentionSoftmax(SCALE, 3))
    assert torch.equal(before[..., :28, :], after[..., :28, :])
    assert not torch.equal(before[..., 28:, :], after[..., 28:, :])


# Masks.


SHAPES = ((4,), (3, 4), (1, 4), (0, 4), (0, 3, 4), (2, 3, 4), (0, 1, 2, 3, 4), (3,), (1,), (0,), ())
"""Axes of a mask that are not broadcast, of batch, heads, sharing, rows, keys."""


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(len(EXTENTS)))
@pytest.mark.parametrize("axes", SHAPES, ids=str)
@pytest.mark.parametrize("boolean", [False, True])
def test_masks(number: int, axes: tuple[int, ...], boolean: bool) -> None:
    extents = EXTENTS[number]
    mask = masks_of(extents, axes, BOOL if boolean else FLOAT32)
    softmax = AttentionSoftmax(SCALE, 2 if number % 2 else None)
    check(operands_of(extents, mask=mask), softmax, packed=number % 3 == 0,
          split_keys=1 + number % 2)  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_masks_of_sixteen_bits(extents: tuple[int, ...], dtype: DType) -> None:
    check(operands_of(extents, dtype, masks_of(extents, (0, 3, 4), dtype)))


@pytest.mark.parametrize("boolean", [False, True])
def test_layouts_of_masks(boolean: bool) -> None:
    extents = (2, 1, 2, 21, 53, 8, 24)
    dtype = BOOL if boolean else FLOAT32
    for axes in ((0, 1, 4), (2, 3, 4)):
        operands = operands_of(extents, mask=masks_of(extents, axes, dtype))
        spreads = ("scores",) if 3 in axes else ("scores", "keys")
        for spread in spreads:
            for layout in ("contiguous", "strided"):
                check(operands, mask=AttentionMask(dtype, spread, layout))
    # Aligned ones have rows of whole 16 bytes.
    extents = (2, 1, 2, 21, 64, 8, 24)
    operands = operands_of(extents, mask=masks_of(extents, (2, 3, 4), dtype))
    check(operands, AttentionSoftmax(SCALE, 5), mask=AttentionMask(dtype, "scores", "aligned"))


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("hidden", "safe"), [(-math.inf, False), (LOWEST, False), (-1e4, False), (-math.inf, True)]
)
@pytest.mark.parametrize("split_keys", [1, 2])
def test_rows_that_a_mask_hides(hidden: float, safe: bool, split_keys: int) -> None:
    """A softmax of minus infinities is NaN, unless zeros are asked for; of equal numbers it is
    even."""
    mask = torch.from_numpy(np.random.default_rng(0).random((19, 37)) < 0.5)
    mask[[0, 7, 18]] = False
    operands = operands_of((2, 3, 1, 19, 37, 8, 5), mask=mask)
    softmax = AttentionSoftmax(SCALE, None, hidden, safe)
    found = run(operands, softmax, split_keys=split_keys)
    assert_attention(found, operands, softmax)
    assert bool(torch.isnan(found[..., 7, :]).all()) == (math.isinf(hidden) and not safe)
    assert bool((found[..., 7, :] == 0).all()) == safe


@pytest.mark.parametrize("safe", [False, True])
def test_limits_hide_before_masks_do(safe: bool) -> None:
    """A row that sees no key gives zeros even where a row that a mask hides gives NaN."""
    operands = operands_of((1, 1, 1, 20, 20, 8, 5), mask=torch.zeros(20, 20, dtype=torch.bool))
    softmax = AttentionSoftmax(SCALE, -4, safe=safe)
    found = run(operands, softmax)
    assert_attention(found, operands, softmax)
    assert not found[..., :4, :].any()
    assert bool(torch.isnan(found[..., 4:, :]).all()) == (not safe)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", GPU_DTYPES.values(), ids=str)
@pytest.mark.parametrize("hidden", ["lowest", "infinite"])
def test_addends_that_hide_rows(dtype: DType, hidden: str) -> None:
    """With the least number the weights are equal; with infinity there are none, but elsewhere."""
    least = torch.finfo(TORCH_DTYPES[dtype]).min if hidden == "lowest" else -math.inf
    mask = random(3, (19, 37), dtype)
    mask[[0, 7, 18]] = least
    mask[3, 5:] = least
    operands = operands_of((2, 3, 1, 19, 37, 8, 5), dtype, mask)
    if hidden == "lowest":
        # Added to that, scores of float32 vanish, and those of float64 do not.
        operands.q.zero_()
    for safe in (False, True):
        softmax = AttentionSoftmax(SCALE, safe=safe)
        found = run(operands, softmax)
        assert_attention(found, operands, softmax)
        assert bool(torch.isnan(found[..., 7, :]).all()) == (hidden == "infinite" and not safe)


def test_what_is_not_finite() -> None:
    """NaN in a row of q stays there; in a key it reaches the rows that see it."""
    operands = operands_of((1, 2, 1, 50, 50, 8, 5))
    operands.q[0, 1, 0, 20] = math.nan
    operands.k[0, 0, 40] = math.nan
    found = run(operands, AttentionSoftmax(SCALE, 0))
    assert torch.isnan(found[0, 1, 0, 20]).all()
    assert torch.isnan(found[0, 0, 0, 40:]).all()
    assert torch.isfinite(found[0, 0, 0, :40]).all()
    assert torch.isfinite(found[0, 1, 0, 21:]).all()


@pytest.mark.parametrize("split_keys", [1, 2])
def test_zeros_for_what_is_not_a_number(split_keys: int) -> None:
    """Rows with a score that is NaN or infinite, and rows that a mask hides."""
    mask = torch.zeros(19, 37)
    mask[7] = -math.inf
    operands = operands_of((2, 3, 1, 19, 37, 8, 5), FLOAT32, mask)
    operands.q[0, 1, 0, 4] = math.nan
    mask[3, 30] = math.inf
    found = run(operands, AttentionSoftmax(SCALE, hides_nan=True), split_keys=split_keys)
    plain = run(operands, AttentionSoftmax(SCALE), split_keys=split_keys)
    assert torch.isnan(plain).any()
    assert torch.equal(found, torch.nan_to_num(plain))
    assert not found[..., [3, 7], :].any()
    assert not found[0, 1, 0, 4].any()
    assert found[1, 1, 0, 4].all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_infinite_scores(bad: float) -> None:
    """Plus infinity gives NaN as a softmax does, minus infinity hides a key, and a row whole."""
    operands = operands_of((1, 1, 1, 5, 40, 4, 5))
    operands.q.abs_()
    operands.k[0, 0, :30] = bad
    for softmax in (PLAIN, AttentionSoftmax(SCALE, safe=True), AttentionSoftmax(SCALE, 25)):
        found = run(operands, softmax)
        assert_attention(found, operands, softmax)
        assert bool(torch.isnan(found).all()) == (bad > 0 or softmax.causal is not None)


# Any of it.


@pytest.mark.full
@settings(max_examples=40)
@given(
    extents=st.tuples(
        st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 40),
        st.integers(1, 50), st.integers(1, 20), st.integers(1, 20),
    ),
    past=st.none() | st.integers(-45, 55),
    mask=st.sampled_from((None, BOOL, FLOAT16)),
    packed=st.booleans(),
    split_keys=st.integers(1, 4),
    l2_heads=st.integers(1, 13),
)  # fmt: skip
def test_any_extents(
    extents: tuple[int, ...], past: int | None, mask: DType | None, packed: bool, split_keys: int,
    l2_heads: int,
) -> None:  # fmt: skip
    given_mask = None if mask is None else masks_of(extents, (0, 3, 4), mask)
    operands = operands_of(extents, FLOAT16, given_mask)
    check(
        operands,
        AttentionSoftmax(SCALE, past, safe=True),
        packed=packed,
        split_keys=split_keys,
        l2_heads=l2_heads,
    )
