"""Files of the zoo: networks with seeded weights, exported once and kept in the user's cache.

Beside each file are inputs and what torch itself computes from them, so that a later run needs
neither torch nor `transformers`.
"""

import importlib
import importlib.metadata
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from benchmarks.zoo.architecture import KEPT, SHAPES, Architecture, Array, Feeds, Size

SEED = 0
SPREAD = 0.1
"""Of biases, of the scales of norms about one, and of parameters that no layer is known of."""
EMBEDDED = 0.5
"""Standard deviation of the elements of embeddings."""
FILES = platformdirs.user_cache_path("ftuner-benchmarks") / "zoo"
"""The folder of all files."""
MAKERS = ("torch", "transformers", "onnxscript")
"""Packages that a file depends on."""


class ExportError(Exception):
    """The exporter, or the network itself, cannot make a file."""


@dataclass(frozen=True)
class Exported:
    """A folder with a file, and one with inputs and torch's outputs at each shape."""

    folder: Path
    arrays: Path
    """Inputs and torch's outputs. Variants of a file share them."""
    half: bool = False
    """The file computes in float16."""
    half_ends: bool = False
    """Its floating-point inputs and outputs are in float16; those in `arrays` are in float32."""

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    def feeds(self, shape: int) -> Feeds:
        return self._numbered(f"feeds-{shape}.npz")

    def wanted(self, shape: int) -> list[Array]:
        """Torch's outputs, in the order of the file's."""
        return list(self._numbered(f"torch-{shape}.npz").values())

    def _numbered(self, name: str) -> Feeds:
        with np.load(self.arrays / name) as archive:
            found = dict(archive)
        if not self.half_ends:
            return found
        return {
            name: x.astype(np.float16) if x.dtype == np.float32 else x for name, x in found.items()
        }


def exported(row: Architecture, size: Size) -> Exported:
    """The file of an architecture, from the cache or made now.

    Raises:
        ExportError: it cannot be made; the reason is cached, too.
    """
    folder = kept(size.name, key(row, size, MAKERS), lambda made: export(row, size, made))
    return Exported(folder, folder)


def key(row: Architecture, size: Size, makers: Sequence[str]) -> str:
    """The name of the folder of a row, by all that the files in it depend on."""
    versions = {name: importlib.metadata.version(name) for name in makers}
    return f"{row.name}-{row.digest(size, versions)}"


