"""Calls with arrays that lie like some before: native code recognises them by dtypes, extents and
strides, and runs the plan that they had. Python takes part only where that is new.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.codegen.llvm.abi import (
    ArrayField,
    Known,
    Site,
    call_symbol,
    known_call_symbol,
)
from ftuner.core.dtype import DTYPES
from ftuner.runtime.arrays import DATA_WORD, Array
from ftuner.runtime.cpu import NativeRuntime
from ftuner.runtime.encode import ALIGNMENT_BYTES, Encoded
from ftuner.runtime.products import Products, Ready
from ftuner.runtime.session import Session

MAX_WORKSPACE_BYTES = 16 << 20
"""A call with a larger workspace is not remembered: it takes milliseconds anyway."""
SHORT_S = 80e-6
"""Shorter plans do without workers for some calls after one of these was held up. A call takes a
millisecond then, which longer ones lose less by than by going alone where that was an accident."""
PATIENCE = 3
HELD_UP_S = 400e-6
"""A worker was held up where a call took so many times its estimate and so much longer. Derived: a
busy neighbour doubles the time of a call, and the first one after a pause wakes its workers, which
takes 250 to 350 us of a virtual machine."""
_MASK = 2**64 - 1
_HAS_GIL = not sysconfig.get_config_var("Py_GIL_DISABLED")
_DTYPES = {id(np.dtype(name)) for name in DTYPES}
"""The dtype objects of nearly all arrays, which live for ever; others are not remembered."""


class Constant(NamedTuple):
    """Operands that are the same in each call of a layer."""

    b: Array
    operands: int | None
    """The address of the epilogue's `Words`."""
    owner: object
    """What keeps those."""


class _Owner(NamedTuple):
    """A record, and what lives as long."""

    record: array[int]
    named: tuple[object, ...]


