"""Forks: a child has one thread, the one that forked, and whatever the others held or left.

A lock that another thread held at the fork stays locked in the child for ever. So whatever owns
locks renews them there, and gives up what belongs to threads that are gone. What another thread was
importing is imported anew.

A fork takes no lock of ours: the thread that forks may be importing a module, or hold a lock of the
standard library, for which the thread that has ours may wait. It takes LLVM's alone, within which
no thread waits for another. It lets an import of NumPy or onnx end, as long as it gets on.
"""

from __future__ import annotations

import logging  # noqa: F401  # Before a fork its lock is then taken after what this does.
import os
import sys
import threading
import time
import weakref
from importlib import _bootstrap
from typing import Any, Protocol


class Lock(Protocol):
    """What a `with` statement takes."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: Any) -> None: ...


class Renewed(Protocol):
    """What a fork may catch in use by another thread."""

    def renew_in_child(self) -> None:
        """Make new locks; forget what threads of the parent were doing."""


_AWAITED: list[Lock] = []
"""Locks that a fork waits for, in the order in which any thread takes them."""
_FORKING: list[Lock] = []
"""Those that the thread which forks has taken."""
_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()
_RENEWED: weakref.WeakSet[Renewed] = weakref.WeakSet()
_ONCE = ("numpy", "numpy.random", "onnx")
"""Packages that a process can import only once, because of their extension modules."""
PATIENCE_S = 1.0
"""Limit on a fork's wait for them."""
STUCK_S = 0.05
"""A thread at the same place for as long may wait for the thread that forks."""
LOOK_AGAIN_S = 0.001


def fork_safe_lock() -> Lock:
    """A reentrant lock that a forked child finds free, even if the parent held it. What it
    guards must be sound at any moment, as a table is to which only what is complete is added."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def renew_after_fork(owner: Renewed) -> None:
    """Have `owner.renew_in_child()` called in each forked child, for as long as `owner` lives."""
    _RENEWED.add(owner)


def wait_before_fork(lock: Lock) -> None:
    """Have each fork wait until a reentrant lock is free, so that it is free in the child as well:
    for the lock of a library whose holder waits for nothing."""
    if lock not in _AWAITED:
        _AWAITED.append(lock)


def _importing() -> dict[str, int]:
    """The modules that other threads are importing, and their threads. The import system has no
    public way to ask."""
    locks: dict[str, Any] = getattr(_bootstrap, "_module_locks", {})
    found = {name: getattr(lock(), "owner", None) for name, lock in list(locks.items())}
    own = threading.get_ident()
    return {name: owner for name, owner in found.items() if owner not in (None, own)}


def _let_imports_end() -> None:
    """Wait while other threads get on with imports of packages that no child can import anew. Only
    with those: what a module registers for forks meanwhile is undone after this one, and was not
    done before it."""
    began = changed = time.monotonic()
    before: list[tuple[int, int]] = []
    while threads := {thread for name, thread in _importing().items() if name in _ONCE}:
        frames, now = sys._current_frames(), time.monotonic()
        places = [(id(frames[t]), frames[t].f_lasti) for t in threads if t in frames]
        if places != before:
            before, changed = places, now
        if now - changed > STUCK_S or now - began > PATIENCE_S:
            return
        time.sleep(LOOK_AGAIN_S)


def _before() -> None:
    _let_imports_end()
    # The first lock keeps other threads that fork out.
    for lock in tuple(_AWAITED):
        lock.__enter__()
        _FORKING.append(lock)


def _after() -> None:
    while _FORKING:
        _FORKING.pop().__exit__(None, None, None)


def _after_in_child() -> None:
    _after()
    _forget_half_imports()
    for lock in list(_LOCKS):
        # The thread that forked keeps what it holds.
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()
    for owner in list(_RENEWED):
        owner.renew_in_child()


def _forget_half_imports() -> None:
    """Forget the modules that threads of the parent were importing, and the import system's locks
    of them: any import of one would wait for ever."""
    for name in _importing():
        del _bootstrap._module_locks[name]  # type: ignore[attr-defined]
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            del sys.modules[name]


# Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
