"""Operators of ONNX that draw random numbers: attributes, dtypes, seeds, loops, and bad input."""

import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.distributions import assert_independent, assert_normal, assert_other, assert_uniform
from tests.frontends.onnx_models import parsed

from ftuner.errors import FTunerError
from ftuner.inference import Model, load
from ftuner.runtime.specialization import SpecializedModel

onnxruntime = pytest.importorskip("onnxruntime")

FLOAT, BFLOAT16 = TensorProto.FLOAT, TensorProto.BFLOAT16
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
GIVEN = "float[n, m] x"
NAMES = {"float32": "float", "float64": "double", "float16": "float16"}
"""Of ONNX."""
X = np.zeros((150, 200), np.float32)


def seeded(model: Any) -> Model:
    return load(model, random_seed=11)


def of_x(op: str, x: str = "float", opset: int = 18, **attributes: Any) -> Any:
    """A model of one operator, of an `x` of an element type."""
    model = parsed(f"({x}[n, m] x) => (y) {{ y = {op}(x) }}", opset)
    model.graph.node[0].attribute.extend(helper.make_attribute(*a) for a in attributes.items())
    return model


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


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("float32", 24), ("float64", 53)])
def test_dtypes(dtype: str, digits: int) -> None:
    """By the attribute, else that of the operand, else float32; no number rounds up to 1."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for x, model in ((X, of_x("RandomUniformLike", dtype=number)),
                     (X.astype(dtype), of_x("RandomUniformLike", NAMES[dtype]))):  # fmt: skip
        found = seeded(model)(x=x)["y"]
        assert found.dtype == dtype
        assert found.max() < 1
        wide = found.astype(np.float64) * 2.0**digits
        np.testing.assert_array_equal(wide, np.floor(wide))
    for op, check in (("RandomNormal", assert_normal), ("RandomUniform", assert_uniform)):
        node = f"y = {op}<shape=[300, 100], dtype={number}>()"
        model = seeded(parsed(f"() => (y) {{ {node} }}"))
        assert not model.inputs
        found = model()["y"]
        assert found.dtype == dtype
        if dtype != "float16":
            check(found)
    scalar = parsed("() => (y) { y = RandomNormal<shape: ints = []>() }")
    assert seeded(scalar)()["y"].shape == ()


def test_integers_have_the_shape_alone() -> None:
    model = seeded(of_x("RandomNormalLike", "int64", dtype=FLOAT))
    assert_normal(model(x=X.astype(np.int64))["y"])


def test_bfloat16() -> None:
    model = seeded(of_x("RandomNormalLike", dtype=BFLOAT16, opset=22))
    assert_normal(model(x=X)["y"].astype(np.float32))


def test_nodes_without_a_seed_differ_and_those_of_one_are_alike() -> None:
    given = parsed("""(float[n, m] x) => (a, b, c, d, e) {
        a = RandomNormalLike(x)
        b = RandomNormalLike(x)
        c = RandomNormalLike<seed=2.0>(x)
        d = RandomNormalLike<seed=2.0>(x)
        e = RandomNormalLike<seed=2.5>(x)
    }""")
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
    p = np.repeat(np.array([0, 0.01, 0.3, 0.5, 0.99, 1, np.nan], dtype), 20_000)
    given = parsed(f"({NAMES[dtype]}[n] p) => (y) {{ y = Bernoulli(p) }}", 15)
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
    count = 40_000
    p = np.array([[0.1, 0, 0.4, 0.5, 0], [0, 0, 0, 1, 0], [0.25, 0.25, 0.25, 0.125, 0.125]])
    with np.errstate(divide="ignore"):
        x = (np.log(p) + np.array([[0], [-700 if dtype != "float16" else -7], [30]])).astype(dtype)
    for to, name in ((INT32, "int32"), (INT64, "int64")):
        model = seeded(of_x("Multinomial", NAMES[dtype], sample_size=count, dtype=to))
        found = model(x=x)["y"]
        assert (found.dtype, found.shape) == (name, (3, count))
        parts = np.stack([np.bincount(row, minlength=5) for row in found]) / count
        np.testing.assert_allclose(parts, p, 0, 0.015)
        assert not parts[p == 0].any()
        assert model(x=x[:0])["y"].shape == (0, count)


def test_dropout_in_training() -> None:
    x = np.full((100, 300), 2, np.float32)
    node = "y, mask = Dropout(x, ratio, training)"
    text = f"({GIVEN}) => (y, mask) <bool training = {{1}}> {{ {node} }}"
    for ratio in (0.25, 0.9, 0.0, 1.0):
        model = seeded(parsed(text, 13, ratio=np.float32(ratio)))
        found, mask = model.run({"x": x})
        assert mask.dtype == bool
        assert mask.mean() == pytest.approx(1 - ratio, abs=0.01)
        kept = 2 / (1 - ratio) if ratio < 1 else 0
        np.testing.assert_allclose(found, np.where(mask, kept, 0), 1e-6)
    plain = f'({GIVEN}) => (y) <bool training = {{1}}> {{ y = Dropout(x, "", training) }}'
    found = seeded(parsed(plain, 13))(x=x)["y"]
    assert (found == 0).mean() == pytest.approx(0.5, abs=0.01)
    inputs = f"{GIVEN}, bool training, float ratio"
    model = seeded(parsed(f"({inputs}) => (y, mask) {{ {node} }}", 13))
    for training in (False, True, False):
        feeds = {"x": x, "training": np.array(training), "ratio": np.float32(0.5)}
        assert (model.run(feeds)[0] == x).all() != training
    given = parsed(plain.replace("Dropout", "Dropout<seed=-3>"), 13)
    np.testing.assert_array_equal(load(given)(x=x)["y"], load(given)(x=x)["y"])


def noisy(seed: float | None) -> str:
    return "RandomNormalLike(x)" if seed is None else f"RandomNormalLike<seed={seed}>(x)"


def body_of(nodes: str) -> str:
    return f"""body (int64 i, bool go, float[n, m] before)
            => (bool go, float[n, m] after, float[n, m] each) {{ {nodes} }}"""


def drawing(seed: float | None) -> str:
    return body_of(f"each = {noisy(seed)} after = Add(before, each)")


@pytest.mark.parametrize("trips", [3, 40])
@pytest.mark.parametrize("seed", [None, 1.0])
def test_each_iteration_draws_other_numbers(seed: float | None, trips: int) -> None:
    """Whether iterations are nodes of the graph or a graph that is compiled once, also where
    another loop repeats that."""
    text = f"""({GIVEN}) => (last, all) {{
        last, all = Loop(trips, "", x) <body = {drawing(seed)}>
    }}"""
    model = seeded(parsed(text, trips=np.int64(trips)))
    x = X[:20, :50]
    last, every = model.run({"x": x})
    assert every.shape == (trips, 20, 50)
    np.testing.assert_allclose(last, every.sum(0), 1e-4, 1e-4)
    assert_normal(every)
    assert len(np.unique(every[:, 0, 0])) == trips
    assert_independent(every[0], every[1])
    again = model.run({"x": x})[1]
    assert_independent(every, again)
    outer = body_of(f"""after, parts = Loop(trips, "", before) <body = {drawing(seed)}>
        each = ReduceSum<keepdims=0>(parts, first)""")
    text = f"""({GIVEN}) => (all) <int64[1] first = {{0}}> {{
        last, all = Loop(trips, "", x) <body = {outer}>
    }}"""
    given = parsed(text, trips=np.int64(trips))
    every = seeded(given)(x=x)["all"]
    assert len(np.unique(every[:, 0, 0])) == trips


@pytest.mark.parametrize("seed", [None, 1.0])
def test_each_tensor_of_a_sequence_draws_other_numbers(seed: float | None) -> None:
    model = seeded(parsed(f"""({GIVEN}) => (y) {{
        rows = SplitToSequence<axis=0>(x)
        all = SequenceMap(rows) <body = body (float[] row) => (float[] noise) {{
            noise = {noisy(seed).replace("(x)", "(row)")}
        }}>
        y = ConcatFromSequence<axis=0>(all)
    }}"""))  # fmt: skip
    found = model(x=X[:4])["y"]
    assert_normal(found)
    assert_independent(found[0], found[1])


@pytest.mark.parametrize("seed", [None, 1.0])
def test_iterations_draw_the_same_as_nodes_and_as_a_graph(seed: float | None) -> None:
    """A constant number of three makes nodes of iterations, an input a graph that is repeated."""
    nodes = f"""last, all = Loop(trips, "", x) <body = {drawing(seed)}>
        other = {noisy(seed)}"""
    known = seeded(parsed(f"({GIVEN}) => (all, other) {{ {nodes} }}", trips=np.int64(3)))
    given = seeded(parsed(f"({GIVEN}, int64 trips) => (all, other) {{ {nodes} }}"))
    x = X[:20, :50]
    wanted = known.run({"x": x})
    for found, y in zip(given.run({"x": x, "trips": np.int64(3)}), wanted, strict=True):
        np.testing.assert_array_equal(found, y)
    assert_independent(wanted[1], wanted[0][0])


def test_branches_draw() -> None:
    model = seeded(parsed("""(float[n, m] x) => (u, y) <float[1] half = {0.5}> {
        u = RandomUniform<shape=[1]>()
        holds = Less(u, half)
        y = If(holds) <then_branch = a () => (a) { a = RandomNormalLike<mean=10.0>(x) },
                       else_branch = b () => (b) { b = RandomNormalLike<mean=-10.0>(x) }>
    }"""))  # fmt: skip
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
    model = seeded(parsed("""() => (count, noise, at) {
        u = RandomUniform<shape=[1], low=2.0, high=9.0>()
        count = Cast<to=7>(u)
        zeros = ConstantOfShape(count)
        noise = RandomNormalLike(zeros)
        above = Less(zeros, noise)
        at = NonZero(above)
    }"""))  # fmt: skip
    counts = set()
    for _ in range(150):
        count, drawn, at = model.run({})
        assert drawn.shape == tuple(count)
        np.testing.assert_array_equal(at[0], np.flatnonzero(drawn > 0))
        counts.add(int(count[0]))
    assert counts == set(range(2, 9))


def test_explaining_leaves_the_numbers_of_later_runs() -> None:
    """Also where the explained graph depends on numbers of the run."""
    given = parsed("""(float[1] x) => (u, y) {
        u = RandomUniform<shape=[1], low=2.0, high=9.0>()
        count = Cast<to=7>(u)
        zeros = ConstantOfShape(count)
        y = Add(x, zeros)
    }""")
    model, again = seeded(given), seeded(given)
    assert isinstance(model, SpecializedModel)
    for _ in range(5):
        model.explain(x=X[0, :1])
        np.testing.assert_array_equal(model(x=X[0, :1])["u"], again(x=X[0, :1])["u"])


def test_as_onnxruntime_where_nothing_is_left_to_chance() -> None:
    given = parsed("""(float[n, m] x) => (a, b)
            <float none = {0}, float[1, 3] rows = {-99, 50, -99}> {
        noise = RandomNormalLike(x)
        nothing = Mul(noise, none)
        a = Add(x, nothing)
        b = Multinomial<sample_size=7>(rows)
    }""")
    peer = onnxruntime.InferenceSession(given.SerializeToString())
    x = np.random.default_rng(0).standard_normal((5, 9), np.float32)
    for found, wanted in zip(seeded(given).run({"x": x}), peer.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype


def test_no_width_and_no_scale() -> None:
    found = seeded(parsed("""() => (a, b) {
        a = RandomNormal<mean=2.0, scale=0.0, shape=[3, 2]>()
        b = RandomUniform<low=2.5, high=2.5, shape=[4]>()
    }"""))()  # fmt: skip
    np.testing.assert_array_equal(found["a"], np.full((3, 2), 2.0))
    np.testing.assert_array_equal(found["b"], np.full(4, 2.5))


BAD = {
    "integers": (of_x("RandomNormalLike", dtype=INT64), "dtype is int64; expected floats"),
    "like integers": (of_x("RandomUniformLike", "int64"), "random numbers of int64"),
    "no dtype": (of_x("RandomNormalLike", dtype=99), "attribute dtype.*99"),
    "no width": (of_x("RandomUniformLike", low=-3e38, high=float("inf")), "attribute high is inf"),
    "a width beyond float32": (of_x("RandomUniformLike", low=-3e38, high=3e38), "from -3.*to 3"),
    "no shape": (parsed("() => (y) { y = RandomNormal() }"), "shape"),
    "a negative shape": (
        parsed("() => (y) { y = RandomNormal<shape=[2, -1]>() }"), r"shape is \[2, -1]"
    ),
    "no samples": (of_x("Multinomial", sample_size=0), "0 samples of"),
    "samples of integers": (of_x("Multinomial", "int64"), "input 0 is of int64"),
    "floats as samples": (of_x("Multinomial", dtype=FLOAT), "as float32"),
    "integers as probabilities": (of_x("Bernoulli", "int64"), "input 0 is of int64"),
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
