"""Models: any extents in any order; results own their memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.graphs import (
    B,
    Maker,
    S,
    T,
    assert_close,
    assert_runs,
    graph_of,
    grown,
    inputs_of,
    reference,
)
from tests.runtime.cpu.small_models import LAYER, assert_right, compiled, small

from ftuner.core.dtype import BOOL, FLOAT64, TENSOR_DTYPES
from ftuner.errors import AllocationError
from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.run_states import MAX_PROGRAM_BYTES
from ftuner.runtime.model import Model

# Extents.


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 70)), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_any_extents_in_any_order(
    widest: CpuBackend, encoder: Model, extents: list[tuple[int, int]], threads: int
) -> None:
    """Programs are used again, and are written again when the arena has grown."""
    widest.threads = threads
    for b, s in (*extents, *extents[::-1]):
        assert_right(encoder, LAYER, B=b, S=s)


def test_extents_seen_before_after_the_arena_has_grown(widest: CpuBackend) -> None:
    model = Model(LAYER, widest)
    widest.threads = 2
    for s in (3, 200, 3, 5, 400, 200, 3, 5):
        assert_right(model, LAYER, seed=s, B=2, S=s)


def test_no_elements(encoder: Model, sums: Model, widest: CpuBackend) -> None:
    for threads in (1, 2):
        widest.threads = threads
        assert_right(encoder, LAYER, B=0, S=4)
        assert_right(sums, small(), B=0, S=0)
        assert_right(sums, small(), B=3, S=0)
        assert_right(sums, small(), B=0, S=3)


def test_sums_of_no_elements_are_zeros(widest: CpuBackend) -> None:
    """In products that lie in any way, with an epilogue and without, and in attention."""

    def body(g: Maker) -> list[Value]:
        x, y = g.given("x", S, T), g.given("y", T, B)
        turned = g.add("transpose", g.given("z", B, T), perm=(1, 0))
        products = [g.add("matmul", x, other) for other in (y, turned)]
        bound = g.add("add", g.add("erf", g.add("matmul", x, y)), g.given("r", S, B))
        batch = g.add("matmul", g.given("u", B, S, T), g.given("v", B, T, 20))
        known = g.add("add", g.add("matmul", g.given("w", S, 0), g.weight(0, 20)), g.weight(20))
        q, k, v = g.given("q", B, S, 8), g.given("k", B, 8, T), g.given("values", B, T, 5)
        # Scores of nothing are zeros, of which all weigh as much.
        deep = g.add("attention", x, y, g.given("of", B, 3), scale=0.5)
        return [*products, bound, batch, known, deep, g.add("attention", q, k, v, scale=0.5),
                g.add("attention", q, k, v, g.given("mask", S, T), scale=0.5, causal=T - S),
                g.attention(q, k, v, 0.5, None)]  # fmt: skip

    graph = graph_of(body)
    extents = [{"S": s, "T": t, "B": b} for s in (2, 33) for t in (3, 0, 1) for b in (4, 70)]
    for g in (graph, optimised(graph)):
        assert_runs(g, widest, *extents, *extents[::-1])


def test_epilogues_that_differ_by_the_sign_of_a_zero(widest: CpuBackend) -> None:
    def body(g: Maker) -> list[Value]:
        x = g.given("x", S, 8)
        return [
            g.add("divide", g.add("matmul", x, g.weight(8, 4)), g.number(zero))
            for zero in (0.0, -0.0)
        ]

    assert_runs(graph_of(body), widest, {"S": 3})


@pytest.mark.parametrize("turned_first", [False, True])
def test_products_that_read_one_weight_differently(widest: CpuBackend, turned_first: bool) -> None:
    """Rows and columns of A, epilogues, and the weight as it came."""

    def body(g: Maker) -> list[Value]:
        weight, x = g.weight(16, 70), g.given("x", S, 16)
        operands = [x, g.add("transpose", g.given("y", 16, T), perm=(1, 0))]
        if turned_first:
            operands.reverse()
        products = [g.add("matmul", a, weight) for a in operands]
        bound = g.add("add", g.add("matmul", g.add("negative", x), weight), g.weight(70))
        back = g.add("matmul", g.given("z", S, 70), g.add("transpose", weight, perm=(1, 0)))
        return [*products, bound, back, g.add("multiply", weight, g.number(2))]

    extents = ({"S": s, "T": t} for s in (1, 5, 40) for t in (1, 7, 64))
    model = assert_runs(graph_of(body), widest, *extents)
    panels = {
        id(step.panels) for step in compiled(model)._writer._kept[1] if step.panels is not None
    }
    assert len(panels) == 2, "a weight is packed once, and so is its transpose"


def bindings(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is bound from here on."""
    part = compiled(model)
    bind, found = part._writer.bind, []

    def counted(*arguments: Any) -> Any:
        found.append(bind(*arguments))
        return found[-1]

    monkeypatch.setattr(part._writer, "bind", counted)
    return found


