"""Calls of products, layers, grouped products and attention with random extents and layouts, each
made from a seed. Operands and results are guarded, and results are compared with float64.

More than the suite runs: `python -m tests.runtime.cpu.random_calls --isa avx2 --seeds 0 10000`.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from tests.apart import Note, apart
from tests.guarded import Array, Side, check, guarded, guarding
from tests.reference import assert_product
from tests.runtime.cpu.attention_cases import assert_attention
from tests.runtime.cpu.test_dense import assert_layer

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.runtime.cpu.attention import Attention
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.ops.operands import matched

PRIMES = (5, 7, 11, 13, 17, 23, 31, 37, 61, 67, 97, 127, 131)
LAYERS = ((False, None, False), (True, "gelu", False), (True, "relu", True))
"""Whether there is a bias, the activation, and whether there is a residual: few, because each has
a library to be compiled."""
MOST_OPERATIONS = 1e6
"""Multiply-adds of one call, so that hundreds of calls take seconds."""


class Random:
    """A seed's choices."""

    def __init__(self, seed: int, backend: CpuBackend) -> None:
        self.source = np.random.default_rng(seed)
        self.dtype = "float64" if self.maybe(0.3) else "float32"
        self.at: Side = "begin" if self.maybe(0.5) else "end"
        self.lanes = backend.kernels.isa.vector_bytes // np.dtype(self.dtype).itemsize
        backend.threads = self.one_of(1, 1, 2, 2, 3)

    def maybe(self, chance: float) -> bool:
        return bool(self.source.random() < chance)

    def one_of(self, *options: int) -> int:
        return int(self.source.choice(options))

    def below(self, end: int) -> int:
        return int(self.source.integers(0, end))

    def extent(self, most: int = 700) -> int:
        """Nothing, one, a vector's neighbour, a prime, or any."""
        kind = self.below(10)
        if kind < 3:
            found = self.one_of(0, 1, 1, 2, 3)
        elif kind < 6:
            found = self.lanes * (1 + self.below(8)) + self.one_of(-1, 0, 1)
        elif kind < 8:
            found = self.one_of(*PRIMES)
        else:
            found = self.below(most)
        return min(found, most)

    def extents(self, count: int) -> list[int]:
        """Those of one product."""
        found = [self.extent() for _ in range(count)]
        while math.prod(found) > MOST_OPERATIONS:
            largest = found.index(max(found))
            found[largest] //= 7
        return found

    def shape(self, most_axes: int) -> list[int]:
        """Axes before those of a matrix."""
        return [self.one_of(0, 1, 1, 2, 3) for _ in range(self.below(most_axes + 1))]

    def values(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        found: Array = np.asarray(self.source.uniform(-1, 1, shape)).astype(dtype or self.dtype)
        return found

    def laid(self, shape: Sequence[int], written: bool = False) -> Array:
        """Guarded values in an array that lies in any way: axes in any order, with gaps, reversed,
        repeated (if it is not written to), or misaligned."""
        rank = len(shape)
        order = list(self.source.permutation(rank)) if self.maybe(0.5) else list(range(rank))
        gaps = self.maybe(0.4)
        steps = [self.one_of(1, 1, 1, 2, 3) if gaps else 1 for _ in shape]
        more = [self.one_of(0, 0, 0, 1, 5) if gaps else 0 for _ in shape]
        memory = np.zeros([shape[i] * steps[i] + more[i] for i in order], self.dtype)
        whole = memory.transpose([order.index(i) for i in range(rank)])
        ends = zip(shape, steps, strict=True)
        view = whole[(..., *(slice(0, n * step, step) for n, step in ends))]
        view = view[(..., *(slice(None, None, -1 if self.maybe(0.15) else 1) for _ in shape))]
        values = self.values(shape)
        if rank and not written and self.maybe(0.1) and 0 not in shape:
            axis = self.below(rank)
            one = tuple(slice(0, 1) if i == axis else slice(None) for i in range(rank))
            view[one] = values[one]
            view = np.broadcast_to(view[one], shape)
        else:
            view[...] = values
        if self.maybe(0.1):
            shift = 1 + self.below(3)
            memory = np.zeros(shift + values.nbytes, np.uint8)[shift:]
            apart_from_words = memory.view(self.dtype).reshape(shape)
            apart_from_words[...] = view
            view = apart_from_words
        return guarded(view, self.at, read_only=not written)


def product(seed: int, backend: CpuBackend, note: Note) -> None:
    random = Random(seed, backend)
    m, n, k = random.extents(3)
    batch = random.shape(3)

    def of(batch: list[int]) -> list[int]:
        part = [1 if random.maybe(0.3) else extent for extent in batch]
        return part[random.below(len(part) + 1) :] if random.maybe(0.3) else part

    a, b = random.laid([*of(batch), m, k]), random.laid([*of(batch), k, n])
    if a.ndim == 2 and m and random.maybe(0.1):
        a = a[0]
    if b.ndim == 2 and n and random.maybe(0.1):
        b = b[:, 0]
    what = f"product {seed}: {described(a, b)}, {backend.threads} threads"
    note(what)
    first, second = a if a.ndim > 1 else a[np.newaxis], b if b.ndim > 1 else b[:, np.newaxis]
    shape = np.matmul(a, b).shape
    full = (*np.broadcast_shapes(first.shape[:-2], second.shape[:-2]), *(
        (first.shape[-2], second.shape[-1])))  # fmt: skip
    matmul = Matmul(backend)
    for _ in range(random.one_of(1, 3)):
        found = np.asarray(matmul(a, b))
        assert found.shape == shape
        assert_product(found.reshape(full), first, second, message=what)
    out = random.laid(shape, written=True)
    if not out.ndim:
        return
    note(f"{what}, out {described(out)}")
    for _ in range(random.one_of(1, 3)):
        assert matmul(a, b, out) is out
        assert_product(out.reshape(full), first, second, message=what)
    before = out.copy()
    matmul(a, b, out, accumulate=True)
    assert_product(out.reshape(full), first, second, before.reshape(full), what)


def layer(seed: int, backend: CpuBackend, note: Note) -> None:
    random = Random(seed, backend)
    m, n, k = random.extents(3)
    n, k = max(n, 1), max(k, 1)
    weight = random.laid((n, k))
    has_bias, activation, residual = LAYERS[random.below(len(LAYERS))]
    bias = random.laid((n,)) if has_bias else None
    dense = Dense(weight, bias, activation, residual, session=backend)
    for rows in ([m], [1], random.shape(2), [*random.shape(1), random.extent(40)]):
        x = random.laid((*rows, k))
        added = random.laid((*rows, n)) if residual else None
        given = random.laid((*rows, n), written=True)
        for out in (None, None, None, given, given):
            arrays = [y for y in (x, added, out) if y is not None]
            note(f"layer {seed}: {activation}, {described(weight, *arrays)}")
            found = dense(x, added, out)
            assert out is None or found is out
            assert_layer(found, x, weight, bias, activation, added)


def grouped(seed: int, backend: CpuBackend, note: Note) -> None:
    random = Random(seed, backend)
    sizes = [[random.extent(80) for _ in range(3)] for _ in range(random.below(6))]
    a = [random.laid((m, k)) for m, _, k in sizes]
    b = [random.laid((k, n)) for _, n, k in sizes]
    out = [random.laid((m, n), written=True) for m, n, _ in sizes]
    note(f"grouped {seed}: {described(*a, *b, *out)}")
    for given in (None, out):
        found = backend.grouped_matmul(matched(a, b, given))
        for x, y, z in zip(a, b, found, strict=True):
            assert_product(z, x, y)


def attention(seed: int, backend: CpuBackend, note: Note) -> None:
    random = Random(seed, backend)
    batch = random.shape(2)
    kv_heads, sharing = random.one_of(1, 1, 2, 3), random.one_of(1, 1, 2, 4)
    heads = kv_heads * sharing
    rows, keys, depth, columns = (random.extent(100) for _ in range(4))
    q = random.laid((*batch, heads, rows if random.maybe(0.7) else 1, depth))
    k, v = (random.laid((*batch, kv_heads, keys, n)) for n in (depth, columns))
    causal = random.maybe(0.4)
    scale = None if random.maybe(0.6) else float(random.one_of(-1, 0, 2))
    out = random.laid((*q.shape[:-1], columns), written=True) if random.maybe(0.5) else None
    mask = _mask(random, (*q.shape[:-1], keys)) if random.maybe(0.5) else None
    arrays = [x for x in (q, k, v, mask, out) if x is not None]
    note(f"attention {seed}: causal {causal}, {described(*arrays)}, {backend.threads} threads")
    attend = _attending(backend)
    found = attend(q, k, v, mask, causal, scale, out=out)
    assert out is None or found is out
    _assert_attention(found, q, k, v, mask, causal, scale)
    if not batch and mask is None:
        cuts = random.below(4)
        ends = [
            [0, *sorted(random.below(n + 1) for _ in range(cuts)), n] for n in (q.shape[-2], keys)
        ]
        found = attend(q, k, v, None, causal, scale, *ends, out)
        for (first, last), (begin, end) in zip(*map(pairwise, ends), strict=True):
            _assert_attention(
                found[:, first:last], q[:, first:last], k[:, begin:end], v[:, begin:end], None,
                causal, scale,
            )  # fmt: skip


def _mask(random: Random, scores: Sequence[int]) -> Array:
    shape = [n if random.maybe(0.6) else 1 for n in scores]
    shape = shape[random.below(len(shape) + 1) :] if random.maybe(0.4) else shape
    if random.maybe(0.5):
        return random.laid(shape)
    hidden = np.asarray(random.source.random(shape) < 0.7)
    return guarded(hidden[..., ::-1] if shape else hidden, random.at, read_only=True)


_ATTENDING: dict[int, Attention] = {}


def _attending(backend: CpuBackend) -> Attention:
    """One for all calls of a process: it keeps its models."""
    return _ATTENDING.setdefault(id(backend), Attention(backend))


def _assert_attention(
    found: Array, q: Array, k: Array, v: Array, mask: Array | None, causal: bool,
    scale: float | None,
) -> None:  # fmt: skip
    rows, keys, depth = q.shape[-2], *k.shape[-2:]
    sharing = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, sharing, -3) for x in (k, v))
    number = max(depth, 1) ** -0.5 if scale is None else scale
    softmax = AttentionSoftmax(number, keys - rows if causal else None, safe=True)
    assert_attention(found, q, k.swapaxes(-1, -2), v, mask, softmax)


def described(*arrays: Array) -> str:
    return "; ".join(f"{x.dtype} {x.shape} strides {x.strides}" for x in arrays)


KINDS: Mapping[str, Callable[[int, CpuBackend, Note], None]] = {
    "product": product, "layer": layer, "grouped": grouped, "attention": attention,
}  # fmt: skip


def run(kind: str, seeds: Sequence[int], backend: CpuBackend, note: Note) -> None:
    """The calls of some seeds, one after the other."""
    at: Side = "begin" if seeds[0] % 2 else "end"
    with guarding(at):
        for seed in seeds:
            KINDS[kind](seed, backend, note)
            check()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--isa")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1000))
    arguments = parser.parse_args()
    backend = CpuBackend(isa=arguments.isa)
    for kind in KINDS:
        for first in range(*arguments.seeds, 50):
            seeds = range(first, min(first + 50, arguments.seeds[1]))
            apart(lambda note, kind=kind, seeds=seeds: run(kind, seeds, backend, note))
        print(kind, "done", flush=True)


if __name__ == "__main__":
    main()
