"""Saved models: the same bits without onnx and a compiler, and a named error for any other file."""

from __future__ import annotations

import gc
import hashlib
import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper
from tests.at_once import at_once
from tests.conftest import HOST_ISAS

import ftuner
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.system import read_system
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.session import ISA_VARIABLE
from ftuner.runtime.saved import code, container, models, values

RNG = np.random.default_rng(3)
NODE = helper.make_node
FLOAT, INT64, BOOL, STRING = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
)  # fmt: skip
Arrays = Mapping[str, Any]
ONES = {"x": np.ones((5, 48), np.float32)}


def weight(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Arrays) -> Any:
    stored = [numpy_helper.from_array(x, name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def dense() -> tuple[Any, Arrays]:
    """Two products that share a weight, and one of two operands."""
    nodes = [
        NODE("MatMul", ["x", "w"], ["a"]), NODE("Relu", ["a"], ["b"]),
        NODE("MatMul", ["b", "w"], ["c"]), NODE("Add", ["c", "v"], ["y"]),
        NODE("Transpose", ["y"], ["t"], perm=[1, 0]), NODE("MatMul", ["y", "t"], ["z"]),
    ]  # fmt: skip
    outputs = [info("y", ["n", 48]), info("z", ["n", "n"])]
    weights = {"w": weight(48, 48), "v": weight(48)}
    return model(nodes, [info("x", ["n", 48])], outputs, weights), {"x": weight(7, 48)}


def pictures() -> tuple[Any, Arrays]:
    """A Winograd convolution, one of few channels, depthwise ones in a chain, groups, a pool."""
    nodes = [
        NODE("Conv", ["x", "w0"], ["a"], pads=[1] * 4, strides=[2, 2]),
        NODE("Clip", ["a", "zero", "six"], ["b"]),
        NODE("Conv", ["b", "w1"], ["c"], pads=[1] * 4),
        NODE("Conv", ["c", "w2"], ["d"]), NODE("Clip", ["d", "zero", "six"], ["e"]),
        NODE("Conv", ["e", "w3"], ["f"], group=96, pads=[1] * 4),
        NODE("Clip", ["f", "zero", "six"], ["g"]), NODE("Conv", ["g", "w4"], ["h"]),
        NODE("Add", ["h", "c"], ["i"]), NODE("Conv", ["i", "w5"], ["j"], group=2),
        NODE("GlobalAveragePool", ["j"], ["y"]),
    ]  # fmt: skip
    weights = {
        "w0": weight(16, 3, 3, 3), "w1": weight(16, 16, 3, 3), "w2": weight(96, 16, 1, 1),
        "w3": weight(96, 1, 3, 3), "w4": weight(16, 96, 1, 1), "w5": weight(24, 8, 1, 1),
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    weights = {name: np.asarray(x) for name, x in weights.items()}
    inputs, outputs = [info("x", ["n", 3, "h", "w"])], [info("y", ["n", 24, 1, 1])]
    return model(nodes, inputs, outputs, weights), {"x": weight(2, 3, 37, 41)}


def recurrent() -> tuple[Any, Arrays]:
    node = NODE("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=20)
    outputs = [info("y", None), info("h", None), info("c", None)]
    weights = {"w": weight(1, 80, 9), "r": weight(1, 80, 20), "b": weight(1, 160)}
    return model([node], [info("x", ["s", "n", 9])], outputs, weights), {"x": weight(6, 3, 9)}


def loop() -> tuple[Any, Arrays]:
    """A loop whose body has a weight, within a model of several parts."""
    body = helper.make_graph(
        [NODE("MatMul", ["s", "w"], ["t"]), NODE("Tanh", ["t"], ["u"]),
         NODE("Identity", ["go"], ["on"])],
        "body", [info("i", [], INT64), info("go", [], BOOL), info("s", ["n", 33])],
        [info("on", [], BOOL), info("u", ["n", 33])],
        [numpy_helper.from_array(weight(33, 33), "w")],
    )  # fmt: skip
    nodes = [NODE("Loop", ["trips", "", "x"], ["z"], body=body), NODE("MatMul", ["z", "v"], ["y"])]
    inputs = [info("x", ["n", 33]), info("trips", [], INT64)]
    feeds = {"x": weight(4, 33), "trips": np.array(3)}
    return model(nodes, inputs, [info("y", ["n", 2])], {"v": weight(33, 2)}), feeds


def found() -> tuple[Any, Arrays]:
    """An extent that depends on data, and elements that are chosen by it."""
    nodes = [
        NODE("NonZero", ["x"], ["at"]), NODE("Transpose", ["at"], ["rows"], perm=[1, 0]),
        NODE("Cast", ["rows"], ["floats"], to=FLOAT), NODE("MatMul", ["floats", "w"], ["y"]),
    ]  # fmt: skip
    x = (RNG.standard_normal((5, 6)) > 0).astype(np.float32)
    return model(nodes, [info("x", ["n", "m"])], [info("y", None)], {"w": weight(2, 5)}), {"x": x}


def words() -> tuple[Any, Arrays]:
    nodes = [NODE("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", stopwords=["a"])]
    nodes = [
        NODE("LabelEncoder", ["x"], ["v"], domain="ai.onnx.ml", keys_strings=["a", "b"],
             values_floats=[1.5, -0.0], default_float=float("inf")), NODE("Neg", ["v"], ["y"]),
    ]  # fmt: skip
    made = model(nodes, [info("x", ["n"], STRING)], [info("y", ["n"])], {})
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made, {"x": np.array(["a", "b", "c"], object)}


def gathered() -> tuple[Any, Arrays]:
    """A table that no step packs, of 16-bit floats, and symbolic positions."""
    nodes = [
        NODE("Gather", ["table", "ids"], ["a"]), NODE("Cast", ["a"], ["b"], to=FLOAT),
        NODE("Shape", ["ids"], ["s"]), NODE("ReduceMean", ["b"], ["m"], axes=[-1]),
        NODE("Sub", ["b", "m"], ["y"]),
    ]  # fmt: skip
    made = model(
        nodes, [info("ids", ["n", "s"], INT64)], [info("y", None), info("s", [2], INT64)],
        {"table": weight(31, 17).astype(np.float16)},
    )  # fmt: skip
    return made, {"ids": RNG.integers(-31, 31, (3, 4))}


MODELS = (dense, pictures, recurrent, loop, found, words, gathered)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    """The file of `dense`."""
    path = tmp_path_factory.mktemp("saved") / "dense.ftuner"
    ftuner.save(ftuner.load(dense()[0]), path)
    return path


def same(first: ftuner.Model, second: ftuner.Model, feeds: Arrays) -> None:
    assert (first.inputs, first.outputs) == (second.inputs, second.outputs)
    for one, other in zip(first.run(feeds), second.run(feeds), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", MODELS)
def test_the_same_bits(make: Any, threads: int, tmp_path: Path) -> None:
    made, feeds = make()
    own, path = ftuner.load(made, threads=threads), tmp_path / "model.ftuner"
    ftuner.save(own, path)
    again = ftuner.load(path, threads=threads)
    same(own, again, feeds)
    assert own.weights_bytes == again.weights_bytes
    assert [step.title for step in own.steps] == [step.title for step in again.steps]
    assert own.explain(feeds).weight_bytes == again.explain(feeds).weight_bytes
    # What was loaded is saved alike.
    ftuner.save(again, tmp_path / "again.ftuner")
    assert (tmp_path / "again.ftuner").read_bytes() == path.read_bytes()


def test_with_another_number_of_threads(saved: Path) -> None:
    x = weight(64, 48)
    one, two = (ftuner.load(saved, threads=threads) for threads in (1, 2))
    np.testing.assert_allclose(one(x=x)["y"], two(x=x)["y"], 1e-4, 1e-4)
    assert (one.threads, two.threads) == (1, 2)


def test_appended_in_place(tmp_path: Path) -> None:
    made = model(
        [NODE("Concat", ["past", "new"], ["present"], axis=1)],
        [info("past", ["n", "p", 4]), info("new", ["n", "s", 4])],
        [info("present", None)], {},
    )  # fmt: skip
    own, path = ftuner.load(made, append_in_place=True), tmp_path / "model.ftuner"
    ftuner.save(own, path)
    again = ftuner.load(path)
    assert again.appended == own.appended == {"past": "present"}
    first = again(past=weight(1, 3, 4), new=weight(1, 2, 4))["present"]
    second = again(past=first, new=weight(1, 1, 4))["present"]
    np.testing.assert_array_equal(second[:, :5], first)
    ftuner.save(ftuner.load(made), path)
    with pytest.raises(ftuner.ConfigurationError, match="saved without append_in_place"):
        ftuner.load(path, append_in_place=True)


def test_random_numbers(tmp_path: Path) -> None:
    made = model(
        [NODE("RandomNormalLike", ["x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])], {}
    )
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(made), path)
    same(ftuner.load(made, random_seed=7), ftuner.load(path, random_seed=7), {"x": weight(5)})


def test_several_isas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, feeds = dense()
    source, path = tmp_path / "model.onnx", tmp_path / "model.ftuner"
    source.write_bytes(made.SerializeToString())
    ftuner.save(ftuner.load(source, threads=1), path, isas=HOST_ISAS)
    for isa in HOST_ISAS:
        monkeypatch.setenv(ISA_VARIABLE, isa)
        again = ftuner.load(path, threads=1)
        assert {x.isa for x in again.all_executables()} == {isa}
        np.testing.assert_allclose(again.run(feeds)[0], ftuner.load(made).run(feeds)[0], 1e-4, 1e-4)
    with pytest.raises(ftuner.ConfigurationError, match="was not loaded from a path"):
        ftuner.save(ftuner.load(made), path, isas=["other"])
    for file in (source, path):
        with pytest.raises(ftuner.ConfigurationError, match="this machine has"):
            ftuner.save(ftuner.load(file), tmp_path / "other.ftuner", isas=["avx1024"])


ALONE = """
import sys
sys.path.insert(0, sys.argv[2])
import numpy as np
import ftuner
found = ftuner.load(sys.argv[1])(x=np.ones((5, 48), np.float32))
sys.stdout.write(found["y"].tobytes().hex())
"""


def test_with_numpy_alone(saved: Path, tmp_path: Path) -> None:
    """No other package, cache folder or model of the machine."""
    for package in (np, ftuner):
        assert package.__file__
        folder = Path(package.__file__).parent
        for name in (folder.name, f"{folder.name}.libs"):
            (tmp_path / name).symlink_to(folder.with_name(name))
    environment = {"FTUNER_CACHE_DIR": str(tmp_path / "empty")}
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE, str(saved), str(tmp_path)], env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert not found.stderr
    assert found.stdout == ftuner.load(saved)(**ONES)["y"].tobytes().hex()
    assert not (tmp_path / "empty").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_shared(saved: Path) -> None:
    """They are pages of the file, which this process has no copy of."""
    kept = ftuner.load(saved)
    kept(**ONES)
    text = Path("/proc/self/smaps").read_text()
    at = text.index(str(saved))
    entry = dict(line.split(":", 1) for line in text[at:].splitlines()[1:20] if ":" in line)
    assert int(entry["Anonymous"].split()[0]) == 0
    assert int(entry["Rss"].split()[0]) > 0


def test_a_saved_model_is_pickled_by_its_path(saved: Path) -> None:
    same(ftuner.load(saved), pickle.loads(pickle.dumps(ftuner.load(saved))), ONES)


def test_a_file_is_replaced_as_a_whole(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ftuner"
    shutil.copy(saved, path)
    before = ftuner.load(path)
    wanted = before(**ONES)["y"]
    ftuner.save(ftuner.load(recurrent()[0]), path)
    np.testing.assert_array_equal(before(**ONES)["y"], wanted)
    assert [spec.name for spec in ftuner.load(path).outputs] == ["y", "h", "c"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_numbers_at_run_time(tmp_path: Path) -> None:
    """What was compiled for the answers so far is saved; others are refused."""
    made = model(
        [NODE("MatMul", ["x", "w"], ["a"]), NODE("Unsqueeze", ["a", "axes"], ["b"]),
         NODE("Reshape", ["b", "shape"], ["y"])],
        [info("x", ["n", 8]), info("axes", [1], INT64), info("shape", ["r"], INT64)],
        [info("y", None)], {"w": weight(8, 8)},
    )  # fmt: skip
    own, path = ftuner.load(made), tmp_path / "model.ftuner"
    feeds = {"x": weight(6, 8), "axes": np.array([1]), "shape": np.array([3, 16])}
    own.run(feeds)
    ftuner.save(own, path)
    again = ftuner.load(path)
    same(own, again, feeds)
    same(own, again, {**feeds, "x": weight(2, 8), "shape": np.array([2, 8])})
    assert again.explain(feeds).groups
    with pytest.raises(ftuner.SavedModelError, match="no machine code for these"):
        again.run({**feeds, "axes": np.array([0])})
    ftuner.save(again, tmp_path / "again.ftuner")
    assert (tmp_path / "again.ftuner").read_bytes() == path.read_bytes()


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    unranked = model([NODE("Relu", ["x"], ["y"])], [info("x", None)], [info("y", None)], {})
    with pytest.raises(ftuner.SavedModelError, match="number of axes"):
        ftuner.save(ftuner.load(unranked), tmp_path / "model.ftuner")
    own = ftuner.load(dense()[0])
    for name in ("model.onnx", "model"):
        with pytest.raises(ftuner.ConfigurationError, match=r"ends in \.ftuner"):
            ftuner.save(own, tmp_path / name)
    (tmp_path / "folder.ftuner").mkdir()
    with pytest.raises(ftuner.ConfigurationError, match="not a regular file"):
        ftuner.save(own, tmp_path / "folder.ftuner")
    with pytest.raises(ftuner.ConfigurationError, match="cannot write"):
        ftuner.save(own, tmp_path / "missing" / "model.ftuner")
    assert [file.name for file in tmp_path.iterdir()] == ["folder.ftuner"]


def test_options_that_a_file_has_not(saved: Path, tmp_path: Path) -> None:
    for options in ({"device": "cuda"}, {"dtype": "float16"}):
        with pytest.raises(ftuner.ConfigurationError, match="compiled for a CPU"):
            ftuner.load(saved, **options)  # type: ignore[arg-type]
    with pytest.raises(ftuner.MissingFileError):
        ftuner.load(tmp_path / "missing.ftuner")


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_found(seed: int, saved: Path, tmp_path: Path) -> None:
    """Wherever it is: a file that loads is the one that was written."""
    random, data, path = Random(seed), saved.read_bytes(), tmp_path / "model.ftuner"
    for _ in range(60):
        at = random.randrange(len(data))
        changed = bytearray(data)
        changed[at] ^= 1 << random.randrange(8)
        cut = data[:at]
        moved = data[:at] + bytes(random.randrange(1, 9)) + data[at:]
        for damaged in (bytes(changed), cut, moved, data + b"\0"):
            path.write_bytes(damaged)
            with pytest.raises(ftuner.GraphError if at < 32 else ftuner.ParseError):
                ftuner.load(path)


def test_hostile_documents(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose checksums are right, with content that nothing has written."""
    # No other model has the code by now.
    monkeypatch.setattr(code, "_backends", WeakValueDictionary())
    opened = container.read(saved, 1)
    path = tmp_path / "model.ftuner"
    (body,) = opened.content["bodies"]
    own = {**opened.content}
    sections = [memoryview(bytes(section)) for section in opened.sections]
    entry = next(iter(body["code"]["entries"]))
    codes = [
        {**body["code"], **changed} for changed in (
            {"data": 1 << 40}, {"data": -1}, {"data": body["entries"]}, {"machine": "other"},
            {"code_bytes": 1}, {"code_bytes": 1 << 40}, {"code_bytes": -4096}, {"code_bytes": "a"},
            {"entries": {}}, {"entries": {entry: -8}}, {"entries": {entry: 1 << 40}},
            {"entries": 3}, {"functions": {"memset": 1 << 40}}, {"functions": {"no_such": 0}},
            {"functions": {"memset": "0"}}, {"more": 0},
        )
    ]  # fmt: skip
    for content in (
        None, [], {}, {**own, "bodies": None}, {**own, "bodies": [None]}, {**own, "bodies": [{}]},
        *({**own, "bodies": [{**body, "code": found}]} for found in (None, {}, *codes)),
        {**own, "bodies": [{**body, "entries": -1}]},
        {**own, "bodies": [{**body, "hardware": {}}]},
        {**own, "bodies": [{**body, "flags": 3}]},
        {**own, "bodies": []}, {**own, "schema": None, "bodies": [{**body, "isa": "none"}]},
    ):  # fmt: skip
        container.write(path, content, sections)
        with pytest.raises(ftuner.FTunerError):
            ftuner.load(path)
    entries = [
        3, [], [3], [[]], [["tuple", 0]], [["tuple", -1]], [["os.system", 0]], ["x", ["list", 0]],
        ["<f4", 1, ["tuple", 1], ["array", 0, 2, 1 << 30]],
        ["<f4", -1, ["tuple", 1], ["array", 0, 2, 0]], ["O", 1, ["tuple", 1], ["array", 0, 2, 0]],
        ["<f4", 1 << 60, ["tuple", 1], ["array", 0, 2, 0]],
        ["<f4", 1 << 60, ["tuple", 1], ["hollow", 0, 2]],
        [0, ["graph.ir.Graph", 0, 0, 0, 0]], [0, ["graph.ir.Graph", 0]],
    ]  # fmt: skip
    for table in entries:
        changed = sections.copy()
        changed[body["entries"]] = memoryview(models.encoded(table))
        container.write(path, own, changed)
        with pytest.raises(ftuner.ParseError):
            ftuner.load(path)


def forged(document: bytes, rest: bytes = b"", **header: int) -> bytes:
    """A file with right checksums of its header and document."""
    first = container._first(len(document))
    fields = {"format": container.FORMAT, "total": first + len(rest), "size": len(document)}
    begin = container._HEADER.pack(container.MAGIC, *(fields | header).values())
    data = begin + hashlib.sha256(begin + document).digest() + document
    return data.ljust(first, b"\0") + rest


def test_hostile_headers_and_sections(tmp_path: Path) -> None:
    path, good = tmp_path / "model.ftuner", b'{"sections":[],"chunks":[],"content":0}'
    many = b",".join([b"[0,0]"] * (container.MAX_SECTIONS + 1))
    files = [
        forged(good), forged(good, b"1"), forged(good, total=(1 << 64) - 1),
        forged(good, size=(1 << 64) - 1), forged(good, size=1 << 40), forged(good, size=0),
        forged(b""), forged(b"[]"), forged(b"[" * 100_000), forged(b"\xff"), forged(b"9" * 10_000),
        forged(b'{"sections":[],"chunks":[]}'),
        forged(b'{"sections":[],"chunks":null,"content":0}'),
        forged(b'{"sections":[],"chunks":["0"],"content":0}', bytes(4096)),
        forged(b'{"sections":[' + many + b'],"chunks":[],"content":0}'),
    ]  # fmt: skip
    for section in (
        "[0,1e999]", "[0,NaN]", '["a",1]', "[0]", "[0,1,2]", "3", "null", "[-64,8]", "[3,8]",
        "[0,-1]", "[0,4097]", "[4096,1]", "[4611686018427387904,1]", "[0,4611686018427387904]",
        "[0,36893488147419103232]",
    ):  # fmt: skip
        document = f'{{"sections":[{section}],"chunks":[],"content":0}}'
        files.append(forged(document.encode(), bytes(4096)))
    for data in files:
        path.write_bytes(data)
        with pytest.raises(ftuner.ParseError):
            ftuner.load(path)
    path.write_bytes(forged(good, format=9))
    with pytest.raises(ftuner.SavedModelError, match="has the format 9"):
        ftuner.load(path)


@pytest.mark.parametrize("seed", range(4))
def test_hostile_tables(seed: int, saved: Path, tmp_path: Path) -> None:
    """Changed values in files whose checksums are right: some load, others have a named error."""
    random, path = Random(seed), tmp_path / "model.ftuner"
    opened = container.read(saved, 1)
    (body,) = opened.content["bodies"]
    sections = [memoryview(bytes(section)) for section in opened.sections]
    entries = json.loads(bytes(sections[body["entries"]]))
    refused = 0
    for _ in range(40):
        table = [[*entry] if isinstance(entry, list) else entry for entry in entries]
        at = random.randrange(len(table))
        value = random.choice((-1, 0, 1, 7, 1 << 31, 1 << 70, 0.5, None, True, "x", "float32"))
        if isinstance(table[at], list) and len(table[at]) > 1:
            table[at][random.randrange(1, len(table[at]))] = random.randrange(at)
        else:
            table[at] = value
        sections[body["entries"]] = memoryview(models.encoded(table))
        container.write(path, opened.content, sections)
        try:
            ftuner.load(path)
        except ftuner.FTunerError:
            refused += 1
    assert refused


def test_another_version(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps are compiled again if this version can read them."""
    with monkeypatch.context() as patch:
        patch.setattr(models, "interface", lambda: "0.0.1-0")
        same(ftuner.load(saved), ftuner.load(saved), ONES)
        (record,) = caplog.records
        assert "saved by ftuner" in record.message
        assert record.message.endswith("compiled again for this machine")
        with patch.context() as inner:
            inner.setattr(models, "find_spec", lambda name: None)
            with pytest.raises(ftuner.SavedModelError, match=r"save the model again.* llvmlite is"):
                ftuner.load(saved)
        patch.setattr(values, "MEANING", 0)
        values.schema.cache_clear()
        with pytest.raises(ftuner.SavedModelError, match="save the model again"):
            ftuner.load(saved)
    values.schema.cache_clear()
    path = tmp_path / "model.ftuner"
    with monkeypatch.context() as patch:
        patch.setattr(container, "FORMAT", 2)
        ftuner.save(ftuner.load(dense()[0]), path)
    with pytest.raises(ftuner.SavedModelError, match="has the format 2"):
        ftuner.load(path)


def test_another_machine(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    facts = read_system()
    needed = code.needed_flags(instruction_set(HOST_ISAS[-1]), facts)
    machines = {"this is other": replace(facts, architecture="other")}
    if needed:
        poorer = replace(facts, features=facts.features - {needed[0]})
        machines[f"lacks {needed[0]}.*ftuner save"] = poorer
    for text, machine in machines.items():
        with monkeypatch.context() as patch:
            patch.setattr(models, "_facts", lambda machine=machine: machine)
            again = ftuner.load(saved)
            assert re.search(text, caplog.records[-1].message)
            np.testing.assert_allclose(again(**ONES)["y"], ftuner.load(saved)(**ONES)["y"], 1e-4)
            patch.setattr(models, "find_spec", lambda name: None)
            with pytest.raises(ftuner.HardwareError, match=text):
                ftuner.load(saved)
    # Caches, cores and clocks decide nothing: the plans are those of the machine that saved it.
    with monkeypatch.context() as patch:
        patch.setattr(models, "_facts", lambda: replace(facts, cores=96, caches=()))
        ftuner.load(saved)(**ONES)


@pytest.mark.skipif(len(HOST_ISAS) < 2, reason="this machine has one ISA")
@pytest.mark.parametrize("make", MODELS)
def test_compiled_again_for_another_isa(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are packed again, from the panels of the file."""
    made, feeds = make()
    source, path = tmp_path / "model.onnx", tmp_path / "model.ftuner"
    source.write_bytes(made.SerializeToString())
    own, (first, *_, last) = ftuner.load(source), HOST_ISAS
    for isa, other in ((first, last), (last, first)):
        ftuner.save(own, path, isas=[isa])
        with monkeypatch.context() as patch:
            patch.setenv(ISA_VARIABLE, other)
            patch.setattr(models, "default_backend", lambda other=other: CpuBackend(isa=other))
            again = ftuner.load(path)
        assert {x.isa for x in again.all_executables()} == {other}
        for one, two in zip(own.run(feeds), again.run(feeds), strict=True):
            if one.dtype.kind == "f":
                np.testing.assert_allclose(one, two, 1e-3, 1e-3)
            else:
                np.testing.assert_array_equal(one, two)
        ftuner.save(again, tmp_path / "again.ftuner", isas=[isa])
        same(ftuner.load(path), ftuner.load(tmp_path / "again.ftuner"), feeds)


@pytest.mark.skipif(len(HOST_ISAS) < 2, reason="this machine has one ISA")
def test_a_narrower_isa_is_used_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    source, path = tmp_path / "model.onnx", tmp_path / "model.ftuner"
    source.write_bytes(dense()[0].SerializeToString())
    ftuner.save(ftuner.load(source), path, isas=HOST_ISAS[:1])
    for _ in range(2):
        again = ftuner.load(path)
        assert {x.isa for x in again.all_executables()} == {HOST_ISAS[0]}
    (record,) = caplog.records
    assert f"no machine code for {HOST_ISAS[-1]}" in record.message


def test_models_of_one_machine_share_workers(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(recurrent()[0]), path)
    first, second = (next(iter(ftuner.load(p).all_executables())) for p in (saved, path))
    assert first.session is second.session  # type: ignore[attr-defined]


def test_a_file_that_is_loaded_again_keeps_nothing_more(saved: Path) -> None:
    kept = ftuner.load(saved)
    (executable,) = kept.all_executables()
    kernels = executable.session.kernels  # type: ignore[attr-defined]
    before = len(kernels._images), len(kernels._code._others)
    for _ in range(3):
        ftuner.load(saved)
    assert (len(kernels._images), len(kernels._code._others)) == before


def test_collections_go_on_after_a_load(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ftuner"
    path.write_bytes(b"")
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            ftuner.load(saved)
            with pytest.raises(ftuner.ParseError):
                ftuner.load(path)
            assert gc.isenabled() == enabled
        finally:
            gc.enable()


def test_first_runs_at_once(tmp_path: Path) -> None:
    """Models of several threads share the tables that plans point to."""
    made, feeds = pictures()
    path = tmp_path / "model.ftuner"
    ftuner.save(ftuner.load(made), path)
    found: list[Any] = []
    for _ in range(3):
        own = [ftuner.load(path, threads=1) for _ in range(2)] * 2
        at_once(*[lambda model=model: found.append(model.run(feeds)[0]) for model in own])
        del own
        gc.collect()
    assert len(found) == 12
    for result in found:
        np.testing.assert_array_equal(result, found[0])
