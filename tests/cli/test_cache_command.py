"""`ftuner cache`: what it shows, prunes and clears."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.invoking import document, run
from typer.testing import CliRunner

from ftuner.cli.main import EXIT_FAILURE, EXIT_USAGE, app
from ftuner.runtime.cache import Cache, default_cache

DAY_S = 86400.0


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Entries of 1 MiB that were used 0, 10, 40 and 90 days ago, in a folder with another file."""
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(tmp_path / "cache"))
    cache = default_cache()
    for days in (0, 10, 40, 90):
        kind = "hardware" if days == 40 else "objects"
        cache.write(kind, f"days-{days}", bytes(1 << 20))
        then = time.time() - days * DAY_S
        os.utime(cache.folder / kind / f"days-{days}", (then, then))
    (cache.folder / "objects" / "not-ours").write_bytes(b"abc")
    return cache


def keys(cache: Cache) -> set[str]:
    return {entry.key for entry in cache.entries()}


def test_show(kept: Cache) -> None:
    found = document("cache")
    assert (found["folder"], found["exists"], found["writeable"]) == (str(kept.folder), True, True)
    assert (found["problem"], found["max_bytes"]) == (None, kept.max_bytes)
    assert found["bytes"] == sum(entry.bytes for entry in kept.entries())
    assert {kind: known["entries"] for kind, known in found["kinds"].items()} == {
        "objects": 3,
        "hardware": 1,
    }
    objects = found["kinds"]["objects"]
    days = (objects["most_recent_use_s"] - objects["least_recent_use_s"]) / DAY_S
    assert days == pytest.approx(90, abs=0.1)
    shown = run("cache").stdout
    for part in (str(kept.folder), "(writeable)", "4 MiB of at most 256 MiB", "today",
                 "90 days ago", "40 days ago"):  # fmt: skip
        assert part in shown


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(tmp_path / "a" / "b"))
    shown = run("cache").stdout
    assert "not made yet, writeable" in shown
    assert "empty" in shown
    assert not document("cache")["exists"]
    assert not (tmp_path / "a").exists(), "showing makes nothing"


def test_a_folder_that_others_may_change(kept: Cache) -> None:
    kept.folder.chmod(0o777)
    with pytest.warns(Warning, match="other users may write"):
        found = document("cache")
    assert "other users may write" in found["problem"]
    assert not found["writeable"]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ((), {"days-0", "days-10"}),
        (("--older-than", "60"), {"days-0", "days-10", "days-40"}),
        (("--older-than", "0.5"), {"days-0"}),
        (("--to", "2.5"), {"days-0", "days-10"}),
        (("--to", "0"), set()),
        (("--to", "100"), {"days-0", "days-10", "days-40", "days-90"}),
        (("--older-than", "60", "--to", "1.5"), {"days-0"}),
    ],
)
def test_prune(kept: Cache, options: tuple[str, ...], left: set[str]) -> None:
    before = kept.entries()
    found = document("cache", "--prune", *options)
    assert keys(kept) == left
    gone = [entry for entry in before if entry.key not in left]
    assert (found["removed"], found["removed_bytes"]) == (len(gone), sum(e.bytes for e in gone))
    assert found["bytes"] == sum(entry.bytes for entry in kept.entries())
    assert (kept.folder / "objects" / "not-ours").exists()
    assert "0 entries removed" in run("cache", "--prune", *options).stdout


def test_pruning_leaves_what_another_process_uses(
    kept: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is written anew after it was listed stays, and is not counted."""
    listed = kept.entries()
    kept.write("objects", "days-90", b"new")
    monkeypatch.setattr(Cache, "entries", lambda self: listed)
    removed = kept.prune(unused_s=30 * DAY_S)
    assert [entry.key for entry in removed] == ["days-40"]
    assert kept.read("objects", "days-90") == b"new"


def test_concurrent_pruning_and_writing(kept: Cache) -> None:
    """Processes that prune and write at once end well, and each removal is counted once."""
    for number in range(60):
        kept.write("objects", f"old-{number}", b"abc")
        os.utime(kept.folder / "objects" / f"old-{number}", (1.0, 1.0))
    prune = "from ftuner.runtime.cache import default_cache as c; print(len(c().prune(86400.0)))"
    write = (
        "from ftuner.runtime.cache import default_cache as c; cache = c()\n"
        "for n in range(60): cache.write('objects', f'new-{n}', b'new')"
    )
    running = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code], stdout=subprocess.PIPE)
        for code in (prune, write, prune, prune)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sum(int(text) for text in outputs if text) == 60 + 3
    assert keys(kept) == {"days-0", *(f"new-{n}" for n in range(60))}


def test_clear(kept: Cache) -> None:
    refused = CliRunner().invoke(app, ["cache", "--clear"], input="n\n")
    assert refused.exit_code == EXIT_FAILURE
    assert "Remove 4 entries of" in refused.stderr
    assert "nothing was done" in refused.stderr
    unanswered = run("cache", "--clear")
    assert unanswered.exit_code == EXIT_FAILURE
    assert len(kept.entries()) == 4
    assert document("cache", "--clear", "--yes") == {"folder": str(kept.folder), "removed": 4}
    assert "0 entries removed" in run("cache", "--clear", "--yes").stdout
    assert (kept.folder / "objects" / "not-ours").exists()
    kept.write("objects", "one", b"abc")
    agreed = CliRunner().invoke(app, ["cache", "--clear"], input="y\n")
    assert (agreed.exit_code, kept.entries()) == (0, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prune", "--clear"), "exclude each other"),
        (("--to", "3"), "go with --prune"),
        (("--older-than", "3"), "go with --prune"),
        (("--prune", "--to", "-1"), "--to"),
        (("--clear", "--json"), "give --yes"),
    ],
)
def test_wrong_options(kept: Cache, options: tuple[str, ...], said: str) -> None:
    result = run("cache", *options)
    assert result.exit_code == EXIT_USAGE
    assert said in result.stderr
    assert len(kept.entries()) == 4


def test_a_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTUNER_CACHE_MAX_BYTES", "much")
    result = run("cache")
    assert "FTUNER_CACHE_MAX_BYTES is 'much'" in result.stderr
    assert result.exit_code == EXIT_USAGE
