"""The Python half of the call cache. Native code looks a call up by the dtypes, extents and strides
of its arrays and runs the plan of the earlier call; Python handles calls that are not found.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.codegen.llvm.native.binding_records import ArrayField, Known, Site
from ftuner.codegen.llvm.native.symbols import driver_symbol, known_call_symbol
from ftuner.core.dtype import FLOAT16, TENSOR_DTYPES
from ftuner.core.fork_safety import renew_after_fork
from ftuner.runtime.cpu.arrays import DATA_WORD, Array, span_of
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.memory import Arena
from ftuner.runtime.cpu.output_forms import Make
from ftuner.runtime.cpu.products import Products, Ready
from ftuner.runtime.cpu.scratch import MAX_KEPT_BYTES
from ftuner.runtime.cpu.session import CpuSession

MAX_WORKSPACE_BYTES = 16 << 20
"""A call with a larger workspace is not cached: it takes milliseconds anyway."""
_MASK = 2**64 - 1
_HAS_GIL = "free-threading build" not in sys.version
_DTYPES = {id(np.dtype(name)) for name in (*TENSOR_DTYPES, FLOAT16.name)}
"""The dtype objects of most arrays, which are never freed. Calls with others are not cached."""


class Constant(NamedTuple):
    """Operands that are the same in all calls of a layer."""

    b: Array
    operands: int | None
    """The address of the epilogue's `Words`."""
    owner: object
    """Keeps the `Words` alive."""


class KnownProgram(NamedTuple):
    """What computes one array from others, and is used by a call cache alone."""

    symbol: str
    """Of its entry, as that of programs: `codegen.llvm.native.program`."""
    address: int
    """Of its plan."""
    workers: int
    make: Make
    """Makes the output of this shape and dtype."""
    output: tuple[tuple[int, ...], Any]
    named: tuple[object, ...]
    """Keeps the plan alive, and what that points to."""


class _Owner(NamedTuple):
    """A record, and what must stay alive with it."""

    record: array[int]
    named: tuple[object, ...]


