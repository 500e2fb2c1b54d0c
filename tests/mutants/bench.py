"""Mutants of seed after seed in child processes, and a summary of what was found."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.isolation import Done, Limits, Result, TooMuchMemory, Workers
from tests.mutants.checking import LOAD_BYTES, Outcome, check
from tests.mutants.mutating import mutant
from tests.random_graphs.bench import temporary_cache
from tests.random_graphs.reports import crashed_in_peer

LOAD_LIMITS = Limits(seconds=20.0, grown_bytes=LOAD_BYTES)
"""The time is of the wall's clock, and the machine may be busy: `checking.LOAD_SECONDS` is what a
mutant is held to."""
RUN_LIMITS = Limits(seconds=240.0, grown_bytes=2 << 30)
SAVED = Path(__file__).parent / "saved"
PROGRESS_SECONDS = 30.0


@dataclass(frozen=True)
class Finding:
    seed: int
    kind: str
    what: str


@dataclass
class Summary:
    """What came of all mutants."""

    mutants: int = 0
    loaded: int = 0
    run: int = 0
    runs: int = 0
    compared: int = 0
    """Mutants whose runs were compared with those of a peer, beside references."""
    crashes_of_peers: int = 0
    seconds: float = 0.0
    longest_load_seconds: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def enter(self, seed: int, result: Result) -> None:
        """Count the result of a mutant."""
        self.mutants += 1
        if not isinstance(result, Done):
            self._enter_failure(seed, result)
            return
        outcome: Outcome = result.value
        self.longest_load_seconds = max(self.longest_load_seconds, outcome.load_seconds)
        if outcome.refused:
            self.refused[outcome.refused] += 1
        else:
            self.loaded += 1
        self.run += outcome.runs > 0
        self.runs += outcome.runs
        self.compared += bool(outcome.peer)
        self.findings += [Finding(seed, *found) for found in outcome.findings]

    def _enter_failure(self, seed: int, result: Result) -> None:
        text = str(getattr(result, "stderr", "") or getattr(result, "trace", ""))
        if crashed_in_peer(result):
            self.crashes_of_peers += 1
            return
        kind = type(result).__name__
        what = f"{getattr(result, 'kind', '')} {getattr(result, 'text', '')}"
        if isinstance(result, TooMuchMemory):
            what = f"{result.grown_bytes >> 20} MiB"
        self.findings.append(Finding(seed, kind, f"{what} {text[-1500:]}".strip()))

    def text(self) -> str:
        kinds = Counter(finding.kind for finding in self.findings)
        lines = [
            f"{self.mutants} mutants in {self.seconds:.0f} s; {self.loaded} loaded, "
            f"{sum(self.refused.values())} refused by name: {dict(self.refused.most_common())}",
            f"{self.run} run, {self.runs} runs; {self.compared} compared with a peer, which "
            f"crashed on {self.crashes_of_peers}; longest load {self.longest_load_seconds:.2f} s",
            f"findings: {dict(kinds) if kinds else 'none'}",
            *(f"  seed {f.seed}: {f.kind}: {f.what[:400]}" for f in self.findings[:50]),
        ]
        return "\n".join(lines)


def run(
    count: int, seed: int, jobs: int = 1, run_share: float = 0.03, folder: Path | None = None,
    show: Callable[[str], object] = print, cache: Path | None = None,
) -> Summary:  # fmt: skip
    """Make and check mutants.

    Args:
        run_share: of the mutants, those that are compiled and run.
        folder: where mutants with findings are saved; None to save none.
        show: is given lines of text.
        cache: folder of compiled objects; None for one of its own.
    """
    summary = Summary()
    began = time.monotonic()
    last = began
    period = round(1 / run_share) if run_share > 0 else 0

    def is_run(number: int) -> bool:
        return period > 0 and number % period == 0

    with temporary_cache(cache) as environment:
        for runs, limits in ((False, LOAD_LIMITS), (True, RUN_LIMITS)):
            numbers = [n for n in range(count) if is_run(n) is runs]
            payloads: Iterator[tuple[int, bool]] = ((seed + n, runs) for n in numbers)
            function = f"{check.__module__}:{check.__name__}"
            with Workers(function, jobs, limits, 2000, environment) as workers:
                for at, result in workers.run(payloads):
                    known = len(summary.findings)
                    summary.enter(seed + numbers[at], result)
                    for finding in summary.findings[known:]:
                        show(f"seed {finding.seed}: {finding.kind}: {finding.what[:400]}")
                    now = time.monotonic()
                    summary.seconds = now - began
                    if now - last > PROGRESS_SECONDS:
                        last = now
                        show(f"{summary.mutants} mutants, {len(summary.findings)} findings, "
                             f"{summary.seconds:.0f} s")  # fmt: skip
    if folder is not None:
        _save(summary, folder)
    return summary


def _save(summary: Summary, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in {finding.seed for finding in summary.findings}:
        (folder / f"mutant-{seed}.onnx").write_bytes(mutant(seed))


def write(summary: Summary, path: Path) -> None:
    findings = [asdict(finding) for finding in summary.findings]
    path.write_text(json.dumps({**vars(summary), "findings": findings}, indent=1))
