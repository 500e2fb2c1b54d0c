"""Operators on images: in the modes, versions and errors that ONNX's own tests do not have."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tests.frontends import onnx_models
from tests.frontends.onnx_models import expect_onnxruntime, model_of, node_model, run_node

from ftuner.errors import FTunerError, GraphError, ShapeError
from ftuner.errors import UnsupportedOperatorError as Unsupported
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.reference import run_reference

RANDOM = np.random.default_rng(0)
NOTHING = np.zeros(0, np.float32)
IMAGE = RANDOM.standard_normal((2, 3, 7, 5), np.float32)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def model(op: str, inputs: list[Any], opset: int, **attributes: Any) -> Any:
    return node_model(op, inputs, opset, symbolic=False, **attributes)[0]


def feeds_of(inputs: list[Any]) -> dict[str, Any]:
    return {f"x{i}": x for i, x in enumerate(inputs) if x is not None}


def by_evaluator(op: str, inputs: list[Any], opset: int = 19, **attributes: Any) -> list[Any]:
    """What ONNX's evaluator gives."""
    evaluator = ReferenceEvaluator(model(op, inputs, opset, **attributes))
    return list(evaluator.run(None, feeds_of(inputs)))


def by_onnxruntime(op: str, inputs: list[Any], opset: int, **given: Any) -> list[Any]:
    return onnx_models.by_onnxruntime(model(op, inputs, opset, **given), feeds_of(inputs))


# Resize.

COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
               "asymmetric", "tf_crop_and_resize")  # fmt: skip
EXCLUDED = {"mode": "linear", "exclude_outside": 1}
WAYS: tuple[dict[str, Any], ...] = (
    *({"mode": "nearest", "nearest_mode": n}
      for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    {"mode": "linear"}, {"mode": "linear", "antialias": 1},
    EXCLUDED, {"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "cubic", "antialias": 1},
)  # fmt: skip
SCALES = ((2.0, 3.0), (0.5, 0.75), (1.5, 0.5), (1.0, 2.5))
SIZES = ((9, 10), (3, 2), (1, 8))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_resize_in_every_mode(coordinates: str, way: dict[str, Any]) -> None:
    attributes = {**way, "axes": [2, 3], "coordinate_transformation_mode": coordinates}
    crops = coordinates == "tf_crop_and_resize"
    roi = None
    if crops:
        roi, attributes["extrapolation_value"] = floats(0.1, -0.2, 0.7, 1.1), 9.0
    given = [[IMAGE, roi, floats(*scales)] for scales in SCALES]
    given += [[IMAGE, roi, None, ints(*sizes)] for sizes in SIZES]
    for inputs in given:
        judge = by_onnxruntime
        # onnxruntime refuses some, and does not crop axes whose scale is one. The evaluator does
        # not round extents.
        if way == EXCLUDED or (crops and inputs[2] is not None and 1 in inputs[2]):
            inputs, judge = (
                [IMAGE, roi, floats(2 if "nearest" in way.values() else 1, 3)],
                by_evaluator,
            )
        (found,) = run_node("Resize", inputs, 19, fixed=[len(inputs) - 1], **attributes)
        (expected,) = judge("Resize", inputs, 19, **attributes)
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5, err_msg=str(inputs[2:]))


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
def test_nearest_elements_of_whole_scales(coordinates: str, nearest: str) -> None:
    """Each element may be repeated, side by side; long axes show where float32 rounds."""
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    for shape, scales in (
        ((1, 2, 5, 3), (1, 1, 3, 4)), ((1, 1, 1, 70001), (1, 1, 2, 3)),
        ((2, 3, 4, 37), (2, 1, 1, 2)), ((1, 1, 3, 4099), (1, 1, 17, 16)),
        ((1, 2, 3, 5), (1, 1, 0.5, 2)),
    ):  # fmt: skip
        x = RANDOM.standard_normal(shape, np.float32)
        given = [x, NOTHING, floats(*scales)]
        expect_onnxruntime("Resize", given, 19, 0, 0, fixed=[1, 2], **attributes)


def test_resize_with_the_coordinates_of_tensorflow() -> None:
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    for scales in ((1, 1, 2, 3), (1, 1, 0.5, 1.5)):
        inputs = [IMAGE, NOTHING, floats(*scales)]
        expect_onnxruntime("Resize", inputs, 11, 0, 0, fixed=[1, 2], **attributes)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [(9, 9), (3, 20), (4, 4)])
