"""Axes that a file names alike and that differ, and inputs without a shape, beside onnxruntime."""

import logging
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx_models import parsed

import ftuner
from ftuner.core.dtype import FLOAT32
from ftuner.errors import GraphError, InputError, ShapeError
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph
from ftuner.ort import InferenceSession
from ftuner.runtime import chosen_model, specialization
from ftuner.runtime.variants import MAX_REFUSED, variants_of_extents

onnxruntime = pytest.importorskip("onnxruntime")
Feeds = dict[str, Any]


def model_of(inputs: str, nodes: str, y: str = "float[] y", **weights: Any) -> bytes:
    return parsed(f"({inputs}) => ({y}) {{ {nodes} }}", 17, **weights).SerializeToString()


def feeds_of(**shapes: Sequence[int]) -> Feeds:
    """Arrays of such shapes; i is a number itself."""
    rng = np.random.default_rng(0)
    return {
        name: np.array(shape, np.int64) if name == "i" else rng.standard_normal(shape, np.float32)
        for name, shape in shapes.items()
    }


def appended(dims: str) -> bytes:
    joined = "y = Concat<axis=1>(past, x)"
    return model_of(f"float[{dims}] past, float[{dims}] x", joined, f"float[{dims}] y")


def inner(y: str) -> str:
    """A graph within a node, which adds two values around it, and declares wrong extents."""
    return f"""inner () => (float[n, n] {y}) <float[n] s> {{
        s = ReduceSum<keepdims=0>(b)
        {y} = Add(a, s)
    }}"""


