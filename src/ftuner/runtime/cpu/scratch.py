"""Workspaces: scratch memory of calls of matrix products.

All products of a process share them. A call takes one and gives it back, so that there are as many
workspaces as there were concurrent calls. One that is too small for a call is replaced by a larger
one.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping

import numpy as np

from ftuner.codegen.llvm.native.records import ALIGNMENT_BYTES, SLOT_BYTES, FreeWorkspaces
from ftuner.codegen.llvm.native.symbols import GIVE_WORKSPACE_SYMBOL, TAKE_WORKSPACE_SYMBOL
from ftuner.core.fork_safety import renew_after_fork
from ftuner.runtime.cpu.arrays import Array

MAX_KEPT_BYTES = 256 << 20
"""A free workspace larger than this is freed when a call needs less. Limits the memory that a
process keeps."""
MAX_KEPT_TOGETHER_BYTES = 1 << 30
"""Limit on all workspaces that are kept: one that would exceed it is freed after its call."""
_ANY = (1 << 63) - 1
# Called with the interpreter's lock held: they take less time than releasing it.
_TAKE_TYPE = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_GIVE_TYPE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class Workspaces:
    """The workspaces of a process. Safe to use from several threads."""

    def __init__(self, addresses: Mapping[str, int]) -> None:
        """`addresses`: of native functions, by symbol."""
        self._take = _TAKE_TYPE(addresses[TAKE_WORKSPACE_SYMBOL])
        self._give = _GIVE_TYPE(addresses[GIVE_WORKSPACE_SYMBOL])
        self._table = np.zeros(FreeWorkspaces.SLOTS, np.int64)
        self.address = int(self._table.ctypes.data)
        """The table of free workspaces, which native code uses too; it takes none larger than
        `MAX_KEPT_BYTES`."""
        self.renew_in_child()
        renew_after_fork(self)

    def renew_in_child(self) -> None:
        """Forget all workspaces after a fork: those in use belong to threads that the child does
        not have."""
        self._table[:] = 0
        self._kept: dict[int, Array] = {}
        """All workspaces by address; at most as many as the table has slots."""
        self._others: dict[int, Array] = {}
        """Workspaces that are freed after their call."""
        # Reentrant: a finalizer that runs within may call ftuner.
        self._lock = threading.RLock()

    @property
    def kept_bytes(self) -> int:
        return sum(memory.nbytes for memory in list(self._kept.values()))

    def take(self, size: int) -> int:
        """The address of a workspace of at least `size` bytes, on a cache line.

        Raises:
            MemoryError: the system does not have as much.
        """
        most = MAX_KEPT_BYTES if size <= MAX_KEPT_BYTES else _ANY
        return self._take(self.address, size, most) or self._made(size)

    def give_back(self, address: int) -> None:
        if address in self._kept:
            self._give(self.address, address)
        else:
            del self._others[address]

    def _made(self, size: int) -> int:
        with self._lock:
            # No free workspace fits.
            unfit = self._take(self.address, 0, _ANY)
            before = self._kept.pop(unfit).nbytes if unfit else 0
            # Sizes grow in steps, so that slightly longer calls fit the same workspace.
            grown = max(size, min(2 * before, MAX_KEPT_BYTES)) if before < size else size
            memory = np.empty(grown + 2 * ALIGNMENT_BYTES, np.uint8)
            word = -(-int(memory.ctypes.data) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            address = word + ALIGNMENT_BYTES
            ctypes.c_int64.from_address(address - SLOT_BYTES).value = grown
            room = MAX_KEPT_TOGETHER_BYTES - self.kept_bytes
            is_kept = len(self._kept) < FreeWorkspaces.SLOTS and grown <= room
            (self._kept if is_kept or not self._kept else self._others)[address] = memory
            return address
