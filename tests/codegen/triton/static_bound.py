"""The cycles that a multiprocessor needs at least for one turn of a compiled kernel's main loop.

One scheduler of a multiprocessor and its warps are followed through the machine code, instruction
by instruction. What is exact: the instructions, their stalls and scoreboards, barriers and waits,
and how many blocks the registers and the shared memory of the cubin allow. What is assumed, each
time in favour of the code: all data has arrived when it is waited for, shared memory has no bank
conflicts, results take the shortest latency known, and units reach the rates of the datasheet.
All schedulers have equally many warps and do the same.

Rates: CUDA C++ Programming Guide, "Arithmetic Instructions" (results for each clock and
multiprocessor). Latencies: Luo et al., arXiv 2402.13499 and 2501.12084, rounded down.
"""

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.codegen.triton.machine_code import (
    NO_SCOREBOARD,
    PRODUCTS,
    SCOREBOARDS,
    Instruction,
    Loop,
    main_loops,
)

from ftuner.codegen.triton.targets import Resources
from ftuner.hardware.gpu_model import GpuHardware

TURNS = 8
SETTLED = 3
"""Turns before the pace is steady."""
_ALLOCATION = 8
"""Registers of a thread are allocated in multiples of this."""
_LATENCY = {
    "MUFU": 18, "SHFL": 23, "LDS": 23, "LDSM": 23, "LDG": 200, "SYNCS": 20, "LDTM": 20, "S2R": 15,
}  # fmt: skip
"""Cycles from issue to result, where a scoreboard is set; loads of global memory from L2."""
_OTHER_LATENCY = 6


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HALVES = _names(
    "FMNMX FMNMX3 FSEL FSETP ISETP LOP3 IADD3 PRMT SHF SEL LEA F2FP VIADD VIMNMX VIADDMNMX "
    "IMNMX SGXT IABS PLOP3 POPC"
)
"""Instructions of the unit with 16 lanes."""
_FLOATS = _names("FFMA FADD FMUL FFMA2 FADD2 FMUL2 HFMA2")
_MEMORY = _names("LDS STS LDSM STSM LDG STG LDGSTS SHFL LDL STL ATOMS RED ATOMG")
_BY_ONE = ("UTCHMMA", "UTCQMMA")
"""Matrix instructions for tensor memory, which one thread issues for the block."""
_SHAPE = re.compile(r"\.(\d+)x(\d+)x(\d+)\.")
_FRAGMENT = {"16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4)}
_RATES = {"BF16": "bfloat16", "TF32": "tf32"}


class Bound(NamedTuple):
    """What one turn of a loop takes of a multiprocessor, for one block, with `blocks` resident."""

    blocks: int
    cycles: float
    """The schedule by its stalls, waits and barriers."""
    tensor: float
    """Cycles that the matrix units are busy."""
    issue: float
    """Issue slots of a scheduler."""
    special: float
    """Cycles of the unit for exponentials."""
    memory: float
    """Cycles of loads, stores and shuffles."""


def residency(hardware: GpuHardware, found: Resources) -> int:
    """Returns the blocks of a compiled kernel that a multiprocessor holds at once."""
    registers = -(-found.registers // _ALLOCATION) * _ALLOCATION
    kept_back = hardware.shared_bytes_per_multiprocessor - hardware.shared_bytes_per_block
    return min(
        hardware.registers_per_multiprocessor // (registers * found.threads),
        hardware.shared_bytes_per_multiprocessor // (found.shared_bytes + kept_back),
        hardware.threads_per_multiprocessor // found.threads,
        hardware.blocks_per_multiprocessor,
    )


def least(
    hardware: GpuHardware, code: list[Instruction], warps: int, blocks: int, macs: int,
    products: tuple[str, ...] = PRODUCTS,
) -> tuple[Loop, Bound]:  # fmt: skip
    """Returns the main loop that is over first, of those that multiply most, and its bound."""
    loops = main_loops(code, products)
    most = max(loop.count(*products) for loop in loops)
    found = [loop for loop in loops if loop.count(*products) == most]
    bounds = [(loop, bound(hardware, loop, warps, blocks, macs)) for loop in found]
    return min(bounds, key=lambda pair: pair[1].cycles)


def share_of_peak(hardware: GpuHardware, found: Bound, macs: int, multiply: str) -> float:
    """Returns the share of the datasheet's rate, where all multiprocessors do nothing but turns of
    `macs` multiply-adds."""
    peak = hardware.matrix_flops_per_s[multiply] / hardware.multiprocessors
    return 2 * macs * hardware.clock_hz / (found.cycles * peak)


def bound(
    hardware: GpuHardware, loop: Loop, warps: int, blocks: int, macs: int,
    ahead: float = math.inf,
) -> Bound:  # fmt: skip
    """Returns the bound of a loop.

    Args:
        ahead: groups of asynchronous products that a warp may have begun before another one began
            the first of them: buffers of a ring that they share, less the one in use.
        warps: that run the loop, in each of `blocks` resident blocks.
        macs: multiply-adds of a turn; instructions for tensor memory do not say their shape.
    """
    costs = [_cost(hardware, i, loop, macs) for i in loop.body]
    own = -(-warps // hardware.subpartitions_per_multiprocessor)
    units = {name: own * sum(c.cycles for c in costs if c.unit == name) for name in _UNITS}
    paces = [_run(loop.body, costs, own, blocks, ahead, first) for first in (True, False)]
    by_one = any(_issued_by_one(i) for i in loop.body)
    tensor = units["tensor"] / (own if by_one else 1)
    issue = float(own * len(loop.body))
    busiest = max(tensor, issue, *(units[name] for name in _UNITS if name != "tensor"))
    cycles = max(min(paces) / blocks, busiest)
    return Bound(blocks, cycles, tensor, issue, units["special"], units["memory"])


class _Cost(NamedTuple):
    unit: str
    cycles: float
    """Of the unit, for one warp; for a unit of the whole multiprocessor the warps of all
    subpartitions are counted."""
    latency: float


_UNITS = ("float", "half", "special", "memory", "tensor", "")


def _cost(hardware: GpuHardware, i: Instruction, loop: Loop, macs: int) -> _Cost:
    subs = hardware.subpartitions_per_multiprocessor
    lanes = hardware.vector_flops_per_s["float32"] / 2 / hardware.multiprocessors
    lanes /= hardware.clock_hz * subs
    latency = _LATENCY.get(i.name, _OTHER_LATENCY)
    if i.predicate == "!PT":
        # ptxas fills waiting times with loads that do nothing.
        return _Cost("", 0, latency)
    if i.name in ("HMMA", "HGMMA") or (i.name.startswith("UTC") and i.name.endswith("MMA")):
        return _Cost("tensor", _tensor_cycles(hardware, i, loop, macs), latency)
    if i.name == "MUFU":
        return _Cost("special", hardware.warp_threads * subs / 16, latency)
    if i.name in _FLOATS:
        wide = 2 if i.name.endswith("2") and i.name != "HFMA2" else 1
        return _Cost("float", wide * hardware.warp_threads / min(round(lanes), 32), latency)
    if i.name == "IMAD" and ".MOV" not in i.rest:
        return _Cost("float", 2, latency)
    if i.name in _HALVES:
        return _Cost("half", 2, latency)
    if i.name in _MEMORY:
        lines = max(
            _bytes_of_thread(i) * hardware.warp_threads // hardware.shared_bytes_per_clock, 1
        )
        return _Cost("memory", subs * lines, latency)
    return _Cost("", 0, latency)


def _bytes_of_thread(i: Instruction) -> int:
    if i.name in ("LDSM", "STSM"):
        return 4 * (4 if ".4" in i.rest else 2 if ".2" in i.rest else 1)
    width = re.match(r"[.A-Z0-9_]*?\.(128|64|U16|S16|U8|S8)\b", i.rest)
    return {"128": 16, "64": 8}.get(width[1], 2) if width else 4


def _tensor_cycles(hardware: GpuHardware, i: Instruction, loop: Loop, macs: int) -> float:
    kind = next((_RATES[name] for name in _RATES if f".{name}" in i.rest), "float16")
    flops = hardware.matrix_flops_per_s[kind] / hardware.multiprocessors / hardware.clock_hz
    if _issued_by_one(i):
        return macs / loop.count(*_BY_ONE) * 2 / flops
    if i.name == "HMMA":
        m, n, k = next(_FRAGMENT[s] for s in _FRAGMENT if f".{s}." in i.rest)
        rate = next(x.rate for x in hardware.matrix_instructions if not x.asynchronous)
        return 2 * m * n * k * hardware.subpartitions_per_multiprocessor / (flops * rate)
    shape = _SHAPE.search(i.rest)
    assert shape
    m, n, k = map(int, shape.groups())
    # Operands in shared memory: B, and A unless it is in registers.
    size = 4 if kind == "tf32" else 2
    a_in_registers = re.search(r"R\d+, R\d+, gdesc", i.rest)
    read = size * k * (n + (0 if a_in_registers else m)) / hardware.shared_bytes_per_clock
    return max(2 * m * n * k / flops, read)


@dataclass
class _Warp:
    block: int
    at: int = 0
    turn: int = 0
    ready: float = 0.0
    scoreboards: list[float] = field(default_factory=lambda: [0.0] * SCOREBOARDS)
    groups: list[float] = field(default_factory=list)
    """When groups of asynchronous products that were committed are complete."""
    begun: int = 0
    """Such groups so far."""
    ends: list[float] = field(default_factory=list)
    """When turns ended."""
    waiting: bool = False
    """At a barrier."""
    issued: int = 0


def _run(
    body: tuple[Instruction, ...], costs: list[_Cost], own: int, blocks: int, ahead: float,
    oldest_first: bool,
) -> float:  # fmt: skip
    """Returns the cycles of a turn of all blocks at a steady pace."""
    warps = [_Warp(block) for block in range(blocks) for _ in range(own)]
    free = dict.fromkeys(_UNITS, 0.0)
    now, count = 0.0, 0
    while any(w.turn < TURNS for w in warps):
        warp: _Warp | None = None
        start = 0.0
        slowest = min(w.turn for w in warps)
        for w in warps:
            if w.waiting or w.turn >= TURNS or w.turn > slowest + 1:
                # Warps share buffers of loads, so that none is far ahead.
                continue
            if body[w.at].name == "HGMMA" and w.begun >= ahead + min(x.begun for x in warps):
                continue
            begin = _begin(body[w.at], costs[w.at], w, warps, free)
            key = begin if begin > now else now
            if (
                warp is None
                or key < start
                or (key == start and not oldest_first and w.issued < warp.issued)
            ):
                warp, start = w, key
        assert warp is not None
        i, cost = body[warp.at], costs[warp.at]
        count += 1
        _issue(i, cost, warp, warps, free, start)
        warp.issued = count
        now = start + 1
        _advance(warp, len(body), start)
        if i.name == "BAR" and "SYNC" in i.rest:
            _meet(warp, warps, own)
    last = [max(w.ends[t] for w in warps) for t in (SETTLED, TURNS - 1)]
    return (last[1] - last[0]) / (TURNS - 1 - SETTLED)


def _begin(
    i: Instruction, cost: _Cost, w: _Warp, warps: list[_Warp], free: dict[str, float]
) -> float:
    begin = max(w.ready, *(w.scoreboards[s] for s in i.waits)) if i.waits else w.ready
    if cost.unit and not _asynchronous(i):
        begin = max(begin, free[cost.unit])
    if i.name == "WARPGROUP" and "DEPBAR" in i.rest:
        pending = int(i.rest.split(",")[1], 16)
        done = w.groups[: len(w.groups) - pending]
        begin = max([begin, *done])
    if i.name == "LDTM":
        begin = max([begin, *(t for x in warps if x.block == w.block for t in x.groups)])
    return begin


def _issued_by_one(i: Instruction) -> bool:
    return i.name in _BY_ONE


def _asynchronous(i: Instruction) -> bool:
    return i.name == "HGMMA" or _issued_by_one(i)


def _issue(
    i: Instruction, cost: _Cost, w: _Warp, warps: list[_Warp], free: dict[str, float], start: float
) -> None:
    done = start
    idle = _issued_by_one(i) and w is not next(x for x in warps if x.block == w.block)
    if cost.unit and not idle:
        done = max(free[cost.unit], start) + cost.cycles
        free[cost.unit] = done
        if _asynchronous(i) and (i.name != "HGMMA" or "gsb0" in i.rest):
            w.groups = [*w.groups[-3:], done]
            w.begun += 1
    result, operands = i.sets
    if result != NO_SCOREBOARD:
        w.scoreboards[result] = max(w.scoreboards[result], done + cost.latency)
    if operands != NO_SCOREBOARD:
        w.scoreboards[operands] = max(w.scoreboards[operands], done)
    w.ready = start + max(i.stall, 1)


def _advance(w: _Warp, length: int, start: float) -> None:
    w.at += 1
    if w.at == length:
        w.at, w.turn = 0, w.turn + 1
        w.ends.append(start)


def _meet(w: _Warp, warps: list[_Warp], own: int) -> None:
    """Waits at a barrier for the other warps of the block."""
    w.waiting = True
    block = [x for x in warps if x.block == w.block]
    if all(x.waiting for x in block):
        together = max(x.ready for x in block)
        for x in block:
            x.waiting, x.ready = False, together
