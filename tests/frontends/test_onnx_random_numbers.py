"""Operators of ONNX that draw random numbers: attributes, dtypes, seeds, loops, and bad input."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from tests.distributions import assert_independent, assert_normal, assert_other, assert_uniform

from ftuner.errors import FTunerError
from ftuner.inference import Model, load
from ftuner.runtime.specialization import SpecializedModel

NODE = helper.make_node
FLOAT, FLOAT16, DOUBLE, BFLOAT16 = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16,
)  # fmt: skip
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
X = np.zeros((150, 200), np.float32)


def seeded(model: Any) -> Model:
    return load(model, random_seed=11)


def model_of(
    nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str],
    opset: int = 18, **constants: Any,
) -> Any:  # fmt: skip
    infos = [helper.make_tensor_value_info(n, t, dims) for n, (t, dims) in inputs.items()]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", infos, results, stored)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def of_x(op: str, number: int = FLOAT, opset: int = 18, **attributes: Any) -> Any:
    """A model of one operator, of an `x` of an element type."""
    node = NODE(op, ["x"], ["y"], **attributes)
    return model_of([node], {"x": (number, ["n", "m"])}, ["y"], opset)


@pytest.mark.parametrize("opset", [9, 18, 22])
def test_normal(opset: int) -> None:
    model = seeded(of_x("RandomNormalLike", opset=opset, mean=-3.0, scale=0.5))
    assert_normal(model(x=X)["y"], -3.0, 0.5)
    assert model(x=X[:0])["y"].shape == (0, 200)
    assert_independent(model(x=X)["y"], model(x=X)["y"])


def test_uniform() -> None:
    found = seeded(of_x("RandomUniformLike", low=-1.0, high=3.0))(x=X)["y"]
    assert found.dtype == np.float32
    assert_uniform((found + 1) / 4)


@pytest.mark.parametrize(
    ("number", "dtype", "digits"), [(FLOAT16, "float16", 11), (FLOAT, "float32", 24),
                                    (DOUBLE, "float64", 53)],
)  # fmt: skip
def test_dtypes(number: int, dtype: str, digits: int) -> None:
    """By the attribute, else that of the operand, else float32; no number rounds up to 1."""
    for x, model in ((X, of_x("RandomUniformLike", dtype=number)),
                     (X.astype(dtype), of_x("RandomUniformLike", number))):  # fmt: skip
        found = seeded(model)(x=x)["y"]
        assert found.dtype == dtype
        assert found.max() < 1
        wide = found.astype(np.float64) * 2.0**digits
        np.testing.assert_array_equal(wide, np.floor(wide))
    for op, check in (("RandomNormal", assert_normal), ("RandomUniform", assert_uniform)):
        model = seeded(model_of([NODE(op, [], ["y"], shape=[300, 100], dtype=number)], {}, ["y"]))
        assert not model.inputs
        found = model()["y"]
        assert found.dtype == dtype
        if dtype != "float16":
            check(found)
    node = NODE("RandomNormal", [], ["y"])
    node.attribute.append(helper.make_attribute("shape", [], attr_type=AttributeProto.INTS))
    assert seeded(model_of([node], {}, ["y"]))()["y"].shape == ()


def test_integers_have_the_shape_alone() -> None:
    model = seeded(of_x("RandomNormalLike", INT64, dtype=FLOAT))
    assert_normal(model(x=X.astype(np.int64))["y"])


def test_bfloat16() -> None:
    model = seeded(of_x("RandomNormalLike", dtype=BFLOAT16, opset=22))
    assert_normal(model(x=X)["y"].astype(np.float32))


def test_nodes_without_a_seed_differ_and_those_of_one_are_alike() -> None:
    nodes = [
        NODE("RandomNormalLike", ["x"], ["a"]), NODE("RandomNormalLike", ["x"], ["b"]),
        NODE("RandomNormalLike", ["x"], ["c"], seed=2.0),
        NODE("RandomNormalLike", ["x"], ["d"], seed=2.0),
        NODE("RandomNormalLike", ["x"], ["e"], seed=2.5),
    ]  # fmt: skip
    given = model_of(nodes, {"x": (FLOAT, ["n", "m"])}, list("abcde"))
    model, again = load(given), load(given)
    runs = [model(x=X) for _ in range(3)]
    for found in runs:
        np.testing.assert_array_equal(found["c"], found["d"])
        for x, y in ("ab", "ac", "bc", "ce"):
            assert_other(found[x], found[y])
        # A new load begins the stream of a seed again.
        other = again(x=X)
        np.testing.assert_array_equal(found["c"], other["c"])
        assert_other(found["a"], other["a"])
    assert_independent(runs[0]["c"], runs[1]["c"])


def test_a_seed_of_the_model() -> None:
    given = of_x("RandomNormalLike")
    first, second, other = (load(given, random_seed=seed) for seed in (5, 5, 6))
    for _ in range(3):
        found = first(x=X)["y"]
        np.testing.assert_array_equal(found, second(x=X)["y"])
        assert_independent(found, other(x=X)["y"])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_bernoulli(dtype: str) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    p = np.repeat(np.array([0, 0.01, 0.3, 0.5, 0.99, 1, np.nan], dtype), 20_000)
    given = model_of([NODE("Bernoulli", ["p"], ["y"])], {"p": (number, ["n"])}, ["y"], 15)
    found = seeded(given)(p=p)["y"]
    assert found.dtype == dtype
    means = found.reshape(7, -1).astype(np.float64).mean(1)
    np.testing.assert_allclose(means[:-1], p[::20_000][:-1].astype(np.float64), 0, 0.015)
    assert means[0] == means[-1] == 0
    assert means[5] == 1
    given.graph.node[0].attribute.append(helper.make_attribute("dtype", BOOL))
    assert seeded(given)(p=p)["y"].dtype == bool


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_multinomial(dtype: str) -> None:
    """In the parts of the probabilities, never a class without any, whatever the largest is."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    count = 40_000
    p = np.array([[0.1, 0, 0.4, 0.5, 0], [0, 0, 0, 1, 0], [0.25, 0.25, 0.25, 0.125, 0.125]])
    with np.errstate(divide="ignore"):
        x = (np.log(p) + np.array([[0], [-700 if dtype != "float16" else -7], [30]])).astype(dtype)
    for to, name in ((INT32, "int32"), (INT64, "int64")):
        node = NODE("Multinomial", ["x"], ["y"], sample_size=count, dtype=to)
        model = seeded(model_of([node], {"x": (number, ["n", "m"])}, ["y"]))
        found = model(x=x)["y"]
        assert (found.dtype, found.shape) == (name, (3, count))
        parts = np.stack([np.bincount(row, minlength=5) for row in found]) / count
        np.testing.assert_allclose(parts, p, 0, 0.015)
        assert not parts[p == 0].any()
        assert model(x=x[:0])["y"].shape == (0, count)


