"""Model files and the files beside them: only regular ones, within the folder, and read once."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx_models import model_of

from ftuner.errors import GraphError
from ftuner.frontends.onnx.files import MAX_MODEL_BYTES, ExternalData
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.reading import Source

REFUSED = "no file|regular|cannot read"


def _external(location: str, dims: list[int], **entries: object) -> onnx.TensorProto:
    """An initialiser of float32 in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _saved(folder: Path, *tensors: onnx.TensorProto) -> Path:
    """A model of sums with tensors that are called w0, w1 and so on."""
    names = [f"w{i}" for i in range(len(tensors))]
    model = model_of(
        [helper.make_node("Sum", ["x", *names], ["y"])], {"x": ("float32", ["N"])}, ["y"]
    )
    for name, tensor in zip(names, tensors, strict=True):
        model.graph.initializer.add().CopyFrom(tensor)
        model.graph.initializer[-1].name = name
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _read(source: Source) -> list[object]:
    """The elements of the tensors that a model adds to x."""
    added = (v for node in import_model(source).graph.nodes for v in node.inputs)
    return [v.constant.tolist() for v in added if v.constant is not None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with data of 4 KiB, in another folder with data of its own."""
    inner = tmp_path / "model"
    inner.mkdir()
    for place in (tmp_path, inner):
        np.arange(1024, dtype=np.float32).tofile(place / "data")
    return inner


def test_tensors_are_parts_of_a_file(folder: Path) -> None:
    path = _saved(folder, _external("data", [3], offset=8), _external("./data", [1]))
    assert _read(path) == [[2, 3, 4], [0]]


def _link(folder: Path) -> str:
    (folder / "link").symlink_to(folder.parent / "data")
    return "link"


def _linked_folder(folder: Path) -> str:
    (folder / "up").symlink_to(folder.parent)
    return "up/data"


def _loop(folder: Path) -> str:
    (folder / "loop").symlink_to(folder / "loop")
    return "loop"


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


def _device(folder: Path) -> str:
    (folder / "device").symlink_to("/dev/zero")
    return "device"


@pytest.mark.parametrize(
    "location",
    [
        lambda folder: "",
        lambda folder: ".",
        lambda folder: "../data",
        lambda folder: "x/../../data",
        lambda folder: str(folder / "data"),
        lambda folder: "/dev/zero",
        lambda folder: "data\0",
        lambda folder: "x" * 100_000,
        lambda folder: "other",
        _link,
        _linked_folder,
        _loop,
        _pipe,
        _device,
    ],
    ids=[
        "none", "folder", "up", "up twice", "absolute", "absolute device", "null", "long",
        "missing", "link", "linked folder", "loop", "pipe", "device",
    ],
)  # fmt: skip
def test_nothing_else_is_opened(folder: Path, location: Callable[[Path], str]) -> None:
    path = _saved(folder, _external(location(folder), [4]))
    with pytest.raises(GraphError, match=REFUSED):
        import_model(path)


def test_the_cache_of_the_hub_links_to_another_folder(tmp_path: Path) -> None:
    """A snapshot of the Hugging Face hub has links to files of other names, which are in one
    folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "revision" / "onnx"
    blobs.mkdir()
    (snapshot / "part").mkdir(parents=True)
    path = _saved(blobs, _external("part/model.data", [2]), _external("beside", [2], offset=4))
    for link, name in (("model.onnx", "aaaa"), ("part/model.data", "bbbb"), ("outside", "../cccc")):
        (snapshot / link).symlink_to(blobs / name)
    path.rename(blobs / "aaaa")
    for name in ("bbbb", "beside", "../cccc"):
        np.arange(4, dtype=np.float32).tofile(blobs / name)
    assert _read(snapshot / "model.onnx") == [[0, 1], [1, 2]]
    for location in ("outside", "../../../blobs/bbbb", str(blobs / "bbbb")):
        (blobs / "aaaa").unlink()
        _saved(blobs, _external(location, [2])).rename(blobs / "aaaa")
        with pytest.raises(GraphError, match="no file"):
            import_model(snapshot / "model.onnx")


def test_a_model_without_a_path_has_its_data_in_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _saved(folder, _external("data", [2])).read_bytes()
    monkeypatch.chdir(folder)
    for source in (data, onnx.load_from_string(data)):
        assert _read(source) == [[0, 1]]
    (folder / "data").unlink()
    with pytest.raises(GraphError, match="the working folder: give the path"):
        import_model(data)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": -4}, {"offset": 4096}, {"offset": 2**63}, {"offset": "9" * 5000},
        {"offset": "x"}, {"length": 12}, {"length": -16}, {"length": 2**80}, {"offset": "nan"},
    ],
    ids=str,
)  # fmt: skip
def test_a_place_outside_the_file_is_refused(folder: Path, entries: dict[str, object]) -> None:
    with pytest.raises(GraphError):
        import_model(_saved(folder, _external("data", [4], **entries)))


@pytest.mark.parametrize("dims", [[1025], [2**62], [2**40, 2**40], [2**62] * 64, [-1]], ids=str)
def test_tensors_larger_than_the_file_are_refused(folder: Path, dims: list[int]) -> None:
    with pytest.raises(GraphError):
        import_model(_saved(folder, _external("data", dims)))


def test_tensors_of_the_same_bytes_are_read_once(folder: Path) -> None:
    data = ExternalData(folder)
    first = data.read("data", 0, 4096, "w")
    assert all(data.read("data", 0, 4096, "w") is first for _ in range(1000))
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    path = _saved(folder, *(_external("data", [1024]) for _ in range(300)))
    import_model(path)


def test_tensors_may_not_overlap_many_times(folder: Path) -> None:
    """A small file would become any number of bytes."""
    tensors = [_external("data", [1000], offset=4 * i) for i in range(20)]
    with pytest.raises(GraphError, match="overlap"):
        import_model(_saved(folder, *tensors))


def test_a_model_file_must_be_a_regular_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    sparse = tmp_path / "sparse"
    with open(sparse, "wb") as file:
        file.truncate(MAX_MODEL_BYTES + 1)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "none", sparse):
        with pytest.raises(GraphError, match=r"regular|read|at most"):
            import_model(path)
