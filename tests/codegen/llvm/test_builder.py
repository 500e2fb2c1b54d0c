"""Shorthands of the builder. Emitted loops run the rounds that they should, in order."""

import ctypes
import platform
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir
from tests.codegen.llvm.objects import loaded

from ftuner.codegen.llvm.ir.builder import I64, PTR, VOID, IRBuilder, begun, const
from ftuner.codegen.llvm.kernels.step import StepKernel
from ftuner.core.ranges import bounds
from ftuner.graph.schedules import modules

ISA = "neon" if platform.machine() in ("aarch64", "arm64") else "sse2"
MAX_PARTS = 2**20  # with extents up to 2**40, products stay below 2**63

Emit = Callable[[IRBuilder, list[ir.Value], Callable[..., None]], None]


def emit_module(emit: Emit, arguments: int) -> ir.Module:
    """A module with `i64 f(ptr out, i64...)`: what `emit` records, by calling its third argument
    with i64 values, is written to `out` one after the other; the count is returned."""
    module = ir.Module()
    builder, (out, *given) = begun(module, ir.FunctionType(I64, [PTR, *[I64] * arguments]), "f")
    count = builder.alloca(I64)
    builder.store(ir.Constant(I64, 0), count)

    def record(*values: ir.Value) -> None:
        for value in values:
            at = builder.load(count, typ=I64)
            builder.store(value, builder.gep(out, [at], source_etype=I64))
            builder.store(builder.add(at, ir.Constant(I64, 1)), count)

    emit(builder, given, record)
    builder.ret(builder.load(count, typ=I64))
    return module


class Recorder:
    """The function of `emit_module`, in this process."""

    def __init__(self, emit: Emit, arguments: int) -> None:
        module = emit_module(emit, arguments)
        (self._function,) = loaded(module, ISA, ["f"], 1, arguments, ctypes.c_int64)

    def __call__(self, *arguments: int, capacity: int = 4096) -> list[int]:
        out = np.zeros(capacity, dtype=np.int64)
        count = self._function(out.ctypes.data, *arguments)
        assert count <= capacity
        return out[:count].tolist()


def test_numbers_stand_for_constants() -> None:
    texts = []
    for number in (int, const):
        module = ir.Module()
        builder, (x, place) = begun(module, ir.FunctionType(VOID, [I64, PTR]), "f")
        y = builder.add(builder.mul(x, number(3), flags=("nsw",)), number(-5))
        y = builder.select(builder.icmp_signed("<", y, number(7)), number(1), y)
        builder.store(number(0), builder.at(place, y, number(24)))
        builder.set_slot(place, y, builder.maximum(builder.slot(place, 2), number(9)))
        builder.ret_void()
        texts.append(str(module))
    assert texts[0] == texts[1]


def test_emitters_redefine_nothing_of_the_builder() -> None:
    """llvmlite has no types, so that mypy does not see where a method has the name of another."""
    assert [*modules("cpu_kernel")]
    emitters, found = [StepKernel], set()
    while emitters:
        emitter = emitters.pop()
        emitters += emitter.__subclasses__()
        found.add(emitter)
        names = {name for name in vars(emitter) if not name.startswith("__")}
        assert not names & {"_block", "_anchor", *dir(IRBuilder)}, emitter
    assert len(found) > 5


def test_a_step_of_zero_is_refused() -> None:
    with pytest.raises(AssertionError, match="step"):
        emit_module(lambda builder, *_: builder.counted_loop(0, 4, step=0).__enter__(), arguments=0)


@pytest.mark.parametrize("some", [False, True])
def test_carried_loop_keeps_values(some: bool) -> None:
    """Triangular numbers, and how many rounds there were."""

    def emit(builder: IRBuilder, arguments: list[ir.Value], record: Callable[..., None]) -> None:
        def body(values: list[ir.Value]) -> list[ir.Value]:
            rounds = builder.add(values[0], ir.Constant(I64, 1))
            return [rounds, builder.add(values[1], rounds)]

        zero = ir.Constant(I64, 0)
        record(*builder.carried_loop(arguments[0], [zero, zero], body, some))

    triangular = Recorder(emit, arguments=1)
    for count in (1, 2, 7) if some else (-3, 0, 1, 2, 7):
        rounds = max(count, 0)
        assert triangular(count) == [rounds, rounds * (rounds + 1) // 2]


@pytest.fixture(scope="module")
def count() -> Recorder:
    def emit(builder: IRBuilder, arguments: list[ir.Value], record: Callable[..., None]) -> None:
        begin, end, step = arguments
        # A body of several blocks: what the loop branches back from is not where it began.
        with (
            builder.counted_loop(begin, end, step) as index,
            builder.if_then(builder.icmp_signed("!=", index, ir.Constant(I64, 3))),
        ):
            record(index)

    return Recorder(emit, arguments=3)


@given(begin=st.integers(-9, 9), end=st.integers(-9, 9), step=st.integers(1, 5))
def test_counted_loop_is_a_range(count: Recorder, begin: int, end: int, step: int) -> None:
    assert count(begin, end, step) == [i for i in range(begin, end, step) if i != 3]


@pytest.fixture(scope="module")
def partition() -> Recorder:
    return Recorder(
        lambda builder, arguments, record: record(*builder.partition_bounds(*arguments)),
        arguments=3,
    )


@given(
    extent=st.one_of(st.integers(0, 50), st.integers(0, 2**40)),
    parts=st.integers(1, MAX_PARTS),
    data=st.data(),
)
def test_partition_bounds_are_bounds(
    partition: Recorder, extent: int, parts: int, data: st.DataObject
) -> None:
    worker = data.draw(st.integers(0, parts - 1))
    assert tuple(partition(extent, parts, worker)) == bounds(extent, parts, worker)


def test_partition_bounds_of_constants() -> None:
    recorder = Recorder(
        lambda builder, arguments, record: record(*builder.partition_bounds(7, 3, arguments[0])),
        arguments=1,
    )
    assert [recorder(worker) for worker in range(3)] == [[0, 2], [2, 4], [4, 7]]