def test_dropout_in_training() -> None:
    x = np.full((100, 300), 2, np.float32)
    inputs = {"x": (FLOAT, ["n", "m"])}
    node = NODE("Dropout", ["x", "ratio", "training"], ["y", "mask"])
    for ratio in (0.25, 0.9, 0.0, 1.0):
        model = seeded(model_of([node], inputs, ["y", "mask"], 13, ratio=np.float32(ratio),
                              training=np.array(True)))  # fmt: skip
        found, mask = model.run({"x": x})
        assert mask.dtype == bool
        assert mask.mean() == pytest.approx(1 - ratio, abs=0.01)
        kept = 2 / (1 - ratio) if ratio < 1 else 0
        np.testing.assert_allclose(found, np.where(mask, kept, 0), 1e-6)
    plain = NODE("Dropout", ["x", "", "training"], ["y"])
    found = seeded(model_of([plain], inputs, ["y"], 13, training=np.array(True)))(x=x)["y"]
    assert (found == 0).mean() == pytest.approx(0.5, abs=0.01)
    inputs |= {"training": (BOOL, []), "ratio": (FLOAT, [])}
    model = seeded(model_of([node], inputs, ["y", "mask"], 13))
    for training in (False, True, False):
        feeds = {"x": x, "training": np.array(training), "ratio": np.float32(0.5)}
        assert (model.run(feeds)[0] == x).all() != training
    drops = NODE("Dropout", ["x", "", "training"], ["y"], seed=-3)
    given = model_of([drops], {"x": inputs["x"]}, ["y"], 13, training=np.array(True))
    np.testing.assert_array_equal(load(given)(x=x)["y"], load(given)(x=x)["y"])


def body_of(nodes: list[Any]) -> Any:
    value = helper.make_tensor_value_info
    inputs = [value("i", INT64, []), value("go", BOOL, []), value("before", FLOAT, ["n", "m"])]
    outputs = [value("go", BOOL, []), value("after", FLOAT, ["n", "m"]),
               value("each", FLOAT, ["n", "m"])]  # fmt: skip
    return helper.make_graph(nodes, "body", inputs, outputs)


