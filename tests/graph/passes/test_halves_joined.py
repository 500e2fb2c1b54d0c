"""What was half precision before a concatenation is copied as it is."""

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.halves import join_halves
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.verify import verify
from ftuner.runtime.reference import run_reference


def continued(dtype: DType, read: bool) -> Graph:
    """Rows after those of an input, in half precision; `read`: whether they are read, too."""

    def body(g: Maker) -> list[Value]:
        past, new = g.given("past", B, S, 6, dtype=dtype), g.given("new", B, T, 6)
        joined = g.add("concat", g.add("cast", past, to=FLOAT32), g.add("exp", new), axis=1)
        present = g.add("cast", joined, to=dtype)
        return [present, g.add("reduce", joined, kind="sum", axes=(1,))] if read else [present]

    return graph_of(body)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_inputs_are_copied(dtype: DType, read: bool) -> None:
    graph = continued(dtype, read)
    found = join_halves(graph)
    verify(found)
    joined = [n for n in found.nodes if n.op == "concat" and n.output.dtype == dtype]
    assert [n.inputs[0] for n in joined] == [graph.inputs[0]]
    assert sum(n.op == "concat" for n in found.nodes) == 1 + read
    rng = np.random.default_rng(0)
    past = rng.standard_normal((2, 5, 6)).astype(np.float32)
    past[0, 0, :4] = [np.inf, -np.inf, 1e-7, 0]
    feeds = [past, rng.standard_normal((2, 3, 6)).astype(np.float32)]
    for x, y in zip(run_reference(found, feeds), run_reference(graph, feeds), strict=True):
        assert x.tobytes() == y.tobytes()


def test_other_concatenations_stay() -> None:
    def body(g: Maker) -> list[Value]:
        x, y = g.given("x", B, S, 6, dtype=BFLOAT16), g.given("y", B, T, 6)
        wide = g.add("concat", g.add("cast", x, to=FLOAT32), y, axis=1)
        other = g.add("concat", g.add("exp", y), y, axis=1)
        return [wide, g.add("cast", wide, to=FLOAT16), g.add("cast", other, to=FLOAT16)]

    graph = graph_of(body)
    assert join_halves(graph) is graph


def test_a_pass_of_devices_that_multiply_no_halves() -> None:
    graph = continued(FLOAT16, read=False)
    for halves in (False, True):
        last = optimised(graph, halves).nodes[-1]
        assert (last.op == "concat") == (not halves)
