"""Kernels of the general schedule in Triton's interpreter, launched as a GPU would be told to."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tests.codegen.llvm.nest_running import Array, Bindings, Case
from tests.gpu_kernels import BLOCK_SIZES

from ftuner.codegen.triton.source import load
from ftuner.core.access import Kernel
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.evaluation import evaluate
from ftuner.core.gpu.schedule import Schedule, best_schedule, reduced_elements, schedules_of
from ftuner.schedules.nest.gpu_kernel import NestKernel

PROGRAMS = 3
"""Fewer than there are tiles, mostly, so that programs do several."""

FEW = ({"A": 1, "B": 7, "C": 13}, {"A": 3, "B": 2, "C": 0})
"""What small blocks are run on."""


def buffer(array: Array) -> torch.Tensor:
    """The memory of an array. Bool is bytes, as kernels have it."""
    return torch.from_numpy(array.view(np.uint8) if array.dtype == bool else array)


def launch(
    kernel: NestKernel,
    operands: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    bindings: Bindings,
    programs: int = PROGRAMS,
    parts: int = 2,
) -> int:
    """Run a kernel; `operands` are all those of the nest. `parts`: of a split schedule. Returns the
    status."""
    status = torch.zeros(1, dtype=torch.int32)
    arguments = [*(operands[n] for n in operand_numbers(kernel.kernel)), *results]
    assert len(results) == len(kernel.kernel.values)
    if kernel.checks:
        arguments.append(status)
    dims = [evaluate(dim, bindings) for dim in kernel.parameters]
    tiles = evaluate(kernel.tiles, bindings)
    split: list[torch.Tensor | int] = []
    if kernel.schedule.split:
        workspace = torch.full((tiles * parts * kernel.part_elements,), float("nan"))
        split = [workspace, torch.zeros(tiles, dtype=torch.int32), parts]
    assert len(arguments) + len(dims) + len(split) == len(kernel.source.arguments)
    if tiles:
        load(kernel.source)[(min(tiles, programs),)](*arguments, *dims, *split)
    assert not any(torch.is_tensor(x) and x.dtype == torch.int32 and x.any() for x in split)
    return int(status)


def chosen(kernel: Kernel, bindings: Bindings) -> Schedule:
    """The schedule that a launcher takes."""
    schedules = schedules_of(kernel, BLOCK_SIZES)
    lanes = [evaluate(s.lanes(kernel), bindings) for s in schedules]
    reduced = evaluate(reduced_elements(kernel), bindings)
    return schedules[best_schedule(schedules, lanes, reduced, BLOCK_SIZES)]


def small(kernel: Kernel) -> Schedule:
    """The schedule that holds any extents, with blocks so small that all extents have several."""
    schedule = schedules_of(kernel, BLOCK_SIZES)[-1]
    rows, columns = schedule.block
    block = (min(rows, 2), min(columns, 8))
    if schedule.reduction == 0:
        block = (min(rows, 4), min(columns, 4))
    whole = schedule.whole and schedule.reduction is None
    return replace(schedule, block=block, whole=whole)


def is_slow(case: Case) -> bool:
    """Whether the interpreter takes a reduction element by element."""
    return case.op == "reduce" and case.attributes["kind"] == "product"
