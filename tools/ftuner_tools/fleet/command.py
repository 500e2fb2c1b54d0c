"""`ftuner tune --ray`: tuning of one node of each kind of a Ray cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ftuner.cli.output import print_json, progress_console, shown_progress
from ftuner.core.units import count

if TYPE_CHECKING:
    from ftuner.runtime.backend import Effort
    from ftuner_tools.fleet.tuning import FleetReport


def tune_cluster(address: str, out: Path, effort: Effort, as_json: bool) -> None:
    """Tune the kinds of a cluster, and say what became of each. Exits with 1 if one failed."""
    from ftuner_tools.fleet.ray_cluster import RayCluster
    from ftuner_tools.fleet.tuning import tune_fleet, tune_here

    cluster = RayCluster(address)
    try:
        with shown_progress("kinds") as show:
            lines = progress_console()
            report = tune_fleet(
                cluster,
                out,
                partial(tune_here, effort=effort),
                progress=show,
                say=lambda line: lines.print(line, markup=False),
            )
    finally:
        cluster.close()
    if as_json:
        print_json(_document(report))
    else:
        typer.echo(f"tuned {count(len(report.tuned), 'kind')}, to be taken over with tune --from:")
        for tuned in report.tuned:
            typer.echo(f"  {tuned.path}")
        for kind, errors in report.failed.items():
            for node, error in errors.items():
                typer.echo(f"failed: {kind.name} on {node}: {error}")
        for node, error in report.silent.items():
            typer.echo(f"left out: {node}: {error}")
    if report.failed or not report.tuned:
        raise typer.Exit(1)


def _document(report: FleetReport) -> dict[str, object]:
    return {
        "tuned": [
            {
                "kind": tuned.kind.name,
                "fingerprint": tuned.hardware.fingerprint,
                "node": tuned.node,
                "file": str(tuned.path),
                "learned": tuned.hardware.correction is not None,
                "samples": 0 if tuned.dataset is None else len(tuned.dataset.samples),
            }
            for tuned in report.tuned
        ],
        "failed": {kind.name: errors for kind, errors in report.failed.items()},
        "silent": report.silent,
    }
