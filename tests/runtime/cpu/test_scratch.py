"""Workspaces are shared by all products, as many as calls at once need, and bounded."""

import ctypes
import os
import threading
from functools import partial

import numpy as np
import pytest
from tests.at_once import at_once
from tests.reference import assert_product, uniform

from ftuner.codegen.llvm.native.records import FreeWorkspaces
from ftuner.runtime.cpu import scratch as module
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.scratch import Workspaces


@pytest.fixture
def workspaces(widest: CpuBackend) -> Workspaces:
    return Workspaces(widest.kernels.runtime.addresses)


@pytest.fixture
def shared(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> Workspaces:
    """Those of a back end, none at first; its thread count is put back."""
    monkeypatch.setattr(backend, "threads", 1)
    found = backend.kernels.runtime.workspaces
    found.renew_in_child()
    return found


def test_a_workspace_is_used_again(workspaces: Workspaces) -> None:
    first = workspaces.take(1000)
    assert first % 64 == 0
    workspaces.give_back(first)
    for size in (1, 1000, 17):
        assert workspaces.take(size) == first
        workspaces.give_back(first)
    assert workspaces.kept_bytes < 2000


def test_calls_at_once_have_their_own(workspaces: Workspaces) -> None:
    taken = [workspaces.take(500) for _ in range(5)]
    assert len(set(taken)) == 5
    for address in taken:
        ctypes.memset(address, 7, 500)
        workspaces.give_back(address)
    assert {workspaces.take(500) for _ in range(5)} == set(taken)


def test_one_that_is_too_small_is_replaced(workspaces: Workspaces) -> None:
    for size in range(1000, 200_000, 3000):
        address = workspaces.take(size)
        ctypes.memset(address, 7, size)
        workspaces.give_back(address)
        assert size <= workspaces.kept_bytes < 2 * size + 1000


def test_a_large_one_goes_when_less_is_needed(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 10_000)
    for _ in range(2):
        large = workspaces.take(50_000)
        workspaces.give_back(large)
        assert workspaces.take(40_000) == large
        workspaces.give_back(large)
        assert workspaces.kept_bytes > 50_000
        workspaces.give_back(workspaces.take(100))
        assert workspaces.kept_bytes < 1000


def test_what_is_kept_together_is_bounded(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_TOGETHER_BYTES", 10_000)
    for _ in range(2):
        taken = [workspaces.take(3000) for _ in range(6)]
        for address in taken:
            ctypes.memset(address, 7, 3000)
            workspaces.give_back(address)
        assert workspaces.kept_bytes < 10_000
        assert not workspaces._others
    taken = [workspaces.take(1) for _ in range(FreeWorkspaces.SLOTS + 3)]
    for address in taken:
        workspaces.give_back(address)
    assert len(workspaces._kept) <= FreeWorkspaces.SLOTS
    assert not workspaces._others


def test_many_threads(workspaces: Workspaces) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(500):
            size = 8 + 8 * ((turn * (number + 3)) % 300)
            address = workspaces.take(size)
            mine = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint64)
            mine[:] = number * 1000 + turn
            if turn % 50 == 0:
                threading.Event().wait(0.0005)
            if (mine != number * 1000 + turn).any():
                wrong.append(number)
            workspaces.give_back(address)

    at_once(*(partial(work, number) for number in range(6)))
    assert not wrong
    assert len(workspaces._kept) <= 6


@pytest.mark.parametrize("threads", [1, 2])
def test_layers_and_products_share_them(
    backend: CpuBackend, shared: Workspaces, threads: int
) -> None:
    """However many layers and threads there are, and whether calls are known or new."""
    backend.threads = threads
    shapes = [(n, k) for n in (40, 130, 256) for k in (300, 700)]
    layers = [Dense(uniform(1, (n, k), "float32"), session=backend) for n, k in shapes]
    matmul = Matmul(backend)

    def work(number: int, turn: int) -> None:
        for layer, (n, k) in zip(layers, shapes, strict=True):
            # A column layout that has to be packed, and a product that packs B.
            x = uniform(number, (k, 3, 9), "float32")[:, 1].T
            layer(x)
            b = uniform(turn, (k, n), "float32")
            assert_product(matmul(x, b), x, b)

    for turn in range(4):
        at_once(*(partial(work, number, turn) for number in range(3)))
    assert 1 <= len(shared._kept) <= 3
    assert not shared._others


def test_known_calls_take_them_natively(
    backend: CpuBackend, shared: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And go by Python where none is free, once for each call at once."""
    backend.threads = 1
    matmul = Matmul(backend)
    # So many rows that B is packed whatever the calibration says of packing.
    a, b = uniform(1, (600, 90), "float32"), uniform(2, (70, 90), "float32").T
    for _ in range(3):
        assert_product(matmul(a, b), a, b)
    made: list[int] = []
    new = Workspaces._made
    monkeypatch.setattr(
        Workspaces, "_made", lambda self, size: made.append(size) or new(self, size)
    )
    taken = [shared.take(1) for _ in range(len(shared._kept))]
    for _ in range(3):
        assert_product(matmul(a, b), a, b)
    assert len(made) == 1
    for address in taken:
        shared.give_back(address)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_has_its_own(workspaces: Workspaces) -> None:
    held = workspaces.take(100)
    workspaces.give_back(workspaces.take(100))
    child = os.fork()
    if child == 0:
        empty = not workspaces._kept and not workspaces.kept_bytes
        workspaces.give_back(workspaces.take(100))
        os._exit(0 if empty and len(workspaces._kept) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    workspaces.give_back(held)
