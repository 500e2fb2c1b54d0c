"""Back ends of recorded chips, in Triton's interpreter, and runs of models on them."""

from collections.abc import Sequence

import torch
from tests.codegen.triton.interpreting import complete
from tests.graph.graphs import assert_close, inputs_of, reference

from ftuner.graph.ir import Graph
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model


def interpreted(name: str) -> GpuBackend:
    """A recorded chip whose kernels are interpreted, on tensors in the CPU's memory."""
    complete()
    hardware = load_recorded(name)
    assert isinstance(hardware, GpuHardware)
    return GpuBackend(torch.device("cpu"), hardware, None)


def assert_runs(
    model: Model, graph: Graph, symbols: Sequence[str], *extents: Sequence[int]
) -> None:
    """A model of the graph gives what the references give, for values of the symbols."""
    for seed, values in enumerate(extents):
        feeds = inputs_of(graph, dict(zip(symbols, values, strict=True)), seed)
        assert_close(model.run(feeds), reference(graph, feeds), f"{symbols}: {values}")
