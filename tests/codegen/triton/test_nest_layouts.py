"""Kernels compute what their definitions say wherever operands and results lie: strides in any
order, backwards, with gaps, and beyond 2**31 elements."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product as every
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.triton.nest_launching import buffer, chosen, launch, small
from tests.codegen.triton.product_running import address_space
from tests.core.test_access import applications, layouts, nest_of

from ftuner.core.access import kernel_of
from ftuner.core.dim import symbol
from ftuner.core.dtype import BOOL, INT8, INT64
from ftuner.core.functions import SCALAR_FUNCTIONS, neutral
from ftuner.core.index_expr import Nest, Operand
from ftuner.graph.ir import TensorType
from ftuner.schedules.nest.gpu_kernel import nest_kernel

Memory = Sequence[np.ndarray[Any, Any]]
REDUCTIONS = {"sum": np.sum, "product": np.prod, "maximum": np.max, "minimum": np.min}


class Reader:
    """A nest in NumPy, element by element."""

    def __init__(self, nest: Nest, memory: Memory) -> None:
        self.nest = nest
        self.memory = memory

    def value(self, number: int, index: Sequence[int], stages: Sequence[Any]) -> Any:
        step = self.nest.steps[number]
        payload: Any = step.payload
        if step.op == "constant":
            return np.dtype(step.dtype.name).type(payload)
        if step.op in ("dim", "index", "stage"):
            known: Mapping[str, Any] = {"index": index, "stage": stages}
            return payload if step.op == "dim" else known[step.op][payload]
        arguments = [self.value(a, index, stages) for a in step.arguments]
        if step.op == "load":
            operand = self.nest.operands[payload]
            return self.memory[payload][_address(operand, arguments)]
        if step.op == "checked":
            return arguments[0] + arguments[1] * (arguments[0] < 0)
        if step.op == "where":
            return arguments[1] if arguments[0] else arguments[2]
        if step.op == "cast":
            return np.dtype(step.dtype.name).type(arguments[0])
        return SCALAR_FUNCTIONS[step.op].meaning(*arguments)

    def run(self, targets: Sequence[Operand], results: Memory) -> None:
        nest = self.nest
        for kept in every(*map(range, nest.kept)):
            places = [(*kept, *reduced) for reduced in every(*map(range, nest.reduced))]
            stages: list[Any] = []
            for stage in nest.stages:
                found = [self.value(stage.value, place, stages) for place in places]
                if stage.kind == "scan":
                    sums = [np.sum(found[: i + stage.last]) for i in range(len(found))]
                elif stage.kind in REDUCTIONS:
                    first = neutral(stage.kind, nest.steps[stage.value].dtype)
                    stages.append(REDUCTIONS[stage.kind](found, initial=first))
                else:
                    stages.append(int(getattr(np, stage.kind)(found)))
            for store, target, result in zip(nest.stores, targets, results, strict=True):
                # A narrow result is stored again and again.
                for number, place in enumerate(places):
                    if any(s.kind == "scan" for s in nest.stages):
                        stages = [sums[number]]
                    at = [place[a] for a in store.axes]
                    at += [self.value(a, place, stages) for a in store.at]
                    result[_address(target, at)] = self.value(store.value, place, stages)


def _address(operand: Operand, index: Sequence[Any]) -> int:
    steps = zip(index, operand.strides, strict=True)
    return int(operand.offset + sum(int(i) * int(s) for i, s in steps))  # type: ignore[call-overload]


def _extent(operand: Operand) -> int:
    """Elements of a buffer that holds an operand."""
    ends = [(int(n) - 1) * int(s) for n, s in zip(operand.shape, operand.strides, strict=True)]  # type: ignore[call-overload]
    return int(operand.offset) + sum(e for e in ends if e > 0) + 1  # type: ignore[call-overload]


def _filled(operand: Operand, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Small whole numbers, whose sums are exact; indices that are within any axis."""
    if operand.dtype == INT64:
        return random.integers(-1, 1, _extent(operand))
    if operand.dtype == BOOL:
        return random.integers(0, 2, _extent(operand)).astype(bool)
    return random.integers(-4, 5, _extent(operand)).astype(operand.dtype.name)


