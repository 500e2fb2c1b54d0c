"""Models in the cache: a second load of a file compiles nothing and gives the same model, and what
depends on something else, or is damaged, is compiled again."""

import gc
import hashlib
import os
import shutil
import stat
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from tests.at_once import at_once
from tests.child import printed
from tests.frontends.onnx_models import parsed
from tests.runtime.saved.files import MODELS, ONES, dense, pictures, weight
from tests.runtime.saved.keeping import Loads, outside, same, saved_alike, written

import ftuner
from ftuner import inference
from ftuner.errors import CacheWarning, GraphError
from ftuner.runtime.cache import CACHE_VARIABLE
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.program import ProgramWriter
from ftuner.runtime.request import Request
from ftuner.runtime.saved import container, kept


@pytest.mark.parametrize("make", MODELS)
def test_the_same_model(make: Any, loads: Loads, tmp_path: Path) -> None:
    made, feeds = make()
    path = written(tmp_path / "model.onnx", made)
    own, again = loads(path), loads(path)
    assert loads.compiled == 1
    same(own, again, feeds)
    for one, other in zip(own.run_batch([feeds, feeds]), again.run_batch([feeds] * 2), strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y)
    assert [step.title for step in own.steps] == [step.title for step in again.steps]
    assert (own.weights_bytes, own.ragged) == (again.weights_bytes, again.ragged)
    shapes = {name: np.shape(x) for name, x in feeds.items()}
    assert own.explain(shapes).to_document() == again.explain(shapes).to_document()
    assert own.prepare(shapes) == again.prepare(shapes)
    for model in (own, again):
        model.trim()
    same(own, again, feeds)
    saved_alike(own, again, tmp_path)


