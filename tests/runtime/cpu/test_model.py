"""Models: any extents in any order, from any thread and process; wrong inputs are named."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
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
    layer,
    reference,
    selected,
    selection,
)

from ftuner.core.dtype import BOOL, FLOAT64, INT32, INT64, TENSOR_DTYPES
from ftuner.errors import AllocationError, IndexRangeError, InputError, ShapeError
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.run_states import MAX_PROGRAM_BYTES
from ftuner.runtime.model import Model, TensorSpec

Array = npt.NDArray[Any]
LAYER = optimised(layer())


def compiled(model: Model) -> CompiledGraph:
    """The graph of a model of one part."""
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    return part


@pytest.fixture(scope="module")
def encoder(widest: CpuBackend) -> Model:
    return Model(LAYER, widest)


def small() -> Graph:
    """A program without products: a sum of two inputs, and sums of its rows."""

    def body(g: Maker) -> list[Value]:
        y = g.add("add", g.given("x", B, S), g.given("y", B, S))
        return [g.add("exp", y), g.add("reduce", y, kind="sum", axes=(1,))]

    return graph_of(body)


@pytest.fixture(scope="module")
def sums(widest: CpuBackend) -> Model:
    return Model(small(), widest)


def assert_right(model: Model, graph: Graph, seed: int = 0, **extents: int) -> None:
    inputs = inputs_of(graph, extents, seed)
    assert_close(model.run(inputs), reference(graph, inputs), str(extents))


# Extents.


@settings(max_examples=40, deadline=None)
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
    """All lengths of a sentence encoder, in two batch sizes, have room."""
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
    # Twelve such layers.
    assert 2 * 1024 * 12 * program.records_bytes < MAX_PROGRAM_BYTES


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


# Inputs.


def test_specifications(sums: Model) -> None:
    assert sums.inputs == [TensorSpec("x", "float32", ("B", "S")),
                           TensorSpec("y", "float32", ("B", "S"))]  # fmt: skip
    assert sums.outputs == [TensorSpec("y0", "float32", ("B", "S")),
                            TensorSpec("y1", "float32", ("B",))]  # fmt: skip


def test_wrong_inputs_are_named(sums: Model) -> None:
    x = np.ones((2, 3), np.float32)
    for feeds, text in (
        ({"x": x}, "missing: y"),
        ({"x": x, "y": x, "z": x}, "unknown: z"),
        ({"x": x, "z": x}, r"missing: y; unknown: z"),
        ({}, "missing: x, y"),
        ({"x": x.astype(np.float64), "y": x}, "x has dtype float64.*float32"),
        ({"x": x.astype(">f4"), "y": x}, "x has dtype >f4"),
        ({"x": x.astype(np.int32), "y": x}, "x has dtype int32"),
        ({"x": x[0], "y": x}, r"x is \(3,\)"),
        ({"x": x, "y": x[None]}, r"y is \(1, 2, 3\)"),
        ({"x": [[1.0]], "y": x}, "x is a list"),
        ({"x": None, "y": x}, "x is a NoneType"),
        ({"x": x.astype(object), "y": x}, "dtype object"),
    ):
        with pytest.raises(InputError, match=text):
            sums.run(feeds)
    assert_right(sums, small(), B=2, S=3)


def test_extents_that_contradict_each_other(sums: Model) -> None:
    x = np.ones((2, 3), np.float32)
    for other in ((2, 4), (3, 3), (1, 3), (0, 3)):
        with pytest.raises(ShapeError, match="elsewhere"):
            sums.run({"x": x, "y": np.ones(other, np.float32)})
    assert_right(sums, small(), B=2, S=3)


def test_extents_that_contradict_the_model(encoder: Model) -> None:
    inputs = inputs_of(LAYER, {"B": 2, "S": 3})
    with pytest.raises(ShapeError, match="24"):
        encoder.run({**inputs, "x": np.ones((2, 3, 23), np.float32)})
    assert_right(encoder, LAYER, B=2, S=3)


class Own(np.ndarray[Any, Any]):
    """An array of a library's own type."""


