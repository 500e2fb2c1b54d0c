"""`python -m benchmarks.torch_zoo`: published architectures, straight from `transformers`.

Each is compiled once by `ftuner.compile`, with the inputs that its file of `benchmarks.zoo` is
exported with, and compared with PyTorch at other shapes; or by `torch.compile`, with `--dynamo`.
Nothing is timed but compiling.
"""

import importlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.utils import _pytree as pytree

import ftuner
from benchmarks import machine
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import console, results_here
from benchmarks.zoo.architecture import KEPT, SHAPES, SIZES, Architecture
from benchmarks.zoo.checking import REFUSED, RIGHT, WRONG, difference
from benchmarks.zoo.exporting import built
from benchmarks.zoo.table import ARCHITECTURES
from ftuner.torch import backend, explain


def arguments(
    row: Architecture, network: Any, shape: int, constant: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The arguments of a call at one of the shapes. `constant`: dims with one extent alone."""
    extents = {**row.extents(shape), **(constant or {})}
    given: dict[str, Any] = {
        name: torch.from_numpy(x) for name, x in row.feeds(extents, shape + 1).items()
    }
    if row.past:
        tokens = torch.ones(extents["batch"], extents["past"], dtype=torch.int64)
        found = network(input_ids=tokens, use_cache=True).past_key_values
        generator = torch.Generator().manual_seed(shape + 1)
        pairs = [
            [torch.randn(x.shape, generator=generator) for x in (layer.keys, layer.values)]
            for layer in found.layers
        ]
        cache = importlib.import_module("transformers").DynamicCache
        given |= {"past_key_values": cache(pairs, config=network.config), "use_cache": True}
    # Some networks draw numbers in a call: those that are compared draw the same.
    torch.manual_seed(0)
    return given | row.given


def constant_dims(row: Architecture, model: ftuner.Model) -> dict[str, int]:
    """The extents of dims that torch has made constants of, as the network computes with them."""
    shapes = {spec.name: spec.shape for spec in model.inputs}
    return {
        dim: extent
        for name, given in row.inputs.items()
        for dim, extent in zip(given.dims, shapes.get(name, ()), strict=False)
        if isinstance(dim, str) and isinstance(extent, int)
    }


def expected(network: Any, given: Mapping[str, Any]) -> Any:
    """What PyTorch gives; None where it does not run the network at this shape."""
    try:
        return network(**given)
    except RuntimeError:
        return None


def checked(row: Architecture, size: str) -> dict[str, Any]:
    """The verdict on an architecture as JSON: `verdict`, `why`, `error`, `steps` and the seconds
    that compiling takes."""
    torch.manual_seed(0)
    network = built(row, SIZES[size])
    try:
        # The first call of some networks changes their parameters.
        network(**arguments(row, network, KEPT))
    except Exception as error:
        return {"verdict": "not run by torch", "why": f"{type(error).__name__}: {error}"}
    example = arguments(row, network, KEPT)
    began = time.perf_counter()
    try:
        model = ftuner.compile(network, example)
    except ftuner.FTunerError as error:
        return {"verdict": REFUSED, "why": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {
        "verdict": RIGHT, "why": "", "error": 0.0, "steps": len(model.steps),
        "compile_s": round(time.perf_counter() - began, 2), "constant": constant_dims(row, model),
    }  # fmt: skip
    for shape in range(SHAPES):
        # A cache is written to by the module.
        wanted = expected(network, arguments(row, network, shape, found["constant"]))
        if wanted is None:
            continue
        try:
            outputs = model(**arguments(row, network, shape, found["constant"]))
        except ftuner.FTunerError as error:
            why = f"{row.extents(shape)}: {type(error).__name__}: {error}"
            return found | {"verdict": REFUSED, "why": why}
        compare(found, outputs, wanted, row.extents(shape))
    return found


def compare(found: dict[str, Any], outputs: Any, wanted: Any, extents: Mapping[str, int]) -> None:
    """Note in a verdict how far outputs are apart, or that they are wrong."""
    if type(outputs) is not type(wanted):
        found |= {"verdict": WRONG, "why": f"{extents}: a {type(outputs).__name__}"}
        return
    own, other = (
        [x.numpy() for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        for result in (outputs, wanted)
    )
    why = difference(own, other) if len(own) == len(other) else f"{len(own)} outputs"
    if why:
        found |= {"verdict": WRONG, "why": f"{extents}: {why}"}
        return
    apart = [abs(x - y).max() for x, y in zip(own, other, strict=True) if x.size]
    found["error"] = max([found["error"], *map(float, apart)])


def checked_by_dynamo(row: Architecture, size: str) -> dict[str, Any]:
    """The verdict on an architecture by `torch.compile`: also the least `share` of operators that
    ftuner computes in a call, what is `left` to PyTorch, and the number of `graphs` that torch had
    traced after each shape."""
    torch.manual_seed(0)
    network = built(row, SIZES[size])
    network(**arguments(row, network, KEPT))
    traced = []

    def counting(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        traced.append(graph)
        return backend(graph, inputs)

    torch._dynamo.reset()
    run = torch.compile(network, backend=counting, dynamic=True)
    found: dict[str, Any] = {
        "verdict": RIGHT, "why": "", "error": 0.0, "share": 1.0, "left": {}, "graphs": [],
    }  # fmt: skip
    for shape in (KEPT, *range(SHAPES)):
        wanted = expected(network, arguments(row, network, shape))
        if wanted is None:
            continue
        outputs = []

        def call(outputs: list[Any] = outputs, **given: Any) -> None:
            outputs.append(run(**given))

        explained = explain(call, **arguments(row, network, shape))
        found["share"] = min(found["share"], explained.share)
        found["left"] |= explained.left
        found["graphs"].append(len(traced))
        compare(found, outputs[0], wanted, row.extents(shape))
    return found


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "small",
    only: Annotated[str, typer.Option(help="Architectures to keep, by name.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    dynamo: Annotated[bool, typer.Option(help="Whether torch.compile compiles.")] = False,
) -> None:
    """Check all architectures, print and save the results as JSON."""
    names = only.split(",") if only else list(ARCHITECTURES)
    kind, check = ("torch-zoo-dynamo", checked_by_dynamo) if dynamo else ("torch-zoo", checked)
    path = (results or results_here()).resolve() / f"{kind}-{size}.json"
    threads = torch.get_num_threads()
    document = header(kind, size, threads, machine.describe()) | {"results": []}
    for name in names:
        row = ARCHITECTURES[name]
        with torch.no_grad():
            found = {"label": name, "kind": row.kind}
            try:
                found |= check(row, size)
            except Exception as error:  # A network itself, or torch, raises anything.
                found |= {"verdict": "crashed", "why": f"{type(error).__name__}: {error}"}
        told = [f"{found[key]:.2g}" for key in ("error", "compile_s", "share") if key in found]
        line = f"{name:>24} {found['verdict']:>8} {' '.join(told):>12} {found['why'][:400]}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        document["results"].append(found)
        save(document, path)
    counts = Counter(found["verdict"] for found in document["results"])
    console.print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO)
    logging.getLogger("torch").setLevel(40)
    typer.run(main)