def test_products_are_planned_ahead(
    loads: Loads, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and then kept with the model."""
    planned: list[int] = []
    plan_ahead = ProgramWriter.plan_ahead

    def counted(self: ProgramWriter, workers: int) -> Any:
        planned.append(workers)
        return plan_ahead(self, workers)

    monkeypatch.setattr(ProgramWriter, "plan_ahead", counted)
    own = loads(file, threads=2)
    # For the first runs, and to be kept.
    assert planned == [2, 2]
    loads(file, threads=2)
    assert planned == [2, 2]
    ftuner.save(own, tmp_path / "model.ftuner")
    assert planned == [2, 2, 2]
    ftuner.load(tmp_path / "model.ftuner")
    assert planned == [2, 2, 2]


def test_the_same_random_numbers(loads: Loads, file: Path) -> None:
    text = "(float[n] x) => (float[n] y) { r = RandomNormalLike(x)\n y = Add(x, r) }"
    written(file, parsed(text, 17))
    own, again = (loads(file, random_seed=3) for _ in range(2))
    assert loads.compiled == 1
    feeds = {"x": np.zeros(5, np.float32)}
    runs = [own.run(feeds)[0] for _ in range(2)]
    for wanted in runs:
        np.testing.assert_array_equal(again.run(feeds)[0], wanted)
    assert not np.array_equal(runs[0], runs[1])
    assert not np.array_equal(loads(file).run(feeds)[0], loads(file).run(feeds)[0])


def test_outputs_that_append_in_place(loads: Loads, file: Path) -> None:
    joined = "present = Concat<axis=1>(past, new)"
    text = f"(float[n, p, 4] past, float[n, s, 4] new) => (float[] present) {{ {joined} }}"
    written(file, parsed(text, 17))
    own, again = (loads(file, append_in_place=True) for _ in range(2))
    assert loads.compiled == 1
    assert own.appended == again.appended == {"past": "present"}
    assert own.copied == again.copied
    past, new = weight(2, 3, 4), weight(2, 1, 4)
    for _ in range(3):
        wanted = np.concatenate([past, new], axis=1)
        past = again(past=past, new=new)["present"]
        np.testing.assert_array_equal(past, wanted)
    assert not past.flags.writeable


def test_padding_is_left_out(loads: Loads, file: Path) -> None:
    text = """(float[b, s, 8] x, int64[b, s] mask) => (float[b, s, 8] y) <int64[1] last = {-1}> {
        m = Cast<to=1>(mask)
        u = Unsqueeze(m, last)
        a = MatMul(x, w)
        y = Mul(a, u)
    }"""
    written(file, parsed(text, 17, w=weight(8, 8)))
    own, again = (loads(file, unpad="auto") for _ in range(2))
    assert loads.compiled == 1
    assert own.padding_kept == again.padding_kept
    same(own, again, {"x": weight(2, 3, 8), "mask": np.array([[1, 1, 0], [1, 1, 1]])})


CHILD = """
import sys
import numpy as np
import ftuner
found = ftuner.load(sys.argv[1])(x=np.ones((5, 48), np.float32))
names = " ".join(sys.modules)
print(found["y"].tobytes().hex(), names, sep=chr(10))
"""
SESSION = """
import sys
import numpy as np
import ftuner.ort
(found,) = ftuner.ort.InferenceSession(sys.argv[1]).run(None, {"x": np.ones((5, 48), np.float32)})
print(found.tobytes().hex(), " ".join(sys.modules), sep=chr(10))
"""
OF_COMPILATION = {
    "llvmlite", "onnx", "ftuner.compiler", "ftuner.frontends.onnx.importer", "ftuner.graph.folding",
    "ftuner.graph.passes.pipeline", "ftuner.graph.ops.views", "ftuner.runtime.compile_processes",
}  # fmt: skip


@pytest.mark.parametrize("child", [CHILD, SESSION])
def test_a_second_process_imports_no_compiler(child: str, file: Path, cache_folder: Path) -> None:
    # A file that the folder does not have of an earlier run.
    text, new = "(float[n, 48] x) => (float[n, 9] y) { y = MatMul(x, w) }", np.random.default_rng()
    written(file, parsed(text, 17, w=new.standard_normal((48, 9)).astype(np.float32)))
    env = {**os.environ, CACHE_VARIABLE: str(cache_folder)}
    first, names = printed("-c", child, str(file), env=env).splitlines()
    assert not OF_COMPILATION - {*names.split()}
    second, names = printed("-c", child, str(file), env=env).splitlines()
    assert second == first
    assert OF_COMPILATION.isdisjoint(names.split())


def test_another_file_or_other_options_are_compiled(loads: Loads, file: Path) -> None:
    options: list[dict[str, Any]] = [
        {}, {"threads": 1}, {"append_in_place": True}, {"unpad": "auto"}, {"batch_axis": 0},
        {"batch_axis": {"x": 0}}, {"precision": "int4-weights"},
    ]  # fmt: skip
    loads(file, threads=2)
    for number, some in enumerate(options):
        given = {"threads": 2, **some}
        assert loads.is_compiled(file, **given) == (number > 0)
        assert not loads.is_compiled(file, **given)
    # Those of runs do not matter.
    model = loads(file, threads=2, random_seed=3, memory_limit=1 << 30, warm={"n": 4})
    assert model._options.kept.limit == 1 << 30
    assert not loads.is_compiled(file, threads=2)
    data = file.read_bytes()
    written(file, parsed("(float[n] x) => (float[n] y) { y = Neg(x) }", 17))
    assert loads.is_compiled(file, threads=2)
    file.write_bytes(data)
    assert not loads.is_compiled(file, threads=2)
    copy = Path(shutil.copy(file, file.with_name("copy.onnx")))
    assert not loads.is_compiled(copy, threads=2)
    with pytest.raises(ftuner.ConfigurationError, match="thread count"):
        loads(file, threads=0)
    with pytest.raises(ftuner.ConfigurationError, match="seed"):
        loads(file, threads=2, random_seed=-1)
    assert not loads.is_compiled(file, threads=2)


def test_another_version_or_tuning_is_compiled(
    loads: Loads, file: Path, as_default: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads(file)
    hardware = as_default.hardware
    tuning = replace(hardware.tuning, bundles_per_process=hardware.tuning.bundles_per_process + 1)
    changes: dict[str, tuple[object, object]] = {
        "VERSION": (kept, "0.0.1"),
        "_sources": (kept, lambda folder: "other"),
        "compiler_build": (kept, lambda: "other"),
        "facts": (as_default, replace(as_default.facts, model_name="another")),
        "_hardware": (as_default, replace(hardware, tuning=tuning)),
    }
    for name, (where, value) in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert loads.is_compiled(file), name
    assert not loads.is_compiled(file)


def test_sources_are_told_by_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, inner = kept._sources.__wrapped__, tmp_path / "inner"
    assert name(tmp_path) == name(tmp_path / "missing") == ""
    for folder in (inner, inner / "__pycache__"):
        folder.mkdir()
        (folder / "module.py").write_text("x = 1")
    os.utime(inner / "module.py", (2**33, 2**33))
    # Written after this process imported modules.
    assert not name(tmp_path)
    monkeypatch.setattr(kept, "_IMPORTED_S", 2**34)
    found = name(tmp_path)
    (inner / "__pycache__" / "module.py").write_text("x = 123")
    assert found == name(tmp_path) != ""
    (inner / "module.py").write_text("x = 12")
    second = name(tmp_path)
    os.utime(inner / "module.py", (0, 0))
    assert len({found, second, name(tmp_path)}) == 3
    assert kept._sources(kept._PACKAGE)


def test_data_outside_the_file(loads: Loads, file: Path) -> None:
    data = outside(file)
    own = loads(file)
    same(own, loads(file), ONES)
    assert loads.compiled == 1
    elements = np.fromfile(data, np.float32)
    elements += 1
    elements.tofile(data)
    changed = loads(file)
    assert loads.compiled == 2
    assert not np.array_equal(changed(**ONES)["y"], own(**ONES)["y"])
    same(changed, loads(file), ONES)
    assert loads.compiled == 2
    data.unlink()
    with pytest.raises(GraphError, match="no file 'data'"):
        loads(file)


def test_the_same_file_beside_other_data(loads: Loads, file: Path) -> None:
    """Each folder has an entry of its own; another name in the folder has the same."""
    outside(file)
    other = file.parent / "other" / file.name
    shutil.copytree(file.parent, other.parent, ignore=shutil.ignore_patterns("cache", "other"))
    elements = np.fromfile(other.with_name("data"), np.float32)
    (elements + 1).tofile(other.with_name("data"))
    copy = Path(shutil.copy(file, file.with_name("copy.onnx")))
    for path, is_new in ((file, True), (other, True), (file, False), (other, False), (copy, False)):
        assert loads.is_compiled(path) == is_new
    assert not np.array_equal(loads(file)(**ONES)["y"], loads(other)(**ONES)["y"])


def test_data_that_changes_while_it_is_read_is_not_kept(
    loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = outside(file)
    read = inference._read

    def changed(*arguments: Any) -> Any:
        found = read(*arguments)
        other = data.with_name("other")
        other.write_bytes(data.read_bytes())
        os.replace(other, data)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(inference, "_read", changed)
        assert loads.is_compiled(file)
    assert not (loads.cache.folder / "models").exists()


def test_data_that_is_written_through_a_mapping(
    loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may leave the times of such a file as they were."""
    for room in (kept, import_module("ftuner.frontends.onnx.files")):
        monkeypatch.setattr(room, "state_of", lambda at: (os.stat(at).st_size, 0, 0, 0, 0))
    data = outside(file)
    with data.open("ab") as grown:
        grown.truncate(17 << 20)
    own = loads(file)
    assert not loads.is_compiled(file)
    mapped = np.memmap(data, np.float32, "r+")
    mapped[:1000] += 1
    changed = loads(file)
    assert loads.compiled == 2
    assert not np.array_equal(changed(**ONES)["y"], own(**ONES)["y"])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 9, 10, 25])
