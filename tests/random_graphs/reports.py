"""What became of a case."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.isolation import Crash, Result

from ftuner.graph.ir import Graph, Node


@dataclass
class Report:
    """What became of a case."""

    findings: list[tuple[str, str]] = field(default_factory=list)
    """What kind, and what exactly."""
    refused: str = ""
    """Why the model was not imported, or not compiled by a back end that lacks a kernel."""
    runs: int = 0
    """Inputs on which it was run."""
    refused_runs: int = 0
    """Calls that both sides refused."""
    unstable_runs: int = 0
    """Inputs whose results rounding decides."""
    elements: tuple[int, int] = (0, 0)
    """Compared, and all."""
    operators: Counter[str] = field(default_factory=Counter)
    late_runs: int = 0
    """Inputs on which it was run with constants as further inputs."""
    batches: int = 0
    """Whether its inputs ran as a batch, of which some steps ran once for all."""
    peer: str = ""
    outvoted: int = 0
    """Runs on which onnxruntime is alone."""
    apart: Counter[str] = field(default_factory=Counter)
    """What peers did that says nothing of ftuner: what, and on how many runs."""

    def found(self, kind: str, what: str) -> None:
        self.findings.append((kind, what[:2000]))


def nodes_of(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, and of the graphs within them."""
    for node in graph.nodes:
        yield node
        for inner in node.attributes.values():
            if isinstance(inner, Graph):
                yield from nodes_of(inner)


def crashed_in_peer(result: Result) -> bool:
    """Whether a process ended inside onnxruntime, by the stack that it left."""
    if not isinstance(result, Crash):
        return False
    # Stacks of other threads may stand before that of the one that crashed.
    return "onnxruntime" in result.stderr.partition("Current thread")[2][:400]


def text_of(error: BaseException) -> str:
    """An exception and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {error} ({where})"
