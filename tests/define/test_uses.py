"""Operators of users on arrays, in graphs and in ONNX files, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import Maker, graph_of

import ftuner
from ftuner.core.dim import symbol
from ftuner.define import any, argmax, axis, cast, exp, max, mean, prod, sqrt, sum, tanh, where
from ftuner.errors import ConfigurationError, IndexRangeError, UnsupportedOperatorError
from ftuner.frontends.onnx import importer, signatures
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Array, Value


@ftuner.operator("(..., m, k), (k, n), (n) -> (..., m, n)")
def gated(a: Any, b: Any, bias: Any, *, scale: float = 1.0) -> Any:
    return lambda i, j: tanh(sum(a[i, t] * b[t, j] for t in axis) * scale + bias[j])


@ftuner.operator("(..., n), (n) -> (..., n)")
def rms_norm(x: Any, scale: Any, *, epsilon: float = 1e-6) -> Any:
    return lambda j: x[j] / sqrt(mean(x[t] ** 2 for t in axis) + epsilon) * scale[j]


@ftuner.operator("(v, c), int(n), (n) -> (n, c), int64(n), bool()")
def looked_up(table: Any, ids: Any, weights: Any) -> Any:
    return (
        lambda i, c: table[ids[i], c] * weights[i] + cast(c, "float"),
        lambda i: argmax(table[ids[i], c] for c in axis),
        any(weights[i] > 0.5 for i in axis),
    )


@ftuner.operator("(n), (m) -> (n, m)")
def windows(x: Any, y: Any) -> Any:
    (n,) = x.shape

    def element(i: Any, j: Any) -> Any:
        at = 2 * i + j - 3
        padded = where((at >= 0) & (at < n), x[at], -1)
        return padded * y[j] + max(x[n - 1 - i], 0) ** 2 + prod(y[d] for d in axis)

    return element


@ftuner.operator("(n, h, w, c), (3, 3, c, o) -> (n, (h + 1) // 2, (w + 1) // 2, o)")
def convolved(x: Any, w: Any) -> Any:
    _, height, width, _ = x.shape

    def tap(n: Any, i: Any, j: Any, c: Any) -> Any:
        return where((i >= 0) & (i < height) & (j >= 0) & (j < width), x[n, i, j, c], 0)

    return lambda n, i, j, o: sum(
        tap(n, 2 * i + di - 1, 2 * j + dj - 1, c) * w[di, dj, c, o]
        for di in axis for dj in axis for c in axis
    )  # fmt: skip


def random(*shape: int, dtype: str = "float32") -> Array:
    found: Array = np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(dtype)
    return found


def expect_meaning(operator: ftuner.Operator, *operands: Array, **attributes: Any) -> None:
    found, wanted = operator(*operands, **attributes), operator.reference(*operands, **attributes)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for got, want in pairs:
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")
EXTENTS = [(1, 1, 1), (7, 13, 11), (97, 101, 103), (0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1009, 2)]


@pytest.mark.parametrize(("m", "k", "n"), EXTENTS)
def test_extents_are_any(m: int, k: int, n: int) -> None:
    expect_meaning(gated, random(m, k), random(k, n), random(n), scale=0.5)
    expect_meaning(gated, random(2, 1, m, k), random(k, n), random(n))
    if k and n:
        expect_meaning(looked_up, random(k, n), np.arange(m) % k, random(m))
    if m >= (n + 1) // 2:
        expect_meaning(windows, random(m), random(n))


def test_long_axes() -> None:
    expect_meaning(rms_norm, random(2, 1_000_003), random(1_000_003))
    expect_meaning(rms_norm, random(100_003, 3), random(3))


def test_operands_have_any_strides_and_dtype() -> None:
    a, b = random(26, 40)[::2, 1::3].T, random(11, 26)[:, ::-2].T
    expect_meaning(gated, a, b, random(22)[::-2])
    expect_meaning(gated, *(random(*s, dtype="float64") for s in ((5, 7), (7, 3), (3,))))
    for dtype in ("int8", "uint8", "int16", "int32"):
        ids = np.array([4, 0] if dtype == "uint8" else [4, -1], dtype)
        expect_meaning(looked_up, random(5, 3), ids, random(2))


def test_a_convolution_is_one_in_the_graph() -> None:
    shape, weight = (symbol("n"), symbol("h"), symbol("w"), 8), random(3, 3, 8, 16)
    graph = graph_of(lambda g: convolved(g.given("x", *shape), g.constant(weight)))
    model = ftuner.compile(graph)
    assert [step.kind for step in model.steps] == ["convolution"]
    for height, width in ((1, 1), (9, 14), (32, 31)):
        images = random(2, height, width, 8)
        wanted = convolved.reference(images, weight)
        np.testing.assert_allclose(model(x=images)["y0"], wanted, rtol=1e-3, atol=1e-4)
    expect_meaning(convolved, random(1, 5, 4, 3), random(3, 3, 3, 2))


@ftuner.operator("(m), (k, n) -> (k), (k)")
def spread(x: Any, y: Any) -> Any:
    (m,) = x.shape
    return (
        lambda i: mean(y[i, j] for _ in axis(m) for j in axis),
        lambda i: max(tanh(y[i, j]) for _ in axis(m) for j in axis),
    )


def test_reductions_over_axes_that_elements_do_not_have() -> None:
    expect_meaning(spread, random(3), random(5, 7))


@ftuner.operator("(n), (n) -> (n), (n), (n)")
def delayed(x: Any, gate: Any) -> Any:
    return (
        lambda i: where(~((i < 1) | (gate[i] > 0)), x[i - 1], 0),
        lambda i: where(~((i < 1) | (i == 3)), x[i - 1], 0),
        lambda i: where(~(i < 1) & ~(i > 5), x[i - 1], 0),
    )


def test_padding_under_further_conditions() -> None:
    for n in (1, 2, 9):
        expect_meaning(delayed, random(n), random(1, n)[0])


@ftuner.operator("(n), (n + 2, 2 * n) -> (n, n)")
def of_two_diagonals(y: Any, x: Any) -> Any:
    return lambda i, j: where(i == abs(j - 2), x[i - j + 2, i + j - 2], 0) + y[j]


def test_equality_to_an_absolute_value_is_more_than_padding() -> None:
    expect_meaning(of_two_diagonals, random(7), random(9, 14))


@ftuner.operator("(m, c), (t), (t, o) -> (m - t + 1, (c + 1) // 2), (m, 2 * c), (m - t + 1)")
def filtered(x: Any, w: Any, v: Any) -> Any:
    m, c = x.shape

    def tap(i: Any, j: Any) -> Any:
        return where((i >= 0) & (i < m) & (j < c), x[i, j], 0)

    return (
        lambda i, j: sum(x[i + d, j] * w[d] for d in axis),
        lambda i, j: sum(tap(i + d - 1, j) * w[d] for d in axis),
        lambda i: sum(x[i + d, e] * v[d, e] for d in axis for e in axis((c + 1) // 2)),
    )


def test_windows_over_a_part_of_the_channels() -> None:
    for m, c, t in ((5, 1, 1), (7, 6, 3), (9, 5, 4)):
        expect_meaning(filtered, random(m, c), random(1, t)[0], random(t, c))


def test_an_index_in_the_data_is_checked_with_the_line() -> None:
    with pytest.raises(IndexRangeError, match=r"test_uses.py:\d+"):
        looked_up(random(4, 3), np.array([4]), random(1))
    with pytest.raises(IndexRangeError, match=r"test_uses.py:\d+"):
        looked_up.reference(random(4, 3), np.array([4]), random(1))


def test_an_operator_is_fused_with_both_neighbours() -> None:

    def body(g: Maker) -> Value:
        x, r, s = (g.given(n, symbol("rows"), 77) for n in "xrs")
        found: Value = rms_norm(x + r, g.constant(np.ones(77, np.float32)))
        return found * s

    model = ftuner.compile(graph_of(body))
    (step,) = model.steps
    assert step.title == "add + norm + multiply"
    assert step.title in str(model.explain(x=(5, 77)))


def test_attributes_are_known_when_the_function_runs() -> None:
    @ftuner.operator("(n) -> (n)")
    def powers(x: Any, *, count: int, signs: tuple[int, ...] = (1, -1)) -> Any:
        return lambda i: sum(signs[d % 2] * x[i] ** (d + 1) for d in range(count))

    x = random(9)
    np.testing.assert_allclose(powers(x, count=2), x - x * x, rtol=1e-5)
    np.testing.assert_allclose(powers(x, count=1, signs=[2]), 2 * x, rtol=1e-5)


def test_softmax_of_differences_is_stable() -> None:
    @ftuner.operator("(n) -> (n)")
    def softmax(x: Any) -> Any:
        largest = max(x[t] for t in axis)
        return lambda j: exp(x[j] - largest) / sum(exp(x[t] - largest) for t in axis)

    expect_meaning(softmax, 1e4 * random(33))


def file_of(op: str, attributes: str = "") -> Any:
    from onnx.parser import parse_model

    return parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "tests.own": 1]>
        graph (float[m, k] x, float[k, n] w, float[n] b) => (float[m, n] y) {{
            g = tests.own.{op} {attributes} (x, w, b)
            y = Relu(g)
        }}""")


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test registers is no operator for others."""
    before = dict(importer.IMPORTERS)
    yield
    signatures.REGISTERED.clear()
    signatures.REGISTERED.update(before)


@needs_onnx
@pytest.mark.usefixtures("registry")
def test_files_use_registered_operators(tmp_path: Path) -> None:
    ftuner.register("tests.own", "Gated", gated)
    operands = {"x": random(5, 7), "w": random(7, 3), "b": random(3)}
    wanted = np.maximum(gated.reference(*operands.values(), scale=0.5), 0)
    model = ftuner.load(file_of("Gated", "<scale = 0.5>"))
    assert [step.title for step in model.steps] == ["matmul + multiply + add + tanh + maximum"]
    np.testing.assert_allclose(model(**operands)["y"], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ftuner.GraphError, match="no attribute is called 'factor'"):
        ftuner.load(file_of("Gated", "<factor = 0.5>"))
    with pytest.raises(ConfigurationError, match="has an importer"):
        ftuner.register("tests.own", "Gated", gated)
    with pytest.raises(ConfigurationError, match="has an importer"):
        ftuner.register("", "Relu", gated, replace=True)

    @ftuner.operator("(m, k), (k, n), (n) -> (m, n)")
    def other(a: Any, b: Any, bias: Any) -> Any:
        return lambda i, j: bias[j] + sum(a[i, t] for t in axis) * 0

    ftuner.register("tests.own", "Gated", other, replace=True)
    found = ftuner.load(file_of("Gated"))(**operands)["y"]
    np.testing.assert_allclose(found, np.maximum(operands["b"], 0) * np.ones((5, 1)), atol=1e-6)


@needs_onnx
@pytest.mark.usefixtures("registry")
def test_files_use_operators_of_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("tests.own.Found", f"{__name__}:gated", signatures.GROUP)
    monkeypatch.setattr(
        signatures, "entry_points", lambda group, name: [point] if name == point.name else []
    )
    monkeypatch.setattr(EntryPoint, "load", lambda self: gated)
    with pytest.raises(UnsupportedOperatorError, match="Missing"):
        ftuner.load(file_of("Missing"))
    model = ftuner.load(file_of("Found"))
    operands = {"x": random(5, 7), "w": random(7, 3), "b": random(3)}
    wanted = np.maximum(gated.reference(*operands.values()), 0)
    np.testing.assert_allclose(model(**operands)["y"], wanted, rtol=1e-4, atol=1e-5)


@needs_onnx
def test_models_with_operators_are_saved(tmp_path: Path) -> None:
    graph = graph_of(lambda g: windows(g.given("x", symbol("n")), g.constant(random(3))))
    model = ftuner.compile(graph)
    ftuner.save(model, tmp_path / "windows.ftuner")
    given = random(9)
    found = ftuner.load(tmp_path / "windows.ftuner")(x=given)["y0"]
    np.testing.assert_array_equal(found, model(x=given)["y0"])
    np.testing.assert_allclose(found, windows.reference(given, random(3)), rtol=1e-4, atol=1e-5)


def what(step: Any) -> Any:
    """A step without its buffers."""
    return step.kernel if step.kind == "nest" else (step.kind, step.described(str))


def test_what_is_recognised_has_the_kernels_of_built_in_operators() -> None:
    @ftuner.operator("(m, n) -> (m, n)")
    def softmax(x: Any) -> Any:
        def largest(i: Any) -> Any:
            return max(x[i, t] for t in axis)

        return lambda i, j: exp(x[i, j] - largest(i)) / sum(exp(x[i, t] - largest(i)) for t in axis)

    @ftuner.operator("(m, k), (k, n) -> (m, n)")
    def product(a: Any, b: Any) -> Any:
        return lambda i, j: sum(a[i, t] * b[t, j] for t in axis)

    for own, names, built_in in (
        (softmax, ("mn",), lambda x: apply("softmax", x, axis=1, log=False)),
        (product, ("mk", "kn"), lambda a, b: a @ b),
    ):
        graph = graph_of(lambda g: built_in(*(g.given(n, *map(symbol, n)) for n in names)))  # noqa: B023
        wanted = ftuner.compile(graph).steps
        found = own.compiled(*(random(3, 3) for _ in names)).steps
        assert list(map(what, found)) == list(map(what, wanted))
