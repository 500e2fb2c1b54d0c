"""Files that users name."""

import os
from pathlib import Path

import pytest

from ftuner.core.files import read_regular, write_whole


def test_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("first ä\n", "second\n"):
        write_whole(path, text)
        assert read_regular(path, 100) == text.encode()
    write_whole(path, "\ud800")
    assert read_regular(path, 1) == b"?"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it is a directory"):
        write_whole(tmp_path, "text")
    with pytest.raises(ValueError, match="not a regular file"):
        read_regular(tmp_path, 100)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", 100)


def test_too_many_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