ONES = np.ones(3, "f")
WEIGHT = np.random.default_rng(1).standard_normal((4, 5), np.float32)
# fmt: off
CASES: dict[str, tuple[bytes, list[Feeds]]] = {
    "past and new tokens": (appended("b, s, 4"), [
        feeds_of(past=(1, 5, 4), x=(1, 1, 4)), feeds_of(past=(2, 3, 4), x=(2, 3, 4)),
        feeds_of(past=(2, 0, 4), x=(2, 7, 4)),
    ]),
    "one input": (model_of("float[n, n, 4] x", "y = MatMul(x, w)", w=WEIGHT), [
        feeds_of(x=(2, 3, 4)), feeds_of(x=(3, 3, 4)), feeds_of(x=(1, 6, 4)),
    ]),
    "an input that nothing reads": (
        model_of("float[n, 4] x, int64[n] i", "y = Relu(x)"),
        [feeds_of(x=(3, 4), i=(1, 2, 3)), feeds_of(x=(3, 4), i=(1,))],
    ),
    "broadcast": (
        model_of("float[n, m] a, float[n, m] b", "y = Add(a, b)", "float[n, m] y"),
        [feeds_of(a=(3, 5), b=(3, 1)), feeds_of(a=(1, 5), b=(3, 5)), feeds_of(a=(3, 1), b=(1, 5))],
    ),
    "names that are no identifiers": (
        model_of('float["a b", "c/ü"] a, float["a b", a_b] b', "y = MatMul(a, b)",
                 'float["", n] y'),
        [feeds_of(a=(2, 3), b=(3, 4)), feeds_of(a=(3, 3), b=(3, 3))],
    ),
    "a shape that is an input": (
        model_of("float[n, 6] x, int64[n] i, float[k, 3] a",
                 "r = Reshape(x, i) y = Concat<axis=0>(r, a)"),
        [feeds_of(x=(4, 6), i=(8, 3), a=(2, 3)), feeds_of(x=(2, 6), i=(4, 3), a=(5, 3))],
    ),
    "an extent that data decides": (
        model_of("float[n] a, float[n] b",
                 "z = NonZero(a) f = Cast<to=1>(z) s = ReduceSum<keepdims=0>(f) y = Add(b, s)"),
        [feeds_of(a=(4,), b=(2,)), feeds_of(a=(3,), b=(3,))],
    ),
    "graphs within a node": (
        model_of("float[n, n] a, float[n] b",
                 f"""m = ReduceMax<keepdims=0>(a)
                     c = Cast<to=9>(m)
                     y = If(c) <then_branch = {inner("t")}, else_branch = {inner("e")}>""",
                 "float[n, n] y"),
        [feeds_of(a=(2, 3), b=(5,)), {"a": np.zeros((4, 2), "f"), "b": np.ones(3, "f")}],
    ),
    "a difference of names": (  # Of extents that are equal, no element could be gathered.
        model_of("float[n] a, float[n] b",
                 """m = Shape(a)
                    n = Shape(b)
                    d = Sub(m, n)
                    s = Slice(a, zero, d)
                    y = Gather(s, zero)""",
                 zero=[0]),
        [feeds_of(a=(6,), b=(4,)), feeds_of(a=(5,), b=(4,))],
    ),
    "no shape": (
        model_of("float[] x", "h = MatMul(x, w) y = Relu(h)", w=WEIGHT),
        [feeds_of(x=(3, 4)), feeds_of(x=(2, 3, 4)), feeds_of(x=(4,)), feeds_of(x=(0, 4))],
    ),
    "no shapes and names": (
        model_of("float[] a, float[n, 4] b, float[n, 4] x",
                 "s = Add(a, b) y = Concat<axis=0>(s, x)"),
        [feeds_of(a=(3, 4), b=(3, 4), x=(3, 4)), feeds_of(a=(4,), b=(3, 4), x=(5, 4)),
         feeds_of(a=(), b=(2, 4), x=(2, 4))],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_onnxruntime(name: str) -> None:
    data, calls = CASES[name]
    own, other = ftuner.load(data, threads=1), onnxruntime.InferenceSession(data)
    session = InferenceSession(data)
    for feeds in calls * 2:
        (wanted,) = other.run(None, feeds)
        for (found,) in (own.run(feeds), session.run(None, feeds), own(**feeds).values()):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_variant_is_compiled_once_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = ftuner.load(appended("b, s, 4"), threads=1)
    caplog.set_level(logging.INFO, "ftuner")
    for count in (1, 3, 2, 5):
        model.run(feeds_of(past=(2, count, 4), x=(2, 3, 4)))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "axes that the file names alike differ (s)" in record.message
    caplog.clear()
    model = ftuner.load(CASES["no shape"][0], threads=1)
    for shape in ((3, 4), (4,), (5, 4), (1,), (4,)):
        if shape[-1] == 4:
            model.run(feeds_of(x=shape))
    assert [r.message for r in caplog.records] == [
        f"x has {axes}: compiled for such inputs" for axes in ("2 axes", "1 axis")
    ]


def test_the_bits_of_a_call_do_not_depend_on_earlier_ones() -> None:
    data = model_of("float[n, n] a, float[n, k] b", "y = MatMul(a, b)")
    same, other = feeds_of(a=(33, 33), b=(33, 7)), feeds_of(a=(5, 33), b=(33, 7))
    first, second = ftuner.load(data, threads=1), ftuner.load(data, threads=1)
    (wanted,) = first.run(same)
    second.run(other)
    assert second.run(same)[0].tobytes() == wanted.tobytes()


def test_random_numbers_go_on() -> None:
    """The n-th run draws the same numbers, whichever variant it runs."""
    nodes = "r = RandomNormalLike(a) s = ReduceSum(b) y = Add(r, s)"
    data = model_of("float[n, 4] a, float[n, 4] b", nodes)
    models = [ftuner.load(data, threads=1, random_seed=3) for _ in range(2)]
    same, other = ({"a": np.zeros((3, 4), "f"), "b": np.zeros((n, 4), "f")} for n in (3, 2))
    first = [models[0].run(feeds)[0].tobytes() for feeds in (same, other, same)]
    assert [models[1].run(feeds)[0].tobytes() for feeds in (other, same, same)] == first


def test_mistakes_are_refused_before_anything_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    model = ftuner.load(CASES["broadcast"][0], threads=1)
    caplog.set_level(logging.INFO, "ftuner")
    for _ in range(2):
        with pytest.raises(
            ShapeError, match=r"n is 3 elsewhere; .*have the shapes \(3, 5\) and \(2, 5\)"
        ):
            model.run(feeds_of(a=(3, 5), b=(2, 5)))
    assert not caplog.records
    fixed = ftuner.load(model_of("float[1, 3, n, n] x", "y = Relu(x)"), threads=1)
    with pytest.raises(ShapeError, match=r"given \(2, 3, 4, 5\)"):
        fixed.run(feeds_of(x=(2, 3, 4, 5)))
    for feeds, text in (
        ({}, "missing: x"),
        ({"x": None}, "x is a NoneType"),
        ({"x": np.ones((2, 4))}, "dtype float64"),
        ([np.ones(4)], "a list; expected a mapping from names, x, to arrays"),
    ):
        with pytest.raises(InputError, match=text):
            ftuner.load(CASES["no shape"][0], threads=1).run(feeds)  # type: ignore[arg-type]


def test_what_is_changed_after_it_was_loaded(tmp_path: Path) -> None:
    """A variant is of the model that was loaded, or there is none."""
    path, feeds = tmp_path / "model.onnx", feeds_of(past=(1, 2, 4), x=(1, 1, 4))
    path.write_bytes(appended("b, s, 4"))
    proto = onnx.load(path)
    by_message, gone, changed = (ftuner.load(source, threads=1) for source in (proto, path, path))
    del proto.graph.node[:]
    assert by_message.run(feeds)[0].shape == (1, 3, 4)
    path.write_bytes(appended("b, s, n"))
    with pytest.raises(ShapeError, match="s is 2 elsewhere; the model's file has changed"):
        changed.run(feeds)
    path.unlink()
    with pytest.raises(ShapeError, match=r"s is 2 elsewhere; cannot read .*no such file"):
        gone.run(feeds)


def test_a_file_without_shapes_may_be_gone(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(CASES["no shape"][0])
    model = ftuner.load(path, threads=1)
    copy = pickle.loads(pickle.dumps(model))
    path.unlink()
    for found in (model, copy):
        assert found.run(feeds_of(x=(2, 3, 4)))[0].shape == (2, 3, 5)


def test_several_threads_compile_a_variant_once(caplog: pytest.LogCaptureFixture) -> None:
    model = ftuner.load(CASES["no shape"][0], threads=1)
    caplog.set_level(logging.INFO, "ftuner")
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda n: model.run(feeds_of(x=(n, 4)))[0].shape, range(1, 9))]
    assert results == [(n, 5) for n in range(1, 9)]
    assert len(caplog.records) == 1


def test_what_models_say_of_themselves() -> None:
    named = ftuner.load(appended("b, s, 4"), threads=1)
    shapes = {"past": (1, 5, 4), "x": (1, 1, 4)}
    assert [str(spec) for spec in named.inputs] == ["past: float32[b, s, 4]", "x: float32[b, s, 4]"]
    assert "past=1x5x4, x=1x1x4" in named.explain(shapes).title
    assert len(named.explain(feeds_of(**shapes)).groups) == len(
        named.step_seconds(feeds_of(**shapes))
    )
    assert named.memory(feeds_of(**shapes)).outputs_bytes == 6 * 4 * 4
    unranked = ftuner.load(CASES["no shape"][0], threads=1)
    assert isinstance(unranked, chosen_model.UnrankedModel)
    assert (unranked.threads, unranked.steps, unranked.appended) == (1, (), {})
    assert unranked.summary() == "x: float32[...] -> y: float32[...]; 0 steps"
    assert [g.title for g in unranked.explain(x=(2, 3, 4)).groups] == ["matmul + maximum"]
    unranked.run(feeds_of(x=(3, 4)))
    assert len(unranked.explain().groups) == len(unranked.steps) == 1
    with pytest.raises(InputError, match="no input z; there are x"):
        unranked.explain(x=(3, 4), z=(1,))
    with pytest.raises(InputError, match="x has no shape in the file; give one"):
        unranked.explain(z=(1,))
    late = ftuner.load(CASES["a shape that is an input"][0], threads=1)
    assert isinstance(late, specialization.SpecializedModel)
    assert late.explain(feeds_of(x=(4, 6), i=(8, 3), a=(2, 3))).groups


def test_appending_in_place() -> None:
    """A past and new tokens whose axes have one name."""
    nodes = "y = Concat<axis=2>(past, x) z = ReduceSum(y)"
    dims = "float[1, 2, s, 4]"
    model = model_of(f"{dims} past, {dims} x", nodes, f"{dims} y, float[] z")
    own = ftuner.load(model, threads=1, append_in_place=True)
    past, wanted = np.ones((1, 2, 3, 4), "f"), np.ones((1, 2, 3, 4), "f")
    places = set()
    for number in range(4):
        new = np.full((1, 2, 1, 4), number, "f")
        past, _ = own.run({"past": past, "x": new})
        wanted = np.concatenate([wanted, new], 2)
        np.testing.assert_array_equal(past, wanted)
        places.add(past.ctypes.data)
    assert len(places) == 1


def declared(session: Any) -> Iterator[list[Any]]:
    for found in (
        session.get_inputs(),
        session.get_outputs(),
        session.get_overridable_initializers(),
    ):
        yield [(arg.name, arg.type, arg.shape) for arg in found]


@pytest.mark.parametrize(
    "dims", [("?", "?"), ("None", 3), ("-1", "-1"), ("", None), ("a b", "ü/c"), (), None], ids=str
)
def test_names_are_shown_as_the_file_has_them(dims: Any) -> None:
    model = parsed("(float x, float[] w) => (float y) { y = Relu(x) unread = Relu(w) }", 17, w=ONES)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, dims))
    data = model.SerializeToString()
    own, other = InferenceSession(data), onnxruntime.InferenceSession(data)
    assert [*declared(own)] == [*declared(other)]


