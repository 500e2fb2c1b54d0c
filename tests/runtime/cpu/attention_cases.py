"""Attention in float64, and what all tests of it ask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import DTYPES
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

Array = npt.NDArray[Any]
SCALE = 0.3
ANY_EXTENTS = st.tuples(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 70), st.integers(1, 70),
    st.integers(1, 40), st.integers(1, 40),
)  # fmt: skip
"""Batch, heads, rows, keys, depth, columns."""
PLAIN = AttentionSoftmax(SCALE)


def random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    found: Array = np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)
    return found


def expected_of(
    q: Array, k: Array, v: Array, mask: Array | None, softmax: AttentionSoftmax,
    sinks: Array | None = None,
) -> tuple[Array, float]:  # fmt: skip
    """In float64, and how far rounding may take an implementation from it: the weights are off by
    what the scores are, and their sum by as much as it has terms. Keys that a row does not see are
    as far away as can be, whatever they and their values are."""
    wide_q, wide_k, wide_v = (x.astype(np.float64) for x in (q, k, v))
    with np.errstate(all="ignore"):
        scores = np.matmul(wide_q, wide_k) * softmax.scale
    if softmax.softcap:
        scores = softmax.softcap * np.tanh(scores / softmax.softcap)
    if mask is not None and mask.dtype == np.bool_:
        scores = np.where(mask, scores, softmax.hidden)
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    rows, steps = scores.shape[-2:]
    blind = np.zeros((*scores.shape[:-1], 1), bool)
    if softmax.causal is not None:
        assert isinstance(softmax.causal, int)
        seen = np.tri(rows, steps, softmax.causal, dtype=bool)
        scores = np.where(seen, scores, -math.inf)
        blind |= ~seen.any(-1, keepdims=True)
        wide_v = np.where(seen.any(0)[:, None], wide_v, 0)
    if softmax.safe:
        blind |= np.all(scores == -math.inf, -1, keepdims=True)
    if not scores.size:
        return np.zeros((*scores.shape[:-1], v.shape[-1])), 0.0
    keys = scores
    if sinks is not None:
        # A key more, whose value is zero.
        column = np.broadcast_to(sinks.astype(np.float64), (*scores.shape[:-1], 1))
        scores = np.concatenate([scores, column], -1)
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = np.where(blind, 0, powers / powers.sum(-1, keepdims=True))
        result = np.matmul(weights[..., : keys.shape[-1]], wide_v)
    depth = k.shape[-2]
    finite = scores[np.isfinite(scores) & (np.abs(scores) < 1e6)]
    largest = float(np.max(np.abs(finite), initial=1.0))
    roundings = 4 * (depth * abs(softmax.scale) + largest + 8) + 2 * steps
    most = float(np.max(np.abs(v[np.isfinite(v)]), initial=0.0))
    return result, roundings * DTYPES[q.dtype.name].unit_roundoff * most


def assert_attention(
    found: Array, q: Array, k: Array, v: Array, mask: Array | None = None,
    softmax: AttentionSoftmax = PLAIN, sinks: Array | None = None,
) -> None:  # fmt: skip
    expected, allowed = expected_of(q, k, v, mask, softmax, sinks)
    assert found.dtype == q.dtype
    assert found.shape == expected.shape
    unknown = np.isnan(expected)
    assert np.array_equal(np.isnan(found), unknown)
    error = np.abs(found - expected)[~unknown]
    assert np.all(error <= allowed), (q.shape, k.shape, v.shape, error.max(), allowed)


def threads_of(
    backend: CpuBackend, model: Model, inputs: dict[str, Array], numbers: Sequence[int] = (1, 2, 3)
) -> list[Array]:
    """What these numbers of threads give: the same but for the order of sums."""
    results = []
    for threads in numbers:
        backend.threads = threads
        (found,) = model.run(inputs)
        results.append(found)
    return results
