"""`python -m benchmarks.torch_modules`: modules of PyTorch, against its compilers and against their
own ONNX files.

The engines take turns (`ftuner_tools.timing`), each with weights of its own. Each case has a
process of its own for each thread count, in which an engine's time to its first result is measured,
too: compilers have no caches from before, unless `--warm` is given.
"""

import importlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.utils import _pytree as pytree

import ftuner
from benchmarks import machine
from benchmarks.measure import header
from benchmarks.results import compared, save
from benchmarks.run import CrashedError, command_of, console, result_apart, results_here
from benchmarks.torch_module_cases import CASES, Arguments, Case, Shape
from ftuner_tools.timing import ATOL, RTOL, SUBJECT, Settings, geomean, measure

Run = Callable[..., Any]
KIND = "torch-modules"
COPIES = 2
"""Inputs that calls take in turns."""


class UnavailableError(Exception):
    """An engine that is not installed, or that cannot compile here."""


def _compiled(module: torch.nn.Module, case: Case) -> Run:
    return ftuner.compile(
        module, case.inputs(module, case.example), dynamic_shapes=case.dynamic_shapes,
        threads=_threads(),
    )  # fmt: skip


def _backend(name: str) -> Callable[[torch.nn.Module, Case], Run]:
    def make(module: torch.nn.Module, case: Case) -> Run:
        if name == "inductor" and shutil.which("g++") is None:
            raise UnavailableError("inductor needs g++")
        if name == "openvino":
            try:
                importlib.import_module("openvino.torch")
            except ImportError as error:
                raise UnavailableError(str(error)) from None
        # The others take their number of threads from torch.
        options = {"threads": _threads()} if name == "ftuner" else None
        return torch.compile(module, backend=name, dynamic=True, options=options)

    return make


