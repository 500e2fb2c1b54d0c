"""`ftuner bench`: ftuner and the installed peers timed on a few shapes, in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ftuner.cli.options import (
    ExtentOption,
    JsonOption,
    ProductArgument,
    ThreadsOption,
    given_extents,
    option,
)
from ftuner.cli.output import console, print_json, show_table
from ftuner.cli.routing import ModelFiles
from ftuner_tools import bench_model
from ftuner_tools.contest import contest, measured, ratio_table, ratio_text

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner_tools.measuring import Case, Request

BatchedArgument = Annotated[
    list[int] | None, typer.Argument(metavar="BATCH M N K", min=1, hidden=True)
]
PeersOption = Annotated[
    str | None, option("A,B", "Names of peers, separated by commas; default: all.")
]
app = typer.Typer(cls=ModelFiles, help="Time ftuner and the installed peers.")
app.command("model")(bench_model.model)

PEERS = ("numpy", "torch", "onnxruntime", "openvino")
DEFAULT_GEMMS = (
    (1, 768, 768), (16, 768, 768), (77, 768, 3072), (128, 3072, 768), (333, 1024, 1024),
)  # fmt: skip
"""(m, n, k): layers of BERT base and one of a wider model, for sentences of several lengths."""
DEFAULT_BMMS = ((12, 31, 31, 64), (12, 128, 128, 64), (12, 77, 64, 77), (16, 200, 200, 64))
"""(batch, m, n, k): scores and weighted sums of the attention of models of that size."""


@app.callback()
def bench() -> None:
    """Time ftuner and the installed peers."""


@app.command()
def gemm(
    extents: ProductArgument = None,
    m: ExtentOption = None,
    n: ExtentOption = None,
    k: ExtentOption = None,
    threads: ThreadsOption = None,
    peers: PeersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time products of extents M N K, by default a few shapes.

    They are of x[m, k] and a constant weight[n, k], float32. --m, --n and --k name the extents
    instead.
    """
    given = given_extents(extents, {"m": m, "n": n, "k": k})
    shapes = [(1, *shape) for shape in ((given,) if given else DEFAULT_GEMMS)]
    _bench("gemm", shapes, threads, peers, as_json)


@app.command()
def bmm(
    extents: BatchedArgument = None,
    batch: ExtentOption = None,
    m: ExtentOption = None,
    n: ExtentOption = None,
    k: ExtentOption = None,
    threads: ThreadsOption = None,
    peers: PeersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time batched products of extents BATCH M N K, by default a few.

    They are of a[batch, m, k] and b[batch, k, n], float32. --batch, --m, --n and --k name the
    extents instead.
    """
    given = given_extents(extents, {"batch": batch, "m": m, "n": n, "k": k})
    _bench("bmm", (given,) if given else DEFAULT_BMMS, threads, peers, as_json)


def _bench(
    kind: str,
    shapes: Sequence[tuple[int, ...]],
    threads: int | None,
    peers: str | None,
    as_json: bool,
) -> None:
    from ftuner_tools.engines import ENGINES

    found = contest({name: ENGINES[name]() for name in PEERS}, peers, threads)
    cases: list[Case] = [
        {"kind": kind, "batch": batch, "m": m, "n": n, "k": k} for batch, m, n, k in shapes
    ]
    request: Request = {
        "cases": cases, "model": None, "sets": [], "engines": found.engines,
        "threads": found.threads,
    }  # fmt: skip
    document = measured(request, found)
    if as_json:
        print_json(document)
        return
    out = console()
    show_table(out, _table(kind, document, found.peers))
    for result in document["results"]:
        for name in result["wrong"]:
            out.print(f"{name} is wrong on {_label(result['case'])} and was not timed")
    if document["not_installed"]:
        out.print(f"not installed: {', '.join(document['not_installed'])}")


def _label(case: Case) -> str:
    batch = f"{case['batch']} x " if case["kind"] == "bmm" else ""
    return f"{batch}{case['m']} x {case['n']} x {case['k']}"


def _table(kind: str, document: dict[str, Any], peers: Sequence[str]) -> Table:
    rows: list[Sequence[str] | None] = [
        (_label(result["case"]), *(ratio_text(result["ratios"].get(name)) for name in peers))
        for result in document["results"]
    ]
    means = (ratio_text(document["geomean"][name]) for name in peers)
    rows += [None, ("geometric mean", *means)]
    head = ("shape", *(f">{name}" for name in peers))
    return ratio_table(kind, document, "peer's time / ftuner's", head, rows)