def kept(group: str, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the user's cache, which `make` fills if there is none of that name yet.

    Raises:
        ExportError: it cannot be made; the reason is cached, too.
    """
    root = FILES / group
    folder = root / name
    refused = folder / "refused.json"
    if not folder.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as place:
            made = Path(place) / "made"
            made.mkdir()
            try:
                make(made)
            except Exception as error:  # Exporters raise whatever they meet.
                shutil.rmtree(made)
                made.mkdir()
                (made / refused.name).write_text(json.dumps(reason(error)))
            try:
                made.rename(folder)
            except OSError:  # Another process may have made it meanwhile.
                if not folder.exists():
                    raise
    if refused.exists():
        raise ExportError(json.loads(refused.read_text()))
    return folder


def export(row: Architecture, size: Size, folder: Path) -> None:
    """Build a network, write its file, and what it computes at each shape."""
    torch = importlib.import_module("torch")
    network = built(row, size)
    past = _past_shapes(row, network)
    program = write(row, network, Exported(folder, folder).model)
    static = {  # What the exporter kept as it was.
        (value.name, axis): extent
        for value in program.model.graph.inputs
        for axis, extent in enumerate(value.shape)
        if isinstance(extent, int)
    }
    wrapped = _wrapped(row, network, len(past))
    with torch.no_grad():
        for shape in range(SHAPES):
            feeds = _feeds(row, past, shape, static)
            found = wrapped(*map(torch.from_numpy, feeds.values()))
            np.savez(folder / f"feeds-{shape}.npz", **feeds)
            arrays = {f"{n:03}": x.numpy() for n, x in enumerate(found)}
            np.savez(folder / f"torch-{shape}.npz", **arrays)


def write(row: Architecture, network: Any, path: Path, **options: Any) -> Any:
    """Write the file of a network by torch's exporter, and return what the exporter does. `options`
    are the exporter's. With `dynamo=False` it is the older one, which traces a call."""
    torch = importlib.import_module("torch")
    past = _past_shapes(row, network)
    feeds = _feeds(row, past, KEPT)
    arrays = [torch.from_numpy(x) for x in feeds.values()]
    arrays = [x.to(network.dtype) if x.is_floating_point() else x for x in arrays]
    dynamic = {
        name: {axis: dim for axis, dim in enumerate(given.dims) if isinstance(dim, str)}
        for name, given in row.inputs.items()
    } | {f"past_{n}": {0: "batch", 2: "past"} for n in range(len(past))}
    wrapped = _wrapped(row, network, len(past))
    options = {"input_names": list(feeds), "verbose": False} | options
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not options.get("dynamo", True):
            return torch.onnx.export(
                wrapped, tuple(arrays), str(path), dynamic_axes=dynamic, **options
            )  # fmt: skip
        shapes = [dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in dynamic.values()]
        program = torch.onnx.export(
            wrapped, tuple(arrays), dynamic_shapes=(tuple(shapes),), **options
        )  # fmt: skip
        program.save(str(path))
        return program


def built(row: Architecture, size: Size) -> Any:
    """The network with seeded weights, such that activations keep their size."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(SEED)
    config = getattr(transformers, row.config)(**row.fields(size))
    network = getattr(transformers, row.model)(config).eval()
    if network._can_set_experts_implementation():
        # Of the implementations of a mixture of experts, the one that exporters know.
        network.set_experts_implementation("batched_mm")
    layers = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    for module in network.modules():
        turned = (
            type(module).__name__ == "Conv1D"
        )  # A product with its weight as (inputs, outputs).
        for weight in module.parameters(recurse=False):
            weight.requires_grad_(False)
            if not weight.is_floating_point():
                continue
            noise = torch.randn_like(weight)
            if weight.dim() > 1 and (turned or isinstance(module, layers)):
                inputs = weight.shape[0] if turned else weight[0].numel()
                weight.copy_(noise / inputs**0.5)
            elif isinstance(module, torch.nn.Embedding):
                weight.copy_(noise * EMBEDDED)
            else:
                weight.add_(SPREAD * noise)
    return network


def _wrapped(row: Architecture, network: Any, past: int) -> Any:
    """A module from arrays in order to outputs in order."""
    torch = importlib.import_module("torch")

    class Wrapped(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *arrays: Any) -> tuple[Any, ...]:
            given = dict(zip(row.inputs, arrays, strict=False)) | row.given
            if past:
                given["past_key_values"] = _cache(network.config, arrays[-past:])
                given["use_cache"] = True
            found = network(**given)
            kept = [getattr(found, name) for name in row.outputs]
            if past:
                kept += [x for layer in found.past_key_values.layers for x in _held(layer)]
            return tuple(kept)

    return Wrapped().eval()


def _cache(config: Any, arrays: Sequence[Any]) -> Any:
    """A cache of `transformers` that holds the keys and values of each layer."""
    transformers = importlib.import_module("transformers")
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    return transformers.DynamicCache(pairs, config=config)


def _held(layer: Any) -> tuple[Any, Any]:
    return layer.keys, layer.values


def _past_shapes(row: Architecture, network: Any) -> list[tuple[int, int, int]]:
    """Heads, tokens and depth of the keys and the values of each layer, as a first run has them;
    the number of tokens is the one that files are exported with."""
    if not row.past:
        return []
    torch = importlib.import_module("torch")
    tokens = row.extents(KEPT)["past"]
    with torch.no_grad():
        found = network(input_ids=torch.ones(1, tokens, dtype=torch.int64), use_cache=True)
    return [
        (x.shape[1], x.shape[2], x.shape[3])
        for layer in found.past_key_values.layers
        for x in _held(layer)
    ]


def _feeds(
    row: Architecture, past: Sequence[tuple[int, int, int]], shape: int,
    static: Mapping[tuple[str, int], int] | None = None,
) -> Feeds:  # fmt: skip
    """Inputs at one of the shapes; dims in `static` have the extent that they have there."""
    extents = dict(row.extents(shape))
    for (name, axis), extent in (static or {}).items():
        dim: int | str = 0
        if name in row.inputs:
            dim = row.inputs[name].dims[axis]
        elif axis in (0, 2):
            dim = ("batch", "", "past")[axis]
        if isinstance(dim, str) and "+" not in dim:
            extents[dim] = extent
    feeds = row.feeds(extents, shape + 1)
    rng = np.random.default_rng(shape + 1)
    for number, (heads, _, depth) in enumerate(past):
        size = (extents["batch"], heads, extents["past"], depth)
        feeds[f"past_{number}"] = rng.standard_normal(size, np.float32)
    return feeds


def reason(error: BaseException) -> str:
    """The first line of the innermost cause; what an ExportError says already."""
    while error.__cause__ is not None and not isinstance(error, ExportError):
        error = error.__cause__
    if isinstance(error, ExportError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
