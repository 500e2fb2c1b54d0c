"""Tuning a cluster: the work of one node of each kind of hardware, for all nodes of the kind.

Nodes say what kind they are; one of each kind is tuned, and another one of the kind takes its place
if it fails. What a node returns is checked and written at once, so that an interrupt loses only
what is not finished. A cluster is an interface; `fleet.ray_cluster` implements it.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ftuner.core.expr import ACCUMULATOR
from ftuner.core.files import write_whole
from ftuner.core.units import count
from ftuner.errors import ConfigurationError, DatasetError, HardwareError
from ftuner.hardware.correction import LearnedCorrection
from ftuner.hardware.exported import (
    SUFFIX,
    exported_document,
    from_exported_document,
    write_exported,
)
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.system import promised_isas, read_system
from ftuner.learn import samples, sampling
from ftuner.learn.features import table_of
from ftuner.learn.samples import Dataset
from ftuner.runtime.backend import Effort
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.cpu.session import ISA_VARIABLE
from ftuner.runtime.cpu.threads import usable_threads
from ftuner.runtime.shown_progress import Progress
from ftuner_tools.learning.transfer import transferred

MAX_NODES_OF_A_KIND = 3
"""Nodes of a kind that are tried. What fails on three has no cause in one node."""
POLL_S = 1.0
"""How often an interrupt is looked for while nodes work."""
SURVEY_S = 120.0
"""A node that has not said its kind by then is left out: it imports NumPy, which takes seconds."""
MAX_ERROR = 300
"""Characters of a node's error that are shown."""
_UNUSUAL = re.compile(r"[^a-z0-9]+")


class Node(NamedTuple):
    """A machine of a cluster."""

    id: str
    name: str
    """As its users know it: an address or a host; different for each node."""
    cpus: float
    """What tasks may reserve of it; nodes without any do no work."""


class Kind(NamedTuple):
    """What decides a tuning: nodes of one kind share it."""

    fingerprint: str
    """Of what the system says of the machine."""
    model_name: str
    isa: str
    """The ISA that the node uses, by `FTUNER_ISA` or the widest."""
    threads: int
    """By `FTUNER_NUM_THREADS` or the usable cores."""

    @property
    def name(self) -> str:
        """A name for files, different for each kind."""
        model = _UNUSUAL.sub("-", self.model_name.lower()).strip("-")[:40] or "cpu"
        return f"{model}-{self.isa}-{self.threads}-{self.fingerprint[:8]}"


