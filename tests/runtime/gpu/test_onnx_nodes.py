"""ONNX's own tests of operators, with a symbol for every extent, on a GPU: in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("onnx")

from tests.frontends.node_cases import PASSED, Case, cases, run, symbolic
from tests.runtime.gpu.sessions import interpreted

from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.model import GpuModel

H200 = interpreted("h200")


def on_gpu(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph compiled for a GPU, after all passes."""
    model = GpuModel(optimised(graph), H200)
    return model.run({v.name: x for v, x in zip(graph.inputs, inputs, strict=True)})


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_with_symbols(case: Case) -> None:
    """What references give, where these are right."""
    if run(symbolic(case)).kind == PASSED:
        outcome = run(symbolic(case), on_gpu)
        if outcome.kind != PASSED:
            # Products of float64 have no kernels.
            assert "of float64" in outcome.why, outcome.why
