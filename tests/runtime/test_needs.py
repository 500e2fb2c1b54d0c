"""A graph compiles the uKernels that it runs, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, assert_close, graph_of, inputs_of, reference

from ftuner.core.dtype import FLOAT32
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.model import Model
from ftuner.runtime.needs import by_library, need_of
from ftuner.runtime.session import Session
from ftuner.ukernels.library import INT8_PANELS, PANELS


def layers(*columns: int) -> Graph:
    """Products with weights of so many columns, one after the other."""

    def body(g: Maker) -> Sequence[Value]:
        x = g.given("x", B, 30)
        for n in columns:
            x = g.linear(x, n, bias=False)
        return [x]

    return graph_of(body)


def names(graph: Graph, machine: CpuHardware) -> list[str]:
    steps = lower(graph).steps
    needs = [need_of(step, machine, machine.widest.name, 1) for step in steps]
    ((_, families),) = by_library(need for need in needs if need is not None).items()
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
    need = need_of(step, recorded, recorded.widest.name, 1)
    assert need is not None
    assert need.library.serves == INT8_PANELS
    layouts = {family.b_layout for family in need.families}
    assert layouts == {"packed", "packed_int8"}


@pytest.mark.parametrize("first", [7, 333])
def test_another_graph_adds_what_it_needs(widest: Session, first: int) -> None:
    """Both have one library; the second may want families that the first has not loaded."""
    session = Session(cache=widest.cache, isa=widest.backend.isa.name)
    for columns in (first, 40, 5):
        graph = layers(columns)
        model = Model(graph, session)
        for rows in (1, 9, 70):
            feeds = inputs_of(graph, {"B": rows})
            assert_close(model.run(feeds), reference(graph, feeds))
    # Whoever asks for all of them gets them.
    products = session.products(FLOAT32, serves=PANELS)
    library = products.compiled.library
    assert set(products.compiled.kernels) == {f.name for f in library.families()}
