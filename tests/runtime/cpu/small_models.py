"""Models and back ends that tests of running models share."""

from functools import lru_cache

import pytest
from tests.graph.graphs import B, Maker, S, assert_close, builds, inputs_of, layer, reference

from ftuner.core.dtype import DType
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.model import Model

LAYER = optimised(layer())
_backend = lru_cache(lambda isa: CpuBackend(isa=isa))


def device_of(dtype: DType, isa: str | None = None) -> CpuBackend:
    """The back end of an ISA, by default the widest; if it multiplies no words of a dtype, the test
    is skipped."""
    found: CpuBackend = _backend(isa)
    if dtype not in found.narrow_dtypes:
        pytest.skip(f"this CPU multiplies no {dtype}")
    return found


def compiled(model: Model) -> CompiledGraph:
    """The graph of a model of one part."""
    (part,) = model.parts
    assert isinstance(part, CompiledGraph)
    return part


@builds
def small(g: Maker) -> list[Value]:
    """A program without products: a sum of two inputs, and sums of its rows."""
    y = g.add("add", g.given("x", B, S), g.given("y", B, S))
    return [g.add("exp", y), g.add("reduce", y, kind="sum", axes=(1,))]


def assert_right(model: Model, graph: Graph, seed: int = 0, **extents: int) -> None:
    inputs = inputs_of(graph, extents, seed)
    assert_close(model.run(inputs), reference(graph, inputs), str(extents))
