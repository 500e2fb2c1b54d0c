"""Files whose shapes, axes, repeats and conditions are inputs, or are computed from data."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

from ftuner.errors import FTunerError, GraphError, InputError, ShapeError
from ftuner.inference import load
from ftuner.ort import InferenceSession
from ftuner.runtime.model import Model
from ftuner.runtime.specialization import SpecializedModel

onnxruntime = pytest.importorskip("onnxruntime")

Feeds = dict[str, Any]
X = np.arange(2 * 3 * 5 * 7, dtype=np.float32).reshape(2, 3, 5, 7)
FAR = 2**63 - 1


def int64s(*values: int) -> Any:
    return np.array(values, np.int64)


def model_of(inputs: str, nodes: str, y: str = "float[?, ?, ?, ?] y", **constants: Any) -> bytes:
    return parsed(f"({inputs}) => ({y}) {{ {nodes} }}", 17, **constants).SerializeToString()


FREE = "float[a, b, c, d] x"
# fmt: off
CASES: dict[str, tuple[bytes, list[Feeds]]] = {
    "reshape": (
        model_of(f"{FREE}, int64[3] shape", "y = Reshape(x, shape)", "float[?, ?, ?] y"),
        [{"shape": int64s(*s)} for s in ((6, 5, 7), (10, 3, 7), (0, 3, 35), (-1, 7, 5))],
    ),
    "reshape by as many axes as come": (
        model_of(f"{FREE}, int64[n] shape", "y = Reshape(x, shape)", "float[] y"),
        [{"shape": int64s(*s)} for s in ((210,), (15, 14), (3, 5, 7, 2, 1))],
    ),
    "slice": (
        model_of(
            f"{FREE}, int64[2] starts, int64[2] ends, int64[2] axes, int64[2] steps",
            "y = Slice(x, starts, ends, axes, steps)",
        ),
        [
            {"starts": int64s(s, 1), "ends": int64s(e, FAR), "axes": int64s(2, a),
             "steps": int64s(t, 2)}
            for s, e, a, t in ((0, 3, 3, 1), (-4, -1, 1, 1), (4, 0, 3, -1), (2, -9, -1, -2),
                               (2, 99, 0, 1), (3, 3, 0, 1))
        ],
    ),
    "axes": (
        model_of(
            f"{FREE}, int64[2] axes", "y = ReduceSum<keepdims=0>(x, axes)", "float[?, ?] y"
        ),
        [{"axes": int64s(*a)} for a in ((0, 1), (-1, 2), (3, 0))],
    ),
    "tile": (
        model_of(f"{FREE}, int64[4] repeats", "y = Tile(x, repeats)"),
        [{"repeats": int64s(*r)} for r in ((1, 2, 3, 1), (0, 1, 1, 1), (1, 1, 1, 1), (5, 1, 2, 2))],
    ),
    "tile by a sum": (
        model_of(
            f"{FREE}, int64[4] more", "repeats = Add(more, one) y = Tile(x, repeats)", one=[1]
        ),
        [{"more": int64s(*r)} for r in ((0, 1, 2, 0), (3, 0, 0, 1), (0, 1, 2, 0), (-1, 0, 0, 0))],
    ),
    "pad": (
        model_of(f"{FREE}, int64[8] pads", "y = Pad(x, pads)"),
        [{"pads": int64s(*p)} for p in ((0, 1, 2, 3, 4, 5, 0, 1), (0, -1, 0, 2, 0, 0, -2, -3))],
    ),
    "the largest": (
        model_of(f"{FREE}, int64[1] k", "y, at = TopK(x, k)"),
        [{"k": int64s(k)} for k in (1, 3, 7, 0)],
    ),
    "from data": (
        # As many rows as x has elements above 200, of the same number.
        model_of(
            f"{FREE}, int64[5] shape",
            """more = Greater(x, limit)
               where = NonZero(more)
               s = Shape(where)
               count = Gather(s, one)
               wide = Expand(x, shape)
               y = Slice(wide, zero, count)""",
            "float[?, ?, ?, ?, ?] y", limit=np.float32(204), one=[1], zero=[0],
        ),
        [{"shape": int64s(9, 1, 1, 1, 1)}, {"shape": int64s(4, 2, 3, 5, 7)}],
    ),
    "branches": (
        model_of(
            f"{FREE}, bool condition",
            """y = If(condition) <then_branch = t () => (float[?, ?, ?, ?] a) { a = Neg(x) },
                    else_branch = e () => (float[?, ?, ?, ?] b) { b = Transpose(x) }>""",
        ),
        [{"condition": np.array(c)} for c in (True, False, True)],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str) -> None:
    data, feeds = CASES[name]
    model = load(data)
    assert isinstance(model, SpecializedModel)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for given in feeds * 2:
        for x in (X, X[:1, :, :, ::-1].repeat(2, 0)):
            full = {"x": x, **given}
            (wanted,) = peer.run(["y"], {n: np.ascontiguousarray(v) for n, v in full.items()})
            found = model(**full)["y"]
            assert found.shape == wanted.shape
            np.testing.assert_array_equal(found, wanted)


def load_late(name: str) -> SpecializedModel:
    found = load(CASES[name][0])
    assert isinstance(found, SpecializedModel)
    return found


def test_other_numbers_need_no_other_model(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ftuner")
    model = load_late("reshape")
    compiled: list[Model] = []
    real = model._compile
    monkeypatch.setattr(
        model, "_compile", lambda graph: compiled.append(real(graph)) or compiled[-1]
    )
    for shape in ((6, 5, 7), (10, 3, 7), (7, 5, 6), (2, 3, 35), (3, 70, -1)):
        model(x=X, shape=int64s(*shape))
    # One for minus one; that for extents above one was compiled with the model.
    assert len(compiled) == 1
    said = [r.message for r in caplog.records if "compiled for a new one" in r.message]
    assert len(said) == 2
    assert "the shape is known only at run time" in said[0]


def test_numbers_that_came_before_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_late("reshape")
    first = model._first.model
    runs: list[object] = []
    real = type(first)._run
    monkeypatch.setattr(
        type(first), "_run", lambda self, *given: runs.append(self) or real(self, *given)
    )
    for _ in range(3):
        for shape in ((6, 5, 7), (10, 3, 7)):
            assert model(x=X, shape=int64s(*shape))["y"].shape == shape
    assert runs.count(first) == 2
    # Elements that are many decide as well.
    from_data = load_late("from data")
    shape = int64s(2, 2, 3, 5, 7)
    for rows in (0, 1, 2):
        x = np.where(np.arange(210).reshape(X.shape) < rows, 300, 0).astype(np.float32)
        assert from_data(x=x, shape=shape)["y"].shape == (rows, 2, 3, 5, 7)


def test_numbers_in_tensors_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    model = load_late("reshape")
    first = model._first.model
    runs: list[object] = []
    real = type(first)._run
    monkeypatch.setattr(
        type(first), "_run", lambda self, *given: runs.append(self) or real(self, *given)
    )
    x = torch.from_numpy(X)
    for _ in range(3):
        for shape in ((6, 5, 7), (10, 3, 7)):
            found = model(x=x, shape=torch.tensor(shape))["y"]
            assert isinstance(found, torch.Tensor)
            np.testing.assert_array_equal(found.numpy(), X.reshape(shape))
    assert runs.count(first) == 2
    with pytest.raises(InputError, match="needs a gradient"):
        model(x=x.clone().requires_grad_(), shape=torch.tensor((6, 5, 7)))


def test_extents_that_inputs_decide_are_prepared(compiled: list[Any]) -> None:
    """Sides of half the area, rounded: floats that no dim follows."""
    nodes = """
        s = Shape(x)
        sides = Slice(s, two, four)
        wide = Cast<to=1>(sides)
        r = Mul(wide, c)
        size = Cast<to=7>(r)
        sizes = Concat<axis=0>(ones, size)
        y = Expand(row, sizes)
    """
    numbers = {"two": [2], "four": [4], "c": np.float32(2**-0.5), "ones": [1, 3]}
    data = model_of(FREE, nodes, row=np.ones((1, 3, 1, 1), np.float32), **numbers)
    model = load(data)
    assert isinstance(model, SpecializedModel)
    count = len(compiled)
    for height, width in ((5, 7), (64, 48), (300, 3)):
        found = model(x=np.zeros((2, 1, height, width), np.float32))["y"]
        assert found.shape == (1, 3, int(height * 2**-0.5), int(width * 2**-0.5))
    assert len(compiled) == count
    # An extent of one is another model.
    assert model(x=np.zeros((2, 1, 2, 9), np.float32))["y"].shape == (1, 3, 1, 6)
    assert len(compiled) == count + 1


def test_squeezing_any_axes_of_one_element(compiled: list[Any]) -> None:
    """Whether an axis has one element makes another model, compiled with the first; other extents
    do not."""
    data = model_of("float[a, 1, b] x", "y = Squeeze(x)", "float[] y")
    model = load(data)
    count = len(compiled)
    for a, b in ((3, 4), (1, 4), (7, 1), (1, 1), (9, 2), (1, 6)):
        x = np.arange(a * b, dtype=np.float32).reshape(a, 1, b)
        np.testing.assert_array_equal(model(x=x)["y"], x.squeeze())
    assert len(compiled) == count


def test_axes_make_models_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_late("axes")
    compiled: list[Model] = []
    real = model._compile
    monkeypatch.setattr(
        model, "_compile", lambda graph: compiled.append(real(graph)) or compiled[-1]
    )
    for _ in range(3):
        for axes in ((0, 1), (2, 3)):
            assert model(x=X, axes=int64s(*axes))["y"].shape == (
                (5, 7) if axes == (0, 1) else (2, 3)
            )
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("reshape", {"shape": int64s(4, 5, 6)}, ShapeError),
        ("reshape", {"shape": int64s(-1, -1, 7)}, FTunerError),
        ("reshape", {"shape": int64s(-2, 3, 7)}, FTunerError),
        ("reshape", {"shape": np.zeros(3, np.int32)}, InputError),
        ("reshape", {"shape": int64s(6, 35)}, ShapeError),
        ("axes", {"axes": int64s(0, 4)}, ShapeError),
        ("axes", {"axes": int64s(1, 1)}, GraphError),
        ("tile", {"repeats": int64s(1, 1, -2, 1)}, FTunerError),
        ("tile", {"repeats": int64s(1, 1, 1, 1 << 62)}, FTunerError),
        ("slice", {"starts": int64s(0, 0), "ends": int64s(2, 2), "axes": int64s(0, 1),
                   "steps": int64s(0, 1)}, GraphError),
        ("the largest", {"k": int64s(99)}, FTunerError),
        ("the largest", {"k": int64s(-1)}, FTunerError),
        ("branches", {}, InputError),
    ],
)  # fmt: skip
def test_bad_numbers(name: str, given: Feeds, error: type[Exception]) -> None:
    """A named error, and the model is as good as before."""
    model = load_late(name)
    with pytest.raises(error):
        model(x=X, **given)
    good = CASES[name][1][0]
    assert model(x=X, **good)["y"].size


def test_both_branches_are_compiled_before_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_late("branches")
    monkeypatch.setattr(model, "_compile", None)
    for given in CASES["branches"][1]:
        assert model(x=X, **given)["y"].size


def test_a_shape_that_data_decides_in_part_needs_no_model_in_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As TensorFlow's exporter writes sums of segments: the rows are as many as the largest index
    says, the columns as x has."""
    nodes = """
        last = ReduceMax<keepdims=1>(at)
        rows = Add(last, one)
        columns = Shape<start=1>(x)
        shape = Concat<axis=0>(rows, columns)
        zeros = ConstantOfShape(shape)
        indices = Unsqueeze(at, back)
        y = ScatterND<reduction="add">(zeros, indices, x)
    """
    model = load(model_of("float[n, m] x, int64[n] at", nodes, "float[?, ?] y", one=[1], back=[1]))
    assert isinstance(model, SpecializedModel)
    monkeypatch.setattr(model, "_compile", None)
    for at, columns in (([0, 2, 2], 4), ([5], 2), ([1, 0, 1, 1], 7)):
        x = np.ones((len(at), columns), np.float32)
        found = model(x=x, at=int64s(*at))["y"]
        wanted = np.zeros((max(at) + 1, columns), np.float32)
        np.add.at(wanted, at, x)
        np.testing.assert_array_equal(found, wanted)


def test_interface() -> None:
    model = load_late("reshape")
    assert [s.name for s in model.inputs] == ["x", "shape"]
    assert [(s.name, s.dtype, s.shape) for s in model.outputs] == [("y", "float32", ("?",) * 3)]
    feeds = {"x": X, "shape": int64s(6, 5, 7)}
    (result,) = model.run(feeds)
    assert result.shape == (6, 5, 7)
    assert len(model.step_seconds(feeds)) == len(model.steps)
    assert model.memory(feeds).arena_bytes >= 0
    assert model.threads >= 1
    session = InferenceSession(CASES["reshape by as many axes as come"][0])
    assert session.get_outputs()[0].shape == []
    assert session.run(None, {"x": X, "shape": int64s(14, 15)})[0].shape == (14, 15)


def test_several_threads() -> None:
    model = load_late("axes")
    axes = [(0, 1), (2, 3), (1, 2), (0, 3)]

    def total(number: int) -> bool:
        pair = axes[number % len(axes)]
        return bool(np.array_equal(model(x=X, axes=int64s(*pair))["y"], X.sum(axis=pair)))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(total, range(64)))
