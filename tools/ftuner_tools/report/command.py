"""`ftuner report`: one page of HTML about this machine, its library and its plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ftuner.cli.options import DeviceOption, JsonOption, option
from ftuner.cli.output import console, print_json

PAGE = Path("ftuner-report.html")


def report(
    out: Annotated[Path, option("FILE", "The page to write: a .html file.")] = PAGE,
    results: Annotated[
        Path | None,
        option("FOLDER", "A folder of measured results, such as benchmarks/results/<machine>."),
    ] = None,
    samples: Annotated[
        Path | None, option("FILE", "Measured plans; default: those of --results.")
    ] = None,
    machines: Annotated[
        Path | None, option("FILE", "What benchmarks.machines found; default: that of --results.")
    ] = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Write one page of HTML about this machine.

    Hardware, library, estimates, plans, and measured results where there are some.
    """
    from datetime import date

    import ftuner
    from ftuner.core.expr import ACCUMULATOR
    from ftuner.report import html
    from ftuner.runtime.devices import CPU, backend_of
    from ftuner_tools.report.measured import read_measured
    from ftuner_tools.report.page import machine_page
    from ftuner_tools.report.section import Subject

    backend = backend_of(device)
    hardware = backend.hardware
    measured = read_measured(hardware, results, samples, machines)
    # The first dtype is what most models are of.
    dtype = next(iter(backend.product_dtypes.values()))
    workers = 1
    if device == CPU:
        from ftuner.runtime.cpu.backend import default_backend

        # The hardware model has no estimates for more threads than cores.
        workers = min(default_backend().threads, default_backend().hardware.cores)
    subject = Subject(hardware, backend.library(dtype, ACCUMULATOR), workers)
    found = machine_page(subject, measured, ftuner.__version__, date.today())
    html.save(found.content, out)
    if as_json:
        sections = [{"title": s.title, "missing": s.missing} for s in found.sections]
        print_json({"page": str(out), "machine": hardware.name, "sections": sections})
        return
    shown = console()
    for section in found.sections:
        if section.missing is not None:
            shown.print(f"{section.title}: without measured data; {section.missing} makes it",
                        markup=False, highlight=False, soft_wrap=True)  # fmt: skip
    shown.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
