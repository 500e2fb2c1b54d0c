"""The axis of requests of models that do not name their dims."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.serving.test_unpadding import encoder_bytes

import ftuner
from ftuner.errors import ConfigurationError, InputError
from ftuner.frontends.onnx.batch_axis import with_batch_axis
from ftuner.frontends.onnx.importer import read_model

onnx = pytest.importorskip("onnx")
Dims = Sequence[object]
BLANK = (None, None)


def model(ids: Dims, mask: Dims) -> bytes:
    """The encoder of texts, with other dims of its inputs."""
    found = onnx.load_from_string(encoder_bytes())
    for value, dims in zip(found.graph.input, (ids, mask), strict=True):
        for dim, given in zip(value.type.tensor_type.shape.dim, dims, strict=True):
            dim.Clear()
            if given is not None:
                setattr(dim, "dim_value" if isinstance(given, int) else "dim_param", given)
    for value in found.graph.output:
        value.type.tensor_type.ClearField("shape")
    data: bytes = found.SerializeToString()
    return data


def feeds(rows: int, length: int) -> dict[str, Any]:
    ids = np.arange(rows * length).reshape(rows, length) % 11
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


@pytest.mark.parametrize("axis", [0, {"attention_mask": 0, "input_ids": 0}])
def test_a_batch_of_a_model_without_names(axis: Any) -> None:
    blank = ftuner.load(model(BLANK, BLANK), unpad="auto")
    named = ftuner.load(model(BLANK, BLANK), unpad="auto", batch_axis=axis)
    assert [str(v) for v in named.inputs] == [
        "input_ids: int64[batch, input_ids_1]", "attention_mask: int64[batch, input_ids_1]",
    ]  # fmt: skip
    assert blank.padding_kept
    assert named.padding_kept == ""
    batch = [feeds(1, 5), feeds(2, 9), feeds(1, 7)]
    for found, given in zip(named.run_batch(batch), batch, strict=True):
        for x, y, z in zip(found, named.run(given), blank.run(given), strict=True):
            assert x.tobytes() == y.tobytes()
            np.testing.assert_allclose(x, z, atol=1e-5)
    padded = feeds(2, 6)
    padded["attention_mask"][1, 2:] = 0
    assert not named.run(padded)[0][1, 2:].any()


def test_extents_that_differ_run_by_a_variant() -> None:
    """One mask for all requests."""
    named = ftuner.load(model(BLANK, BLANK), batch_axis=0)
    given = feeds(3, 5)
    given["attention_mask"] = given["attention_mask"][:1]
    wanted = ftuner.load(model(BLANK, BLANK)).run(given)
    for batch in ([given], [given, feeds(1, 4)]):
        for x, y in zip(named.run_batch(batch)[0], wanted, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-5)


def names(given: bytes, axis: Any) -> list[Any]:
    return [v.dims for v in with_batch_axis(read_model(given), axis).inputs]


def test_names() -> None:
    """Those that several axes of the file have are kept."""
    own = model(("a", "b"), ("c", "d"))
    assert names(own, 0) == [("batch", "input_ids_1")] * 2
    assert names(own, 1) == [("input_ids_0", "batch")] * 2
    assert names(own, {"input_ids": 0}) == [("batch", "input_ids_1"), ("c", "d")]
    assert names(own, {"input_ids": 0, "attention_mask": 1}) == [
        ("batch", "input_ids_1"), ("attention_mask_0", "batch"),
    ]  # fmt: skip
    assert names(model(("n", "s"), ("n", None)), 0) == [("n", "input_ids_1")] * 2
    assert names(model((None, 8), (None, None)), 0)[0] == ("batch", 8)
    assert names(model(("x", "batch"), ("y", "batch")), 0) == [("batch_", "batch")] * 2


@pytest.mark.parametrize(
    ("dims", "axis", "message"),
    [
        (BLANK, 2, "batch_axis is 2 for input input_ids, which has 2 axes"),
        (BLANK, -1, "batch_axis is -1"),
        (BLANK, True, "batch_axis is True"),
        (BLANK, "first", "batch_axis is 'first'"),
        (BLANK, {"ids": 0}, "batch_axis names 'ids'; inputs are input_ids, attention_mask"),
        (BLANK, {}, "inputs are input_ids"),
        ((1, None), 0, "whose extent is always 1 there"),
        (("n", "s"), {"input_ids": 0, "attention_mask": 1}, "the file calls n and s"),
    ],
)
def test_wrong_axes(dims: Dims, axis: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ftuner.load(model(dims, dims), batch_axis=axis)


def test_only_of_onnx_models(tmp_path: Any) -> None:
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(encoder_bytes()), path)
    with pytest.raises(ConfigurationError, match="batch_axis is for ONNX models"):
        ftuner.load(path, batch_axis=0)


def test_new_names_are_not_those_of_the_file() -> None:
    found = names(model((None, None), ("input_ids_1", None)), {"input_ids": 0})
    assert found[0] == ("batch", "input_ids_1_")
