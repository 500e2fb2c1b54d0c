"""What a graph should give, in float64, and how far a sound result may be from it.

A graph is evaluated by the NumPy references of its operators with float32 held in float64. Then it
is evaluated again, several times, with relative noise on what each node reads: of some unit
roundoffs, or of one and with results rounded to their type, so that differences vanish that are
below its precision. What the noise changes, rounding may change: a graph that magnifies small
errors gets a wide tolerance, and one that does not keeps a tight one. An integer or bool that the
noise changes is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tests.random_graphs.tensors import Array
from tests.wild_products import exact_products

from ftuner.core.dim import Symbolic
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF_DTYPES, DType
from ftuner.core.evaluation import evaluate
from ftuner.graph.arrays import converted, held_in, largest_finite
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.passes.halves import halves_in_float32
from ftuner.runtime.cpu.arrays import numpy_dtype
from ftuner.runtime.shapes.binding import bind, check

NOISE = {FLOAT32: 2.0**-20, FLOAT64: 2.0**-47}
"""Relative: 16 and 32 unit roundoffs."""
LEAST = {FLOAT32: 2.0**-126, FLOAT64: 2.0**-1022, FLOAT16: 2.0**-24, BFLOAT16: 2.0**-126}
"""Smallest normal numbers, below which rounding is absolute; of float16 the smallest number."""
ROUNDINGS, HALF_ROUNDINGS = 16, 2
"""Of results, beside what the noise tells. Half precision is rounded where it is stored only."""
FACTOR = 4.0
"""By which a result may be further off than the largest change that the noise made."""
REPEATS = 4
"""Every other one with results rounded to their type."""
ROUNDED_SCALE = 2.0**-4
"""Of the noise, where results are rounded too: about one unit roundoff."""
ROUGH_FACTOR, ROUGHLY = 256.0, 1e-4
"""Of the tolerance and of the largest element, where only the meaning of operators is compared:
peers add up and approximate in their own ways, and some compute float64 in float32."""
HALF_ROUGHLY = 4.0
"""Unit roundoffs of half precision that stand in place of the last, where a graph rounds to it:
peers compute in it, and round other sums."""
SIGNS, NUDGES = (-1.0, 1.0), (-1.0, 0.0, 1.0)
ROUGH_SHARE = 0.01
"""Of bools and whole numbers that may differ there: what rounding decides for a peer alone."""
SUMMED = 64
"""Elements of a sum from which on the noise on them grows, by the power 1.5 of their number N.
Where elements are repeated, each addition in their order errs to the same side by up to a unit
roundoff of the sum so far, N / 2 of the last one together; independent noise adds up to the root of
N only."""
MOVES = frozenset({
    "reshape", "transpose", "broadcast", "slice", "concat", "pad", "tile", "repeat",
    "gather", "gather_nd", "gather_elements", "where", "top_k", "non_zero", "unique", "write_rows",
})  # fmt: skip
"""Operators that only move elements: their results are as exact as their operands."""
GATHERS = frozenset({"gather", "gather_elements", "gather_nd"})
SELECTIONS = frozenset({
    "maximum", "minimum", "absolute", "negative", "sign", "floor", "ceil", "rint", "isnan", "isinf",
    "equal", "less", "less_equal", "arg_reduce", "bit_cast", "random_stream", "random_uniform",
    "random_key", "round_float16", "round_bfloat16",
})  # fmt: skip
"""Operators that compute nothing that is rounded, or round in one way: exact operands are read as
they are."""
LIMITED = frozenset({"gelu", "gelu_tanh", "silu", "swish", "mish", "hard_swish"})
"""Functions that give their limit at minus infinity, where a product of it and zero is NaN."""
ORDERED = frozenset({"arg_reduce", "top_k"})
"""Operators for which NaN is the largest number; peers pass it over."""
CLOSE = 1e-5
"""Relative and absolute."""


@dataclass(frozen=True)
class Expected:
    """What one output should be."""

    value: Array
    """In float64 if the output is a float."""
    dtype: np.dtype[Any]
    tolerance: Array | None
    """Of floats."""
    compared: Array
    """Which elements are compared."""


@dataclass(frozen=True)
class Truth:
    """What a run should give."""

    outputs: list[Expected]
    empty: bool
    """Whether some tensor has no elements."""


class UnstableError(Exception):
    """Noise decides the shape of an output, or whether the graph can be run at all."""


def _wide(x: Any, dtype: DType) -> Array:
    """An array of an element type, floats in float64."""
    if dtype.kind == "float":
        return np.asarray(x).astype(np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(held_in(dtype))


def _fitted(x: Array, dtype: DType, rounds: bool) -> Array:
    """Numbers beyond the largest of float32 as infinities, and rounded to it if asked for; rounded
    to half precision in any case."""
    if dtype.name in HALF_DTYPES:
        return converted(x, dtype).astype(np.float64)
    if dtype != FLOAT32:
        return x
    if rounds:
        with np.errstate(all="ignore"):
            return x.astype(np.float32).astype(np.float64)
    most = float(np.finfo(np.float32).max)
    return np.where(np.abs(x) > most * (1 + 2.0**-25), np.copysign(np.inf, x), x)


def wide_outputs(
    graph: Graph,
    feeds: Mapping[str, Array],
    random: np.random.Generator | None,
    scale: float = 1.0,
    rounds: bool = False,
    ours: bool = True,
) -> tuple[list[Array], bool]:
    """The outputs of a graph in float64, and whether some tensor on the way has no elements.
    `random`: of the noise; without it there is none. `rounds`: whether results are rounded to their
    type. `ours`: whether activations have limits at infinities, rather than NaN, NaN a place in
    orders, and erf the precision of its type: ONNX's evaluator computes it in float32.

    A wrong index selects any element, the same only for the same `random`.

    Raises:
        Exception: what a reference raises for inputs that do not fit.
    """
    if any(v.dtype.name in HALF_DTYPES for node in graph.nodes for v in node.outputs + node.inputs):
        # Numbers are rounded where the file rounds them, and nowhere else.
        graph = halves_in_float32(graph)
    symbols = bind(graph, [feeds[v.name].shape for v in graph.inputs])
    known = {v: _wide(feeds[v.name], v.dtype) for v in graph.inputs}
    inexact: set[Value] = set()
    wrong = np.random.default_rng(0) if random is None else random

    def array_of(value: Value) -> Array:
        found = known.get(value)
        if found is None:
            assert value.constant is not None
            found = known[value] = _wide(value.constant, value.dtype)
        return found

    def read(node: Node, value: Value) -> Array:
        x = array_of(value)
        if random is None or value.dtype not in NOISE:
            return x
        if _moves(node) and not (node.op == "top_k" and value in inexact):
            return x
        if value not in inexact and (node.op in SELECTIONS or _selects(node)):
            return x
        return _noisy(
            x, value.dtype, random, scale * max(_summed(node, x) / SUMMED, 1.0) ** 1.5, rounds
        )

    for node in graph.nodes:
        arrays = [read(node, v) for v in node.inputs]
        attributes = {
            name: partial(_run_within, v, random, scale, rounds, ours)
            if isinstance(v, Graph)
            else _bound(v, symbols)
            for name, v in node.attributes.items()
        }
        if node.op == "cast":
            results: Any = _cast(arrays[0], node, random)
        else:
            if node.op in ORDERED and not ours:
                arrays[0] = _without_nan(arrays[0])
            with np.errstate(all="ignore"):
                results = _results(node, arrays, attributes, wrong)
                if node.op == "erf" and not ours:
                    results = results.astype(np.float32).astype(np.float64)
                if node.op in LIMITED and not ours:
                    results = np.where(np.isinf(arrays[0]), np.nan, results)
                if random is not None and node.op == "softmax" and node.attributes["log"]:
                    # The sum of powers is one at least, and its logarithm off by what it is off.
                    signs = random.choice(SIGNS, results.shape)
                    results = results + signs * (NOISE[node.outputs[0].dtype] * scale)
                if random is not None and node.op == "recurrence":
                    # What 1 - z of a gate z is off by, however small the state.
                    unit = scale * node.outputs[0].dtype.unit_roundoff
                    results = [x + random.choice(SIGNS, x.shape) * unit for x in results]
        if len(node.outputs) == 1:
            results = (results,)
        rounded = not _moves(node) and node.op not in SELECTIONS and not _selects(node)
        rounded = rounded and not (node.op == "cast" and node.inputs[0].dtype not in NOISE)
        blurred = rounded or any(v in inexact for v in node.inputs)
        for value, result in zip(node.outputs, results, strict=True):
            known[value] = _fitted(_wide(result, value.dtype), value.dtype, rounds)
            if blurred and value.dtype.kind == "float":
                inexact.add(value)
        for name in node.binds:
            for value in node.outputs:
                for dim, extent in zip(value.shape, known[value].shape, strict=True):
                    if str(dim) == name:
                        symbols[name] = extent
            check(graph, symbols)
    outputs = [
        _noisy(array_of(v), v.dtype, random, scale, rounds)
        if v in inexact and v.dtype in NOISE and random is not None
        else array_of(v)
        for _, v in graph.outputs
    ]
    return outputs, any(x.size == 0 for x in known.values())


def _run_within(
    graph: Graph, random: np.random.Generator | None, scale: float, rounds: bool, ours: bool,
    arrays: Sequence[Array],
) -> list[Array]:  # fmt: skip
    """The outputs of a graph that a node runs."""
    feeds = {v.name: x for v, x in zip(graph.inputs, arrays, strict=True)}
    return wide_outputs(graph, feeds, random, scale, rounds, ours)[0]


def _results(
    node: Node, arrays: Sequence[Array], attributes: Mapping[str, Any], random: np.random.Generator
) -> Any:
    """What the reference of an operator gives. For wrong indices right ones are drawn."""
    reference = OPERATORS[node.op].reference
    if node.op == "reduce" and attributes["kind"] == "product" and arrays[0].dtype.kind == "f":
        return exact_products(arrays[0], attributes["axes"])
    if node.op not in GATHERS:
        return reference(*arrays, **attributes)
    x, indices = arrays
    if node.op == "gather_nd":
        batch = attributes["batch_dims"]
        extents = np.array(x.shape[batch : batch + indices.shape[-1]], np.int64)
    else:
        extents = np.array(x.shape[attributes["axis"]], np.int64)
    bad = (indices < -extents) | (indices >= extents)
    if not bad.any():
        return reference(x, indices, **attributes)
    if x.size == 0:
        types = [TensorType(v.dtype, a.shape) for v, a in zip(node.inputs, arrays, strict=True)]
        (type_,) = OPERATORS[node.op].infer(types, attributes, lambda *dims, **options: None)
        if 0 not in type_.shape:
            raise IndexError("an index into nothing")
        return np.zeros(type_.shape, x.dtype)
    others = random.integers(0, np.broadcast_to(extents, indices.shape))
    return reference(x, np.where(bad, others, indices), **attributes)


def _summed(node: Node, x: Array) -> int:
    """Elements of an input that one element of the output is the sum of; one where it is none."""
    if node.op == "reduce":
        return math.prod(x.shape[a] for a in node.attributes["axes"])
    if node.op in ("softmax", "cumulative_sum", "cumulative_product"):
        return x.shape[node.attributes["axis"]]
    return 1


def _moves(node: Node) -> bool:
    """Whether an operator only moves elements."""
    if node.op != "resample":
        return node.op in MOVES
    positions = node.inputs[1:]
    return len(positions) == len(node.attributes["axes"]) and all(
        p.shape[0] == 1 for p in positions
    )


def _selects(node: Node) -> bool:
    """Whether a reduction or a scatter only chooses among its elements."""
    return node.op in ("reduce", "window_reduce", "scatter_elements", "scatter_nd") and (
        node.attributes["kind"] in ("maximum", "minimum", "none", "argmax")
    )


def _noisy(
    x: Array, dtype: DType, random: np.random.Generator, scale: float, rounds: bool
) -> Array:
    """The array with relative noise, of which there may be none where results are rounded."""
    noise = random.choice(NUDGES if rounds else SIGNS, x.shape) * (NOISE[dtype] * scale)
    with np.errstate(all="ignore"):
        return _fitted(x + np.where(np.isfinite(x), x * noise, 0.0), dtype, rounds)


def _cast(x: Array, node: Node, random: np.random.Generator | None) -> Array:
    """A conversion. Numbers that an integer cannot hold become undefined ones: with noise, any."""
    to = node.attributes["to"]
    if x.dtype.kind != "f" or to.kind == "float":
        return x
    if to.kind == "bool":
        return x != 0
    info = np.iinfo(to.name)
    whole = np.trunc(x)
    sound = (whole >= float(info.min)) & (whole <= float(info.max)) & (whole != 2.0**63)
    sound &= whole != 2.0**64
    with np.errstate(all="ignore"):
        found = np.where(sound, whole, 0).astype(to.name)
    if random is not None and not sound.all():
        found = np.where(sound, found, random.integers(0, 100, x.shape).astype(to.name))
    return found


def _bound(value: Any, symbols: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_bound(v, symbols) for v in value)
    return evaluate(value, symbols) if isinstance(value, Symbolic) else value


def unused_indices(graph: Graph, feeds: Mapping[str, Array], seed: int) -> Truth | None:
    """What a graph should give that has wrong indices, if no output depends on what they select;
    None if one does.

    Raises:
        Exception: what a reference raises for inputs that do not fit.
    """
    first, _ = wide_outputs(graph, feeds, np.random.default_rng([seed, 1]), 0.0)
    second, _ = wide_outputs(graph, feeds, np.random.default_rng([seed, 2]), 0.0)
    same = all(
        np.array_equal(x, y, x.dtype.kind == "f") for x, y in zip(first, second, strict=True)
    )
    return expected(graph, feeds, seed) if same else None


def expected(
    graph: Graph, feeds: Mapping[str, Array], seed: int, repeats: int = REPEATS, scale: float = 1.0
) -> Truth:
    """What the outputs of a graph should be.

    Raises:
        UnstableError: noise decides what shape an output has, or makes an index invalid.
        Exception: what a reference raises for inputs that do not fit.
    """
    values, empty = wide_outputs(graph, feeds, None)
    spread = [np.zeros(x.shape) for x in values]
    compared = [np.ones(x.shape, np.bool_) for x in values]
    for number in range(repeats):
        random = np.random.default_rng([seed, number])
        try:
            rounds = bool(number % 2)
            factor = scale * (ROUNDED_SCALE if rounds else 1.0)
            noisy, _ = wide_outputs(graph, feeds, random, factor, rounds)
        except Exception as error:
            raise UnstableError(str(error)) from error
        for i, (x, y) in enumerate(zip(values, noisy, strict=True)):
            if x.shape != y.shape:
                raise UnstableError("the shape of an output")
            if x.dtype.kind != "f":
                compared[i] &= x == y
                continue
            with np.errstate(all="ignore"):
                change = np.abs(y - x)
            both = np.isfinite(x) & np.isfinite(y)
            alike = both | (np.isnan(x) & np.isnan(y)) | (x == y)
            compared[i] &= alike
            spread[i] = np.maximum(spread[i], np.where(both, change, 0))
    found = []
    for (_, output), x, s, mask in zip(graph.outputs, values, spread, compared, strict=True):
        if output.dtype.kind != "float":
            found.append(Expected(x, np.dtype(held_in(output.dtype)), None, mask))
            continue
        unit = output.dtype.unit_roundoff
        magnitude = np.where(np.isfinite(x), np.abs(x), 0)
        roundings = ROUNDINGS if output.dtype in NOISE else HALF_ROUNDINGS
        tolerance = FACTOR * s + roundings * (unit * magnitude + LEAST[output.dtype])
        # Close to the largest number, rounding decides about infinity.
        mask = mask & ((magnitude + tolerance < largest_finite(output.dtype)) | ~np.isfinite(x))
        found.append(Expected(x, numpy_dtype(output.dtype), tolerance, mask))
    return Truth(found, empty)


def _without_nan(x: Array) -> Array:
    return np.where(np.isnan(x), -np.inf, x) if x.dtype.kind == "f" else x


def without_conventions(graph: Graph, feeds: Mapping[str, Array], truth: Truth) -> Truth:
    """What the outputs should be, with the elements compared that do not depend on what is ours:
    see `wide_outputs`."""
    values, _ = wide_outputs(graph, feeds, None, ours=False)
    outputs = []
    for e, x in zip(truth.outputs, values, strict=True):
        # How many elements there are may depend on it, too.
        same: Any = False
        if x.shape == e.value.shape and x.dtype.kind == "f":
            same = np.isclose(x, e.value, CLOSE, CLOSE, equal_nan=True)
        elif x.shape == e.value.shape:
            same = x == e.value
        outputs.append(replace(e, compared=e.compared & same))
    return replace(truth, outputs=outputs)


def difference(result: Any, wanted: Expected, roughly: float = 0.0, finite: bool = False) -> str:
    """What is wrong with an output, empty if nothing is. `roughly`: to this share of the largest
    element only; see `ROUGHLY`.
    `finite`: only where both are numbers."""
    if not isinstance(result, np.ndarray) or result.dtype != wanted.dtype:
        return f"dtype {getattr(result, 'dtype', type(result))}, expected {wanted.dtype}"
    if result.shape != wanted.value.shape:
        return f"shape {result.shape}, expected {wanted.value.shape}"
    tolerance = wanted.tolerance
    if tolerance is None and finite:
        # Numbers may come of what is none.
        return ""
    if tolerance is None:
        wrong = result != wanted.value
    else:
        if roughly:
            sizes = np.abs(wanted.value[np.isfinite(wanted.value)])
            tolerance = ROUGH_FACTOR * tolerance + roughly * np.max(sizes, initial=0.1)
        wide = result.astype(np.float64)
        with np.errstate(all="ignore"):
            near = np.abs(wide - wanted.value) <= tolerance
        near |= (wide == wanted.value) | (np.isnan(wide) & np.isnan(wanted.value))
        if finite:
            near |= ~(np.isfinite(wide) & np.isfinite(wanted.value))
        wrong = ~near
    wrong = wrong & wanted.compared
    finite_values = wanted.value[np.isfinite(wanted.value)]
    whole = tolerance is None or np.array_equal(finite_values, np.rint(finite_values))
    few = ROUGH_SHARE * wrong.size if roughly and whole else 0
    if np.count_nonzero(wrong) <= few:
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"{np.count_nonzero(wrong)} of {wrong.size} elements differ; at {list(place)} "
    text += f"{result[place]!r}, expected {wanted.value[place]!r}"
    if tolerance is not None:
        text += f" within {tolerance[place]:.3g}"
    return text


def share_compared(wanted: Sequence[Expected]) -> tuple[int, int]:
    """How many elements are compared, and how many there are."""
    return (
        sum(int(np.count_nonzero(e.compared)) for e in wanted),
        sum(e.value.size for e in wanted),
    )