class KnownCalls:
    """The calls of a matrix product or a layer that are known. Safe to use from several threads."""

    def __init__(self, session: Session, inputs: int) -> None:
        """`inputs`: arrays that a call brings to be read."""
        self._session = session
        self._inputs = inputs
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Know nothing, as at first: after a fork, records name the parent's pool."""
        self._lock = threading.Lock()
        self._site: _Site | None = None
        self._owners: dict[int, _Owner] = {}
        """By slot of the table."""
        self._workspace = np.zeros(0, np.int64)
        self.call: Callable[..., Any] = _to_be_remembered
        """`call(*inputs, out)`: the result; or None if this is no call like some before; or False
        if it is to be remembered. `out` may be None."""

    def remember(
        self, inputs: Sequence[Array], out: Array, is_made: bool, products: Products, ready: Ready,
        constant: Constant | None = None,
    ) -> None:  # fmt: skip
        """Know the next call with such arrays, to be run by a plan that was made for them.

        `is_made`: whether `out` was made by the call, contiguous.
        """
        arrays = (*inputs, out)
        encoded = ready.encoded
        if not _HAS_GIL or not all(map(_can_be_known, arrays)):
            return
        seconds = products.seconds(ready) if encoded.workers > 1 else 0.0
        short = 0.0 < seconds < SHORT_S
        patience_ns = int(1e9 * (PATIENCE * seconds + HELD_UP_S)) if short else 0
        alone = products.alone(ready, make=short)
        size = max(x.workspace_bytes for x in (encoded, alone) if x is not None)
        if size > MAX_WORKSPACE_BYTES:
            return
        # Whoever comes while the table changes, be it from a finaliser, finds its call unknown.
        if not self._lock.acquire(blocking=False):
            return
        try:
            runtime = products.backend.runtime
            if self._site is None:
                self._site = _site(self._session, runtime)
                self.call = _function(self._site, runtime, self._inputs)
            owner = self._owner(
                arrays, is_made, products, ready, alone, size, patience_ns, constant
            )
            self._place(owner)
        finally:
            self._lock.release()

    def _owner(
        self, arrays: Sequence[Array], is_made: bool, products: Products, ready: Ready,
        alone: Encoded | None, size: int, patience_ns: int, constant: Constant | None,
    ) -> _Owner:  # fmt: skip
        """A record with what it names."""
        runtime, out = products.backend.runtime, arrays[-1]
        encoded, pool = ready.encoded, runtime.pool
        signature = [word for array in arrays[:-1] for word in _signed(array, ArrayField.ALIGNED)]
        flags = ArrayField.ALIGNED | ArrayField.WRITEABLE
        signature += [0] if is_made else _signed(out, flags)
        workspace = self._room(size)
        empty = (out.shape, out.dtype)
        acquire, release = pool.lock.acquire, pool.lock.release
        words = [0] * Known.SIGNATURE
        words[Known.HASH] = _hash(signature)
        words[Known.THREADS] = ready.problem.workers
        words[Known.ENTRY] = runtime.addresses[call_symbol(products.compiled.library.dtype)]
        words[Known.PLAN] = encoded.address
        words[Known.WORKERS] = encoded.workers
        words[Known.ALONE] = 0 if alone is None else alone.address
        words[Known.POOL] = pool.address
        if size:
            words[Known.WORKSPACE] = _behind_word(workspace)
            words[Known.WORKSPACE_BYTES] = size + ALIGNMENT_BYTES
        words[Known.PATIENCE_NS] = patience_ns
        if constant is not None:
            words[Known.B] = id(constant.b) + DATA_WORD
            words[Known.OPERANDS] = constant.operands or 0
        words[Known.EMPTY], words[Known.EMPTY_ARGUMENTS] = id(np.empty), id(empty)
        words[Known.ACQUIRE], words[Known.ACQUIRE_ARGUMENTS] = id(acquire), id(_AT_ONCE)
        words[Known.RELEASE] = id(release)
        for i, x in enumerate(arrays):
            words[Known.SPANS + 2 * i : Known.SPANS + 2 * i + 2] = _span(x)
        words[Known.LENGTH] = len(signature)
        words += signature
        record = array("Q", [word & _MASK for word in words])
        named = (ready, alone, constant, workspace, empty, acquire, release)
        owner = _Owner(record, named)
        record[Known.OWNER] = id(owner)
        return owner

    def _place(self, owner: _Owner) -> None:
        """Put a record in the table: over one with its signature, else in the first free slot, else
        over any."""
        assert self._site is not None
        number = owner.record[Known.HASH]
        slots = [(number + i) % Site.TABLE_SLOTS for i in range(Site.PROBES)]
        place = slots[(number >> 32) % Site.PROBES]
        for at in slots:
            kept = self._owners.get(at)
            if kept is None or kept.record[Known.HASH] == number:
                place = at
                break
        before = self._owners.get(place)
        self._site[Site.TABLE + place] = owner.record.buffer_info()[0]
        self._owners[place] = owner
        # Only now may what was there be freed.
        del before

    def _room(self, size: int) -> Array:
        """A workspace of at least `size` bytes, which calls that are known share."""
        words = -(-size // 8) + 2 * ALIGNMENT_BYTES // 8
        if size and words > self._workspace.size:
            self._workspace = np.zeros(max(words, 2 * self._workspace.size), np.int64)
        return self._workspace


class _Site(np.ndarray[Any, Any]):
    """The memory of an `abi.Site`, with what lives as long."""

    needs: tuple[object, ...]


class _Method(ctypes.Structure):
    """Python's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80
_AT_ONCE = (False,)
"""Arguments of a lock's `acquire`: not to wait."""


def _to_be_remembered(*arrays: object) -> bool:
    return False


def _site(session: Session, runtime: NativeRuntime) -> _Site:
    site = np.zeros(Site.SIZE, np.uint64).view(_Site)
    words = session.thread_word
    site[Site.NONE], site[Site.TRUE], site[Site.FALSE] = id(None), id(True), id(False)
    site[Site.ARRAY_TYPE] = id(np.ndarray)
    site[Site.THREADS] = words.ctypes.data
    site.needs = (runtime, words)
    return site


def _function(site: _Site, runtime: NativeRuntime, inputs: int) -> Callable[..., Any]:
    """A built-in function of Python whose `self` is the site."""
    address = runtime.addresses[known_call_symbol(inputs)]
    method = _Method(b"known_call", address, _METH_FASTCALL, None)
    site.needs = (*site.needs, method)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
    function: Callable[..., Any] = new(ctypes.addressof(method), site, None)
    return function


def _can_be_known(x: Array) -> bool:
    plain = type(x) is np.ndarray and x.ndim <= Known.MAX_AXES and id(x.dtype) in _DTYPES
    return plain and x.flags.aligned


def _signed(x: Array, flags: int) -> list[int]:
    """What native code compares; see `Known.LENGTH`."""
    held = x.ndim | (x.flags.num & flags) << 32
    return [id(x.dtype), held, *x.shape, *x.strides]


def _hash(words: Sequence[int]) -> int:
    value = 0
    for word in words:
        value = (value ^ (word & _MASK)) * Known.HASH_FACTOR & _MASK
        value ^= value >> 32
    return value


def _span(x: Array) -> tuple[int, int]:
    """Bytes from the first element to the lowest one, and to behind the highest one."""
    reach = [(extent - 1) * step for extent, step in zip(x.shape, x.strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + x.itemsize


def _behind_word(workspace: Array) -> int:
    """The first address on a cache line that has a whole word of the array before it."""
    return -(-(int(workspace.ctypes.data) + 8) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


_ALL: weakref.WeakSet[KnownCalls] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for calls in list(_ALL):
        calls.forget()


os.register_at_fork(after_in_child=_forget_all_in_child)
