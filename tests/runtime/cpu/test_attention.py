"""`ftuner.attention` of arrays, against attention in float64; and what it refuses, wherever."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.cpu.attention_cases import assert_attention, random

import ftuner
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.errors import ConfigurationError, DTypeError, OperandError, ShapeError
from ftuner.runtime.cpu.attention import MAX_MODELS, Attention
from ftuner.runtime.cpu.backend import CpuBackend

Array = npt.NDArray[Any]
EXTENTS = (
    # Batch, heads, heads of keys, rows, keys, depth, columns.
    ((), 1, 1, 1, 1, 1, 1), ((2,), 4, 2, 5, 9, 8, 3), ((3, 2), 6, 1, 1, 33, 16, 16),
    ((1,), 3, 3, 17, 5, 40, 7), ((2,), 2, 2, 0, 5, 4, 4), ((0,), 2, 2, 3, 5, 4, 4),
)  # fmt: skip


@pytest.fixture(scope="module")
def attend(widest: CpuBackend) -> Attention:
    return Attention(widest)


def operands_of(
    batch: tuple[int, ...], heads: int, kv_heads: int, rows: int, keys: int, depth: int,
    columns: int, dtype: str = "float32",
) -> tuple[Array, Array, Array]:  # fmt: skip
    return (
        random(0, *batch, heads, rows, depth, dtype=dtype),
        random(1, *batch, kv_heads, keys, depth, dtype=dtype),
        random(2, *batch, kv_heads, keys, columns, dtype=dtype),
    )


def assert_right(
    found: Array, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False,
    scale: float | None = None,
) -> None:  # fmt: skip
    sharing = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, sharing, -3) for x in (k, v))
    past = k.shape[-2] - q.shape[-2] if causal else None
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    softmax = AttentionSoftmax(scale, past, safe=True)
    assert_attention(found, q, k.swapaxes(-1, -2), v, mask, softmax)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
def test_extents(attend: Attention, dtype: str, causal: bool) -> None:
    for extents in EXTENTS:
        q, k, v = operands_of(*extents, dtype=dtype)
        assert_right(attend(q, k, v, causal=causal), q, k, v, causal=causal)


MASKS = (
    (9,), (5, 9), (5, 1), (1, 9), (4, 5, 9), (4, 1, 9), (2, 1, 1, 9), (2, 4, 5, 9), (2, 1, 5, 1),
    (),
)  # fmt: skip


@pytest.mark.parametrize("boolean", [False, True])
def test_masks(attend: Attention, boolean: bool) -> None:
    q, k, v = operands_of(*EXTENTS[1])
    for shape in MASKS:
        mask: Array = random(3, *shape)
        if boolean:
            mask = np.asarray(mask > -0.4)
        assert_right(attend(q, k, v, mask), q, k, v, mask)
        assert_right(attend(q, k, v, mask, True), q, k, v, mask, True)


def test_rows_that_see_nothing_give_zeros(attend: Attention) -> None:
    q, k, v = operands_of((), 2, 1, 7, 4, 8, 5)
    found = attend(q, k, v, causal=True)
    assert not found[:, :3].any()
    assert found[:, 3:].any(-1).all()
    mask = np.ones((7, 4), bool)
    mask[2] = False
    found = attend(q, k, v, mask)
    assert not found[:, 2].any()
    assert_right(found, q, k, v, mask)
    assert not attend(q, k[:, :0], v[:, :0]).any()


def test_scales(attend: Attention) -> None:
    q, k, v = operands_of(*EXTENTS[1])
    for scale in (0.5, -0.5, 0, 1):
        assert_right(attend(q, k, v, scale=scale), q, k, v, scale=scale)
    nothing = attend(q[..., :0], k[..., :0], v)
    assert np.allclose(nothing, np.repeat(v.mean(-2, keepdims=True), 2, 1), atol=1e-6)


def test_strides_and_results_anywhere(attend: Attention) -> None:
    store = random(0, 2, 9, 3, 4, 8)
    q, k, v = (store[:, :, i].swapaxes(1, 2) for i in range(3))
    out = np.empty((2, 9, 4, 8), np.float32).swapaxes(1, 2)
    assert attend(q, k, v, out=out) is out
    assert_right(out, q, k, v)
    # Over what is read.
    before = q.copy()
    attend(q, k, v, out=q)
    assert_right(q, before, k, v)


def ragged_right(attend: Attention, rows: list[int], keys: list[int], causal: bool) -> None:
    starts, begins = np.cumsum([0, *rows]), np.cumsum([0, *keys])
    q, k, v = operands_of((), 4, 2, int(starts[-1]), int(begins[-1]), 8, 5)
    found = attend(q, k, v, causal=causal, q_offsets=starts, k_offsets=begins)
    for (first, last), (begin, end) in zip(pairwise(starts), pairwise(begins), strict=True):
        own = q[:, first:last], k[:, begin:end], v[:, begin:end]
        if end == begin:
            assert not found[:, first:last].any()
        else:
            assert_right(found[:, first:last], *own, causal=causal)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4),
    causal=st.booleans(),
)
def test_requests(attend: Attention, lengths: list[tuple[int, int]], causal: bool) -> None:
    rows, keys = map(list, zip(*lengths, strict=True))
    ragged_right(attend, rows, keys, causal)


def test_offsets_of_any_kind(attend: Attention) -> None:
    q, k, v = operands_of((), 2, 2, 7, 7, 8, 8)
    first = attend(q, k, v, q_offsets=[0, 3, 3, 7])
    for offsets in ((0, 3, 3, 7), np.array([0, 3, 3, 7], np.int32), np.array([0, 3, 3, 7])):
        assert np.array_equal(attend(q, k, v, q_offsets=offsets), first)
    assert_right(first[:, 3:], q[:, 3:], k[:, 3:], v[:, 3:])
    # A result over what a later request reads.
    attend(q, k, v, q_offsets=[0, 3, 3, 7], out=k)
    assert np.array_equal(k, first)


def test_models_are_kept_for_kinds_not_for_extents(widest: CpuBackend) -> None:
    attend = Attention(widest)
    for extents in EXTENTS:
        q, k, v = operands_of(*extents)
        attend(q, k, v, scale=0.5)
    assert len(attend._models) == 1
    q, k, v = operands_of(*EXTENTS[0])
    for number in range(MAX_MODELS + 2):
        attend(q, k, v, scale=0.01 * number)
    assert MAX_MODELS // 2 <= len(attend._models) <= MAX_MODELS


def test_results_are_not_copied(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there is an `out`."""
    attend, made = Attention(widest), []
    run = attend._run
    monkeypatch.setattr(attend, "_run", lambda *given: made.append(run(*given)) or made[-1])
    q, k, v = operands_of(*EXTENTS[1])
    assert attend(q, k, v) is made[-1]
    out = np.empty_like(made[-1])
    assert attend(q, k, v, out=out) is out
    assert np.array_equal(out, made[-1])


