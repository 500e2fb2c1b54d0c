"""What is fused with what, told by the titles of steps; and what the steps compute."""

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, assert_runs, graph_of, layer, titles
from tests.graph.lowering_cases import APART, NESTS, PRODUCTS, RUNS, Body, product, x_of

from ftuner.core.cpu.common_epilogue import COMMON, shared
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.dim import symbol
from ftuner.core.dtype import BOOL
from ftuner.core.expr import key
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.algebra import rint
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.model import Model
from ftuner.schedules.attention.step import AttentionStep
from ftuner.schedules.nest.step import NestStep
from ftuner.schedules.product.step import ProductStep

CASES = NESTS | PRODUCTS


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_steps(body: Body, expected: list[str]) -> None:
    assert titles(graph_of(body)) == expected


@pytest.mark.parametrize("body", [body for body, _ in CASES.values()], ids=CASES)
def test_steps_compute_what_the_graph_says(body: Body, widest: CpuBackend) -> None:
    assert_runs(graph_of(body), widest, *RUNS)


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_rows_that_lie_apart(body: Body, widest: CpuBackend) -> None:
    assert_runs(graph_of(body), widest, *RUNS)


def test_an_encoder_layer(widest: CpuBackend) -> None:
    graph = optimised(layer())
    assert titles(graph) == [
        "matmul + add", "subtract + multiply", "attention", "matmul + add + add", "norm",
        "matmul + add + gelu", "matmul + add + add",
    ]  # fmt: skip
    lowered = lower(graph)
    kinds = [type(step) for step in lowered.steps]
    assert [kinds.count(k) for k in (ProductStep, AttentionStep, NestStep)] == [4, 1, 2]
    assert_runs(graph, widest, *RUNS, {"B": 0, "S": 4}, {"B": 2, "S": 130})


def test_epilogues_read_no_more_than_records_hold() -> None:
    def body(g: Maker) -> Value:
        y = product(g)
        for i in range(MAX_OPERANDS + 2):
            y = y + g.given(f"r{i}", B, S, 9)
        return y

    graph = graph_of(body)
    first = lower(graph).steps[0]
    assert isinstance(first, ProductStep)
    assert len(first.operands) == MAX_OPERANDS
    assert titles(graph) == [" + ".join(["matmul"] + ["add"] * MAX_OPERANDS), "add + add"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0213, "acc:tile|x1:column|divide(0,1)"), (1 / 3, "acc:tile|x1:column|divide(0,1)"),
        (0.25, "acc:tile|0x1.0000000000000p-2|divide(0,1)"),
        (255.0, "acc:tile|0x1.fe00000000000p+7|divide(0,1)"),
        (-6.0, "acc:tile|-0x1.8000000000000p+2|divide(0,1)"),
    ],
)  # fmt: skip
def test_scales_are_operands_of_epilogues(number: float, text: str, widest: CpuBackend) -> None:
    """So that layers with other scales share uKernels. Where the number of columns is unknown, the
    nest that follows divides."""

    def scaled(g: Maker, columns: Value) -> Value:
        return rint(g.given("x", B, 5) @ columns / g.number(number))

    graph = graph_of(lambda g: scaled(g, g.weight(5, 7)))
    (first, _) = lower(graph).steps
    assert isinstance(first, ProductStep)
    assert key(first.epilogue) == text
    assert_runs(graph, widest, {"B": 3})
    unknown = titles(graph_of(lambda g: scaled(g, g.given("w", 5, S))))
    literal = "column" not in text
    assert unknown == (["matmul + divide", "rint"] if literal else ["matmul", "divide + rint"])


def test_an_intercept_is_an_operand_of_one_column(widest: CpuBackend) -> None:
    """So that it is added in registers, by uKernels that others share."""

    graph = graph_of(lambda g: g.given("x", B, 5) @ g.weight(5, 1) + g.number(0.0213))
    (step,) = lower(graph).steps
    assert isinstance(step, ProductStep)
    assert shared(step.epilogue).epilogue == COMMON
    assert_runs(graph, widest, {"B": 37})


def test_long_expressions_are_cut() -> None:
    """Compiling takes time for each step."""

    def body(g: Maker) -> Value:
        y = x_of(g)
        for i in range(200):
            y = y + (1.0 + i)
        return y

    found = titles(graph_of(body))
    assert 1 < len(found) < 10


def test_results_are_written_where_the_caller_wants_them() -> None:
    """No copy of an output that some step can write itself."""
    for name in ("pointwise", "product", "concat in place", "turned batches", "best"):
        lowered = lower(graph_of(CASES[name][0]))
        kinds = {view.buffer.kind for view in lowered.outputs}
        assert kinds == {"output"}
        written = [b for step in lowered.steps for b in step.writes if b.kind == "output"]
        assert {b.number for b in written} == set(range(len(lowered.outputs)))


def test_what_has_no_schedule_is_refused() -> None:
    def body(g: Maker) -> Value:
        return g.add("non_zero", g.given("x", S, dtype=BOOL), count=str(symbol("N")))

    with pytest.raises(UnsupportedOperatorError, match="non_zero"):
        lower(graph_of(body))


def test_constants_that_are_views() -> None:
    turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
    graph = graph_of(lambda g: g.given("x", 4, 3) + g.constant(turned))
    model = Model(graph, default_backend())
    (found,) = model.run({"x": np.zeros((4, 3), np.float32)})
    assert np.array_equal(found, turned)
