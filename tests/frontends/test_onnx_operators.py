"""Operators in the versions and domains that ONNX's own tests do not have."""

import itertools
from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import run_node

from ftuner.errors import ConfigurationError, GraphError, ShapeError
from ftuner.frontends.onnx.importer import IMPORTERS
from ftuner.frontends.onnx.signatures import Signature, onnx
from ftuner.graph.ir import Value

RANDOM = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def softmax(x: Any, axis: Any) -> Any:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


def rms_norm(x: Any, epsilon: float) -> Any:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon)


def close(results: list[Any], *wanted: Any) -> None:
    assert len(results) == len(wanted)
    for result, expected in zip(results, wanted, strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, 1e-5, 1e-6)


POSITIONS = (-(2**31), -7, -5, -3, -1, 0, 1, 3, 5, 7, 2**31 - 1, 2**63 - 1)


@pytest.mark.parametrize("step", [-3, -1, 1, 2])
@pytest.mark.parametrize("extent", [0, 1, 5])
def test_slices_are_those_of_numpy(extent: int, step: int) -> None:
    x = floats(extent)
    for start, end in itertools.product(POSITIONS, POSITIONS):
        if step < 0 and start < -extent:
            continue  # ONNX begins at the first element there, NumPy before it.
        (found,) = run_node(
            "Slice", [x, ints(start), ints(end), ints(0), ints(step)], fixed=[1, 2, 3, 4]
        )
        np.testing.assert_array_equal(found, x[start:end:step], f"{start}:{end}:{step}")


def test_slices_before_they_had_inputs() -> None:
    x = floats(4, 6)
    close(run_node("Slice", [x], 9, axes=[1], starts=[1], ends=[-2]), x[:, 1:-2])
    close(run_node("Slice", [x], 9, starts=[1, 0], ends=[3, 9]), x[1:3])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_over_all_axes_behind(axis: int) -> None:
    x = floats(2, 3, 4)
    axes = tuple(range(axis % 3, 3))
    close(run_node("Softmax", [x], 11, axis=axis), softmax(x, axes))
    close(run_node("LogSoftmax", [x], 11, axis=axis), np.log(softmax(x, axes)))


