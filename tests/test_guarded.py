"""Guards find what they are for: reads and writes beside an array, in the memory of a caller and in
what the runtime allocates."""

import ctypes
import sys
from collections.abc import Callable

import numpy as np
import pytest
from tests.apart import Note, apart
from tests.graph.graphs import B, S, assert_close, graph_of, inputs_of, layer, reference
from tests.guarded import PAGE_BYTES, Array, Side, check, guarded, guarding
from tests.reference import LAYOUTS, lie

from ftuner.runtime.cpu.attention import Attention
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.model import Model
from ftuner.runtime.ops.operands import matched

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no mprotect, no fork")
SIDES: tuple[Side, ...] = ("begin", "end")


def ends(x: Array) -> tuple[int, int]:
    """Addresses of the first byte and of what is behind the last one."""
    reach = [(n - 1) * stride for n, stride in zip(x.shape, x.strides, strict=True)]
    low = x.ctypes.data + sum(r for r in reach if r < 0)
    return low, x.ctypes.data + sum(r for r in reach if r > 0) + x.itemsize


@pytest.mark.parametrize("at", SIDES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_has_the_strides_and_lies_at_a_page(layout: str, at: Side) -> None:
    for dtype in ("float32", "float64", "int8", "int64", ">f4"):
        x, _ = lie(layout, np.arange(2 * 5 * 7).reshape(2, 5, 7).astype(dtype), guard=0)
        found = guarded(x, at)
        assert np.array_equal(found, x)
        assert found.strides == x.strides
        assert found.dtype == x.dtype
        assert ends(found)[at == "end"] % PAGE_BYTES == 0
    check()


def test_arrays_of_no_and_of_one_element() -> None:
    for shape in ((), (0,), (3, 0, 2), (1, 1)):
        found = guarded(np.ones(shape, np.float32))
        assert found.shape == shape
    spread = guarded(np.broadcast_to(np.float32(3), (4, 5)))
    assert spread.strides == (0, 0)
    assert (spread == 3).all()
    check()


@pytest.mark.parametrize("at", SIDES)
def test_misaligned_copies_are_as_far_from_a_line(at: Side) -> None:
    for shift in range(4):
        x = np.zeros(4 * 9 + shift, np.uint8)[shift:].view(np.float32)
        found = guarded(x, at)
        assert found.ctypes.data % 4 == x.ctypes.data % 4
        assert found.flags.aligned == x.flags.aligned


def test_writes_beside_elements_are_found() -> None:
    gaps = guarded(np.zeros((3, 4), np.float32)[:, ::2])
    memory = np.lib.stride_tricks.as_strided(gaps, (3, 4), (16, 4))
    memory[1, 1] = 1
    with pytest.raises(AssertionError, match="4 bytes between 20 and 23"):
        check()
    memory[1, 1] = 1
    del memory, gaps
    with pytest.raises(AssertionError, match="were written to"):
        check()
    check()


def test_reads_and_writes_outside_end_the_process() -> None:
    def beyond(x: Array, elements: int) -> Callable[[Note], object]:
        place = x.ctypes.data + 4 * elements
        return lambda note: (note("here"), ctypes.c_float.from_address(place).value)

    end, begin = guarded(np.zeros(5, np.float32)), guarded(np.zeros(5, np.float32), "begin")
    apart(beyond(end, 4))
    apart(beyond(begin, 0))
    for x, at in ((end, 5), (begin, -1)):
        with pytest.raises(AssertionError, match="SIGSEGV at: here"):
            apart(beyond(x, at))

    def written(note: Note) -> None:
        x = guarded(np.zeros(5, np.float32), read_only=True)
        ctypes.c_float.from_address(x.ctypes.data).value = 1

    with pytest.raises(AssertionError, match="SIGSEGV"):
        apart(written)


def test_children_that_fail_or_hang() -> None:
    def fails(note: Note) -> None:
        raise ValueError("that")

    with pytest.raises(AssertionError, match="ValueError: that"):
        apart(fails)
    with pytest.raises(AssertionError, match=r"took over 0\.2 s"):
        apart(lambda note: [None for _ in iter(int, 1)], seconds=0.2)


@pytest.mark.parametrize("at", SIDES)
def test_what_the_runtime_allocates_is_guarded(backend: CpuBackend, at: Side) -> None:
    """The whole path of models, layers and products, with nothing beside what is theirs."""

    def models(note: Note) -> None:
        with guarding(at):
            for graph in (layer(), graph_of(lambda m: m.linear(m.given("x", B, S, 19), 35))):
                model = Model(graph, backend)
                for sizes in ({"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 3, "S": 17}):
                    for threads in (1, 2):
                        backend.threads = threads
                        note(f"{sizes}, {threads} threads")
                        inputs = inputs_of(graph, sizes)
                        given = {n: guarded(x, at, read_only=True) for n, x in inputs.items()}
                        for _ in range(2):
                            assert_close(model.run(given), reference(graph, inputs))
                            check()

    def products(note: Note) -> None:
        random = np.random.default_rng(0)
        with guarding(at):
            for n, k in ((1, 1), (17, 3), (64, 33), (130, 67)):
                weight = random.standard_normal((n, k)).astype(np.float32)
                dense = Dense(guarded(weight, at), weight[:, 0], "relu", session=backend)
                matmul = Matmul(backend)
                for m in (1, 2, 7, 33):
                    x = guarded(random.standard_normal((m, k)).astype(np.float32), at, True)
                    for i in range(4):
                        note(f"{m} x {n} x {k}, call {i}")
                        expected = x @ weight.T
                        found = matmul(x, guarded(weight, at, True).T)
                        np.testing.assert_allclose(found, expected, 1e-3, 1e-4)
                        expected = np.maximum(expected + weight[:, 0], 0)
                        np.testing.assert_allclose(dense(x), expected, 1e-3, 1e-4)
                        check()

    apart(models)
    apart(products)


@pytest.mark.parametrize("at", SIDES)
def test_results_lie_at_a_page(widest: CpuBackend, at: Side) -> None:
    """Whoever makes them."""
    a, b = np.ones((2, 3, 5), np.float32), np.ones((5, 7), np.float32)
    model = graph_of(lambda m: m.linear(m.given("x", B, S, 5), 7))
    with guarding(at):
        results = [
            Matmul(widest)(a, b), Dense(b.T, session=widest)(a), Attention(widest)(a, a, a),
            *widest.grouped_matmul(matched([a[0]], [b], None)), *Model(model, widest).run({"x": a}),
        ]  # fmt: skip
    for found in results:
        assert ends(found)[at == "end"] % PAGE_BYTES == 0
