"""Numbers at run time that an operator cannot take, and the least ones that it can."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.control_models import expect_agreement, growing
from tests.frontends.onnx_models import model_of, node_model, parsed

from ftuner.errors import AllocationError, FTunerError, GraphError, IndexRangeError, ShapeError
from ftuner.inference import load

X = np.arange(2 * 3 * 5 * 7, dtype=np.float32).reshape(2, 3, 5, 7)
HUGE = 1 << 62
HIDDEN = 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def of_x(op: str, outputs: int = 1, count: int = 1, **attributes: Any) -> bytes:
    """A node that takes `x`, if its operator does, and `count` numbers `n`."""
    names = ["n"] if op == "ConstantOfShape" else ["x", "n"]
    inputs = {"x": ("float32", ["a", "b", "c", "d"]), "n": ("int64", [count])}
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    found = model_of([node], {name: inputs[name] for name in names}, results)
    return bytes(found.SerializeToString())


Row = tuple[bytes, Sequence[int], Sequence[tuple[Sequence[int], type[FTunerError]]]]
# fmt: off
TABLE: dict[str, Row] = {
    "pad": (of_x("Pad", count=8), (0, 0, 0, -7, 0, 0, 0, 0), [
        ((0, 0, 0, -8, 0, 0, 0, 0), ShapeError),
        ((HUGE, 0, 0, 0, 0, 0, 0, 0), AllocationError),
    ]),
    "expand": (of_x("Expand", count=4), (2, 1, 5, 7), [
        ((2, 3, 5, 8), ShapeError), ((2, 3, 5, -1), ShapeError), ((2, 3, 5, 0), ShapeError),
    ]),
    "unsqueeze": (of_x("Unsqueeze"), (-5,), [((5,), ShapeError), ((-6,), ShapeError)]),
    "split": (of_x("Split", 2, 2, axis=3), (0, 7), [
        ((3, 3), ShapeError), ((8, -1), ShapeError),
    ]),
    "cumulative sum": (of_x("CumSum"), (-4,), [((4,), ShapeError), ((-5,), ShapeError)]),
    "largest": (of_x("TopK", 2), (0,), [((8,), ShapeError), ((-1,), ShapeError)]),
    "constant": (of_x("ConstantOfShape", count=2), (0, 3), [
        ((2, -1), ShapeError), ((2, HUGE), AllocationError),
    ]),
}
# fmt: on


@pytest.mark.parametrize("name", TABLE)
def test_named_errors_leave_a_model_as_it_was(name: str) -> None:
    data, good, bad = TABLE[name]
    model = load(data)

    def run(numbers: Sequence[int]) -> list[Any]:
        feeds = {"x": X, "n": np.array(numbers, np.int64)}
        return model.run({spec.name: feeds[spec.name] for spec in model.inputs})

    proto = onnx.ModelProto.FromString(data)
    feeds = {"x": X, "n": np.array(good, np.int64)}
    expect_agreement(proto, {info.name: feeds[info.name] for info in proto.graph.input})
    for numbers, error in bad:
        with pytest.raises(error):
            run(numbers)
        run(good)


def test_steps_of_zero() -> None:
    model, feeds = node_model("Range", [*map(np.int64, (0, 5, 0))])
    with pytest.raises(GraphError, match="steps of 0"):
        load(model).run(feeds)


@pytest.mark.parametrize("extent", [0, 2])
def test_loops_of_no_iteration(extent: int) -> None:
    """Numbers of iterations below zero are none."""
    first, more = np.ones((extent, 3), np.float32), np.ones((1, 3), np.float32)
    counts = (0, -1, -(2**63), 3)
    expect_agreement(growing(), *({"n": np.array(n), "first": first, "w": more} for n in counts))


@pytest.mark.parametrize("op", GATES)
def test_lengths_of_sequences(op: str) -> None:
    """Outputs after the end of a sequence are zero; a sequence of no step has no last one."""
    rows = GATES[op] * HIDDEN
    random = np.random.default_rng(0)
    text = f"""(float[steps, batch, 3] x, float[1, {rows}, 3] w, float[1, {rows}, {HIDDEN}] r,
            int32[batch] lengths) => (y, last) {{
        y, last = {op}<hidden_size={HIDDEN}>(x, w, r, "", lengths)
    }}"""
    model = load(parsed(text))
    w, r = (random.standard_normal((1, rows, n)).astype(np.float32) for n in (3, HIDDEN))

    def run(steps: int, *lengths: int) -> list[Any]:
        x = np.ones((steps, len(lengths), 3), np.float32)
        return model.run({"x": x, "w": w, "r": r, "lengths": np.array(lengths, np.int32)})

    for steps, lengths in ((5, (0, 3)), (5, (0, 0)), (0, (0, 0))):
        y, last = run(steps, *lengths)
        assert y.shape == (steps, 1, 2, HIDDEN)
        assert last.shape == (1, 2, HIDDEN)
        for i, length in enumerate(lengths):
            assert not y[length:, :, i].any()
            wanted = y[length - 1, :, i] if length else 0
            np.testing.assert_array_equal(last[:, i], np.broadcast_to(wanted, (1, HIDDEN)))
    for lengths in ((6, 2), (-1, 3)):
        with pytest.raises(IndexRangeError, match="length of a sequence"):
            run(5, *lengths)