@pytest.mark.parametrize("trips", [3, 40])
@pytest.mark.parametrize("seed", [None, 1.0])
def test_each_iteration_draws_other_numbers(seed: float | None, trips: int) -> None:
    """Whether iterations are nodes of the graph or a graph that is compiled once, also where
    another loop repeats that."""
    attributes = {} if seed is None else {"seed": seed}
    body = body_of([
        NODE("RandomNormalLike", ["x"], ["each"], **attributes),
        NODE("Add", ["before", "each"], ["after"]),
    ])  # fmt: skip
    inputs = {"x": (FLOAT, ["n", "m"])}
    loop = NODE("Loop", ["trips", "", "x"], ["last", "all"], body=body)
    model = seeded(model_of([loop], inputs, ["last", "all"], trips=np.int64(trips)))
    x = X[:20, :50]
    last, every = model.run({"x": x})
    assert every.shape == (trips, 20, 50)
    np.testing.assert_allclose(last, every.sum(0), 1e-4, 1e-4)
    assert_normal(every)
    assert len(np.unique(every[:, 0, 0])) == trips
    assert_independent(every[0], every[1])
    again = model.run({"x": x})[1]
    assert_independent(every, again)
    outer = body_of([
        NODE("Loop", ["trips", "", "before"], ["after", "parts"], body=body),
        NODE("ReduceSum", ["parts", "first"], ["each"], keepdims=0),
    ])  # fmt: skip
    nested = NODE("Loop", ["trips", "", "x"], ["last", "all"], body=outer)
    given = model_of([nested], inputs, ["all"], trips=np.int64(trips), first=np.array([0]))
    every = seeded(given)(x=x)["all"]
    assert len(np.unique(every[:, 0, 0])) == trips


