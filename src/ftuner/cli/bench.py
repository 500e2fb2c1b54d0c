"""`ftuner bench`: ftuner and the installed peers timed on a few shapes, in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftuner.cli import bench_model
from ftuner.cli.contest import contest, measured, ratio_table, ratio_text
from ftuner.cli.output import JsonOption, ThreadsOption, console, print_json
from ftuner.cli.routing import ModelFiles

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.cli.measure import Case, Request

app = typer.Typer(
    cls=ModelFiles,
    no_args_is_help=True,
    help="Time ftuner and the installed peers.",
)
app.command("model")(bench_model.model)

MEASURING_MODULE = "ftuner.cli.measure"
DEFAULT_GEMMS = (
    (1, 768, 768), (16, 768, 768), (77, 768, 3072), (128, 3072, 768), (333, 1024, 1024),
)  # fmt: skip
"""(m, n, k): layers of BERT base and one of a wider model, for sentences of several lengths."""
DEFAULT_BMMS = ((12, 31, 31, 64), (12, 128, 128, 64), (12, 77, 64, 77), (16, 200, 200, 64))
"""(batch, m, n, k): scores and weighted sums of the attention of models of that size."""

Extent = typer.Option(min=1, help="Give all extents, or none for a few typical shapes.")
Peers = Annotated[
    str | None, typer.Option(help="Names of peers, separated by commas; default: all.")
]


@app.callback()
def bench() -> None:
    """Time ftuner and the installed peers."""


@app.command()
def gemm(
    m: Annotated[int | None, Extent] = None,
    n: Annotated[int | None, Extent] = None,
    k: Annotated[int | None, Extent] = None,
    threads: ThreadsOption = None,
    peers: Peers = None,
    as_json: JsonOption = False,
) -> None:
    """Time products of x[m, k] and a constant weight[n, k], float32."""
    shapes: list[tuple[int, ...]] = [(1, *s) for s in DEFAULT_GEMMS]
    if m is not None or n is not None or k is not None:
        shapes = [(1, *_all_given(m=m, n=n, k=k))]
    _bench("gemm", shapes, threads, peers, as_json)


@app.command()
def bmm(
    batch: Annotated[int | None, Extent] = None,
    m: Annotated[int | None, Extent] = None,
    n: Annotated[int | None, Extent] = None,
    k: Annotated[int | None, Extent] = None,
    threads: ThreadsOption = None,
    peers: Peers = None,
    as_json: JsonOption = False,
) -> None:
    """Time batched products of two inputs a[batch, m, k] and b[batch, k, n], float32."""
    shapes: list[tuple[int, ...]] = list(DEFAULT_BMMS)
    if batch is not None or m is not None or n is not None or k is not None:
        shapes = [_all_given(batch=batch, m=m, n=n, k=k)]
    _bench("bmm", shapes, threads, peers, as_json)


def _all_given(**extents: int | None) -> tuple[int, ...]:
    missing = [f"--{name}" for name, extent in extents.items() if extent is None]
    if missing:
        raise typer.BadParameter(f"give all extents or none; {', '.join(missing)} missing")
    return tuple(extent for extent in extents.values() if extent is not None)


def _bench(
    kind: str,
    shapes: list[tuple[int, ...]],
    threads: int | None,
    peers: str | None,
    as_json: bool,
) -> None:
    from ftuner.cli.peers import ENGINES

    found = contest(ENGINES, peers, threads)
    cases: list[Case] = [
        {"kind": kind, "batch": batch, "m": m, "n": n, "k": k} for batch, m, n, k in shapes
    ]
    request: Request = {"cases": cases, "engines": found.engines, "threads": found.threads}
    document = measured(MEASURING_MODULE, request, found)
    if as_json:
        print_json(document)
        return
    out = console()
    out.print(_table(kind, document, found.peers))
    for result in document["results"]:
        for name in result["wrong"]:
            out.print(f"{name} is wrong on {_label(result['case'])} and was not timed")
    if document["not_installed"]:
        out.print(f"not installed: {', '.join(document['not_installed'])}")


def _label(case: Case) -> str:
    batch = f"{case['batch']} x " if case["kind"] == "bmm" else ""
    return f"{batch}{case['m']} x {case['n']} x {case['k']}"


def _table(kind: str, document: dict[str, Any], peers: Sequence[str]) -> Table:
    table = ratio_table(kind, document, "peer's time / ftuner's")
    table.add_column("shape")
    for name in peers:
        table.add_column(name, justify="right")
    for result in document["results"]:
        ratios = [result["ratios"].get(name) for name in peers]
        table.add_row(_label(result["case"]), *map(ratio_text, ratios))
    table.add_section()
    means = [document["geomean"][name] for name in peers]
    table.add_row("geometric mean", *map(ratio_text, means))
    return table
