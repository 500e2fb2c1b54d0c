"""Two models that tests of running models share: an encoder layer, and one without products."""

from tests.graph.graphs import B, Maker, S, assert_close, graph_of, inputs_of, layer, reference

from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.model import Model

LAYER = optimised(layer())


def compiled(model: Model) -> CompiledGraph:
    """The graph of a model of one part."""
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    return part


def small() -> Graph:
    """A program without products: a sum of two inputs, and sums of its rows."""

    def body(g: Maker) -> list[Value]:
        y = g.add("add", g.given("x", B, S), g.given("y", B, S))
        return [g.add("exp", y), g.add("reduce", y, kind="sum", axes=(1,))]

    return graph_of(body)


def assert_right(model: Model, graph: Graph, seed: int = 0, **extents: int) -> None:
    inputs = inputs_of(graph, extents, seed)
    assert_close(model.run(inputs), reference(graph, inputs), str(extents))
