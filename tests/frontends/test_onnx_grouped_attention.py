"""onnxruntime's GroupQueryAttention and RotaryEmbedding: what onnxruntime gives, at any extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import by_onnxruntime, node_model

import ftuner
from ftuner.errors import FTunerError

MICROSOFT = "com.microsoft"
POSITIONS = 40


Given = list["np.ndarray | None"]


def model_of(op: str, given: Given, outputs: int, **attributes: Any) -> bytes:
    """A node whose extents are all symbols."""
    model, _ = node_model(op, given, 17, MICROSOFT, outputs=outputs, **attributes)
    return bytes(model.SerializeToString())


def feeds_of(given: Given) -> dict[str, np.ndarray]:
    return {f"x{i}": x for i, x in enumerate(given) if x is not None}


def both(
    op: str, given: Given, outputs: int, **attributes: Any
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What ftuner gives, and what onnxruntime does."""
    data, feeds = model_of(op, given, outputs, **attributes), feeds_of(given)
    return ftuner.load(data).run(feeds), by_onnxruntime(data, feeds)


def tables(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(POSITIONS)[:, None] / 10.0 ** (np.arange(pairs) / pairs)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.each_value
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("width", [0, 4])
def test_rotary_embedding(width: int, rank: int, interleaved: int) -> None:
    rng = np.random.default_rng(0)
    batch, sequence, heads, size = 2, 5, 3, 8
    cosines, sines = tables((width or size) // 2)
    shape = (batch, sequence, heads * size) if rank == 3 else (batch, heads, sequence, size)
    attributes = {"num_heads": heads, "rotary_embedding_dim": width} if width else {}
    for positions in (
        np.array([3], np.int64), rng.integers(0, POSITIONS, (batch, sequence)),
    ):  # fmt: skip
        given = [floats(rng, *shape), positions, cosines, sines]
        (found,), (wanted,) = both(
            "RotaryEmbedding", given, 1, interleaved=interleaved, **attributes
        )
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"do_rotary": 1},
    "interleaved": {"do_rotary": 1, "rotary_interleaved": 1},
    "window": {"local_window_size": 4},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.3},
    "smooth": {"smooth_softmax": 1},
    "sinks": {},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_grouped_query_attention(case: str, packed: bool) -> None:
    """The first call with a padded sequence, a further one in a longer cache, and one token."""
    rng = np.random.default_rng(1)
    heads, groups, size = 6, 2, 16
    attributes = {"num_heads": heads, "kv_num_heads": groups, **CASES[case]}
    for sequence, past, lengths in (
        (7, 0, (7, 7)), (7, 0, (7, 4)), (1, 9, (10, 10)), (1, 12, (8, 5)), (1, 6, (7, 3)),
    ):  # fmt: skip
        batch, total = len(lengths), max(lengths)
        query, key, value = (
            floats(rng, batch, sequence, n * size) for n in (heads, groups, groups)
        )
        caches = [floats(rng, batch, groups, past, size) for _ in range(2)]
        given: Given = [query, key, value]
        if packed:
            given = [np.concatenate([query, key, value], 2), None, None]
        given += [*caches, np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
        if "do_rotary" in attributes:
            given += tables(size // 2)
        if case == "sinks":
            given += [None] * 4 + [floats(rng, heads)]
        found, wanted = both("GroupQueryAttention", given, 3, **attributes)
        for i, length in enumerate(lengths):
            rows = min(length, sequence)
            np.testing.assert_allclose(found[0][i, :rows], wanted[0][i, :rows], 1e-4, 1e-5)
            for x, y in zip(found[1:], wanted[1:], strict=True):
                assert x.shape == y.shape
                np.testing.assert_allclose(x[i, :, :length], y[i, :, :length], 1e-5, 1e-6)


def test_bad_nodes_are_refused() -> None:
    rng = np.random.default_rng(2)
    given: Given = [
        floats(rng, 1, 1, 12), floats(rng, 1, 1, 4), floats(rng, 1, 1, 4), None, None,
        np.array([0], np.int32), np.array(1, np.int32),
    ]  # fmt: skip
    feeds = feeds_of(given)
    good = {"num_heads": 3, "kv_num_heads": 1}
    ftuner.load(model_of("GroupQueryAttention", given, 3, **good)).run(feeds)
    for wrong in ({"kv_num_heads": 2}, {"num_heads": 0}, {"qk_output": 1}, {"softcap": -1.0}):
        with pytest.raises(FTunerError):
            ftuner.load(model_of("GroupQueryAttention", given, 3, **(good | wrong)))
    for sinks in (floats(rng, 2), floats(rng, 3, 1)):
        many = [*given, *[None] * 4, sinks]
        data = model_of("GroupQueryAttention", many, 3, **good)
        with pytest.raises(FTunerError, match="head_sink"):
            ftuner.load(data).run(feeds_of(many))
    half = [*given[:3], floats(rng, 1, 1, 3, 4), *given[4:]]
    with pytest.raises(FTunerError, match="given together"):
        ftuner.load(model_of("GroupQueryAttention", half, 3, **good)).run(feeds_of(half))
    # A sequence that ends beyond the cache.
    model = ftuner.load(model_of("GroupQueryAttention", given, 3, **good))
    with pytest.raises(FTunerError, match="seqlens_k"):
        model.run(feeds | {"x5": np.array([5], np.int32)})
