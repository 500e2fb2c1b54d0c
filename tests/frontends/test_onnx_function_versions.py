"""Functions whose operator sets have other versions than the model's."""

import re
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of

from ftuner.errors import GraphError
from ftuner.frontends.onnx.importer import import_model
from ftuner.runtime.reference import run_reference

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def _model(
    outer: int, inner: int, op: str, second: Sequence[int] | None = None, **attributes: int
) -> onnx.ModelProto:
    """One node in a function."""
    names = ["a"] if second is None else ["a", "b"]
    node = helper.make_node(op, names, ["r"], **attributes)
    function = helper.make_function(
        "own", "One", names, ["r"], [node], [helper.make_opsetid("", inner)]
    )
    given = ["x"] if second is None else ["x", "second"]
    call = helper.make_node("One", given, ["y"], domain="own")
    constants = {} if second is None else {"second": np.asarray(second)}
    return model_of([call], {"x": ("float32", ("n", 3))}, ["y"], constants, outer, [function])


def _run(model: onnx.ModelProto) -> np.ndarray:
    (y,) = run_reference(import_model(model).graph, [X])
    return np.asarray(y)


@pytest.mark.parametrize(("outer", "inner"), [(18, 21), (21, 18), (18, 13), (14, 18)])
def test_operators_that_only_take_more_dtypes_are_inlined(outer: int, inner: int) -> None:
    model = _model(outer, inner, "Reshape", [-1])
    # What is loaded may be the caller's, and is left as it was.
    before = model.SerializeToString()
    if inner == 13:
        # Since version 14 zeros may be extents.
        with pytest.raises(GraphError, match=re.escape("own.One: of other operator sets")):
            import_model(model)
    else:
        assert np.array_equal(_run(model), X.reshape(-1))
    assert model.SerializeToString() == before


def test_operators_of_another_form_are_converted() -> None:
    assert np.allclose(_run(_model(18, 13, "ReduceMean")), X.mean())


def test_a_default_is_the_one_of_the_function() -> None:
    """Softmax of version 11 is over all axes from the first on, later ones over the last."""
    model = _model(13, 11, "Softmax", axis=0)
    weights = np.exp(X) / np.exp(X).sum()
    assert np.allclose(_run(model), weights, atol=1e-6)