def test_attributes_that_became_inputs() -> None:
    x = floats(2, 1, 6)
    close(run_node("Squeeze", [x], 11, axes=[1]), x[:, 0])
    close(run_node("Unsqueeze", [x], 11, axes=[0, -1]), x[None, ..., None])
    close(run_node("ReduceSum", [x], 11, axes=[-1], keepdims=0), x.sum(-1))
    close(run_node("ReduceMean", [x], 17, axes=[0, 2]), x.mean((0, 2), keepdims=True))
    close(run_node("Clip", [x], 10, min=-0.5, max=0.5), x.clip(-0.5, 0.5))
    close(run_node("Split", [x], 11, outputs=2, axis=2, split=[2, 4]), x[..., :2], x[..., 2:])
    close(run_node("Split", [x], 11, outputs=3, axis=2), *np.split(x, 3, 2))
    padded = np.pad(x, ((0, 0), (1, 0), (0, 2)), constant_values=3)
    close(run_node("Pad", [x], 10, pads=[0, 1, 0, 0, 0, 2], value=3.0), padded)
    values, at = run_node("TopK", [x], 9, outputs=2, k=2)
    order = np.argsort(-x, -1)[..., :2]
    np.testing.assert_array_equal(at, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_dropout_is_nothing_at_inference() -> None:
    x = floats(3, 2)
    close(run_node("Dropout", [x], 7, outputs=2, ratio=0.9), x, np.ones((3, 2), bool))


def test_squeeze_without_axes() -> None:
    x = floats(1, 3, 1)
    close(run_node("Squeeze", [x], symbolic=False), x[0, :, 0])


def test_powers_of_other_dtypes() -> None:
    x = np.array([1, 2, 3], np.int32)
    close(run_node("Pow", [x, np.array([2.0, 0.5, 1], np.float32)]), np.array([1, 1, 3], np.int32))
    close(run_node("Pow", [x, ints(3, 2, 1)]), np.array([1, 4, 3], np.int32))


def test_scatter_under_its_first_name() -> None:
    x, at, updates = floats(3, 3), np.array([[1, 0, 2]]), floats(1, 3)
    wanted = x.copy()
    np.put_along_axis(wanted, at, updates, 0)
    close(run_node("Scatter", [x, at, updates], 10), wanted)


@pytest.mark.parametrize(
    ("kind", "wanted"), [("none", [3, 9]), ("add", [16, 9]), ("max", [7, 9]), ("min", [3, 9])]
)
def test_scatter_writes_in_order(kind: str, wanted: list[int]) -> None:
    x = np.array([6, 9], np.float32) if kind != "min" else np.array([8, 9], np.float32)
    updates = np.array([7, 3], np.float32)
    (found,) = run_node("ScatterElements", [x, ints(0, 0), updates], reduction=kind)
    np.testing.assert_array_equal(found, wanted)
    (found,) = run_node("ScatterND", [x, ints(0, 0)[:, None], updates], symbolic=False,
                        reduction=kind)  # fmt: skip
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_of_equal_elements_takes_the_first(largest: int) -> None:
    x = np.array([[2, 1, 2, 1, 2]], np.int32)
    _, at = run_node("TopK", [x, ints(3)], outputs=2, fixed=[1], largest=largest)
    np.testing.assert_array_equal(at, [[0, 2, 4]] if largest else [[1, 3, 0]])


EQUATIONS = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "...ij,...jk": [(2, 3, 4), (4, 5)],
    "i...,i...->...": [(3, 1, 4), (3, 2, 4)],
    "ii->i": [(4, 4)],
    "iji->j": [(4, 3, 4)],
    "ij,j": [(3, 4), (4,)],
    "i,j->ji": [(3,), (4,)],
    "ij->": [(3, 4)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    "ij,ij,jk->k": [(2, 3), (2, 3), (3, 4)],
    "aij,ajk,b->bi": [(2, 3, 4), (2, 4, 5), (6,)],
}


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS.items())
def test_einsum_is_that_of_numpy(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [floats(*shape) for shape in shapes]
    close(run_node("Einsum", operands, equation=equation), np.einsum(equation, *operands))


# What onnxruntime adds.


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelu_of_a_sum(op: str) -> None:
    x, bias = floats(3, 4), floats(4)
    kind = {"BiasGelu": "none", "FastGelu": "tanh"}[op]
    (wanted,) = run_node("Gelu", [x + bias], 20, approximate=kind)
    close(run_node(op, [x, bias], domain=MICROSOFT), wanted)


def test_gelus_of_a_tensor() -> None:
    x = floats(3, 4)
    close(run_node("Gelu", [x], domain=MICROSOFT), *run_node("Gelu", [x], 20))
    quick = x / (1 + np.exp(-1.702 * x))
    close(run_node("QuickGelu", [x], domain=MICROSOFT), quick)


def test_simplified_norms() -> None:
    x, skip, gamma, bias = floats(2, 3, 8), floats(1, 3, 8), floats(8), floats(8)
    close(run_node("SimplifiedLayerNormalization", [x, gamma], epsilon=0.1),
          rms_norm(x, 0.1) * gamma)  # fmt: skip
    total = x + skip + bias
    found = run_node(
        "SkipSimplifiedLayerNormalization", [x, skip, gamma, bias], domain=MICROSOFT, epsilon=0.1
    )
    close(found, rms_norm(total, 0.1) * gamma)


def test_norm_of_a_sum() -> None:
    x, skip, gamma, beta, bias = floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)
    total = x + skip + bias
    mean = total.mean(-1, keepdims=True)
    scale = 1 / np.sqrt(total.var(-1, keepdims=True) + np.float32(0.1))
    found = run_node(
        "SkipLayerNormalization", [x, skip, gamma, beta, bias], outputs=4, domain=MICROSOFT,
        epsilon=0.1,
    )  # fmt: skip
    close(found, (total - mean) * scale * gamma + beta, mean, scale, total)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_norms_keep_the_shape_of_their_input(op: str) -> None:
    """What is skipped may be broadcast to the input; a scale is not."""
    x, gamma = floats(2, 3, 4), floats(4)
    for skip in (floats(1, 3, 4), floats(3, 4)):
        (found,) = run_node(op, [x, skip, gamma], domain=MICROSOFT)
        assert found.shape == x.shape
    for given in ([floats(1, 3, 4), x, gamma], [x, x, floats(1)], [x, x, floats(1, 4)]):
        for symbolic in (False, True):
            with pytest.raises((GraphError, ShapeError)):
                run_node(op, given, domain=MICROSOFT, symbolic=symbolic)


def test_fused_matmul() -> None:
    a, b = floats(2, 4, 3), floats(2, 5, 4)
    found = run_node("FusedMatMul", [a, b], domain=MICROSOFT, transA=1, transB=1, alpha=0.5)
    close(found, 0.5 * np.matmul(a.swapaxes(1, 2), b.swapaxes(1, 2)))
    batch_behind = np.ascontiguousarray(np.moveaxis(a, 0, 1))
    found = run_node("FusedMatMul", [batch_behind, b], domain=MICROSOFT, transBatchA=1, transA=1,
                     transB=1)  # fmt: skip
    close(found, np.matmul(a.swapaxes(1, 2), b.swapaxes(1, 2)))


def test_extents_of_one_are_broadcast_again_and_again() -> None:
    """The extent of a sum is that of one of its operands, unless it is one: adding it again asks
    for nothing new."""
    mask = np.array([True])
    x, y = floats(3), floats(1)
    (first,) = run_node("Where", [mask, x, y])
    np.testing.assert_array_equal(first, x)
    (total,) = run_node("Sum", [y, x, y])
    np.testing.assert_array_equal(total, x + 2 * y)


def test_registered_importers_are_of_other_operators() -> None:
    importer = IMPORTERS["", "Abs"]
    for op in ("Abs", "Loop"):
        with pytest.raises(ConfigurationError, match=f"operator '{op}' of the domain '' has an"):
            onnx(op, since=99)(lambda x: x)
    assert IMPORTERS["", "Abs"] is importer


def test_a_parameter_of_no_known_type_is_an_error() -> None:
    def importer(x: Value, alpha: complex) -> Value:
        return x

    importer.__annotations__ = {"x": "Value", "alpha": "complex", "return": "Value"}
    with pytest.raises(ConfigurationError, match=r"parameter alpha of .*importer is complex"):
        _ = Signature(importer, {}).attributes
