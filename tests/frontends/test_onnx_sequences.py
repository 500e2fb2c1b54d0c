"""Sequences and optionals within a model against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.test_onnx_control import (
    BOOL,
    FLOAT,
    INT64,
    NODE,
    expect_agreement,
    floats,
    model_of,
    stored,
    value,
)

from ftuner.errors import GraphError, IndexRangeError, ShapeError
from ftuner.inference import load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.late_model import LateModel

X, Y = value("x", ["n", 3]), value("y", ["m", 3])
ONE, BACK = stored("one", np.int64(1)), stored("back", np.int64(-1))


def feeds(*rows: int) -> list[dict[str, Any]]:
    return [{"x": floats(n, 3), "y": floats(n + 1, 3)} for n in rows]


def test_sequences_are_made_and_taken_apart(widest: CpuBackend) -> None:
    nodes = [
        NODE("SequenceConstruct", ["x", "y"], ["s"]),
        NODE("SequenceEmpty", [], ["none"]),
        NODE("SequenceInsert", ["none", "x"], ["only"]),
        NODE("SequenceAt", ["only", "back"], ["x_again"]),
        NODE("Neg", ["x_again"], ["minus"]),
        NODE("SequenceInsert", ["s", "minus", "one"], ["three"]),
        NODE("SequenceErase", ["three", "back"], ["two"]),
        NODE("Identity", ["two"], ["same"]),
        NODE("ConcatFromSequence", ["same"], ["out"], axis=0),
        NODE("SequenceLength", ["three"], ["count"]),
    ]
    model = model_of(
        nodes, [X, Y], [value("out", ["k", 3]), value("count", [], INT64)], [ONE, BACK]
    )
    expect_agreement(model, *feeds(2, 5, 0))


@pytest.mark.parametrize("split", [None, 2, [1, 3, 1]])
def test_splits(widest: CpuBackend, split: Any) -> None:
    names = ["x"] if split is None else ["x", "split"]
    nodes = [
        NODE("SplitToSequence", names, ["s"], axis=0, **({"keepdims": 0} if split is None else {})),
        NODE("SequenceAt", ["s", "at"], ["out"]),
        NODE("SequenceLength", ["s"], ["count"]),
    ]
    constants = [] if split is None else [stored("split", np.array(split))]
    rank = [3] if split is None else ["k", 3]
    model = model_of(
        nodes, [value("x", [5, 3]), value("at", [], INT64)],
        [value("out", rank), value("count", [], INT64)], constants,
    )  # fmt: skip
    given = [{"x": floats(5, 3), "at": np.array(at)} for at in (0, 2, -1)]
    expect_agreement(model, *given)
    with pytest.raises(IndexRangeError, match=r"SequenceAt node .* (position 5|out of range)"):
        load(model).run({"x": floats(5, 3), "at": np.array(5)})


def taken_at(position: int) -> onnx.ModelProto:
    nodes = [
        NODE("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0),
        NODE("SequenceAt", ["s", "at"], ["out"]),
    ]
    return model_of(nodes, [X], [value("out", [3])], [stored("at", np.int64(position))])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("split", "keepdims"), [(None, 0), (None, 1), (1, 1), (2, 1)])
def test_one_model_takes_any_number_of_pieces(
    widest: CpuBackend, axis: int, split: int | None, keepdims: int
) -> None:
    """Of an axis of any extent, which an exporter takes apart and puts together again."""
    names, constants = ["x"], [ONE, BACK]
    if split is not None:
        names.append("split")
        constants.append(stored("split", np.int64(split)))
    kept = bool(keepdims)
    nodes = [
        NODE("SplitToSequence", names, ["s"], axis=axis, keepdims=keepdims),
        NODE("SequenceAt", ["s", "one"], ["second"]),
        NODE("SequenceAt", ["s", "back"], ["last"]),
        NODE("SequenceLength", ["s"], ["count"]),
        NODE("ConcatFromSequence", ["s"], ["whole"], axis=axis if kept else 1, new_axis=not kept),
    ]
    outputs = [value(name, ["a", "b"] if kept else ["a"]) for name in ("second", "last")]
    outputs += [value("count", [], INT64), value("whole", ["c", "d"])]
    model = model_of(nodes, [value("x", ["n", "m"])], outputs, constants)
    assert not isinstance(load(model), LateModel)
    expect_agreement(model, *({"x": floats(n, n + 1)} for n in (4, 9, 3)))


def test_a_piece_at_a_computed_position_is_in_the_same_model(widest: CpuBackend) -> None:
    nodes = [
        NODE("SplitToSequence", ["x"], ["s"], axis=0),
        NODE("SequenceAt", ["s", "at"], ["out"]),
    ]
    model = model_of(nodes, [X, value("at", [], INT64)], [value("out", [1, 3])])
    assert not isinstance(load(model), LateModel)
    expect_agreement(
        model, *({"x": floats(n, 3), "at": np.array(at)} for n, at in ((4, 3), (9, 0), (2, -2)))
    )


@pytest.mark.parametrize("position", [2, -3])
def test_positions_beyond_a_sequence_of_any_length(widest: CpuBackend, position: int) -> None:
    expect_agreement(taken_at(position), *({"x": floats(n, 3)} for n in (3, 8)))
    with pytest.raises(ShapeError, match=f"SequenceAt node .* lacks for position {position}"):
        load(taken_at(position)).run({"x": floats(2, 3)})


def test_several_positions_at_once_are_refused(widest: CpuBackend) -> None:
    nodes = [
        NODE("SplitToSequence", ["x"], ["s"], axis=0),
        NODE("SequenceAt", ["s", "at"], ["out"]),
    ]
    model = model_of(nodes, [X, value("at", [2, 1], INT64)], [value("out", [1, 3])])
    with pytest.raises(GraphError, match=r"SequenceAt node .* expected one element"):
        load(model)


def test_pieces_are_changed_as_a_sequence(widest: CpuBackend) -> None:
    """Such a sequence must be of known length: one model for each."""
    nodes = [
        NODE("SplitToSequence", ["x"], ["s"], axis=0),
        NODE("SequenceErase", ["s", "one"], ["fewer"]),
        NODE("ConcatFromSequence", ["fewer"], ["out"], axis=0),
    ]
    expect_agreement(
        model_of(nodes, [X], [value("out", ["k", 3])], [ONE]),
        *({"x": floats(n, 3)} for n in (3, 5)),
    )


@pytest.mark.parametrize("new_axis", [0, 1])
def test_maps(widest: CpuBackend, new_axis: int) -> None:
    """A function of the tensors of a sequence and of one tensor, which reads a value around it."""
    body = helper.make_graph(
        [NODE("Mul", ["a", "b"], ["p"]), NODE("Add", ["p", "x"], ["q"])],
        "body", [value("a", ["n", 3]), value("b", ["n", 3])], [value("q", ["n", 3])],
    )  # fmt: skip
    nodes = [
        NODE("Exp", ["x"], ["e"]),
        NODE("SequenceConstruct", ["x", "e", "e"], ["s"]),
        NODE("SequenceMap", ["s", "e"], ["mapped"], body=body),
        NODE("ConcatFromSequence", ["mapped"], ["out"], axis=1, new_axis=new_axis),
    ]
    rank = ["a", "b", "c"] if new_axis else ["a", "b"]
    expect_agreement(
        model_of(nodes, [X], [value("out", rank)]), *({"x": floats(n, 3)} for n in (2, 0, 7))
    )


@pytest.mark.parametrize("known", [True, False])
def test_a_loop_carries_a_sequence(widest: CpuBackend, known: bool) -> None:
    """How often it runs may come at run time."""
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    body = helper.make_graph(
        [
            NODE("Cast", ["i"], ["f"], to=FLOAT),
            NODE("Add", ["x", "f"], ["sum"]),
            NODE("SequenceInsert", ["s", "sum"], ["s_next"]),
            NODE("Identity", ["go"], ["go_next"]),
        ],
        "body", [value("i", [], INT64), value("go", [], BOOL), sequence],
        [value("go_next", [], BOOL), helper.make_tensor_sequence_value_info("s_next", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        NODE("SequenceConstruct", ["x"], ["first"]),
        NODE("Loop", ["n", "", "first"], ["last"], body=body),
        NODE("ConcatFromSequence", ["last"], ["out"], axis=0),
    ]
    trips = [] if known else [value("n", [], INT64)]
    constants = [stored("n", np.int64(4))] if known else []
    model = model_of(nodes, [X, *trips], [value("out", ["k", 3])], constants)
    counts = [{}] if known else [{"n": np.array(n)} for n in (3, 0, 6)]
    expect_agreement(model, *({"x": floats(2, 3), **n} for n in counts))


def test_optionals(widest: CpuBackend) -> None:
    nodes = [
        NODE("Optional", ["x"], ["some"]),
        NODE("OptionalHasElement", ["some"], ["there"]),
        NODE("OptionalGetElement", ["some"], ["again"]),
        NODE("Neg", ["again"], ["out"]),
        NODE(
            "Optional", [], ["none"],
            type=helper.make_tensor_type_proto(FLOAT, [2]),
        ),
        NODE("OptionalHasElement", ["none"], ["not_there"]),
    ]  # fmt: skip
    outputs = [value("out", ["n", 3]), value("there", [], BOOL), value("not_there", [], BOOL)]
    expect_agreement(model_of(nodes, [X], outputs), {"x": floats(2, 3)})