@settings(max_examples=60)
@given(applications(), st.data())
def test_any_layout(application: tuple[Nest, tuple[TensorType, ...]], data: st.DataObject) -> None:
    nest, results = application
    # Results of scatters have no shape of their own here: they hold what is scattered into.
    operands = tuple(data.draw(layouts(TensorType(o.dtype, o.shape))) for o in nest.operands)
    targets = [data.draw(layouts(result)) for result in results]
    nest = replace(nest, operands=operands)
    random = np.random.default_rng(0)
    memory = [_filled(o, random) for o in operands]
    expected = [np.full(_extent(t), 77, t.dtype.name) for t in targets]
    found = [x.copy() for x in expected]
    Reader(nest, memory).run(targets, expected)
    kernel = kernel_of(nest, targets)
    schedule = data.draw(st.sampled_from([chosen(kernel, {}), small(kernel)]))
    tensors = [buffer(x) for x in memory]
    assert launch(nest_kernel(kernel, schedule), tensors, [buffer(x) for x in found], {}) == 0
    for have, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(have, wanted, rtol=2e-5, atol=2e-5)


# Far apart.


FAR = 2**31 + 12345
B, S = symbol("B"), symbol("S")


def three_far_rows() -> np.ndarray[Any, Any]:
    space = np.frombuffer(address_space(2 * FAR + 4096), np.int8)
    for row in range(3):
        space[row * FAR : row * FAR + 3] = range(3 * row + 1, 3 * row + 4)
    return space


@pytest.mark.parametrize("symbolic", [False, True])
def test_elements_beyond_31_bits(symbolic: bool) -> None:
    """A stride of the contiguous axis' neighbour, of the axis along lanes, an offset, and what
    data tells."""
    far: Any = S if symbolic else FAR
    bindings, space = {"S": FAR, "B": 2}, three_far_rows()
    by_rows = Operand(INT8, (3, 3), (far, 1))
    by_columns = Operand(INT8, (3, 3), (1, far))
    behind = Operand(INT8, (3, 3), (far * -1, 1), far * 2)
    expected = np.arange(1, 10, dtype=np.int8).reshape(3, 3)
    tensor = torch.from_numpy(space)
    for operand, wanted in (
        (by_rows, expected), (by_columns, expected.T), (behind, expected[::-1])
    ):  # fmt: skip
        nest, _ = nest_of("negative", TensorType(INT8, (3, 3)))
        nest = replace(nest, operands=(operand,))
        kernel = kernel_of(nest, [Operand(INT8, (3, 3), (3, 1))])
        for schedule in (chosen(kernel, bindings), small(kernel)):
            out = torch.zeros((3, 3), dtype=torch.int8)
            launch(nest_kernel(kernel, schedule), [tensor], [out], bindings)
            assert np.array_equal(out.numpy(), -wanted)
    # Rows that data chooses, and rows that are written to.
    nest, _ = nest_of("gather", TensorType(INT8, (3, 3)), TensorType(INT64, (2,)), axis=0)
    nest = replace(nest, operands=(by_rows, nest.operands[1]))
    kernel = kernel_of(nest, [Operand(INT8, (2, 3), (far, 1), far + 100)])
    at = torch.tensor([2, -2])
    launch(nest_kernel(kernel), [tensor, at], [tensor], bindings)
    assert space[FAR + 100 : FAR + 103].tolist() == [7, 8, 9]
    assert space[2 * FAR + 100 : 2 * FAR + 103].tolist() == [4, 5, 6]


def test_reductions_beyond_31_bits() -> None:
    """Of rows and of columns so far apart."""
    tensor = torch.from_numpy(three_far_rows())
    for axes, wanted in (((0,), [12, 15, 18]), ((1,), [6, 15, 24])):
        nest, _ = nest_of("reduce", TensorType(INT8, (3, 3)), kind="sum", axes=axes)
        nest = replace(nest, operands=(Operand(INT8, (3, 3), (FAR, 1)),))
        kernel = kernel_of(nest, [Operand(INT8, (3,), (1,))])
        for schedule in (chosen(kernel, {}), small(kernel)):
            out = torch.zeros(3, dtype=torch.int8)
            launch(nest_kernel(kernel, schedule), [tensor], [out], {})
            assert out.tolist() == wanted


def test_more_elements_than_31_bits_number() -> None:
    """The last tile: of a flat kernel, of so many rows, and of rows flattened from two axes."""
    count = 2**32 + 5
    for shape, axis in (((count,), 0), ((count, 3), 0), ((2, count, 3), 1)):
        nest, _ = nest_of("iota", shape=shape, axis=axis)
        # All results lie at one place, where those of the last rows stay.
        kernel = kernel_of(nest, [Operand(INT64, shape, (0,) * len(shape))])
        made = nest_kernel(kernel)
        tiles = made.tiles
        assert isinstance(tiles, int)
        assert tiles > 2**20
        text = made.source.text.replace("range(tl.program_id(0), ", f"range({tiles - 1}, ")
        out = torch.zeros(1, dtype=torch.int64)
        last = replace(made, source=replace(made.source, text=text))
        launch(last, [], [out], {}, programs=1)
        assert int(out) == count - 1
