"""If, whose condition is computed from data, against ONNX Runtime."""

from typing import Any

import numpy as np
from tests.frontends.control_models import expect_agreement, floats
from tests.frontends.onnx_models import parsed

from ftuner.inference import Model
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel


def rows_above_zero() -> Any:
    """The rows whose first element is above zero, doubled, or `nothing` if there are none."""
    text = """(float[n, 3] x) => (float[m, k] y)
            <int64 zero = {0}, int64[1] axis = {0}, float limit = {0}> {
        first = Gather<axis=1>(x, zero)
        above = Greater(first, limit)
        where = NonZero(above)
        at = Squeeze(where, axis)
        rows = Gather(x, at)
        size = Size(rows)
        none = Equal(size, zero)
        found = If(none) <then_branch = t () => (float[p, q] a) { a = Identity(nothing) },
                          else_branch = e () => (float[r, s] b) { b = Add(rows, rows) }>
        y = Exp(found)
    }"""
    return parsed(text, nothing=np.zeros((0, 3), np.float32))


def test_a_condition_on_a_data_dependent_extent_makes_one_model(
    widest: CpuBackend, compiled: list[Any]
) -> None:
    model = expect_agreement(rows_above_zero(), {"x": floats(5, 3)})
    assert type(model) is Model
    count = len(compiled)
    feeds = [{"x": np.abs(floats(7, 3))}, {"x": -np.abs(floats(4, 3))}, {"x": floats(0, 3)}]
    for given in feeds:
        rows = given["x"][given["x"][:, 0] > 0]
        np.testing.assert_allclose(model(**given)["y"], np.exp(2 * rows), 1e-5)
    assert len(compiled) == count
    expect_agreement(rows_above_zero(), *feeds)


SURE = """
    scores = MatMul(x, w)
    highest = ReduceMax<keepdims=0>(scores)
    sure = Greater(highest, limit)
"""
"""Whether the largest score is high, which takes a product to know."""


def test_a_condition_on_a_product_makes_one_model(widest: CpuBackend) -> None:
    """An early exit: more is computed unless the scores are high."""
    text = f"""(float[n, 4] x) => (float[n, 4] y) <float limit = {{1}}> {{
        {SURE}
        y = If(sure) <then_branch = t () => (float[p, q] a) {{ a = Identity(scores) }},
                      else_branch = e () => (float[r, s] b) {{ t = Tanh(scores) b = MatMul(t, v) }}>
    }}"""
    model = parsed(text, w=floats(4, 4), v=floats(4, 4))
    feeds = [{"x": scale * floats(n, 4)} for n in (1, 6) for scale in (0.01, 100.0)]
    assert type(expect_agreement(model, *feeds)) is Model


def test_a_condition_of_few_numbers_makes_a_model_for_each_branch(widest: CpuBackend) -> None:
    model = parsed("""(float[n, 4] x, bool c) => (float[n, 4] y) {
        other = Not(c)
        y = If(other) <then_branch = t () => (float[p, q] a) { a = Neg(x) },
                       else_branch = e () => (float[r, s] b) { b = Exp(x) }>
    }""")
    feeds = [{"x": floats(2, 4), "c": np.array(c)} for c in (True, False)]
    assert isinstance(expect_agreement(model, *feeds), SpecializedModel)


def test_a_branch_that_needs_numbers_is_chosen_first(widest: CpuBackend) -> None:
    """One branch reshapes by numbers that come with a call, which the other one does not read."""
    text = f"""(float[n, 4] x, int64[2] shape) => (float[p, q] y) <float limit = {{1}}> {{
        {SURE}
        y = If(sure) <then_branch = t () => (float[p, q] a) {{ a = Neg(x) }},
                      else_branch = e () => (float[r, s] b) {{ b = Reshape(scores, shape) }}>
    }}"""
    model = parsed(text, w=floats(4, 4))
    feeds = [
        {"x": scale * floats(6, 4), "shape": np.array(shape)}
        for scale in (0.01, 100.0)
        for shape in ((3, 8), (12, 2))
    ]
    assert isinstance(expect_agreement(model, *feeds), SpecializedModel)
