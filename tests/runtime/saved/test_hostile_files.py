"""Saved models that are damaged, or that nothing has written: a named error."""

import hashlib
import json
from pathlib import Path
from random import Random
from weakref import WeakValueDictionary

import pytest

pytest.importorskip("onnx")

import ftuner
from ftuner.runtime.cache import MODEL_MAGIC
from ftuner.runtime.saved import container, models


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
    monkeypatch.setattr(models, "_backends", WeakValueDictionary())
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
    begin = container._HEADER.pack(MODEL_MAGIC, *(fields | header).values())
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
