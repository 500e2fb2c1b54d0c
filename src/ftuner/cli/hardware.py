"""`ftuner hardware`: the hardware model of this machine, or of a recorded one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ftuner.cli.options import DeviceOption, JsonOption, flag, option, recorded_machines
from ftuner.cli.output import console, print_json, show_table


def hardware(
    name: Annotated[
        str | None,
        option(
            "NAME", "A recorded machine, by name or .toml file.", autocompletion=recorded_machines
        ),
    ] = None,
    list_names: Annotated[bool, flag("--list", "Names of recorded machines.")] = False,
    probe: Annotated[bool, flag("--probe", "Probe this machine again.")] = False,
    export: Annotated[
        Path | None,
        option("FILE", "Also write the CPU and its tuning to a .json file for tune --from."),
    ] = None,
    device: DeviceOption = "cpu",
    everything: Annotated[bool, flag("--all", "Every value with its unit and provenance.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is known of this machine, and what it means.

    The hardware model of the CPU or of a GPU, here or of a recorded machine. With --all, each of
    its values and the constants of its tuning, and where they came from.
    """
    from ftuner.hardware.exported import write_exported
    from ftuner.hardware.model import CpuHardware
    from ftuner.hardware.priors import nearest, recorded_cpus
    from ftuner.hardware.recorded import load_recorded, recorded_names
    from ftuner.report.hardware import hardware_document, hardware_table, meaning, summary_table

    if sum((name is not None, list_names, probe)) > 1:
        raise typer.BadParameter("--name, --list and --probe exclude each other")
    if list_names:
        if as_json:
            print_json({"recorded": list(recorded_names())})
        else:
            typer.echo("\n".join(recorded_names()))
        return
    if name is not None:
        found = load_recorded(name)
    else:
        # Imported apart: a recorded machine is shown without NumPy and LLVM.
        from ftuner.runtime.devices import backend_of

        backend = backend_of(device)
        found = backend.probe() if probe else backend.hardware
    if export is not None:
        if not isinstance(found, CpuHardware):
            raise typer.BadParameter("--export is of a CPU")
        write_exported(export, found)
    near = nearest(found, recorded_cpus()) if isinstance(found, CpuHardware) else None
    if as_json:
        print_json(hardware_document(found, near))
        return
    out = console()
    if everything:
        show_table(out, hardware_table(found, near))
    else:
        if isinstance(found, CpuHardware):
            show_table(out, summary_table(found))
            out.print(meaning(found), highlight=False)
        else:
            out.print(found.summary(), highlight=False)
        missing = "; `ftuner tune` measures them on this machine"
        hint = missing if name is None and not found.tuning.is_calibrated else ""
        out.print(f"tuning of estimates: {found.tuning.summary()}{hint}", highlight=False)
        out.print("--all shows every value, and where it came from", highlight=False)
    if export is not None:
        console().print(f"written to {export}", soft_wrap=True)