def test_the_digest_of_a_file_is_that_of_its_chunks(
    size: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "CHUNK_BYTES", 10)
    monkeypatch.setattr(kept, "_BLOCK_BYTES", 4)
    path, data = tmp_path / "file", bytes(range(size))
    path.write_bytes(data)
    chunks = [data[at : at + 10] for at in range(0, max(size, 1), 10)]
    wanted = hashlib.sha256(b"".join(hashlib.sha256(chunk).digest() for chunk in chunks))
    assert kept.digest_of(path, threads) == wanted.hexdigest()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_nothing_is_kept_of_what_is_no_file(as_default: CpuBackend, tmp_path: Path) -> None:
    """Reading these would not end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (str(fifo), "/dev/zero"):
        assert kept.place_of(path, Request(), as_default, ()) is None


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="the system names no holes")
def test_an_entry_has_no_holes(loads: Loads, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with open(path, "w+b") as file:
        container.fill(file, {}, [memoryview(bytes(1 << 20)), memoryview(bytes(1 << 20))])
    with open(path, "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == path.stat().st_size


def flip(at: float, data: bytes) -> bytes:
    place = int(at * len(data))
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    **{f"flipped at {at}": partial(flip, at) for at in (0, 0.001, 0.3, 0.7, 0.99)},
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"x",
    "foreign": lambda data: b"\x7fELF" + data,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_replaced(damage: str, loads: Loads, file: Path) -> None:
    own = loads(file)
    entry = loads.entry
    data = entry.read_bytes()
    entry.write_bytes(DAMAGE[damage](data))
    with pytest.warns(CacheWarning, match="damaged or not ours"):
        again = loads(file)
    same(own, again, ONES)
    assert loads.compiled == 2
    assert loads.entry.read_bytes() == data
    assert not loads.is_compiled(file)


def test_an_entry_that_makes_no_sense_is_replaced(loads: Loads, file: Path) -> None:
    """Its checksums are right."""
    own = loads(file)
    entry = loads.entry
    opened = container.read(entry, 1)
    sections = [memoryview(bytes(section)) for section in opened.sections]
    last = len(sections)
    contents: tuple[Any, ...] = (
        {}, [], {**opened.content, "entries": last}, {**opened.content, "entries": -1},
        {**opened.content, "files": 1}, {**opened.content, "code": {}},
    )  # fmt: skip
    for content in contents:
        with entry.open("w+b") as written_to:
            container.fill(written_to, content, sections)
        with pytest.warns(CacheWarning, match="damaged or not ours"):
            same(own, loads(file), ONES)
        assert not loads.is_compiled(file)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no modes")
def test_an_entry_that_others_may_change_is_not_loaded(loads: Loads, file: Path) -> None:
    loads(file)
    assert stat.S_IMODE(loads.entry.stat().st_mode) == 0o600
    loads.entry.chmod(0o666)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert loads.is_compiled(file)
    assert stat.S_IMODE(loads.entry.stat().st_mode) == 0o600
    assert not loads.is_compiled(file)


def test_without_a_folder(loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads.cache.folder.write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert loads.is_compiled(file)
        assert loads.is_compiled(file)
    loads.cache.folder.unlink()
    for share in (0.0, 1e-6):
        monkeypatch.setattr(kept, "MODEL_SHARE", share)
        assert loads.is_compiled(file)
        assert not loads.cache.folder.exists()


def test_what_is_not_kept(loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models for numbers of axes that a run brings, and those that were read with extensions."""
    written(file, parsed("(float[] x) => (float[] y) { y = Relu(x) }", 17))
    assert loads.is_compiled(file)
    assert loads.is_compiled(file)
    written(file, dense()[0])
    with monkeypatch.context() as patch:
        patch.setattr(kept, "EXTENSIONS", {"rules"})
        assert loads.is_compiled(file)
    assert loads.is_compiled(file)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "EXTENSIONS", {"rules"})
        assert loads.is_compiled(file)


