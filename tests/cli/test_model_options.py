"""Inputs from options, and whether outputs agree: no model is run."""

from pathlib import Path

import numpy as np
import pytest

from ftuner.cli.arrays import (
    all_shapes,
    gathered_inputs,
    parsed_files,
    parsed_shapes,
    random_inputs,
)
from ftuner.errors import ConfigurationError, InputError, ShapeError
from ftuner.runtime.model import TensorSpec
from ftuner_tools.agreement import agreement

SPECS = [
    TensorSpec("ids", "int64", ("batch", "length")),
    TensorSpec("mask", "bool", ("batch", "length")),
    TensorSpec("scale", "float32", ()),
    TensorSpec("table", "float64", ("batch", 3)),
]


def test_shapes_are_parsed() -> None:
    assert parsed_shapes(["a=1x77,b=3", "c=", "x:0=y=0x2"]) == {
        "a": (1, 77),
        "b": (3,),
        "c": (),
        "x:0=y": (0, 2),
    }


@pytest.mark.parametrize("text", ["", "a", "=3", "a=x", "a=3x", "a=-1", "a=1*2", "a=1,a=1", "a=n"])
def test_shapes_of_another_syntax(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--shape"):
        parsed_shapes([text])


def test_files_are_parsed() -> None:
    assert parsed_files(["a=x.npy", "b=d/e=f.npy"]) == {"a": Path("x.npy"), "b": Path("d/e=f.npy")}


@pytest.mark.parametrize("options", [["a"], ["a="], ["=x.npy"], ["a=x.npy", "a=y.npy"]])
def test_files_of_another_syntax(options: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--input"):
        parsed_files(options)


def test_extents_follow_from_those_given() -> None:
    expected = {"ids": (2, 5), "mask": (2, 5), "scale": (), "table": (2, 3)}
    assert all_shapes(SPECS, {"ids": (2, 5)}) == expected
    assert all_shapes(SPECS, {"mask": (2, 5), "table": (2, 3)}) == expected


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, InputError, "batch, length"),
        ({"table": (2, 3)}, InputError, "--shape ids="),
        ({"nope": (1,)}, InputError, "there are ids, mask, scale, table"),
        ({"ids": (2,)}, InputError, r"\[batch, length\]"),
        ({"table": (2, 4)}, ShapeError, r"the model takes \[batch, 3\]"),
        ({"ids": (2, 5), "mask": (3, 5)}, InputError, "unknown extents batch of input table"),
    ],
)
def test_extents_that_do_not_fit(
    given: dict[str, tuple[int, ...]], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        all_shapes(SPECS, given)


def test_axes_of_one_name_may_differ() -> None:
    expected = {"ids": (2, 5), "mask": (2, 6), "scale": (), "table": (2, 3)}
    assert all_shapes(SPECS, {"ids": (2, 5), "mask": (2, 6)}) == expected


def test_random_inputs() -> None:
    shapes = all_shapes(SPECS, {"ids": (4, 50)})
    found = random_inputs(SPECS, shapes)
    assert {name: (x.dtype.name, x.shape) for name, x in found.items()} == {
        spec.name: (spec.dtype, shapes[spec.name]) for spec in SPECS
    }
    assert set(np.unique(found["ids"])) == {0, 1}
    assert len(np.unique(found["table"])) == 12
    again, other = random_inputs(SPECS, shapes), random_inputs(SPECS, shapes, seed=1)
    assert all((found[name] == again[name]).all() for name in found)
    assert (found["ids"] != other["ids"]).any()
    with pytest.raises(ConfigurationError, match="ids"):
        random_inputs(SPECS[:1], {"ids": (1 << 40, 1 << 40)})


def test_files_give_extents(tmp_path: Path) -> None:
    ids = np.arange(6).reshape(2, 3)
    np.save(tmp_path / "ids.npy", ids)
    found = gathered_inputs(SPECS, [f"ids={tmp_path / 'ids.npy'}"], ["table=2x3"])
    assert list(found) == [spec.name for spec in SPECS]
    assert (found["ids"] == ids).all()
    assert found["mask"].shape == (2, 3)
    with pytest.raises(ConfigurationError, match="not both"):
        gathered_inputs(SPECS, [f"ids={tmp_path / 'ids.npy'}"], ["ids=2x3"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "several.npz", np.zeros(1))
    for name in ("missing.npy", "text.npy", "empty.npy", "objects.npy", "several.npz", ""):
        with pytest.raises(InputError, match="input ids"):
            gathered_inputs(SPECS, [f"ids={tmp_path / name}"], None)


def test_agreement() -> None:
    y = np.array([1.0, -200.0, 0.0, np.inf, np.nan], np.float32)
    assert agreement(y, y) == agreement(y.copy(), y)
    assert agreement(y, y).within
    near = agreement(y + np.float32(5e-5), y)
    assert near.within
    assert near.absolute == pytest.approx(5e-5, rel=0.5)
    assert near.relative == pytest.approx(5e-5, rel=0.01)
    assert not agreement(y + np.float32(5e-5), y, rtol=0.0, atol=1e-6).within
    far = agreement(y * np.float32(1.01), y)
    assert not far.within
    assert far.relative == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (np.zeros(2), np.zeros(3), "float64"),
        (np.zeros(2), np.zeros(2, np.float32), "instead of"),
        (np.array([np.nan]), np.zeros(1), "NaN"),
        (np.array([np.inf]), np.array([-np.inf]), "infinite"),
    ],
)
def test_no_agreement(x: np.ndarray, y: np.ndarray, why: str) -> None:
    found = agreement(x, y)
    assert not found.within
    assert found.absolute is None
    assert why in found.why


def test_agreement_of_nothing_and_of_integers() -> None:
    assert agreement(np.zeros((0, 3)), np.zeros((0, 3))).within
    assert agreement(np.array([True]), np.array([True])).absolute == 0.0
    assert not agreement(np.array([3]), np.array([4])).within
