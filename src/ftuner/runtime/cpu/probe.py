"""The probe measures what the operating system does not report about the CPU, in under a second.

Four native micro-benchmarks are compiled for each vector ISA: a chain of integer operations
(the clock), many independent multiply-adds (issue rate), one dependent multiply-add
(latency), and a sequential read (load ports, and the bandwidth of each memory level). Each is run
many times for 60 to 120 microseconds, interleaved with the others, and the shortest time counts:
other tenants of the machine can only make a run longer.

Integer `add` and `xor` take one cycle on every known core, so their chain gives the clock. The
multiply-adds or loads per such cycle are rounded up to the next of `_ISSUE_RATES`, because two
things lower them: other threads on the core, and a clock that falls while wide vectors compute.
If full units execute clearly less than their number per cycle of the chain, the clock follows from
the units instead. The latency is the time of the latency chain in cycles, rounded. Nothing else is
assumed about the number of units or their latency.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any

import numpy as np

from ftuner.codegen.llvm.kernels.microbenchmarks import (
    CHAIN_STEPS,
    FILL,
    ISSUE_STEPS,
    SINK_BYTES,
    Microbenchmarks,
)
from ftuner.codegen.llvm.objects.jit import host_features
from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import own_affinity, pin_thread
from ftuner.errors import ConfigurationError, HardwareError
from ftuner.hardware.isa import FIXED, OF_NARROW, InstructionSet, instruction_set
from ftuner.hardware.model import CpuHardware, Isa, MemoryLevel
from ftuner.hardware.system import CacheLevel, SystemFacts, promised_isas
from ftuner.hardware.tuning import CpuTuning, ProbeTuning

_LOG = logging.getLogger(__name__)

_CLOCK_RANGE_HZ = (0.2e9, 8e9)
"""From throttled embedded cores to somewhat above today's fastest."""
_PLAUSIBLE: Mapping[str, tuple[tuple[float, float], float]] = {
    "fma_per_cycle": ((0.25, 4.5), 1.0),
    "fma_latency_cycles": ((2.0, 12.0), 4.0),
    "load_per_cycle": ((0.4, 4.5), 1.0),
    "store_per_cycle": ((0.4, 4.5), 1.0),
}
"""Ranges of known cores (uops.info, Arm's optimisation guides), and what is assumed of a core that
measures outside them: one unit of everything. Stores are not measured."""

_ISSUE_RATES = (0.5, 1.0, 2.0, 3.0, 4.0)
"""The rates of whole units, and of one unit that takes two cycles."""

_RUN_S = 60e-6
"""Least duration of a run, which takes at most twice as long. Derived: the call and the timer take
1% of it."""
_ROUNDS = 220
_LEAST_ROUNDS = 40
_SETTLED_ROUNDS = 20
_SETTLED_RATIO = 0.98
"""Rounds end when this many in a row have found no time below this ratio of the shortest. On AMD
Zen 5 beside ten busy processes 40 to 54 rounds came within 12% of what 220 find."""
_ROUNDS_S = 0.45
"""Rounds end after this time where memory is slow."""
_TOGETHER_RUN_S = 0.6e-3
"""Longer than a run on one core: the threads start tens of microseconds apart."""
_TOGETHER_ROUNDS = 40
_TOGETHER_REPEATS = 8
_ALONE_RATIO = 1.1
"""Threads that read no faster together than this multiple of one thread have probably shared a CPU
with another process: their rounds are repeated, at most so often, 25 ms each."""
_MIB = 1 << 20
_WINDOW_BYTES = 4 * _MIB
"""Bytes read from DRAM in one run. The next run reads the next window, which caches no longer
hold."""
_DRAM_CACHES = 4
_DRAM_BUFFER_BYTES = (64 * _MIB, 128 * _MIB)
"""Memory read for the bandwidth of DRAM: `_DRAM_CACHES` times the last cache within these bounds,
for each instance of the last cache."""
_PAGE_BYTES = 4096

_Run = Callable[[], object]


