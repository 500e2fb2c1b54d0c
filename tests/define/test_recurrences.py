"""Recurrences of definitions on arrays, in graphs, files and PyTorch, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from tests.define.test_uses import expect_meaning, random
from tests.graph.graphs import Maker, graph_of

import ftuner
from ftuner.compiler import compiled
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT16, FLOAT32
from ftuner.define import axis, cast, exp, recurrence, sum, where
from ftuner.errors import ShapeError, UnsupportedOperatorError
from ftuner.graph.algebra import apply
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.pipeline import definitions
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.reference import run_reference
from ftuner.tasks.proofs import prove

SCAN = "(..., t, d), (..., t, d), (d, n), (..., t, n), (..., t, n) -> (..., t, d)"


@ftuner.operator(SCAN)
def selective_scan(x: Any, step: Any, a: Any, b: Any, c: Any) -> Any:
    (t, d), (_, n) = x.shape, a.shape

    @recurrence(t, d, n)
    def h(i: Any, j: Any, s: Any) -> Any:
        kept = where(i > 0, exp(step[i, j] * a[j, s]) * h[i - 1, j, s], 0)
        return kept + step[i, j] * b[i, s] * x[i, j]

    return lambda i, j: sum(h[i, j, s] * c[i, s] for s in axis)


@ftuner.operator("(..., t, c), (c) -> (..., t, c)")
def smoothed(x: Any, keep: Any) -> Any:
    @recurrence(*x.shape)
    def y(i: Any, j: Any) -> Any:
        return where(i > 0, keep[j] * y[i - 1, j], 0) + x[i, j]

    return y


@ftuner.operator("(t) -> (t)")
def fibonacci(x: Any) -> Any:
    @recurrence(*x.shape)
    def y(i: Any) -> Any:
        return where(i >= 2, (y[i - 1] + y[i - 2]) / 2, x[i])

    return y


@ftuner.operator("(t, c), (m) -> (t, c), (t, c)")
def echoed(x: Any, length: Any) -> Any:
    """A delay of an extent, a delay beyond registers, and two arrays that read each other."""
    (t, c), (m,) = x.shape, length.shape

    @recurrence(t, c)
    def near(i: Any, j: Any) -> Any:
        return x[i, j] + where(i > m, far[i - 1 - m, j], 1) / 2

    @recurrence(t, c)
    def far(i: Any, j: Any) -> Any:
        return near[i, j] / 4 + where(i >= 12, near[i - 12, j], 0) / 2

    return near, lambda i, j: near[i, j] - far[t - 1 - i, j]


@ftuner.operator("(..., t, n) -> (..., t)")
def pooled(x: Any) -> Any:
    """Nothing but axes of a batch are left beside the one that a step reduces."""

    @recurrence(*x.shape)
    def h(i: Any, s: Any) -> Any:
        return where(i > 0, h[i - 1, s] / 2, 0) + x[i, s]

    return lambda i: sum(h[i, s] for s in axis)


@ftuner.operator("(t, c), (t, c) -> (t, c)")
def chosen(x: Any, last: Any) -> Any:
    """Conditions on what was computed before; the last operand is not what they read."""

    @recurrence(*x.shape)
    def h(i: Any, j: Any) -> Any:
        before = where(i > 0, h[i - 1, j], 0.0)
        same = (before > 0) == (x[i, j] < 0)
        other = where(same, cast(before, "bool"), before > 0.5)
        for number in range(3):
            other = where(other, x[i, j] > number / 4, ~other)
        sign = where(other, 1.0, -1.0)
        return where(same, before - 1, before + 2) / 2 + sign * x[i, j] + last[i, j]

    return h


@ftuner.operator("(t, c), (t) -> (t, c)")
def compared(x: Any, of: Any) -> Any:
    """A condition in more precision than the array."""

    @recurrence(*x.shape)
    def h(i: Any, j: Any) -> Any:
        before = where(i > 0, h[i - 1, j], 0.0)
        exact = cast(of[i], "float64")
        return where(exact * (1 + 2**-40) > exact, x[i, j], before)

    return h


@ftuner.operator("(t, c), (s) -> (t, c)")
def lagged(x: Any, by: Any) -> Any:
    (t, c), (s,) = x.shape, by.shape

    @recurrence(t, c)
    def h(i: Any, j: Any) -> Any:
        return where(i > s, h[i - s - 1, j] / 2, 0.0) + x[i, j]

    return h


FILE = """
<ir_version: 10, opset_import: ["": 21, "tests.recurrences": 1]>
graph (float[b, t, 6] x, float[6] k) => (float[b, t, 6] y) {
    s = tests.recurrences.Smoothed(x, k)
    y = Relu(s)
}
"""


def scan_operands(lead: tuple[int, ...], t: int, d: int, n: int) -> list[Any]:
    x, b = random(*lead, t, d), random(*lead, t, n)
    return [x, abs(x) + 0.1, -abs(random(d, n)), b, b * 2]


@pytest.mark.parametrize(
    ("t", "d", "n"), [(1, 1, 1), (7, 13, 3), (33, 40, 16), (0, 3, 2), (3, 0, 2), (3, 2, 0)]
)
def test_extents_are_any(t: int, d: int, n: int) -> None:
    expect_meaning(selective_scan, *scan_operands((), t, d, n))
    expect_meaning(selective_scan, *scan_operands((2, 1), t, d, n))
    expect_meaning(smoothed, random(t, d), random(d))
    expect_meaning(smoothed, random(n, t, d), random(d))
    expect_meaning(fibonacci, random(t))
    expect_meaning(echoed, random(t, d), random(n))
    for lead in ((), (1,), (3,)):
        expect_meaning(pooled, random(*lead, t, n))


def test_conditions_on_what_was_computed() -> None:
    expect_meaning(chosen, random(9, 19), random(9, 19))
    expect_meaning(compared, random(9, 19), abs(random(9)) + 1)


def test_conditions_may_be_nested() -> None:
    """Each part of an element is walked once, however often others use it."""

    @ftuner.operator("(t, c) -> (t, c)")
    def nested(x: Any) -> Any:
        @recurrence(*x.shape)
        def h(i: Any, j: Any) -> Any:
            y = where(i > 0, h[i - 1, j], 0.0) + x[i, j]
            for _ in range(40):
                y = where(y > 0, y / 2, y + y * y / 64)
            return y

        return h

    expect_meaning(nested, random(3, 5))


def test_delays_are_proved_once(widest: CpuBackend) -> None:
    """Within a graph, extents of operands may be computed ones."""

    def body(g: Maker) -> Value:
        x, by = g.given("x", symbol("t"), 5), g.given("by", symbol("m"))
        short = apply("slice", by, starts=(0,), steps=(1,), shape=(symbol("m") - 2,))
        found: Value = lagged(x, short)
        return found

    given = random(9, 5), random(4)
    (found,) = compiled(graph_of(body), widest, Options()).run({"x": given[0], "by": given[1]})
    np.testing.assert_allclose(found, lagged.reference(given[0], given[1][:2]), rtol=1e-5)


def test_operands_have_any_strides_and_dtype() -> None:
    expect_meaning(smoothed, random(26, 40)[::2, 1::3].T, random(26)[::-2])
    expect_meaning(smoothed, random(9, 5, dtype="float64"), random(5, dtype="float64"))
    x, keep = random(9, 5, dtype="float16"), random(5, dtype="float16")
    found = smoothed(x, keep)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, smoothed.reference(x, keep), rtol=2e-3, atol=2e-3)


def test_programs_are_proved_for_all_extents() -> None:
    for operator, shapes in (
        (selective_scan, [(4, 3, 5), (4, 3, 5), (5, 6), (4, 3, 6), (4, 3, 6)]),
        (smoothed, [(3, 5), (5,)]), (fibonacci, [(5,)]),
    ):  # fmt: skip
        builder = Builder()
        names = operator._operands.symbolic
        values = [builder.input(f"x{i}", FLOAT32, names(i, s)) for i, s in enumerate(shapes)]
        with builder.writing():
            operator(*values)
        (node,) = (n for n in builder.nodes if n.op == "scheduled")
        for program in node.attributes["schedule"].programs.values():
            assert prove(program) == ()


def recurrent(build: Callable[..., Any]) -> Graph:
    t, c = symbol("t"), symbol("c")
    return graph_of(lambda g: build(g.given("x", t, c), g.given("r", t, c), g.given("k", c)))


def test_neighbours_are_fused_on_every_isa(backend: CpuBackend) -> None:
    graph = recurrent(lambda x, r, keep: apply("tanh", smoothed(x * r, keep) + r))
    cases = [
        (arrays := [random(t, c), random(t, c) * 2, random(c)], run_reference(graph, arrays)[0])
        for t, c in ((1, 1), (5, 3), (17, 33), (9, 70))
    ]
    model = compiled(graph, backend, Options())
    assert [step.title for step in model.steps] == ["multiply + smoothed + add + tanh"]
    for arrays, wanted in cases:
        for threads in (1, 2):
            backend.threads = threads
            (found,) = model.run(dict(zip("xrk", arrays, strict=True)))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_reduction_of_a_state_is_in_its_step() -> None:
    operands = scan_operands((3,), 40, 70, 16)
    expect_meaning(selective_scan, *operands)
    (step,) = selective_scan.compiled(*operands).steps
    assert [view.shape[-1] for view in step.outputs] == [step.outputs[0].shape[-1]]
    assert len(step.outputs) == 1
    assert len(step.outputs[0].shape) == 3


def test_models_on_a_gpu_have_a_named_error() -> None:
    graph = recurrent(lambda x, r, keep: smoothed(x, keep))
    with pytest.raises(UnsupportedOperatorError, match=r"test_recurrences.py:\d+: recurrences run"):
        definitions(graph)


def test_extents_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="input keep: float32"):
        smoothed(random(3, 4), random(5))


def test_models_with_recurrences_are_saved(tmp_path: Any) -> None:
    model = ftuner.compile(recurrent(lambda x, r, keep: smoothed(x, keep) * r))
    ftuner.save(model, tmp_path / "model.ftuner")
    given = {"x": random(9, 4), "r": random(9, 4), "k": random(4)}
    loaded = ftuner.load(tmp_path / "model.ftuner")
    np.testing.assert_array_equal(loaded(**given)["y0"], model(**given)["y0"])


def test_half_precision_in_a_graph() -> None:

    def body(g: Maker) -> Value:
        x, keep = g.given("x", symbol("t"), 5, dtype=FLOAT16), g.given("k", 5, dtype=FLOAT16)
        found: Value = smoothed(x, keep)
        return found + x

    given = {"x": random(9, 5, dtype="float16"), "k": random(5, dtype="float16")}
    wanted = smoothed.reference(*given.values()) + given["x"]
    np.testing.assert_allclose(
        ftuner.compile(graph_of(body))(**given)["y0"], wanted, rtol=4e-3, atol=4e-3
    )


@pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")
def test_files_use_recurrences(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx.parser import parse_model

    from ftuner.frontends.onnx import importer, signatures

    monkeypatch.setattr(signatures, "REGISTERED", dict(importer.IMPORTERS))
    ftuner.register("tests.recurrences", "Smoothed", smoothed)

    model = ftuner.load(parse_model(FILE))
    assert [step.title for step in model.steps] == ["smoothed + maximum"]
    x, keep = random(2, 9, 6), random(6)
    wanted = np.maximum(smoothed.reference(x, keep), 0)
    np.testing.assert_allclose(model(x=x, k=keep)["y"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_modules_use_recurrences() -> None:
    import torch

    smoothed.torch("tests_recurrences::smoothed")

    class Module(torch.nn.Module):
        def forward(self, x: Any, keep: Any) -> Any:
            return torch.tanh(torch.ops.tests_recurrences.smoothed(x * 2, keep))

    tensors = (torch.from_numpy(random(7, 5)), torch.from_numpy(random(5)))
    with torch.inference_mode():
        model = ftuner.compile(Module(), tensors)
        torch.testing.assert_close(model(*tensors), Module()(*tensors), rtol=1e-4, atol=1e-5)
    assert [step.title for step in model.steps] == ["multiply + smoothed + tanh"]
