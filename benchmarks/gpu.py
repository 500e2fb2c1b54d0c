"""`python -m benchmarks.gpu`: measure ftuner on this machine's GPU, and save the results as JSON.

Sections run one after the other, each in a process of its own and within its share of the time;
what a section leaves over goes to those that follow. Results are written while they come in.
Whatever a case or a peer does to the process of its section, the others are measured, and
`--resume` goes on from there. Where a command may take ten minutes, four of them (`--call`) have
all sections.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

if importlib.util.find_spec("typer") is None:
    sys.exit("benchmarks.gpu needs the package typer, which is not installed")
import typer

from benchmarks.gpu_journal import Fault, Journal
from benchmarks.gpu_section import AGAIN
from benchmarks.machine import now as date_now
from benchmarks.machine import versions
from benchmarks.report_gpu import KIND
from benchmarks.results import SCHEMA, Document, load, save

RESULTS = Path(__file__).parent / "results"
DRY_KIND = "gpu-dry"
"""The kind of documents that only show that the script works."""
NEEDED = ("numpy", "torch", "triton", "llvmlite", "platformdirs", "filelock", "rich")
"""Packages that are imported on the way; ONNX models need `onnx`, too."""
VERSIONS = ("ftuner", "numpy", "torch", "triton", "onnx")


class Share(NamedTuple):
    """What a section gets of a run."""

    seconds: float
    case_s: float
    """A case that takes longer hangs."""


CALLS: dict[str, dict[str, Share]] = {
    "facts": {"tuning": Share(60.0, 120.0), "correct": Share(240.0, 120.0)},
    "plans": {"calibration": Share(120.0, 60.0), "regret": Share(150.0, 90.0)},
    "peers": {
        "gemm": Share(170.0, 45.0), "bmm": Share(90.0, 45.0), "attention": Share(120.0, 45.0),
        "compiled": Share(90.0, 90.0),
    },
    "networks": {
        "models": Share(220.0, 120.0), "convolutions": Share(80.0, 45.0),
        "networks": Share(130.0, 120.0), "recurrent": Share(80.0, 60.0),
    },
}  # fmt: skip
"""Sections, in the order of a run: facts first, and constants before plans are timed."""
SHARES = {name: share for call in CALLS.values() for name, share in call.items()}
START_S = 120.0
"""A process that has not begun a case by then hangs. Importing PyTorch, calibrating the device and
compiling the kernels of all checks take less than a minute."""
OVERTIME_S = 20.0
"""What the last case may take beyond the section's time."""
MOST_STARTS = 8
"""Processes of one section."""
WATCHED_S = 0.2
DRY_SECONDS = 3600.0
NO_GPU = 2
"""Exit status where there is nothing to measure."""
CACHES = ("TRITON_CACHE_DIR", "FTUNER_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
CARRIED = CACHES[:2]
"""Those that `--kernels` keeps."""
EMPTIED = (".ttir", ".ttgir", ".llir", ".ptx", ".source")
"""Forms of a kernel of which Triton only asks whether they are there when it loads the kernel."""
CARRIED_TO = Path(tempfile.gettempdir()) / "ftuner-gpu-kernels"
"""Where caches that are carried are: Triton's have absolute paths."""


def fail(message: str) -> None:
    """Say why nothing can be measured, and exit."""
    print(message, file=sys.stderr)
    raise typer.Exit(NO_GPU)


def check_packages() -> None:
    """Exit with the names of the packages that are missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"benchmarks.gpu needs packages that are not installed: {', '.join(missing)}")


def command_of(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu_section", *arguments]


def machine(dry: bool) -> dict[str, Any]:
    """The chip, asked in a process of its own."""
    try:
        found = subprocess.run(
            command_of(*["--dry"] * dry), capture_output=True, text=True, timeout=START_S
        )
    except subprocess.TimeoutExpired:
        fail(f"the device did not answer for {START_S:.0f} s")
    if found.returncode:
        last = (found.stderr.strip().splitlines() or [f"exit status {found.returncode}"])[-1]
        fail(
            f"benchmarks.gpu measures a CUDA device; PyTorch finds none ({last}); --dry needs none"
        )
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def opened(path: Path, head: Document, resume: bool) -> Document:
    """The document of a section: a new one, or that of an earlier run on this machine, in which
    cases without a result are tried again."""
    if resume and path.exists():
        found = load(path)
        if all(found.get(key) == head[key] for key in ("kind", "machine", "versions")):
            found.pop("error", None)
            return {**found, "lost": {}, "avoided": []}
    return {**head, "complete": False, "left": 0, "lost": {}, "avoided": [], "cases": []}


def run_section(path: Path, share: Share, end: float, options: Sequence[str]) -> None:
    """Have processes measure a section until it is done or its time is over."""
    for _ in range(MOST_STARTS):
        command = command_of(str(path), f"--until={end}", *options)
        child = subprocess.Popen(command, start_new_session=True)
        try:
            why = watch(child, Journal(path).marker, share, end)
        finally:
            # Also what it started, and what a signal to this process leaves.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if why is None or (why and not Journal(path).ended(why)) or time.monotonic() > end:
            return


def watch(child: subprocess.Popen[bytes], marker: Path, share: Share, end: float) -> str | None:
    """How a section's process ended; None if well, empty if another one may go on."""
    changed = time.monotonic()
    limit, seen = START_S, 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            status = child.wait(WATCHED_S)
            if status in (0, AGAIN):
                return "" if status else None
            return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        with suppress(OSError):
            at = marker.stat().st_mtime_ns
            if at != seen:
                changed, limit, seen = time.monotonic(), share.case_s, at
        if time.monotonic() - changed > limit:
            return f"hung: nothing happened for {limit:.0f} s"
        if time.monotonic() > end + OVERTIME_S:
            return "stopped: the time of the section was over"


def pack(file: Path, caches: Path) -> None:
    """Keep what was compiled and calibrated."""

    def packed(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.size *= not member.name.endswith(EMPTIED)
        return member

    with tarfile.open(file, "w:xz") as archive:
        for name in CARRIED:
            folder = caches / name.lower()
            if folder.exists():
                archive.add(folder, folder.name, filter=packed)


def main(
    minutes: Annotated[float, typer.Option(help="Wall-clock time of all sections.")] = 9.0,
    only: Annotated[str, typer.Option(help=f"Of {', '.join(SHARES)}.")] = "",
    call: Annotated[str, typer.Option(help=f"The sections of one of {', '.join(CALLS)}.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    kernels: Annotated[
        Path | None, typer.Option(help="An archive of caches, to begin with and to write.")
    ] = None,
    most: Annotated[int, typer.Option(help="Most cases of a section.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what was measured.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry", help="Tiny shapes in Triton's interpreter, on the CPU.")
    ] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="SECTION:CASE:KIND, to show that no other case is lost."),
    ] = None,
    case_s: Annotated[float, typer.Option(help="Time after which a case hangs.")] = 0.0,
) -> None:
    """Measure this machine's GPU."""
    if call and call not in CALLS:
        raise typer.BadParameter(f"unknown call {call!r}; one of {', '.join(CALLS)}")
    names = [name for name in only.split(",") if name] or list(CALLS[call] if call else SHARES)
    unknown = [name for name in names if name not in SHARES]
    if unknown:
        raise typer.BadParameter(f"unknown sections {unknown}; some of {', '.join(SHARES)}")
    faults = [Fault.read(text) for text in fault or []]
    check_packages()
    began = time.monotonic()
    found = machine(dry)
    slug = re.sub(r"[^a-z0-9]+", "-", found["cpu_model"].lower()).strip("-")
    folder = out or (Path(tempfile.mkdtemp(prefix="dry-")) if dry else RESULTS / slug)
    head = {
        "schema": SCHEMA,
        "kind": DRY_KIND if dry else KIND,
        "threads": 1,
        "date": date_now(),
        "machine": found,
        "versions": versions(VERSIONS),
    }
    print(f"{found['cpu_model']}: results go to {folder}")
    end = began + (DRY_SECONDS if dry else 60.0 * minutes)
    ordered = [name for name in SHARES if name in names]
    right = True
    # PyTorch's compiling processes may write to the end.
    with tempfile.TemporaryDirectory(prefix="ftuner-gpu-", ignore_cleanup_errors=True) as scratch:
        if kernels is not None:
            scratch = str(CARRIED_TO)
            shutil.rmtree(scratch, ignore_errors=True)
        # Empty caches, so that tuning starts from nothing, and PyTorch's compiler does.
        for variable in CACHES:
            os.environ[variable] = str(Path(scratch) / variable.lower())
        if kernels is not None and kernels.exists():
            with tarfile.open(kernels) as archive:
                archive.extractall(scratch, filter="data")
        for number, name in enumerate(ordered):
            shares = [SHARES[other].seconds for other in ordered[number:]]
            now = time.monotonic()
            until = now + max(end - now, 0.0) * shares[0] / sum(shares)
            path = folder / f"{head['kind']}-{name}.json"
            document = opened(path, {**head, "set": name}, resume)
            save(document, path)
            if not document["complete"]:
                share = SHARES[name]._replace(case_s=case_s) if case_s else SHARES[name]
                options = ["--dry"] * dry + [f"--most={most}"] * bool(most)
                options += [f"--fault={each}" for each in faults if each.section == name]
                run_section(path, share, until, options)
            right = report(path, time.monotonic() - now) and right
            if kernels is not None:
                pack(kernels, Path(scratch))
    print(f"tables: python -m benchmarks.report_gpu {folder}")
    if not right:
        raise typer.Exit(1)


def report(path: Path, seconds: float) -> bool:
    """Say what a section has; whether nothing of it failed."""
    document = load(path)
    document["took_s"] = document.get("took_s", 0.0) + seconds
    save(document, path)
    wrong = [case["label"] for case in document["cases"] if not case.get("right", True)]
    lost = [f"{label}: {why}" for label, why in document["lost"].items()]
    failed = [f"{label}: wrong" for label in wrong] + lost
    failed += [document["error"]] if "error" in document else []
    print(
        f"{document['set']}: {len(document['cases'])} cases in {seconds:.1f} s, "
        f"{document['left']} left, {len(failed)} failed", *failed, sep="\n  ",
    )  # fmt: skip
    return not failed


if __name__ == "__main__":
    typer.run(main)
