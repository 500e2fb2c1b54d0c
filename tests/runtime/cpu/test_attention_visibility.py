"""What rows of attention see: causal limits and boolean masks; heads that share keys and values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import Maker, S, T, assert_close, reference
from tests.runtime.cpu.attention_cases import (
    ANY_EXTENTS,
    SCALE,
    Array,
    assert_attention,
    random,
    threads_of,
)

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import BOOL, DTYPES, FLOAT32, DType
from ftuner.core.evaluation import evaluate
from ftuner.core.index_expr import Operand
from ftuner.core.product import product_types
from ftuner.graph.ir import Graph
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.schedules.attention.cpu_binding import AttentionDims
from ftuner.schedules.attention.cpu_cost import AttentionProblem
from ftuner.schedules.attention.cpu_plan import attention_blocks

B, H, G, D, E, P = (symbol(name) for name in "BHGDEP")
LOWEST = float(np.finfo(np.float32).min)
EXTENTS = (
    # Groups, heads of a group, rows, steps, depth, columns.
    (1, 1, 1, 1, 1, 1), (2, 3, 5, 7, 13, 11), (1, 2, 1, 64, 16, 16), (2, 4, 1, 67, 8, 24),
    (1, 1, 131, 67, 8, 33), (3, 2, 33, 16, 32, 1), (1, 5, 2, 200, 7, 24), (0, 2, 3, 4, 5, 6),
    (1, 2, 0, 4, 5, 6), (2, 1, 300, 300, 9, 40), (7, 1, 97, 101, 5, 3),
)  # fmt: skip
OFFSETS: dict[str, Dim] = {
    "none": 0, "past": P, "last rows": T - S, "before": -3, "far before": -1000, "all": 1000,
}  # fmt: skip


def graph_of(
    softmax: AttentionSoftmax, mask: tuple[Dim, ...] | None = None, dtype: DType = FLOAT32,
    mask_dtype: DType | None = None, sinks: tuple[Dim, ...] | None = None,
) -> Graph:  # fmt: skip
    """Groups of heads that share k and v. The extent of `past` is an offset."""
    maker = Maker()
    operands = [
        maker.given("q", H, G, S, D, dtype=dtype),
        maker.given("k", H, 1, D, T, dtype=dtype),
        maker.given("v", H, 1, T, E, dtype=dtype),
    ]
    if mask is not None:
        operands.append(maker.given("mask", *mask, dtype=mask_dtype or dtype))
    if sinks is not None:
        operands.append(maker.given("sinks", *sinks, dtype=dtype))
    maker.given("past", P)
    return maker.made(maker.add("attention", *operands, **vars(softmax)))


def inputs_of(extents: tuple[int, ...], past: int = 2, dtype: str = "float32") -> dict[str, Array]:
    h, g, s, t, d, e = extents
    shapes = {"q": (h, g, s, d), "k": (h, 1, d, t), "v": (h, 1, t, e)}
    found = {n: random(i, *shape, dtype=dtype) for i, (n, shape) in enumerate(shapes.items())}
    return {**found, "past": np.zeros(past, np.float32)}


def offset_of(causal: Dim | None, inputs: dict[str, Array]) -> int | None:
    known = {P: len(inputs["past"]), T - S: inputs["k"].shape[-1] - inputs["q"].shape[-2]}
    return causal if isinstance(causal, int) or causal is None else known[causal]


def assert_model(
    backend: CpuBackend, model: Model, inputs: dict[str, Array], softmax: AttentionSoftmax
) -> None:
    """Native code gives what float64 does, and so does the operator's reference."""
    bound = AttentionSoftmax(softmax.scale, offset_of(softmax.causal, inputs), softmax.hidden,
                      softmax.safe, softcap=softmax.softcap, sinks=softmax.sinks)  # fmt: skip
    operands = (inputs["q"], inputs["k"], inputs["v"], inputs.get("mask"))
    for found in threads_of(backend, model, inputs):
        assert_attention(found, *operands, softmax=bound, sinks=inputs.get("sinks"))