def test_a_file_that_changes_while_it_is_compiled_is_not_kept(
    loads: Loads, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = inference._read

    def changed(*arguments: Any) -> Any:
        written(file, dense()[0])
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(inference, "_read", changed)
        assert loads.is_compiled(file)
    assert not (loads.cache.folder / "models").exists()


def test_variants_of_names(loads: Loads, file: Path) -> None:
    """Inputs that contradict the file's names have it read then."""
    written(file, parsed("(float[n] x, float[n] y) => (float[] z) { z = Add(x, y) }", 17))
    loads(file)
    again = loads(file)
    one, three = np.ones(1, np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(again(x=three, y=three)["z"], three + 1)
    np.testing.assert_array_equal(again(x=three, y=one)["z"], three + 1)
    np.testing.assert_array_equal(again(x=one, y=three)["z"], three + 1)
    other = loads(file)
    assert loads.compiled == 1
    file.touch()
    assert other.prepare(x=(3,), y=(3,)).shapes == 1
    other = loads(file)
    written(file, parsed("(float[n] x, float[n] y) => (float[] z) { z = Sub(x, y) }", 17))
    with pytest.raises(ftuner.ShapeError, match="file has changed"):
        other(x=three, y=one)


def test_code_is_freed_with_its_models(loads: Loads, file: Path, as_default: CpuBackend) -> None:
    loads(file)
    images = as_default.kernels._images
    first, second = loads(file), loads(file)
    assert loads.compiled == 1
    assert first._options.code is second._options.code
    code = weakref.ref(first._options.code)
    assert code() in images
    # The uKernels of a library stay.
    as_default._products.clear()
    as_default.kernels._compiled.clear()
    del first, second
    gc.collect()
    assert code() is None


def test_loads_at_once(loads: Loads, tmp_path: Path) -> None:
    made, feeds = pictures()
    path, found = written(tmp_path / "model.onnx", made), list[Any]()
    for _ in range(2):
        at_once(*[lambda: found.append(loads(path).run(feeds)[0]) for _ in range(3)])
    assert len(found) == 6
    for result in found:
        np.testing.assert_array_equal(result, found[0])
    assert not loads.is_compiled(path)