def probe(
    facts: SystemFacts, threads: int, quiet: AbstractContextManager[None] | None = None
) -> CpuHardware:
    """Measure the CPU that `facts` describes, as a process with `threads` threads uses it. `quiet`
    is entered while something is measured.

    The result's `cores` is `threads`, at most `facts.cores`, and its tuning has the defaults.
    Raises HardwareError for an unsupported CPU and ConfigurationError for `threads < 1`."""
    if threads < 1:
        raise ConfigurationError(f"threads is {threads}; expected at least 1")
    begin = time.perf_counter()
    cores = min(threads, facts.cores)
    tuning = CpuTuning()
    kernels = [Microbenchmarks(isa) for isa in runnable_isas(facts)]
    compiled = time.perf_counter()
    with quiet or nullcontext():
        # Its threads are pinned: they would wait for whatever has their CPU.
        buffer = _Buffer(facts, cores)
        rates, bandwidths = _measure_one_core(facts, kernels, buffer)
        together = _measure_together(facts, kernels[-1], buffer, bandwidths)
    clock_hz, clock_provenance = _clock(kernels[-1].isa, rates[-1], tuning)
    done = time.perf_counter()
    _LOG.info(
        "probed %s in %.0f ms, of which compiling %.0f ms",
        facts.model_name,
        1e3 * (done - begin),
        1e3 * (compiled - begin),
    )
    slug = re.sub(r"[^a-z0-9]+", "-", facts.model_name.lower()).strip("-")
    system = {
        field: facts.provenance.get(field, "system")
        for field in ("architecture", "model_name", "cores", "page_bytes")
    }
    return CpuHardware(
        name=f"{slug}-{cores}",
        architecture=facts.architecture,
        model_name=facts.model_name,
        cores=cores,
        clock_hz=clock_hz,
        isas=tuple(_isa(k.isa, r, tuning) for k, r in zip(kernels, rates, strict=True)),
        levels=_levels(facts, cores, bandwidths, together),
        page_bytes=facts.page_bytes,
        tuning=tuning,
        provenance={**system, "clock_hz": clock_provenance},
    )


def runnable_isas(facts: SystemFacts) -> tuple[InstructionSet, ...]:
    """The vector ISAs that the system promises and LLVM finds, narrowest first.

    Raises:
        HardwareError: there is none.
    """
    promised = promised_isas(facts)
    host = {f"+{name}" for name, on in host_features().items() if on}
    rows = (instruction_set(name) for name in promised)
    runnable = tuple(row for row in rows if host.issuperset(row.features.split(",")))
    if not runnable:
        raise HardwareError(f"{facts.model_name} runs none of the vector ISAs {promised}")
    return runnable