def bits_of(extents: tuple[int, ...], *axes: int, share: float = 0.6) -> Array:
    """A boolean mask over the given axes of the scores, the others of one element."""
    h, g, s, t, *_ = extents
    shape = [n if axis in axes else 1 for axis, n in enumerate((h, g, s, t))]
    found: Array = np.random.default_rng(7).random(shape) < share
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_causal(backend: CpuBackend, dtype: DType, name: str) -> None:
    softmax = AttentionSoftmax(SCALE, OFFSETS[name])
    graph = graph_of(softmax, dtype=dtype)
    model = Model(graph, backend)
    for extents in EXTENTS:
        inputs = inputs_of(extents, dtype=dtype.name)
        assert_model(backend, model, inputs, softmax)
        backend.threads = 1
        assert_close(model.run(inputs), reference(graph, inputs))


def test_rows_that_see_nothing_give_zeros(widest: CpuBackend) -> None:
    model = Model(graph_of(AttentionSoftmax(SCALE, -5)), widest)
    for found in threads_of(widest, model, inputs_of((2, 3, 40, 40, 8, 5))):
        assert not found[:, :, :5].any()
        assert found[:, :, 5:].any(-1).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_keys_that_nobody_sees_are_not_read(widest: CpuBackend, bad: float) -> None:
    model = Model(graph_of(AttentionSoftmax(SCALE, P)), widest)
    inputs = inputs_of((2, 3, 37, 90, 8, 5), past=11)
    inputs["k"][..., 48:] = bad
    inputs["v"][..., 48:, :] = bad
    for found in threads_of(widest, model, inputs):
        assert np.isfinite(found).all()
        assert_attention(
            found, inputs["q"], inputs["k"], inputs["v"], None, AttentionSoftmax(SCALE, 11)
        )


