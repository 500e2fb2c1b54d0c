"""Attention in bfloat16: products of words of two numbers, with sums and softmax in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import llvmlite.ir as ir
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import B, Maker, S, T, ops
from tests.runtime.cpu.attention_cases import Array, expected_of, random
from tests.runtime.cpu.small_models import device_of

import ftuner
from ftuner.codegen.llvm.objects.jit import Target, compile_assembly
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import BFLOAT16, BFLOAT16X2, BOOL, FLOAT32, FLOAT64, DType
from ftuner.core.references import round_bfloat16
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.hardware.isa import instruction_set
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.arrays import numpy_dtype
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.attention.cpu_kernel import emit
from ftuner.schedules.attention.step import AttentionStep

H, G, E = (symbol(name) for name in "HGE")
DEPTHS = (16, 17, 32, 67)
EXTENTS = (
    # Groups, heads of a group, rows, keys, columns.
    (1, 1, 1, 1, 1), (2, 3, 5, 7, 11), (1, 2, 1, 64, 16), (2, 4, 1, 67, 24), (1, 1, 131, 67, 33),
    (3, 2, 33, 16, 1), (1, 5, 2, 201, 24), (0, 2, 3, 4, 6), (1, 2, 0, 4, 6), (2, 1, 300, 301, 40),
    (1, 1, 3, 0, 5), (1, 1, 2, 20011, 3), (1, 1, 1500, 129, 130),
)  # fmt: skip
PLAIN = AttentionSoftmax(0.3)
FORMS = ("rows", "columns", "apart", "computed")
"""How memory has k and v: rows of a key, or the keys of a column; or q and k with a number more
before each row, so that no row begins with a word. What is computed is rounded before attention."""
RNG = np.random.default_rng(5)
PICKS = 4e4


def isas() -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.isa(name)) for name in ("avx512", "neon")]


def graph_of(
    depth: Dim, softmax: AttentionSoftmax = PLAIN, form: str = "rows",
    mask: tuple[tuple[Dim, ...], DType] | None = None, sinks: bool = False, dtype: DType = FLOAT32,
) -> Graph:  # fmt: skip
    """Groups of heads that share k and v."""
    maker = Maker()

    def operand(name: str, heads: Dim, rows: Dim, columns: Dim) -> Value:
        if form == "columns" and name != "q":
            return maker.given(name, H, heads, columns, rows, dtype=dtype).swapped()
        more = int(form == "apart" and name != "v")
        x = maker.given(name, H, heads, rows, columns + more, dtype=dtype)[..., more:]
        return x.at_most(1e30) if form == "computed" else x

    with maker.writing():
        q, k, v = operand("q", G, S, depth), operand("k", 1, T, depth), operand("v", 1, T, E)
        others = [] if mask is None else [maker.given("mask", *mask[0], dtype=mask[1])]
        others += [maker.given("sinks", G, 1, 1)] if sinks else []
        found = maker.add("attention", q, k.swapped(), v, *others, **vars(softmax))
    return maker.made(found)


def rounding(graph: Graph) -> Graph:
    found = optimised(graph, halves=False, precision="bfloat16")
    assert ops(found).count("word_attention") == 1
    return found


def operands_of(extents: Sequence[int], depth: int, seed: int = 0) -> tuple[Array, Array, Array]:
    h, g, s, t, e = extents
    shapes = (h, g, s, depth), (h, 1, t, depth), (h, 1, t, e)
    q, k, v = (random(seed + i, *shape) for i, shape in enumerate(shapes))
    return q, k, v


def given_as(form: str, operands: Sequence[Array]) -> list[Array]:
    """Arrays as inputs of the graph."""
    if form == "columns":
        q, *others = operands
        return [q, *(np.ascontiguousarray(x.swapaxes(-1, -2)) for x in others)]
    if form == "apart":
        return [*(np.pad(x, [(0, 0)] * 3 + [(1, 0)]) for x in operands[:2]), operands[2]]
    return list(operands)


def assert_right(
    found: Array, operands: Sequence[Array], mask: Array | None = None,
    softmax: AttentionSoftmax = PLAIN, sinks: Array | None = None, powers: bool = True,
) -> None:  # fmt: skip
    """The attention of rounded numbers in float64, up to the rounding of powers: twice half a unit
    of 8 bits, of which one is that of their sum. `powers`: whether these are rounded at all."""
    q, k, v = (round_bfloat16(x) for x in operands)
    wanted, allowed = expected_of(q, k.swapaxes(-1, -2), v, mask, softmax, sinks)
    sizes, _ = expected_of(q, k.swapaxes(-1, -2), np.abs(v), mask, softmax, sinks)
    assert found.dtype == np.float32
    assert found.shape == wanted.shape
    unknown = np.isnan(wanted)
    assert np.array_equal(np.isnan(found), unknown)
    error = np.abs(found - wanted) - powers * 1.01 * 2.0**-8 * sizes
    assert np.all(error[~unknown] <= allowed), (q.shape, k.shape, v.shape)


def runs(device: CpuBackend, graph: Graph) -> list[CompiledGraph]:
    return [CompiledGraph(replace(graph), device, Options(threads=n)) for n in (1, 3)]


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_extents(isa: str, depth: int, form: str) -> None:
    graph = rounding(graph_of(depth, form=form))
    for run in runs(device_of(BFLOAT16, isa), graph):
        for extents in EXTENTS:
            operands = operands_of(extents, depth)
            (found,) = run.run(given_as(form, operands))
            assert_right(found, operands)


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("depth", DEPTHS)
def test_means_are_those_of_float32(isa: str, depth: int) -> None:
    """Of equal scores all powers are one, which no rounding changes."""
    for run in runs(device_of(BFLOAT16, isa), rounding(graph_of(depth))):
        for extents in EXTENTS:
            q, k, v = operands_of(extents, depth)
            operands = np.zeros_like(q), k, v
            (found,) = run.run(list(operands))
            assert_right(found, operands, powers=False)


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_best_key_is_picked(isa: str, depth: int) -> None:
    """Of scores far apart one power is one and the others are zero: the result is its value."""
    for run in runs(device_of(BFLOAT16, isa), rounding(graph_of(depth, AttentionSoftmax(PICKS)))):
        for extents in EXTENTS[1:8]:
            operands = operands_of(extents, depth)
            (found,) = run.run(list(operands))
            q, k, v = (round_bfloat16(x).astype(np.float64) for x in operands)
            scores = np.sort(q @ k.swapaxes(-1, -2), -1)
            clear = (scores[..., -1] - scores[..., -2:-1].max(-1, initial=-99)) * PICKS > 200
            best = (q @ k.swapaxes(-1, -2)).argmax(-1)[..., None]
            shared = np.broadcast_to(v, (len(v), q.shape[1], *v.shape[2:]))
            wanted = np.take_along_axis(shared, best, 2)
            assert clear.sum() >= 0.9 * clear.size
            np.testing.assert_array_equal(found[clear], wanted[clear])


@pytest.mark.each_value
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("offset", [0, 3, -3, -1000, 1000])
@pytest.mark.parametrize("masked", ["", "addend", "booleans", "sinks", "cap"])
def test_what_rows_see(isa: str, offset: int, masked: str) -> None:
    softmax = AttentionSoftmax(
        0.3, offset, softcap=1.5 * (masked == "cap"), sinks=masked == "sinks", safe=True
    )
    dtype = {"addend": FLOAT32, "booleans": BOOL}.get(masked)
    mask = None if dtype is None else ((H, 1, S, T), dtype)
    graph = rounding(graph_of(32, softmax, mask=mask, sinks=softmax.sinks))
    for run in runs(device_of(BFLOAT16, isa), graph):
        for h, g, s, t, e in EXTENTS[:10]:
            operands = operands_of((h, g, s, t, e), 32)
            shown = RNG.random((h, 1, s, t)) < 0.7
            shown[..., :1] = True
            added = np.where(shown, random(9, h, 1, s, t), -1e9).astype(np.float32)
            hiding = {"addend": added, "booleans": shown}.get(masked)
            sinks = random(8, g, 1, 1) if softmax.sinks else None
            others = [x for x in (hiding, sinks) if x is not None]
            (found,) = run.run([*operands, *others])
            assert_right(found, operands, hiding, softmax, sinks)


@settings(max_examples=60)
@given(
    extents=st.tuples(*[st.integers(1, n) for n in (3, 4, 70, 70, 40)]),
    depth=st.integers(16, 40), threads=st.integers(1, 4), causal=st.booleans(),
    form=st.sampled_from(FORMS),
)  # fmt: skip
def test_any_extents(
    extents: tuple[int, ...], depth: int, threads: int, causal: bool, form: str
) -> None:
    run = _compiled(depth, causal, form, threads)
    operands = operands_of(extents, depth, sum(extents))
    (found,) = run.run(given_as(form, operands))
    offset = extents[3] - extents[2] if causal else None
    assert_right(found, operands, softmax=AttentionSoftmax(0.3, offset))


@cache
def _compiled(depth: int, causal: bool, form: str, threads: int) -> CompiledGraph:
    graph = graph_of(depth, AttentionSoftmax(0.3, T - S if causal else None), form)
    device = device_of(BFLOAT16)
    return CompiledGraph(rounding(graph), device, Options(threads=threads))


def test_a_row_does_not_depend_on_the_others() -> None:
    device = device_of(BFLOAT16)
    for run in runs(device, rounding(graph_of(32))):
        q, k, v = operands_of((2, 3, 40, 50, 24), 32)
        first = run.run([q, k, v])[0]
        changed = q.copy()
        changed[:, :, 1:] = RNG.standard_normal(changed[:, :, 1:].shape)
        np.testing.assert_array_equal(run.run([changed, k, v])[0][:, :, 0], first[:, :, 0])


@pytest.mark.parametrize("depth", DEPTHS)
def test_references_agree(depth: int) -> None:
    graph = rounding(graph_of(depth, AttentionSoftmax(0.3, 2)))
    for extents in EXTENTS[:10]:
        operands = operands_of(extents, depth)
        (found,) = run_reference(graph, list(operands))
        assert_right(found, operands, softmax=AttentionSoftmax(0.3, 2))


TARGETS = {
    "bfcvtn": Target("aarch64-unknown-linux-gnu", "neoverse-v1", "+neon,+bf16"),
    "vcvtneps2bf16": Target(
        "x86_64-unknown-linux-gnu", "sapphirerapids",
        f"{instruction_set('avx512').features},+avx512bf16",
    ),
}  # fmt: skip
"""By the instruction that rounds."""


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_one_instruction_rounds(name: str, rounds: bool) -> None:
    target = TARGETS[name]
    module = ir.Module("kernel")
    module.triple = target.triple
    vector_bytes = 64 if name.startswith("v") else 16
    emit(
        module, "attention", BFLOAT16X2, 2, FLOAT32, True, False, False, rounds, vector_bytes, True
    )
    text = compile_assembly(module, target, inlines=True)
    assert text.count(f"\t{name}") >= (4 if rounds else 2)
    # LLVM would call a function of a runtime library where a target has no instruction.
    assert "trunc" not in text


def test_keys_that_are_constants() -> None:
    maker = Maker()
    k, v = random(1, 2, 33, 32), random(2, 2, 33, 20)
    with maker.writing():
        q, keys = maker.given("q", 2, S, 32), maker.constant(k, FLOAT32)
        y = maker.add("attention", q, keys.swapped(), maker.constant(v, FLOAT32), **vars(PLAIN))
    graph = rounding(maker.made(y))
    given = random(0, 2, 7, 32)
    assert_right(run_reference(graph, [given])[0], [given, k, v])
    if BFLOAT16 in CpuBackend().narrow_dtypes:
        for run in runs(CpuBackend(), graph):
            assert_right(run.run([given])[0], [given, k, v])


def test_only_where_it_is_asked_for_and_pays() -> None:
    for precision in ("", "int8-dynamic", "int4-weights", "int4-dynamic"):
        graph = optimised(graph_of(32), halves=False, precision=precision)
        assert ops(graph).count("attention") == 1
    for depth, dtype in ((8, FLOAT32), (symbol("D"), FLOAT32), (32, FLOAT64)):
        graph = optimised(graph_of(depth, dtype=dtype), halves=False, precision="bfloat16")
        assert "word_attention" not in ops(graph)


def test_projections_are_stored_as_they_are_read() -> None:
    """One product has q, k and v, and rounds them as it stores them."""
    maker = Maker()
    x, mask = maker.given("x", B, S, 96), maker.given("mask", B, S)
    graph = optimised(
        maker.made(maker.self_attention(x, mask, 3)), halves=False, precision="bfloat16"
    )
    steps = lower(replace(graph)).steps
    (step,) = [step for step in steps if isinstance(step, AttentionStep)]
    assert step.title == "attention in bfloat16"
    assert step.q.layout.dtype == step.k.layout.dtype == BFLOAT16X2
    assert step.q.buffer is step.k.buffer
    assert step.q.buffer is step.v.buffer
    (writer,) = [other for other in steps if step.q.buffer in other.writes]
    assert writer.kind == "product"


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT32], ids=str)
def test_a_cache_is_read_as_it_is(dtype: DType) -> None:
    """Keys and values of a cache, with those of new tokens after them."""
    pytest.importorskip("ml_dtypes")
    maker = Maker()
    q, new_k, new_v = (maker.given(n, B, 2, S, 32) for n in ("q", "new_k", "new_v"))
    k, v = (maker.given(n, B, 2, T, 32, dtype=dtype) for n in ("k", "v"))
    with maker.writing():
        k, v = (
            maker.add("concat", old.cast(FLOAT32), new, axis=2)
            for old, new in ((k, new_k), (v, new_v))
        )
        y = maker.add("attention", q, k.swapped(), v, scale=0.3, causal=T)
        outputs = [("y", y), ("all_k", k.cast(dtype)), ("all_v", v.cast(dtype))]
    graph = optimised(maker.graph(maker.inputs, outputs), halves=False, precision="bfloat16")
    assert ops(graph).count("concat") == 2
    steps = lower(replace(graph)).steps
    assert [step.title for step in steps].count("causal attention in bfloat16") == 1
    (step,) = [step for step in steps if isinstance(step, AttentionStep)]
    assert (step.k.buffer.kind, step.v.buffer.kind) == ("output", "output")
    device = device_of(BFLOAT16)
    narrow, exact = numpy_dtype(dtype), dtype == FLOAT32
    for run in runs(device, graph):
        for b, s, t in ((1, 1, 7), (2, 5, 0), (1, 9, 64), (3, 1, 131)):
            new = [random(i, b, 2, s, 32) for i in range(3)]
            old = [random(i, b, 2, t, 32).astype(narrow) for i in range(2)]
            found, *caches = run.run([*new, *old])
            whole = [
                np.concatenate([x.astype(np.float32), y], 2)
                for x, y in zip(old, new[1:], strict=True)
            ]
            assert_right(found, [new[0], *whole], softmax=AttentionSoftmax(0.3, t))
            for rows, wanted in zip(caches, whole, strict=True):
                kept = wanted if exact else round_bfloat16(wanted)
                np.testing.assert_array_equal(rows.astype(np.float32), kept)
    model = Model(graph, device, Options(append_in_place=True))
    past = [np.zeros((1, 2, 0, 32), narrow)] * 2
    whole = [np.zeros((1, 2, 0, 32), np.float32)] * 2
    for s in (7, *[1] * 130):
        new = [random(s + i, 1, 2, s, 32) for i in range(3)]
        earlier = whole[0].shape[2]
        whole = [np.concatenate([x, y], 2) for x, y in zip(whole, new[1:], strict=True)]
        found, *past = model.run(
            dict(zip(("q", "new_k", "new_v", "k", "v"), [*new, *past], strict=True))
        )
        assert_right(found, [new[0], *whole], softmax=AttentionSoftmax(0.3, earlier))


def test_explanations_name_it() -> None:
    if BFLOAT16 not in CpuBackend().narrow_dtypes:
        pytest.skip("this CPU multiplies no bfloat16")
    model = ftuner.compile(graph_of(32), precision="bfloat16")
    shapes = {"q": (1, 2, 64, 32), "k": (1, 1, 64, 32), "v": (1, 1, 64, 32)}
    (group,) = [g for g in model.explain(**shapes).groups if g.kind == "attention"]
    assert group.title == "attention in bfloat16"
    assert group.flops == 2 * 64 * (2 * 64 * (32 + 32) + 5 * 64 + 32)
