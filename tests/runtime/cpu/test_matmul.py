"""Products of any shape and layout equal the reference, on every ISA that this machine has."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.child import printed
from tests.reference import LAYOUTS, assert_product, lie, uniform

from ftuner.errors import DTypeError, OperandError, ShapeError
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.matmul import Matmul

DTYPES = ("float32", "float64")
GUARD = 12345.0

extents = st.integers(1, 40) | st.sampled_from([48, 64, 65, 97, 128, 131]) | st.integers(1, 300)
layouts = st.sampled_from(LAYOUTS)
# Batch shapes of a, of b, and how they broadcast: as NumPy does.
batches = st.sampled_from(
    [((), ()), ((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 3), (2, 3)), ((2, 1), (1, 3)),
     ((2, 3), (3,)), ((1,), (4,)), ((2, 1, 2), (3, 1))]
)  # fmt: skip


@pytest.fixture(scope="module")
def matmul(backend: CpuBackend) -> Iterator[Callable[..., Any]]:
    backend.threads = 2
    return Matmul(backend)


@settings(max_examples=80)
@given(
    m=extents, n=extents, k=extents, dtype=st.sampled_from(DTYPES), layout_a=layouts,
    layout_b=layouts, threads=st.integers(1, 4),
)  # fmt: skip
def test_any_shape_and_layout(
    matmul: Matmul, backend: CpuBackend, m: int, n: int, k: int, dtype: str, layout_a: str,
    layout_b: str, threads: int,
) -> None:  # fmt: skip
    # Outside the views lies NaN: an element read by mistake shows.
    a, _ = lie(layout_a, uniform(m, (m, k), dtype))
    b, _ = lie(layout_b, uniform(n, (k, n), dtype))
    backend.threads = threads
    assert_product(matmul(a, b), a, b)
    # Again, by the short way.
    assert_product(matmul(a, b), a, b)


@settings(max_examples=50)
@given(
    m=st.integers(1, 40), n=st.integers(1, 40), k=st.integers(1, 40), shapes=batches,
    dtype=st.sampled_from(DTYPES), layout_a=layouts, layout_b=layouts, threads=st.integers(1, 4),
    reverse=st.booleans(),
)  # fmt: skip
def test_any_batch(
    matmul: Matmul, backend: CpuBackend, m: int, n: int, k: int,
    shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str, layout_a: str, layout_b: str,
    threads: int, reverse: bool,
) -> None:  # fmt: skip
    a, _ = lie(layout_a, uniform(m, (*shapes[0], m, k), dtype))
    b, _ = lie(layout_b, uniform(n, (*shapes[1], k, n), dtype))
    if reverse and len(shapes[0]) > 0:
        a = a[::-1]
    if reverse and len(shapes[1]) > 1:
        b = b.swapaxes(0, 1).copy().swapaxes(0, 1)
    backend.threads = threads
    assert_product(matmul(a, b), a, b)


@settings(max_examples=50)
@given(
    m=extents, n=extents, k=extents, dtype=st.sampled_from(DTYPES), layout_a=layouts,
    layout_out=layouts, accumulate=st.booleans(), threads=st.integers(1, 3),
    batch=st.sampled_from([(), (2,)]),
)  # fmt: skip
def test_out_is_written_whole_and_nothing_else(
    matmul: Matmul, backend: CpuBackend, m: int, n: int, k: int, dtype: str, layout_a: str,
    layout_out: str, accumulate: bool, threads: int, batch: tuple[int, ...],
) -> None:  # fmt: skip
    a, _ = lie(layout_a, uniform(m, (*batch, m, k), dtype))
    b = uniform(n, (k, n), dtype)
    shape = (*batch, m, n)
    before = uniform(k, shape, dtype) if accumulate else np.full(shape, np.nan, dtype)
    out, memory = lie(layout_out, before, guard=GUARD)
    shown, _ = lie(layout_out, np.zeros(shape, dtype), guard=GUARD)
    outside = np.count_nonzero(memory == GUARD)
    backend.threads = threads
    result = matmul(a, b, out, accumulate)
    assert result is out
    assert_product(out, a, b, added_to=before if accumulate else None)
    assert np.count_nonzero(memory == GUARD) == outside == memory.size - shown.size
    if not accumulate:
        out[...] = np.nan
        matmul(a, b, out)
        assert_product(out, a, b, message="the second time")
        assert np.count_nonzero(memory == GUARD) == outside


HUGE = [
    (3, 5, 20011), (5000, 3, 7), (1, 20011, 5), (1, 1, 20011), (20011, 1, 1), (1, 20011, 1),
    (7, 2500, 1300), (2, 300, 4099),
]  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("m", "n", "k"), HUGE)
def test_long_extents(
    matmul: Matmul, backend: CpuBackend, m: int, n: int, k: int, threads: int
) -> None:
    backend.threads = threads
    a, b = uniform(1, (m, k), "float32"), uniform(2, (k, n), "float32")
    assert_product(matmul(a, b), a, b)
    transposed = np.asfortranarray(b)
    assert_product(matmul(a, transposed), a, b)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((0, 5), (5, 7)), ((4, 5), (5, 0)), ((4, 0), (0, 7)), ((0, 0), (0, 0)), ((0, 4, 5), (5, 7)),
     ((0, 4, 5), (0, 5, 7)), ((2, 4, 0), (0, 7)), ((0,), (0,)), ((0,), (0, 3)), ((3, 0), (0,)),
     ((0, 1, 4, 5), (3, 5, 7))],
)  # fmt: skip
def test_zero_extents(
    matmul: Matmul, dtype: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...]
) -> None:
    a, b = np.ones(shape_a, dtype), np.ones(shape_b, dtype)
    expected = np.matmul(a, b)
    result = matmul(a, b)
    assert result.shape == expected.shape
    assert np.array_equal(result, expected)
    out = np.full(expected.shape, np.nan, dtype)
    matmul(a, b, out)
    assert np.array_equal(out, expected)
    kept = np.full(expected.shape, 7.0, dtype)
    matmul(a, b, kept, accumulate=True)
    assert np.all(kept == 7.0)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((9,), (9,)),
        ((9,), (9, 5)),
        ((5, 9), (9,)),
        ((2, 5, 9), (9,)),
        ((9,), (2, 9, 5)),
        ((1,), (1,)),
    ],
)
@pytest.mark.parametrize("step", [1, -1, 2])
def test_vectors(
    matmul: Matmul, dtype: str, shape_a: tuple[int, ...], shape_b: tuple[int, ...], step: int
) -> None:
    a, b = uniform(1, shape_a, dtype), uniform(2, shape_b, dtype)
    if a.ndim == 1:
        a = np.repeat(a, abs(step))[::step]
    if b.ndim == 1:
        b = np.repeat(b, abs(step))[::step]
    result = matmul(a, b)
    assert result.shape == np.matmul(a, b).shape
    assert_product(result, a, b)
    out = np.full(result.shape, np.nan, dtype)
    assert matmul(a, b, out) is out
    assert np.array_equal(out, result)


@pytest.mark.parametrize("dtype", DTYPES)
def test_overlapping_out(matmul: Matmul, dtype: str) -> None:
    square, other = uniform(1, (33, 33), dtype), uniform(2, (33, 33), dtype)
    for place in (lambda x: x, lambda x: x.T, lambda x: x[::-1], lambda x: x[:, ::-1]):
        for known in (False, True):
            if known:
                # Out apart, lying alike: what is remembered of it does not do for what follows.
                apart = np.empty_like(square)
                assert_product(matmul(square, other, place(apart)), square, other)
            a, b = square.copy(), other.copy()
            assert_product(matmul(a, other, place(a)), square, other)
            assert_product(matmul(square, b, place(b)), square, other)
            a = square.copy()
            assert_product(matmul(a, a, place(a)), square, square)


def test_partly_overlapping_out(matmul: Matmul) -> None:
    memory = uniform(1, (50, 20), "float32")
    a, b = memory[:20].copy(), memory[30:].copy()
    assert_product(matmul(memory[:20], memory[30:], memory[15:35]), a, b)


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (1, 1), (2, 1), (0, 0)])
def test_out_that_overlaps_itself(matmul: Matmul, strides: tuple[int, int]) -> None:
    """Each element of memory gets one of the values that belong there, as in a NumPy assignment."""
    m, n = 6, 9
    a, b = uniform(1, (m, 8), "float64"), uniform(2, (8, n), "float64")
    memory = np.full(m * strides[0] + n * strides[1] + 1, GUARD)
    out = np.lib.stride_tricks.as_strided(memory, (m, n), tuple(8 * s for s in strides))
    matmul(a, b, out)
    expected = a @ b
    meant: dict[int, list[float]] = {}
    for i, j in np.ndindex(m, n):
        meant.setdefault(i * strides[0] + j * strides[1], []).append(expected[i, j])
    for place, value in enumerate(memory):
        wanted = meant.get(place, [GUARD])
        assert min(abs(value - w) for w in wanted) < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_misaligned(matmul: Matmul, dtype: str) -> None:
    def shifted(values: np.ndarray) -> np.ndarray:
        memory = np.empty(values.nbytes + 1, np.uint8)
        view = np.frombuffer(memory, dtype, count=values.size, offset=1).reshape(values.shape)
        view[...] = values
        return view

    a, b = uniform(1, (13, 21), dtype), uniform(2, (21, 17), dtype)
    # First with arrays that lie alike and are aligned: what is remembered must not be used.
    assert_product(matmul(a, b), a, b)
    assert_product(matmul(a, b, np.empty((13, 17), dtype)), a, b)
    odd_a, odd_b = shifted(a), shifted(b)
    assert not odd_a.flags.aligned
    assert_product(matmul(odd_a, odd_b), a, b)
    assert_product(matmul(odd_a, b), a, b)
    out = shifted(np.zeros((13, 17), dtype))
    assert matmul(a, b, out) is out
    assert_product(out, a, b)
    matmul(odd_a, odd_b, out, accumulate=True)
    assert_product(out, 2 * a, b)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["plain", "transposed", "every second column"])
def test_nan_and_inf_go_where_they_belong(matmul: Matmul, dtype: str, layout: str) -> None:
    rng = np.random.default_rng(5)
    a, b = uniform(1, (29, 37), dtype), uniform(2, (37, 43), dtype)
    for values in (a, b):
        for special in (np.nan, np.inf, -np.inf, 0.0):
            values[rng.integers(values.shape[0]), rng.integers(values.shape[1])] = special
    a, b = lie(layout, a)[0], lie(layout, b)[0]
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
        result = matmul(a, b)
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.array_equal(np.isposinf(result), np.isposinf(expected))
    assert np.array_equal(np.isneginf(result), np.isneginf(expected))
    finite = np.isfinite(expected)
    assert np.allclose(result[finite], expected[finite], rtol=1e-4, atol=1e-4)


def test_one_shape_gives_one_answer(matmul: Matmul) -> None:
    """The order of summation depends on shape and layout alone: calls repeat to the bit."""
    a, b = uniform(1, (50, 200), "float32"), uniform(2, (200, 70), "float32")
    first = matmul(a, b)
    assert all(np.array_equal(matmul(a, b), first) for _ in range(3))
    assert np.array_equal(matmul(a, b, np.empty_like(first)), first)


@pytest.mark.parametrize("bad", [">f4", "int32", "float16", "complex64", "bool", "object"])
def test_other_dtypes(matmul: Matmul, bad: str) -> None:
    good = np.ones((3, 3), "float32")
    with pytest.raises(DTypeError, match="supported are float32, float64"):
        matmul(np.ones((3, 3), bad), good)
    with pytest.raises(DTypeError, match="supported are float32, float64"):
        matmul(good, np.ones((3, 3), bad))
    with pytest.raises(DTypeError, match="out has dtype"):
        matmul(good, good, np.ones((3, 3), bad))
    # And once a shape is known.
    out = np.empty((3, 3), "float32")
    assert np.all(matmul(good, good, out) == 3)
    with pytest.raises(DTypeError, match="out has dtype"):
        matmul(good, good, np.ones((3, 3), bad))


def test_mixed_dtypes(matmul: Matmul) -> None:
    with pytest.raises(DTypeError, match="convert one of them"):
        matmul(np.ones((3, 3), "float32"), np.ones((3, 3), "float64"))
    with pytest.raises(DTypeError, match="out has dtype float64"):
        matmul(*[np.ones((3, 3), "float32")] * 2, np.ones((3, 3), "float64"))


@pytest.mark.parametrize("bad", [[[1.0]], 1.0, None, "text", {}])
def test_not_arrays(matmul: Matmul, bad: object) -> None:
    with pytest.raises(OperandError, match="a is a"):
        matmul(bad, np.ones((1, 1)))
    with pytest.raises(OperandError, match="b is a"):
        matmul(np.ones((1, 1)), bad)
    if bad is not None:
        with pytest.raises(OperandError, match="out is a"):
            matmul(np.ones((1, 1)), np.ones((1, 1)), bad)


def test_wrong_shapes(matmul: Matmul) -> None:
    a = np.ones((3, 4))
    for scalar in (np.float64(2.0), np.array(2.0)):
        with pytest.raises(ShapeError, match="scalar"):
            matmul(a, scalar)
        with pytest.raises(ShapeError, match="scalar"):
            matmul(scalar, a)
    with pytest.raises(ShapeError, match="must be equal"):
        matmul(a, a)
    with pytest.raises(ShapeError, match="must be equal"):
        matmul(a, np.ones(3))
    with pytest.raises(ShapeError, match="not broadcast"):
        matmul(np.ones((2, 3, 4)), np.ones((3, 4, 5)))
    for shape in ((4, 3), (3,), (1, 3, 3), (3, 3, 1), ()):
        with pytest.raises(ShapeError, match="out is"):
            matmul(a, a.T, np.empty(shape))
    with pytest.raises(ShapeError, match="accumulate needs an out"):
        matmul(a, a.T, accumulate=True)


def test_read_only_out(matmul: Matmul) -> None:
    a = np.ones((3, 3))
    out = np.zeros((3, 3))
    matmul(a, a, out)
    out[...] = 5
    out.flags.writeable = False
    with pytest.raises(OperandError, match="read-only"):
        matmul(a, a, out)
    assert np.all(out == 5)


class _Foreign:
    """An array of another library, by NumPy's interface."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.__array_interface__ = values.__array_interface__


