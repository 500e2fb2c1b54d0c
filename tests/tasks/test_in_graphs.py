"""Schedules of operators in graphs: fused with what stands around, on every ISA."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.conftest import HOST_ISAS
from tests.graph.graphs import Maker, graph_of
from tests.tasks.gallery.softmax_rows import softmax
from tests.tasks.random_schedules import made
from tests.tasks.scheduled import SCHEDULES, centred, matmul, packed_matmul, turned

import ftuner
from ftuner.compiler import compiled
from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import FLOAT32
from ftuner.core.evaluation import evaluate
from ftuner.errors import ScheduleError, ShapeError
from ftuner.graph.algebra import apply, concat, where, zero_padded
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Graph, Value, building
from ftuner.graph.passes.pipeline import definitions
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.task_groups import TaskGroups
from ftuner.runtime.reference import run_reference
from ftuner.tasks import Out, f32, lanes, split, worker, workers
from ftuner.tasks.check import TOLERANCES
from ftuner.tasks.step import OPERATOR

M, N = symbol("m"), symbol("n")
SHAPES = ((1, 1), (3, 5), (17, 33), (64, 16))


def arrays_of(graph: Graph, m: int, n: int, seed: int) -> list[Array]:
    rng, extents = np.random.default_rng(seed), {"m": m, "n": n}
    shapes = [[extents.get(str(d), d) for d in v.shape] for v in graph.inputs]
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def agree(graph: Graph, backend: CpuBackend, seed: int = 0) -> ftuner.Model:
    """The compiled graph, which agrees with the references of its operators."""
    wanted = [
        (arrays := arrays_of(graph, m, n, seed), run_reference(graph, arrays)) for m, n in SHAPES
    ]
    names = [v.name for v in graph.inputs]
    model = compiled(graph, backend, Options())
    for arrays, expected in wanted:
        got = model.run(dict(zip(names, arrays, strict=True)))
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)
    return model


def titles(model: ftuner.Model) -> list[str]:
    return [step.title for step in model.steps]


def test_both_neighbours_are_computed_in_loads_and_stores(backend: CpuBackend) -> None:
    def body(g: Maker) -> Value:
        scaled = softmax(g.given("x", M, N) * g.given("s", N))
        return apply("tanh", scaled + g.given("o", M, N))

    model = agree(graph_of(body), backend)
    assert titles(model) == ["multiply + softmax_rows + add + tanh"]
    assert "softmax_rows" in str(model.explain(x=(3, 5), s=(5,), o=(3, 5)))


def test_new_extents_within_ranges_decide_nothing(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels have room for all extents of a range."""
    graph = graph_of(lambda g: packed_matmul(g.given("a", M, N), g.given("b", N, 7)))
    model = compiled(graph, widest, Options(threads=2))
    for n in (44, 45):
        arrays = arrays_of(graph, 64, n, 0)
        (found,) = model.run({"a": arrays[0], "b": arrays[1]})
        np.testing.assert_allclose(found, arrays[0] @ arrays[1], rtol=2e-5, atol=2e-6)
        monkeypatch.setattr(TaskGroups, "_bound", None)


def test_what_would_be_computed_again_is_a_step_of_its_own(widest: CpuBackend) -> None:
    """A product loads each element several times: a tanh is stored before, a sum is not."""

    def body(g: Maker) -> Value:
        found: Value = matmul(apply("tanh", g.given("a", M, N)), g.given("b", N, 7) + 1.0)
        return found * g.given("c", 7)

    model = agree(graph_of(body), widest)
    assert titles(model) == ["tanh", "add + matmul_tiles + multiply"]


def test_outputs_that_the_schedule_reads_are_stored_as_they_are(widest: CpuBackend) -> None:

    def body(g: Maker) -> list[Value]:
        y, size = centred(g.given("x", M, N) + 1.0, g.given("g", N))
        return [y + apply("sqrt", size).unsqueeze([1]), size]

    model = agree(graph_of(body), widest)
    assert titles(model)[0] == "add + centred_rows"


def test_strided_operands_and_places(widest: CpuBackend) -> None:
    """A transposed operand is read where it is, and a part of a concatenation is stored there."""

    def body(g: Maker) -> list[Value]:
        x = g.given("x", M, N)
        y = concat([turned(x).transpose((1, 0)), turned(x.transpose((1, 0)))], 1)
        return [y, turned(zero_padded(x, (1, 0), (0, 2)).slice(1, 1, N))]

    agree(graph_of(body), widest)