def test_lengths_in_turn_are_bound_once(
    widest: CpuBackend, encoder: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lengths of a sentence encoder have room for each of two callers."""
    model = Model(small(), widest)
    bound = bindings(model, monkeypatch)
    inputs = {name: np.ones((2, 512), np.float32) for name in ("x", "y")}
    for _ in range(2):
        for s in range(1, 513):
            for b in (1, 2):
                model.run({name: x[:b, :s] for name, x in inputs.items()})
        assert len(bound) == 1024
    encoder.run(inputs_of(LAYER, {"B": 2, "S": 60}))
    (state,) = compiled(encoder).states.all
    *_, program = state.programs.values()
    # Six such layers.
    assert 2 * 512 * 6 * program.records_bytes < MAX_PROGRAM_BYTES


def test_programs_are_bounded_and_kept_by_use(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftuner.runtime.cpu.run_states.MAX_PROGRAM_BYTES", 64 << 10)
    model = Model(small(), widest)
    bound = bindings(model, monkeypatch)
    x = np.ones((1, 400), np.float32)
    for s in range(2, 400):
        for length in (1, s):
            model.run({"x": x[:, :length], "y": x[:, :length]})
    assert len(bound) == 399
    (state,) = compiled(model).states.all
    kept = list(state.programs.values())
    assert 10 < len(kept) < 399
    assert sum(program.records_bytes for program in kept) <= 64 << 10


def test_sizes_in_bytes_of_every_dtype(widest: CpuBackend) -> None:
    """Buffers of the arena, inputs and outputs of every dtype beside each other."""

    def body(g: Maker) -> list[Value]:
        outputs = []
        for name, dtype in TENSOR_DTYPES.items():
            x = g.given(name, B, S, dtype=dtype)
            outputs.append(g.add("transpose", g.add("cast", x, to=FLOAT64), perm=(1, 0)))
            outputs.append(g.add("concat", x, x, axis=1))
        return outputs

    graph = graph_of(body)
    model = Model(graph, widest)
    for b, s in ((3, 5), (1, 67), (2, 2)):
        assert_right(model, graph, B=b, S=s)


def _product(g: Maker, x: Value) -> Value:
    return g.add("matmul", x, g.weight(8, 6))


def _products_of_matrices(g: Maker, x: Value) -> Value:
    return g.add("matmul", x, g.add("transpose", x, perm=(0, 2, 1)))


def _convolution(g: Maker, x: Value, columns: int = 8, groups: int = 1) -> Value:
    return g.add(
        "convolution", x, g.weight(3, 8 // groups, columns), groups=groups, strides=(1,),
        dilations=(1,), begin=(1,), extents=(x.shape[1],),
    )  # fmt: skip


def _attention(g: Maker, x: Value) -> Value:
    return g.add("attention", x, g.add("transpose", x, perm=(0, 2, 1)), g.add("exp", x), scale=1.0)


@pytest.mark.parametrize(
    "computed",
    [
        _product,
        _products_of_matrices,
        _convolution,
        pytest.param(partial(_convolution, columns=16, groups=2), id="groups"),
        pytest.param(partial(_convolution, groups=8), id="channels"),
        _attention,
    ],
)
def test_results_are_stacked_along_a_new_last_axis(
    computed: Callable[[Maker, Value], Value], widest: CpuBackend
) -> None:
    """Their elements are then not next to each other in memory."""

    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S, 8)
        pair = [computed(g, x) for _ in range(2)]
        apart = [g.add("reshape", y, shape=(*y.shape, 1)) for y in pair]
        return [g.add("concat", *apart, axis=3)]

    graph = graph_of(body)
    model = Model(graph, widest)
    for seed, (b, s) in enumerate(((1, 1), (2, 7), (3, 40))):
        assert_right(model, graph, seed, B=b, S=s)


def test_extents_that_only_data_tells(widest: CpuBackend) -> None:
    """A program ends where they are found, and another begins."""

    def body(g: Maker) -> list[Value]:
        x = g.given("x", B, S)
        found = g.add("non_zero", g.add("less", g.number(0), x), count="N")
        chosen = g.add("gather_nd", x, g.add("transpose", found, perm=(1, 0)), batch_dims=0)
        return [g.add("exp", chosen), g.add("negative", x), found]

    graph = graph_of(body)
    model = Model(graph, widest)
    assert len(model.parts) == 2
    for seed, (b, s) in enumerate(((3, 5), (1, 1), (7, 40), (0, 3), (3, 5))):
        assert_right(model, graph, seed, B=b, S=s)
    none = np.full((2, 3), -1, np.float32)
    assert model.run({"x": none})[0].shape == (0,)


# Outputs.


@pytest.mark.parametrize("n", [1 << 10, 1 << 13, 1 << 16])
def test_results_that_no_memory_holds(widest: CpuBackend, n: int) -> None:
    """More than the system gives, than a process has addresses for, than 64 bits count."""
    model = Model(grown(), widest)
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    with pytest.raises(AllocationError, match=r"no memory|cannot allocate"):
        model.run({"x": x, "n": np.zeros(n, np.int64)})
    found = model.run({"x": x, "n": np.zeros(2, np.int64)})
    assert_close(found, [np.exp(np.repeat(x, 16, 0)), x, np.zeros(2, np.int64)])


def test_inputs_that_no_memory_holds(widest: CpuBackend) -> None:
    """A view without strides is copied."""
    graph = graph_of(lambda g: g.add("reduce", g.given("x", S), kind="sum", axes=(0,)))
    model = Model(graph, widest)
    with pytest.raises(AllocationError, match="no memory"):
        model.run({"x": np.broadcast_to(np.float32(1), (1 << 58,))})
    assert_close(model.run({"x": np.ones(5, np.float32)}), [np.float32(5)])


def test_outputs_own_their_memory(widest: CpuBackend, encoder: Model, sums: Model) -> None:
    """A later call leaves them alone, and so do writes to inputs and other outputs."""
    widest.threads = 2
    for model, graph in ((encoder, LAYER), (sums, small())):
        first = inputs_of(graph, {"B": 2, "S": 9}, 1)
        results = model.run(first)
        kept = [y.copy() for y in results]
        for x in first.values():
            x[...] = 7
        model.run(inputs_of(graph, {"B": 2, "S": 9}, 2))
        model.run(inputs_of(graph, {"B": 3, "S": 30}, 3))
        assert all(np.array_equal(x, y) for x, y in zip(results, kept, strict=True))
        assert all(y.flags.owndata and y.flags.writeable for y in results)


def test_outputs_that_are_inputs_or_constants_are_copies(widest: CpuBackend) -> None:
    graph = graph_of(lambda g: [g.given("x", S), g.weight(3), g.inputs[0]])
    model = Model(graph, widest)
    x = np.arange(4, dtype=np.float32)
    one, constant, other = model.run({"x": x})
    one[...] = 9
    constant[...] = 9
    assert x.tolist() == other.tolist() == [0, 1, 2, 3]
    assert not np.array_equal(model.run({"x": x})[1], constant)


def test_no_inputs(widest: CpuBackend) -> None:
    graph = graph_of(lambda g: g.weight(2, 3))
    (found,) = Model(graph, widest).run({})
    assert np.array_equal(found, reference(graph, {})[0])


def test_bools_of_any_byte(widest: CpuBackend) -> None:
    graph = graph_of(
        lambda g: g.add("where", g.given("c", S, dtype=BOOL), g.number(1), g.number(2))
    )
    condition = np.arange(100, dtype=np.uint8).view(bool)
    (found,) = Model(graph, widest).run({"c": condition})
    assert found.tolist() == [2] + [1] * 99
