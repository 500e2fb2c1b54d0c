"""What was measured on a machine, from files: plans, findings and results of benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ftuner.errors import ConfigurationError, DatasetError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.model import CpuHardware
from ftuner.learn.checked import Entry
from ftuner.learn.samples import Sample
from ftuner.learn.samples import read as read_samples
from ftuner_tools.report.findings import Findings, read_findings, seconds_within
from ftuner_tools.report.results import MACHINES, SAMPLES, Results, read_results


@dataclass(frozen=True)
class Measured:
    """All that was measured; what is not there is empty."""

    samples: tuple[Sample, ...] = ()
    findings: Findings = field(default_factory=Findings)
    results: tuple[Results, ...] = ()

    @property
    def chosen(self) -> tuple[Sample, ...]:
        """The samples of plans that the planner takes."""
        return tuple(sample for sample in self.samples if sample.chosen)


def read_measured(
    hardware: CpuHardware | GpuHardware, results: Path | None = None, samples: Path | None = None,
    machines: Path | None = None,
) -> Measured:  # fmt: skip
    """What files say of a machine.

    Args:
        results: a folder of results; its files of samples and findings are read, too, unless others
            are given.
        samples: a dataset of measured plans.
        machines: findings of `python -m benchmarks.machines`.

    Raises:
        ConfigurationError: a folder that cannot be read, or files of a CPU given for a GPU.
        DatasetError: a file that is not valid, or of another machine.
    """
    found: tuple[Results, ...] = ()
    if results is not None:
        found = read_results(results, hardware)
    if isinstance(hardware, GpuHardware):
        for option, path in (("samples", samples), ("machines", machines)):
            if path is not None:
                raise ConfigurationError(f"--{option} is {path}; such files are of a CPU")
        return Measured(results=found)
    samples = samples or _in_folder(results, SAMPLES)
    machines = machines or _in_folder(results, MACHINES)
    own: tuple[Sample, ...] = ()
    if samples is not None:
        dataset = read_samples(samples)
        if dataset.header.fingerprint != hardware.fingerprint:
            other = dataset.hardware
            raise DatasetError(
                f"{samples} is of another machine, {other.name} ({other.fingerprint}); this one is "
                f"{hardware.name} ({hardware.fingerprint})"
            )
        own = dataset.samples
        for number, sample in enumerate(own):
            for time_s in (sample.seconds, sample.terms.seconds):
                seconds_within(Entry(time_s, str(samples), f"sample {number + 1}"))
    findings = Findings()
    if machines is not None:
        findings = read_findings(machines, hardware.fingerprint)
    return Measured(own, findings, found)


def _in_folder(folder: Path | None, name: str) -> Path | None:
    """A file of a folder, if it is there."""
    if folder is None or not (folder / name).exists():
        return None
    return folder / name
