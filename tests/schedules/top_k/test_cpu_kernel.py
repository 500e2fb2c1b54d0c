"""The largest or smallest elements of rows, in order, on every ISA of this machine."""

import ctypes
from typing import Any

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
import pytest
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.objects.jit import compile_object, host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.dtype import TENSOR_DTYPES
from ftuner.graph.operators import OPERATORS
from ftuner.schedules.top_k.cpu_kernel import emit
from ftuner.schedules.top_k.step import MOST_BYTES

Array = npt.NDArray[Any]
DTYPES = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint64")
GUARD = 8
"""Elements beside each result that nobody may touch."""


class TopK:
    """Kernels of all dtypes, in both directions."""

    def __init__(self, isa: str) -> None:
        target = host_target(isa)
        module = ir.Module("top_k")
        module.triple = target.triple
        # Heaps of two elements or fewer, so that most cases are sorted, and heaps of all.
        limits = ((2, 20), (1 << 20, 1))
        names = {
            (d, largest, limit): f"{d}_{largest}_{limit[0]}"
            for d in DTYPES for largest in (False, True) for limit in limits
        }  # fmt: skip
        for (dtype, largest, limit), name in names.items():
            given = TENSOR_DTYPES[dtype]
            emit(module, name, given, largest, given.itemsize <= MOST_BYTES, *limit)
        data = compile_object(module, target, inlines=True)
        self._loaded = LoadedObject([data], list(names.values()))
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
        self._calls = {key: prototype(self._loaded.addresses[n]) for key, n in names.items()}

    def __call__(
        self, memory: Array, x: Array, axis: int, k: int, largest: bool
    ) -> tuple[Array, Array]:
        """`x` is a contiguous view of `memory`. Rows are done in two parts, the last ones first.
        Heaps and radix sorts find the same."""
        results = [
            self._found(call, memory, x, axis, k)
            for (dtype, way, _), call in self._calls.items()
            if (dtype, way) == (x.dtype.name, largest)
        ]
        for found in results[1:]:
            for one, other in zip(found, results[0], strict=True):
                assert one.tobytes() == other.tobytes()
        return results[0]

    def _found(self, call: Any, memory: Array, x: Array, axis: int, k: int) -> tuple[Array, Array]:
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        size = int(np.prod(shape))
        values = np.full(size + 2 * GUARD, 77, x.dtype)
        positions = np.full(size + 2 * GUARD, -77, np.int64)
        distance = int(np.prod(x.shape[axis + 1 :]))
        rows = int(np.prod(x.shape[:axis])) * distance
        offset = (x.ctypes.data - memory.ctypes.data) // x.itemsize
        dims = np.array([x.shape[axis], k, distance, offset], np.int64)
        places = [memory.ctypes.data] + [
            a.ctypes.data + GUARD * a.itemsize for a in (values, positions)
        ]
        keys = np.empty(max(2 * size, 1), np.int64)
        buffers = np.array([*places, keys.ctypes.data], np.uint64)
        for begin, end in ((rows // 2, rows), (0, rows // 2)):
            call(buffers.ctypes.data, dims.ctypes.data, None, 0, begin, end)
        for array, guard in ((values, 77), (positions, -77)):
            beside = np.concatenate([array[:GUARD], array[GUARD + size :]])
            assert np.all(beside == guard), "written beside the result"
        inside = slice(GUARD, GUARD + size)
        return values[inside].reshape(shape), positions[inside].reshape(shape)


@pytest.fixture(scope="module", params=HOST_ISAS)
def top_k(request: pytest.FixtureRequest) -> TopK:
    return TopK(request.param)


def random(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """With equal elements, and those at the ends of the dtype."""
    source = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        found = source.integers(-9, 10, shape).astype(dtype) / 4
        found[source.random(shape) < 0.1] = np.inf
        found[source.random(shape) < 0.1] = -np.inf
        return found
    info = np.iinfo(np.dtype(dtype))
    found = source.integers(0, 9, shape).astype(dtype)
    found[source.random(shape) < 0.1] = info.max
    found[source.random(shape) < 0.1] = info.min
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [False, True])
def test_of_equal_ones_the_first(top_k: TopK, dtype: str, largest: bool) -> None:
    reference = OPERATORS["top_k"].reference
    for seed, (shape, axis) in enumerate(
        (((1,), 0), ((37,), 0), ((5, 31), 1), ((5, 31), 0), ((3, 17, 4), 1), ((2, 3, 64), 2),
         ((7, 1), 1), ((0, 5), 1), ((5, 0, 3), 0), ((2, 301), 1))
    ):  # fmt: skip
        x = random(seed, shape, dtype)
        for k in sorted({1, 2, 5, 150, shape[axis]} & set(range(shape[axis] + 1))):
            values, positions = top_k(x, x, axis, k, largest)
            expected, where = reference(x, axis=axis, k=k, largest=largest)
            assert np.array_equal(values, expected), (shape, axis, k)
            assert np.array_equal(positions, where), (shape, axis, k)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("largest", [False, True])
def test_nan_is_larger_than_all_numbers(top_k: TopK, dtype: str, largest: bool) -> None:
    """Infinities are numbers; of several NaN the first comes first."""
    nan, inf = np.nan, np.inf
    x = np.array([2, nan, inf, -inf, nan, 3, nan, inf], dtype)
    values, positions = top_k(x, x, 0, len(x), largest)
    order = [1, 4, 6, 2, 7, 5, 0, 3] if largest else [3, 0, 5, 2, 7, 1, 4, 6]
    assert positions.tolist() == order
    assert np.array_equal(values, x[order], equal_nan=True)
    for seed in range(5):
        x = random(seed, (7, 23), dtype)
        x[np.random.default_rng(seed).random(x.shape) < 0.3] = nan
        for axis, k in ((0, 3), (1, 1), (1, 5), (1, 23)):
            expected = OPERATORS["top_k"].reference(x, axis=axis, k=k, largest=largest)
            for found, wanted in zip(top_k(x, x, axis, k, largest), expected, strict=True):
                assert np.array_equal(found, wanted, equal_nan=True), (seed, axis, k)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int8", "float64"])
def test_long_rows(top_k: TopK, dtype: str) -> None:
    """Vectors, and all digits of elements that lie close together, far apart, or are equal."""
    source = np.random.default_rng(0)
    for scale in (0, 1e-40, 1e-3, 1, 1e30):
        x = source.standard_normal((3, 4099))
        x[source.random(x.shape) < 0.01] = -0.0
        if np.dtype(dtype).kind == "f":
            with np.errstate(over="ignore", under="ignore"):
                x = (1 + scale * x if scale == 1e-3 else scale * x).astype(dtype)
        else:
            info = np.iinfo(np.dtype(dtype))
            x = np.clip(x * scale, info.min, info.max).astype(np.int64).astype(dtype)
        for k, largest in ((1, True), (40, False), (300, True), (1000, False), (4099, True)):
            expected, where = OPERATORS["top_k"].reference(x, axis=1, k=k, largest=largest)
            values, positions = top_k(x, x, 1, k, largest)
            assert np.array_equal(positions, where), (scale, k)
            assert values.tobytes() == expected.tobytes()


def test_none_of_some(top_k: TopK) -> None:
    x = random(0, (3, 5), "float32")
    values, positions = top_k(x, x, 1, 0, True)
    assert values.shape == positions.shape == (3, 0)


def test_sorted_rows(top_k: TopK) -> None:
    """The cheapest order and the dearest one."""
    up = np.arange(100, dtype=np.int32)
    for x in (up, up[::-1].copy()):
        for largest in (False, True):
            values, positions = top_k(x, x, 0, 100, largest)
            assert values.tolist() == sorted(up.tolist(), reverse=largest)
            assert np.array_equal(x[positions], values)


def test_rows_that_begin_somewhere(top_k: TopK) -> None:
    memory = random(1, (60,), "float64")
    x = memory[11:51].reshape(8, 5)
    values, positions = top_k(memory, x, 1, 3, True)
    expected, where = OPERATORS["top_k"].reference(x, axis=1, k=3, largest=True)
    assert np.array_equal(values, expected)
    assert np.array_equal(positions, where)