def _from_file(module: torch.nn.Module, case: Case) -> Run:
    """The model of the file that torch's exporter writes, called as the module is."""
    given = dict(case.inputs(module, case.example))
    tensors = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    if any(not isinstance(x, (torch.Tensor, bool)) for x in given.values()):
        raise UnavailableError("the exporter takes no caches")
    shapes = case.dynamic_shapes or {
        name: dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) if name in tensors else None
        for name, x in given.items()
    }
    program = torch.onnx.export(module, kwargs=given, dynamic_shapes=shapes, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        program.save(str(path))
        model = ftuner.load(path, threads=_threads())
    names = [spec.name for spec in model.inputs]
    return lambda **arguments: model.run({name: arguments[name] for name in names})


def _eager(module: torch.nn.Module, case: Case) -> Run:
    return module


ENGINES: Mapping[str, Callable[[torch.nn.Module, Case], Run]] = {
    SUBJECT: _compiled,
    "ftuner-backend": _backend("ftuner"),
    "ftuner-onnx": _from_file,
    "eager": _eager,
    "inductor": _backend("inductor"),
    "openvino": _backend("openvino"),
}


def _threads() -> int:
    return torch.get_num_threads()


def _tensors(result: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def _same(result: Any, wanted: Any) -> bool:
    """Whether floats agree. A file gives its outputs in another structure, but in this order."""
    pairs = zip(_tensors(result), _tensors(wanted), strict=False)
    return all(
        x.shape == y.shape and torch.allclose(x.float(), y.float(), rtol=RTOL, atol=ATOL * scale)
        for x, y in pairs
        for scale in [max(1.0, float(y.float().std()) if y.numel() > 1 else 1.0)]
    )


def measured(case: Case, engines: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The times of a case, as JSON: of each engine's first result, and of each shape."""
    reference = case.module()
    runs: dict[str, Run] = {}
    first: dict[str, float] = {}
    refused: dict[str, str] = {}
    for name, make in engines.items():
        module = case.module()
        given = case.inputs(module, case.example)
        began = time.perf_counter()
        try:
            runs[name] = make(module, case)
            runs[name](**given)
        except Exception as error:  # Compilers raise whatever they meet.
            refused[name] = f"{type(error).__name__}: {error}"[:300]
            runs.pop(name, None)
            continue
        first[name] = time.perf_counter() - began
    found = [_at(case, shape, reference, runs, settings) for shape in case.shapes]
    return {"first_s": first, "refused": refused, "cases": found}


def _at(
    case: Case, shape: Shape, reference: torch.nn.Module, runs: Mapping[str, Run],
    settings: Settings,
) -> dict[str, Any]:  # fmt: skip
    """The times at one shape."""

    def given(copy: int) -> Arguments:
        torch.manual_seed(copy)
        return case.inputs(reference, shape)

    engines: dict[str, Any] = {}
    calls: dict[str, list[Callable[[], object]]] = {}
    wanted = reference(**given(0))
    for name, run in runs.items():
        try:
            right = _same(run(**given(0)), wanted)
        except Exception as error:
            engines[name] = {"refused": f"{type(error).__name__}: {error}"[:300]}
            continue
        if not right:
            engines[name] = {"refused": "wrong output"}
            continue
        calls[name] = [_call(case, run, partial(given, copy)) for copy in range(COPIES)]
    timings = measure(calls, settings, random.Random(0))
    engines |= {name: timing.to_json(timings.get(SUBJECT)) for name, timing in timings.items()}
    label = "x".join(map(str, shape))
    return {"label": label, **compared(engines, SUBJECT)}


def _call(case: Case, run: Run, given: Callable[[], Arguments]) -> Callable[[], object]:
    """A call with some arguments. A cache that a module updates grows from call to call: each call
    has a fresh one, whose making counts for all engines alike."""
    if case.kind == "decode":
        return lambda: run(**given())
    inputs = given()
    return lambda: run(**inputs)


def _apart(name: str, engines: str, threads: int, budget: float, warm: bool) -> dict[str, Any]:
    """The result of one case, found in a process of its own."""
    command = command_of(
        "benchmarks.torch_modules", worker=name, engines=engines, threads=threads, budget=budget
    )
    with tempfile.TemporaryDirectory() as folder:
        fresh = {} if warm else {"TORCHINDUCTOR_CACHE_DIR": folder, "FTUNER_CACHE_DIR": folder}
        try:
            found: dict[str, Any] = result_apart(command, threads, **fresh)
        except CrashedError as error:
            found = {"crashed": str(error)}
    return found


def main(
    only: Annotated[str, typer.Option(help="Cases to keep, by name.")] = "",
    engines: Annotated[str, typer.Option(help=f"Among {', '.join(ENGINES)}.")] = ",".join(ENGINES),
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    budget: Annotated[float, typer.Option(help="Seconds for each shape and engine.")] = 0.3,
    warm: Annotated[bool, typer.Option(help="Keep the caches of compilers.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure all cases, print and save the results as JSON."""
    kept = only.split(",") if only else list(CASES)
    unknown = {*kept} - {*CASES} | {*engines.split(",")} - {*ENGINES}
    if unknown:
        raise typer.BadParameter(f"unknown {sorted(unknown)}")
    settings = Settings(budget_s_per_engine=budget)
    if worker:
        torch.set_num_threads(int(threads))
        chosen = {name: ENGINES[name] for name in engines.split(",")}
        with torch.no_grad():
            print(json.dumps(measured(CASES[worker], chosen, settings)))
        return
    for count in map(int, threads.split(",")):
        path = (
            results or results_here()
        ).resolve() / f"{KIND}-{'warm' if warm else 'cold'}-t{count}.json"
        document = header(KIND, "warm" if warm else "cold", count, machine.describe())
        document |= {"settings": asdict(settings), "results": []}
        for name in kept:
            found = {"label": name, "kind": CASES[name].kind}
            found |= _apart(name, engines, count, budget, warm)
            document["results"].append(found)
            save(document, path)
            _show(found, count)


def _show(found: Mapping[str, Any], threads: int) -> None:
    """Print the median ratios of a case: peer's time over ftuner's."""
    parts = []
    for name in ENGINES:
        pairs = [case["engines"] for case in found.get("cases", ())]
        ratios = [
            e[name]["median_s"] / e[SUBJECT]["median_s"] for e in pairs
            if "median_s" in e.get(name, {}) and "median_s" in e.get(SUBJECT, {})
        ]  # fmt: skip
        first = found.get("first_s", {}).get(name)
        if first is not None and ratios:
            parts.append(f"{name} {geomean(ratios):.2f} (first {first:.1f} s)")
    console.print(f"{found['label']} t{threads}: {', '.join(parts) or found}", highlight=False)
    for name, why in found.get("refused", {}).items():
        console.print(f"  {name}: {why}", highlight=False, markup=False)


if __name__ == "__main__":
    typer.run(main)
