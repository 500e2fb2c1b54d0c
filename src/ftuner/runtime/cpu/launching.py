"""Launches of bound programs on the threads of a session."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ftuner.codegen.llvm.native.records import SLOT_BYTES, Program, Status
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.codegen.llvm.native.symbols import PROGRAM_SYMBOL
from ftuner.core.units import count
from ftuner.errors import IndexRangeError
from ftuner.runtime.cpu.kernels import NativeRuntime
from ftuner.runtime.cpu.program import BoundProgram

Launch = Callable[[BoundProgram, int, bool], None]
"""Gets a program, where the addresses of the arrays are, and whether to run without workers."""


class Launcher:
    """Launches programs. Safe to use from several threads."""

    def __init__(self, runtime: NativeRuntime) -> None:
        self._runtime = runtime
        self.native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            runtime.addresses[PROGRAM_SYMBOL]
        )

    def all(self, program: BoundProgram, objects: int, alone: bool) -> None:
        """A `Launch` of all steps at once."""
        self.native(program.address, objects, alone)

    def steps(
        self, program: BoundProgram, number: int, count: int, objects: int, alone: bool
    ) -> None:
        """Run `count` steps, beginning with the step `number`."""
        records = program.records
        first, all_ = records[Program.STEPS], records[Program.STEP_COUNT]
        try:
            records[Program.STEPS] = first + number * StepSlot.SIZE * SLOT_BYTES
            records[Program.STEP_COUNT] = count
            self.native(program.address, objects, alone)
        finally:
            records[Program.STEPS], records[Program.STEP_COUNT] = first, all_

    def __call__(self, program: BoundProgram, workers: int, objects: int, launch: Launch) -> None:
        """Run a program by `launch`; `objects`: where the addresses of the arrays are.

        Raises:
            IndexRangeError: an index in the data that is out of range.
        """
        if workers == 1:
            launch(program, objects, True)
            ended(program)
            return
        pool = self._runtime.pool
        alone = True
        try:
            if pool.lock.acquire(blocking=False):
                alone = pool.threads < workers and not pool.grow(workers)
            launch(program, objects, alone)
        finally:
            try:  # noqa: SIM105, an interrupt within `suppress` would leave it locked
                pool.lock.release()
            except RuntimeError:
                # Another thread has the lock.
                pass
        ended(program)


def ended(program: BoundProgram) -> None:
    """Note that a run of a program has ended.

    Raises:
        IndexRangeError: an index in the data that is out of range.
    """
    if any(program.statuses()):
        records = program.records
        failed = [found for found in program.checked if records[found[0]]]
        slot, texts = failed[0]
        number, index, extent = records[slot : slot + Status.SIZE].tolist()
        for slot, _ in failed:
            records[slot] = 0
        raise IndexRangeError(
            f"{texts[number - 1]}: an index is out of range: {index}, along an axis of "
            f"{count(extent, 'element')}"
        )
    program.finished()
