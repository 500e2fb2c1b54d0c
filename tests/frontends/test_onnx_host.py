"""Unique and Det, which a host computes between two programs."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of, parsed
from tests.frontends.test_onnx_images import by_onnxruntime

import ftuner
from ftuner.errors import FTunerError, GraphError, ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.splitting import split

RESULTS = ("y", "first", "inverse", "counts")
AXES = (None, 0, 1, -1)


def compiled(
    op: str, x: Any, results: Any = ("y",), opset: int = 22, symbolic: bool = True,
    **attributes: Any,
) -> list[Any]:  # fmt: skip
    """The outputs of one node whose extents are symbols or not, by compiled code."""
    node = helper.make_node(op, ["x"], list(results), **attributes)
    outputs = [name for name in results if name]
    dims = [None] * x.ndim if symbolic else x.shape
    model = model_of([node], {"x": (x.dtype.name, dims)}, outputs, opset=opset)
    return ftuner.load(model).run({"x": x})


def by_numpy(x: Any, axis: int | None, ordered: bool) -> list[Any]:
    """What ONNX says of Unique, by numpy.unique, NaN by NaN equal also within parts."""
    marked = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    assert x.dtype.kind != "f" or not np.isposinf(x).any()
    _, first, inverse, counts = np.unique(marked, True, True, True, axis)
    inverse = inverse.reshape(-1)
    if not ordered:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    flat = x.reshape(-1) if axis is None else x
    return [np.take(flat, first, axis or 0), first, inverse, counts]


def drawn(dtype: str, *shape: int) -> Any:
    """Few different numbers, among them both zeros and infinities."""
    random = np.random.default_rng(0)
    if dtype == "bool":
        return random.random(shape) < 0.7
    found = random.integers(0 if dtype.startswith("u") else -2, 2, shape).astype(dtype)
    if dtype.startswith("float"):
        found[found == 1] = -np.inf
        found[random.random(shape) < 0.2] *= -1
    return found


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for y, wanted in zip(found, expected, strict=True):
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.each_value
@pytest.mark.parametrize("ordered", [1, 0])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int8"])
def test_unique_is_that_of_onnxruntime(dtype: str, axis: int | None, ordered: int) -> None:
    attributes = {"sorted": ordered, **({} if axis is None else {"axis": axis})}
    for shape in ((7, 2), (1, 1), (40, 3), (2, 9, 2)):
        x = drawn(dtype, *shape)
        expected = by_onnxruntime("Unique", [x], 22, outputs=4, **attributes)
        assert_same(compiled("Unique", x, RESULTS, **attributes), expected)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint64", "float16"])
def test_unique_of_other_dtypes(dtype: str, ordered: bool) -> None:
    x = drawn(dtype, 9, 3)
    for axis in (None, 0, 1):
        attributes = {"sorted": int(ordered), **({} if axis is None else {"axis": axis})}
        assert_same(compiled("Unique", x, RESULTS, **attributes), by_numpy(x, axis, ordered))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_is_the_largest_number_and_equal_to_nan(dtype: str, ordered: bool) -> None:
    nan = np.nan
    for values in ([nan, 1, 2, 1, nan], [1, 2, 3, nan], [nan], [[1, nan], [nan, 0], [1, nan]]):
        x = np.array(values, dtype)
        for axis in (None, 0):
            attributes = {"sorted": int(ordered), **({} if axis is None else {"axis": axis})}
            assert_same(compiled("Unique", x, RESULTS, **attributes), by_numpy(x, axis, ordered))
    flat = np.array([nan, 2, nan, -np.inf, 2], dtype)
    (found,) = compiled("Unique", flat)
    np.testing.assert_array_equal(found, np.unique(flat))


def test_onnxruntime_takes_nan_for_equal_to_anything() -> None:
    """The reason to differ from it: numbers are lost."""
    x = np.array([np.nan, 1, 2], np.float32)
    found, *_ = by_onnxruntime("Unique", [x], 22, outputs=4)
    assert np.isnan(found).all()
    assert found.shape == (1,)


def test_unique_of_nothing_and_of_a_number() -> None:
    for shape, axis, counts in (
        ((0,), None, (0, 0)), ((2, 0), None, (0, 0)), ((2, 0), 1, (0, 0)), ((2, 0), 0, (1, 2)),
        ((), None, (1, 1)),
    ):  # fmt: skip
        attributes = {} if axis is None else {"axis": axis}
        y, first, inverse, times = compiled(
            "Unique", np.zeros(shape, np.int32), RESULTS, **attributes
        )
        assert y.dtype == np.int32
        assert [x.size for x in (first, inverse, times)] == [counts[0], counts[1], counts[0]]
        assert first.ndim == inverse.ndim == times.ndim == 1
        assert y.size == (0 if 0 in shape else 1)
        assert times.sum() == counts[1]


@pytest.mark.parametrize(
    "results", [("y",), ("y", "", "inverse"), ("y", "first"), ("", "", "", "counts")]
)
def test_outputs_that_are_left_out(results: tuple[str, ...]) -> None:
    x = drawn("int64", 30)
    expected = dict(zip(RESULTS, by_numpy(x, None, True), strict=True))
    found = compiled("Unique", x, results)
    assert_same(found, [expected[name] for name in results if name])


def test_programs_before_and_after() -> None:
    """What it reads is computed, what it gives is read, with and without its extent."""
    text = """(float[n, 3] x) => (z, weighted) {
        square = Mul(x, x)
        y, "", inverse, counts = Unique(square)
        root = Sqrt(y)
        z = Gather(root, inverse)
        frequency = Cast<to=1>(counts)
        weighted = Mul(root, frequency)
    }"""
    file = parsed(text, 22)
    model = ftuner.load(file)
    assert len(split(import_model(file).graph)) == 2
    for rows in (4, 1, 9):
        x = np.random.default_rng(rows).integers(-3, 4, (rows, 3)).astype(np.float32)
        z, weighted = model.run({"x": x})
        np.testing.assert_array_equal(z, np.abs(x).reshape(-1))
        values, counts = np.unique(np.abs(x), return_counts=True)
        np.testing.assert_array_equal(weighted, values * counts.astype(np.float32))


@pytest.mark.parametrize("opset", [11, 22])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_determinants(dtype: str, opset: int) -> None:
    random = np.random.default_rng(0)
    shapes = (
        (3, 3), (1, 1), (5, 2, 2), (2, 3, 8, 8), (0, 4, 4), (3, 0, 0), (0, 0), (1, 33, 33)
    )  # fmt: skip
    for shape in shapes:
        x = random.standard_normal(shape).astype(dtype)
        (found,) = compiled("Det", x, opset=opset)
        expected = np.linalg.det(x.astype(np.float64))
        assert (found.dtype, found.shape) == (np.dtype(dtype), shape[:-2])
        np.testing.assert_allclose(found, expected, 1e-6 if dtype == "float32" else 1e-12)


def test_determinants_of_singular_matrices_and_of_no_numbers() -> None:
    x = np.array([[[1, 2], [2, 4]], [[np.nan, 1], [1, 1]], [[0, 1], [1, 0]]], np.float32)
    (found,) = compiled("Det", x)
    np.testing.assert_array_equal(found, np.array([0, np.nan, -1], np.float32))


def test_determinants_of_halves() -> None:
    x = np.array([[[1, 2], [3, 4]], [[2, 0], [0, 2]]], np.float16)
    (found,) = compiled("Det", x)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.array([-2, 4], np.float16))


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "error", "words"),
    [
        ("Det", (3,), {}, ShapeError, "square matrices"),
        ("Det", (2, 3), {}, ShapeError, "square matrices"),
        ("Det", (4, 3, 2), {}, ShapeError, "square matrices"),
        ("Unique", (3, 2), {"axis": 2}, ShapeError, "axis 2"),
        ("Unique", (), {"axis": 0}, ShapeError, "axis 0"),
        ("Unique", (3, 2), {"sorted": 2}, GraphError, "sorted is 2"),
    ],
)
def test_bad_input(
    op: str, shape: tuple[int, ...], attributes: Any, error: type[FTunerError], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled(op, np.zeros(shape, np.float32), symbolic=False, **attributes)


def test_matrices_that_only_a_run_knows_not_to_be_square() -> None:
    node = helper.make_node("Det", ["x"], ["y"])
    model = ftuner.load(model_of([node], {"x": ("float32", ["batch", "rows", "columns"])}, ["y"]))
    assert model.run({"x": np.ones((2, 1, 1), np.float32)})[0].shape == (2,)
    with pytest.raises(ShapeError, match="square matrices"):
        model.run({"x": np.ones((2, 3, 4), np.float32)})
