"""Operators of classical learning on labels and categories, which are numbers or strings."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from ftuner.core.dtype import FLOAT32, INT64, STRING, TENSOR_DTYPES
from ftuner.core.frozen import dataclass
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.scores import labels
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, constant, equal, gather, isnan, where
from ftuner.graph.checks import malformed
from ftuner.graph.ir import Array, Value
from ftuner.graph.ops.learning import Words

LABEL_LISTS: Mapping[str, type] = {"strings": object, "int64s": np.int64, "floats": np.float32}
"""The attributes of a list of labels, by the end of their names."""
MOST_SPAN = 1 << 16
"""Most integers from the least key to the largest of which each has a place in a table. Derived:
512 KiB, half of many L2 caches."""

FEW_KEYS = 16
"""Most keys that elements are compared with one by one: with 8, that takes half as long as a
perfect hash does, with 20 as long (Intel Emerald Rapids)."""


def _matches(x: Value, keys: Array) -> Value:
    """Whether each element is equal to each key, along a new last axis. NaN is equal to NaN. A
    string is equal to the first of equal keys alone."""
    column = x.unsqueeze([x.rank])
    if x.dtype == STRING:
        return equal(place(column, keys), constant(np.arange(keys.size)))
    hit = equal(column, constant(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        hit = hit | isnan(column) & constant(np.isnan(keys))
    return hit


def _translated(x: Value, keys: Array, values: Array) -> Value:
    """The values of strings; the last one for those that are no key."""
    return apply("translated", x, words=Words(tuple(keys.tolist()), values))


def place(x: Value, keys: Array) -> Value:
    """The place of the first key that each element is equal to; the number of keys for others."""
    if x.dtype == STRING:
        return _translated(x, keys, np.arange(keys.size + 1))
    if keys.dtype.kind == "i" and (span := int(keys.max()) - int(keys.min()) + 1) <= MOST_SPAN:
        # A table from the least key to the largest. Where the difference wraps, it is outside.
        least = keys.min()
        places = np.full(span + 1, keys.size)
        places[keys[::-1] - least] = np.arange(keys.size)[::-1]
        at = x - constant(least)
        return gather(constant(places), where((at >= 0) & (at < span), at, span))
    if np.unique(keys).size > FEW_KEYS:
        return _hashed(x, keys)
    found = where(_matches(x, keys), constant(np.arange(keys.size)), keys.size)
    return found.reduce("minimum", [x.rank], keep=False)


def _hashed(x: Value, keys: Array) -> Value:
    """`place` by a perfect hash of the bits of keys, in which zeros have one sign."""
    known, first = np.unique(keys + keys.dtype.type(0), return_index=True)
    nan = known != known
    known, nan_place, first = known[~nan], first[nan], first[~nan]
    unsigned = f"uint{8 * keys.itemsize}"
    table = perfect_hash(known.view(unsigned))
    one_zero = where(equal(x, 0), 0, x) if x.dtype.kind == "float" else x
    word = apply("bit_cast", one_zero, of=x.dtype, to=TENSOR_DTYPES[unsigned])
    bucket, slot = (
        apply("shift_right", word * factor, word.like(table.shift)).cast(INT64)
        for factor in table.factors
    )
    slot = apply("bitwise_xor", slot, gather(constant(table.displacements), bucket))
    hit = equal(gather(constant(known[table.order]), slot), x)
    place = where(hit, gather(constant(first[table.order]), slot), keys.size)
    return where(isnan(x), int(nan_place[0]), place) if nan_place.size else place


def _looked_up(x: Value, keys: Array, values: Array, default: Array) -> Value:
    """The values of keys; the default for elements that are no key."""
    if keys.shape != values.shape or keys.ndim != 1 or keys.size == 0:
        raise malformed(f"{keys.size} keys and {values.size} values")
    of = "string" if keys.dtype.hasobject else keys.dtype.name
    if x.dtype.name != of:
        raise malformed(f"{x.type}, whose keys are {of}")
    choices = np.append(values, default.astype(values.dtype))
    if x.dtype == STRING:
        return _translated(x, keys, choices)
    dtype = STRING if values.dtype.hasobject else None
    return gather(constant(choices, dtype), place(x, keys))


@onnx("LabelEncoder", domain=LEARNING)
def _label_encoder(node: NodeView, x: Value) -> Value:
    """Values of keys; the first one of keys that are equal. Other elements have the default."""
    if node.opset < 2:
        words = node.texts("classes_strings")
        return _category_mapper(node, x, words, tuple(range(len(words))))
    keys, values = (_listed(node, which) for which in ("keys", "values"))
    return _looked_up(x, keys, values, _default(node, values.dtype))


@onnx("CategoryMapper", domain=LEARNING)
def _category_mapper(
    node: NodeView, x: Value, cats_strings: tuple[str, ...], cats_int64s: tuple[int, ...]
) -> Value:
    """Strings as numbers, or numbers as strings."""
    words, numbers = np.array(cats_strings, object), np.array(cats_int64s, np.int64)
    keys, values = (words, numbers) if x.dtype == STRING else (numbers, words)
    return _looked_up(x, keys, values, _default(node, values.dtype))


def _listed(node: NodeView, which: str) -> Array:
    """The keys or values of a label encoder."""
    if node.has(f"{which}_tensor"):
        return node.tensor(f"{which}_tensor").array
    for end, dtype in LABEL_LISTS.items():
        if node.has(f"{which}_{end}"):
            return np.array(node.numbers(f"{which}_{end}"), dtype)
    raise malformed(f"{which} are missing")


def _default(node: NodeView, dtype: np.dtype) -> Array:
    """Returns the value of elements that are no key, of one element."""
    if node.has("default_tensor"):
        return node.tensor("default_tensor").array.reshape(-1)[:1]
    if dtype.hasobject:
        return np.array([node.text("default_string", "_Unused")], object)
    if dtype == np.float32:
        return np.array([node.number("default_float", -0.0, finite=False)])
    return np.array([node.integer("default_int64", -1)])


@onnx("OneHotEncoder", domain=LEARNING)
def _one_hot(node: NodeView, x: Value, zeros: bool = True) -> Value:
    """A one for the category of each element, along a new last axis. Elements of no category have
    zeros, or are out of range."""
    if x.dtype != STRING:
        x = x.cast(INT64)
        keys = np.array(node.integers("cats_int64s"), np.int64)
    else:
        keys = np.array(node.texts("cats_strings"), object)
    if not 0 < keys.size == len(set(keys.tolist())):
        raise malformed(f"{keys.size} categories; expected some, all different")
    if not zeros:
        # Gather checks that each has a category.
        return gather(constant(np.eye(keys.size, dtype=np.float32)), place(x, keys))
    return _matches(x, keys).cast(FLOAT32)


@onnx("ZipMap", domain=LEARNING)
def _zip_map(node: NodeView, x: Value) -> Value:
    """A map for each row, from labels to numbers."""
    if x.rank not in (1, 2) or x.dtype != FLOAT32:
        raise malformed(f"{x.type}; expected one or two axes of float32")
    rows = x.unsqueeze([0]) if x.rank == 1 else x
    return apply("maps", rows, labels(node))


_TRIES = 4
"""Factors that are tried before the tables double. Derived: at most half of the slots are used, so
that two keys of one bucket rarely have one slot."""


@dataclass(frozen=True)
class PerfectHash:
    """The slot of a word is `(word * factors[1] >> shift) ^ displacements[word * factors[0] >>
    shift]`, in the arithmetic of unsigned words."""

    factors: tuple[int, int]
    shift: int
    displacements: Array
    order: Array
    """The number of the word of each slot; 0 for slots without one."""


def perfect_hash(words: Array) -> PerfectHash:
    """The hash of distinct unsigned integers, which are known when a model is loaded.

    Two multiplicative hashes give a bucket and a slot; the displacement of the bucket makes the
    slots of all keys distinct (hash and displace; Belazzougui et al., ESA 2009).
    """
    bits = 8 * words.itemsize
    draw = np.random.default_rng(int.from_bytes(blake2b(words.tobytes()).digest(), "little"))
    log_size, tries = (2 * words.size - 1).bit_length(), 0
    while True:
        factors = draw.integers(1 << (bits - 1), 1 << bits, 2, words.dtype) | words.dtype.type(1)
        bucket, slot = ((words * f >> (bits - log_size)).astype(np.int64) for f in factors)
        displacements = _displacements(bucket, slot, 1 << log_size)
        if displacements is not None:
            break
        tries += 1
        log_size += tries % _TRIES == 0
    order = np.zeros(1 << log_size, np.int64)
    order[slot ^ displacements[bucket]] = np.arange(words.size)
    low, high = map(int, factors)
    return PerfectHash((low, high), bits - log_size, displacements, order)


def _displacements(bucket: Array, slot: Array, size: int) -> Array | None:
    """A displacement for each bucket, the fullest first; None if two of its keys have one slot."""
    free = np.ones(size, np.bool_)
    found = np.zeros(size, np.int64)
    counts = np.bincount(bucket, minlength=size)
    by_bucket = np.argsort(bucket, kind="stable")
    starts = np.cumsum(counts) - counts
    shared = np.flatnonzero(counts > 1)
    for number in shared[np.argsort(-counts[shared], kind="stable")].tolist():
        own = slot[by_bucket[starts[number] : starts[number] + counts[number]]]
        fits = next((d for d in range(size) if free[own ^ d].all()), None)
        if fits is None or len(set(own.tolist())) < own.size:
            return None
        found[number] = fits
        free[own ^ fits] = False
    alone = np.flatnonzero(counts == 1)
    found[alone] = slot[by_bucket[starts[alone]]] ^ np.flatnonzero(free)[: alone.size]
    return found
