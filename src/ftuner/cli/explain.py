"""`ftuner explain`: the plan of one shape with its picture, estimate and roofline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ftuner.cli import explain_model
from ftuner.cli.options import (
    ExtentOption,
    JsonOption,
    MachineOption,
    ProductArgument,
    given_extents,
)
from ftuner.cli.output import console, estimate_table, print_json, roofline_table, show_table
from ftuner.cli.routing import ModelFiles
from ftuner.core.units import count, duration

if TYPE_CHECKING:
    from rich.table import Table

    from ftuner.report.cpu.explain import Explanation
    from ftuner.report.gpu.explain import BlockExplanation

app = typer.Typer(
    cls=ModelFiles,
    help="Explain the plan of one shape, or the steps of a model.",
)
app.command("model")(explain_model.model)


@app.callback()
def explain() -> None:
    """Explain the plan of one shape, or the steps of a model."""


@app.command()
def gemm(
    extents: ProductArgument = None,
    m: ExtentOption = None,
    n: ExtentOption = None,
    k: ExtentOption = None,
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Products of these extents in one call.")
    ] = 1,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="float32 or float64; on a GPU float16, bfloat16, tf32 or float32."
        ),
    ] = "float32",
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads; default: all.")
    ] = None,
    hardware: MachineOption = None,
    isa: Annotated[
        str | None, typer.Option(metavar="ISA", help="Of a CPU; default: the widest.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the plan to an SVG or PNG file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain the plan of a product from its extents M N K.

    The product is of a[m, k] and a packed b[k, n]; it is not run. --m, --n and --k name the extents
    instead.
    """
    from ftuner.hardware.recorded import load_recorded
    from ftuner.report.cpu.explain import Explanation
    from ftuner.report.cpu.explain import explain as explain_on
    from ftuner.report.cpu.picture import patch_picture

    shape = given_extents(extents, {"m": m, "n": n, "k": k})
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
    if not isinstance(found, Explanation):
        _show_block(found)
        if save is not None:
            console().print(f"drawn to {save}", soft_wrap=True)
        return
    out = console()
    show_table(out, _plan_table(found))
    out.print(_widths_line(found))
    out.print(patch_picture(found.plan))
    show_table(out, estimate_table(found.estimate))
    show_table(out, roofline_table(found.roofline))
    out.print(_waste_line(found))
    if save is not None:
        out.print(f"drawn to {save}", soft_wrap=True)


def _plan_table(found: Explanation) -> Table:
    from rich.table import Table

    table = Table(title=found.title, title_justify="left")
    for column in ("worker", "uKernel", "rows", "columns", "tiles", "panels", "batch", "k"):
        table.add_column(column, justify="left" if column == "uKernel" else "right")
    last = 0
    for patch in found.patches():
        if patch.worker != last:
            table.add_section()
            last = patch.worker
        ranges = (patch.rows, patch.columns, patch.batch, patch.k)
        rows, columns, elements, steps = (f"{begin}..{end}" for begin, end in ranges)
        table.add_row(str(patch.worker), str(patch.kernel), rows, columns, str(patch.tiles),
                      str(patch.panels), elements, steps)  # fmt: skip
    return table


def _widths_line(found: Explanation) -> str:
    chosen, *others = found.widths
    line = f"panels of {chosen.columns} columns, estimated at {duration(chosen.seconds)}"
    for other in others:
        line += f"; of {other.columns} they would take {duration(other.seconds)}"
    return line


def _waste_line(found: Explanation) -> str:
    rows, columns = count(found.wasted_rows, "row"), count(found.wasted_columns, "column")
    return f"wasted: {rows}; {columns} inside the last vector ({found.wasted_fraction:.1%})"


def _show_block(found: BlockExplanation) -> None:
    """Print the plan, its picture, its estimate and its place on the roofline."""
    from ftuner.report.gpu.picture import wave_picture

    out = console()
    show_table(out, _bands_table(found))
    plan = found.plan
    split_k = f", split-k {plan.split_k}" if plan.split_k > 1 else ""
    out.print(
        f"{plan.kernel.loads}; swizzle of {count(plan.swizzle, 'row tile')}{split_k}; "
        f"library: {found.enumerated} tiles enumerated, {found.kept} kept",
        soft_wrap=True,
    )
    out.print(wave_picture(found.plan))
    show_table(out, estimate_table(found.estimate))
    show_table(out, roofline_table(found.roofline))
    out.print(f"computed and thrown away: {found.wasted_fraction:.1%}")


def _bands_table(found: BlockExplanation) -> Table:
    from rich.table import Table

    table = Table(title=found.title, title_justify="left")
    for column in ("band", "tile", "rows", "tiles", "rows thrown away"):
        table.add_column(column, justify="left" if column == "tile" else "right")
    for number, band in enumerate(found.bands()):
        first, last = band.rows
        table.add_row(str(number), str(band.tile), f"{first}..{last}", str(band.tiles),
                      str(band.wasted_rows))  # fmt: skip
    return table
