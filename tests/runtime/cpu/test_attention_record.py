"""Attention as one kernel equals attention in float64, whatever its extents, masks and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S, T, assert_runs
from tests.runtime.cpu.attention_cases import (
    ANY_EXTENTS,
    SCALE,
    assert_attention,
    expected_of,
    random,
    threads_of,
)

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import DTYPES, DType
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.schedules.attention.step import AttentionStep

Array = npt.NDArray[Any]
H, D, E = symbol("H"), symbol("D"), symbol("E")
BATCH = (B, H)
MASKS: dict[str, tuple[Dim, ...]] = {
    "steps": (T,),
    "rows and steps": (S, T),
    "one row": (1, T),
    "heads": (H, 1, T),
    "batch": (B, 1, 1, T),
    "batch and rows": (B, 1, S, T),
    "all": (B, H, S, T),
}
NARROW_MASKS: dict[str, tuple[Dim, ...]] = {
    "a number": (),
    "one": (1,),
    "a column": (S, 1),
    "a number for each head": (H, 1, 1),
    "a column for each head": (B, H, S, 1),
}
"""One number for all steps, which the last axis is broadcast from."""
EXTENTS = (
    # Batch, heads, rows, steps, depth, columns.
    (1, 1, 1, 1, 1, 1), (2, 3, 5, 7, 13, 11), (1, 2, 1, 64, 16, 16), (2, 1, 17, 1, 3, 5),
    (1, 1, 131, 67, 8, 33), (3, 2, 33, 16, 32, 1), (5, 1, 2, 200, 7, 24), (0, 2, 3, 4, 5, 6),
    (1, 2, 0, 4, 5, 6),
)  # fmt: skip


def graph_of(dtype: DType, *mask: Dim, masked: bool = True) -> Graph:
    maker = Maker()
    operands = [
        maker.given("q", *BATCH, S, D, dtype=dtype),
        maker.given("k", *BATCH, D, T, dtype=dtype),
        maker.given("v", *BATCH, T, E, dtype=dtype),
    ]
    if masked:
        operands.append(maker.given("mask", *mask, dtype=dtype))
    return maker.made(maker.add("attention", *operands, scale=SCALE))


def operands_of(
    extents: tuple[int, ...], seed: int = 0, dtype: str = "float32"
) -> dict[str, Array]:
    b, h, s, t, d, e = extents
    shapes = {"q": (b, h, s, d), "k": (b, h, d, t), "v": (b, h, t, e)}
    return {
        name: random(seed + i, *shape, dtype=dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }


def mask_of(shape: tuple[Dim, ...], extents: tuple[int, ...], dtype: str = "float32") -> Array:
    """Small numbers and some that are as good as minus infinity, never in all steps: added to
    those, scores vanish in float32 and do not in float64."""
    known = dict(zip("BHST", extents, strict=False))
    concrete = tuple(n if isinstance(n, int) else known[str(n)] for n in shape)
    found = random(9, *concrete, dtype=dtype)
    hidden = np.random.default_rng(1).random(concrete) < 0.2
    if concrete:
        hidden[..., :1] = False
    return np.where(hidden, -1e9, found).astype(dtype)


def assert_masked(
    backend: CpuBackend, model: Model, inputs: dict[str, Array], threads: Sequence[int] = (1, 2, 3)
) -> list[Array]:
    """Returns the results of each number of threads."""
    found = threads_of(backend, model, inputs, threads)
    for result in found:
        assert_attention(result, *(inputs[name] for name in ("q", "k", "v", "mask")))
    return found


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_extents(backend: CpuBackend, dtype: DType) -> None:
    model = Model(graph_of(dtype, masked=False), backend)
    for extents in EXTENTS:
        inputs = operands_of(extents, dtype=dtype.name)
        for found in threads_of(backend, model, inputs):
            assert_attention(found, inputs["q"], inputs["k"], inputs["v"])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in (*MASKS, *NARROW_MASKS)), ("batch and rows", "float64")],
)
def test_masks(widest: CpuBackend, name: str, dtype: str) -> None:
    """Narrow ones change nothing: all steps are as much worse."""
    shape = (MASKS | NARROW_MASKS)[name]
    model = Model(graph_of(DTYPES[dtype], *shape), widest)
    for extents in EXTENTS[:4] if name in NARROW_MASKS else EXTENTS:
        inputs = operands_of(extents, dtype=dtype)
        assert_masked(widest, model, {**inputs, "mask": mask_of(shape, extents, dtype)})


@pytest.fixture(scope="module")
def masked(widest: CpuBackend) -> Model:
    return Model(graph_of(DTYPES["float32"], *MASKS["batch and rows"]), widest)


@settings(max_examples=40)
@given(extents=ANY_EXTENTS, threads=st.integers(1, 4))
def test_any_extents(
    widest: CpuBackend, masked: Model, extents: tuple[int, ...], threads: int
) -> None:
    mask = mask_of(MASKS["batch and rows"], extents)
    assert_masked(widest, masked, {**operands_of(extents), "mask": mask}, [threads])


def test_rows_that_see_nothing(widest: CpuBackend, masked: Model) -> None:
    """With large numbers the weights are equal; with infinity there are none, but elsewhere."""
    extents = (2, 3, 19, 37, 8, 5)
    inputs = operands_of(extents)
    for hidden in (-1e30, -np.inf):
        mask = np.zeros((2, 1, 19, 37), np.float32)
        mask[1, 0, (0, 7, 18)] = hidden
        mask[0, 0, :, 5:] = hidden
        inputs["mask"] = mask
        for found in assert_masked(widest, masked, inputs):
            assert np.isnan(found[1, :, 7]).all() == np.isinf(hidden)
            assert np.isfinite(found[0]).all()


def test_large_scores(widest: CpuBackend, masked: Model) -> None:
    """Powers are taken of differences: nothing overflows."""
    inputs = {name: 30 * x for name, x in operands_of((1, 2, 9, 33, 4, 6)).items()}
    inputs["mask"] = np.zeros((1, 1, 9, 33), np.float32)
    for found in assert_masked(widest, masked, inputs):
        assert np.isfinite(found).all()


HEADS, DEPTH = 3, 5
WIDTH = HEADS * DEPTH


def encoder(merged: bool) -> Graph:
    """Attention of projections of one tensor, heads side by side; a mask of ones and zeros."""
    maker = Maker()
    x, mask = maker.given("x", B, S, WIDTH), maker.given("mask", B, S)
    graph = maker.made(maker.self_attention(x, mask, HEADS))
    return optimised(graph) if merged else graph


def test_projections_that_lie_side_by_side(widest: CpuBackend) -> None:
    """q, k and v are strided views of one product; so is the result of its output."""
    graph = encoder(merged=True)
    model = Model(graph, widest)
    (step,) = [s for s in model.steps if isinstance(s, AttentionStep)]
    assert step.q.buffer is step.k.buffer
    assert step.q.buffer is step.v.buffer
    assert not step.q.contiguous
    assert not step.out.contiguous
    first, second = (n for n in graph.nodes if n.op in ("matmul", "add") and n.inputs[1].constant is
                     not None)  # fmt: skip
    weight, bias = first.inputs[1].constant, second.inputs[1].constant
    assert weight is not None
    assert bias is not None
    for seed, (b, s) in enumerate(((2, 7), (1, 1), (3, 40), (1, 150), (2, 7))):
        x = random(seed, b, s, WIDTH)
        mask = (np.random.default_rng(seed).random((b, s)) < 0.7).astype(np.float32)
        mask[:, 0] = 1
        apart = (x @ weight + bias).reshape(b, s, 3, HEADS, DEPTH)
        q, k, v = (apart[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        added = ((1 - mask) * -1e9).reshape(b, 1, 1, s).astype(np.float32)
        for found in threads_of(widest, model, {"x": x, "mask": mask}):
            heads = found.reshape(b, s, HEADS, DEPTH).transpose(0, 2, 1, 3)
            # The projections themselves are rounded too.
            expected, allowed = expected_of(
                q, k.swapaxes(-1, -2), v, added, AttentionSoftmax(DEPTH**-0.5)
            )
            assert np.all(np.abs(heads - expected) <= 8 * allowed)


def test_queries_that_are_turned(widest: CpuBackend) -> None:
    """Without a contiguous last axis they are copied; keys and values of any strides are not."""
    maker = Maker()
    q = maker.add("transpose", maker.given("q", B, D, S), perm=(0, 2, 1))
    k = maker.add("slice", maker.given("k", B, D, T), starts=(0, 0, T - 1), steps=(1, 1, -1),
                  shape=(B, D, T))  # fmt: skip
    v = maker.add("transpose", maker.given("v", E, T, B), perm=(2, 1, 0))
    model = Model(maker.made(maker.add("attention", q, k, v, scale=SCALE)), widest)
    assert [step.title for step in model.steps] == ["copy", "attention"]
    for b, s, t, d, e in ((2, 7, 9, 5, 3), (1, 1, 1, 1, 1), (3, 20, 33, 16, 17)):
        inputs = {"q": random(0, b, d, s), "k": random(1, b, d, t), "v": random(2, e, t, b)}
        for found in threads_of(widest, model, inputs):
            assert_attention(found, inputs["q"].transpose(0, 2, 1), inputs["k"][..., ::-1],
                             inputs["v"].transpose(2, 1, 0))  # fmt: skip


@pytest.mark.parametrize("axes", [0, 1, 3])
def test_any_number_of_batch_axes(widest: CpuBackend, axes: int) -> None:
    maker = Maker()
    batch = (B, H, symbol("G"))[:axes]
    q, k, v = (
        maker.given("q", *batch, S, D),
        maker.given("k", *batch, D, T),
        maker.given("v", *batch, T, E),
    )
    graph = maker.made(maker.add("attention", q, k, v, maker.given("mask", S, T), scale=SCALE))
    model = Model(graph, widest)
    extents = (2, 3, 2)[:axes]
    inputs = {
        "q": random(0, *extents, 9, 4), "k": random(1, *extents, 4, 21),
        "v": random(2, *extents, 21, 6), "mask": random(3, 9, 21),
    }  # fmt: skip
    assert_masked(widest, model, inputs)


RESHAPED: tuple[tuple[tuple[Dim, ...], tuple[int, ...], list[str]], ...] = (
    # A shape of the result, how it is transposed, steps: only heads that go apart are copied.
    ((B, 6, S, 4), (0, 2, 1, 3), ["attention"]), ((B * 6, S, 4), (1, 0, 2), ["attention"]),
    ((B, 6 * S, 4), (1, 0, 2), ["attention"]), ((B, 6 * S * 4), (0, 1), ["attention"]),
    ((B, 2, 3, S, 4), (0, 2, 1, 3, 4), ["attention", "copy"]),
    ((B, 6, S, 2, 2), (0, 3, 1, 2, 4), ["attention", "copy"]),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(RESHAPED)))
def test_results_in_other_shapes(widest: CpuBackend, number: int) -> None:
    shape, perm, titles = RESHAPED[number]
    maker = Maker()
    q, k, v = (
        maker.given("q", B, 6, S, 3), maker.given("k", B, 6, 3, T), maker.given("v", B, 6, T, 4),
    )  # fmt: skip
    found = maker.add("attention", q, k, v, scale=SCALE)
    found = maker.add("transpose", maker.add("reshape", found, shape=shape), perm=perm)
    model = assert_runs(
        maker.made(found), widest, {"B": 2, "S": 7, "T": 9}, {"B": 1, "S": 1, "T": 2}
    )
    assert [step.title for step in model.steps] == titles
