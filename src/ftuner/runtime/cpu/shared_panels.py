"""Products of several requests with one weight, whose chunks take turns.

A product of few rows takes as long as it takes to read its weight. In a batch each request has a
plan of its own, and so the bits that it has alone; but the same panels of the weight are multiplied
for one request after the other, before the next ones. They are read from memory once, and from L2
for the other requests.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from ftuner.codegen.llvm.native.records import (
    MAX_CHUNKS_A_WORKER,
    SLOT_BYTES,
    Band,
    Call,
    Plan,
    Program,
    Worker,
)
from ftuner.codegen.llvm.native.records import Step as StepSlot
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.cpu.arrays import address_of
from ftuner.runtime.cpu.program import BoundProgram
from ftuner.runtime.cpu.step_kind import CompiledStep
from ftuner.runtime.shapes.layout import Words

_PLAN = ctypes.c_int64 * (Plan.WORKER_RECORDS + Worker.SIZE)
_BAND = ctypes.c_int64 * Band.SIZE


class SharedPanels:
    """The steps of a request whose weights are too large for L2, so that requests share panels."""

    def __init__(self, steps: Sequence[CompiledStep], hardware: CpuHardware) -> None:
        room = panels_room(hardware)
        found = [(number, *step.weight_panels) for number, step in enumerate(steps)]
        found = [(number, panels, size) for number, panels, size in found if size > room]
        self.numbers = np.array([number for number, *_ in found], np.int64)
        self._panels = np.array([panels for _, panels, _ in found], np.int64)
        parts = [min(panels, math.ceil(size / room)) for _, panels, size in found]
        self._parts = np.array(parts, np.int64)

    def __bool__(self) -> bool:
        return len(self.numbers) > 0

    def able(self, template: BoundProgram, workers: int) -> Words:
        """For each of the steps, whether its plan in a program may be walked panel by panel, by any
        of the workers, with the same bits."""
        records = template.records
        firsts = Program.SIZE + self.numbers * StepSlot.SIZE
        works = records[firsts + StepSlot.CHUNKS] > 0
        calls = records[firsts + StepSlot.ARGUMENT]
        # Calls are among the records of the program.
        places = (calls - template.address) // SLOT_BYTES
        plans = records[places + Call.PLAN].tolist()
        steps = zip(works.tolist(), plans, self._panels.tolist(), strict=True)
        return np.array([on and _walks(at, n, workers) for on, at, n in steps], np.int64)

    def share(self, records: Words, able: Words, workers: int) -> Words:
        """Change records of programs, a row for each request, so that requests take turns; returns
        what these point to. `able`: a row for each request."""
        counts = able.sum(axis=0)
        parts = np.minimum(self._parts, MAX_CHUNKS_A_WORKER * workers // np.maximum(counts, 1))
        takes = able * ((counts > 1) & (parts > 1)) > 0
        firsts = Program.SIZE + self.numbers * StepSlot.SIZE
        requests, which = np.nonzero(takes)
        records[requests, firsts[which] + StepSlot.CHUNKS] = 0
        # Those that take turns come first.
        order = np.argsort(~takes, axis=0, kind="stable")
        calls = np.ascontiguousarray(records[order, firsts + StepSlot.ARGUMENT].T)
        shared = takes.any(axis=0)
        first, step = order[0, shared], firsts[shared]
        records[first, step + StepSlot.CALLS] = (
            address_of(calls) + np.arange(len(calls)) * calls.strides[0]
        )[shared]
        records[first, step + StepSlot.CALL_COUNT] = counts[shared]
        records[first, step + StepSlot.PANELS] = self._panels[shared]
        records[first, step + StepSlot.CHUNKS] = (counts * parts)[shared]
        return calls


def panels_room(hardware: CpuHardware) -> float:
    """The bytes of panels that one chunk reads; the other part of L2 is for rows of requests."""
    return hardware.tuning.panel_share_of_l2 * hardware.l2_bytes


def _walks(address: int, panels: int, workers: int) -> bool:
    """`SharedPanels.able` of the plan at an address."""
    plan = _PLAN.from_address(address)
    share = plan[Plan.WORKER_RECORDS :]
    if plan[Plan.PARTS] > 1 or share[Worker.PACK_COUNT] or share[Worker.BATCH_END] != 1:
        return False
    bands = (_BAND * share[Worker.BAND_COUNT]).from_address(share[Worker.BANDS])
    # Blocks of A would be packed again for each panel.
    if any(band[Band.PACK_A] for band in bands):
        return False
    if plan[Plan.CHUNKS]:
        return bool(plan[Plan.CHUNK_BY_PANELS]) and plan[Plan.CHUNK_EXTENT] == panels
    # One worker's plan has memory for one of them to widen panels in.
    widens = any(band[Band.WIDENS] for band in bands)
    return plan[Plan.WORKERS] == 1 and (workers == 1 or not widens)
