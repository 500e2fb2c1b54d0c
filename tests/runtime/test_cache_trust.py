"""The cache trusts nothing that another user could have written; what it makes is private."""

import errno
import os
import socket
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest
from tests.runtime.test_cache import PAYLOAD, small_bundles

from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.errors import CacheWarning, ConfigurationError
from ftuner.hardware.system import isas_of, read_system
from ftuner.runtime import private_files as private
from ftuner.runtime.cache import (
    MAX_BYTES_VARIABLE,
    MAX_DOCUMENT_BYTES,
    MODEL_MAGIC,
    ORPHANED_S,
    REFRESHED_S,
    Cache,
    default_cache,
)
from ftuner.runtime.cpu.compilation import Compiler

pytestmark = pytest.mark.skipif(not private.HAS_OWNERS, reason="a system without owners and modes")
OTHER_USER = 54321
SECONDS = 20.0
"""What must not hang ends long before."""


@pytest.fixture
def kept(tmp_path: Path) -> Cache:
    """A cache with an entry, some folders down."""
    cache = Cache(tmp_path / "above" / "cache")
    cache.write("objects", "one", PAYLOAD)
    assert cache.read("objects", "one") == PAYLOAD
    return cache


def place(cache: Cache, level: str) -> Path:
    """A folder above the cache, its own folder, that of a kind, or an entry."""
    kind = cache.folder / "objects"
    places = {
        "above": cache.folder.parent,
        "root": cache.folder,
        "kind": kind,
        "entry": kind / "one",
    }
    return places[level]


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    with pytest.warns(CacheWarning, match=match) as caught:
        yield
    assert len(caught) == 1, [str(w.message) for w in caught]


def within(work: Callable[[], object]) -> object:
    """What `work` gives, if it gives something in time."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    return found[0]


def test_what_is_made_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Cache(tmp_path / "above" / "cache").write("objects", "one", PAYLOAD)
    finally:
        os.umask(before)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "above", *(tmp_path / "above").rglob("*"))
    }
    assert modes == {"above": 0o700, "cache": 0o700, "objects": 0o700, "one": 0o600}


@pytest.mark.parametrize("level", ["above", "root", "kind", "entry"])
@pytest.mark.parametrize("permission", [stat.S_IWGRP, stat.S_IWOTH])
def test_what_others_may_write_to_is_not_loaded(kept: Cache, level: str, permission: int) -> None:
    """One warning says what to do; nothing is read, written or removed; the entry comes back when
    that has been done."""
    path = place(kept, level)
    mode = path.stat().st_mode
    path.chmod(mode | permission)
    with one_warning(rf"(?s){path.name} .*chmod go-w.*FTUNER_CACHE_DIR"):
        for cache in (Cache(kept.folder), Cache(kept.folder)):
            assert cache.read("objects", "one") is None
            if level != "entry":
                cache.write("objects", "two", PAYLOAD)
                cache.drop("objects", "one")
                assert (cache.entries(), cache.clear()) == ([], 0)
    path.chmod(mode)
    assert Cache(kept.folder).read("objects", "one") == PAYLOAD
    assert Cache(kept.folder).read("objects", "two") is None


@pytest.mark.parametrize("level", ["above", "root", "kind", "entry"])
def test_what_another_user_owns_is_not_loaded(
    kept: Cache, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place(kept, level)
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
        path = kept.folder.parents[-2]
    with one_warning(r"belongs to user .*chown.*FTUNER_CACHE_DIR"):
        assert Cache(kept.folder).read("objects", "one") is None
        assert Cache(kept.folder).read("objects", "one") is None


def test_an_entry_that_others_could_write_is_replaced(kept: Cache) -> None:
    path = place(kept, "entry")
    path.chmod(0o666)
    with one_warning("not loaded"):
        assert kept.read("objects", "one") is None
    kept.write("objects", "one", PAYLOAD[1:])
    assert kept.read("objects", "one") == PAYLOAD[1:]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_for_temporary_files_may_be_above(kept: Cache) -> None:
    """Where the sticky bit is set, others may add entries, but not replace ours."""
    kept.folder.parent.chmod(0o1777)
    assert Cache(kept.folder).read("objects", "one") == PAYLOAD
    kept.folder.chmod(0o1777)
    with one_warning("mode 1777"):
        assert Cache(kept.folder).read("objects", "one") is None


def test_links_on_the_way_to_the_folder(kept: Cache, tmp_path: Path) -> None:
    """The owner's links are followed, another user's are not, whatever they lead to."""
    link = tmp_path / "link"
    link.symlink_to(Path("above") / ".." / "above" / "cache")
    assert Cache(link).read("objects", "one") == PAYLOAD
    assert Cache(tmp_path / "above" / ".." / "link").read("objects", "one") == PAYLOAD
    (tmp_path / "round").symlink_to("round")
    with one_warning("symbolic links"):
        assert Cache(tmp_path / "round").read("objects", "one") is None
    if os.geteuid() == 0:
        os.lchown(link, OTHER_USER, -1)
        with one_warning("link belongs to user"):
            assert Cache(link).read("objects", "one") is None


@pytest.mark.parametrize("level", ["kind", "entry"])
def test_links_within_the_folder_are_not_followed(kept: Cache, tmp_path: Path, level: str) -> None:
    path, elsewhere = place(kept, level), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.warns(CacheWarning):
        assert kept.read("objects", "one") is None
    if level == "entry":
        kept.write("objects", "one", PAYLOAD[1:])
        assert kept.read("objects", "one") == PAYLOAD[1:]
        assert elsewhere.read_bytes().endswith(PAYLOAD)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    before = Path.cwd()
    # Names of sockets are short.
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as found:
            found.bind(path.name)
    finally:
        os.chdir(before)


def make_device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the super-user makes devices")
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this system makes no devices")


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


NOT_ENTRIES: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "socket": make_socket,
    "device": make_device,
    "folder": Path.mkdir,
    "huge": make_huge,
}


@pytest.mark.parametrize("kind", NOT_ENTRIES)
def test_what_is_no_file_is_replaced(kept: Cache, kind: str) -> None:
    path = place(kept, "entry")
    path.unlink()
    NOT_ENTRIES[kind](path)
    with one_warning("one"):
        assert within(lambda: kept.read("objects", "one")) is None
        assert within(kept.entries) == []
    kept.write("objects", "one", PAYLOAD)
    assert kept.read("objects", "one") == PAYLOAD


@pytest.mark.filterwarnings("ignore:cannot")
def test_a_full_folder_in_the_place_of_an_entry(kept: Cache) -> None:
    """It may be somebody's: it stays, and costs a warning."""
    path = place(kept, "entry")
    path.unlink()
    (path / "more").mkdir(parents=True)
    for _ in range(2):
        with pytest.warns(CacheWarning, match="not a regular file"):
            assert kept.read("objects", "one") is None
        kept.write("objects", "one", PAYLOAD)
    assert (path / "more").is_dir()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["mkstemp", "fdopen", "replace", "utime", "open"])
