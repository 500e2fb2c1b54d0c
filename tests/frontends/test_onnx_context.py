"""Names that model files give to extents become symbols, each its own."""

from __future__ import annotations

import time

import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of

from ftuner.core.dim import MAX_NAME
from ftuner.errors import ShapeError
from ftuner.frontends.onnx import import_model
from ftuner.frontends.onnx.context import Names
from ftuner.graph.ops.pointwise import MAX_BROADCAST


def test_each_text_has_a_symbol_of_its_own() -> None:
    names = Names()
    texts = ["a b", "a_b", "a/b", "a_b_2", "a_b_2_2", "2", "_2", "", "dim", "x" * 1000, "x" * 1001]
    symbols = [names.named(text) for text in texts]
    assert len({str(s) for s in symbols}) == len(texts)
    assert [names.named(text) for text in texts] == symbols
    assert max(len(str(s)) for s in symbols) <= MAX_NAME + 2


def test_texts_that_read_alike_are_counted_not_tried() -> None:
    names = Names()
    began = time.process_time()
    symbols = {str(names.named(chr(0x4E00 + i))) for i in range(20_000)}
    assert len(symbols) == 20_000
    assert time.process_time() - began < 3


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
