"""The command of a suite: cases of one kind, each thread count in a process of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from benchmarks.results import Document, save
from benchmarks.run import command_of, console, results_here, run_apart
from ftuner_tools.timing import Settings

BUDGET_S = 0.3


class Labelled(Protocol):
    """A case of a suite."""

    @property
    def label(self) -> str: ...


@dataclass(frozen=True)
class Suite:
    """Cases that a module measures against peers."""

    module: str
    """Its full name: `python -m` runs `main` again in the processes that measure."""
    kind: str
    set: str
    peers: Sequence[str]
    """Engines beside ftuner. Outputs are compared with the first one's, which is required."""
    cases: Callable[[], Sequence[Labelled]]
    measured: Callable[[int, Sequence[str], Sequence[str], Settings], Document]
    """From threads, peers and labels of cases, all if there are none, to the results."""
    prepare: Callable[[], object] = lambda: None
    """Called before anything is measured; raises `typer.BadParameter` if something is missing."""

    def main(
        self,
        threads: Annotated[str, typer.Option(help="Thread counts; a process each.")] = "1,2",
        only: Annotated[str, typer.Option(help="Labels of cases to keep.")] = "",
        peers: Annotated[str, typer.Option(help="Peers, by name; by default all.")] = "",
        budget: Annotated[float, typer.Option(help="Seconds for each case and engine.")] = BUDGET_S,
        results: Annotated[Path | None, typer.Option(help="By default the machine's.")] = None,
        worker: Annotated[bool, typer.Option(hidden=True)] = False,
    ) -> None:
        """Measure, print and save the results as JSON."""
        names = tuple(name for name in peers.split(",") if name) or tuple(self.peers)
        labels = tuple(label for label in only.split(",") if label)
        unknown = {*names} - {*self.peers} | {*labels} - {case.label for case in self.cases()}
        if unknown or self.peers[0] not in names:
            raise typer.BadParameter(
                f"unknown {sorted(unknown)}; peers are {', '.join(self.peers)}, with "
                f"{self.peers[0]}, which outputs are compared with"
            )
        self.prepare()
        folder = (results or results_here()).resolve()
        for count in map(int, threads.split(",")):
            out = folder / f"{self.kind}-{self.set}-t{count}.json"
            if worker:
                settings = Settings(budget_s_per_engine=budget)
                save(self.measured(count, names, labels, settings), out)
                continue
            command = command_of(
                self.module, worker=True, threads=count, only=only, peers=",".join(names),
                budget=budget, results=folder,
            )  # fmt: skip
            document = run_apart(command, count, out)
            for file, engines in document.get("unprepared", {}).items():
                console.print(f"[red]not prepared[/red] {file} by {', '.join(engines)}")
