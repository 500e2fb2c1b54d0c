"""Random numbers as pure functions of a key, which each run of a model is given anew.

The key of a graph (`Builder.random_key`) is a tensor of two words: where its numbers come from, and
the number of the run. Each stream of numbers is of that key and of a number that no other stream
has. So nothing but the key makes two runs differ, and an attribute makes two nodes differ: passes,
fusion, caches and workers treat the nodes like any others. No key is a constant, so nothing is
folded or computed once for a shape; no two streams are equal, so nothing is merged; an element may
be computed twice, or by any worker, and is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core import random_numbers as numbers
from ftuner.core.dtype import FLOAT32, FLOAT64, INT32, INT64, UINT64, DType
from ftuner.core.index_expr import Writer
from ftuner.errors import GraphError
from ftuner.graph.ir import RANDOM_KEY, TensorType
from ftuner.graph.operator import Attributes, ElementWriter, Operator, Require, Types, elementwise

_STREAM = TensorType(UINT64, ())


def _expect(types: Types, wanted: Types, what: str) -> None:
    if list(types) != list(wanted):
        found, expected = (", ".join(map(str, t)) or "nothing" for t in (types, wanted))
        raise GraphError(f"{what} of {found}; expected {expected}")


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    dtype = attributes["dtype"]
    _expect(types, [_STREAM], "random numbers")
    if dtype not in (FLOAT32, FLOAT64):
        raise GraphError(f"random numbers of {dtype}; expected float32 or float64")
    return (TensorType(dtype, attributes["shape"]),)


def _philox(writer: Writer, counter: int, key: int) -> int:
    return writer.step("philox", UINT64, counter, key)


def _word(writer: Writer, value: int) -> int:
    return writer.constant(value, UINT64)


def _infer_stream(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect(types, [RANDOM_KEY], "random_stream")
    return (_STREAM,)


@elementwise
def _define_stream(writer: ElementWriter) -> int:
    number, seed = writer.attributes["number"], writer.attributes["seed"]
    origin, run = (writer.load(0, [writer.integer(i)]) for i in (0, 1))
    if seed is not None:
        origin = _word(writer, seed)
    return _philox(writer, _word(writer, number), _philox(writer, run, origin))


def _reference_stream(key: Any, number: int, seed: int | None) -> Any:
    origin = key[0] if seed is None else np.uint64(seed)
    return numbers.philox(np.uint64(number), numbers.philox(key[1], origin))


def _position(writer: ElementWriter) -> int:
    """The number of an element in row-major order."""
    found = writer.integer(0)
    for i, extent in zip(writer.at, writer.result.shape, strict=True):
        if extent != 1:
            found = writer.add(writer.multiply(found, writer.integer(extent)), i)
    return found


@elementwise
def _define_uniform(writer: ElementWriter) -> int:
    dtype, digits = writer.attributes["dtype"], writer.attributes["digits"]
    bits = _philox(writer, writer.cast(_position(writer), UINT64), writer.load(0, ()))
    upper = writer.step("shift_right", UINT64, bits, _word(writer, 64 - digits))
    # Processors convert signed integers, and those of 32 bits in one instruction.
    whole = writer.cast(writer.cast(upper, INT32 if digits < 32 else INT64), dtype)
    return writer.step("multiply", dtype, whole, writer.constant(2.0**-digits, dtype))


def _reference_uniform(stream: Any, dtype: DType, shape: tuple[int, ...], digits: int) -> Any:
    return numbers.uniform(_words(stream, shape), digits, dtype)


def _words(stream: Any, shape: tuple[int, ...]) -> Any:
    """A 64-bit word for each element of a shape."""
    count = np.prod(shape, dtype=np.int64)
    return numbers.philox(np.arange(count, dtype=np.uint64).reshape(shape), stream)


@elementwise
def _define_normal(writer: ElementWriter) -> int:
    dtype, at, key = writer.attributes["dtype"], _position(writer), writer.load(0, ())
    if dtype == FLOAT32:
        bits = _philox(writer, writer.cast(at, UINT64), key)
        return writer.step("normal", dtype, bits, bits)
    twice = writer.multiply(at, writer.integer(2))
    words = [
        _philox(writer, writer.cast(writer.add(twice, writer.integer(i)), UINT64), key)
        for i in (0, 1)
    ]
    return writer.step("normal", dtype, *words)


def _reference_normal(stream: Any, dtype: DType, shape: tuple[int, ...]) -> Any:
    words = _words(stream, (*shape, 1 if dtype == FLOAT32 else 2))
    return numbers.normal(words[..., 0], words[..., -1], dtype)


def _infer_key(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect(types, [RANDOM_KEY, TensorType(INT64, ())], "random_key")
    return (RANDOM_KEY,)


@elementwise
def _define_key(writer: ElementWriter) -> int:
    own = _philox(writer, _word(writer, writer.attributes["number"]), writer.load(0, writer.at))
    return _philox(writer, writer.cast(writer.load(1, ()), UINT64), own)


def _reference_key(key: Any, iteration: Any, number: int) -> Any:
    own = numbers.philox(np.uint64(number), key)
    return numbers.philox(iteration.astype(np.uint64), own)


OPERATORS = (
    Operator("random_stream", _infer_stream, _reference_stream, _define_stream),
    Operator("random_uniform", _infer, _reference_uniform, _define_uniform),
    Operator("random_normal", _infer, _reference_normal, _define_normal),
    Operator("random_key", _infer_key, _reference_key, _define_key),
)
"""`random_stream` gives the stream of a `number`, of a key or, with a `seed`, of that and the run
alone. `random_uniform` gives its multiples of 2 ** -`digits` from 0 below 1, `random_normal` its
numbers of mean 0 and deviation 1, of `dtype` and `shape`. `random_key` gives the key of a graph
that a loop runs, for an iteration."""
