"""Recurrent layers run by the kernels for a GPU, in the interpreter."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper
from tests.frontends.onnx_models import model_of
from tests.random_graphs.checking import GPU, checked
from tests.random_graphs.generating import seeded
from tests.random_graphs.table import ROWS, Row

from ftuner.core.recurrence import ACTIVATIONS
from ftuner.errors import IndexRangeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SEEDS = 2
ONNX_NAMES = {
    "affine": "Affine", "elu": "Elu", "hard_sigmoid": "HardSigmoid", "leaky_relu": "LeakyRelu",
    "relu": "Relu", "scaled_tanh": "ScaledTanh", "sigmoid": "Sigmoid", "softplus": "Softplus",
    "softsign": "Softsign", "tanh": "Tanh", "thresholded_relu": "ThresholdedRelu",
}  # fmt: skip


def layer(op: str, hidden: int, dtype: str = "float32", **attributes: Any) -> Any:
    """A model of one layer of both directions, with lengths of sequences."""
    rng = np.random.default_rng(0)
    columns = GATES[op] * hidden

    def weight(*shape: int) -> Any:
        return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(dtype)

    weights = {
        "w": weight(2, columns, 5), "r": weight(2, columns, hidden), "b": weight(2, 2 * columns),
    }  # fmt: skip
    node = helper.make_node(
        op, ["x", "w", "r", "b", "lengths"], ["y", "last"], hidden_size=hidden,
        direction="bidirectional", **attributes,
    )  # fmt: skip
    inputs = {"x": (dtype, ["steps", "batch", 5]), "lengths": ("int32", ["batch"])}
    return import_model(model_of([node], inputs, ["y", "last"], weights)).graph


def feeds(steps: int, batch: int, dtype: str = "float32") -> dict[str, Any]:
    rng = np.random.default_rng(steps * 1000 + batch)
    x = rng.standard_normal((steps, batch, 5)).astype(dtype)
    return {"x": x, "lengths": rng.integers(0, steps + 1, batch).astype(np.int32)}


def assert_right(model: Model, graph: Graph, given: dict[str, Any]) -> None:
    wanted = run_reference(graph, [given[v.name] for v in graph.inputs])
    for x, y in zip(model.run(given), wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.op in GATES and not row.idiom], ids=lambda row: row.name
)
def test_layers_of_random_graphs(row: Row) -> None:
    for seed in range(SEEDS):
        report = checked(seeded(seed, row, small=True).case, GPU, peers=False)
        assert report.findings == [], seed


@pytest.mark.parametrize("op", list(GATES))
@pytest.mark.parametrize("hidden", [1, pytest.param(17, marks=pytest.mark.full), 33])
def test_any_extents_and_runs_that_repeat(op: str, hidden: int, h200: GpuBackend) -> None:
    """Blocks of few and of many sequences, more hidden elements than a block, no steps, no
    sequences; the last runs are recorded ones."""
    attributes = {"linear_before_reset": 1} if op == "GRU" and hidden > 1 else {}
    graph = layer(op, hidden, **attributes)
    model = Model(optimised(graph), h200)
    for steps, batch in ((3, 1), (4, 16), (2, 67), (0, 2), (2, 0), *((5, 3),) * 4):
        assert_right(model, graph, feeds(steps, batch))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations(name: str, h200: GpuBackend) -> None:
    graph = layer(
        "RNN", 6, activations=[ONNX_NAMES[name]] * 2, activation_alpha=[0.7] * 2,
        activation_beta=[0.3] * 2,
    )  # fmt: skip
    assert_right(Model(optimised(graph), h200), graph, feeds(3, 4))


def test_half_precision_stays_near_what_float32_gives(h200: GpuBackend) -> None:
    given = feeds(6, 3, "float16")
    graph, wide = layer("LSTM", 9, "float16"), layer("LSTM", 9)
    exact = {"x": given["x"].astype(np.float32), "lengths": given["lengths"]}
    wanted = run_reference(wide, [exact[v.name] for v in wide.inputs])
    for x, y in zip(Model(optimised(graph), h200).run(given), wanted, strict=True):
        assert x.dtype == np.float16
        np.testing.assert_allclose(x.astype(np.float32), y, atol=4e-3)


def test_lengths_beyond_the_data_are_refused(h200: GpuBackend) -> None:
    model = Model(optimised(layer("GRU", 3)), h200)
    given = feeds(4, 2)
    for wrong in (5, -1):
        with pytest.raises(IndexRangeError, match="length of a sequence"):
            model.run({**given, "lengths": np.array([1, wrong], np.int32)})
    model.run(given)
