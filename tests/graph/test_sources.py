"""Constants are made again of the bytes of files, with the same bits."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftuner.graph import sources
from ftuner.graph.buffers import hollow
from ftuner.graph.ir import Array

SHAPE = 150, 160
"""Of more than `MAX_WITHIN_BYTES`."""
LINE = np.linspace(-2, 2, SHAPE[1], dtype=np.float32)


def made(function: str, *operands: Array, **options: Any) -> Array:
    found: Array = sources._FUNCTIONS[function](*operands, **options)
    sources.note_made(found, function, operands, **options)
    return found


FORMS: dict[str, Callable[[Array, Array], Array]] = {
    "as it is": lambda x, y: x,
    "a view": lambda x, y: x.T[3:, ::-2],
    "other extents": lambda x, y: x.reshape(SHAPE[1], -1).reshape(2, -1, 5),
    "other elements": lambda x, y: x.view(np.uint16)[:, 1::2],
    "transposed": lambda x, y: made("transpose", x, perm=(1, 0)),
    "scaled": lambda x, y: made("multiply", x, LINE),
    "side by side": lambda x, y: made("concatenate", x, y[:, ::-1], axis=-1),
    "columns of rows": lambda x, y: made("concatenate", x.T, y.T, axis=-1),
    "a view of what is made": lambda x, y: made("multiply", x, LINE)[2:].T,
    "scaled and side by side": lambda x, y: made(
        "concatenate", made("multiply", x, LINE), made("transpose", y.T, perm=(1, 0)), x, axis=-1
    ),
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> sources.Files:
    data = np.random.default_rng(3).standard_normal(2 * SHAPE[0] * SHAPE[1], np.float32)
    (tmp_path / "model").write_bytes(b"!" + data.tobytes())
    return sources.Files(lambda location: tmp_path / (location or "model"))


def read(files: sources.Files, number: int) -> Array:
    size = 4 * SHAPE[0] * SHAPE[1]
    offset = 1 + number * size
    found = files.read("", offset, size)
    sources.note_bytes(found, "", offset)
    return found.view(np.float32).reshape(SHAPE)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits(form: str, files: sources.Files) -> None:
    array = FORMS[form](read(files, 0), read(files, 1))
    source = sources.source_of(array)
    assert source is not None
    again = sources.array_of(source, files)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert again.tobytes() == array.tobytes()
    left = hollow(array.dtype, array.shape)
    sources.note_hollow(left, array)
    del array
    gc.collect()
    assert sources.source_of(left) == source
    # It stands for the array, but has no files.
    assert sources.made_again(left) is None


def test_a_hollow_array_is_made_while_its_files_are_there(files: sources.Files) -> None:
    x = read(files, 0)
    source = sources.source_of(x)
    assert source is not None
    files = sources.Files(files._paths)
    left = sources.hollow_of(source, files)
    found = sources.made_again(left)
    assert found is not None
    np.testing.assert_array_equal(found, x)
    assert sources.made_again(x) is x
    del files, found
    gc.collect()
    assert sources.made_again(left) is None
    assert sources.source_of(left) == source


def test_what_is_not_known(files: sources.Files) -> None:
    x = read(files, 0)
    other = np.ones(SHAPE, np.float32)
    for array in (x + 1, other, made("concatenate", x, other, axis=-1), hollow(x.dtype, SHAPE)):
        assert sources.source_of(array) is None
    # A part of larger memory says nothing of the rest.
    whole = np.empty((2, *SHAPE), np.float32)
    sources.note_made(whole[0], "multiply", [x, LINE])
    assert sources.source_of(whole[0]) is None


def test_what_is_freed_is_forgotten(files: sources.Files) -> None:
    gc.collect()
    before = len(sources._known)
    x = read(files, 0)
    y = made("multiply", x, LINE)
    assert len(sources._known) == before + 2
    del x, y
    gc.collect()
    assert len(sources._known) == before


def test_files_that_are_shorter(files: sources.Files, tmp_path: Path) -> None:
    source = sources.source_of(read(files, 1))
    assert source is not None
    (tmp_path / "short").write_bytes(bytes(1000))
    with pytest.raises(OSError, match="fewer than"):
        sources.array_of(source, sources.Files(lambda location: tmp_path / "short"))
    for begin, size in ((-1, 4), (0, -4)):
        with pytest.raises(ValueError, match="bytes from"):
            files.read("", begin, size)


def test_a_file_that_is_shortened_while_it_is_read(
    files: sources.Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat = os.fstat

    def shortened(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        os.truncate(tmp_path / "model", 100)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", shortened)
        with pytest.raises(OSError, match="was shortened"):
            files.read("", 50, 60)


def test_a_file_may_be_shortened_later(files: sources.Files, tmp_path: Path) -> None:
    x = read(files, 0)
    source = sources.source_of(x)
    assert source is not None
    again = sources.array_of(source, files)
    os.truncate(tmp_path / "model", 0)
    np.testing.assert_array_equal(again, x)