@pytest.mark.parametrize("seed", [None, 1.0])
def test_each_tensor_of_a_sequence_draws_other_numbers(seed: float | None) -> None:
    attributes = {} if seed is None else {"seed": seed}
    ends = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("row", "noise")]
    draws = NODE("RandomNormalLike", ["row"], ["noise"], **attributes)
    nodes = [
        NODE("SplitToSequence", ["x"], ["rows"], axis=0),
        NODE("SequenceMap", ["rows"], ["all"],
             body=helper.make_graph([draws], "body", ends[:1], ends[1:])),
        NODE("ConcatFromSequence", ["all"], ["y"], axis=0),
    ]  # fmt: skip
    model = seeded(model_of(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"]))
    found = model(x=X[:4])["y"]
    assert_normal(found)
    assert_independent(found[0], found[1])


@pytest.mark.parametrize("attributes", [{}, {"seed": 1.0}])
def test_iterations_draw_the_same_as_nodes_and_as_a_graph(attributes: dict[str, float]) -> None:
    """A constant number of three makes nodes of iterations, an input a graph that is repeated."""
    body = body_of([
        NODE("RandomNormalLike", ["x"], ["each"], **attributes),
        NODE("Add", ["before", "each"], ["after"]),
    ])  # fmt: skip
    nodes = [
        NODE("Loop", ["trips", "", "x"], ["last", "all"], body=body),
        NODE("RandomNormalLike", ["x"], ["other"], **attributes),
    ]
    inputs, outputs = {"x": (FLOAT, ["n", "m"])}, ["all", "other"]
    known = seeded(model_of(nodes, inputs, outputs, trips=np.int64(3)))
    given = seeded(model_of(nodes, {**inputs, "trips": (INT64, [])}, outputs))
    x = X[:20, :50]
    wanted = known.run({"x": x})
    for found, y in zip(given.run({"x": x, "trips": np.int64(3)}), wanted, strict=True):
        np.testing.assert_array_equal(found, y)
    assert_independent(wanted[1], wanted[0][0])


def test_branches_draw() -> None:
    def branch(name: str, mean: float) -> Any:
        node = NODE("RandomNormalLike", ["x"], [name], mean=mean)
        return helper.make_graph([node], name, [], [helper.make_empty_tensor_value_info(name)])

    nodes = [
        NODE("RandomUniform", [], ["u"], shape=[1]), NODE("Less", ["u", "half"], ["holds"]),
        NODE("If", ["holds"], ["y"], then_branch=branch("a", 10.0), else_branch=branch("b", -10.0)),
    ]  # fmt: skip
    model = seeded(
        model_of(nodes, {"x": (FLOAT, ["n", "m"])}, ["u", "y"], half=np.array([0.5], "f"))
    )
    assert isinstance(model, SpecializedModel)
    seen = set()
    for _ in range(40):
        # The condition that chose the branch is that of the same run.
        found = model(x=X)
        holds = bool(found["u"][0] < 0.5)
        seen.add(holds)
        assert found["y"].mean() == pytest.approx(10.0 if holds else -10.0, abs=0.1)
    assert seen == {True, False}


def test_extents_that_are_drawn() -> None:
    """As many elements as a number of the run says, then as data says."""
    nodes = [
        NODE("RandomUniform", [], ["u"], shape=[1], low=2.0, high=9.0),
        NODE("Cast", ["u"], ["count"], to=INT64), NODE("ConstantOfShape", ["count"], ["zeros"]),
        NODE("RandomNormalLike", ["zeros"], ["noise"]), NODE("Less", ["zeros", "noise"], ["above"]),
        NODE("NonZero", ["above"], ["at"]),
    ]  # fmt: skip
    model = seeded(model_of(nodes, {}, ["count", "noise", "at"]))
    counts = set()
    for _ in range(150):
        count, drawn, at = model.run({})
        assert drawn.shape == tuple(count)
        np.testing.assert_array_equal(at[0], np.flatnonzero(drawn > 0))
        counts.add(int(count[0]))
    assert counts == set(range(2, 9))


def test_explaining_leaves_the_numbers_of_later_runs() -> None:
    """Also where the explained graph depends on numbers of the run."""
    nodes = [
        NODE("RandomUniform", [], ["u"], shape=[1], low=2.0, high=9.0),
        NODE("Cast", ["u"], ["count"], to=INT64), NODE("ConstantOfShape", ["count"], ["zeros"]),
        NODE("Add", ["x", "zeros"], ["y"]),
    ]  # fmt: skip
    given = model_of(nodes, {"x": (FLOAT, [1])}, ["u", "y"])
    model, again = seeded(given), seeded(given)
    assert isinstance(model, SpecializedModel)
    for _ in range(5):
        model.explain(x=X[0, :1])
        np.testing.assert_array_equal(model(x=X[0, :1])["u"], again(x=X[0, :1])["u"])


def test_as_onnxruntime_where_nothing_is_left_to_chance() -> None:
    nodes = [
        NODE("RandomNormalLike", ["x"], ["noise"]), NODE("Mul", ["noise", "none"], ["nothing"]),
        NODE("Add", ["x", "nothing"], ["a"]),
        NODE("Multinomial", ["rows"], ["b"], sample_size=7),
    ]  # fmt: skip
    given = model_of(nodes, {"x": (FLOAT, ["n", "m"])}, list("ab"), none=np.float32(0),
                     rows=np.array([[-99, 50, -99]], "f"))  # fmt: skip
    peer = onnxruntime.InferenceSession(given.SerializeToString())
    x = np.random.default_rng(0).standard_normal((5, 9), np.float32)
    for found, wanted in zip(seeded(given).run({"x": x}), peer.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype


def test_no_width_and_no_scale() -> None:
    nodes = [NODE("RandomNormal", [], ["a"], mean=2.0, scale=0.0, shape=[3, 2]),
             NODE("RandomUniform", [], ["b"], low=2.5, high=2.5, shape=[4])]  # fmt: skip
    found = seeded(model_of(nodes, {}, ["a", "b"]))()
    np.testing.assert_array_equal(found["a"], np.full((3, 2), 2.0))
    np.testing.assert_array_equal(found["b"], np.full(4, 2.5))


BAD = {
    "integers": (of_x("RandomNormalLike", dtype=INT64), "random numbers of int64"),
    "like integers": (of_x("RandomUniformLike", INT64), "random numbers of int64"),
    "no dtype": (of_x("RandomNormalLike", dtype=99), "attribute dtype.*99"),
    "no width": (of_x("RandomUniformLike", low=-3e38, high=float("inf")), "attribute high is inf"),
    "a width beyond float32": (of_x("RandomUniformLike", low=-3e38, high=3e38), "from -3.*to 3"),
    "no shape": (model_of([NODE("RandomNormal", [], ["y"])], {}, ["y"]), "shape"),
    "a negative shape": (
        model_of([NODE("RandomNormal", [], ["y"], shape=[2, -1])], {}, ["y"]), r"shape is \[2, -1]"
    ),
    "no samples": (of_x("Multinomial", sample_size=0), "0 samples of"),
    "samples of integers": (of_x("Multinomial", INT64), "1 samples of"),
    "floats as samples": (of_x("Multinomial", dtype=FLOAT), "as float32"),
    "integers as probabilities": (of_x("Bernoulli", INT64), "probabilities int64"),
    "a text as a seed": (of_x("RandomNormalLike", seed="soon"), "seed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    model, message = BAD[name]
    with pytest.raises(FTunerError) as caught:
        load(model)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_seeds_of_any_kind() -> None:
    for seed in (float("nan"), float("inf"), -0.0, 0.0):
        model: Model = seeded(of_x("RandomNormalLike", seed=seed))
        assert_normal(model(x=X)["y"])