def test_array_interface(matmul: Matmul) -> None:
    a, b = uniform(1, (11, 5), "float32"), uniform(2, (5, 12), "float32")
    assert_product(matmul(_Foreign(a), _Foreign(b)), a, b)
    out = np.full((11, 12), np.nan, "float32")
    matmul(a, b, _Foreign(out))
    assert_product(out, a, b)


def test_subclasses(matmul: Matmul) -> None:
    a, b = uniform(1, (11, 5), "float32"), uniform(2, (5, 12), "float32")
    assert_product(matmul(a.view(np.memmap), b), a, b)


def test_tensors(matmul: Matmul) -> None:
    torch = pytest.importorskip("torch")
    a, b = uniform(1, (11, 5), "float32"), uniform(2, (12, 5), "float32")
    assert_product(matmul(torch.from_numpy(a), torch.from_numpy(b).T).numpy(), a, b.T)
    with pytest.raises(OperandError, match="needs a gradient"):
        matmul(torch.ones((3, 3), requires_grad=True), np.ones((3, 3), "float32"))


GUARDED = """
import ctypes, mmap
import numpy as np
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.backend import CpuBackend

PAGE = mmap.PAGESIZE
protect = ctypes.CDLL(None).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []

def between_pages(values, at_end):
    # A copy that begins or ends at a page that may not be touched.
    size = -(-values.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + 2 * PAGE)
    everything = np.frombuffer(memory, np.uint8)
    for page in (0, size + PAGE):
        assert protect(everything.ctypes.data + page, PAGE, 0) == 0
    first = PAGE + (size - values.nbytes if at_end else 0)
    place = everything[first : first + values.nbytes].view(values.dtype)
    order = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
    place = place.reshape(values.shape, order=order)
    place[...] = values
    kept.append(memory)
    return place

backend = CpuBackend(isa=ISA)
rng = np.random.default_rng(0)
matmul = Matmul(backend)
for dtype in ("float32", "float64"):
    layers = {}
    for m, n, k in SHAPES:
        for at_end in (False, True):
            for order_a in "CF":
                for order_b in "CF":
                    backend.threads = 1 + (m + n) % 2
                    a = between_pages(np.asarray(rng.random((m, k)), dtype, order=order_a), at_end)
                    b = between_pages(np.asarray(rng.random((k, n)), dtype, order=order_b), at_end)
                    c = between_pages(np.zeros((m, n), dtype, order=order_b), at_end)
                    for accumulate in (False, True):
                        matmul(a, b, c, accumulate)
                    assert np.allclose(c, 2 * (a @ b), rtol=1e-4)
                    bias = between_pages(np.ones(n, dtype), at_end)
                    residual = between_pages(np.ones((m, n), dtype), at_end)
                    y = between_pages(np.zeros((m, n), dtype), at_end)
                    layer = Dense(b.T, bias, residual=True, session=backend)
                    layer(a, residual, y)
                    assert np.allclose(y, a @ b + 2, rtol=1e-4)
print("done")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are protected by mprotect")
def test_nothing_beside_the_operands_is_touched(backend: CpuBackend, cache_folder: Path) -> None:
    """Operands end, or begin, where the next page may not be read: a step too far is a crash."""
    shapes = [(1, 1, 1), (2, 3, 5), (7, 9, 8), (5, 17, 16), (13, 31, 7), (4, 24, 33), (33, 25, 70)]
    prelude = f"SHAPES = {shapes!r}\nISA = {backend.kernels.isa.name!r}\n"
    environment = {**os.environ, "FTUNER_CACHE_DIR": str(cache_folder)}
    done = printed("-X", "faulthandler", "-c", prelude + GUARDED, env=environment)
    assert done.strip() == "done"
