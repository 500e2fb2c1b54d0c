"""LSTM, GRU and RNN: references and native code give what float64 does, and what onnxruntime does;
malformed nodes and lengths of sequences are refused by name."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conftest import CORE_ISAS, HOST_ISAS, covering
from tests.frontends.onnx_models import by_onnxruntime, model_of
from tests.frontends.recurrent_layers import FUNCTIONS, GATES, OUTPUTS, Layer

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.core.recurrence import Activation, Cell
from ftuner.errors import GraphError, IndexRangeError, ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.passes.pipeline import optimised
from ftuner.planner.cpu.planner import Planner
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.recurrence import cpu_binding as steps
from ftuner.schedules.recurrence.cpu_plan import RecurrenceCut, recurrence_cut

OPTIONAL = {
    "LSTM": ("B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("B", "sequence_lens", "initial_h"),
    "RNN": ("B", "sequence_lens", "initial_h"),
}
EXTENTS = (
    # Length, batch, width, hidden.
    (1, 1, 1, 1), (5, 2, 3, 3), (33, 7, 4, 5), (33, 1, 70, 64), (5, 7, 64, 100), (0, 2, 3, 5),
    (5, 0, 3, 5), (1, 7, 2, 100),
)  # fmt: skip
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "LSTM": ({}, {"clip": 0.5}, {"input_forget": 1}, {"layout": 1}),
    "GRU": ({}, {"clip": 0.5}, {"linear_before_reset": 1}, {"linear_before_reset": 1, "clip": 0.5},
            {"layout": 1}),
    "RNN": ({}, {"clip": 0.5}, {"layout": 1}),
}  # fmt: skip


def expect(found: Any, wanted: Any, dtype: str, label: str = "") -> None:
    for y, expected in zip(found, wanted, strict=True):
        assert y.dtype == dtype
        assert y.shape == expected.shape
        tolerance = 2e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(y, expected, tolerance, tolerance, err_msg=label)


def assert_right(layer: Layer, backend: CpuBackend) -> None:
    proto, feeds = layer.model()
    graph = import_model(proto).graph
    wanted = layer.truth()
    expect(run_reference(graph, list(feeds.values())), wanted, layer.dtype, "reference")
    expect(Model(optimised(graph), backend).run(feeds), wanted, layer.dtype, "compiled")


@pytest.mark.parametrize("isa", CORE_ISAS)
@pytest.mark.parametrize("op", GATES)
def test_extents_and_directions(op: str, isa: str, backend_of: Any) -> None:
    """Weights that are known only at run time are packed at each run."""
    directions, weights = ("forward", "reverse", "bidirectional"), (True, False)
    axes = (EXTENTS, directions, (("B",), OPTIONAL[op]), weights, ("float32", "float64"))
    for on, extents, direction, given, constant, dtype in covering(HOST_ISAS, *axes):
        if on == isa:
            layer = Layer(op, *extents, direction, given, constant=constant, dtype=dtype)
            assert_right(layer, backend_of(isa))


@pytest.mark.parametrize("op", GATES)
def test_attributes(op: str, widest: CpuBackend) -> None:
    for attributes in VARIANTS[op]:
        for given in ((), OPTIONAL[op]):
            layer = Layer(op, 4, 3, 6, 17, "bidirectional", given, attributes, dtype="float64")
            assert_right(layer, widest)
            assert_right(replace(layer, dtype="float32"), widest)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str, widest: CpuBackend) -> None:
    assert_right(Layer("RNN", 3, 2, 4, 19, "bidirectional", activations=(name,)), widest)
    assert_right(Layer("LSTM", activations=("Sigmoid", name, "Tanh")), widest)
    assert_right(Layer("GRU", direction="bidirectional", activations=("HardSigmoid", name)), widest)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_workers(threads: int, widest: CpuBackend) -> None:
    """Tasks of a batch, and directions, may run on any worker."""
    for op in GATES:
        for batch in (1, 9, 40):
            layer = Layer(op, 6, batch, 8, 70, "bidirectional", OPTIONAL[op])
            proto, feeds = layer.model()
            model = Model(optimised(import_model(proto).graph), widest, Options(threads))
            expect(model.run(feeds), layer.truth(), "float32")


@pytest.mark.parametrize("op", GATES)
def test_blocks(op: str, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of two sequences each, more of them than two."""
    monkeypatch.setattr(steps, "recurrence_cut", lambda *_: RecurrenceCut(2, 1))
    for hidden in (5, 70):
        layer = Layer(op, 6, 9, 8, hidden, "bidirectional", OPTIONAL[op])
        proto, feeds = layer.model()
        model = Model(optimised(import_model(proto).graph), widest, Options(4))
        expect(model.run(feeds), layer.truth(), "float32")


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("op", GATES)
def test_teams(op: str, threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of a team compute what one task does, whether all of them come or not, run after run,
    and beside other callers."""

    def cut(*arguments: Any) -> RecurrenceCut:
        *_, rows, most = arguments
        return RecurrenceCut(rows, most)

    for hidden, batch, variant in ((17, 1, {}), (64 * threads, 3, {}), (100, 9, VARIANTS[op][1])):
        for direction in ("reverse", "bidirectional"):
            given = OPTIONAL[op]
            layer = Layer(op, 30, batch, 8, hidden, direction, given, variant)
            proto, feeds = layer.model()
            graph, wanted = optimised(import_model(proto).graph), layer.truth()
            alone = Model(graph, widest, Options(1)).run(feeds)
            expect(alone, wanted, "float32")
            with monkeypatch.context() as patch:
                patch.setattr(steps, "recurrence_cut", cut)
                model = Model(graph, widest, Options(threads))
                with ThreadPoolExecutor(3) as callers:
                    runs = [callers.submit(model.run, feeds) for _ in range(12)]
                    for run in runs:
                        expect(run.result(), wanted, "float32")


@pytest.mark.parametrize("isa", CORE_ISAS)
def test_rounded_states(isa: str, backend_of: Any) -> None:
    """Each step of a batch rounds its states to levels, whose products are exact: with constant
    weights of 8 bits, and with others; alone, and in a team."""
    random, length, k = np.random.default_rng(0), 9, 6
    for hidden, batch, value in ((1, 1, 0), (17, 5, 0), (64, 3, 0), (100, 9, -100)):
        shapes = {"w": (1, k, 4 * hidden), "r": (1, hidden, 4 * hidden)}
        given: dict[str, Any] = {
            name: random.integers(-128, 28, shape, np.int8) for name, shape in shapes.items()
        }
        given |= {"s": np.full(1, 0.01, np.float32), "z": np.full(1, value, np.int8)}
        given["l"] = random.integers(0, length + 1, batch, np.int32)
        names = ["x", "w", "r", "", "l", "", "", "", "s", "z", "s", "z"]
        results, attributes = ["y", "h", "c"], {"domain": MICROSOFT, "hidden_size": hidden}
        node = helper.make_node("DynamicQuantizeLSTM", names, results, **attributes)
        proto = model_of([node], {"x": ("float32", [None] * 3)}, results, given)
        graph = import_model(proto).graph
        x = random.standard_normal((length, batch, k)).astype(np.float32)
        wanted = run_reference(graph, [x])
        for threads in (1, 3):
            model = Model(optimised(graph), backend_of(isa), Options(threads))
            expect(model.run({"x": x}), wanted, "float32")


def test_the_cut_is_the_cheapest(widest: CpuBackend) -> None:
    """A large weight is shared, also by sequences that could be cut; with phases that take long,
    nothing is."""
    cell = Cell("lstm", (Activation("sigmoid"), Activation("tanh"), Activation("tanh")))
    library = widest.products(product_types(FLOAT32)).planner.library
    width = library.widths[0]
    for phase_s, team in ((1e-7, 2), (1.0, 1)):
        tuning = replace(widest.hardware.tuning, team_phase_s=phase_s)
        hardware = replace(widest.hardware, tuning=tuning)
        planner = Planner(replace(library, hardware=hardware))
        assert recurrence_cut(planner, cell, width, 1024, 1, 2) == (1, team)
        found = recurrence_cut(planner, cell, width, 1024, 2, 2)
        assert found.team == team
        assert found.tasks(2) == 2


def test_initial_state_of_one_kind(widest: CpuBackend) -> None:
    for given in (("B", "initial_h"), ("B", "initial_c")):
        assert_right(Layer("LSTM", given=given), widest)


@pytest.mark.parametrize("op", GATES)
def test_as_onnxruntime(op: str, widest: CpuBackend) -> None:
    for attributes in VARIANTS[op]:
        if "layout" in attributes:
            continue  # It does not support it.
        for given in (("B",), OPTIONAL[op]):
            proto, feeds = Layer(op, 6, 4, 3, 17, "bidirectional", given, attributes).model()
            found = Model(optimised(import_model(proto).graph), widest).run(feeds)
            expect(found, by_onnxruntime(proto, feeds), "float32")


@pytest.mark.parametrize("length", [-1, 6])
def test_lengths_out_of_range_are_refused(length: int, widest: CpuBackend) -> None:
    layer = Layer("GRU", length=5, batch=2, given=("B", "sequence_lens"))
    proto, feeds = layer.model()
    feeds["sequence_lens"][:] = 5, length
    graph = import_model(proto).graph
    model = Model(optimised(graph), widest)
    with pytest.raises(IndexRangeError, match="length of a sequence"):
        model.run(feeds)
    with pytest.raises(IndexError, match="lengths of sequences"):
        run_reference(graph, list(feeds.values()))
    feeds["sequence_lens"][:] = 5, 0
    model.run(feeds)


MALFORMED: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], type[Exception], str]] = {
    "axes of X": ({"X": (5, 2)}, {}, GraphError, "three axes"),
    "columns of W": ({"W": (1, 21, 3)}, {}, ShapeError, "W is"),
    "width of W": ({"W": (1, 20, 4)}, {}, ShapeError, "W is"),
    "columns of R": ({"R": (1, 19, 5)}, {}, ShapeError, "R is"),
    "directions of R": ({"R": (2, 20, 5)}, {}, ShapeError, "R is"),
    "size of B": ({"B": (1, 20)}, {}, ShapeError, "B is"),
    "batch of initial_h": ({"initial_h": (1, 3, 5)}, {}, ShapeError, "initial_h"),
    "size of P": ({"P": (1, 10)}, {}, ShapeError, "P is"),
    "hidden_size": ({}, {"hidden_size": 4}, ShapeError, "W is"),
    "no hidden_size": ({}, {"hidden_size": 0}, GraphError, "hidden_size"),
    "direction": ({}, {"direction": "sideways"}, GraphError, "direction"),
    "activations": ({}, {"activations": ["Tanh"]}, GraphError, "1 activations"),
    "an unknown one": ({}, {"activations": ["Tanh", "Sine", "Tanh"]}, GraphError, "'Sine'"),
    "without alpha": ({}, {"activations": ["Affine", "Tanh", "Tanh"]}, GraphError, "alpha"),
    "clip": ({}, {"clip": -1.0}, GraphError, "clip"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_nodes_are_refused(case: str) -> None:
    shapes, attributes, error, text = MALFORMED[case]
    given = {"X": (5, 2, 3), "W": (1, 20, 3), "R": (1, 20, 5), **shapes}
    names = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    node = helper.make_node(
        "LSTM", [n if n in given else "" for n in names], OUTPUTS["LSTM"],
        **{"hidden_size": 5, **attributes},
    )  # fmt: skip
    model = model_of([node], {n: ("float32", s) for n, s in given.items()}, ["Y"], opset=17)
    with pytest.raises(error, match=text):
        import_model(model)
