"""Extents that a model file does not name."""

import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of

from ftuner.errors import ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ops.pointwise import MAX_BROADCAST


def test_unknown_extents_are_broadcast_up_to_a_number() -> None:
    for count, refused in ((MAX_BROADCAST, False), (MAX_BROADCAST + 1, True)):
        model = model_of(
            [helper.make_node("Sum", [f"x{i}" for i in range(count)], ["y"])],
            {f"x{i}": ("float32", [f"N{i}"]) for i in range(count)},
            ["y"],
        )
        if refused:
            with pytest.raises(ShapeError, match="give the axes that agree one name"):
                import_model(model)
        else:
            import_model(model)
