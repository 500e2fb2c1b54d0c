"""Pooling of regions, beside onnxruntime's: any regions, in and outside the image."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import both_ways, by_onnxruntime, compiled, node_model

from ftuner.errors import IndexRangeError
from ftuner.frontends.onnx.importer import import_model

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 9, 13)).astype(np.float32)
REGIONS = np.array(
    [
        (0, 0, 12, 8), (1.3, 0.7, 9.2, 7.9), (4, 4, 4, 4), (4, 4, 4.2, 9), (-3, -2, 5, 5),
        (8, 5, 30, 21), (-40, -60, 90, 70), (20, 20, 25, 30), (7, 6, 3, 2), (0.5, 0.5, 1.5, 1.5),
        (-1, -1, 13, 9), (2.5, 3.5, 8.5, 7.5), (0, 0, 500, 500),
    ],
    np.float32,
)  # fmt: skip
IMAGES = np.arange(len(REGIONS)) % len(X)


def run(op: str, inputs: list[Any], **attributes: Any) -> tuple[Any, list[Any]]:
    """What onnxruntime gives, and what references and compiled code do."""
    model, feeds = node_model(op, inputs, 16, **attributes)
    (expected,) = by_onnxruntime(model, feeds)
    return expected, [found for (found,) in both_ways(model, feeds)]


@pytest.mark.each_value
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("bins", [(1, 1), (2, 3), (7, 7)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(coordinates: str, bins: tuple[int, int], scale: float, ratio: int) -> None:
    expected, results = run(
        "RoiAlign", [X, REGIONS, IMAGES], output_height=bins[0], output_width=bins[1],
        sampling_ratio=ratio, spatial_scale=scale, coordinate_transformation_mode=coordinates,
    )  # fmt: skip
    for found in results:
        np.testing.assert_allclose(found, expected, 1e-3, 1e-5)


@pytest.mark.parametrize("ratio", [0, 2])
def test_pixels_far_from_a_region_do_not_count(ratio: int) -> None:
    x = np.ones((1, 1, 8, 8), np.float32)
    x[0, 0, 7, 7], x[0, 0, 0, 7] = np.inf, np.nan
    region = np.array([[0, 1, 3, 3]], np.float32)
    expected, results = run(
        "RoiAlign", [x, region, np.zeros(1, np.int64)], output_height=2, output_width=2,
        sampling_ratio=ratio,
    )  # fmt: skip
    for found in results:
        np.testing.assert_allclose(found, expected, 1e-6)


@pytest.mark.parametrize("bins", [(1, 1), (2, 3), (7, 7)])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
def test_max_roi_pool(bins: tuple[int, int], scale: float) -> None:
    table = np.concatenate([IMAGES[:, None], REGIONS], 1).astype(np.float32)
    expected, results = run("MaxRoiPool", [X, table], pooled_shape=bins, spatial_scale=scale)
    for found in results:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("number", [-1, 2])
@pytest.mark.parametrize("ratio", [0, 2])
def test_images_that_are_not_there(number: int, ratio: int) -> None:
    table = np.array([[number, 0, 0, 4, 4]], np.float32)
    for model, feeds in (
        node_model("RoiAlign", [X, REGIONS[:1], np.array([number])], sampling_ratio=ratio),
        node_model("MaxRoiPool", [X, table], pooled_shape=[2, 2]),
    ):
        with pytest.raises(IndexRangeError, match="out of range"):
            compiled(import_model(model).graph, list(feeds.values()))