class Cluster(ABC):
    """Nodes that call functions. A task is known by a handle."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """The nodes that are alive."""

    @abstractmethod
    def start(
        self, node: Node, function: Callable[..., Any], arguments: tuple[Any, ...], alone: bool
    ) -> Hashable:
        """Call a function on a node; returns the handle. `alone`: nothing else that the cluster
        schedules runs beside it."""

    @abstractmethod
    def finished(self, tasks: Sequence[Hashable], timeout_s: float) -> list[Hashable]:
        """The tasks that have ended, or failed, at the latest after some seconds."""

    @abstractmethod
    def result(self, task: Any) -> Any:
        """The result of a task that has ended. Raises what the function raised, or an error of the
        cluster if the node was lost."""

    @abstractmethod
    def cancel(self, task: Any) -> None:
        """End a task, if it has not ended."""


Work = Callable[[Kind], Mapping[str, Any]]
"""Tunes the node that it runs on. Returns `machine`, the document of an exported machine, and
`samples`, the text of a dataset or nothing."""
Train = Callable[[Dataset, Sequence[Dataset]], LearnedCorrection]
"""Learns the correction of a kind from its dataset and those of the other kinds. Raises a
DatasetError if they do not suffice."""


@dataclass(frozen=True)
class TunedKind:
    """A kind that was tuned."""

    kind: Kind
    node: str
    path: Path
    """The exported machine."""
    hardware: CpuHardware
    dataset: Dataset | None


@dataclass
class FleetReport:
    """What became of a fleet."""

    tuned: list[TunedKind] = field(default_factory=list)
    failed: dict[Kind, dict[str, str]] = field(default_factory=dict)
    """The errors by node, for each kind that no node tuned."""
    silent: dict[str, str] = field(default_factory=dict)
    """The error of each node that did not say its kind."""


def kind_here() -> Kind:
    """The kind of the machine that this process runs on.

    Raises:
        HardwareError, ConfigurationError: no code is generated for it, or a variable is wrong.
    """
    facts = read_system()
    isas = promised_isas(facts)
    if not isas:
        raise HardwareError(f"{facts.model_name} has no vector ISA that ftuner knows")
    isa = os.environ.get(ISA_VARIABLE) or isas[-1]
    return Kind(facts.fingerprint, facts.model_name, isa, usable_threads(facts.cores))


def tune_here(kind: Kind, effort: Effort = "default") -> dict[str, Any]:
    """Tune the machine that this process runs on, as `Work`: probe, calibrate, compile; a thorough
    effort also samples products."""
    if kind_here() != kind:
        raise HardwareError(f"the node is of the kind {kind_here().name}; expected {kind.name}")
    backend = default_backend().calibrated(effort)
    backend.tune(backend.product_dtypes["float32"], ACCUMULATOR)
    found = ""
    if effort == "thorough":
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"samples{samples.SUFFIX}"
            sampling.sample(default_backend(), path, sampling.SECONDS)
            found = path.read_text(encoding="utf-8")
    return {"machine": exported_document(backend.hardware), "samples": found}


def learned_from(own: Dataset, others: Sequence[Dataset]) -> LearnedCorrection:
    """The correction of a kind, as `Train`."""
    tables = [table_of(other) for other in others]
    return transferred(tables, table_of(own), own.header.fingerprint, source="a fleet")


def tune_fleet(
    cluster: Cluster, out: Path, work: Work = tune_here, train: Train = learned_from,
    progress: Progress | None = None, say: Callable[[str], None] = lambda line: None,
) -> FleetReport:  # fmt: skip
    """Tune one node of each kind, and write an exported machine for each kind to a folder, with its
    dataset if it has samples.

    Args:
        out: the folder, which is made if it is missing.
        progress: called with (what, done, total) as kinds are finished.
        say: called with a line for each event.

    Raises:
        ConfigurationError: the folder cannot be made, or the cluster has no node that can work.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make {out}: {error.strerror or error}") from error
    report = FleetReport()
    kinds = _survey(cluster, report, say)
    nodes = count(sum(map(len, kinds.values())), "node")
    say(f"{count(len(kinds), 'kind')} among {nodes}")
    _Shift(cluster, kinds, out, work, report, progress, say).run()
    _train(train, report, say)
    return report


def _survey(
    cluster: Cluster, report: FleetReport, say: Callable[[str], None]
) -> dict[Kind, list[Node]]:
    """The nodes by kind, in the cluster's order."""
    nodes = [node for node in cluster.nodes() if node.cpus > 0]
    if not nodes:
        raise ConfigurationError("the cluster has no node with CPUs for tasks")
    asked = {cluster.start(node, kind_here, (), False): node for node in nodes}
    deadline = time.monotonic() + SURVEY_S
    found: dict[Node, Kind] = {}
    while asked and time.monotonic() < deadline:
        for task in cluster.finished(list(asked), POLL_S):
            node = asked.pop(task)
            try:
                found[node] = Kind(*cluster.result(task))
            except Exception as error:  # Whatever a node without ftuner raises.
                report.silent[node.name] = _shown(error)
    for task, node in asked.items():
        cluster.cancel(task)
        report.silent[node.name] = f"no answer within {SURVEY_S:g} s"
    for name, error_text in report.silent.items():
        say(f"{name} is left out: {error_text}")
    kinds: dict[Kind, list[Node]] = {}
    for node in nodes:
        if node in found:
            kinds.setdefault(found[node], []).append(node)
    return kinds


