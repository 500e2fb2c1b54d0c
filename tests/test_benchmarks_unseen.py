"""Streams of shapes that never repeat: which shapes are drawn, and what is made of their times."""

from pathlib import Path

import onnx
import pytest
from benchmarks.unseen import STREAMS, Unseen, drawn, measured
from benchmarks.vision.writing import Size
from benchmarks.vision.zoo import NETWORKS


@pytest.mark.parametrize("name", STREAMS)
def test_shapes_are_distinct_and_the_same_each_time(name: str) -> None:
    shapes = drawn(STREAMS[name], 40, seed=3)
    assert len(set(shapes)) == 40
    assert shapes == drawn(STREAMS[name], 40, seed=3) != drawn(STREAMS[name], 40, seed=4)


def test_what_a_new_shape_costs() -> None:
    found = Unseen.of([5.0, 9.0, 2.0, 4.0], [4.0, 4.0, 1.5, 4.0], largest=1)
    assert found == Unseen(20.0, 13.5, 20 / 13.5, 0.75, 5.0, 5.0, 0.5)
    assert Unseen.of([2.0], [1.0], largest=0).extra_worst_after_largest_s == 0.0


def test_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(NETWORKS["mobilenet-v2"].write(Size(width=0.125, depth=0.34)), path)
    document = measured(STREAMS["mobilenet-v2"], path, ("ftuner", "onnxruntime"), 1, 3, seed=0)
    assert [case["label"] for case in document["cases"]] == ["ftuner", "onnxruntime"]
    assert all(case["first_s"] > 0 and case["again_s"] > 0 for case in document["cases"])
