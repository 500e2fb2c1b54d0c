"""If, whose condition is computed from data, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tests.frontends.control_models import (
    BOOL,
    INT64,
    NODE,
    expect_agreement,
    floats,
    model_of,
    stored,
    value,
)

from ftuner.inference import Model
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.specialization import SpecializedModel


def branches(then: list[Any], otherwise: list[Any], rank: int) -> dict[str, Any]:
    """The graphs of an If; their last nodes give the result."""
    return {
        name: helper.make_graph(
            nodes, name, [], [value(nodes[-1].output[0], [f"{name} {i}" for i in range(rank)])]
        )
        for name, nodes in (("then_branch", then), ("else_branch", otherwise))
    }


def rows_above_zero() -> Any:
    """The rows whose first element is above zero, doubled, or `nothing` if there are none."""
    nodes = [
        NODE("Gather", ["x", "zero"], ["first"], axis=1),
        NODE("Greater", ["first", "limit"], ["above"]),
        NODE("NonZero", ["above"], ["where"]),
        NODE("Squeeze", ["where", "axis"], ["at"]),
        NODE("Gather", ["x", "at"], ["rows"]),
        NODE("Size", ["rows"], ["size"]),
        NODE("Equal", ["size", "zero"], ["none"]),
        NODE(
            "If", ["none"], ["found"],
            **branches(
                [NODE("Identity", ["nothing"], ["a"])], [NODE("Add", ["rows", "rows"], ["b"])], 2
            ),
        ),
        NODE("Exp", ["found"], ["y"]),
    ]  # fmt: skip
    return model_of(
        nodes,
        [value("x", ["n", 3])],
        [value("y", ["m", "k"])],
        [
            stored("zero", np.int64(0)),
            stored("axis", np.array([0])),
            stored("limit", np.float32(0)),
            stored("nothing", np.zeros((0, 3), np.float32)),
        ],
    )


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


SURE = (
    NODE("MatMul", ["x", "w"], ["scores"]),
    NODE("ReduceMax", ["scores"], ["highest"], keepdims=0),
    NODE("Greater", ["highest", "limit"], ["sure"]),
)
"""Whether the largest score is high, which takes a product to know."""


def test_a_condition_on_a_product_makes_one_model(widest: CpuBackend) -> None:
    """An early exit: more is computed unless the scores are high."""
    nodes = [
        *SURE,
        NODE(
            "If", ["sure"], ["y"],
            **branches(
                [NODE("Identity", ["scores"], ["a"])],
                [NODE("Tanh", ["scores"], ["t"]), NODE("MatMul", ["t", "v"], ["b"])], 2,
            ),
        ),
    ]  # fmt: skip
    model = model_of(
        nodes,
        [value("x", ["n", 4])],
        [value("y", ["n", 4])],
        [stored("w", floats(4, 4)), stored("v", floats(4, 4)), stored("limit", np.float32(1))],
    )
    feeds = [{"x": scale * floats(n, 4)} for n in (1, 6) for scale in (0.01, 100.0)]
    assert type(expect_agreement(model, *feeds)) is Model


def test_a_condition_of_few_numbers_makes_a_model_for_each_branch(widest: CpuBackend) -> None:
    nodes = [
        NODE("Not", ["c"], ["other"]),
        NODE(
            "If", ["other"], ["y"],
            **branches([NODE("Neg", ["x"], ["a"])], [NODE("Exp", ["x"], ["b"])], 2),
        ),
    ]  # fmt: skip
    model = model_of(nodes, [value("x", ["n", 4]), value("c", [], BOOL)], [value("y", ["n", 4])])
    feeds = [{"x": floats(2, 4), "c": np.array(c)} for c in (True, False)]
    assert isinstance(expect_agreement(model, *feeds), SpecializedModel)


def test_a_branch_that_needs_numbers_is_chosen_first(widest: CpuBackend) -> None:
    """One branch reshapes by numbers that come with a call, which the other one does not read."""
    nodes = [
        *SURE,
        NODE(
            "If", ["sure"], ["y"],
            **branches(
                [NODE("Neg", ["x"], ["a"])], [NODE("Reshape", ["scores", "shape"], ["b"])], 2
            ),
        ),
    ]  # fmt: skip
    model = model_of(
        nodes,
        [value("x", ["n", 4]), value("shape", [2], INT64)],
        [value("y", ["p", "q"])],
        [stored("w", floats(4, 4)), stored("limit", np.float32(1))],
    )
    feeds = [
        {"x": scale * floats(6, 4), "shape": np.array(shape)}
        for scale in (0.01, 100.0)
        for shape in ((3, 8), (12, 2))
    ]
    assert isinstance(expect_agreement(model, *feeds), SpecializedModel)
