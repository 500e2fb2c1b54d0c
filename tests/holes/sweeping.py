"""Bases and their holes, judged in child processes: a crash is a finding."""

from collections.abc import Sequence
from pathlib import Path

from tests.holes.judging import Verdict, judge
from tests.isolation import Done, Limits, Workers
from tests.random_graphs.bench import temporary_cache

LIMITS = Limits(seconds=500, grown_bytes=3 << 30)
"""Of all holes of a base."""


def sweep(
    names: Sequence[str], seeds: Sequence[int], jobs: int, cache: Path | None = None
) -> Verdict:
    """What became of the holes of bases. `cache`: folder of compiled objects; None for one of its
    own."""
    total = Verdict()
    function = f"{judge.__module__}:{judge.__name__}"
    payloads = [(name, list(seeds)) for name in names]
    with temporary_cache(cache) as found, Workers(function, jobs, LIMITS, 8, found) as workers:
        for number, result in workers.run(payloads):
            if not isinstance(result, Done):
                total.findings.append(f"{names[number]}: {result}")
                continue
            verdict: Verdict = result.value
            total.findings += verdict.findings
            total.answers += verdict.answers
            total.loaded |= verdict.loaded
            for name, count in verdict.refusals.items():
                total.refusals[name] = total.refusals.get(name, 0) + count
    return total
