"""Calls like some before go by native code, and by nothing that is not quite like them."""

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.apart import apart
from tests.at_once import at_once
from tests.reference import Array, assert_product, uniform
from tests.runtime.cpu.holding import held_elsewhere
from tests.runtime.interrupting import is_free

from ftuner.codegen.llvm.native.binding_records import ArrayField, Known, Site
from ftuner.codegen.llvm.native.records import PoolSlot
from ftuner.errors import AllocationError
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.call_cache import _hash, _signed
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul


class _Counted(Matmul):
    """Counts the calls that Python has to look at."""

    def __init__(self, backend: CpuBackend) -> None:
        super().__init__(backend)
        self.looked = 0

    def _general(self, *arguments: Any) -> Any:
        self.looked += 1
        return super()._general(*arguments)

    def learn(self, a: Array, b: Array, out: Array | None = None) -> None:
        """Make a call known: the first one is seen, the second one remembered."""
        for _ in range(2):
            self(a, b, out)
        self.looked = 0


@pytest.fixture
def matmul(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> _Counted:
    monkeypatch.setattr(backend, "threads", 1)
    return _Counted(backend)


def operands(m: int = 5, k: int = 7, n: int = 9, dtype: str = "float32") -> tuple[Array, Array]:
    return uniform(1, (m, k), dtype), uniform(2, (k, n), dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("extents", [(5, 7, 9), (1, 300, 200), (130, 70, 260), (64, 512, 48)])
def test_third_call_is_known(
    matmul: _Counted, backend: CpuBackend, dtype: str, threads: int, extents: tuple[int, int, int]
) -> None:
    backend.threads = threads
    m, k, n = extents
    other = uniform(3, (m, k), dtype), uniform(4, (n, k), dtype).T
    for a, b in (operands(m, k, n, dtype), other):
        out = np.empty((m, n), dtype)
        matmul.learn(a, b)
        matmul.learn(a, b, out)
        fresh = a + 1
        assert_product(matmul(fresh, b), fresh, b)
        out[:] = np.nan
        assert matmul(fresh, b, out) is out
        assert_product(out, fresh, b)
        assert matmul.looked == 0


def test_batches_and_vectors(matmul: _Counted) -> None:
    a, b = uniform(1, (3, 2, 6, 5), "float32"), uniform(2, (2, 5, 4), "float32")
    vectors = (a[0, 0], b[0, :, 0]), (a[0, 0, 0], b[0])
    for x, y in ((a, b), *vectors, (a, b[0]), (a[::2, :, ::-1], b)):
        matmul.learn(x, y)
        assert_product(matmul(x, y), x, y)
        assert matmul.looked == 0


def test_more_axes_than_are_compared(matmul: _Counted) -> None:
    a = uniform(1, (1,) * 8 + (3, 4), "float32")
    b = uniform(2, (4, 5), "float32")
    matmul.learn(a, b)
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 1


def _misaligned(like: Array) -> Array:
    memory = np.empty(like.nbytes + 1, np.uint8)[1:]
    found = memory.view(like.dtype).reshape(like.shape)
    found[...] = like
    return found


class _Special(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    "change",
    [
        _misaligned,
        lambda x: x.astype(np.float64),
        lambda x: x[:-1],
        lambda x: np.asfortranarray(x),
        lambda x: x[::-1],
        lambda x: x.view(_Special),
        lambda x: np.stack([x, x]),
        lambda x: x.tolist(),
    ],
)
def test_what_differs_is_looked_at(matmul: _Counted, change: Callable[[Array], Any]) -> None:
    a, b = operands()
    matmul.learn(a, b)
    other = change(a)
    try:
        result = matmul(other, b)
    except TypeError:
        pass  # What no product takes.
    else:
        assert_product(result, np.asarray(other), b)
    assert matmul.looked == 1
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 1


def test_outputs_that_cannot_be_written(matmul: _Counted) -> None:
    a, b = operands()
    out = np.empty((5, 9), np.float32)
    matmul.learn(a, b, out)
    locked = out.copy()
    locked.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        matmul(a, b, locked)
    crooked = _misaligned(out)
    assert_product(matmul(a, b, crooked), a, b)
    assert matmul.looked == 2


def test_overlapping_output(matmul: _Counted) -> None:
    a, b, out = uniform(1, (3, 6, 6), "float32")
    matmul.learn(a, b, out)
    for written in (a, b):
        before = a.copy(), b.copy()
        matmul(a, b, written)
        assert_product(written, *before)
    assert matmul.looked == 2


def test_output_between_rows_of_an_operand(matmul: _Counted) -> None:
    """Memory that is only near is looked at by whoever can tell."""
    memory = uniform(1, (12, 6), "float32")
    a, out, b = memory[::2], memory[1::2], uniform(2, (6, 6), "float32")
    matmul.learn(a, b, np.empty((12, 6), np.float32)[::2])
    matmul(a, b, out)
    assert matmul.looked == 1
    assert_product(out, a, b)


def test_threads_are_those_of_now(matmul: _Counted, backend: CpuBackend) -> None:
    a, b = operands(200, 100, 300)
    matmul.learn(a, b)
    backend.threads = 2
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 1
    matmul.learn(a, b)
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 0


@pytest.mark.parametrize("is_short", [True, False])
def test_workers_that_are_taken(matmul: _Counted, backend: CpuBackend, is_short: bool) -> None:
    """While another thread has the pool, native code works alone."""
    backend.threads = 2
    a, b = _short(matmul) if is_short else operands(20_000, 200, 150)
    matmul.learn(a, b)
    with held_elsewhere(backend.kernels.runtime.pool.lock):
        for _ in range(3):
            assert_product(matmul(a, b), a, b)
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 0
    assert is_free(backend.kernels.runtime.pool.lock)


def _short(matmul: _Counted) -> tuple[Array, Array]:
    """Operands of a product that this ISA's plan deals to several workers for a short time."""
    for rows in (32, 16, 64, 128, 256):
        a, b = operands(rows, 200, 150)
        matmul.learn(a, b)
        *_, owner = matmul._known._owners.values()
        if owner.record[Known.PATIENCE_NS]:
            return a, b
    raise AssertionError("no plan is short")


def _pool_slot(backend: CpuBackend, slot: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(backend.kernels.runtime.pool.address + 8 * slot)


def test_short_calls_go_alone_for_a_while(matmul: _Counted, backend: CpuBackend) -> None:
    backend.threads = 2
    short, long = _short(matmul), operands(20_000, 200, 150)
    matmul.learn(*long)
    left = _pool_slot(backend, PoolSlot.ALONE_FOR)
    left.value = 2
    assert_product(matmul(*long), *long)
    assert left.value == 2
    for then in (1, 0):
        assert_product(matmul(*short), *short)
        assert left.value == then
    assert matmul.looked == 0


@pytest.mark.skipif(sys.platform != "linux", reason="no clock")
def test_a_worker_that_is_held_up(matmul: _Counted, backend: CpuBackend) -> None:
    """A call that takes longer than it may sends those behind it on alone."""
    backend.threads = 2
    a, b = _short(matmul)
    *_, owner = matmul._known._owners.values()
    left = _pool_slot(backend, PoolSlot.ALONE_FOR)
    calls_alone = CpuTuning().calls_alone
    for patience, then in ((2**62, 0), (1, calls_alone)):
        left.value = 0
        owner.record[Known.PATIENCE_NS] = patience
        assert_product(matmul(a, b), a, b)
        assert left.value == then
    for i in range(1, calls_alone + 1):
        assert_product(matmul(a, b), a, b)
        assert left.value == calls_alone - i
    assert matmul.looked == 0


def test_workers_that_have_gone(matmul: _Counted, backend: CpuBackend) -> None:
    backend.threads = 2
    a, b = operands(300, 200, 200)
    matmul.learn(a, b)
    backend.kernels.runtime.pool.shut_down()
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 1
    assert_product(matmul(a, b), a, b)
    assert matmul.looked == 1


def test_references_are_given_back(matmul: _Counted) -> None:
    a, b = operands()
    out = np.empty((5, 9), np.float32)
    matmul.learn(a, b)
    matmul.learn(a, b, out)
    (owner, *_) = matmul._known._owners.values()

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(x) for x in (a, b, out, owner, a.dtype, np.empty)]

    before = counts()
    for _ in range(1000):
        matmul(a, b)
        matmul(a, b, out)
    assert counts() == before
    assert matmul.looked == 0


def test_more_layouts_than_the_table_holds(matmul: _Counted) -> None:
    """Later ones take the places of earlier ones; all get the right answer."""
    b = uniform(1, (3, 2), "float32")
    many = [uniform(m, (m, 3), "float32") for m in range(1, 2 * Site.TABLE_SLOTS)]
    for _ in range(3):
        for a in many:
            assert_product(matmul(a, b), a, b)
    assert len(matmul._known._owners) <= Site.TABLE_SLOTS
    matmul.looked = 0
    few = many[-50:]
    for _ in range(3):
        for a in few:
            matmul(a, b)
    assert matmul.looked <= 2 * len(few)


def all_find_slots(many: list[Array], b: Array) -> list[Array]:
    """Those of some operands whose calls all find a free slot, in both tables: their hashes depend
    on the addresses of dtypes."""
    known: set[int] = set()
    seen: set[int] = set()
    found = []
    for a in many:
        signature = [word for x in (a, b) for word in _signed(x, ArrayField.ALIGNED)]
        number = _hash([*signature, 0])
        slots = [(number + i) % Site.TABLE_SLOTS for i in range(Site.PROBES)]
        free = [at for at in slots if at not in known], [at for at in slots if at not in seen]
        if all(free):
            known.add(free[0][0])
            seen.add(free[1][-1])
            found.append(a)
    return found


def test_lengths_in_turn_are_known(matmul: _Counted) -> None:
    """None of them puts out another one, before or after it is known."""
    b = uniform(1, (3, 2), "float32")
    many = all_find_slots([uniform(m, (m, 3), "float32") for m in range(1, 513)], b)
    assert len(many) > 256
    for _ in range(2):
        for a in many:
            matmul(a, b)
    matmul.looked = 0
    for a in many:
        matmul(a, b)
    assert matmul.looked == 0


def test_a_layout_that_is_used_stays(matmul: _Counted) -> None:
    b, often = uniform(1, (3, 2), "float32"), uniform(2, (7, 3), "float32")
    matmul.learn(often, b)
    for m in range(8, 4 * Site.TABLE_SLOTS):
        a = np.zeros((m, 3), np.float32)
        for _ in range(2):
            matmul(a, b)
        matmul.looked = 0
        matmul(often, b)
        assert matmul.looked == 0


def test_several_threads(matmul: _Counted, backend: CpuBackend) -> None:
    """Calls that need a workspace, while others come and go in the table."""
    backend.threads = 2
    cases = [(uniform(i, (20 + i, 64), "float32"), uniform(i, (48, 64), "float32").T)
             for i in range(12)]  # fmt: skip
    wanted = [a.astype(np.float64) @ b for a, b in cases]
    wrong: list[int] = []

    def work(first: int) -> None:
        for step in range(600):
            number = (first + step) % len(cases)
            a, b = cases[number]
            if not np.allclose(matmul(a, b), wanted[number], rtol=1e-4, atol=1e-4):
                wrong.append(number)

    at_once(*(partial(work, first) for first in range(4)))
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_after_a_fork(matmul: _Counted, backend: CpuBackend) -> None:
    backend.threads = 2
    a, b = operands(300, 200, 200)
    matmul.learn(a, b)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in range(4):
                assert_product(matmul(a, b), a, b)
            status = 0 if 0 < matmul.looked < 4 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="no such limit")
def test_results_that_no_memory_holds(matmul: _Counted, backend: CpuBackend) -> None:
    """Of calls that are known, of those that are not, and of layers."""
    a, b = operands(4000, 1, 4000)
    layer = Dense(b.T, session=backend)
    matmul.learn(a, b)
    for _ in range(2):
        layer(a)

    def call(note: Callable[[str], None]) -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        # Less than a result takes.
        limit = used + (32 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        # Nor is what earlier tests have left in the heap enough for one.
        taken = []
        with suppress(MemoryError):
            while True:
                taken.append(np.empty((4000, 4000), np.float32))
        for name, run in (
            ("known", lambda: matmul(a, b)),
            ("not known", lambda: matmul(a[::-1], b)),
            ("layer", lambda: layer(a)),
        ):
            note(name)
            with pytest.raises(AllocationError, match="no memory"):
                run()

    apart(call)


@pytest.mark.each_value
@pytest.mark.parametrize("bias", [True, False])
def test_layers(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    weight, x = uniform(1, (33, 21), "float32"), uniform(2, (4, 3, 21), "float32")
    added = uniform(3, (33,), "float32")
    layer = Dense(weight, added if bias else None, session=backend)
    expected = x.astype(np.float64) @ weight.T + (added if bias else 0)
    out = np.empty((4, 3, 33), np.float32)
    for _ in range(3):
        layer(x)
        layer(x, out=out)

    def refuse(*arguments: object) -> None:
        raise AssertionError("not known")

    monkeypatch.setattr(layer, "_general", refuse)
    out[:] = np.nan
    assert layer(x, out=out) is out
    for result in (out, layer(x)):
        assert np.allclose(result, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="not known"):
        layer(x[:2])