class KnownCalls:
    """The cached calls of `matmul`, of one layer, or of programs. Safe to use from several
    threads."""

    def __init__(self, session: CpuSession, inputs: int | None = None) -> None:
        """`inputs`: number of arrays that a product reads; None for programs."""
        self._session = session
        self._symbol = known_call_symbol(inputs)
        self.arena = Arena()
        """Of programs, of which one runs at a time."""
        self.renew_in_child()
        renew_after_fork(self)

    def renew_in_child(self) -> None:
        """Empty the cache after a fork: its records point to the parent's pool."""
        self._lock = threading.Lock()
        self._site: _Site | None = None
        self._owners: dict[int, _Owner] = {}
        """Entries by slot of the table."""
        self.call: Callable[..., Any] = _to_be_remembered
        """`call(*inputs, out)`, without `out` for programs, returns the result, or None if the call
        is not cached, or False if it should be added. `out` may be None."""

    def remember(
        self, inputs: Sequence[Array], out: Array, is_made: bool, products: Products, ready: Ready,
        constant: Constant | None = None,
    ) -> None:  # fmt: skip
        """Add a call with such arrays and the plan that was made for them.

        `is_made`: whether the call allocated `out`, contiguous.
        """
        arrays = (*inputs, out)
        encoded = ready.encoded
        if not _HAS_GIL or not all(map(_can_be_known, arrays)):
            return
        if encoded.workspace_bytes > MAX_WORKSPACE_BYTES:
            return
        several = encoded.workers > 1
        seconds = products.planner.least_seconds(ready.problem) if several else 0.0
        library = products.compiled.library
        tuning = library.hardware.tuning
        short = 0.0 < seconds < tuning.short_call_s
        patience_s = tuning.preempted_ratio * seconds + tuning.preempted_s
        patience_ns = int(1e9 * patience_s) if short else 0
        runtime, flags = products.kernels.runtime, ArrayField.ALIGNED | ArrayField.WRITEABLE
        signature = [word for x in inputs for word in _signed(x, ArrayField.ALIGNED)]
        signature += [0] if is_made else _signed(out, flags)
        fields = {
            Known.THREADS: ready.problem.workers,
            Known.ENTRY: runtime.addresses[driver_symbol("call", library.types.a)],
            Known.PLAN: encoded.address,
            Known.WORKERS: encoded.workers,
            Known.WORKSPACE_BYTES: encoded.workspace_bytes,
            Known.PATIENCE_NS: patience_ns,
        }
        if constant is not None:
            fields[Known.B] = id(constant.b) + DATA_WORD
            fields[Known.OPERANDS] = constant.operands or 0
        fields |= enumerate([end for x in arrays for end in span_of(x)], Known.SPANS)
        output = out.shape, out.dtype
        self._add(runtime, signature, np.empty, output, fields, (ready, constant))

    def admits(self, arrays: Sequence[object]) -> bool:
        """Whether calls of programs with such inputs and such an output can be cached."""
        plain = all(_can_be_known(x) and x.flags.carray for x in arrays)  # type: ignore[attr-defined]
        return _HAS_GIL and len(arrays) <= Known.MAX_INPUTS + 1 and plain

    def remember_program(
        self, runtime: NativeRuntime, inputs: Sequence[Array], program: KnownProgram, threads: int
    ) -> None:
        """Add a call with such arrays, which `admits` admits. `threads`: those of the session when
        the program was made."""
        fields = {
            Known.THREADS: threads,
            Known.ENTRY: runtime.addresses[program.symbol],
            Known.PLAN: program.address,
            Known.WORKERS: program.workers,
        }
        signature = [word for x in inputs for word in _signed(x, ArrayField.ALIGNED)]
        self._add(runtime, signature, program.make, program.output, fields, (program,))

    def _add(
        self, runtime: NativeRuntime, signature: Sequence[int], make: Make,
        output: tuple[tuple[int, ...], Any],
        fields: dict[int, int], named: tuple[object, ...],
    ) -> None:  # fmt: skip
        """Add a record. `make` makes the `output`; `named`: the objects that `fields` point to."""
        # A call that arrives while the table changes, even from a finaliser, is not found.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._site is None:
                self._site = _site(self._session, runtime)
                self.call = _function(self._site, runtime, self._symbol)
            pool = runtime.pool
            acquire, release = pool.lock.acquire, pool.lock.release
            fields |= {
                Known.HASH: _hash(signature),
                Known.POOL: pool.address,
                Known.EMPTY: id(make),
                Known.EMPTY_ARGUMENTS: id(output),
                Known.ACQUIRE: id(acquire),
                Known.ACQUIRE_ARGUMENTS: id(_AT_ONCE),
                Known.RELEASE: id(release),
                Known.LENGTH: len(signature),
            }
            words = [fields.get(place, 0) & _MASK for place in range(Known.SIGNATURE)]
            record = array("Q", [*words, *(word & _MASK for word in signature)])
            owner = _Owner(record, (*named, make, output, acquire, release))
            record[Known.OWNER] = id(owner)
            self._place(owner)
        finally:
            self._lock.release()

    def _place(self, owner: _Owner) -> None:
        """Put a record in the table: in place of one with its signature, else in the first free
        slot, else in place of the least recently used."""
        assert self._site is not None
        number = owner.record[Known.HASH]
        owner.record[Known.LAST_USE] = int(self._site[Site.MISSES])

        def least_wanted(at: int) -> int:
            kept = self._owners.get(at)
            if kept is None or kept.record[Known.HASH] == number:
                return -1
            return kept.record[Known.LAST_USE]

        slots = [(number + i) % Site.TABLE_SLOTS for i in range(Site.PROBES)]
        place = min(slots, key=least_wanted)
        before = self._owners.get(place)
        self._site[Site.TABLE + place] = owner.record.buffer_info()[0]
        for at in slots:
            if self._site[Site.SEEN + at] == number:
                self._site[Site.SEEN + at] = 0
        self._owners[place] = owner
        # The replaced entry may be freed only now.
        del before


class _Site(np.ndarray[Any, Any]):
    """The memory of a `records.Site`, and what must stay alive with it."""

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
"""Arguments of a lock's `acquire`: do not wait."""


def _to_be_remembered(*arrays: object) -> bool:
    return False


def _site(session: CpuSession, runtime: NativeRuntime) -> _Site:
    site = np.zeros(Site.SIZE, np.uint64).view(_Site)
    words = session.thread_word
    site[Site.NONE], site[Site.TRUE], site[Site.FALSE] = id(None), id(True), id(False)
    site[Site.ARRAY_TYPE] = id(np.ndarray)
    site[Site.THREADS] = words.ctypes.data
    site[Site.WORKSPACES] = runtime.workspaces.address
    site[Site.MOST_WORKSPACE_BYTES] = MAX_KEPT_BYTES
    site.needs = (runtime, words)
    return site


def _function(site: _Site, runtime: NativeRuntime, symbol: str) -> Callable[..., Any]:
    """A built-in function of Python whose `self` is the site."""
    address = runtime.addresses[symbol]
    method = _Method(b"known_call", address, _METH_FASTCALL, None)
    site.needs = (*site.needs, method)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
    function: Callable[..., Any] = new(ctypes.addressof(method), site, None)
    return function


def _can_be_known(x: Any) -> bool:
    plain = type(x) is np.ndarray and x.ndim <= Known.MAX_AXES and id(x.dtype) in _DTYPES
    return plain and bool(x.flags.aligned)


def _signed(x: Array, flags: int) -> list[int]:
    """The signature that native code compares; see `Known.LENGTH`."""
    held = x.ndim | (x.flags.num & flags) << 32
    return [id(x.dtype), held, *x.shape, *x.strides]


def _hash(words: Sequence[int]) -> int:
    value = 0
    for word in words:
        value = (value ^ (word & _MASK)) * Known.HASH_FACTOR & _MASK
        value ^= value >> 32
    return value
