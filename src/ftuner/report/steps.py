"""What one step of a program is at known extents: its plan in words, its work, its estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ftuner.core.evaluation import evaluate
from ftuner.cost.cpu.nest import NestCost, Operand
from ftuner.cost.cpu.top_k import TopKProblem, top_k_work
from ftuner.cost.functions import expression_cycles, expression_operations
from ftuner.cost.step import Machine, Stream, Work, estimate_of
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.steps import AttentionStep, NestStep, ProductStep, Step, TopKStep
from ftuner.planner.cpu.attention import (
    AttentionLayout,
    attention_blocks,
    attention_estimate,
)
from ftuner.planner.cpu.plan import Plan
from ftuner.planner.cpu.planner import planner_for
from ftuner.report.units import count
from ftuner.runtime.cpu.operands import step_problem
from ftuner.runtime.cpu.steps.attention import arranged
from ftuner.runtime.cpu.steps.kinds import kind_of
from ftuner.runtime.shapes.strides import StridedArray
from ftuner.ukernels.cpu.library import build_library

Extents = Mapping[str, int]
SOFTMAX_OPERATIONS = 5
"""On a score: its scale, the maximum, the difference, the power, the sum."""


class StepReport(NamedTuple):
    """A step at known extents."""

    plan: str
    work: Work


def report_of(step: Step, extents: Extents, machine: Machine, resident_bytes: int) -> StepReport:
    """`resident_bytes`: what passes between two runs of the step, which decides where its constants
    come from."""
    if isinstance(step, NestStep):
        return _nest(step, extents, machine, resident_bytes)
    if isinstance(step, ProductStep):
        return _product(step, extents, machine, resident_bytes)
    if isinstance(step, AttentionStep):
        return _attention(step, extents, machine)
    assert isinstance(step, TopKStep)
    return _top_k(step, extents, machine)


def _nest(step: NestStep, extents: Extents, machine: Machine, resident_bytes: int) -> StepReport:
    def operand(buffer: Buffer) -> Operand:
        size = evaluate(buffer.elements, extents) * buffer.dtype.itemsize
        return Operand(size, 0 if buffer.array is None else resident_bytes)

    cost = NestCost(step.kernel, extents, machine)
    work = cost.work([operand(b) for b in step.reads], [operand(b) for b in step.writes])
    schedule = cost.schedule
    walk = "scalars"
    if schedule.vector is not None:
        walk = f"{schedule.lanes} lanes along axis {schedule.vector}"
    return StepReport(f"{walk}, {count(cost.tasks, 'task')}", work)


def _top_k(step: TopKStep, extents: Extents, machine: Machine) -> StepReport:
    rows, extent, wanted = (evaluate(d, extents) for d in (step.rows, step.count, step.wanted))
    problem = TopKProblem(rows, extent, wanted, step.x.layout.dtype.itemsize)
    return StepReport(count(rows, "task"), top_k_work(problem, machine))


def _attention(step: AttentionStep, extents: Extents, machine: Machine) -> StepReport:
    q, k, v, *mask, out = (_strided(x, extents) for x in step.views)
    reads = sum(_touched(x, extents) for x in step.views[:-1])
    writes = _touched(step.out, extents)
    if 0 in (*q.shape, *v.shape):
        return StepReport("nothing", _nothing(machine))
    need = kind_of(step).required_families(
        step, machine.hardware, machine.isa.name, machine.workers
    )
    assert need is not None
    planner = planner_for(build_library(machine.hardware, machine.isa.name, *need.library))
    limit = step.weighting.causal
    offset = None if limit is None else evaluate(limit, extents)
    seen = mask[0] if mask else None
    problem = arranged(q, k, v, seen, out, offset, machine.workers).problem
    masked = step.mask is not None
    layout = AttentionLayout(masked, k.strides[-1] == k.itemsize, v.strides[-1] == v.itemsize)
    estimate = attention_estimate(planner, problem, layout, reads + writes)
    elements, rows, columns = problem.elements, problem.rows, problem.columns
    scores = elements * sum(problem.seen(row + 1) for row in range(rows))
    flops = 2 * scores * (problem.depth + columns) + (SOFTMAX_OPERATIONS + masked) * scores
    flops += elements * rows * columns
    block, splits, _ = attention_blocks(planner, problem)
    plan = f"blocks of {count(block, 'row')}, {count(elements * splits, 'task')}"
    return StepReport(plan, Work(flops, reads, writes, estimate))


def _product(
    step: ProductStep, extents: Extents, machine: Machine, resident_bytes: int
) -> StepReport:
    hardware, isa, workers = machine.hardware, machine.isa, machine.workers
    a, b, c, *operands = (_strided(view, extents) for view in step.views)
    reads = sum(_touched(view, extents) for view in (step.a, step.b, *step.operands))
    writes = _touched(step.c, extents)
    if 0 in (*a.shape, *c.shape):
        return StepReport("nothing", _nothing(machine))
    dtype, k = step.c.layout.dtype, b.shape[-2]
    need = kind_of(step).required_families(step, hardware, isa.name, workers)
    assert need is not None
    planner = planner_for(build_library(hardware, isa.name, *need.library))
    problem, _ = step_problem(a, b, c, operands, need.width, workers, hardware)
    plan = planner.plan(problem)
    estimate = planner.estimate(plan)
    used = plan.workers
    # What the planner leaves out: the epilogue, and weights that the rest of the program has pushed
    # out of the caches.
    elements = math.prod(c.shape)
    vectors = elements / isa.lanes(dtype) / used
    streams = []
    if step.b.buffer.array is not None:
        streams = [Stream(_touched(step.b, extents) / used, resident_bytes)]
    epilogue_cycles = vectors * expression_cycles(step.epilogue, dtype, isa, hardware.tuning)
    rest = estimate_of(machine, used, 0.0, 0.0, epilogue_cycles, streams)
    estimate = estimate._replace(
        l3_s=max(estimate.l3_s, rest.l3_s),
        dram_s=max(estimate.dram_s, rest.dram_s),
        tile_s=estimate.tile_s + rest.tile_s,
        synchronise_s=max(estimate.synchronise_s, rest.synchronise_s),
    )
    flops = elements * (2 * k + expression_operations(step.epilogue))
    return StepReport(_in_words(plan), Work(flops, reads, writes, estimate))


def _in_words(plan: Plan) -> str:
    """The tiles of the first worker, and how workers share the axes."""
    tiles = [
        f"{segments} x {band.family.kernels[mr - 1]}"
        for band in plan.shares[0].bands[:1]
        for mr, segments in band.segments
    ]
    cuts = [f"{axis} in {parts}" for axis, parts in plan.choice.grid._asdict().items() if parts > 1]
    chunks = [count(plan.chunks, "chunk")] if plan.chunks else []
    return ", ".join((*tiles, *cuts, *chunks))


def _nothing(machine: Machine) -> Work:
    return Work(0, 0, 0, estimate_of(machine, 1, 0.0, 0.0, 0.0, ()))


def _strided(view: View, extents: Extents) -> StridedArray:
    layout = view.layout
    size = layout.dtype.itemsize
    shape = tuple(evaluate(d, extents) for d in layout.shape)
    strides = tuple(size * evaluate(d, extents) for d in layout.strides)
    return StridedArray(shape, strides, size)


def _touched(view: View, extents: Extents) -> int:
    """Bytes of a view, those that are read again and again once."""
    array = _strided(view, extents)
    axes = zip(array.shape, array.strides, strict=True)
    elements = math.prod(n if stride or not n else 1 for n, stride in axes)
    return elements * array.itemsize