def test_blocks_skip_what_they_do_not_see(widest: CpuBackend) -> None:
    """Values that only the last rows see do not reach the blocks before."""
    model = Model(graph_of(AttentionSoftmax(SCALE, 0)), widest)
    inputs = inputs_of((2, 1, 1000, 1000, 8, 5))
    inputs["k"][..., 900:] = np.nan
    inputs["v"][..., 900:, :] = np.nan
    for found in threads_of(widest, model, inputs):
        # A block is at most an eighth of the rows, but for those that a row tile holds more.
        assert np.isfinite(found[:, :, : 900 - 1000 // CpuTuning().causal_blocks]).all()
        assert np.isnan(found[:, :, 900:]).all()


def test_keys_after_a_row_do_not_change_it(widest: CpuBackend) -> None:
    model = Model(graph_of(AttentionSoftmax(SCALE, 3)), widest)
    inputs = inputs_of((1, 2, 60, 80, 16, 16))
    widest.threads = 1
    (before,) = model.run(inputs)
    inputs["k"][..., 31:] *= -50
    inputs["v"][..., 31:, :] = 1000
    (after,) = model.run(inputs)
    assert np.array_equal(before[:, :, :28], after[:, :, :28])
    assert not np.array_equal(before[:, :, 28:], after[:, :, 28:])


@pytest.mark.parametrize("axes", [(3,), (2, 3), (0, 3), (1, 2, 3), (0, 1, 2, 3), (0, 2), ()])
@pytest.mark.parametrize("causal", [None, 0, T - S])
def test_boolean_masks(widest: CpuBackend, axes: tuple[int, ...], causal: Dim | None) -> None:
    """Of rows that see nothing: zeros."""
    shape = tuple(n if axis in axes else 1 for axis, n in enumerate((H, G, S, T)))
    softmax = AttentionSoftmax(SCALE, causal, safe=True)
    model = Model(graph_of(softmax, shape, mask_dtype=BOOL), widest)
    for extents in EXTENTS:
        inputs = inputs_of(extents)
        inputs["mask"] = bits_of(extents, *axes)
        assert_model(widest, model, inputs, softmax)


def test_boolean_masks_on_each_machine(backend: CpuBackend) -> None:
    softmax = AttentionSoftmax(SCALE, safe=True)
    for dtype in DTYPES.values():
        model = Model(graph_of(softmax, (H, 1, S, T), dtype, BOOL), backend)
        for extents in EXTENTS:
            inputs = inputs_of(extents, dtype=dtype.name)
            inputs["mask"] = bits_of(extents, 0, 2, 3)
            assert_model(backend, model, inputs, softmax)


@pytest.mark.parametrize(("hidden", "safe"), [(-math.inf, False), (LOWEST, False), (-1e4, False),
                                              (-math.inf, True)])  # fmt: skip
def test_rows_that_a_mask_hides(widest: CpuBackend, hidden: float, safe: bool) -> None:
    """A softmax of minus infinities is NaN, unless zeros are asked for; of equal numbers it is
    even."""
    softmax = AttentionSoftmax(SCALE, None, hidden, safe)
    model = Model(graph_of(softmax, (S, T), mask_dtype=BOOL), widest)
    inputs = inputs_of((2, 3, 19, 37, 8, 5))
    inputs["mask"] = np.random.default_rng(0).random((19, 37)) < 0.5
    inputs["mask"][(0, 7, 18), :] = False
    assert_model(widest, model, inputs, softmax)
    (found,) = model.run(inputs)
    assert np.isnan(found[:, :, 7]).all() == (math.isinf(hidden) and not safe)
    assert np.all(found[:, :, 7] == 0) == safe


def test_addends_that_hide_rows(widest: CpuBackend) -> None:
    softmax = AttentionSoftmax(SCALE, safe=True)
    model = Model(graph_of(softmax, (S, T)), widest)
    inputs = inputs_of((2, 3, 19, 37, 8, 5))
    inputs["mask"] = random(3, 19, 37)
    inputs["mask"][(0, 7, 18), :] = -np.inf
    inputs["mask"][3, 5:] = -np.inf
    assert_model(widest, model, inputs, softmax)


def test_addends_and_a_limit(widest: CpuBackend) -> None:
    softmax = AttentionSoftmax(SCALE, T - S)
    model = Model(graph_of(softmax, (H, 1, S, T)), widest)
    for extents in EXTENTS:
        inputs = inputs_of(extents)
        h, _, s, t, *_ = extents
        inputs["mask"] = random(5, h, 1, s, t)
        assert_model(widest, model, inputs, softmax)


def test_what_is_not_finite(widest: CpuBackend) -> None:
    """NaN in a row of q stays there; in a key it reaches the rows that see it."""
    model = Model(graph_of(AttentionSoftmax(SCALE, 0)), widest)
    inputs = inputs_of((1, 2, 50, 50, 8, 5))
    inputs["q"][0, 1, 20] = np.nan
    inputs["k"][0, 0, :, 40] = np.nan
    for found in threads_of(widest, model, inputs):
        assert np.isnan(found[0, 1, 20]).all()
        assert np.isnan(found[0, :, 40:]).all()
        assert np.isfinite(found[0, 0, :40]).all()


@pytest.fixture(scope="module")
def causal(widest: CpuBackend) -> Model:
    return Model(graph_of(AttentionSoftmax(SCALE, P), (S, T), mask_dtype=BOOL), widest)


@settings(max_examples=60)
@given(
    extents=ANY_EXTENTS,
    past=st.integers(0, 80),
    share=st.sampled_from((0.05, 0.5, 1.0)),
    threads=st.integers(1, 4),
)
def test_any_extents(
    widest: CpuBackend,
    causal: Model,
    extents: tuple[int, ...],
    past: int,
    share: float,
    threads: int,
) -> None:
    widest.threads = threads
    inputs = inputs_of(extents, past)
    inputs["mask"] = bits_of(extents, 2, 3, share=share)[0, 0]
    inputs["mask"][:, 0] = True
    (found,) = causal.run(inputs)
    assert_attention(found, inputs["q"], inputs["k"], inputs["v"], inputs["mask"],
                     AttentionSoftmax(SCALE, past))  # fmt: skip


# Records.


def record_of(
    backend: CpuBackend, workers: int, *shape: int, causal: int | None = None
) -> list[int]:
    """The extents that the kernel reads, and the tasks and runs of them, for heads that share k."""
    h, g, s, t = shape
    q = Operand(FLOAT32, (h, g, s, 16), (16 * s * g, 16 * s, 16, 1))
    k = Operand(FLOAT32, (h, g, 16, t), (16 * t, 0, 1, 16))
    v = Operand(FLOAT32, (h, g, t, 16), (16 * t, 0, 16, 1))
    found = (evaluate(dim, {}) for dim in AttentionDims.of(q, k, v, causal))
    as_rows, elements, groups, rows, steps = found
    offset = None if as_rows else causal
    problem = AttentionProblem(elements, groups, rows, 16, steps, 16, offset, workers)
    planner = backend.products(product_types(FLOAT32)).planner
    *_, splits, runs = attention_blocks(planner, problem)
    return [rows, steps, splits, elements * splits, runs]


def test_heads_of_one_position_are_rows(widest: CpuBackend) -> None:
    assert record_of(widest, 1, 3, 8, 1, 50) == [8, 50, 1, 3, 3]
    assert record_of(widest, 1, 3, 8, 1, 50, causal=20) == [8, 21, 1, 3, 3]


def test_heads_that_share_keys_stay_together(widest: CpuBackend) -> None:
    """Where their groups are an even number for the workers, or many."""
    assert record_of(widest, 2, 4, 8, 70, 50)[-2:] == [32, 4]
    assert record_of(widest, 2, 7, 3, 70, 50)[-2:] == [21, 7]
    assert record_of(widest, 2, 1, 8, 70, 50)[-2:] == [8, 8]
    assert record_of(widest, 2, 3, 1, 70, 50)[-2] > 3


def test_keys_that_nobody_sees_are_not_there(widest: CpuBackend) -> None:
    assert record_of(widest, 1, 1, 1, 20, 50, causal=5)[1] == 25
    assert record_of(widest, 1, 1, 1, 20, 50, causal=100)[1] == 50
    assert record_of(widest, 1, 1, 1, 20, 50, causal=-30)[1] == 0


def visible(extents: tuple[int, ...], dtype: DType | None, hidden: float) -> dict[str, Array]:
    """A mask of rows and steps, of booleans or of addends, if there is one."""
    bits = bits_of(extents, 2, 3)[0, 0]
    if dtype == BOOL:
        return {"mask": bits}
    return {} if dtype is None else {"mask": np.where(bits, 0.5, hidden).astype(dtype.name)}


@pytest.mark.each_value
@pytest.mark.parametrize("softcap", [0.7, 30.0])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_soft_caps(backend: CpuBackend, dtype: DType, softcap: float) -> None:
    """Scores far beyond the cap, near it and far below; under no mask, an addend, booleans and a
    causal limit."""
    for mask_dtype in (None, dtype, BOOL):
        softmax = AttentionSoftmax(20.0 * SCALE, None if mask_dtype else P, softcap=softcap)
        mask = None if mask_dtype is None else (S, T)
        graph = graph_of(softmax, mask, dtype, mask_dtype)
        model = Model(graph, backend)
        for extents in EXTENTS:
            inputs = inputs_of(extents, dtype=dtype.name)
            inputs |= visible(extents, mask_dtype, -3.0)
            assert_model(backend, model, inputs, softmax)


@pytest.mark.each_value
@pytest.mark.parametrize("axes", [(2, 0, 0), (2, 3, 0), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_sinks(backend: CpuBackend, dtype: DType, axes: tuple[int, ...]) -> None:
    """One score without a key for each group, head or row: far below the others, near them and far
    above; with masks and causal limits, and rows that see no key."""
    for causal, mask_dtype in ((None, None), (0, dtype), (-3, None), (P, BOOL)):
        softmax = AttentionSoftmax(SCALE, causal, sinks=True)
        mask = None if mask_dtype is None else (S, T)
        shape = [n if axis else 1 for n, axis in zip((H, G, S), axes, strict=True)]
        graph = graph_of(softmax, mask, dtype, mask_dtype, sinks=(*shape, 1))
        model = Model(graph, backend)
        for number, extents in enumerate(EXTENTS):
            inputs = inputs_of(extents, dtype=dtype.name)
            inputs |= visible(extents, mask_dtype, -math.inf)
            counts = [n if axis else 1 for n, axis in zip(extents, axes, strict=False)]
            sinks = random(9, *counts, 1, dtype=dtype.name)
            inputs["sinks"] = sinks * (1, 40, 1)[number % 3] - (0, 0, 60)[number % 3]
            assert_model(backend, model, inputs, softmax)