class _Buffer:
    """Memory to read. Each thread has `stream_bytes` that are read from DRAM, next to those of
    other threads; `resident_bytes` that stay in the caches; and a sink."""

    def __init__(self, facts: SystemFacts, threads: int) -> None:
        last = facts.caches[-1]
        instances = min(threads, math.ceil(facts.cores / last.shared_by_cores))
        least, most = _DRAM_BUFFER_BYTES
        wanted = instances * min(max(_DRAM_CACHES * last.capacity_bytes, least), most)
        self.threads = threads
        self.stream_bytes = _whole(min(wanted, facts.memory_bytes // 8) / threads)
        self.resident_bytes = max(
            _working_set_bytes(facts, level, threads) for level in range(len(facts.caches))
        )
        thread_bytes = self.stream_bytes + self.resident_bytes + SINK_BYTES
        self._memory = np.empty(threads * thread_bytes + _PAGE_BYTES, np.uint8)
        self._begin = -(-self._memory.ctypes.data // _PAGE_BYTES) * _PAGE_BYTES
        _on_threads(threads, self._touch)

    def _touch(self, thread: int) -> None:
        # Each thread writes its own part first, so that the pages are in memory near its core.
        ctypes.memset(self.stream(thread), FILL, self.stream_bytes)
        ctypes.memset(self.resident(thread), FILL, self.resident_bytes)

    def stream(self, thread: int) -> int:
        return self._begin + thread * self.stream_bytes

    def resident(self, thread: int) -> int:
        return self.stream(self.threads) + thread * self.resident_bytes

    def sink(self, thread: int) -> int:
        return self.resident(self.threads) + thread * SINK_BYTES


def _windows(begin: int, end: int, size: int) -> Iterator[int]:
    """Addresses of windows of `size` bytes between two addresses, repeated without end."""
    return itertools.cycle(range(begin, end - size + 1, size))


def _whole(size: float) -> int:
    """A size rounded down to whole pages, at least one, as read kernels need."""
    return max(int(size) // _PAGE_BYTES, 1) * _PAGE_BYTES


def _on_threads(threads: int, task: Callable[[int], object]) -> None:
    """Run a task on threads pinned to different CPUs, where the system allows it: a scheduler may
    leave two threads on one CPU, which would halve the measured bandwidth."""
    cpus = sorted(own_affinity())

    def run(thread: int) -> None:
        if len(cpus) >= threads:
            pin_thread(cpus[thread])
        task(thread)

    workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _timed(run: _Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


@dataclass(frozen=True)
class _Rates:
    """What one core did with one ISA, per second."""

    multiply_adds_per_s: float
    scalar_clock_hz: float
    """Measured right after multiply-adds, when some cores have raised their clock again."""
    chain_steps_per_s: float
    loads_per_s: float
    narrow_per_s: Mapping[str, float] = field(default_factory=dict)
    """Multiply-adds of narrow numbers, by the names of their emitters."""


def _working_set_bytes(facts: SystemFacts, level: int, cores: int) -> int:
    """Bytes that each of `cores` cores reads to see cache `level`, alone or together: half of L1,
    further out the geometric mean of the core's share and the level inside, or twice the latter."""
    cache = facts.caches[level]
    if level == 0:
        return _whole(cache.capacity_bytes / 2)
    share = cache.capacity_bytes / min(cores, cache.shared_by_cores)
    inner = facts.caches[level - 1].capacity_bytes
    return _whole(max(math.sqrt(inner * share), 2 * inner))


def _measure_one_core(
    facts: SystemFacts, kernels: Sequence[Microbenchmarks], buffer: _Buffer
) -> tuple[list[_Rates], list[float]]:
    """The rates of each ISA, and the read bandwidth of each cache and of DRAM in bytes/s."""
    data, sink = buffer.resident(0), buffer.sink(0)
    warm: list[_Run] = []
    timed: list[_Run] = []
    work: list[float] = []

    def add(kernel: Microbenchmarks, symbol: str, size: int, work_per_repeat: float) -> None:
        repeats = 1
        run = once = kernel.bind(symbol, data, size, repeats, sink)
        # The shortest of three runs, so that a disturbed run is not taken for a long enough one.
        while min(_timed(run) for _ in range(3)) < _RUN_S:
            repeats *= 2
            run = kernel.bind(symbol, data, size, repeats, sink)
        # Untimed first run, which replaces what other benchmarks left in the caches.
        warm.append(once)
        timed.append(run)
        work.append(repeats * work_per_repeat)

    l1_bytes = _working_set_bytes(facts, 0, buffer.threads)
    for kernel in kernels:
        add(kernel, "issue", 0, ISSUE_STEPS * kernel.chains)
        add(kernel, "clock", 0, CHAIN_STEPS)
        add(kernel, "latency", 0, CHAIN_STEPS)
        add(kernel, "read", l1_bytes, l1_bytes / kernel.isa.vector_bytes)
        for row in kernel.narrow:
            add(kernel, row.emitter, 0, kernel.multiply_adds(row))
    for level in range(1, len(facts.caches)):
        size = _working_set_bytes(facts, level, buffer.threads)
        add(kernels[-1], "read", size, size)
    window = min(_WINDOW_BYTES, buffer.stream_bytes)
    windows = _windows(buffer.stream(0), buffer.stream(buffer.threads), window)
    warm.append(lambda: None)
    timed.append(lambda: kernels[-1].bind("read", next(windows), window, 1, sink)())
    work.append(window)

    shortest = _shortest_of_rounds(warm, timed)
    per_s = iter([w / s for w, s in zip(work, shortest, strict=True)])
    rates = []
    for kernel in kernels:
        a, b, c, d = (next(per_s) for _ in range(4))
        narrow = {row.emitter: next(per_s) for row in kernel.narrow}
        rates.append(_Rates(a, b, c, d, narrow))
    l1_bandwidth = rates[-1].loads_per_s * kernels[-1].isa.vector_bytes
    return rates, [l1_bandwidth, *per_s]


def _shortest_of_rounds(warm: Sequence[_Run], timed: Sequence[_Run]) -> list[float]:
    """The shortest time of each run, in seconds; rounds go on as long as they find shorter ones."""
    shortest = [math.inf] * len(timed)
    deadline = time.perf_counter() + _ROUNDS_S
    improved = 0
    for round_ in range(_ROUNDS):
        settled = round_ - improved >= _SETTLED_ROUNDS
        if round_ >= _LEAST_ROUNDS and (settled or time.perf_counter() > deadline):
            break
        for i, (prepare, run) in enumerate(zip(warm, timed, strict=True)):
            prepare()
            seconds = _timed(run)
            if seconds < _SETTLED_RATIO * shortest[i]:
                improved = round_
            shortest[i] = min(shortest[i], seconds)
    return shortest


def _measure_together(
    facts: SystemFacts, kernel: Microbenchmarks, buffer: _Buffer, one_core: Sequence[float]
) -> list[float]:
    """The read bandwidth of each cache and of DRAM in bytes/s, all threads of the buffer at once.
    Private caches are not measured: nothing is shared that could slow them."""
    threads = buffer.threads
    bandwidths = []
    for level, bandwidth in enumerate(one_core):
        dram = level == len(facts.caches)
        if threads == 1 or not (dram or facts.caches[level].shared_by_cores > 1):
            bandwidths.append(threads * bandwidth)
            continue
        repeats = 1
        if dram:
            size = min(_whole(_TOGETHER_RUN_S * bandwidth), buffer.stream_bytes)
            places = [
                _windows(buffer.stream(i), buffer.stream(i + 1), size) for i in range(threads)
            ]
        else:
            size = _working_set_bytes(facts, level, threads)
            repeats = max(1, round(_TOGETHER_RUN_S * bandwidth / size))
            places = [itertools.repeat(buffer.resident(i)) for i in range(threads)]
        together = 0.0
        for _ in range(_TOGETHER_REPEATS):
            wall = _shortest_together(kernel, buffer, places, size, repeats)
            together = max(together, threads * size * repeats / wall)
            if together > _ALONE_RATIO * bandwidth:
                break
        bandwidths.append(together)
    return bandwidths


def _shortest_together(
    kernel: Microbenchmarks,
    buffer: _Buffer,
    places: Sequence[Iterator[int]],
    size: int,
    repeats: int,
) -> float:
    """Seconds from the first thread's start to the last one's end, in the best of the rounds. Each
    round, each thread reads `size` bytes at its next place `repeats` times."""
    barrier = threading.Barrier(buffer.threads)
    rounds: list[list[tuple[float, float]]] = [[] for _ in range(_TOGETHER_ROUNDS)]

    def work(thread: int) -> None:
        for spans in rounds:
            run = kernel.bind("read", next(places[thread]), size, repeats, buffer.sink(thread))
            barrier.wait()
            begin = time.perf_counter()
            run()
            spans.append((begin, time.perf_counter()))

    _on_threads(buffer.threads, work)
    return min(max(end for _, end in r) - min(begin for begin, _ in r) for r in rounds)


def _within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _issue_rate(rate: float, tolerance: float, tuning: ProbeTuning) -> float:
    """The smallest of `_ISSUE_RATES` that a measured rate exceeds by at most `tolerance`,
    relatively; the measured rate if it is below or above all of them."""
    if rate < _ISSUE_RATES[0] * (1 - tuning.issue_rate_tolerance):
        return rate
    return min((r for r in _ISSUE_RATES if r >= rate * (1 - tolerance)), default=rate)


def _multiply_adds(isa: InstructionSet, rate: float, tuning: ProbeTuning) -> float:
    """The multiply-adds per cycle that a measured rate stands for. Without fused multiply-adds,
    each is two operations, so that three units execute one and a half of them."""
    operations = 1 if isa.fused else 2
    return _issue_rate(operations * rate, tuning.issue_rate_tolerance, tuning) / operations


def _clock(isa: InstructionSet, rates: _Rates, tuning: ProbeTuning) -> tuple[float, str]:
    """Clock under load of the ISA that `rates` are of, in Hz, and its provenance."""
    clock_hz = rates.scalar_clock_hz
    if not _within(clock_hz, _CLOCK_RANGE_HZ):
        return tuning.unknown_clock_hz, "assumed"
    measured = rates.multiply_adds_per_s / clock_hz
    of_units = rates.multiply_adds_per_s / _multiply_adds(isa, measured, tuning)
    if of_units < clock_hz * (1 - tuning.issue_rate_tolerance):
        return of_units, "probed"
    # Both give the same clock: take the less disturbed one.
    return max(clock_hz, of_units), "probed"


def _isa(isa: InstructionSet, rates: _Rates, tuning: ProbeTuning) -> Isa:
    # Per cycle of this ISA's own clock, because wider ISAs may run slower.
    clock_hz, _ = _clock(isa, rates, tuning)
    # One chain, or loads, leave the units nearly idle: the clock is that of integer code.
    idle_hz = max(clock_hz, rates.scalar_clock_hz)
    measured = {
        "fma_per_cycle": _multiply_adds(isa, rates.multiply_adds_per_s / clock_hz, tuning),
        "fma_latency_cycles": float(round(idle_hz / rates.chain_steps_per_s)),
        "load_per_cycle": _issue_rate(
            rates.loads_per_s / idle_hz, tuning.load_rate_tolerance, tuning
        ),
    }
    narrow = {
        f"{name}_per_cycle": _issue_rate(rate / clock_hz, tuning.issue_rate_tolerance, tuning)
        for name, rate in rates.narrow_per_s.items()
    }
    missing = (f"{t.emitter}_per_cycle" for t in OF_NARROW if t.emitter not in rates.narrow_per_s)
    fixed: dict[str, Any] = {name: getattr(isa, name) for name in FIXED}
    provenance = dict.fromkeys(fixed, "datasheet")
    for name, (bounds, assumed) in _PLAUSIBLE.items():
        plausible = name in measured and _within(measured[name], bounds)
        provenance[name] = "probed" if plausible else "assumed"
        if not plausible:
            measured[name] = assumed
    provenance |= dict.fromkeys(narrow, "probed") | dict.fromkeys(missing, "system")
    return Isa(isa.name, **(fixed | measured | narrow), provenance=provenance)


def _levels(
    facts: SystemFacts, cores: int, one_core: Sequence[float], together: Sequence[float]
) -> tuple[MemoryLevel, ...]:
    """The memory levels. An outer level is never faster than an inner one, and the bandwidth of all
    cores is between that of one core and the multiple of it; noise beyond that is clipped."""
    memory = facts.provenance.get("memory_bytes", "system")
    line_bytes = facts.caches[-1].line_bytes
    dram = CacheLevel("DRAM", facts.memory_bytes, line_bytes, 0, cores, memory)
    levels: list[MemoryLevel] = []
    limit = limit_all = math.inf
    for cache, bandwidth, bandwidth_all in zip(
        (*facts.caches, dram), one_core, together, strict=True
    ):
        limit = min(limit, bandwidth)
        limit_all = min(limit_all, max(limit, min(bandwidth_all, cores * limit)))
        reported = ("capacity_bytes", "line_bytes", "associativity", "shared_by_cores")
        measured = ("bandwidth_bytes_per_s", "bandwidth_all_bytes_per_s")
        levels.append(
            MemoryLevel(
                name=cache.name,
                capacity_bytes=cache.capacity_bytes,
                line_bytes=cache.line_bytes,
                associativity=cache.associativity,
                shared_by_cores=min(cache.shared_by_cores, cores),
                bandwidth_bytes_per_s=limit,
                bandwidth_all_bytes_per_s=limit_all,
                provenance=dict.fromkeys(reported, cache.provenance)
                | dict.fromkeys(measured, "probed"),
            )
        )
    return tuple(levels)