def test_systems_that_refuse(
    kept: Cache, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """A full disk, a read-only one, a quota, a broken one: at most a warning."""
    os.utime(place(kept, "entry"), (0, 0))
    module = __import__("tempfile") if call == "mkstemp" else os
    monkeypatch.setattr(module, call, Mock(side_effect=OSError(number, os.strerror(number))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            found = kept.read("objects", "one")
            kept.write("objects", "two", PAYLOAD)
    assert [w.category for w in caught] == [CacheWarning] * (call != "utime")
    assert found == (None if call == "open" else PAYLOAD)
    monkeypatch.undo()
    assert [e.key for e in kept.entries()] == (["one", "two"] if call == "utime" else ["one"])


def test_the_folder_is_removed_meanwhile(kept: Cache) -> None:
    place(kept, "entry").unlink()
    place(kept, "kind").rmdir()
    kept.folder.rmdir()
    kept.folder.parent.rmdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.read("objects", "one") is None
        kept.drop("objects", "one")
        kept.write("objects", "one", PAYLOAD)
        assert kept.read("objects", "one") == PAYLOAD


def test_it_compiles_without_a_cache_that_can_be_trusted(kept: Cache) -> None:
    kept.folder.chmod(0o777)
    target = host_target(isas_of(read_system())[0])
    with one_warning("chmod"):
        objects = Compiler(target, kept, 3).compile_missing(small_bundles(), None)
    assert all(found.data for found in objects.values())


# Its size.


def aged(cache: Cache, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(cache.folder / "objects" / key, (then, then))


def test_oldest_use_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=10_000)
    for i in range(8):
        cache.write("objects", str(i), bytes(1000))
        aged(cache, str(i), (8 - i) * 2 * REFRESHED_S)
    assert cache.read("objects", "0") == bytes(1000)
    cache.write("objects", "last", bytes(2500))
    keys = [entry.key for entry in cache.entries()]
    assert sum(entry.bytes for entry in cache.entries()) <= 10_000
    assert "0" in keys, "it was used just now"
    assert "last" in keys
    assert "1" not in keys
    assert "7" in keys
    # Another process finds what is there, and keeps to the bound as well.
    for i in range(30):
        Cache(tmp_path, max_bytes=10_000).write("objects", f"more-{i}", bytes(1000))
    assert sum(entry.bytes for entry in cache.entries()) <= 10_000


def test_models_go_first(tmp_path: Path) -> None:
    """They are made again of the objects."""
    cache = Cache(tmp_path, max_bytes=10_000)
    for i in range(4):
        cache.write("objects", str(i), bytes(1000))
        aged(cache, str(i), 2 * REFRESHED_S)

    def write(file: BinaryIO) -> None:
        file.write(MODEL_MAGIC + bytes(1500))

    for key in "abc":
        cache.write_file("models", key, 1500, write)
    cache.write("objects", "last", bytes(1500))
    kinds = [(entry.kind, entry.key) for entry in cache.entries()]
    assert {key for kind, key in kinds if kind == "objects"} == {*"0123", "last"}
    assert 0 < sum(kind == "models" for kind, _ in kinds) < 3


def test_a_use_is_noted_once_a_day(kept: Cache) -> None:
    path = place(kept, "entry")
    for age, refreshed in ((0.5 * REFRESHED_S, False), (2 * REFRESHED_S, True), (-9e9, True)):
        aged(kept, "one", age)
        before = path.stat().st_mtime
        assert kept.read("objects", "one") == PAYLOAD
        assert (path.stat().st_mtime != before) == refreshed


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=1000)
    cache.write("objects", "small", bytes(10))
    cache.write("objects", "one", bytes(1000))
    assert [entry.key for entry in cache.entries()] == ["small"]
    Cache(tmp_path / "none", max_bytes=0).write("objects", "one", b"")
    assert list(tmp_path.iterdir()) == [tmp_path / "objects"]


def test_others_files_stay(tmp_path: Path) -> None:
    """A folder that holds other things as well, named by mistake."""
    cache = Cache(tmp_path, max_bytes=5000)
    for folder in ("objects", "hardware", "pictures"):
        (tmp_path / folder).mkdir(mode=0o700)
        (tmp_path / folder / "mine").write_bytes(bytes(9000))
    (tmp_path / "pictures" / "not-an-entry").write_bytes(b"ftuner-cache-1\n")
    for i in range(20):
        cache.write("objects", str(i), bytes(1000))
    assert cache.clear() > 0
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {
        "objects/mine", "hardware/mine", "pictures/mine", "pictures/not-an-entry",
    }  # fmt: skip


def test_orphaned_temporary_files_go(kept: Cache) -> None:
    folder = place(kept, "kind")
    for name, age in ((".writing-old", 2 * ORPHANED_S), (".writing-new", 0.5 * ORPHANED_S)):
        (folder / name).write_bytes(b"half of it")
        aged(kept, name, age)
    Cache(kept.folder).write("objects", "two", PAYLOAD)
    assert {path.name for path in folder.iterdir()} == {"one", "two", ".writing-new"}


def test_an_interrupt_leaves_no_temporary_file(
    kept: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        kept.write("objects", "two", PAYLOAD)
    assert [path.name for path in place(kept, "kind").iterdir()] == ["one"]


def test_the_bound_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("12345", 12345), (" 0 ", 0), ("", Cache(tmp_path).max_bytes)):
        monkeypatch.setenv(MAX_BYTES_VARIABLE, text)
        assert default_cache().max_bytes == expected
    for text in ("-1", "1.5", "1e6", "lots", "1_000"):
        monkeypatch.setenv(MAX_BYTES_VARIABLE, text)
        with pytest.raises(ConfigurationError, match=MAX_BYTES_VARIABLE):
            default_cache()


# Documents.


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff\xfe", b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000, b"[]",
        b'{"number": "1"}', b'{"number": 1' + b"0" * 400 + b"}", b'{"number": NaN}', b"null",
        b'{"number": ' + b"9" * 5000 + b"}",
        b'{"number": 1, "more": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}',
    ],
    ids=lambda text: f"{text[:12]!r} of {len(text)}",
)  # fmt: skip
def test_documents_that_make_no_sense_are_made_again(tmp_path: Path, text: bytes) -> None:
    def decode(document: dict[str, float]) -> int:
        return int(float(document["number"] + 0))

    cache = Cache(tmp_path)
    cache.write("hardware", "one", b'{"number": 7}')
    assert cache.read_document("hardware", "one", decode) == 7
    cache.write("hardware", "one", text)
    with one_warning("damaged or not ours"):
        assert cache.read_document("hardware", "one", decode) is None
    assert cache.entries() == []
