"""Lowered task mappings visit what the mappings say, in that order."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from ftuner.codegen.llvm.ir.loops import I64, carried_loop, counted_loop, lower, partition_bounds
from ftuner.codegen.llvm.objects.jit import compile_object, host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.mapping import TaskMapping, bounds, grid, repeat, spatial, split

ISA = "neon" if platform.machine() in ("aarch64", "arm64") else "sse2"
MAX_PARTS = 2**20  # with extents up to 2**40, products stay below 2**63

Emit = Callable[[ir.IRBuilder, list[ir.Value], Callable[..., None]], None]


def emit_module(emit: Emit, arguments: int) -> ir.Module:
    """A module with `i64 f(i64..., ptr out)`: what `emit` records, by calling its third argument
    with i64 values, is written to `out` one after the other; the count is returned."""
    module = ir.Module()
    signature = ir.FunctionType(I64, [I64] * arguments + [ir.PointerType()])
    function = ir.Function(module, signature, "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    count = builder.alloca(I64)
    builder.store(ir.Constant(I64, 0), count)

    def record(*values: ir.Value) -> None:
        for value in values:
            at = builder.load(count, typ=I64)
            builder.store(value, builder.gep(function.args[-1], [at], source_etype=I64))
            builder.store(builder.add(at, ir.Constant(I64, 1)), count)

    emit(builder, list(function.args[:-1]), record)
    builder.ret(builder.load(count, typ=I64))
    return module


class Recorder:
    """The function of `emit_module`, in this process."""

    def __init__(self, emit: Emit, arguments: int) -> None:
        data = compile_object(emit_module(emit, arguments), host_target(ISA))
        self._loaded = LoadedObject([data], ["f"])
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments, ctypes.c_void_p)
        self._function = prototype(self._loaded.addresses["f"])

    def __call__(self, *arguments: int, capacity: int = 4096) -> list[int]:
        out = np.zeros(capacity, dtype=np.int64)
        count = self._function(*arguments, out.ctypes.data)
        assert count <= capacity
        return out[:count].tolist()


def recorder_of(mapping: TaskMapping, unroll: bool = False) -> Recorder:
    def emit(builder: ir.IRBuilder, arguments: list[ir.Value], record: Callable[..., None]) -> None:
        worker = None if unroll else arguments[0]
        lower(builder, mapping, worker, lambda _, task: record(*task), unroll=unroll)

    return Recorder(emit, arguments=1)


@st.composite
def mappings(draw: st.DrawFn) -> TaskMapping:
    rank = draw(st.integers(1, 3))

    def single() -> TaskMapping:
        extents = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
        if draw(st.integers(0, 2)) == 0:
            return grid(extents, draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))
        make = draw(st.sampled_from([repeat, spatial]))
        return make(*extents, ranks=draw(st.permutations(range(rank))))

    mapping = single()
    for _ in range(draw(st.integers(0, 2 if rank == 1 else 1))):
        mapping = mapping * single()
    return mapping


def assert_visits(mapping: TaskMapping, recorder: Recorder) -> None:
    for worker in range(mapping.workers):
        tasks = mapping.tasks(worker)
        visited = recorder(worker, capacity=len(tasks) * len(mapping.shape) + 1)
        assert visited == [index for task in tasks for index in task], f"{mapping}, {worker}"


@settings(max_examples=20)
@given(mappings())
def test_random_mappings_are_visited_in_order(mapping: TaskMapping) -> None:
    assert_visits(mapping, recorder_of(mapping))


@pytest.mark.parametrize(
    "mapping",
    [
        spatial(2, 1) * repeat(6, 2),
        repeat(2, 3, ranks=(1, 0)),
        spatial(2, 3, 5, ranks=(1, 2, 0)),
        repeat(1, 2) * spatial(3, 2, ranks=(1, 0)) * repeat(2, 2, ranks=(1, 0)),
        split(7, 3) * spatial(2) * repeat(3),
        spatial(2, 2) * grid((7, 2), (3, 4)),
        spatial(3) * repeat(0),
        repeat(),
    ],
    ids=str,
)
def test_mappings_are_visited_in_order(mapping: TaskMapping) -> None:
    assert_visits(mapping, recorder_of(mapping))


@pytest.mark.parametrize(
    "mapping", [repeat(6, 2), repeat(2, 2, ranks=(1, 0)) * repeat(1, 3), repeat(0, 2)], ids=str
)
def test_unrolled_tasks_have_constant_indices(mapping: TaskMapping) -> None:
    tasks: list[tuple[int, ...]] = []

    def emit(builder: ir.IRBuilder, arguments: list[ir.Value], record: Callable[..., None]) -> None:
        def body(_: ir.IRBuilder, task: tuple[ir.Value, ...]) -> None:
            assert all(isinstance(index, ir.Constant) for index in task)
            tasks.append(tuple(index.constant for index in task))

        lower(builder, mapping, None, body, unroll=True)

    (function,) = emit_module(emit, arguments=0).functions
    assert tasks == mapping.tasks(0)
    assert len(function.blocks) == 1
    assert_visits(mapping, recorder_of(mapping, unroll=True))


def test_one_loop_a_repeat_axis_and_none_for_spatial_axes() -> None:
    def phis(mapping: TaskMapping) -> int:
        def emit(builder: ir.IRBuilder, arguments: list[ir.Value], _: Callable[..., None]) -> None:
            lower(builder, mapping, arguments[0], lambda _, task: None)

        return str(emit_module(emit, arguments=1)).count(" phi ")

    assert phis(spatial(2, 3)) == 0
    assert phis(spatial(2, 3) * repeat(4, 5)) == 2
    assert phis(repeat(2, 3) * spatial(2, 3) * repeat(4, 5)) == 4


def test_what_cannot_be_lowered_is_refused() -> None:
    def emit_with(mapping: TaskMapping, unroll: bool) -> Emit:
        return lambda builder, _, record: lower(
            builder, mapping, None, lambda _, task: record(*task), unroll=unroll
        )

    with pytest.raises(AssertionError, match="cannot unroll"):
        emit_module(emit_with(spatial(2) * repeat(2), unroll=True), arguments=0)
    with pytest.raises(AssertionError, match="needs a worker"):
        emit_module(emit_with(spatial(2), unroll=False), arguments=0)
    with pytest.raises(AssertionError, match="step"):
        emit_module(
            lambda builder, *_: counted_loop(builder, 0, 4, step=0).__enter__(), arguments=0
        )


@pytest.mark.parametrize("some", [False, True])
def test_carried_loop_keeps_values(some: bool) -> None:
    """Triangular numbers, and how many rounds there were."""

    def emit(builder: ir.IRBuilder, arguments: list[ir.Value], record: Callable[..., None]) -> None:
        def body(values: list[ir.Value]) -> list[ir.Value]:
            rounds = builder.add(values[0], ir.Constant(I64, 1))
            return [rounds, builder.add(values[1], rounds)]

        zero = ir.Constant(I64, 0)
        record(*carried_loop(builder, arguments[0], [zero, zero], body, some))

    triangular = Recorder(emit, arguments=1)
    for count in (1, 2, 7) if some else (-3, 0, 1, 2, 7):
        rounds = max(count, 0)
        assert triangular(count) == [rounds, rounds * (rounds + 1) // 2]


@pytest.fixture(scope="module")
def count() -> Recorder:
    def emit(builder: ir.IRBuilder, arguments: list[ir.Value], record: Callable[..., None]) -> None:
        begin, end, step = arguments
        # A body of several blocks: what the loop branches back from is not where it began.
        with (
            counted_loop(builder, begin, end, step) as index,
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
        lambda builder, arguments, record: record(*partition_bounds(builder, *arguments)),
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
        lambda builder, arguments, record: record(*partition_bounds(builder, 7, 3, arguments[0])),
        arguments=1,
    )
    assert [recorder(worker) for worker in range(3)] == [[0, 2], [2, 4], [4, 7]]
