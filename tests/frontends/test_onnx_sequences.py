"""Sequences and optionals within a model against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.control_models import (
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
from ftuner.runtime.specialization import SpecializedModel

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
    assert not isinstance(load(model), SpecializedModel)
    expect_agreement(model, *({"x": floats(n, n + 1)} for n in (4, 9, 3)))


def test_a_piece_at_a_computed_position_is_in_the_same_model(widest: CpuBackend) -> None:
    nodes = [
        NODE("SplitToSequence", ["x"], ["s"], axis=0),
        NODE("SequenceAt", ["s", "at"], ["out"]),
    ]
    model = model_of(nodes, [X, value("at", [], INT64)], [value("out", [1, 3])])
    assert not isinstance(load(model), SpecializedModel)
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


def sequence(name: str) -> Any:
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def appending(nodes: Sequence[Any]) -> Any:
    """The body of a loop that carries a sequence `s`."""
    inputs = [value("i", [], INT64), value("go", [], BOOL), sequence("s")]
    outputs = [value("go_next", [], BOOL), sequence("s_next")]
    nodes = [NODE("Identity", ["go"], ["go_next"]), NODE("Cast", ["i"], ["f"], to=FLOAT), *nodes]
    return helper.make_graph(nodes, "body", inputs, outputs)


SUM = NODE("Add", ["x", "f"], ["sum"])


@pytest.mark.each_value
@pytest.mark.parametrize("known", [None, 4, 20])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (1, 0), (-1, 0), (0, 1), (2, 1)])
def test_a_loop_appends_to_a_sequence(
    widest: CpuBackend, known: int | None, first: bool, axis: int, new_axis: int
) -> None:
    """However often it runs, which may come at run time, one model serves."""
    body = appending([SUM, NODE("SequenceInsert", ["s", "sum"], ["s_next"])])
    begin = NODE("SequenceConstruct", ["x"], ["first"])
    nodes = [
        begin if first else NODE("SequenceEmpty", [], ["first"]),
        NODE("Loop", ["n", "", "first"], ["last"], body=body),
        NODE("ConcatFromSequence", ["last"], ["out"], axis=axis, new_axis=new_axis),
        NODE("SequenceLength", ["last"], ["count"]),
        NODE("SequenceAt", ["last", "back"], ["end"]),
    ]
    trips = [value("n", [], INT64)] if known is None else []
    constants = [BACK] if known is None else [BACK, stored("n", np.int64(known))]
    outputs = [value("out", ["k", "l", "m"][: 2 + new_axis]), value("count", [], INT64)]
    model = model_of(nodes, [X, *trips], [*outputs, value("end", ["n", 3])], constants)
    counts = [{"n": np.array(n)} for n in (3, 1, 6)] if known is None else [{}]
    loaded = expect_agreement(
        model, *({"x": floats(n, 3), **c} for n, c in zip((2, 5, 4), counts, strict=False))
    )
    assert not isinstance(loaded, SpecializedModel)


def test_a_loop_appends_to_the_sequence_of_the_loop_around(widest: CpuBackend) -> None:
    """It carries a sequence of its own, which it does not append to."""
    within = [
        NODE("SequenceInsert", ["outer", "x"], ["inner_next"]),
        NODE("Identity", ["go"], ["on"]),
    ]
    inner = helper.make_graph(
        within, "inner",
        [value("j", [], INT64), value("going", [], BOOL), sequence("inner")],
        [value("on", [], BOOL), sequence("inner_next")],
    )  # fmt: skip
    nodes = [
        NODE("SequenceEmpty", [], ["none"]),
        NODE("Loop", ["m", "", "none"], ["longer"], body=inner),
        NODE("SequenceLength", ["longer"], ["length"]),
        NODE("SequenceInsert", ["outer", "x"], ["outer_next"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    body = helper.make_graph(
        nodes, "body",
        [value("i", [], INT64), value("go", [], BOOL), sequence("outer")],
        [value("go_next", [], BOOL), sequence("outer_next"), value("length", [], INT64)],
    )  # fmt: skip
    model = model_of(
        [
            NODE("SequenceEmpty", [], ["first"]),
            NODE("Loop", ["n", "", "first"], ["last", "lengths"], body=body),
            NODE("SequenceLength", ["last"], ["count"]),
        ],
        [X, value("n", [], INT64), value("m", [], INT64)],
        [value("count", [], INT64), value("lengths", ["k"], INT64)],
    )  # fmt: skip
    counts = [(3, 2), (1, 1), (2, 0), (4, 3)]
    expect_agreement(
        model, *({"x": floats(2, 3), "n": np.array(n), "m": np.array(m)} for n, m in counts)
    )


OTHERWISE = {
    "at a position": [SUM, NODE("SequenceInsert", ["s", "sum", "zero"], ["s_next"])],
    "two": [
        SUM,
        NODE("SequenceInsert", ["s", "sum"], ["more"]),
        NODE("SequenceInsert", ["more", "x"], ["s_next"]),
    ],
    "none": [NODE("Identity", ["s"], ["s_next"])],
    "of its length": [
        NODE("SequenceLength", ["s"], ["length"]),
        NODE("Cast", ["length"], ["f_length"], to=FLOAT),
        NODE("Add", ["x", "f_length"], ["sum"]),
        NODE("SequenceInsert", ["s", "sum"], ["s_next"]),
    ],
    "of its last": [
        NODE("SequenceAt", ["s", "back"], ["end"]),
        NODE("Add", ["end", "f"], ["sum"]),
        NODE("SequenceInsert", ["s", "sum"], ["s_next"]),
    ],
    "less": [
        SUM,
        NODE("SequenceErase", ["s"], ["less"]),
        NODE("SequenceInsert", ["less", "sum"], ["s_next"]),
    ],
    "unequal": [
        NODE("Unsqueeze", ["i", "zeros"], ["rows"]),
        NODE("Slice", ["x", "zeros", "rows"], ["part"]),
        NODE("SequenceInsert", ["s", "part"], ["s_next"]),
    ],
}


@pytest.mark.parametrize("nodes", OTHERWISE.values(), ids=OTHERWISE)
def test_a_loop_changes_a_sequence_otherwise(widest: CpuBackend, nodes: Sequence[Any]) -> None:
    """Its iterations become nodes: one model for each number of them."""
    model = model_of(
        [
            NODE("SequenceConstruct", ["x"], ["first"]),
            NODE("Loop", ["n", "", "first"], ["last"], body=appending(nodes)),
            NODE("ConcatFromSequence", ["last"], ["out"], axis=0),
        ],
        [X, value("n", [], INT64)], [value("out", ["k", 3])],
        [BACK, stored("zero", np.int64(0)), stored("zeros", np.array([0]))],
    )  # fmt: skip
    expect_agreement(model, *({"x": floats(4, 3), "n": np.array(n)} for n in (3, 0, 6)))


@pytest.mark.parametrize("before", [["x", "y"], ["y"]])
def test_a_loop_appends_to_a_sequence_of_other_shapes(
    widest: CpuBackend, before: Sequence[str]
) -> None:
    body = appending([SUM, NODE("SequenceInsert", ["s", "sum"], ["s_next"])])
    model = model_of(
        [
            NODE("SequenceConstruct", before, ["first"]),
            NODE("Loop", ["n", "", "first"], ["last"], body=body),
            NODE("ConcatFromSequence", ["last"], ["out"], axis=0),
        ],
        [X, Y, value("n", [], INT64)], [value("out", ["k", 3])],
    )  # fmt: skip
    expect_agreement(model, *({**given, "n": np.array(4)} for given in feeds(2, 5)))


def test_bags_are_summed_in_a_loop(widest: CpuBackend) -> None:
    """How torch's exporter writes EmbeddingBag: iterations slice rows, some of them none, and
    append their sum or zeros to a sequence. Any number of bags is one model."""
    zero = stored("zeros", np.zeros((1, 3), np.float32))
    branches = {
        "then_branch": helper.make_graph(
            [NODE("Identity", ["zeros"], ["empty"])], "then", [], [value("empty", [1, 3])]
        ),
        "else_branch": helper.make_graph(
            [NODE("ReduceSum", ["rows", "along"], ["total"])], "else", [], [value("total", [1, 3])]
        ),
    }
    nodes = [
        NODE("Reshape", ["at", "minus"], ["first"]),
        NODE("Add", ["first", "one"], ["second"]),
        NODE("Add", ["second", "one"], ["third"]),
        NODE("Slice", ["offsets", "first", "second"], ["begin"]),
        NODE("Slice", ["offsets", "second", "third"], ["end"]),
        NODE("Slice", ["x", "begin", "end"], ["rows"]),
        NODE("Equal", ["begin", "end"], ["none"]),
        NODE("If", ["none"], ["bag"], **branches),
        NODE("SequenceInsert", ["s", "bag"], ["s_next"]),
        NODE("Add", ["at", "step"], ["at_next"]),
        NODE("Less", ["at_next", "bags"], ["more"]),
    ]
    inputs = [value("i", [], INT64), value("go", [], BOOL), sequence("s"), value("at", [], INT64)]
    outputs = [value("more", [], BOOL), sequence("s_next"), value("at_next", [], INT64)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    model = model_of(
        [
            NODE("Size", ["offsets"], ["size"]),
            NODE("Sub", ["size", "step"], ["bags"]),
            NODE("SequenceEmpty", [], ["first_s"]),
            NODE("Less", ["start", "bags"], ["some"]),
            NODE("Loop", ["", "some", "first_s", "start"], ["last", "at_end"], body=body),
            NODE("ConcatFromSequence", ["last"], ["out"], axis=0),
        ],
        [X, value("offsets", ["k"], INT64)], [value("out", ["b", 3])],
        [
            zero, stored("along", np.array([0])), stored("minus", np.array([-1])),
            stored("one", np.array([1])), stored("step", np.int64(1)), stored("start", np.int64(0)),
        ],
    )  # fmt: skip
    offsets = ([0, 4, 4, 9, 10], [0, 3], [0, 0, 1, 20, 20, 20, 21])
    given = ({"x": floats(o[-1], 3), "offsets": np.array(o)} for o in offsets)
    assert not isinstance(expect_agreement(model, *given), SpecializedModel)


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
