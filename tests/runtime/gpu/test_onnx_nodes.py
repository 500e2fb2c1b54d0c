"""ONNX's own tests of operators, with a symbol for every extent, on a GPU: in the interpreter."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")

from tests.frontends.node_cases import PASSED, Case, parameters, run, symbolic
from tests.frontends.onnx_models import parsed
from tests.runtime.gpu.backends import interpreted

import ftuner
from ftuner.core.dtype import BFLOAT16
from ftuner.graph.arrays import held_in
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.arrays import TORCH_DTYPES
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model

H200 = interpreted("h200")
REFUSED = re.compile(r"of float64|strings and maps")
"""Products of float64 have no kernels, and no operator of strings has."""
SLOW = re.compile(r"pool_3d_(default|.*_large)|_NCd1d2d3d4d5_")
"""Pools of volumes of 32 x 32 x 32 and losses over five axes, for which the interpreter takes ten
seconds each. Other cases have windows of three axes, and losses over three."""


def on_gpu(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph compiled for a GPU, after all passes."""
    model = Model(optimised(graph), H200)
    given = dict(zip(graph.inputs, inputs, strict=True))
    if all(v.dtype != BFLOAT16 for v in (*graph.inputs, *(v for _, v in graph.outputs))):
        return model.run({v.name: x for v, x in given.items()})
    tensors = {
        v.name: torch.from_numpy(np.array(x, held_in(v.dtype))).to(TORCH_DTYPES[v.dtype.name])
        for v, x in given.items()
    }
    found = model.run(tensors)
    return [(x.float() if x.dtype == torch.bfloat16 else x).numpy() for x in found]


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize(
    "case", [p for p in parameters(every=6, expanded=12) if not SLOW.search(p.id)]
)
def test_with_symbols(case: Case) -> None:
    """What references give, where these are right; of half precision too."""
    if run(symbolic(case)).kind == PASSED:
        outcome = run(symbolic(case), on_gpu)
        if outcome.kind != PASSED:
            assert REFUSED.search(outcome.why), outcome.why


@pytest.mark.parametrize("held", [None, "float32", "float16", "bfloat16"])
def test_load_says_what_float32_is_held_in(
    held: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that is interpreted; files of half precision are read for it."""

    def backend_of(device: str) -> GpuBackend:
        assert device == "cuda"
        return H200

    monkeypatch.setattr("ftuner.runtime.request.backend_of", backend_of)
    weight = np.full((3, 3), 1 + 2**-12, np.float32)
    text = "(float16[n, 3] x) => (y) { wide = Cast<to=1>(x) y = MatMul(wide, w) }"
    model = parsed(text, w=weight)
    loaded = ftuner.load(model, device="cuda", dtype=held)
    (found,) = loaded.run({"x": np.eye(3, dtype=np.float16)})
    assert found.dtype == np.float32
    # What is rounded is the weight, to one.
    np.testing.assert_array_equal(found, weight if held in (None, "float32") else np.ones((3, 3)))