def test_an_initialiser_without_a_shape_may_be_overridden_with_any() -> None:
    data = model_of("float[n, 3] x, float[] w", "y = Add(x, w)", w=ONES)
    own, other = InferenceSession(data), onnxruntime.InferenceSession(data)
    for shape in ((3,), (2, 1), (1, 2, 3), ()):
        feeds = feeds_of(x=(2, 3), w=shape)
        np.testing.assert_array_equal(own.run(None, feeds)[0], other.run(None, feeds)[0])


def test_scalars_are_arrays_of_one_element() -> None:
    """Such as the rate of silero's detector of voices, which programs give as an array."""
    data = model_of("float[n] x, int64 i", "f = Cast<to=1>(i) y = Div(x, f)")
    own, session, x = ftuner.load(data, threads=1), InferenceSession(data), np.ones(3, "f")
    for rate in (np.array(8), np.array([8]), np.array([[8]]), np.int64(8)):
        assert own.run({"x": x, "i": rate})[0].tolist() == [0.125] * 3
    assert session.run(None, {"x": x, "i": [8]})[0].tolist() == [0.125] * 3
    assert own.explain(x=x, i=np.array([8])).groups
    with pytest.raises(InputError, match=r"i is \(2,\); the model takes int64\[\]"):
        own.run({"x": x, "i": np.array([8, 8])})


def test_shapes_that_contradict_stop_no_other_ones() -> None:
    """A program that cannot be traced is tried a few times, for inputs with equal axes anew."""
    tried: list[int] = []

    def graph_of(rows: int) -> Graph:
        builder = Builder()
        given = [builder.input(name, FLOAT32, (rows, 2)) for name in ("x", "y")]
        with builder.writing():
            return builder.graph(given, [("z", given[0] + given[1])])

    def made(shapes: Any) -> tuple[Graph, str]:
        x, y = (shapes[name][0] for name in ("x", "y"))
        tried.append(x)
        if x != y:
            raise GraphError(f"{x} rows and {y}")
        return graph_of(x), f"of {x}"

    variants = variants_of_extents(graph_of(3), made)
    assert variants.of({"x": (3, 2), "y": (3, 2)}) is None
    for rows in range(10, 30):
        with pytest.raises(ShapeError, match="no program for x"):
            variants.of({"x": (rows, 2), "y": (5, 2)})
    assert len(tried) == MAX_REFUSED
    assert variants.of({"x": (7, 2), "y": (7, 2)}) == "of 7"
