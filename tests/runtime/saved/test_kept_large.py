"""Models in the cache whose weights stay in their file, which may change meanwhile."""

import errno
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from tests.frontends.onnx_models import parsed
from tests.runtime.saved.files import MODELS, Arrays, weight
from tests.runtime.saved.keeping import Loads, outside, same, saved_alike, written

from ftuner.graph.sources import Files
from ftuner.runtime.cache import Cache
from ftuner.runtime.saved import kept, models
from ftuner.runtime.saved.models import Sections


def large(folder: Path, outside: bool) -> tuple[Path, Arrays]:
    """A file of weights of more than 1 MiB: read by rows, transposed, scaled, side by side."""
    text = """(int64[n] ids) => (float[n, 8] y) <float eighth = {0.125}> {
        x = Gather(table, ids)
        a = MatMul(x, w0)
        q = Mul(a, eighth)
        k = MatMul(x, w1)
        turned = Transpose<perm=[1, 0]>(w2)
        v = MatMul(x, turned)
        p = Mul(q, k)
        r = Relu(p)
        s = Add(r, v)
        t = MatMul(s, w3)
        b = Relu(t)
        y = MatMul(b, out)
    }"""
    weights = {name: weight(520, 520) for name in ("table", "w0", "w1", "w2", "w3")}
    path = written(folder / "large.onnx", parsed(text, 17, out=weight(520, 8), **weights))
    if outside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="large.data",
                  size_threshold=1024)  # fmt: skip
    return path, {"ids": np.array([3, 519, 0])}


@pytest.mark.parametrize("outside", [False, True])
def test_weights_of_large_models_stay_in_their_file(
    outside: bool, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, feeds = large(tmp_path, outside)
    monkeypatch.setattr(kept, "MODEL_SHARE", 0.004)
    own = loads(path)
    assert loads.entry.stat().st_size < 1 << 20
    again = loads(path)
    assert loads.compiled == 1
    same(own, again, feeds)
    assert own.weights_bytes == again.weights_bytes
    saved_alike(own, again, tmp_path)
    # What is loaded does not depend on the file any more.
    data = tmp_path / "large.data" if outside else path
    wanted = again.run(feeds)
    data.write_bytes(bytes(data.stat().st_size))
    gc.collect()
    for x, y in zip(again.run(feeds), wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("make", MODELS)
def test_any_weights_that_are_made_of_their_file(
    make: Any, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whatever size they are, and whatever steps read them."""
    made, feeds = make()
    path = written(tmp_path / "model.onnx", made)
    outside(path)
    monkeypatch.setattr(models, "MAX_WITHIN_BYTES", 0)
    monkeypatch.setattr(models, "Sections", lambda makes: Sections(makes=True))
    own, again = loads(path), loads(path)
    assert loads.compiled == 1
    same(own, again, feeds)
    assert own.weights_bytes == again.weights_bytes


def test_a_large_file_that_changes_while_it_is_loaded(
    loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, feeds = large(tmp_path, False)
    monkeypatch.setattr(kept, "MODEL_SHARE", 0.004)
    own = loads(path)
    outer = Files.read

    def touched(self: Files, location: str, begin: int, size: int) -> Any:
        path.touch()
        return outer(self, location, begin, size)

    monkeypatch.setattr(Files, "read", touched)
    same(own, loads(path), feeds)
    assert loads.compiled == 2


@pytest.mark.parametrize("last", range(6))
@pytest.mark.parametrize("is_changed", [False, True])
def test_an_entry_outlives_errors_of_its_file(
    is_changed: bool, last: int, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the weights cannot be read, or is read of another file."""
    path, feeds = large(tmp_path, False)
    monkeypatch.setattr(kept, "MODEL_SHARE", 0.004)
    own = loads(path)
    entry, before = loads.entry, loads.entry.stat()
    outer, reads = Files.read, list[int]()

    def failing(self: Files, location: str, begin: int, size: int) -> Any:
        reads.append(begin)
        if len(reads) <= last:
            return outer(self, location, begin, size)
        if not is_changed:
            raise OSError(errno.EMFILE, "Too many open files")
        path.touch()
        raise ValueError("a weight of another file")

    with monkeypatch.context() as patch:
        patch.setattr(Files, "read", failing)
        patch.setattr(Cache, "write_file", lambda *_: None)
        same(own, loads(path), feeds)
    assert loads.compiled == 2 - (last >= len(reads))
    assert entry.stat().st_ino == before.st_ino
    assert not loads.is_compiled(path)