def test_resize_keeps_the_aspect_ratio(policy: str, sizes: tuple[int, int]) -> None:
    attributes = {"axes": [2, 3], "mode": "linear", "keep_aspect_ratio_policy": policy}
    for antialias in (0, 1):
        inputs = [IMAGE, None, None, ints(*sizes)]
        (found,) = run_node("Resize", inputs, 19, fixed=[3], antialias=antialias, **attributes)
        (expected,) = by_evaluator("Resize", inputs, antialias=antialias, **attributes)
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_before_it_had_coordinates(mode: str) -> None:
    for op, opset, scales in (("Upsample", 9, (1, 1, 2, 3)), ("Resize", 10, (1, 1, 2, 0.4)),
                              ("Resize", 10, (1, 1, 0.6, 0.5))):  # fmt: skip
        inputs = [IMAGE, floats(*scales)]
        expect_onnxruntime(op, inputs, opset, fixed=[1], mode=mode)
    (found,) = run_node("Upsample", [IMAGE], 7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
    (expected,) = by_onnxruntime("Upsample", [IMAGE, floats(1, 1, 2, 3)], 9, mode=mode)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("scale", [0.7, 0.6, 1.3, 2.1, 1.5, 1 / 3, 1 / 49, 0.1, 3.7, 1e-3, 123.4])
def test_extents_are_those_of_float32(scale: float) -> None:
    """In float32, 90 times 1.3 is less than 117."""
    for n in (1, 5, 7, 10, 30, 49, 90, 100, 1000):
        x = np.zeros((n,), np.float32)
        for symbolic in (True, False):
            found = run_node("Resize", [x, None, floats(scale)], 18, fixed=[2], symbolic=symbolic)
            assert found[0].shape == (int(np.float32(n) * np.float32(scale)),)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("opset", [9, 10, 11, 13, 18, 19])
def test_resize_in_random_ways(opset: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns = random.integers(2, 30, 2)
    x = random.standard_normal((1, 2, rows, columns), np.float32)
    kinds = ["nearest", "linear", "cubic"][: 3 if opset > 10 else 2]
    for _ in range(4):
        way: dict[str, Any] = {"mode": str(random.choice(kinds))}
        scales = random.choice([0.3, 0.5, 0.7, 1.3, 1.5, 2, 2.1, random.uniform(0.2, 4)], 2)
        if opset < 10:
            scales = np.maximum(scales, 1.1)
        if opset > 10:
            # At a scale of one, onnxruntime does not crop.
            known = [c for c in COORDINATES if opset > 18 or c != "half_pixel_symmetric"][:-1]
            way["coordinate_transformation_mode"] = str(random.choice(known))
        if opset > 10 and way["mode"] == "nearest":
            way["nearest_mode"] = str(random.choice([w["nearest_mode"] for w in WAYS[:4]]))
        sizes = np.maximum(np.float32([rows, columns]) * np.float32(scales), 1)
        by_sizes = opset > 10 and random.random() < 0.5
        if by_sizes and opset > 17:
            way["keep_aspect_ratio_policy"] = str(random.choice(["not_larger", "not_smaller"]))
            way["axes"] = [2, 3]
        last = (
            ints(*([] if "axes" in way else [1, 2]), *sizes) if by_sizes else floats(1, 1, *scales)
        )
        nothing = None if opset > 12 else NOTHING
        inputs = [x, last] if opset < 11 else [x, nothing, nothing, last] if by_sizes else [
            x, nothing, last]  # fmt: skip
        fixed = [i for i in range(1, len(inputs)) if inputs[i] is not None]
        op = "Upsample" if opset < 10 else "Resize"
        (expected,) = by_onnxruntime(op, inputs, opset, **way)
        for symbolic in (True, False):
            (found,) = run_node(op, inputs, opset, fixed=fixed, symbolic=symbolic, **way)
            np.testing.assert_allclose(found, expected, 1e-4, 1e-4, err_msg=f"{way} {last}")


def test_sizes_of_zero_belong_to_axes_without_elements() -> None:
    for mode in ("nearest", "linear", "cubic"):
        given = [IMAGE[:0], None, None, ints(0, 3, 9, 4)]
        assert run_node("Resize", given, fixed=[3], mode=mode)[0].shape == (0, 3, 9, 4)
        with pytest.raises(ShapeError, match="a size of 0 along axis 0"):
            run_node("Resize", [IMAGE, *given[1:]], fixed=[3], mode=mode)


def test_integers_are_rounded() -> None:
    x = RANDOM.integers(0, 255, (1, 1, 5, 6)).astype(np.uint8)
    for mode in ("linear", "cubic"):
        inputs = [x, None, floats(1, 1, 2, 2.5)]
        (found,) = run_node("Resize", inputs, 18, fixed=[2], mode=mode)
        assert found.dtype == x.dtype
        (exact,) = by_evaluator("Resize", [x.astype(np.float64), *inputs[1:]], 18, mode=mode)
        # Of two integers that are as near, either: weights are rounded before.
        assert np.abs(found - np.clip(exact, 0, 255)).max() <= 0.5 + 1e-4


def vision_model(**attributes: Any) -> Any:
    """A convolution, a resize by two and another convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Resize", ["a", "", "s"], ["b"], **attributes),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["y"], pads=[1] * 4),
    ]
    constants = {"w": np.ones((8, 8, 3, 3), np.float32), "s": floats(1, 1, 2, 2)}
    return model_of(nodes, {"x": ("float32", ["n", 8, "h", "w"])}, ["y"], constants)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_between_convolutions_is_one_nest(mode: str) -> None:
    graph = optimised(import_model(vision_model(mode=mode)).graph)
    ops = [node.op for node in graph.nodes]
    assert ops.count("transpose") == 2
    between = ops[ops.index("convolution") + 1 :]
    assert "transpose" not in between[: between.index("convolution")]
    titles = [step.title for step in lower(graph).steps]
    name = "repeat" if mode == "nearest" else "resample"
    assert sum(name in title for title in titles) == 1
    assert any(title.endswith(f"{name} + maximum") for title in titles)


# Others.


@pytest.mark.parametrize("strides", [(5, 4), (1, 17), (20,)])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution_of_many_phases(strides: tuple[int, ...], groups: int) -> None:
    rank = len(strides)
    x = RANDOM.standard_normal((2, 4, *(4, 3)[:rank]), np.float32)
    w = RANDOM.standard_normal((4, 3, *(3, 6)[:rank]), np.float32)
    attributes = {"strides": strides, "dilations": [2] * rank, "group": groups,
                  "pads": [1] * rank + [0] * rank}  # fmt: skip
    expect_onnxruntime("ConvTranspose", [x, w], fixed=[1], **attributes)


@pytest.mark.parametrize("kernel", [(2,), (2, 2), (3, 2, 4)])
@pytest.mark.parametrize(("groups", "biased"), [(1, True), (2, True), (1, False)])
def test_transposed_convolution_whose_blocks_are_side_by_side(
    kernel: tuple[int, ...], groups: int, biased: bool
) -> None:
    """As in the networks that segment: one product, whose epilogue is the bias, and one copy. Small
    groups are one convolution for each phase, by the kernel of single channels."""
    x = RANDOM.standard_normal((2, 4, *(4, 3, 2)[: len(kernel)]), np.float32)
    inputs = [x, RANDOM.standard_normal((4, 3, *kernel), np.float32)]
    if biased:
        inputs.append(RANDOM.standard_normal(3 * groups, np.float32))
    attributes = {"strides": kernel, "group": groups}
    expect_onnxruntime("ConvTranspose", inputs, fixed=[*range(1, len(inputs))], **attributes)
    graph = import_model(model("ConvTranspose", inputs, 18, **attributes)).graph
    apart = groups > 1 and len(kernel) <= 2
    expected_count = math.prod(kernel) if apart else 1
    assert sum(n.op in ("matmul", "convolution") for n in graph.nodes) == expected_count


@pytest.mark.parametrize(
    ("kernel", "strides", "attributes", "channels"),
    [
        ((40,), (16,), {}, (6, 1)),
        ((7,), (5,), {"dilations": [3], "pads": [2, 1]}, (6, 2)),
        ((12,), (8,), {"dilations": [2], "output_padding": [7]}, (6, 2)),
        ((2,), (6,), {"output_padding": [3]}, (6, 2)),
        ((5, 3), (4, 5), {"pads": [1, 7, 2, 3], "group": 3}, (6, 2)),
        ((20, 18), (9, 8), {"pads": [3, 0, 4, 2], "group": 21}, (21, 1)),
        ((9, 9), (5, 5), {"auto_pad": "SAME_UPPER"}, (6, 2)),
        ((9, 9), (5, 5), {"output_shape": [31, 29]}, (6, 2)),
        ((3, 4, 5), (2, 2, 3), {"pads": [1, 1, 2, 1, 2, 0]}, (6, 2)),
        ((4, 4), (5, 7), {"dilations": [2, 3]}, (6, 2)),
    ],
)
def test_transposed_convolution_of_large_strides(
    kernel: tuple[int, ...], strides: tuple[int, ...], attributes: dict[str, Any],
    channels: tuple[int, int],
) -> None:  # fmt: skip
    """As in the networks that give sound: windows that overlap are convolutions, whose phases are
    channels. Only where these are too many (the last case) is there a sum of blocks."""
    x = RANDOM.standard_normal((2, channels[0], *(7, 6, 4)[: len(kernel)]), np.float32)
    w = RANDOM.standard_normal((*channels, *kernel), np.float32)
    bias = RANDOM.standard_normal(channels[1] * attributes.get("group", 1), np.float32)
    given = {"strides": strides, **attributes}
    extents = "output_shape" not in attributes
    fixed = [1, 2] if extents else [0, 1, 2]
    expect_onnxruntime("ConvTranspose", [x, w, bias], 18, 1e-4, 1e-4, fixed=fixed, **given)
    ops = [
        n.op for n in import_model(model("ConvTranspose", [x, w, bias], 18, **given)).graph.nodes
    ]
    assert ops.count("convolution") <= 16
    assert ("resample" in ops) == (strides == (5, 7))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_positions_of_the_largest(rank: int, order: int) -> None:
    x = RANDOM.permutation(2 * 3 * 6**rank).astype(np.float32).reshape(2, 3, *[6] * rank)
    attributes = {"kernel_shape": [3] * rank, "strides": [2] * rank, "dilations": [2] * rank,
                  "pads": [1] * (2 * rank), "storage_order": order}  # fmt: skip
    expect_onnxruntime("MaxPool", [x], 18, 0, 0, outputs=2, **attributes)


@pytest.mark.each_value
@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("extents", "kernel", "stride", "pad"),
    [((1, 6), 2, 2, 0), ((2, 7), 3, 2, 0), ((4, 4), 5, 3, 0), ((1, 2), 5, 3, 1)],
)
def test_pools_whose_window_is_larger_than_the_map(
    op: str, extents: tuple[int, int], kernel: int, stride: int, pad: int, symbolic: bool
) -> None:
    x = IMAGE[..., : extents[0], : extents[1]]
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    attributes["pads"] = [pad] * 4
    ways = [{}, {"count_include_pad": 1}] if op == "AveragePool" else [{}]
    # Extents that round down are cut where they are known.
    for rounds_up in (1,) if symbolic else (0, 1):
        for opset, way in itertools.product((18, 19), ways):
            given = {**attributes, **way, "ceil_mode": rounds_up}
            expect_onnxruntime(op, [x], opset, 1e-5, 1e-6, symbolic=symbolic, **given)


def test_pools_of_which_no_window_begins_within_the_map() -> None:
    for symbolic in (True, False):
        with pytest.raises(ShapeError, match="a window of 5"):
            run_node("MaxPool", [IMAGE[..., :1, :]], symbolic=symbolic, kernel_shape=[5, 5],
                     strides=[2, 2], ceil_mode=1)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "channels", "attributes"),
    [
        ("MaxPool", 1, {"kernel_shape": [9, 3], "pads": [4, 1, 4, 1], "strides": [1, 2]}),
        ("MaxPool", 3, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", 5, {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2], "dilations": [1, 2]}),
        ("AveragePool", 1, {"kernel_shape": [5, 6], "pads": [2, 3, 2, 2]}),
        ("AveragePool", 2, {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
        ("LpPool", 4, {"kernel_shape": [6, 5], "pads": [3, 2, 2, 2], "strides": [3, 1]}),
        ("GlobalMaxPool", 1, {}),
    ],
)
def test_pools_of_few_channels(op: str, channels: int, attributes: dict[str, Any]) -> None:
    """Vectors are along rows; large windows are reduced along one axis after the other."""
    for extents in ((6, 7), (9, 8), (17, 31), (12, 133)):
        x = RANDOM.standard_normal((2, channels, *extents), np.float32)
        if op == "MaxPool":
            x[RANDOM.random(x.shape) < 0.1] = np.inf
        expect_onnxruntime(op, [x], 18, 1e-5, 1e-5, **attributes)


@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_blurs_of_one_channel(strides: list[int]) -> None:
    w = RANDOM.standard_normal((1, 1, 3, 5), np.float32)
    for extents in ((1, 1), (8, 9), (11, 70)):
        x = RANDOM.standard_normal((2, 1, *extents), np.float32)
        attributes = {"strides": strides, "pads": [1, 2, 1, 2]}
        expect_onnxruntime("Conv", [x, w], 18, 1e-5, 1e-5, fixed=[1], **attributes)


@pytest.mark.each_value
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_samples_far_outside(mode: str, padding: str, corners: int) -> None:
    grid = RANDOM.uniform(-3, 3, (2, 6, 9, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    expect_onnxruntime("GridSample", [IMAGE, grid], 20, 1e-4, 1e-4, **attributes)


@pytest.mark.parametrize("centred", [0, 1])
def test_suppression_of_many_boxes(centred: int) -> None:
    boxes = RANDOM.uniform(0, 1, (2, 60, 4)).astype(np.float32)
    scores = RANDOM.uniform(0, 1, (2, 3, 60)).astype(np.float32)
    for limit, overlap, least in ((5, 0.3, 0.2), (60, 0.05, 0.0), (60, 0.9, 0.9), (0, 0.5, 0.5)):
        inputs = [boxes, scores, ints(limit), floats(overlap), floats(least)]
        given = {"center_point_box": centred}
        expect_onnxruntime("NonMaxSuppression", inputs, 18, 0, 0, fixed=[2, 3, 4], **given)


X = np.ones((1, 4, 6, 6), np.float32)
W = np.ones((2, 4, 3, 3), np.float32)
BAD: tuple[tuple[str, list[Any], dict[str, Any], type[FTunerError], str], ...] = (
    ("Resize", [X, None, floats(1, 1, 0, 1)], {}, GraphError, "scale of 0.0"),
    ("Resize", [X, None, floats(1, 1, -2, 1)], {}, GraphError, "scale of -2.0"),
    ("Resize", [X, None, floats(1, 1, np.nan, 1)], {}, GraphError, "scale of nan"),
    ("Resize", [X, None, floats(1, 1, 2)], {}, GraphError, "3 scales for 4 axes"),
    ("Resize", [X, None, None, ints(1, 4, 0, 6)], {}, GraphError, "1 or more"),
    ("Resize", [X, None, None, ints(1, 4, 6)], {}, GraphError, "3 sizes for 4 axes"),
    ("Resize", [X, None, floats(1, 1, 2, 2), ints(1, 4, 6, 6)], {}, GraphError, "either"),
    ("Resize", [X], {}, GraphError, "either scales or sizes"),
    ("Resize", [X, None, floats(2)], {"axes": [4]}, ShapeError, "axis 4"),
    ("Resize", [X, None, floats(2, 2)], {"axes": [2, 2]}, GraphError, "not different"),
    ("Resize", [X, None, floats(1, 1, 2, 2)], {"mode": "best"}, GraphError, "'best'"),
    ("Resize", [X, None, floats(1, 1, 2, 2)], {"antialias": 1}, GraphError, "antialias"),
    ("Resize", [X, None, floats(1, 1, 2, 2)], {"keep_aspect_ratio_policy": "some"}, GraphError,
     "'some'"),
    ("Resize", [X, None, floats(1, 1, 2, 2)],
     {"coordinate_transformation_mode": "tf_crop_and_resize"}, GraphError, "region"),
    ("Resize", [X > 0, None, floats(1, 1, 2, 2)], {"mode": "linear"}, GraphError, "bool"),
    ("Conv", [X, W[:, :3]], {}, ShapeError, "channels"),
    ("Conv", [X, W[:, :, 0]], {}, GraphError, "convolution of"),
    ("Conv", [X, W], {"group": 3}, GraphError, "3 groups"),
    ("Conv", [X, W], {"strides": [0, 1]}, GraphError, "strides"),
    ("Conv", [X, W], {"pads": [1, 1]}, GraphError, "pads"),
    ("Conv", [X, W], {"auto_pad": "SAME"}, GraphError, "auto_pad 'SAME'"),
    ("Conv", [X[..., :2, :], W], {}, ShapeError, "a window of 3"),
    ("Conv", [X, W, floats(1, 2, 3)], {}, ShapeError, "bias"),
    ("ConvTranspose", [X, W], {}, ShapeError, "convolution of"),
    ("MaxPool", [X], {"kernel_shape": [3]}, GraphError, "kernel_shape"),
    ("MaxPool", [X], {"kernel_shape": [7, 7]}, ShapeError, "a window of 7"),
    ("LpPool", [X], {"kernel_shape": [2, 2], "p": 0}, GraphError, "p is 0"),
    ("GlobalAveragePool", [X[0, 0]], {}, GraphError, "no spatial axis"),
    ("MaxUnpool", [X, np.zeros(X.shape, np.int64)], {"kernel_shape": [2]}, GraphError, "window"),
    ("DepthToSpace", [X], {"blocksize": 3}, ShapeError, "channels as blocks"),
    ("DepthToSpace", [X], {"blocksize": 0}, GraphError, "blocksize is 0"),
    ("SpaceToDepth", [X], {"blocksize": 4}, ShapeError, "blocks of 4"),
    ("InstanceNormalization", [X, floats(1, 2), floats(1, 2)], {}, ShapeError, "scale or bias"),
    ("GroupNormalization", [X, floats(1), floats(1)], {"num_groups": 3}, GraphError, "3 groups"),
    ("LRN", [X], {"size": 0}, GraphError, "size is 0"),
    ("LpNormalization", [X], {"p": 3}, GraphError, "p is 3"),
    ("CenterCropPad", [X, ints(1, 2)], {}, GraphError, "2 sizes for 4 axes"),
    ("Col2Im", [X[0], ints(5, 5), ints(2, 3)], {}, ShapeError, "blocks"),
    ("GridSample", [X, np.zeros((2, 1, 1, 2), np.float32)], {}, ShapeError, "samples of"),
    ("GridSample", [X, np.zeros((1, 1, 2), np.float32)], {}, GraphError, "samples of"),
    ("RoiAlign", [X, np.zeros((2, 5), np.float32), ints(0, 0)], {"sampling_ratio": 2}, ShapeError,
     "regions"),
    ("RoiAlign", [X, np.zeros((2, 4), np.float32), ints(0, 0)], {"mode": "max"}, Unsupported,
     "data-dependent"),
    ("MaxRoiPool", [X, np.zeros((2, 4), np.float32)], {"pooled_shape": [2, 2]}, ShapeError,
     "regions"),
    ("MaxRoiPool", [X, np.zeros((2, 5), np.float32)], {"pooled_shape": [0, 2]}, GraphError,
     "0, 2"),
    ("NonMaxSuppression", [X[0], X[0]], {}, ShapeError, "boxes"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "match"), BAD, ids=[f"{b[0]} {b[4]}" for b in BAD]
)
def test_what_is_wrong_is_named(
    op: str, inputs: list[Any], attributes: dict[str, Any], error: type[FTunerError], match: str
) -> None:
    """At once where extents are known; where they are symbols, when the model is run."""
    small = [i for i, x in enumerate(inputs) if i and x is not None and x.ndim == 1]
    with pytest.raises(error, match=match):
        run_node(op, inputs, fixed=small, symbolic=False, **attributes)
    with pytest.raises(FTunerError):
        run_node(op, inputs, fixed=small, **attributes)


def test_sizes_that_shapes_tell() -> None:
    """An image resized to the extents of another."""
    nodes = [
        helper.make_node("Shape", ["y"], ["s"]),
        helper.make_node("Resize", ["x", "", "", "s"], ["z"], mode="linear"),
    ]
    inputs = {n: ("float32", ["n", 3, f"{n}h", f"{n}w"]) for n in "xy"}
    graph = import_model(model_of(nodes, inputs, ["z"])).graph
    for extents in ((4, 9), (7, 5), (1, 1)):
        y = np.zeros((2, 3, *extents), np.float32)
        (found,) = run_reference(graph, [IMAGE, y])
        inputs_ = [IMAGE, None, None, ints(*y.shape)]
        (expected,) = by_evaluator("Resize", inputs_, 18, mode="linear")
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("pads", [[0] * 4, [3] * 4])
def test_averages_in_half_precision(pads: list[int]) -> None:
    """The share of an element would be rounded."""
    x = np.ones((1, 1, 9, 9), np.float16)
    made = model("AveragePool", [x], 22, kernel_shape=[7, 7], pads=pads)
    (found,) = run_reference(optimised(import_model(made).graph), [x])
    assert found.dtype == np.float16
    assert np.all(found == 1)


def test_batch_norms_of_each_element() -> None:
    """Before opset 9, as MXNet writes them."""
    x = IMAGE[..., :4]
    parameters = [np.abs(RANDOM.standard_normal(x.shape[1:], np.float32)) for _ in range(4)]
    for opset in (7, 8):
        given = {"fixed": range(1, 5), "spatial": 0}
        expect_onnxruntime("BatchNormalization", [x, *parameters], opset, 1e-5, 1e-5, **given)
    with pytest.raises(GraphError, match="for the elements of"):
        run_node("BatchNormalization", [x, *[floats(1, 2, 3)] * 4], 8, spatial=0)


def test_splits_into_more_pieces_than_numbers_are_followed() -> None:
    sizes = ints(*(1 + i % 3 for i in range(100)))
    x = np.arange(2 * sizes.sum(), dtype=np.float32).reshape(-1, 2)
    found = run_node("Split", [x, sizes], fixed=[1], outputs=100, axis=0)
    for piece, expected in zip(found, np.split(x, np.cumsum(sizes)[:-1]), strict=True):
        np.testing.assert_array_equal(piece, expected)
