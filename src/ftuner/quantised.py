"""Static quantisation: products and convolutions of a model by integers of 8 bits.

Ranges of activations come from runs on samples. The result is an ONNX model with pairs of
QuantizeLinear and DequantizeLinear, which other engines read, too. A weight has levels of int8 with
a scale for each output channel, an activation levels of uint8 with one scale and zero point.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, count
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from ftuner.core.frozen import dataclass
from ftuner.errors import ConfigurationError, GraphError, InputError
from ftuner.frontends.onnx.reading import domain_of, nodes_of, whole
from ftuner.graph.ir import Array
from ftuner.inference import load
from ftuner.runtime.shown_progress import Progress, shown

if TYPE_CHECKING:
    import onnx

__all__ = ["Quantized", "quantize"]

RANGES = ("minmax", "percentile", "mse")
PERCENTILE = 99.99
"""Elements of 100 within the range that `percentile` chooses."""
LEAST_OPSET = 13
"""The first with a scale for each channel."""
LEVELS = 255
WEIGHT_LEVELS = 127
BINS = 8192
"""Of a histogram between the least and the greatest element: 32 for each level, so that a range
down to an eighth of the whole still has four for each."""
FRACTIONS = np.linspace(0.125, 1.0, 57)
"""Of the whole range, those whose error `mse` compares."""
DEQUANTIZE = "DequantizeLinear"
CHANNEL_AXES = {"Conv": 0, "MatMul": 1, "Gemm": 1}
"""The axis of a weight's output channels. A transposed weight of Gemm has the other."""

_LOG = logging.getLogger(__name__)
Samples = Iterable[Mapping[str, Array]]


@dataclass(frozen=True)
class Quantized:
    """A quantised model."""

    model: onnx.ModelProto
    layers: tuple[str, ...]
    """The layers that are computed in integers."""
    left: Mapping[str, str]
    """The products and convolutions that stay as they were, each with the reason."""


@dataclass(frozen=True)
class _Layer:
    """A node whose first input is an activation and whose second is a constant weight."""

    name: str
    node: Any
    weight: Array
    axis: int
    """The weight's axis of output channels."""

    @property
    def activation(self) -> str:
        return str(self.node.input[0])


def quantize(
    model: str | PathLike[str] | bytes | onnx.ModelProto, samples: Samples,
    output: str | PathLike[str] | None = None, *, keep: Sequence[str] = (),
    ranges: str = "minmax", percentile: float = PERCENTILE,
    threads: SupportsIndex | None = None, progress: Progress | None = None,
) -> Quantized:  # fmt: skip
    """Quantise products and convolutions of an ONNX model by the ranges that samples give.

    MatMul, Gemm and Conv (of one group) with constant float32 weights are quantised; subgraphs, and
    all other operators, stay as they are. An activation that a convolution reads is read as levels
    by all of its readers, so that images are in memory once, with 8 bits.

    Args:
        model: what `load` takes, in ONNX's format, of opset 13 or later.
        samples: inputs of runs, each a mapping from names to arrays. They are gone through once,
            with `percentile` and `mse` kept and gone through twice.
        output: a file to write the model to.
        keep: names of nodes, or of their first outputs, to leave in floating point.
        ranges: `minmax`, from the least to the greatest element; `percentile`, without the most
            extreme ones; `mse`, the part of the whole range with the least square error.
        percentile: the elements of 100 that `percentile` has within the range, above 50.
        threads, progress: as of `load`.

    Raises:
        ConfigurationError: `keep` has an unknown name; `ranges` or `percentile` is none of these;
            an older opset; the extra `onnx` is not installed; `output` cannot be written.
        InputError: no samples; an activation that is empty in all of them, or not finite.
        GraphError: no layer can be quantised. Else as `load` and `Model.run`.
    """
    if ranges not in RANGES:
        raise ConfigurationError(f"ranges is {ranges!r}; expected {', '.join(RANGES)}")
    if not 50 < percentile <= 100:
        raise ConfigurationError(f"percentile is {percentile}; expected more than 50, at most 100")
    proto = whole(model)
    opset = max((x.version for x in proto.opset_import if not domain_of(x.domain)), default=0)
    if opset < LEAST_OPSET:
        raise ConfigurationError(
            f"the model is of opset {opset}; scales of channels need {LEAST_OPSET}: convert it "
            "with onnx.version_converter"
        )
    layers, left = _layers(proto.graph, keep)
    if not layers:
        why = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        raise GraphError(f"no product or convolution can be quantised. {why}")
    found = _ranges(
        proto, list(dict.fromkeys(x.activation for x in layers)), samples, ranges, percentile,
        threads, progress,
    )  # fmt: skip
    proto.graph.CopyFrom(_quantised(proto.graph, layers, found))
    if output is not None:
        try:
            import_module("onnx").save(proto, fspath(output))
        except OSError as error:
            raise ConfigurationError(f"cannot write {output}: {error.strerror}") from error
    _LOG.info("%d layers quantised, %d left", len(layers), len(left))
    return Quantized(proto, tuple(x.name for x in layers), left)


