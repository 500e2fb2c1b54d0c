"""What the commands share: loaded models, consoles, JSON documents and progress bars."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ftuner.models import Model
    from ftuner.runtime.model import TensorSpec


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def console() -> Console:
    """A console for results. A new one each time, because tests replace stdout."""
    from rich.console import Console

    return Console()


def progress_console() -> Console:
    """A console for progress and errors, on stderr."""
    from rich.console import Console

    return Console(stderr=True)


def show_table(out: Console, table: Table) -> None:
    """Print a table. Its title and caption are as wide as the terminal; rich would wrap them to the
    width of the table."""
    title, caption = table.title, table.caption
    table.title = table.caption = None
    if title is not None:
        out.print(title, style="table.title", highlight=False)
    out.print(table)
    if caption is not None:
        out.print(caption, style="table.caption", highlight=False)


def shape_text(shape: Sequence[int | str]) -> str:
    """A shape as options give it: `1x77`."""
    return "x".join(map(str, shape))


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on stderr while work lasts; yields a function of (what, done, total)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    out = progress_console()
    # A file or pipe would be left with an empty line.
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield show


LEAST_SAMPLES = 5
MOST_SAMPLES = 101
SAMPLING_S = 0.25
"""Duration of sampling, within the limits above."""


def read_specs(path: Path) -> list[TensorSpec]:
    """The inputs of a model file."""
    from ftuner.runtime.saved.container import is_saved

    if is_saved(path):
        from ftuner.inference import load

        return load(path).inputs
    from ftuner.cli.arrays import specs_of
    from ftuner.frontends.onnx.importer import read_model

    return specs_of(read_model(path))


def loaded(
    path: Path, threads: int | None, device: str = "cpu", dtype: str | None = None,
    append_in_place: bool = False, precision: str = "float32",
) -> tuple[Model, float]:  # fmt: skip
    """A model compiled for this machine, and the seconds that took."""
    from ftuner.inference import load

    began = time.perf_counter()
    with shown_progress("compile") as show:
        model = load(
            path, threads=threads, progress=show, device=device, dtype=dtype,
            append_in_place=append_in_place, precision=precision,
        )  # fmt: skip
    return model, time.perf_counter() - began


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sampled(call: Callable[[], object]) -> list[float]:
    """Seconds of single calls, after one that is not timed."""
    call()
    samples: list[float] = []
    while len(samples) < LEAST_SAMPLES or (
        sum(samples) < SAMPLING_S and len(samples) < MOST_SAMPLES
    ):
        samples.append(seconds_of(call))
    return samples
