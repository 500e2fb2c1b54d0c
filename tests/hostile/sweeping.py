"""Nodes and their changes, judged in child processes."""

from collections.abc import Sequence

from tests.hostile.bases import Node
from tests.hostile.judging import Verdict
from tests.isolation import Done, Limits, Workers

LIMITS = Limits(seconds=120, grown_bytes=2 << 30)
"""Of all changes of a node."""


def sweep(nodes: Sequence[Node], every: bool, jobs: int) -> Verdict:
    """What became of the changes of nodes: of all, or of some for each."""
    total = Verdict()
    with Workers("tests.hostile.judging:judge", jobs, LIMITS) as workers:
        for number, result in workers.run([(node, every) for node in nodes]):
            if not isinstance(result, Done):
                total.findings.append(f"{nodes[number].name}: {result}")
                continue
            verdict: Verdict = result.value
            total.findings += verdict.findings
            total.operators |= verdict.operators
            total.answers += verdict.answers
            total.refusals += verdict.refusals
    return total