# Layers.


def _layers(graph: Any, keep: Sequence[str]) -> tuple[list[_Layer], dict[str, str]]:
    """The layers that can be quantised, and why the others cannot."""
    known = {name for node in graph.node for name in (node.name, *node.output[:1]) if name}
    if unknown := [name for name in keep if name not in known]:
        raise ConfigurationError(f"no node {', '.join(unknown)} to keep")
    weights = _constants(graph)
    layers, left = [], {}
    for node in graph.node:
        if node.op_type not in CHANNEL_AXES or domain_of(node.domain):
            continue
        name = node.name or node.output[0]
        attributes = {x.name: x for x in node.attribute}
        weight = weights.get(node.input[1])
        groups = attributes["group"].i if "group" in attributes else 1
        if {*keep} & {node.name, node.output[0]}:
            left[name] = "kept"
        elif weight is None or node.input[0] in weights:
            left[name] = "not an activation by a constant weight"
        elif weight.dtype != np.float32 or not np.isfinite(weight).all():
            left[name] = f"weights of {weight.dtype} or not finite; expected float32"
        elif groups != 1:
            left[name] = f"{groups} groups"
        elif not weight.size or (node.op_type == "MatMul" and weight.ndim != 2):
            left[name] = f"a weight of {list(weight.shape)}; expected a matrix"
        else:
            axis = CHANNEL_AXES[node.op_type]
            if "transB" in attributes and attributes["transB"].i:
                axis = 0
            layers.append(_Layer(name, node, weight, axis))
    return layers, left


