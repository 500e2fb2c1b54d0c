"""The session: what the CPU back end keeps between calls (hardware model, compiled kernels,
products, number of threads)."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.product import ProductTypes
from ftuner.errors import ConfigurationError, HardwareError
from ftuner.hardware.constants import part_of
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import priors_digest, with_nearest
from ftuner.hardware.recorded import from_document
from ftuner.hardware.system import SystemFacts, promised_isas, read_system
from ftuner.hardware.tuning import CpuTuning, ProbeTuning
from ftuner.runtime.cache import HARDWARE, Cache, default_cache
from ftuner.runtime.cpu.kernels import Kernels, started_with_runtime
from ftuner.runtime.cpu.products import Products
from ftuner.runtime.cpu.threads import usable_threads
from ftuner.runtime.known_hardware import (
    KeptCalibration,
    corrected,
    keep,
    keep_calibration,
    keep_model,
    kept_calibration,
    kept_model,
    known_or_probed,
    read_kept,
)
from ftuner.runtime.shown_progress import Progress, shown
from ftuner.ukernels.cpu.library import Family

if TYPE_CHECKING:
    from ftuner.hardware.constants import Calibration
    from ftuner.runtime.compile_processes import Started

ISA_VARIABLE = "FTUNER_ISA"
PROBE_VERSION = 5
"""Changes when the probe or the form of a hardware model does: kept models of other versions are
not read."""


class _Ahead(threading.local):
    """What a thread has started before it knows what to compile."""

    compiles_next = False
    """Whether what follows a probe is compiling."""
    started: Started | None = None
    """Compiling processes that have been started before a probe. The system ends them with the
    thread."""


class CpuSession:
    """The state that the operators and compiled graphs of one back end share. Probing and
    compilation happen on first use. Safe to use from several threads."""

    def __init__(
        self, cache: Cache | None = None, isa: str | None = None, facts: SystemFacts | None = None
    ) -> None:
        """`cache`: by default the user's. `isa`: by default `FTUNER_ISA`, or the widest ISA.
        `facts`: of the system, if they were read."""
        self.cache = cache or default_cache()
        self._isa = isa
        self._lock = fork_safe_lock()
        self._hardware: CpuHardware | None = None
        self._kernels: Kernels | None = None
        self._products: dict[tuple[ProductTypes, Expr], Products] = {}
        self._for_calls: set[tuple[ProductTypes, Expr]] = set()
        """Keys of products whose families of calls are all compiled."""
        self.facts = read_system() if facts is None else facts
        self.cores = self.facts.cores
        """CPUs that this process may use."""
        self.thread_word = np.array([usable_threads(self.cores)], np.int64)
        """Holds `threads`; native code reads it."""
        self._ahead = _Ahead()

    @property
    def threads(self) -> int:
        """Number of threads that a call may use, including the caller's; set it with
        `checked_threads`."""
        return int(self.thread_word[0])

    @threads.setter
    def threads(self, threads: int) -> None:
        self.thread_word[0] = threads

    @property
    def hardware(self) -> CpuHardware:
        """This machine, probed on first use and kept in the cache."""
        if self._hardware is None:
            with self._lock:
                if self._hardware is None:
                    self._hardware = known_hardware(
                        self.cache, isa=self._asked_isa, probe=self._probe
                    )
        return self._hardware

    @contextmanager
    def probed_ahead(self) -> Iterator[None]:
        """The block compiles a model. If the machine has to be probed for it, processes start
        before and compile the runtime, but pause while something is measured."""
        self._ahead.compiles_next = True
        try:
            yield
        finally:
            self._ahead.compiles_next = False
            started, self._ahead.started = self._ahead.started, None
            if started is not None:
                started.end()

    def _probe(self, facts: SystemFacts) -> CpuHardware:
        if not self._ahead.compiles_next:
            return probe_machine(facts)
        found = import_module("ftuner.runtime.cpu.probe").runnable_isas(facts)
        isas = [isa for isa in found if self._asked_isa in (None, isa.name)]
        if not isas:
            return probe_machine(facts)
        self._ahead.started = started_with_runtime(isas[-1], self.cache)
        return probe_machine(facts, self._ahead.started.paused())

    def adopt(self, hardware: CpuHardware) -> None:
        """Use a model of this machine with another tuning from now on, and keep it in the cache.

        Raises:
            ConfigurationError: this process has computed with another tuning.
            HardwareError: as `keep_hardware`.
            DatasetError: its correction is of another version's features.
        """
        if hardware.correction is None:
            hardware = corrected(self.cache, hardware)
        with self._lock:
            self._expect_unused(hardware)
            if hardware.correction is not None:
                keep(self.cache, hardware, hardware.correction)
            keep_hardware(self.cache, hardware, self._asked_isa)
            self._hardware = hardware

    def use(self, hardware: CpuHardware) -> None:
        """Like `adopt`, for this process alone: nothing is kept.

        Raises:
            ConfigurationError: this process has computed with another tuning.
        """
        with self._lock:
            self._expect_unused(hardware)
            self._hardware = hardware

    def _expect_unused(self, hardware: CpuHardware) -> None:
        if self._kernels is not None and hardware != self._kernels.hardware:
            raise ConfigurationError(
                "this process has computed with another tuning; take one over before its first "
                "product, or by the command ftuner tune"
            )

    def with_tuning(self, tuning: CpuTuning) -> CpuSession:
        """Another session of this machine and ISA, with another tuning."""
        found = type(self)(self.cache, self._chosen_isa())
        found.use(replace(self.hardware, tuning=tuning))
        return found

    def calibrate(
        self, seconds: float, progress: Progress | None = None, steps: bool = False
    ) -> Calibration:
        """Measure the constants of this machine's tuning for the chosen ISA, in about `seconds`,
        and keep them in the cache. This process computes with them, unless it has computed before.
        `steps`: those of convolutions and attention, too, whose kernels are then compiled."""
        room = import_module("ftuner.runtime.cpu.calibration.calibrate")
        # The terms are measured; what was learned of the errors of others is of no use.
        bare = replace(self.hardware, correction=None)
        kernels = Kernels(bare, self._chosen_isa(), self.cache)
        found: Calibration = room.calibrate(
            kernels, seconds, self.with_tuning, progress,
            (*room.FITS, *room.STEP_FITS) if steps else room.FITS,
        )  # fmt: skip
        tuned = corrected(self.cache, replace(bare, tuning=found.tuning))
        with self._lock:
            keep_hardware(self.cache, tuned, self._asked_isa)
            keep_calibration(
                self.cache, kept_key(self._asked_isa),
                KeptCalibration(time.time(), found.slow_share, found.noisy),
            )  # fmt: skip
            if self._kernels is None:
                self._hardware = tuned
        return found

    @property
    def _asked_isa(self) -> str | None:
        return self._isa or os.environ.get(ISA_VARIABLE) or None

    @property
    def kernels(self) -> Kernels:
        """The code of the chosen ISA, compiled on demand."""
        if self._kernels is None:
            with self._lock:
                if self._kernels is None:
                    self._kernels = Kernels(self.hardware, self._chosen_isa(), self.cache)
        return self._kernels

    def _chosen_isa(self) -> str:
        chosen = self._asked_isa or self.hardware.widest.name
        known = [isa.name for isa in self.hardware.isas]
        if chosen not in known:
            raise ConfigurationError(
                f"{ISA_VARIABLE} is {chosen!r}; this machine has {', '.join(known)}"
            )
        return chosen

    def products(
        self, types: ProductTypes, epilogue: Expr = ACCUMULATOR,
        families: Sequence[Family] | None = None,
    ) -> Products:  # fmt: skip
        """Matrix products of some dtypes and an epilogue, tuned on first use.

        `families`: those of the library that are needed; by default those of calls.
        """
        key = (types, epilogue)
        found = self._products.get(key)
        if found is None or families is not None or key not in self._for_calls:
            with self._lock:
                compiled = self.kernels.compiled(types, epilogue, None, families)
                if families is None:
                    self._for_calls.add(key)
                found = self._products.get(key)
                if found is None:
                    found = self._products[key] = Products(self.kernels, compiled)
        return found


def known_hardware(
    cache: Cache, again: bool = False, isa: str | None = None,
    probe: Callable[[SystemFacts], CpuHardware] | None = None,
) -> CpuHardware:  # fmt: skip
    """The hardware model of this machine: from the cache, or probed (under a second) and kept. Its
    tuning has constants of the nearest recorded machine where this one was not tuned.

    `again` probes even if the cache knows the machine, and drops the models of narrower ISAs, whose
    rates are of the probe before. `isa`: the one that is computed with; one that is not the widest
    may have been calibrated apart. The model has the correction of estimates that was learned on
    the machine, if there is one. `probe`: by default `probe_machine`.

    Raises:
        HardwareError: an architecture without a code generator.
    """
    facts = read_system()

    def decode(document: Any) -> CpuHardware:
        return _model_of(document, facts)

    apart = "" if again else _part_of_key(facts, isa)
    if apart:
        key = _key_of(facts, apart)
        narrow = kept_model(cache, key, decode, with_nearest, priors_digest())
        if narrow is not None:
            return corrected(cache, narrow)
    found = known_or_probed(
        cache, _key_of(facts), decode, lambda: (probe or probe_machine)(facts), again, with_nearest,
        priors_digest(),
    )  # fmt: skip
    if again:
        for narrower in promised_isas(facts)[:-1]:
            cache.drop(HARDWARE, _key_of(facts, _part_of_key(facts, narrower)))
    return corrected(cache, found)


def remembered_hardware(
    cache: Cache, isa: str | None = None
) -> tuple[CpuHardware, KeptCalibration | None] | None:
    """The hardware model of this machine that the cache has, and what is known of its calibration;
    None if it has none. `isa`: as of `known_hardware`. Nothing is probed, completed or kept.

    Raises:
        HardwareError: an architecture without a code generator.
    """
    facts = read_system()
    for part in dict.fromkeys((_part_of_key(facts, isa), "")):
        key = _key_of(facts, part)
        kept = read_kept(cache, key, lambda document: _model_of(document, facts))
        if kept is not None:
            found, _ = kept
            known = kept_calibration(cache, key) if found.tuning.is_calibrated else None
            return found, known
    return None


def keep_hardware(cache: Cache, hardware: CpuHardware, isa: str | None = None) -> None:
    """Keep a model of this machine with another tuning, for the processes that follow. `isa`: as of
    `known_hardware`.

    Raises:
        HardwareError: it is not a model of this machine as it is now: the CPUs that this process
            may use changed after the probe, for example. Nothing is kept then.
    """
    facts = read_system()
    try:
        _expect_model_of(hardware, facts)
    except HardwareError as error:
        raise HardwareError(
            f"this machine changed while it was tuned, so that nothing is kept; tune again: {error}"
        ) from None
    keep_model(cache, _key_of(facts, _part_of_key(facts, isa)), hardware, priors_digest())


def kept_key(isa: str | None) -> str:
    """The key of this machine's model in the cache. `isa`: as of `known_hardware`."""
    facts = read_system()
    return _key_of(facts, _part_of_key(facts, isa))