@ftuner.operator("(n) -> (n)")
def delayed(x: Any) -> Any:
    return lambda i: ftuner.define.where(i >= 1, x[i - 1], 0.0)


@ftuner.schedule(definition=delayed)
def delayed_rows(x: f32["n"], y: Out[f32["n"]]):  # type: ignore[valid-type, name-defined]
    for i in split(n, workers)(worker):  # type: ignore[name-defined]
        y[i] = x[i - 1] if i >= 1 else 0.0


def test_elements_before_the_first_are_not_computed(widest: CpuBackend) -> None:
    graph = graph_of(lambda g: delayed(apply("repeat", g.given("x", N), repeats=(3,)) + 1.0))
    agree(graph, widest)
    with pytest.raises(ShapeError, match="operand x of delayed has 2 axes; expected 1"):
        delayed(np.ones((2, 2), np.float32))


def test_other_dtypes_and_gpus_take_the_definition() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (5, 7))
    np.testing.assert_allclose(softmax(x), softmax.reference(x))
    assert [step.kind for step in softmax.compiled(x).steps] == ["nest"]
    graph = graph_of(lambda g: softmax(g.given("x", M, N)))
    assert [node.op for node in graph.nodes] == ["scheduled"]
    assert "scheduled" not in [node.op for node in definitions(graph).nodes]


def test_saved_models_have_the_kernels(tmp_path: Path, widest: CpuBackend) -> None:
    graph = graph_of(lambda g: matmul(softmax(g.given("x", M, N)), g.given("b", N, 5)))
    model = agree(graph, widest)
    ftuner.save(model, tmp_path / "model.ftuner")
    loaded = ftuner.load(tmp_path / "model.ftuner")
    given = {"x": np.ones((9, 4), np.float32), "b": np.ones((4, 5), np.float32)}
    np.testing.assert_array_equal(loaded.run(given), model.run(given))


def test_conditions_of_a_schedule_are_those_of_the_graph() -> None:
    @ftuner.operator("(n), (k) -> (n)")
    def shifted(x: Any, y: Any) -> Any:
        return lambda i: x[i] + y[i + 2]

    @ftuner.schedule(definition=shifted)
    def shifted_rows(x: f32["n"], y: f32["k"], z: Out[f32["n"]]):
        for i in split(n, workers)(worker):
            z[i] = x[i] + y[i + 2]

    x, y = np.ones(5, np.float32), np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(shifted(x, y), x + y[2:])
    with pytest.raises(ShapeError, match="shifted"):
        shifted(x, y[:6])


def test_a_schedule_of_other_operands_is_refused() -> None:
    @ftuner.operator("(m, n) -> (n)")
    def sums(x: Any) -> Any:
        return lambda j: ftuner.define.sum(x[i, j] for i in ftuner.define.axis)

    with pytest.raises(ScheduleError, match="same operands"):

        @ftuner.schedule(definition=sums)
        def rows(x: f32["m", "n"], y: Out[f32["m", "n"]]):
            for i in split(m, workers)(worker):
                for j in lanes(n):
                    y[i, j] = x[i, j]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.__name__)
def test_schedules_agree_with_the_definitions(schedule: Any) -> None:
    assert ftuner.check(schedule, cases=2).cases == 2


def _pointwise(x: Value, given: Value, random: Random) -> Value:
    """A value of the same shape."""
    m, n = x.shape
    made: Callable[[], Value] = random.choice((
        lambda: apply("tanh", x), lambda: x * random.choice((0.5, -2.0)), lambda: x + given,
        lambda: where(x < 0.1, x, given), lambda: apply("maximum", x, given),
        lambda: zero_padded(x, (0, 2), (0, 1)).slice(1, random.choice((0, 1, 3)), n),
        lambda: zero_padded(x, (1, 0), (0, 0)).slice(0, random.choice((0, 1)), m),
        lambda: apply("exp", -abs(x)) / (given * given + 1.0),
        lambda: x - x.reshape((m * n,)).reshape((m, n)) * given,
    ))  # fmt: skip
    return made()


