"""A graph compiles the uKernels that it runs, and no others."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from tests.graph.graphs import (
    B,
    Maker,
    S,
    T,
    assert_close,
    assert_runs,
    builds,
    graph_of,
    inputs_of,
    reference,
    strided,
)

from ftuner.core.dtype import FLOAT32, INT8
from ftuner.core.product import product_types
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.steps import Step
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import planner_for
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.operands import step_problem
from ftuner.runtime.cpu.step_kind import RequiredFamilies, by_library, kind_of
from ftuner.runtime.model import Model
from ftuner.schedules.product.step import ProductStep
from ftuner.ukernels.cpu.library import build_library, families_of_calls


@builds
def layers(g: Maker, *columns: int) -> Sequence[Value]:
    """Products with weights of so many columns, one after the other."""
    x = g.given("x", B, 30)
    for n in columns:
        x = g.linear(x, n, bias=False)
    return [x]


def required(step: Step, machine: CpuHardware, workers: int) -> RequiredFamilies | None:
    return kind_of(step).required_families(step, machine, machine.widest.name, workers)


def names(graph: Graph, machine: CpuHardware) -> list[str]:
    found = [required(step, machine, 1) for step in lower(graph).steps]
    ((_, families),) = by_library(found).items()
    return [family.name for family in families]


def test_families_of_a_weight(recorded: CpuHardware) -> None:
    """Full panels if there are any, and the tail that is left."""
    isa = recorded.widest
    lanes = isa.lanes(FLOAT32)
    assert names(layers(1), recorded) == [f"{lanes}_tail_row_packed"]
    found = names(layers(60 * lanes), recorded)
    assert len(found) <= 2
    assert found[0].endswith("_full_row_packed")
    # Each once, however many weights.
    several = names(layers(60 * lanes, 30, 60 * lanes), recorded)
    assert len(set(several)) == len(several)
    assert set(found) < set(several)


def test_attention_needs_tails_of_any_width(recorded: CpuHardware) -> None:
    def body(g: Maker) -> Sequence[Value]:
        q, k, v = (g.given(n, 2, B, 8) for n in "qkv")
        turned = g.add("transpose", k, perm=(0, 2, 1))
        return [g.add("attention", q, turned, v, scale=1.0)]

    found = names(graph_of(body), recorded)
    assert len([name for name in found if "_tail_" in name]) == len(found) - 1
    assert len(found) > 2


def test_int8_weights_are_read_both_ways(recorded: CpuHardware) -> None:
    def body(g: Maker) -> Sequence[Value]:
        x = g.given("x", B, 200)
        integers = np.ones((200, 90), np.int8)
        return [g.add("matmul", x, g.add("cast", g.constant(integers), to=FLOAT32))]

    graph = optimised(graph_of(body))
    (step,) = lower(graph).steps
    need = required(step, recorded, 1)
    assert need is not None
    assert need.library.types == product_types(FLOAT32, INT8)
    reads = {(family.b_layout, family.kernels[0].types.b) for family in need.families}
    assert reads == {("packed", FLOAT32), ("packed", INT8)}


@pytest.mark.parametrize("first", [7, 333])
def test_another_graph_adds_what_it_needs(widest: CpuBackend, first: int) -> None:
    """Both have one library; the second may want families that the first has not loaded."""
    backend = CpuBackend(cache=widest.cache, isa=widest.kernels.isa.name)
    for columns in (first, 40, 5):
        graph = layers(columns)
        model = Model(graph, backend)
        for rows in (1, 9, 70):
            feeds = inputs_of(graph, {"B": rows})
            assert_close(model.run(feeds), reference(graph, feeds))
    # Whoever asks for those of calls gets them.
    products = backend.products(product_types(FLOAT32))
    found = families_of_calls(products.compiled.library)
    assert {family.name for family in found} <= set(products.compiled.kernels)


def squares(g: Maker) -> Sequence[Value]:
    """Products of two activations that lie in every way, with an epilogue and without."""
    x, y = g.given("x", S, 16), g.given("y", T, 16)
    turned, beside = (g.add("transpose", z, perm=(1, 0)) for z in (x, y))
    wide = g.add("matmul", x, beside)
    return [
        g.add("erf", g.add("matmul", g.add("absolute", x), g.add("transpose", x, perm=(1, 0)))),
        g.add("erf", g.add("matmul", turned, g.add("erf", wide))),
        g.add("matmul", wide, y),
        g.add("erf", g.add("matmul", beside, y)),
    ]


def test_products_of_activations_at_any_extents(widest: CpuBackend) -> None:
    """Which uKernels a plan chooses depends on the extents."""
    graph = graph_of(squares)
    extents = (1, 2, 9, 33, 64, 200)
    assert_runs(graph, widest, *({"S": s, "T": t} for s in extents for t in (1, 17, 130)))


def test_families_hold_what_plans_of_a_step_choose(recorded: CpuHardware) -> None:
    """Whatever the extents are, on every machine."""
    steps = lower(graph_of(squares)).steps
    for step in steps:
        need = required(step, recorded, 2)
        if not isinstance(step, ProductStep):
            continue
        assert need is not None
        planner = planner_for(build_library(recorded, recorded.widest.name, *need.library))
        for s, t in product((1, 2, 8, 33, 300), repeat=2):
            a, b, c, *rest = (strided(view, {"S": s, "T": t}) for view in step.views)
            problem, _ = step_problem(a, b, c, rest, need.width, 2, recorded)
            chosen = {
                family
                for candidate in planner.candidates(problem)
                for family in (candidate.family if candidate.full else None, candidate.tail_family)
                if family is not None
            }
            assert chosen <= set(need.families), (step.title, s, t)