def _part_of_key(facts: SystemFacts, isa: str | None) -> str:
    """The part of a key that names the ISA; empty for the widest one."""
    promised = promised_isas(facts)
    return f"-{isa}" if isa in promised[:-1] else ""


def _key_of(facts: SystemFacts, part: str = "") -> str:
    """The key of this machine's model. A change of the recorded machines leaves it as it is: what
    was measured here stays, and only what they lend is taken over anew."""
    # A model that was made before an ISA was known lacks it.
    depends_on = (part_of(CpuTuning(), ProbeTuning), promised_isas(facts))
    concluded = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:8]
    return f"{facts.fingerprint}-{PROBE_VERSION}-{concluded}{part}.json"


def _model_of(document: Any, facts: SystemFacts) -> CpuHardware:
    """The model in a document, if it is one of the machine that the system describes.

    Raises:
        HardwareError: no model, or a model of another machine.
    """
    found = from_document(document)
    if not isinstance(found, CpuHardware):
        raise HardwareError("a model of a GPU; expected one of this CPU")
    _expect_model_of(found, facts)
    return found


def _expect_model_of(found: CpuHardware, facts: SystemFacts) -> None:
    """Raises HardwareError if a model is of another machine than the system describes."""
    described = (found.architecture, found.model_name, found.cores, found.page_bytes)
    reported = (facts.architecture, facts.model_name, facts.cores, facts.page_bytes)
    levels = tuple((level.name, level.capacity_bytes, level.line_bytes) for level in found.levels)
    caches = tuple((cache.name, cache.capacity_bytes, cache.line_bytes) for cache in facts.caches)
    if (described, levels[:-1]) != (reported, caches):
        raise HardwareError(f"a model of {described}, {levels[:-1]}; expected {reported}, {caches}")
    names, promised = [isa.name for isa in found.isas], promised_isas(facts)
    if not set(names) <= set(promised):
        raise HardwareError(f"a model with the ISAs {names}; expected some of {promised}")


def probe_machine(
    facts: SystemFacts, quiet: AbstractContextManager[None] | None = None
) -> CpuHardware:
    """Probe this machine with all threads that this process may use. `quiet`: entered while
    something is measured."""
    # Imported by name: it needs llvmlite, which importing ftuner must not.
    probing = import_module("ftuner.runtime.cpu.probe")
    with shown(None) as show:
        show("probe this machine", 0, 1)
        found = probing.probe(facts, facts.cores, quiet)
    assert isinstance(found, CpuHardware)
    return found
