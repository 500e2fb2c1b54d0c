"""What peers do that says nothing of ftuner is counted apart, and is no finding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.isolation import Crash, Done, Timeout
from tests.random_graphs.agreement import (
    CONVENTIONS,
    HIDDEN_ROWS,
    ONE_SYMBOL,
    REFUSED,
    _doubt,
    agreement_of,
    compare_peers,
    graphs_of,
)
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.checking import CPU, check
from tests.random_graphs.peers import RefusedError
from tests.random_graphs.reports import Report, crashed_in_peer


def case_of(nodes: list[Any], shapes: dict[str, list[Any]], feeds: Feeds, opset: int = 23) -> Case:
    """A model of inputs by name and shape, which gives `y`, with one run."""
    types = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, types[n], shape) for n, shape in shapes.items()]
    output = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, "apart", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return Case(model.SerializeToString(), (feeds,))


def test_crashes_are_told_by_their_stack() -> None:
    stack = 'Fatal\n\nCurrent thread 0x1 (most recent call first):\n  File "{}", line 1 in run\n'
    peer, own = (stack.format(f"/lib/{name}/x.py") for name in ("onnxruntime", "ftuner"))
    assert crashed_in_peer(Crash("SIGFPE", peer))
    other = 'Thread 0x2 (most recent call first):\n  File "threading.py", line 1 in _bootstrap\n\n'
    assert crashed_in_peer(Crash("SIGFPE", other * 9 + peer))
    assert not crashed_in_peer(Crash("SIGFPE", other + own))
    assert not crashed_in_peer(Crash("SIGFPE", own + '  File "x.py"\n' * 40 + "onnxruntime"))
    assert not crashed_in_peer(Timeout(1.0, peer))
    assert not crashed_in_peer(Done(None, 1.0, 0))


def test_numbers_where_onnxruntime_hides_whole_rows() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 1, 3, 4)).astype(np.float32)
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    shapes: dict[str, list[Any]] = {n: [1, 1, 3, 4] for n in "qkv"}
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"])
    case = case_of([node], {**shapes, "m": [3, 3]}, {"q": x, "k": x, "v": x, "m": mask})
    report = check((case, CPU))
    assert not report.findings
    assert report.runs == 1
    assert set(report.apart) <= {HIDDEN_ROWS}


def test_extents_of_one_symbol() -> None:
    nodes = [
        helper.make_node("Slice", ["x", "s", "e"], ["t"]),
        helper.make_node("Mul", ["t", "x"], ["y"]),
    ]
    constants = [
        helper.make_node("Constant", [], [n], value_ints=[v]) for n, v in (("s", 1), ("e", 2))
    ]
    feeds = {"x": np.ones((5, 3), np.float32)}
    case = case_of([*constants, *nodes], {"x": ["n0", 3]}, feeds)
    report = check((case, CPU))
    assert not report.findings
    assert report.apart == {ONE_SYMBOL: 1}
    assert report.refused_runs > 0


def test_limits_of_activations() -> None:
    """A peer's NaN at minus infinity, and nothing else that it gives."""
    feeds = {"x": np.array([0, 1, 2], np.float32)}
    nodes = [helper.make_node("Log", ["x"], ["t"]), helper.make_node("HardSwish", ["t"], ["y"])]
    case = case_of(nodes, {"x": ["n0"]}, feeds)
    report = check((case, CPU))
    assert not report.findings
    agreement = agreement_of(*graphs_of(case), report)
    right = np.array([0, 0, 0.42662], np.float32)
    peers = np.where([True, False, False], np.float32(np.nan), right)
    assert not _doubt(lambda feeds: [right], agreement, 0)
    assert _doubt(lambda feeds: [peers], agreement, 0) == CONVENTIONS
    assert _doubt(lambda feeds: [2 * peers], agreement, 0) not in ("", CONVENTIONS)


def test_nan_in_an_order() -> None:
    feeds = {"x": np.array([-1, 0, 4, 1], np.float32)}
    nodes = [helper.make_node("Sqrt", ["x"], ["t"]), helper.make_node("ArgMax", ["t"], ["y"])]
    case = case_of(nodes, {"x": ["n0"]}, feeds)
    report = check((case, CPU))
    assert not report.findings
    agreement = agreement_of(*graphs_of(case), report)
    assert not _doubt(lambda feeds: [np.array([0])], agreement, 0)
    assert _doubt(lambda feeds: [np.array([2])], agreement, 0) == CONVENTIONS


@pytest.mark.parametrize("text", ["attempting to re-use buffer", "another error"])
def test_refusals_of_what_should_run(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that are known to be errors of onnxruntime."""
    feeds = {"x": np.ones((5, 3), np.float32)}
    case = case_of([helper.make_node("Neg", ["x"], ["y"])], {"x": [5, 3]}, feeds)
    refuse = lambda run, agreement, number: f"{REFUSED}: {text}"  # noqa: E731
    monkeypatch.setattr("tests.random_graphs.agreement._doubt", refuse)
    report = Report()
    compare_peers(agreement_of(*graphs_of(case), report), report)
    known = text.startswith("attempting")
    assert bool(report.apart) == known
    assert bool(report.findings) != known


@pytest.mark.parametrize("op", ["Add", "Neg"])
def test_types_of_nodes_that_a_peer_has_written(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of doubles has an Add of a float in onnxruntime; nodes of the model are its own."""
    feeds = {"x": np.ones((5, 3), np.float32)}
    case = case_of([helper.make_node("Neg", ["x"], ["y"])], {"x": [5, 3]}, feeds)

    def refused(_: Case) -> None:
        raise RefusedError(f"Type Error: Type parameter (T) of Optype ({op}) bound to different")

    monkeypatch.setattr("tests.random_graphs.agreement.onnxruntime_of", refused)
    monkeypatch.setattr("tests.random_graphs.agreement.evaluator_of", lambda case: None)
    report = Report()
    compare_peers(agreement_of(*graphs_of(case), report), report)
    assert bool(report.findings) == (op == "Neg")


def test_broadcasts_before_opset_8_are_refused_on_both_sides() -> None:
    feeds = {"x": np.ones((5, 3), np.float32), "z": np.ones(3, np.float32)}
    for op in ("Max", "Min", "Sum", "Mean"):
        node = helper.make_node(op, ["x", "z"], ["y"])
        case = case_of([node], {"x": [5, 3], "z": [3]}, feeds, opset=7)
        report = check((case, CPU))
        assert report.refused.startswith("ShapeError")
        assert "expected one shape before opset 8" in report.refused
        assert not report.findings
        assert not check((case_of([node], {"x": [5, 3], "z": [3]}, feeds, opset=8), CPU)).refused