class _Shift:
    """The work on all kinds, one node of each at a time."""

    def __init__(
        self, cluster: Cluster, kinds: Mapping[Kind, list[Node]], out: Path, work: Work,
        report: FleetReport, progress: Progress | None, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._left = {kind: nodes[:MAX_NODES_OF_A_KIND] for kind, nodes in kinds.items()}
        self._out = out
        self._work = work
        self._report = report
        self._progress = progress
        self._say = say
        self._running: dict[Hashable, tuple[Kind, Node]] = {}
        self._errors: dict[Kind, dict[str, str]] = {}

    def run(self) -> None:
        """Work until each kind is tuned or has failed."""
        try:
            for kind in self._left:
                self._start(kind)
            self._count()
            while self._running:
                for task in self._cluster.finished(list(self._running), POLL_S):
                    self._end(task)
        except BaseException:
            for task in self._running:
                self._cluster.cancel(task)
            kept = ", ".join(str(tuned.path) for tuned in self._report.tuned) or "nothing"
            self._say(f"interrupted; kept: {kept}")
            raise

    def _start(self, kind: Kind) -> None:
        node = self._left[kind].pop(0)
        self._say(f"{kind.name} on {node.name}")
        self._running[self._cluster.start(node, self._work, (kind,), True)] = kind, node

    def _end(self, task: Hashable) -> None:
        kind, node = self._running.pop(task)
        try:
            hardware, text = _checked(self._cluster.result(task))
            dataset = _kept_samples(text, hardware, self._out / f"{kind.name}{samples.SUFFIX}")
        except _CannotWriteError as error:
            raise ConfigurationError(str(error)) from error
        # A node may run other versions, lack memory or be lost.
        except Exception as error:
            self._fail(kind, node, error)
        else:
            path = self._out / f"{kind.name}{SUFFIX}"
            write_exported(path, hardware)
            self._report.tuned.append(TunedKind(kind, node.name, path, hardware, dataset))
            self._say(f"{kind.name} is done: {path}")
        self._count()

    def _fail(self, kind: Kind, node: Node, error: Exception) -> None:
        self._errors.setdefault(kind, {})[node.name] = _shown(error)
        self._say(f"{kind.name} failed on {node.name}: {_shown(error)}")
        if self._left[kind]:
            self._start(kind)
        else:
            self._report.failed[kind] = self._errors[kind]

    def _count(self) -> None:
        if self._progress is not None:
            done = len(self._report.tuned) + len(self._report.failed)
            self._progress("kinds", done, len(self._left))


class _CannotWriteError(Exception):
    """A file that cannot be written here, which no other node would change."""


def _checked(document: Any) -> tuple[CpuHardware, str]:
    """The exported machine and the text of a dataset that a node returned. Raises HardwareError."""
    if not isinstance(document, Mapping) or set(document) != {"machine", "samples"}:
        raise HardwareError(f"the node returned {document!r:.80}; expected machine and samples")
    text = document["samples"]
    if not isinstance(text, str):
        raise HardwareError(f"samples are {text!r:.80}; expected a text")
    return from_exported_document(document["machine"]), text


def _kept_samples(text: str, hardware: CpuHardware, path: Path) -> Dataset | None:
    """Write and read the text of a dataset; None for no text.

    Raises:
        DatasetError, HardwareError: it is no dataset, or one of another machine.
        _CannotWriteError: it cannot be written.
    """
    if not text:
        return None
    # A dataset of an earlier run stays until this one is known to be sound.
    partial = path.with_name(f"{path.name}.partial")
    try:
        write_whole(partial, text)
        try:
            dataset = samples.read(partial)
            if dataset.header.fingerprint != hardware.fingerprint:
                raise HardwareError("the samples are of another machine than the tuning")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _CannotWriteError(f"cannot write {path}: {error.strerror or error}") from error
    return dataset


def _train(train: Train, report: FleetReport, say: Callable[[str], None]) -> None:
    """Add a learned correction to the file of each kind that has samples."""
    datasets = [tuned.dataset for tuned in report.tuned]
    for number, tuned in enumerate(report.tuned):
        own = tuned.dataset
        if own is None:
            continue
        rest = datasets[:number] + datasets[number + 1 :]
        try:
            model = train(own, [other for other in rest if other is not None])
        except DatasetError as error:
            say(f"{tuned.kind.name} has no learned correction: {error}")
            continue
        hardware = replace(tuned.hardware, correction=model)
        write_exported(tuned.path, hardware)
        report.tuned[number] = replace(tuned, hardware=hardware)
        say(f"{tuned.kind.name} has a learned correction")


def _shown(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} ..."