def lying(x: Array) -> dict[str, Array]:
    """The same elements in other ways."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    bytes_ = np.zeros(x.nbytes + 1, np.uint8)
    bytes_[1:] = np.frombuffer(x.tobytes(), np.uint8)
    constant = x.copy()
    constant.flags.writeable = False
    return {
        "contiguous": x,
        "by columns": np.asfortranarray(x),
        "strided": wide[::2, ::3],
        "backwards": x[::-1, ::-1].copy()[::-1, ::-1],
        "misaligned": bytes_[1:].view(x.dtype).reshape(x.shape),
        "read-only": constant,
        "a subclass": x.view(Own),
        "repeated": np.broadcast_to(x[:1], x.shape),
    }


@pytest.mark.parametrize("name", list(lying(np.ones((2, 3), np.float32))))
def test_inputs_that_lie_in_other_ways(sums: Model, name: str) -> None:
    inputs = inputs_of(small(), {"B": 5, "S": 7})
    x = lying(inputs["x"])[name]
    before = np.array(x)
    found = sums.run({"x": x, "y": inputs["y"]})
    assert_close(found, reference(small(), {"x": np.asarray(before), "y": inputs["y"]}))
    assert np.array_equal(x, before)
    assert type(found[0]) is np.ndarray


def test_one_array_as_several_inputs(sums: Model) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_close(sums.run({"x": x, "y": x}), [np.exp(2 * x), 2 * x.sum(1)])


def test_calls_by_name(sums: Model) -> None:
    x = np.ones((2, 3), np.float32)
    found = sums(x=x, y=x)
    assert list(found) == ["y0", "y1"]
    assert np.array_equal(found["y1"], [6, 6])


# Indices.


def lookups() -> Graph:
    """Two gathers in two steps, a third one that reads what the first one gave."""

    def body(g: Maker) -> list[Value]:
        x = g.given("x", S)
        g.where = "first"
        first = g.add("gather", x, g.given("i", T, dtype=INT64), axis=0, node="first")
        second = g.add("gather", x, g.given("j", T, dtype=INT32), axis=0, node="second")
        return [first, second]

    return graph_of(body)


def test_indices_out_of_range(widest: CpuBackend) -> None:
    graph = lookups()
    model = Model(graph, widest)
    x, right = np.arange(5, dtype=np.float32), np.array([0, -5, 4])
    for threads in (1, 2):
        widest.threads = threads
        for wrong in (5, -6, 2**31 - 1):
            bad = np.array([0, 1, wrong])
            with pytest.raises(IndexRangeError, match="first"):
                model.run({"x": x, "i": bad, "j": right.astype(np.int32)})
            assert_close(model.run({"x": x, "i": right, "j": right.astype(np.int32)}),
                         [x[right], x[right]])  # fmt: skip
            with pytest.raises(IndexError, match="second"):
                model.run({"x": x, "i": right, "j": bad.astype(np.int32)})
            assert_close(model.run({"x": x, "i": right, "j": right.astype(np.int32)}),
                         [x[right], x[right]])  # fmt: skip


def test_two_indices_out_of_range_are_forgotten_together(widest: CpuBackend) -> None:
    graph = lookups()
    model = Model(graph, widest)
    x, right, bad = np.arange(5, dtype=np.float32), np.array([1, 2]), np.array([7, 0])
    with pytest.raises(IndexRangeError):
        model.run({"x": x, "i": bad, "j": bad.astype(np.int32)})
    found = model.run({"x": x, "i": right, "j": right.astype(np.int32)})
    assert_close(found, [x[right], x[right]])


def test_nothing_has_no_index(widest: CpuBackend) -> None:
    """It is refused before anything is read: an array without elements has no address to read."""
    model = Model(lookups(), widest)
    none = np.zeros(0, np.float32)
    with pytest.raises(ShapeError, match=r"first.*no element along axis 0"):
        model.run({"x": none, "i": np.zeros(1, np.int64), "j": np.zeros(1, np.int32)})
    found = model.run({"x": none, "i": np.zeros(0, np.int64), "j": np.zeros(0, np.int32)})
    assert [y.shape for y in found] == [(0,), (0,)]


def test_indices_with_extents_that_the_data_lacks(widest: CpuBackend) -> None:
    """Nothing is read or written outside the data, however long the axes of indices are."""
    model = Model(selection(), widest)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    for columns in (3, 3_000_000):
        at, updates = np.zeros((2, columns), np.int64), np.ones((2, columns), np.float32)
        with pytest.raises(ShapeError, match="more indices than elements along axis 1"):
            model.run({"x": x, "at": at, "updates": updates})
    at, updates = np.array([[4], [-4]]), np.full((2, 1), 7, np.float32)
    assert_close(model.run({"x": x, "at": at, "updates": updates}), selected(x, at, updates))


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


# Threads and processes.


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_thread_counts(widest: CpuBackend, encoder: Model, threads: int) -> None:
    """Those of the back end, and a model's own."""
    widest.threads = threads
    assert encoder.threads == threads
    own = Model(LAYER, widest, threads)
    widest.threads = 1
    assert own.threads == threads
    for b, s in ((1, 1), (3, 17), (2, 64)):
        assert_right(own, LAYER, B=b, S=s)
        assert_right(encoder, LAYER, B=b, S=s)


def test_several_threads_call_at_once(widest: CpuBackend, encoder: Model, sums: Model) -> None:
    """One model from several threads, and two models, which have one pool of workers."""
    widest.threads = 2
    wrong: list[str] = []

    def call(model: Model, graph: Graph, seed: int) -> None:
        source = random.Random(seed)
        try:
            for _ in range(40):
                b, s = source.randint(1, 4), source.randint(1, 40)
                assert_right(model, graph, seed, B=b, S=s)
        except Exception as error:  # The assertion must reach the main thread.
            wrong.append(f"{type(error).__name__}: {error}")

    callers = [
        threading.Thread(target=call, args=(model, graph, seed))
        for seed in range(3)
        for model, graph in ((encoder, LAYER), (sums, small()))
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def in_a_child(body: Callable[[], None], seconds: int = 60) -> int:
    """The exit code of a forked child that runs `body`; it is ended after some time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            threading.Timer(seconds, lambda: os._exit(3)).start()
            body()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(widest: CpuBackend, encoder: Model) -> None:
    """With programs written before it, and others; the parent goes on."""
    widest.threads = 2
    assert_right(encoder, LAYER, B=2, S=9)

    def body() -> None:
        assert_right(encoder, LAYER, B=2, S=9)
        assert_right(encoder, LAYER, B=3, S=11)

    assert in_a_child(body) == 0
    assert_right(encoder, LAYER, B=2, S=9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_within_a_call(widest: CpuBackend, encoder: Model) -> None:
    """Another thread of the parent may be in the midst of a run."""
    widest.threads = 2
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            assert_right(encoder, LAYER, B=2, S=30)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        codes = [in_a_child(lambda: assert_right(encoder, LAYER, B=2, S=30)) for _ in range(5)]
    finally:
        stop.set()
        caller.join()
    assert codes == [0] * 5


# Instead of ONNX Runtime.
