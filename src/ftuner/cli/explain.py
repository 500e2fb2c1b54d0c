"""`ftuner explain`: the plan of one shape with its picture, estimate and roofline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftuner.cli import explain_model, options
from ftuner.cli.output import console, print_json, show_table
from ftuner.cli.routing import ModelFiles
from ftuner.core.units import count, duration

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.report.explain import BlockExplanation, Explanation

app = typer.Typer(cls=ModelFiles, help="Explain the plan of one shape, or the steps of a model.")
app.command("model")(explain_model.model)


@app.callback()
def explain() -> None:
    """Explain the plan of one shape, or the steps of a model."""


@app.command()
def gemm(
    extents: options.ProductArgument = None,
    m: options.ExtentOption = None,
    n: options.ExtentOption = None,
    k: options.ExtentOption = None,
    batch: Annotated[int, options.option("N", "Products of these extents in one call.", min=1)] = 1,
    dtype: Annotated[
        str,
        options.option("DTYPE", "float32 or float64; on a GPU float16, bfloat16, tf32 or float32."),
    ] = "float32",
    workers: Annotated[int | None, options.option("N", "Threads; default: all.", min=1)] = None,
    hardware: options.MachineOption = None,
    isa: Annotated[str | None, options.option("ISA", "Of a CPU; default: the widest.")] = None,
    save: Annotated[
        Path | None, options.option("FILE", "Draw the plan to an SVG or PNG file.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Explain the plan of a product from its extents M N K.

    The product is of a[m, k] and a packed b[k, n]; it is not run. --m, --n and --k name the extents
    instead.
    """
    from ftuner.hardware.recorded import load_recorded
    from ftuner.report.explain import Explanation
    from ftuner.report.explain import explain as explain_on
    from ftuner.report.picture import plan_picture
    from ftuner.report.tables import estimate_table, roofline_table

    shape = options.given_extents(extents, {"m": m, "n": n, "k": k})
    if shape is None:
        raise typer.BadParameter("give the extents M N K, such as 77 768 768")
    m, n, k = shape
    if hardware is not None:
        machine = load_recorded(hardware)
    else:
        # Imported apart: a recorded machine is planned for without NumPy and LLVM.
        from ftuner.runtime.cpu.backend import default_backend

        backend = default_backend()
        machine = backend.hardware
        workers = workers or backend.threads
    found = explain_on(m, n, k, batch, dtype, workers, machine, isa)
    if save is not None:
        from ftuner.report.plots import save_picture

        save_picture(found, save)
    if as_json:
        print_json(found.to_document())
        return
    table, above, below = _of_patches(found) if isinstance(found, Explanation) else _of_bands(found)
    out = console()
    show_table(out, table)
    out.print(above, soft_wrap=True)
    out.print(plan_picture(found.plan))
    show_table(out, estimate_table(found.estimate))
    show_table(out, roofline_table(found.roofline))
    out.print(below)
    if save is not None:
        out.print(f"drawn to {save}", soft_wrap=True)


def _of_patches(found: Explanation) -> tuple[Table, str, str]:
    """The patches of a plan, its panels, and what is computed in vain."""
    from ftuner.report.tables import table

    rows: list[tuple[str, ...] | None] = []
    last = 0
    for patch in found.patches():
        if patch.worker != last:
            rows.append(None)
            last = patch.worker
        ranges = (patch.rows, patch.columns, patch.batch, patch.k)
        at, columns, elements, steps = (f"{begin}..{end}" for begin, end in ranges)
        tiles, panels = str(patch.tiles), str(patch.panels)
        rows.append(
            (str(patch.worker), str(patch.kernel), at, columns, tiles, panels, elements, steps)
        )
    head = (">worker", "uKernel", ">rows", ">columns", ">tiles", ">panels", ">batch", ">k")
    chosen, *others = found.widths
    line = f"panels of {chosen.columns} columns, estimated at {duration(chosen.seconds)}"
    for other in others:
        line += f"; of {other.columns} they would take {duration(other.seconds)}"
    wasted, inside = count(found.wasted_rows, "row"), count(found.wasted_columns, "column")
    waste = f"wasted: {wasted}; {inside} inside the last vector ({found.wasted_fraction:.1%})"
    return table(found.title, head, rows), line, waste


def _of_bands(found: BlockExplanation) -> tuple[Table, str, str]:
    """The bands of a plan for a GPU, its kernel, and what is computed in vain."""
    from ftuner.report.tables import table

    plan = found.plan
    rows = [
        (str(number), str(band.tile), "{}..{}".format(*band.rows), str(band.tiles),
         str(band.wasted_rows))
        for number, band in enumerate(found.bands())
    ]  # fmt: skip
    head = (">band", "tile", ">rows", ">tiles", ">rows thrown away")
    split_k = f", split-k {plan.split_k}" if plan.split_k > 1 else ""
    line = (
        f"{plan.kernel.loads}; swizzle of {count(plan.swizzle, 'row tile')}{split_k}; "
        f"library: {found.enumerated} tiles enumerated, {found.kept} kept"
    )
    waste = f"computed and thrown away: {found.wasted_fraction:.1%}"
    return table(found.title, head, rows), line, waste
