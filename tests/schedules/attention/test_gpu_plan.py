"""Plans of attention for GPUs: exact covers, sane estimates, choices as tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, DType
from ftuner.core.gpu.attention import AttentionForm, AttentionMask
from ftuner.cost.gpu.tile import loads_of
from ftuner.errors import HardwareError
from ftuner.planner.gpu.plan import AttentionPlan, AttentionProblem, RequestLengths
from ftuner.schedules.attention.gpu_plan import (
    AttentionPlanner,
    attention_planner,
    estimate_attention_plan,
    kept_tiles,
)

CASES = (
    # Requests, heads of keys, heads that share one, rows, keys, elements, causal.
    (1, 32, 1, 1, 1, 128, False), (1, 8, 4, 1, 1000, 128, True), (1, 8, 4, 1, 8192, 128, True),
    (32, 8, 4, 1, 777, 128, True), (1, 32, 1, 1, 8192, 128, True), (1, 8, 4, 5, 4099, 128, True),
    (1, 12, 1, 7, 7, 64, False), (1, 12, 1, 128, 128, 64, False), (32, 12, 1, 77, 77, 64, False),
    (1, 32, 1, 333, 333, 128, True), (1, 8, 4, 1024, 1024, 128, True),
    (1, 8, 4, 8192, 8192, 128, True), (32, 8, 4, 2048, 2048, 128, True),
    (1, 8, 4, 512, 8192, 128, True), (8, 16, 1, 1500, 1500, 64, False),
    (32, 16, 1, 197, 197, 80, False), (2, 8, 1, 4096, 77, 40, False),
    (1, 8, 1, 1024, 1024, 256, True),
)  # fmt: skip


@cache
def planner_of(
    name: str, depth: int, causal: bool = False, shared: bool = False, dtype: DType = FLOAT16,
    ragged: bool = False, mask: AttentionMask | None = None,
) -> AttentionPlanner:  # fmt: skip
    hardware = gpu(name)
    multiply = dtype.name
    limit = ("last" if ragged else "first") if causal else "none"
    form = AttentionForm.over(
        dtype, multiply, depth, depth, causal=limit, mask=mask,
        ragged=INT32 if ragged else None, loads=loads_of(hardware, multiply, True),  # type: ignore[arg-type]
    )  # fmt: skip
    return attention_planner(hardware, form, shared)


def problem_of(
    batch: int, heads: int, sharing: int, rows: int, keys: int, depth: int, causal: bool
) -> AttentionProblem:
    past = keys - rows if causal else 0
    return AttentionProblem(batch, heads, sharing, rows, keys, depth, depth, past)


def plan_of(name: str, case: tuple[int, int, int, int, int, int, bool]) -> AttentionPlan:
    return planner_of(name, case[5], case[6], case[2] > 1).plan(problem_of(*case))


@settings(max_examples=150)
@given(
    extents=st.tuples(
        st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9000),
        st.integers(1, 9000), st.sampled_from((5, 32, 64, 80, 128, 192, 256)), st.booleans(),
    ),
    name=st.sampled_from(GPUS),
    mask=st.sampled_from((None, AttentionMask(BOOL, layout="aligned"), AttentionMask(BOOL))),
    dtype=st.sampled_from((FLOAT16, FLOAT32)),
)  # fmt: skip
def test_any_extents(
    extents: tuple[int, int, int, int, int, int, bool], name: str, mask: AttentionMask | None,
    dtype: DType,
) -> None:  # fmt: skip
    _, _, sharing, rows, keys, depth, causal = extents
    planner = planner_of(name, depth, causal, sharing > 1, dtype, mask=mask)
    problem = problem_of(*extents)
    plan = planner.plan(problem)
    tile, packed = plan.kernel.tile, plan.kernel.packed
    assert plan.tiles * tile.bq >= rows * (sharing if packed else 1)
    assert (plan.tiles - 1) * tile.bq < rows * (sharing if packed else 1)
    assert (plan.split_keys > 1) == plan.kernel.split
    assert 1 <= plan.split_keys <= -(-keys // tile.bk)
    assert 1 <= plan.l2_heads <= plan.elements
    # What is compiled beforehand is all that a plan may launch.
    assert plan.kernel in planner.kernels
    terms = estimate_attention_plan(gpu(name), plan)
    assert all(seconds >= 0 for seconds in terms.terms().values())
    # What was compared is what the terms say.
    assert planner.seconds(plan) == pytest.approx(terms.seconds, rel=1e-9)


@settings(max_examples=60)
@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=40
    ).filter(lambda lengths: any(rows for rows, _ in lengths)),
    heads=st.sampled_from(((1, 1), (8, 1), (8, 4))),
    causal=st.booleans(),
    name=st.sampled_from(GPUS),
)
def test_any_requests(
    lengths: list[tuple[int, int]], heads: tuple[int, int], causal: bool, name: str
) -> None:
    planner = planner_of(name, 64, causal, heads[1] > 1, ragged=True)
    rows, keys = (tuple(each) for each in zip(*lengths, strict=True))
    problem = AttentionProblem(len(lengths), *heads, sum(rows), sum(keys), 64, 64)
    given_lengths = RequestLengths(rows, keys)
    plan = planner.plan(problem, given_lengths)
    assert plan.kernel in planner.kernels
    # Every request has its tiles, wherever it begins.
    each = sum(-(-r * (heads[1] if plan.kernel.packed else 1) // plan.kernel.tile.bq) for r in rows)
    assert plan.tiles >= each
    terms = estimate_attention_plan(gpu(name), plan, given_lengths)
    assert all(seconds >= 0 for seconds in terms.terms().values())
    assert planner.seconds(plan, given_lengths) == pytest.approx(terms.seconds, rel=1e-9)


def test_requests_of_equal_length_are_priced_like_a_batch() -> None:
    """But for what is not known of how tiles divide them."""
    for causal in (False, True):
        for batch, rows, keys in ((32, 1, 777), (8, 1500, 1500), (3, 8192, 8192), (16, 77, 900)):
            dense = planner_of("h200", 64, causal)
            ragged = planner_of("h200", 64, causal, ragged=True)
            problem = problem_of(batch, 8, 1, rows, keys, 64, causal)
            together = problem._replace(rows=batch * rows, keys=batch * keys, past=0)
            lengths = RequestLengths((rows,) * batch, (keys,) * batch)
            one = dense.seconds(dense.plan(problem))
            other = ragged.seconds(ragged.plan(together, lengths), lengths)
            assert 0.7 < other / one < 1.4, (causal, batch, rows, keys, one, other)


@pytest.mark.parametrize("name", GPUS)
def test_more_work_takes_longer(name: str) -> None:
    """Eight times an extent never takes less, but for what estimates of two tiles may differ by."""
    for case in CASES:
        batch, heads, sharing, rows, keys, depth, causal = case
        seconds = planner_of(name, depth, causal, sharing > 1).seconds(plan_of(name, case))
        larger = [
            (8 * batch, heads, sharing, rows, keys, depth, causal),
            (batch, 8 * heads, sharing, rows, keys, depth, causal),
            (batch, heads, sharing, rows, 8 * keys, depth, causal),
        ]
        if not causal:
            larger.append((batch, heads, sharing, 8 * rows, keys, depth, causal))
        for other in larger:
            planner = planner_of(name, depth, causal, other[2] > 1)
            assert planner.seconds(plan_of(name, other)) >= 0.95 * seconds, (case, other)


def test_few_rows_and_many_keys_are_spread() -> None:
    """As many multiprocessors work as there are, where one head has too few tiles for that."""
    plan = plan_of("h200", (1, 1, 8, 1, 100_000, 128, True))
    assert plan.kernel.packed
    assert plan.programs >= 60
    assert plan_of("h200", (64, 32, 1, 1024, 1024, 128, True)).split_keys == 1


def test_what_a_chip_cannot_multiply() -> None:
    form = AttentionForm.over(BFLOAT16, "bfloat16", 64, 64)
    with pytest.raises(HardwareError, match="v100"):
        kept_tiles(gpu("v100"), form)


def test_every_form_has_a_tile() -> None:
    for name in GPUS:
        for depth, columns in ((1, 1), (256, 256), (16, 256), (256, 16)):
            for aligned in (False, True):
                for dtype in (FLOAT16, FLOAT32):
                    form = AttentionForm.over(
                        dtype, dtype.name, depth, columns, aligned=aligned,  # type: ignore[arg-type]
                        mask=AttentionMask(dtype),
                    )  # fmt: skip
                    assert kept_tiles(gpu(name), form), (name, form)


@pytest.mark.parametrize("name", ["h200", "a100-sxm-80gb", "rtx4090", "v100"])
def test_selection(name: str, golden: Callable[[str, str], None]) -> None:
    """What is kept and chosen on recorded chips, as tables to be read when they change."""
    lines = [f"# {name}, float16", "", "# tiles, and how many of them a multiprocessor holds"]
    for depth in (32, 64, 80, 128, 256):
        planner = planner_of(name, depth, True)
        tiles = kept_tiles(gpu(name), planner.kernels[0].form)
        lines.append(f"{depth:4}  " + " ".join(f"{c.tile}:{c.blocks}" for c in tiles))
    lines += ["", "# plans"]
    for case in CASES:
        batch, heads, sharing, rows, keys, depth, causal = case
        plan = plan_of(name, case)
        shape = f"{batch}*{heads}*{sharing} {rows}x{keys}x{depth}{' causal' * causal}"
        packed = ", packed" * plan.kernel.packed
        lines.append(
            f"{shape:29} {plan.tiles:4} tiles, split {plan.split_keys:2}, "
            f"{plan.programs:5} programs, heads in L2 {plan.l2_heads:3}: {plan.kernel.tile}{packed}"
        )
    golden(f"attention-plans-{name}.txt", "\n".join(lines) + "\n")