def _random_graph(seed: int) -> Graph:
    """Chains of pointwise operators and views around operators with schedules."""
    random, builder = Random(seed), Builder()
    x, wide, tall = (
        builder.input(name, FLOAT32, shape)
        for name, shape in (("x", (M, N)), ("w", (N, N)), ("t", (M, N)))
    )
    row = builder.input("r", FLOAT32, (N,))
    with builder.writing():
        value = x
        for _ in range(random.randint(2, 4)):
            for _ in range(random.randrange(3)):
                value = _pointwise(value, random.choice((tall, row.broadcast((M, N)))), random)
            match random.randrange(4):
                case 0:
                    value = softmax(value)
                case 1:
                    value = random.choice((matmul, packed_matmul))(value, wide * 0.1)
                case 2:
                    value, size = centred(value, row)
                    value = value * size.unsqueeze([1])
                case 3:
                    value = turned(value).transpose((1, 0))
        value = _pointwise(value, tall, random)
        results = [("y", value)]
        if random.random() < 0.5:
            results.append(("z", concat([value, tall], random.randrange(2))))
        return builder.graph([x, wide, tall, row], results)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(4, 48))]
)
def test_random_neighbours(seed: int, backend_of: Callable[[str], CpuBackend]) -> None:
    isa = HOST_ISAS[-1 - seed % len(HOST_ISAS)]
    agree(_random_graph(seed), backend_of(isa), seed)


def _between(schedule: Any, random: Random) -> tuple[Graph, dict[str, Dim]]:
    """A schedule of any operands between pointwise operators and views, and what the extents of
    the graph's inputs are, by the extents of the schedule."""
    program = next(iter(schedule.programs.values()))
    builder, inputs, extents = Builder(), list[Value](), dict[str, Dim]()

    def given(name: str, shape: Sequence[Dim]) -> Value:
        order = random.choice(([*range(len(shape))], [*range(len(shape))][::-1]))
        inputs.append(builder.input(name, schedule.dtype, tuple(shape[axis] for axis in order)))
        return inputs[-1].transpose(order)

    def named(name: str, dim: Dim) -> Dim:
        extents[name] = dim
        return dim if isinstance(dim, int) else symbol(name)

    def around(x: Value, name: str) -> Value:
        def shifted() -> Value:
            before, after = random.choice((0, 1, 2)), random.choice((1, 2))
            rest = (0,) * (x.rank - 1)
            wide = zero_padded(x, (*rest, before), (*rest, after))
            return wide.slice(x.rank - 1, random.randint(0, before + after), x.shape[-1])

        made: Callable[[], Value] = random.choice((
            lambda: apply("tanh", x), lambda: x * 0.5 + 0.25, shifted,
            lambda: x + given(f"{name}_other", x.shape), lambda: x * x.like(2.0),
            lambda: where(x < 0.1, x, given(f"{name}_other", x.shape) * x), *[lambda: x] * 3,
        ))  # fmt: skip
        return made()

    with builder.writing():
        operands = []
        for array in program.inputs:
            names = [
                str(d) if str(d) in program.extents else f"{array.name}_{axis}"
                for axis, d in enumerate(array.shape)
            ]
            shape = [named(n, d) for n, d in zip(names, array.shape, strict=True)]
            operands.append(around(given(array.name, shape), array.name))
        values = (*schedule.extents_of([x.shape for x in operands]).values(),)
        made = building().add_many(OPERATOR, *operands, schedule=schedule, extents=values)
        results = [(f"r{n}", around(around(x, f"r{n}_0"), f"r{n}_1")) for n, x in enumerate(made)]
        return builder.graph(inputs, results), extents


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 60))]
)
def test_random_schedules_between_neighbours(
    seed: int, backend_of: Callable[[str], CpuBackend], tmp_path: Path
) -> None:
    expect_between(made(seed, tmp_path), backend_of(HOST_ISAS[-1 - seed % len(HOST_ISAS)]), seed)


def expect_between(schedule: Any, backend: CpuBackend, seed: int) -> None:
    """A schedule agrees with its interpreter, whatever it is fused with."""
    schedule.definition = schedule.interpret
    graph, extents = _between(schedule, Random(seed))
    rng, cases = np.random.default_rng(seed), []
    for m, n, k in ((5, 3, 4), (1, 1, 1), (18, 7, 2), (16, 32, 1)):
        values = {"m": m, "n": n, "k": k}
        known = {name: evaluate(dim, values) for name, dim in extents.items()}
        shapes = [[known.get(str(d), d) for d in v.shape] for v in graph.inputs]
        arrays = [rng.standard_normal(s).astype(schedule.dtype.name) for s in shapes]
        try:
            cases.append((arrays, run_reference(graph, arrays)))
        except ShapeError:
            assert any(schedule.checks.values())
    model = compiled(graph, backend, Options())
    for arrays, wanted in cases:
        got = model.run(dict(zip([v.name for v in graph.inputs], arrays, strict=True)))
        for x, y in zip(got, wanted, strict=True):
            scale = 1 + np.abs(y).max(initial=0)
            np.testing.assert_allclose(x / scale, y / scale, atol=TOLERANCES[schedule.dtype.name])