def test_scales_of_float64(attend: Attention) -> None:
    q, k, v = operands_of(*EXTENTS[1], dtype="float64")
    assert np.isfinite(attend(q * 1e-300, k, v, scale=1e300)).all()


def test_the_public_function() -> None:
    q, k, v = operands_of(*EXTENTS[1])
    assert_right(ftuner.attention(q, k, v, causal=True), q, k, v, causal=True)


Q, K, V = operands_of((2,), 4, 2, 5, 9, 8, 3)
ONE = Q[0], K[0], V[0]
BAD: tuple[tuple[type[Exception], str, tuple[object, ...], dict[str, object]], ...] = (
    (ShapeError, "expected", (Q, K[0], V), {}),
    (ShapeError, "expected", (Q[0, 0], K[0, 0], V[0, 0]), {}),
    (ShapeError, "before the heads", (Q, K[:1], V[:1]), {}),
    (ShapeError, "same heads and keys", (Q, K, V[:, :, 1:]), {}),
    (ShapeError, "same heads and keys", (Q, K, V[:, 1:]), {}),
    (ShapeError, "depth", (Q[..., 1:], K, V), {}),
    (ShapeError, "evenly", (Q[:, :3], K, V), {}),
    (ShapeError, "evenly", (Q, K[:, :0], V[:, :0]), {}),
    (DTypeError, "dtype", (Q.astype(np.float64), K, V), {}),
    (DTypeError, "dtype", (Q.astype(np.int32), K, V), {}),
    (OperandError, "list", (Q.tolist(), K, V), {}),
    (ShapeError, "broadcast", (Q, K, V), {"mask": np.ones((4, 9), bool)}),
    (ShapeError, "broadcast", (Q, K, V), {"mask": np.ones((1, 2, 4, 5, 9), bool)}),
    (DTypeError, "mask", (Q, K, V), {"mask": np.ones((5, 9))}),
    (ConfigurationError, "scale", (Q, K, V), {"scale": np.nan}),
    (ConfigurationError, "scale", (Q, K, V), {"scale": "large"}),
    (ConfigurationError, "number of float32", (Q, K, V), {"scale": 1e300}),
    (ConfigurationError, "number of float32", (Q, K, V), {"scale": 10**400}),
    (DTypeError, "integers", ONE, {"q_offsets": (0, [2], 5), "k_offsets": (0, 2, 9)}),
    (ShapeError, "out", (Q, K, V), {"out": np.empty((2, 4, 5, 8), np.float32)}),
    (DTypeError, "out", (Q, K, V), {"out": np.empty((2, 4, 5, 3))}),
    (ShapeError, "before its heads", (Q, K, V), {"q_offsets": [0, 5], "k_offsets": [0, 9]}),
    (ShapeError, "k_offsets are from 0 to 5", ONE, {"q_offsets": [0, 5]}),
    (OperandError, "come with", ONE, {"k_offsets": [0, 9]}),
    (ShapeError, "descend", ONE, {"q_offsets": [0, 3, 2, 5], "k_offsets": [0, 1, 2, 9]}),
    (ShapeError, "of 1 requests, k_offsets of 2", ONE,
     {"q_offsets": [0, 5], "k_offsets": [0, 2, 9]}),
    (ShapeError, "from 1 to 5", ONE, {"q_offsets": [1, 5], "k_offsets": [0, 9]}),
    (ShapeError, "empty", ONE, {"q_offsets": [], "k_offsets": [0, 9]}),
    (ShapeError, "vector", ONE, {"q_offsets": np.zeros((2, 2), np.int32)}),
    (DTypeError, "float64", ONE, {"q_offsets": np.array([0.0, 5.0])}),
    (DTypeError, "integers", ONE, {"q_offsets": [0, 5.0]}),
    (OperandError, "no mask", ONE,
     {"q_offsets": [0, 5], "k_offsets": [0, 9], "mask": np.ones((5, 9), bool)}),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input(attend: Attention, number: int) -> None:
    error, words, operands, options = BAD[number]
    with pytest.raises(error, match=words):
        attend(*operands, **options)  # type: ignore[arg-type]