def _constants(graph: Any) -> dict[str, Array]:
    """Constants of more than one axis by name, but for those that a caller may replace."""
    arrays = import_module("onnx.numpy_helper")
    tensors = {x.name: x for x in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    given = {x.name for x in graph.input}
    return {
        name: arrays.to_array(x)
        for name, x in tensors.items()
        if name not in given and len(x.dims) > 1
    }


# Ranges.


def _ranges(
    proto: Any, names: Sequence[str], samples: Samples, choice: str, percentile: float,
    threads: SupportsIndex | None, progress: Progress | None,
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """The least and greatest number that levels of each activation stand for."""
    observed = import_module("onnx").ModelProto()
    observed.CopyFrom(proto)
    del observed.graph.output[:]
    inputs = {x.name for x in proto.graph.input}
    inner = [name for name in names if name not in inputs]
    observed.graph.output.extend(
        map(import_module("onnx").helper.make_empty_tensor_value_info, inner)
    )
    if choice != "minmax":
        samples = list(samples)
    with shown(progress) as show:
        run = load(observed, threads=threads, progress=show).run if inner else lambda _: ()

        def activations() -> Iterator[tuple[str, Array]]:
            for i, feeds in enumerate(samples):
                show("samples", i, i + 1)
                yield from zip(inner, run(feeds), strict=True)
                yield from ((n, np.asarray(feeds[n])) for n in names if n in inputs)

        ranges = _minima_and_maxima(activations())
        if missing := [name for name in names if name not in ranges]:
            raise InputError(
                f"no sample has elements of {', '.join(missing)}; give some, or keep it"
            )
        if choice == "minmax":
            return ranges
        counts = {name: np.zeros(BINS, np.int64) for name in names}
        for name, x in activations():
            counts[name] += np.histogram(x, BINS, ranges[name])[0]
    if choice == "mse":
        return {name: _least_error(counts[name], *ranges[name]) for name in names}
    return {name: _within(counts[name], *ranges[name], percentile / 100) for name in names}


def _minima_and_maxima(activations: Iterable[tuple[str, Array]]) -> dict[str, tuple[float, float]]:
    """The range of each activation, which includes zero."""
    found: dict[str, tuple[float, float]] = {}
    for name, x in activations:
        if x.size:
            low, high = found.get(name, (0.0, 0.0))
            found[name] = min(low, float(x.min())), max(high, float(x.max()))
            # NaN fails both comparisons above, and is the result of min and max.
            if not np.isfinite([x.min(), x.max()]).all():
                raise InputError(f"activation {name} is not finite; keep the layers that read it")
    return found


def _within(counts: Array, low: float, high: float, part: float) -> tuple[float, float]:
    """The range without the outermost elements: half of the others on each side."""
    below = np.cumsum(counts) / counts.sum()
    edges = np.linspace(low, high, BINS + 1)
    first, last = np.searchsorted(below, [(1 - part) / 2, (1 + part) / 2])
    return min(float(edges[first]), 0.0), max(float(edges[min(last, BINS - 1) + 1]), 0.0)


def _least_error(counts: Array, low: float, high: float) -> tuple[float, float]:
    """The part of the range whose levels have the least square error."""
    edges = np.linspace(low, high, BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2

    def error(part: float) -> float:
        scale, zero = _scale_and_zero(low * part, high * part)
        levels = np.clip(np.rint(centres / scale) + zero, 0, LEVELS)
        return float(counts @ ((levels - zero) * scale - centres) ** 2)

    best = float(min(FRACTIONS, key=error))
    return low * best, high * best


def _scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """The scale and zero point of levels of uint8. Zeros alone have the scale 1."""
    scale = float(np.float32((high - low) / LEVELS)) or 1.0
    return scale, round(-low / scale)


# The quantised graph.


def _quantised(
    graph: Any, layers: Sequence[_Layer], ranges: Mapping[str, tuple[float, float]]
) -> Any:
    """The graph whose layers read levels of their activations and weights. The other is used up."""
    helper = import_module("onnx.helper")
    to_tensor = import_module("onnx.numpy_helper").from_array
    used = {x.name for x in (*graph.input, *graph.initializer)}
    used |= {name for node in nodes_of(graph.node) for name in (node.name, *node.output)}

    def new(name: str) -> str:
        names = chain([name], (f"{name}_{i}" for i in count()))
        found = next(x for x in names if x not in used)
        used.add(found)
        return found

    def stored(name: str, array: Array | np.generic) -> str:
        found = new(name)
        graph.initializer.append(to_tensor(np.asarray(array), found))
        return found

    def converted(op: str, name: str, parameters: Sequence[str], to: str, **axis: int) -> Any:
        output = new(to)
        return helper.make_node(op, [name, *parameters], [output], output, **axis)

    weights: dict[tuple[str, int], str] = {}
    activations: dict[str, str] = {}
    before: dict[int, list[Any]] = {}
    everywhere = {x.activation for x in layers if x.node.op_type == "Conv"}
    chosen = {x.node.output[0]: x for x in layers}
    for place, node in enumerate(graph.node):
        layer = chosen.get(node.output[0]) if node.output else None
        for position, name in enumerate(node.input):
            if name in everywhere or (layer is not None and not position):
                if name not in activations:
                    scale, zero = _scale_and_zero(*ranges[name])
                    given = [
                        stored(f"{name}_scale", np.float32(scale)),
                        stored(f"{name}_zero", np.uint8(zero)),
                    ]
                    pair = [converted("QuantizeLinear", name, given, f"{name}_levels")]
                    pair.append(converted(DEQUANTIZE, pair[0].output[0], given, f"{name}_again"))
                    before.setdefault(place, []).extend(pair)
                    activations[name] = pair[1].output[0]
                node.input[position] = activations[name]
        if layer is None:
            continue
        key = (node.input[1], layer.axis)
        if key not in weights:
            others = tuple(i for i in range(layer.weight.ndim) if i != layer.axis)
            scale = np.abs(layer.weight).max(others, keepdims=True) / np.float32(WEIGHT_LEVELS)
            # Normal numbers alone: the quotient by another may overflow.
            scale[scale < np.finfo(np.float32).tiny] = 1
            levels = stored(f"{key[0]}_levels", np.rint(layer.weight / scale).astype(np.int8))
            given = [stored(f"{key[0]}_scale", scale.ravel())]
            made = converted(DEQUANTIZE, levels, given, f"{key[0]}_again", axis=layer.axis)
            before.setdefault(place, []).append(made)
            weights[key] = made.output[0]
        node.input[1] = weights[key]
    read = {name for node in nodes_of(graph.node) for name in node.input}
    read |= {x.name for x in graph.output} | {
        name for x in before.values() for y in x for name in y.input
    }
    result = type(graph)()
    result.CopyFrom(graph)
    for field in ("node", "initializer"):
        result.ClearField(field)
    result.initializer.extend(x for x in graph.initializer if x.name in read)
    for place, node in enumerate(graph.node):
        result.node.extend((*before.get(place, ()), node))
    return result
