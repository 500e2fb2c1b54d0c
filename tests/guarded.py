"""Arrays that end, or begin, where memory does; and all memory of the CPU path put that way.

`guarded` copies one array. `guarding` replaces what the runtime allocates memory of native code
with: results, copies, packed weights, constants, each buffer of an arena, workspaces and records
then lie between two pages that fault when they are touched. What is left of the pages in use, and
the gaps between the elements of a strided array, has a pattern that a float reads as NaN; `check`
finds writes to it. A fault ends the process: `tests.apart` runs such cases in a child.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import ftuner.runtime.cpu.attention
import ftuner.runtime.cpu.boundary
import ftuner.runtime.cpu.executable
import ftuner.runtime.cpu.grouped  # noqa: F401
from ftuner.codegen.llvm.native.binding_records import Sharing
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.dim import Dim
from ftuner.graph.buffers import Buffer
from ftuner.graph.schedules import modules
from ftuner.runtime.cpu import program
from ftuner.runtime.cpu.memory import OutputPool
from ftuner.runtime.cpu.packed_weights import Panels
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.program import BoundProgram, ProgramWriter
from ftuner.runtime.cpu.record_layout import FIRST_BUFFER, RecordLayout
from ftuner.runtime.cpu.scratch import Workspaces
from ftuner.runtime.cpu.work_distribution import WorkDistribution

Array = npt.NDArray[Any]
Side = Literal["begin", "end"]

FLOATS = 0xFF
"""Each byte outside the elements of an array of floats, or of bytes: NaN in every format, and -1 as
an integer."""
INTEGERS = 0x55
"""The same for integers and booleans: an index out of range, and neither true nor false."""
PAGE_BYTES = mmap.PAGESIZE
_NO_ACCESS = 0
"""`PROT_NONE`."""

_living: weakref.WeakSet[Guard] = weakref.WeakSet()
_damages: list[str] = []
"""What was found in memory that has been given back."""


class Guard:
    """The memory of an array between two pages that fault; the array's base, and gone with it."""

    def __init__(
        self, shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None,
        at: Side = "end", gap: int = 0,
    ) -> None:  # fmt: skip
        """`gap`: bytes between the elements and the page that they lie at."""
        kind = np.dtype(dtype)
        steps = np.empty(shape, kind).strides if strides is None else tuple(strides)
        low, high = _reach(shape, steps, kind.itemsize)
        size = max(-(-(high - low + gap) // PAGE_BYTES), 1) * PAGE_BYTES
        begin = _pages(size)
        lowest = begin + gap if at == "begin" else begin + size - gap - (high - low)
        fill = INTEGERS if kind.kind in "iub" and kind != np.uint8 else FLOATS
        ctypes.memset(begin, fill, size)
        self.address = lowest - low
        self.__array_interface__ = {
            "version": 3, "data": (self.address, False), "shape": tuple(shape), "strides": steps,
            "typestr": kind.str,
        }  # fmt: skip
        self._held = (begin, size, fill, self.address - begin, tuple(shape), steps, kind.str)
        weakref.finalize(self, _give_back, *self._held).atexit = False
        _living.add(self)

    @property
    def array(self) -> Array:
        """The elements, at first all of the pattern."""
        return np.asarray(self)

    def damage(self) -> str | None:
        """What was written to beside the elements."""
        return _damage(*self._held)

    def protect(self) -> None:
        """Have writes to the elements fault, too."""
        begin, size, *_ = self._held
        _protect(begin, size, mmap.PROT_READ)


def guarded(values: Array, at: Side = "end", read_only: bool = False) -> Array:
    """A copy of an array with the same strides that ends, or begins, at a page that faults; as far
    from it as the array's own misalignment asks for.

    `read_only`: writes to the copy fault, too.
    """
    low, high = _reach(values.shape, values.strides, values.itemsize)
    here = int(values.__array_interface__["data"][0])
    gap = (here + low if at == "begin" else -(here + high)) % values.dtype.alignment
    guard = Guard(values.shape, values.dtype, values.strides, at, gap)
    copy = guard.array
    copy[...] = values
    if read_only:
        copy.flags.writeable = False
        guard.protect()
    return copy


def check() -> None:
    """Raises AssertionError if anything was written to beside the elements of guarded arrays."""
    found = [damage for guard in list(_living) if (damage := guard.damage())] + _damages
    _damages.clear()
    assert not found, "; ".join(found)


@contextmanager
def guarding(at: Side = "end") -> Iterator[None]:
    """Guard all memory that the runtime allocates for native code from here on; what is made inside
    stays guarded. In the end, checks all that is guarded."""
    with ExitStack() as stack:
        # Back ends import these by name; a module that is first imported here would keep guards.
        list(modules("cpu_binding"))
        for name, module in list(sys.modules.items()):
            if name.startswith(("ftuner.runtime.", "ftuner.schedules.")) and ".gpu" not in name:
                for attribute, by in _of_module(vars(module), at).items():
                    stack.enter_context(patch.object(module, attribute, by))
        for owner, attribute, by in _of_classes(at):
            stack.enter_context(patch.object(owner, attribute, by))
        yield
    check()


class _Numpy:
    """NumPy with guarded arrays instead of new ones."""

    def __init__(self, at: Side) -> None:
        # Attributes, not methods: native code keeps the address of `empty`.
        for name in ("empty", "zeros", "array", "ascontiguousarray", "require"):
            setattr(self, name, _guards_what_is_new(getattr(np, name), at))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class _Records(np.ndarray[Any, Any]):
    """Stands in for `array.array`."""

    def buffer_info(self) -> tuple[int, int]:
        return int(self.ctypes.data), self.size

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return found if isinstance(found, np.ndarray) else int(found)


class _Image(np.ndarray[Any, Any]):
    """The image of a graph's records. Keeps the constants that it points to alive."""

    constants: dict[Buffer, Buffer]


def _guards_what_is_new(make: Callable[..., Array], at: Side) -> Callable[..., Array]:
    """A function that gives a new array, or a view of one that it was given."""

    def made(*arguments: Any, **options: Any) -> Array:
        found = make(*arguments, **options)
        given = [x for x in arguments if isinstance(x, np.ndarray)]
        is_view = any(found is x or np.may_share_memory(found, x) for x in given)
        is_new = not is_view and found.dtype.kind in "fiub"
        if not is_new or make is np.empty:
            return Guard(found.shape, found.dtype, None, at).array if is_new else found
        return guarded(found, at)

    return made


_NUMPY: dict[str, _Numpy] = {"begin": _Numpy("begin"), "end": _Numpy("end")}
"""Kept, because native code names their functions."""


def _of_module(names: dict[str, Any], at: Side) -> dict[str, Any]:
    """What stands in for the names of a module."""
    found: dict[str, Any] = {}
    if names.get("np") is np:
        found["np"] = _NUMPY[at]
    if names.get("array") is array:
        found["array"] = lambda code, words: _records(code, words, at)
    if "allocated" in names:
        found["allocated"] = _allocates(names["allocated"], at)
    if "long_lived" in names:
        found["long_lived"] = lambda size: Guard((size,), np.uint8, None, at).array
    if "pack" in names:
        found["pack"] = _packs(names["pack"], at)
    for name in ("readable", "_as_matrix"):
        if name in names:
            found[name] = _guards_what_is_new(names[name], at)
    return found


def _allocates(allocated: Callable[..., Array], at: Side) -> Callable[..., Array]:
    def allocates(
        shape: Sequence[int], dtype: Any, make: Callable[..., Array] = _NUMPY[at].empty
    ) -> Array:
        return allocated(shape, dtype, make)

    return allocates


def _records(code: str, words: Iterable[int] | bytes, at: Side) -> Array:
    found = np.frombuffer(words, code) if isinstance(words, bytes) else np.array([*words], code)
    return guarded(found, at).view(_Records)


def _packs(pack: Callable[..., Panels], at: Side) -> Callable[..., Panels]:
    """Packs a guarded weight, in panels that cannot be written to afterwards."""

    def packs(products: Products, weight: Array, width: int) -> Panels:
        kept = guarded(weight, at, read_only=True)
        panels = pack(products, kept, width)
        base: Any = panels.packed
        while not isinstance(base, Guard):
            base = base.base
        base.protect()
        return panels

    return packs


def _of_classes(at: Side) -> Iterator[tuple[type, str, Any]]:
    """What stands in for methods."""
    bind, distribute = ProgramWriter.bind, WorkDistribution.__call__
    fill = WorkDistribution.fill
    init, address, finished = (
        getattr(RecordLayout, name) for name in ("__init__", "address", "finished")
    )

    def guarded_init(self: Any, *arguments: Any) -> None:
        self.guarded_constants = {}
        init(self, *arguments)

    def guarded_finished(self: Any) -> tuple[_Image, Array]:
        image, fills = finished(self)
        kept = guarded(image, at).view(_Image)
        kept.constants = self.guarded_constants
        return kept, fills

    def guarded_address(self: Any, slot: int, buffer: Buffer, offset: Dim = 0) -> None:
        if buffer.array is not None:
            kept = self.guarded_constants
            if buffer not in kept:
                copy = guarded(buffer.array, at, read_only=True)
                kept[buffer] = Buffer(
                    buffer.kind, buffer.dtype, buffer.elements, buffer.number, copy
                )
            buffer = kept[buffer]
        address(self, slot, buffer, offset)

    def without_arena(self: WorkDistribution, *arguments: Any) -> tuple[int, Array | None]:
        return 0, distribute(self, *arguments)[1]

    def guarded_fill(self: Any, base: int, *arguments: Any) -> None:
        # Every buffer has memory of its own.
        sources, held = arguments[-1], self._held
        counts, sizes = held[Sharing.ELEMENTS].tolist(), held[Sharing.ITEM_BYTES].tolist()
        self.guarded_buffers = [
            Guard((self.guarded_values[number] * size,), np.uint8, None, at)
            for number, size in zip(counts, sizes, strict=True)
        ]
        places = (ctypes.c_int64 * len(counts)).from_address(sources + FIRST_BUFFER * SLOT_BYTES)
        places[:] = [guard.address - base for guard in self.guarded_buffers]
        fill(self, base, *arguments)

    def guarded_bind(
        self: Any, symbols: Sequence[int], workers: int, arena: Callable[[int], int]
    ) -> BoundProgram:
        kept: list[Guard] = []

        def workspace(size: int) -> int:
            kept.append(Guard((size,), np.uint8, None, at))
            return kept[0].address

        self._distribute.guarded_values = self._evaluate(symbols)
        found: BoundProgram = bind(self, symbols, workers, workspace)
        kept += self._distribute.guarded_buffers
        weakref.finalize(found.records, kept.clear).atexit = False
        return found._replace(arena=arena(0))

    workspaces: dict[int, Guard] = {}

    def take(self: Workspaces, size: int) -> int:
        guard = Guard((size,), np.uint8, None, at)
        workspaces[guard.address] = guard
        return guard.address

    def give_back(self: Workspaces, address: int) -> None:
        del workspaces[address]

    yield RecordLayout, "__init__", guarded_init
    yield RecordLayout, "address", guarded_address
    yield RecordLayout, "finished", guarded_finished
    yield WorkDistribution, "__call__", without_arena
    yield WorkDistribution, "fill", guarded_fill
    yield program, "allocated", lambda shape, dtype: Guard(shape, dtype, None, at).array
    yield ProgramWriter, "bind", guarded_bind
    yield OutputPool, "array", lambda self, shape, dtype: Guard(shape, dtype, None, at).array
    yield Workspaces, "take", take
    yield Workspaces, "give_back", give_back


def _reach(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Bytes from the first element to the lowest one, and to behind the highest one."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


def _has_no_gaps(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements lie side by side, in any order of the axes."""
    packed = itemsize
    for step, extent in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if step != packed:
            return False
        packed *= extent
    return True


def _damage(
    begin: int, size: int, fill: int, offset: int, shape: tuple[int, ...],
    strides: tuple[int, ...], typestr: str,
) -> str | None:  # fmt: skip
    itemsize = np.dtype(typestr).itemsize
    if _has_no_gaps(shape, strides, itemsize):
        low, high = _reach(shape, strides, itemsize)
        before, after = offset + low, size - offset - high
        outside = ctypes.string_at(begin, before) + ctypes.string_at(begin + size - after, after)
        if outside == bytes([fill]) * len(outside):
            return None
    pages = np.frombuffer((ctypes.c_uint8 * size).from_address(begin), np.uint8).copy()
    if 0 not in shape:
        pattern = np.full(itemsize, fill, np.uint8).view(f"V{itemsize}")[0]
        np.ndarray(shape, f"V{itemsize}", pages, offset, strides)[...] = pattern
    where = np.flatnonzero(pages != fill)
    if not where.size:
        return None
    places = [int(x) - offset for x in (where[0], where[-1])]
    return (
        f"{where.size} bytes between {places[0]} and {places[1]} from the first element of "
        f"{typestr} {shape}, strides {strides}, were written to"
    )


def _give_back(begin: int, size: int, *layout: Any) -> None:
    found = _damage(begin, size, *layout)
    if found:
        _damages.append(found)
    _libc().munmap(begin - PAGE_BYTES, size + 2 * PAGE_BYTES)


def _pages(size: int) -> int:
    """Pages that can be used, between two that cannot."""
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    whole = _libc().mmap(None, size + 2 * PAGE_BYTES, _NO_ACCESS, anonymous, -1, 0)
    if whole in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"cannot map {size} bytes: errno {ctypes.get_errno()}")
    _protect(whole + PAGE_BYTES, size, mmap.PROT_READ | mmap.PROT_WRITE)
    return int(whole) + PAGE_BYTES


def _protect(begin: int, size: int, protection: int) -> None:
    assert _libc().mprotect(begin, size, protection) == 0, ctypes.get_errno()


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
