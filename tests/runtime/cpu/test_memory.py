"""Blocks of long-lived memory: apart, aligned, alive as long as they are used."""

import ctypes
import gc
import multiprocessing
import os
import platform
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ftuner.core.operating_system import give_back_freed
from ftuner.errors import AllocationError
from ftuner.runtime.cpu import memory
from ftuner.runtime.cpu.memory import (
    ALIGNMENT_BYTES,
    BLOCK_BYTES,
    HUGE_PAGE_BYTES,
    Arena,
    long_lived,
    passing,
    reuse,
)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def ends(pieces: list[np.ndarray]) -> list[tuple[int, int]]:
    return sorted((p.ctypes.data, p.ctypes.data + p.size) for p in pieces)


def test_pieces_do_not_overlap() -> None:
    sizes = [1, 63, 64, 65, 1000, 4 << 20, BLOCK_BYTES // 4, BLOCK_BYTES // 4 + 1, 3 * BLOCK_BYTES]
    pieces = [long_lived(size) for size in sizes * 3]
    assert [p.size for p in pieces] == sizes * 3
    assert all(p.ctypes.data % ALIGNMENT_BYTES == 0 for p in pieces)
    places = ends(pieces)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def test_large_pieces_begin_with_a_huge_page() -> None:
    assert long_lived(BLOCK_BYTES).ctypes.data % HUGE_PAGE_BYTES == 0


def test_memory_is_kept_and_given_back() -> None:
    piece = long_lived(BLOCK_BYTES)
    piece[:] = 7
    gone = weakref.ref(piece.base)
    part = piece[5:10]
    del piece
    gc.collect()
    assert (part == 7).all()
    del part
    gc.collect()
    assert gone() is None


def test_several_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda i: long_lived(100 + i), range(2000)))
    places = ends(pieces)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def _write_in_child(value: int) -> int:
    piece = long_lived(1000)
    piece[:] = value
    return int(piece.sum())


def test_after_a_fork() -> None:
    mine = long_lived(1000)
    mine[:] = 1
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_write_in_child, [2, 3]) == [2000, 3000]
    assert (mine == 1).all()


def test_more_than_there_is() -> None:
    with pytest.raises(AllocationError, match="cannot allocate"):
        long_lived(1 << 62)


def test_an_arena_grows_without_moving() -> None:
    arena = Arena()
    address = arena.grown(1000)
    assert address % HUGE_PAGE_BYTES == 0
    np.ctypeslib.as_array((ctypes.c_uint8 * 1000).from_address(address))[:] = 7
    if sys.platform == "linux":
        assert arena.grown(100 << 20) == address == arena.address
    assert arena.grown(10) == arena.address


def test_freed_memory_is_given_out_again() -> None:
    size = BLOCK_BYTES
    with reuse():
        first = passing(size)
        first[:] = 7
        address = first.ctypes.data
        part = first[5:10]
        del first
        gc.collect()
        assert long_lived(size).ctypes.data != address
        assert (part == 7).all()
        del part
        gc.collect()
        # Neither what does not fit, nor what would waste much of it.
        for other in (size // 2, size + HUGE_PAGE_BYTES + 1):
            assert long_lived(other).ctypes.data != address
        second = long_lived(size + 100)
        assert second.ctypes.data == address
        assert long_lived(size).ctypes.data != address
        second[:] = 3


def test_freed_memory_is_not_kept() -> None:
    size = 8 * BLOCK_BYTES
    before = resident_bytes()
    for inside in (False, True):
        if inside:
            with reuse():
                passing(size)[:] = 1
                gc.collect()
                assert resident_bytes() > before + size // 2
        else:
            passing(size)[:] = 1
            gc.collect()
        assert resident_bytes() < before + size // 2


def test_memory_is_reused_by_threads_at_once() -> None:
    size = BLOCK_BYTES // 2

    def turn(number: int) -> bool:
        with reuse():
            given = passing(size)
            given[:] = number
            del given
            kept = long_lived(size)
            kept[:] = number
            again = long_lived(size)
            again[:] = number + 1
            return bool((kept == number).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(turn, range(100)))


def test_an_arena_beyond_what_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RESERVED_BYTES", 1 << 20)
    arena = Arena()
    arena.grown(1000)
    address = arena.grown(5 << 20)
    np.ctypeslib.as_array((ctypes.c_uint8 * (5 << 20)).from_address(address))[:] = 7
    assert arena.grown(1 << 20) == address


def test_an_arena_that_nobody_can_have() -> None:
    arena = Arena()
    address = arena.grown(1000)
    with pytest.raises(AllocationError, match="cannot allocate"):
        arena.grown(1 << 62)
    assert arena.grown(1000) == address


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the function")
def test_freed_memory_is_given_back() -> None:
    """Also below a piece that still lives."""
    pieces = [np.ones(64 << 10, np.uint8) for _ in range(1000)]
    whole = resident_bytes()
    del pieces[:-1]
    give_back_freed()
    assert resident_bytes() < whole - 48 * (1 << 20)
