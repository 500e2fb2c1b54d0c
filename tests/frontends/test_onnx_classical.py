"""Operators of ONNX's domain for classical learning, beside onnxruntime's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from tests.frontends.onnx_models import both_ways, by_onnxruntime, node_model

from ftuner.errors import FTunerError, IndexRangeError
from ftuner.frontends.onnx.categories import perfect_hash
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.records import LEARNING
from ftuner.inference import load

TABLE = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
TABLE[1] = 0
TABLE[3] = -np.abs(TABLE[3])
NAN = float("nan")


def model_for(op: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> Any:
    """A model of one node, whose inputs have any extents."""
    model, _ = node_model(op, inputs, domain=LEARNING, outputs=outputs, **attributes)
    if op == "TreeEnsemble":
        model.opset_import[2].version = 5
    return model


def agrees(op: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> None:
    """References and compiled code give what onnxruntime gives."""
    model = model_for(op, inputs, outputs, **attributes)
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    expected = by_onnxruntime(model, feeds)
    for found in both_ways(model, feeds):
        for x, wanted in zip(found, expected, strict=True):
            if isinstance(wanted, list):
                assert [[*m.items()] for m in x] == [[*m.items()] for m in wanted]
                continue
            assert x.dtype == wanted.dtype
            if x.dtype == object:
                assert x.tolist() == wanted.tolist()
            else:
                np.testing.assert_allclose(x, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("at", [[2, 0, 2], [[1, 3]], [[0]]])
def test_columns(at: Any, dtype: str) -> None:
    for x in (TABLE, TABLE[0], np.stack([TABLE, TABLE + 1])):
        agrees("ArrayFeatureExtractor", [(9 * x).astype(dtype), np.array(at)])


def test_columns_that_are_none() -> None:
    model = load(model_for("ArrayFeatureExtractor", [TABLE, np.array([4])]))
    with pytest.raises(IndexRangeError):
        model.run({"x0": TABLE, "x1": np.array([4])})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("count", [1, 4])
def test_scaler(count: int, dtype: str) -> None:
    numbers = {"offset": [0.5, -1.0, 2.0, 0.0][:count], "scale": [2.0, 0.5, -1.0, 3.0][:count]}
    for x in (TABLE, TABLE[0]):
        agrees("Scaler", [(9 * x).astype(dtype)], **numbers)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str, dtype: str) -> None:
    for x in (TABLE, TABLE[0]):
        agrees("Normalizer", [(9 * x).astype(dtype)], norm=norm)


def test_binarizer() -> None:
    agrees("Binarizer", [TABLE], threshold=float(TABLE[0, 0]))
    agrees("Binarizer", [TABLE])


def test_imputer() -> None:
    holes = np.where(TABLE > 0.4, np.float32(NAN), TABLE)
    for values in ([0.5], [0.5, 1.5, -1.0, 2.0]):
        agrees("Imputer", [holes], imputed_value_floats=values, replaced_value_float=NAN)
        agrees("Imputer", [TABLE], imputed_value_floats=values, replaced_value_float=0.0)
    integers = (3 * TABLE).astype(np.int64)
    agrees("Imputer", [integers], imputed_value_int64s=[7, 8, 9, 10], replaced_value_int64=-1)


def test_label_encoder() -> None:
    x = np.array([[3, 1, 5], [9, -1, 3]])
    agrees("LabelEncoder", [x], keys_int64s=[3, 9, 3], values_int64s=[1, 2, 4], default_int64=6)
    agrees("LabelEncoder", [x], keys_int64s=[3, 9], values_floats=[0.5, 2.0], default_float=-3.0)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    ends = np.array([low, low + 1, 0, 1, high - 2, high - 1, high])
    for keys in ([high - 2, high], [low, low + 1], [1], [low, high], [high, 1 << 40]):
        agrees("LabelEncoder", [ends], keys_int64s=keys, values_int64s=[1, 2][: len(keys)])
    floats = np.array([0.5, NAN, 2.0], np.float32)
    agrees("LabelEncoder", [floats], keys_floats=[NAN, 0.5], values_int64s=[1, 2])
    tensors = {"keys": np.array([1.5, NAN]), "values": np.array([2.5, 3.0]),
               "default": np.array([9.0])}  # fmt: skip
    attributes = {
        f"{k}_tensor": numpy_helper.from_array(v, f"{k}_tensor") for k, v in tensors.items()
    }
    agrees("LabelEncoder", [np.array([NAN, 0.0, 1.5])], **attributes)


@pytest.mark.parametrize("count", [1, 2, 17, 300, 5000])
@pytest.mark.parametrize("bits", [32, 64])
def test_perfect_hash(count: int, bits: int) -> None:
    draw = np.random.default_rng(count)
    for words in (np.arange(count), draw.choice(1 << 30, count, False), np.arange(count) << 16):
        words = words.astype(f"uint{bits}")
        found = perfect_hash(words)
        bucket, slot = ((words * f >> found.shift).astype(np.int64) for f in found.factors)
        slot ^= found.displacements[bucket]
        np.testing.assert_array_equal(found.order[slot], np.arange(count))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_label_encoder_of_many_keys(dtype: str) -> None:
    draw = np.random.default_rng(1)
    keys = [*(draw.choice(1 << 24, 40, False) - (1 << 23)) * 4.0, 0.0, 1e9, 0.0, -1e9]
    values = {"values_int64s": [*range(len(keys))], "default_int64": -7}
    x = np.array([*keys, *(np.array(keys) + 8)], dtype)
    if dtype == "float32":
        others = [-0.0, NAN, np.inf, -np.inf, np.finfo(dtype).tiny]
        x = np.append(x, np.array(others, dtype))
        agrees("LabelEncoder", [x], keys_floats=keys, **values)
        keys[7], keys[9], keys[11] = NAN, np.inf, NAN
        agrees("LabelEncoder", [x], keys_floats=keys, **values)
    else:
        agrees("LabelEncoder", [x], keys_int64s=[*map(int, keys)], **values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_one_hot(dtype: str) -> None:
    x = np.array([[0, 3], [9, 1], [2, 2]]).astype(dtype)
    agrees("OneHotEncoder", [x], cats_int64s=[0, 1, 2, 3], zeros=1)
    agrees("OneHotEncoder", [x], cats_int64s=[3, 0, 9, 1, 2], zeros=0)
    agrees("OneHotEncoder", [x[:0]], cats_int64s=[3], zeros=0)
    model = load(model_for("OneHotEncoder", [x], cats_int64s=[0, 1, 2, 3], zeros=0))
    with pytest.raises(IndexRangeError):
        model.run({"x0": x})


def texts(*words: str) -> Any:
    return np.array(words, object)


def test_labels_that_are_strings() -> None:
    x = np.array([["a", "z"], ["b", "a"]], object)
    words = {"keys_strings": ["a", "b", "a"]}
    agrees("LabelEncoder", [x], **words, values_int64s=[4, 5, 6], default_int64=9)
    agrees("LabelEncoder", [x], **words, values_floats=[4.5, 5.0, 6.0])
    agrees("LabelEncoder", [x], **words, values_strings=["u", "v", "w"], default_string="none")
    numbers = np.array([5, 7, 4])
    agrees("LabelEncoder", [numbers], keys_int64s=[4, 5], values_strings=["u", "v"])
    mapped = {"cats_strings": ["a", "b"], "cats_int64s": [5, 4]}
    agrees("CategoryMapper", [x], **mapped, default_int64=8)
    agrees("CategoryMapper", [numbers], **mapped, default_string="other")
    agrees("OneHotEncoder", [x], cats_strings=["b", "a", "c"], zeros=1)
    agrees("OneHotEncoder", [x[1]], cats_strings=["b", "a", "c"], zeros=0)


@pytest.mark.parametrize(
    "names", [{"classlabels_int64s": [7, -1, 2, 0]}, {"classlabels_strings": ["a", "b", "c", "d"]}]
)
def test_maps(names: dict[str, Any]) -> None:
    for x in (TABLE, TABLE[:0], TABLE[0]):
        agrees("ZipMap", [x], **names)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_linear_models(transform: str) -> None:
    weights = [float(w) for w in TABLE[:3].ravel()]
    given = {"coefficients": weights, "post_transform": transform}
    bias = {"intercepts": [0.5, -1.0, 0.0]}
    labels = {"classlabels_ints": [7, -2, 3]}
    if transform == "PROBIT":
        # Its scores are probabilities.
        given["coefficients"] = [w / 100 for w in weights]
        bias = {"intercepts": [0.25, 0.5, 0.75]}
    else:
        agrees("LinearRegressor", [TABLE], targets=3, **given)
    agrees("LinearRegressor", [TABLE], targets=3, **given, **bias)
    for x in (TABLE, TABLE.astype(np.float64), (9 * TABLE).astype(np.int64)):
        agrees("LinearClassifier", [x], outputs=2, **given, **bias, **labels)
    words = {"classlabels_strings": ["a", "b", "c"]}
    agrees("LinearClassifier", [TABLE], outputs=2, **given, **bias, **words)
    if transform != "PROBIT":
        one = {"coefficients": weights[:4], "intercepts": [0.5], "post_transform": transform}
        agrees("LinearClassifier", [TABLE], outputs=2, **one, classlabels_ints=[5, 6])


@pytest.mark.parametrize(
    ("op", "attributes", "what"),
    [
        ("Scaler", {"offset": [1.0], "scale": [1.0, 2.0]}, "offset"),
        ("Scaler", {"offset": [1.0] * 3, "scale": [2.0] * 3}, "offset"),
        ("Normalizer", {"norm": "L3"}, "L3"),
        ("Imputer", {"replaced_value_float": 1.0}, "imputed values are missing"),
        ("LabelEncoder", {"keys_floats": [1.0], "values_floats": [1.0, 2.0]}, "1 keys"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_floats": [1.0]}, "keys are string"),
        ("CategoryMapper", {"cats_strings": ["a"], "cats_int64s": [1, 2]}, "int64, string"),
        ("OneHotEncoder", {"cats_int64s": [1, 2, 1]}, "all different"),
        ("LinearRegressor", {"coefficients": [1.0] * 3, "targets": 2}, "3 coefficients"),
        ("LinearRegressor", {"coefficients": [1.0] * 3}, "3 columns"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "post_transform": "NORM"}, "NORM"),
        ("LinearClassifier", {"coefficients": [1.0] * 4, "intercepts": [1.0],
                              "classlabels_ints": [0, 1, 2]}, "1 functions for 3 labels"),
        ("ZipMap", {}, "classlabels are missing"),
        ("ZipMap", {"classlabels_int64s": [1, 2]}, "numbers of"),
    ],
)  # fmt: skip
def test_what_is_refused(op: str, attributes: dict[str, Any], what: str) -> None:
    model, _ = node_model(op, [TABLE], domain=LEARNING, symbolic=False, **attributes)
    with pytest.raises(FTunerError, match=what):
        import_model(model)
