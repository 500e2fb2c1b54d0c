"""Control flow against ONNX Runtime: loops, scans and branches on data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.control_models import (
    BOOL,
    FLOAT,
    INT64,
    NODE,
    body_of,
    expect_agreement,
    floats,
    growing,
    model_of,
    stored,
    value,
)

from ftuner.errors import GraphError, IndexRangeError, IterationLimitError, ShapeError
from ftuner.frontends.onnx import import_model
from ftuner.inference import Model, load
from ftuner.runtime.chain import MAX_TRIPS_VARIABLE
from ftuner.runtime.cpu.backend import CpuBackend


def test_carried_extents_grow(widest: CpuBackend) -> None:
    feeds = [
        {"n": np.array(n), "first": floats(a, 3), "w": floats(b, 3)}
        for n, a, b in ((5, 2, 1), (0, 2, 1), (1, 0, 0), (3, 0, 2), (20, 1, 4), (-1, 1, 1))
    ]
    expect_agreement(growing(), *feeds)


def test_a_body_is_compiled_once(widest: CpuBackend, compiled: list[Any]) -> None:
    model = load(growing())
    count = len(compiled)
    assert count <= 3
    for n in (1, 7, 30):
        model.run({"n": np.array(n), "first": floats(2, 3), "w": floats(1, 3)})
    assert len(compiled) == count


def exchanging(conditional: bool) -> Any:
    """A loop that exchanges two carried values; each iteration gives an element and a look-up."""
    nodes = [
        NODE("Add", ["b", "one"], ["a_next"]),
        NODE("Identity", ["a"], ["b_next"]),
        NODE("Gather", ["table", "i"], ["row"]),
        NODE("ReduceMax", ["a"], ["most"], keepdims=0),
        NODE("Less", ["most", "far"], ["small"]) if conditional
        else NODE("Identity", ["go"], ["small"]),
    ]  # fmt: skip
    body = body_of(
        nodes, [value("a", ["n", 3]), value("b", ["n", 3])],
        [value("small", [], BOOL), value("a_next"), value("b_next"), value("a_next"), value("row")],
        [stored("one", np.float32(1)), stored("far", np.float32(80))],
    )  # fmt: skip
    loop = NODE("Loop", ["count", "", "x", "y"], ["a_last", "b_last", "all", "rows"], body=body)
    return model_of(
        [loop],
        [value("count", [], INT64), value("x", ["n", 3]), value("y", ["n", 3]),
         value("table", ["m", 2])],
        [value(name) for name in ("a_last", "b_last", "all", "rows")],
    )  # fmt: skip


@pytest.mark.parametrize("conditional", [False, True])
def test_carried_values_that_keep_their_extents(widest: CpuBackend, conditional: bool) -> None:
    """Iterations write over what earlier ones have read, and never what they were given."""
    feeds = [
        {"count": np.array(n), "x": floats(rows, 3), "y": floats(rows, 3), "table": floats(200, 2)}
        for n, rows in ((0, 2), (1, 2), (2, 0), (3, 1), (64, 2), (65, 2), (129, 3), (200, 2))
    ]
    copies = [{name: x.copy() for name, x in given.items()} for given in feeds]
    model = expect_agreement(exchanging(conditional), *feeds)
    for given, copy in zip(feeds, copies, strict=True):
        for name, x in given.items():
            np.testing.assert_array_equal(x, copy[name])
    # Iteration 5 reads beyond the table; a later run is not affected.
    short = {**feeds[-1], "table": floats(5, 2)}
    with pytest.raises(IndexRangeError):
        model.run(short)
    expected = model.run({**short, "count": np.array(5)})
    np.testing.assert_array_equal(expected[3], short["table"])


def carrying_what_stays() -> Any:
    """A loop as TensorFlow's exporter writes it: it carries a weight, a step and an input beside
    the state that it changes."""
    nodes = [
        NODE("Slice", ["rows", "zeros", "far", "zeros", "step"], ["some"]),
        NODE("ReduceSum", ["some"], ["sum"], keepdims=0),
        NODE("MatMul", ["state", "weight"], ["product"]),
        NODE("Add", ["product", "sum"], ["state_next"]),
        NODE("Identity", ["rows"], ["same"]),
        NODE("Identity", ["same"], ["rows_next"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    state, weight = value("state", ["b", 4]), value("weight", [4, 4])
    rows, step = value("rows", ["n"]), value("step", [1], INT64)
    outputs = [
        value("go_next", [], BOOL), value("state_next", ["b", 4]), weight,
        value("rows_next", ["n"]), step,
    ]  # fmt: skip
    body = body_of(nodes, [state, weight, rows, step], outputs)
    return model_of(
        [NODE("Loop", ["trips", "", "x", "w", "y", "two"], ["x_last", "w_last", "y_last", "s_last"],
              body=body)],
        [value("trips", [], INT64), value("x", ["b", 4]), value("y", ["n"])],
        [value("x_last", ["b", 4]), value("w_last", [4, 4]), value("y_last", ["n"]),
         value("s_last", [1], INT64)],
        [stored("w", floats(4, 4) / 4), stored("two", np.array([2])),
         stored("zeros", np.array([0])), stored("far", np.array([2**40]))],
    )  # fmt: skip


def test_what_a_loop_carries_unchanged_is_read_around_it(
    widest: CpuBackend, compiled: list[Any]
) -> None:
    """A constant weight is packed, and a constant step is no number that comes at run time."""
    feeds = [
        {"trips": np.array(n), "x": floats(b, 4), "y": floats(m)}
        for n, b, m in ((3, 2, 7), (0, 1, 2), (11, 5, 1))
    ]
    expect_agreement(carrying_what_stays(), *feeds)
    (loop,) = (n for n in import_model(carrying_what_stays()).graph.nodes if n.op == "loop")
    (product,) = (n for n in loop.attributes["body"].nodes if n.op == "matmul")
    assert product.inputs[1].constant is not None
    model = load(carrying_what_stays())
    count = len(compiled)
    for given in feeds:
        model.run(given)
    assert len(compiled) == count


def test_a_loop_that_changes_nothing(widest: CpuBackend) -> None:
    body = body_of(
        [NODE("Identity", ["go"], ["go_next"])], [value("x", ["n"])],
        [value("go_next", [], BOOL), value("x", ["n"])],
    )  # fmt: skip
    model = model_of(
        [NODE("Loop", ["trips", "", "first"], ["last"], body=body)],
        [value("trips", [], INT64), value("first", ["n"])], [value("last", ["n"])],
    )  # fmt: skip
    expect_agreement(model, *({"trips": np.array(n), "first": floats(3)} for n in (0, 5)))


def while_model() -> Any:
    """Halves x until its sum is below a limit; counts how often."""
    nodes = [
        NODE("Mul", ["x", "half"], ["x_next"]),
        NODE("ReduceSum", ["x_next"], ["sum"], keepdims=0),
        NODE("Less", ["limit", "sum"], ["go_next"]),
        NODE("Identity", ["i"], ["count_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("x_next", ["n"]), value("count_next", [], INT64)]
    body = body_of(
        nodes,
        [value("x", ["n"]), value("count", [], INT64)],
        outputs,
        [stored("half", np.float32(0.5))],
    )
    return model_of(
        [NODE("Loop", ["", "begin", "first", "zero"], ["last", "count_last"], body=body)],
        [value("begin", [], BOOL), value("first", ["n"]), value("limit", [])],
        [value("last", ["n"]), value("count_last", [], INT64)],
        [stored("zero", np.int64(0))],
    )


def test_a_condition_ends_a_loop(widest: CpuBackend) -> None:
    feeds = [
        {"begin": np.array(begin), "first": np.abs(floats(n)), "limit": np.array(0.01, np.float32)}
        for begin, n in ((True, 5), (False, 5), (True, 0), (True, 100))
    ]
    nan = {"begin": np.array(True), "first": np.array([np.nan], np.float32), "limit": np.float32(1)}
    nan["limit"] = np.ones((), np.float32)
    expect_agreement(while_model(), *feeds, nan)


def test_endless_loops_are_stopped(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_TRIPS_VARIABLE, "50")
    model = load(while_model())
    feeds = {"begin": np.array(True), "limit": np.array(-1, np.float32)}
    with pytest.raises(IterationLimitError, match="50 iterations"):
        model.run({**feeds, "first": np.ones(3, np.float32)})


def test_loops_within_loops_read_values_around_them(widest: CpuBackend) -> None:
    """The inner one runs i + 1 times, and reads the input and what the outer one carries."""
    inner = helper.make_graph(
        [
            NODE("Gather", ["w", "j"], ["row"], axis=0),
            NODE("MatMul", ["row", "x"], ["y"]),
            NODE("Add", ["c", "y"], ["c_next"]),
            NODE("Identity", ["on"], ["on_next"]),
        ],
        "inner",
        [value("j", [], INT64), value("on", [], BOOL), value("c", ["m"])],
        [value("on_next", [], BOOL), value("c_next", ["m"])],
    )
    nodes = [
        NODE("Add", ["i", "one"], ["trips"]),
        NODE("Loop", ["trips", "", "s"], ["s_next"], body=inner),
        NODE("Tanh", ["s_next"], ["t"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("s_next", ["m"]), value("t", ["m"])]
    body = body_of(nodes, [value("s", ["m"])], outputs)
    model = model_of(
        [
            NODE("Loop", ["n", "", "s0"], ["last", "all"], body=body),
            NODE("Exp", ["last"], ["after"]),
        ],
        [value("n", [], INT64), value("s0", ["m"]), value("w", ["r", "k"]), value("x", ["k", "m"])],
        [value("after", ["m"]), value("all", ["t", "m"])],
        [stored("one", np.int64(1))],
    )
    feeds = [
        {"n": np.array(n), "s0": floats(m), "w": floats(9, k), "x": floats(k, m) / 50}
        for n, k, m in ((3, 4, 5), (9, 1, 2), (0, 2, 2), (2, 0, 3))
    ]
    expect_agreement(model, *feeds)


def test_extents_that_data_tells_within_a_loop(widest: CpuBackend) -> None:
    nodes = [
        NODE("Greater", ["c", "zero"], ["chosen"]),
        NODE("NonZero", ["chosen"], ["at"]),
        NODE("Squeeze", ["at", "first_axis"], ["where"]),
        NODE("Gather", ["c", "where"], ["kept"], axis=0),
        NODE("Sub", ["kept", "step"], ["c_next"]),
        NODE("Size", ["c_next"], ["count"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("c_next", ["p"]), value("count", [], INT64)]
    body = body_of(nodes, [value("c", ["p"])], outputs, [stored("zero", np.float32(0))])
    model = model_of(
        [NODE("Loop", ["n", "", "x"], ["last", "counts"], body=body)],
        [value("n", [], INT64), value("x", ["m"]), value("step", [])],
        [value("last", ["q"]), value("counts", ["k"], INT64)],
        [stored("first_axis", np.array([0]))],
    )
    feeds = [
        {"n": np.array(n), "x": floats(m), "step": np.array(0.3, np.float32)}
        for n, m in ((3, 40), (12, 30), (0, 3), (2, 0))
    ]
    expect_agreement(model, *feeds)


@pytest.mark.parametrize("trips", [3, 40])
def test_shapes_around_a_loop_are_known_within(widest: CpuBackend, trips: int) -> None:
    """A body reshapes by the shape of the input."""
    nodes = [
        NODE("Reshape", ["c", "shape"], ["matrix"]),
        NODE("ReduceSum", ["matrix", "last"], ["sums"], keepdims=0),
        NODE("Cast", ["i"], ["i_float"], to=FLOAT),
        NODE("Add", ["c", "i_float"], ["c_next"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("c_next", ["p"]), value("sums", ["a"])]
    body = body_of(nodes, [value("c", ["p"])], outputs)
    model = model_of(
        [
            NODE("Shape", ["x"], ["shape"]),
            NODE("Reshape", ["x", "all"], ["flat"]),
            NODE("Loop", ["n", "", "flat"], ["end", "sums"], body=body),
        ],
        [value("x", ["a", "b"])],
        [value("end", ["q"]), value("sums", ["k", "a"])],
        [
            stored("all", np.array([-1])),
            stored("last", np.array([1])),
            stored("n", np.int64(trips)),
        ],
    )
    expect_agreement(model, *({"x": floats(a, b)} for a, b in ((2, 3), (5, 1), (0, 4))))


def test_a_branch_on_data_within_a_loop(widest: CpuBackend) -> None:
    then = helper.make_graph([NODE("Mul", ["c", "c"], ["a"])], "then", [], [value("a", ["m"])])
    otherwise = helper.make_graph([NODE("Add", ["c", "w"], ["b"])], "else", [], [value("b", ["m"])])
    nodes = [
        NODE("ReduceSum", ["c"], ["sum"], keepdims=0),
        NODE("Less", ["sum", "zero"], ["low"]),
        NODE("If", ["low"], ["c_next"], then_branch=then, else_branch=otherwise),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("c_next", ["m"]), value("sum", [])]
    body = body_of(nodes, [value("c", ["m"])], outputs, [stored("zero", np.float32(0))])
    model = model_of(
        [NODE("Loop", ["n", "", "x"], ["last", "sums"], body=body)],
        [value("n", [], INT64), value("x", ["m"]), value("w", ["m"])],
        [value("last", ["m"]), value("sums", ["k"])],
    )
    loaded = expect_agreement(
        model,
        *({"n": np.array(n), "x": -(floats(5) ** 2), "w": -np.ones(5, np.float32)} for n in (3, 5)),
    )
    assert type(loaded) is Model


SCANS = {
    "plain": {},
    "reverse": {"scan_input_directions": [1, 0], "scan_output_directions": [1]},
    "axes": {"scan_input_axes": [1, -1], "scan_output_axes": [1]},
    "last axis": {"scan_input_directions": [0, 1], "scan_output_axes": [-1]},
}


@pytest.mark.parametrize("attributes", SCANS.values(), ids=SCANS)
def test_scans(widest: CpuBackend, attributes: dict[str, Any]) -> None:
    nodes = [
        NODE("MatMul", ["x", "w"], ["y"]),
        NODE("Add", ["y", "h"], ["sum"]),
        NODE("Tanh", ["sum"], ["h_next"]),
        NODE("Mul", ["h_next", "z"], ["out"]),
        NODE("Add", ["count", "one"], ["count_next"]),
    ]
    body = helper.make_graph(
        nodes, "body",
        [value("h", ["m"]), value("count", []), value("x", ["k"]), value("z", ["m"])],
        [value("h_next", ["m"]), value("count_next", []), value("out", ["m"])],
        [stored("one", np.float32(1))],
    )  # fmt: skip
    node = NODE(
        "Scan", ["h0", "c0", "xs", "zs"], ["h_last", "c_last", "all"], body=body,
        num_scan_inputs=2, **attributes,
    )  # fmt: skip
    axes = attributes.get("scan_input_axes", [0, 0])
    xs, zs = (
        (["t", "k"] if axes[0] == 0 else ["k", "t"]),
        (["t", "m"] if axes[1] == 0 else ["m", "t"]),
    )
    model = model_of(
        [node],
        [
            value("h0", ["m"]),
            value("c0", []),
            value("xs", xs),
            value("zs", zs),
            value("w", ["k", "m"]),
        ],
        [value("h_last", ["m"]), value("c_last", []), value("all", ["p", "q"])],
    )

    def given(t: int, k: int, m: int) -> dict[str, Any]:
        sides = {"t": t, "k": k, "m": m}
        x, z = (floats(*(sides[n] for n in names)) for names in (xs, zs))
        zero = np.zeros((), np.float32)
        return {"h0": floats(m), "c0": zero, "xs": x, "zs": z, "w": floats(k, m)}

    expect_agreement(model, given(7, 3, 4), given(1, 1, 1), given(30, 2, 5))


def changing(*nodes: Any, dtype: int = FLOAT) -> Any:
    outputs = [value("go", [], BOOL), value("c_next", None, dtype)]
    body = body_of(nodes, [value("c")], outputs)
    return model_of(
        [NODE("Loop", ["n", "", "x"], ["last"], body=body)],
        [value("n", [], INT64), value("x", ["m"])], [value("last", None, dtype)],
        [stored("axis", np.array([0]))],
    )  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [
        changing(NODE("Cast", ["c"], ["c_next"], to=INT64), dtype=INT64),
        changing(NODE("Unsqueeze", ["c", "axis"], ["c_next"])),
    ],
    ids=["dtype", "rank"],
)
def test_a_carried_value_that_changes_its_type(model: Any) -> None:
    with pytest.raises(GraphError, match=r"Loop node .* carried value 2 is float32\[m\] before"):
        import_model(model)


def beginning_with_scalars(first: Any = True) -> Any:
    """A loop as PaddlePaddle exports them: what is carried begins as a scalar, a flag has an axis
    or none, and the rows up to the last iteration are left."""
    done = helper.make_graph([], "done", [], [value("yes", None, BOOL)], [stored("yes", True)])
    nodes = [
        NODE("Cast", ["flag"], ["as_before"], to=INT64), NODE("Add", ["as_before", "z"], ["sum"]),
        NODE("Cast", ["sum"], ["kept"], to=BOOL),
    ]  # fmt: skip
    going = helper.make_graph(nodes, "going", [], [value("kept", None, BOOL)])
    nodes = [
        NODE("MatMul", ["x", "w"], ["x_next"]), NODE("ReduceMax", ["x_next"], ["most"], keepdims=0),
        NODE("Reshape", ["i", "one"], ["at"]), NODE("Reshape", ["most", "one"], ["new"]),
        NODE("ScatterElements", ["rows", "at", "new"], ["rows_next"]),
        NODE("Identity", ["rows_next"], ["out_next"]), NODE("Greater", ["most", "far"], ["is_far"]),
        NODE("If", ["is_far"], ["flag_now"], then_branch=done, else_branch=going),
        NODE("Cast", ["flag_now"], ["number"], to=INT64), NODE("Add", ["number", "z"], ["numbers"]),
        NODE("Cast", ["numbers"], ["flag_next"], to=BOOL), NODE("Not", ["flag_next"], ["go_next"]),
        NODE("Add", ["at", "one"], ["count_next"]),
    ]  # fmt: skip
    names = ("x", "rows", "out", "flag", "count")
    types = (FLOAT, FLOAT, FLOAT, BOOL, INT64)
    body = body_of(
        nodes, [value(n, None, t) for n, t in zip(names, types, strict=True)],
        [value("go_next", None, BOOL),
         *(value(f"{n}_next", None, t) for n, t in zip(names, types, strict=True)),
         value("most", [])],
    )  # fmt: skip
    constants = {
        "w": np.full((4, 4), 0.4, np.float32), "z": [0], "one": [1], "far": np.float32(50),
        "empty": np.zeros(9, np.float32), "zero": np.float32(0), "no": False, "none": 0,
        "trips": 9, "first": first,
    }  # fmt: skip
    loop = NODE(
        "Loop", ["trips", "first", "given", "empty", "zero", "no", "none"],
        ["x_last", "rows_last", "out_last", "flag_last", "count_last", "all"], body=body,
    )  # fmt: skip
    return model_of(
        [loop, NODE("Slice", ["out_last", "z", "count_last", "z"], ["y"])],
        [value("given", ["n", 4])], [value("y", ["m"]), value("all", ["k"])],
        [stored(name, x) for name, x in constants.items()],
    )  # fmt: skip


def test_the_first_iteration_may_change_types(widest: CpuBackend, compiled: list[Any]) -> None:
    model = expect_agreement(
        beginning_with_scalars(),
        *({"given": np.full((n, 4), x, np.float32)} for n, x in ((2, 1), (3, 40), (1, 0), (5, 9))),
    )
    count = len(compiled)
    for n, x in ((4, 2), (6, 30)):
        model.run({"given": np.full((n, 4), x, np.float32)})
    assert len(compiled) == count
    # Of no iteration there would be other types.
    with pytest.raises(GraphError, match="carried value"):
        import_model(beginning_with_scalars(first=False))


def test_extents_that_do_not_fit(widest: CpuBackend) -> None:
    nodes = [
        NODE("Concat", ["c", "c"], ["c_next"], axis=0),
        NODE("Add", ["c", "x"], ["sum"]),
        NODE("Identity", ["go"], ["go_next"]),
    ]
    outputs = [value("go_next", [], BOOL), value("c_next", ["p"]), value("sum", ["q"])]
    model = load(
        model_of(
            [
                NODE(
                    "Loop",
                    ["n", "", "x"],
                    ["last", "sums"],
                    body=body_of(nodes, [value("c", ["p"])], outputs),
                )
            ],
            [value("n", [], INT64), value("x", ["m"])],
            [value("last", ["p"]), value("sums", ["k", "q"])],
        )
    )
    model.run({"n": np.array(1), "x": floats(3)})
    with pytest.raises(ShapeError, match="Add node"):
        model.run({"n": np.array(2), "x": floats(3)})
