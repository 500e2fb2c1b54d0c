"""Explaining a model: the groups that its nodes were fused into, plans, estimates, memory.

Reports are made from lowered graphs. Nothing is compiled or run here: estimates are arithmetic on
the given hardware model, and the caller gives the times and memory of the compiled model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from itertools import accumulate
from typing import Any

from ftuner.codegen.llvm.native.records import SLACK_BYTES
from ftuner.core.dim import Dim, symbols_of
from ftuner.core.dtype import FLOAT32
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.product import ProductTypes, product_types
from ftuner.core.shown import Saved
from ftuner.core.units import capacity, count, duration
from ftuner.cost.step import Machine
from ftuner.graph.buffers import Buffer
from ftuner.graph.steps import Lowered, Step
from ftuner.planner.cpu.plan import Plan
from ftuner.report.roofline import Roofline, roofline_of
from ftuner.runtime.cpu.plan_records import aligned
from ftuner.runtime.cpu.program import arena_buffers, stages
from ftuner.runtime.cpu.step_kind import StepReport, kind_of
from ftuner.runtime.kept_memory import Memory
from ftuner.runtime.shapes.layout import Lifetime, first_fit


@dataclass(frozen=True)
class FusedGroup:
    """One step of a program: nodes that run together. Fields that depend on extents or on the
    machine are None if these are not given."""

    number: int
    """Counted from 1, in the order in which steps run."""
    kind: str
    """The kind of the step: `nest`, `product`, `convolution`, `depthwise`, `attention`..."""
    title: str
    """The operators fused into it, in their order."""
    shapes: str
    """`a @ b -> c` of a product; the operands and result of attention; the loops of a nest, kept
    and reduced; the rows of a top-k."""
    plan: str | None
    """The tiles and the grid of a product, the blocks of attention, the vector axis of a nest; and
    the number of tasks."""
    flops: int | None
    reads_bytes: int | None
    """Bytes of all elements that it reads, each counted once."""
    writes_bytes: int | None
    estimate_s: float | None
    bound: str | None
    """The bound of the estimate: `compute`, `l3` or `dram`."""
    measured_s: float | None
    """Seconds of the step run alone, if it was measured."""

    @property
    def bytes_moved(self) -> int | None:
        if self.reads_bytes is None or self.writes_bytes is None:
            return None
        return self.reads_bytes + self.writes_bytes

    @property
    def measured_over_estimate(self) -> float | None:
        if self.measured_s is None or not self.estimate_s:
            return None
        return self.measured_s / self.estimate_s


@dataclass(frozen=True, repr=False)
class ModelExplanation(Saved):
    """The fused groups of a model, with its memory and its place under the roofline."""

    groups: tuple[FusedGroup, ...]
    extents: Mapping[str, int]
    """The symbols that were bound."""
    live_bytes: int | None
    """The most bytes of intermediate results alive at one time: the least possible size of an
    arena, summed over programs. None if extents are not known."""
    weight_bytes: int
    """Bytes of constants, as the graph has them."""
    memory: Memory | None
    """Memory of the compiled model, if it is given."""
    roofline: Roofline | None
    """The whole model under the roofline, if all steps have an estimate."""
    plans: Mapping[int, Plan]
    """The plans of products on a CPU, by the number of the group."""
    arenas: tuple[ArenaMap, ...]
    """The arena of each program on a CPU; none without a machine or if extents are not known."""
    title: str = "model"
    """What a page of it is headed by."""
    appended: Mapping[str, str] = field(default_factory=dict)
    """Outputs that append to an input in place, by the name of the input."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Why inputs are copied to outputs that begin with them, by the name of the input."""
    ragged: Sequence[tuple[str, str]] = ()
    """As `Model.ragged`."""
    padding_kept: str = ""
    """As `Model.padding_kept`."""

    def summary(self) -> str:
        parts = [self.title, count(len(self.groups), "step")]
        parts.append(f"weights {capacity(self.weight_bytes)}")
        if self.estimate_s:
            parts.append(f"estimated {duration(self.estimate_s)}")
        if self.measured_s:
            parts.append(f"measured {duration(self.measured_s)}, one by one")
        if self.memory is not None:
            parts.append(f"memory {capacity(self.memory.total_bytes)}")
        return "; ".join(parts)

    @property
    def estimate_s(self) -> float:
        """The sum of all groups that have an estimate."""
        return sum(group.estimate_s or 0.0 for group in self.groups)

    @property
    def measured_s(self) -> float:
        """The sum of all groups that were measured."""
        return sum(group.measured_s or 0.0 for group in self.groups)

    @property
    def flops(self) -> int:
        return sum(group.flops or 0 for group in self.groups)

    @property
    def bytes_moved(self) -> int:
        return sum(group.bytes_moved or 0 for group in self.groups)

    def to_document(self) -> dict[str, Any]:
        """The explanation as nested dicts and lists, which JSON can hold."""
        memory, line = self.memory, self.roofline
        return {
            "extents": dict(self.extents),
            "live_bytes": self.live_bytes,
            "weight_bytes": self.weight_bytes,
            "memory": None if memory is None else asdict(memory),
            "appended": dict(self.appended),
            "copied": dict(self.copied),
            "ragged": [{"step": title, "why": why} for title, why in self.ragged],
            "padding_kept": self.padding_kept,
            "groups": [
                {**asdict(g), "measured_over_estimate": g.measured_over_estimate}
                for g in self.groups
            ],
            "estimate_s": self.estimate_s,
            "measured_s": self.measured_s,
            "flops": self.flops,
            "bytes_moved": self.bytes_moved,
            "roofline": None if line is None else line.to_document(),
        }


def explain_model(
    programs: Sequence[Lowered],
    extents: Mapping[str, int],
    machine: Machine | None = None,
    step_seconds: Sequence[float] | None = None,
    memory: Memory | None = None,
    weight_bytes: int | None = None,
    title: str = "model",
) -> ModelExplanation:
    """Describe the steps of lowered graphs.

    Args:
        programs: lowered graphs that run one after the other.
        extents: values of symbols; those that are missing stay symbols.
        machine: of the estimates. Steps have none without it, or if extents are missing.
        step_seconds: a measured time for each step.
        memory: the memory of the compiled model.
        weight_bytes: the bytes of constants, where the steps are without those that are packed.
        title: what a page is headed by.
    """
    steps = [step for program in programs for step in program.steps]
    times = [None] * len(steps) if step_seconds is None else step_seconds
    reports = _reports(steps, extents, machine)
    groups = tuple(
        _group(number, step, extents, report, seconds)
        for number, (step, report, seconds) in enumerate(zip(steps, reports, times, strict=True), 1)
    )
    if weight_bytes is None:
        weight_bytes = sum(b.elements_bytes for b in {b for step in steps for b in step.reads})
    unwritten = _unwritten(steps, reports)
    live = [_live_bytes(program, extents, unwritten) for program in programs]
    return ModelExplanation(
        groups,
        extents,
        None if None in live else sum(size for size in live if size is not None),
        weight_bytes,
        memory,
        _roofline(steps, reports, machine),
        {n: r.product for n, r in enumerate(reports, 1) if r is not None and r.product is not None},
        () if machine is None else _arenas(programs, extents, unwritten),
        title,
    )


def _reports(
    steps: Sequence[Step], extents: Mapping[str, int], machine: Machine | None
) -> list[StepReport | None]:
    """The report of each step; None without a machine, or if an extent is not known."""
    if machine is None:
        return [None] * len(steps)
    known = [_bound(_dims(step), extents) for step in steps]
    kinds = [kind_of(step) for step in steps]
    # Between two runs of a step, the bytes of all other steps evict its weights from the caches.
    first = [
        kind_of(s).report(s, extents, machine, 0) for s, k in zip(steps, known, strict=True) if k
    ]
    resident = sum(report.cost.bytes_moved for report in first)
    return [
        kind.report(step, extents, machine, resident) if k else None
        for kind, step, k in zip(kinds, steps, known, strict=True)
    ]


def _dims(step: Step) -> list[Dim]:
    """What the work of a step depends on."""
    return [*(b.elements for b in (*step.reads, *step.writes)), *step.dims]


def _roofline(
    steps: Sequence[Step], reports: Sequence[StepReport | None], machine: Machine | None
) -> Roofline | None:
    costs = [report.cost for report in reports if report is not None]
    flops, moved = sum(c.flops for c in costs), sum(c.bytes_moved for c in costs)
    if machine is None or len(costs) < len(steps) or not (flops and moved):
        return None
    seconds = sum(c.estimate.seconds for c in costs)
    return roofline_of(flops, moved, seconds, _product_types(steps), machine)


def _product_types(steps: Sequence[Step]) -> ProductTypes:
    """The types of the multiply-adds of a program: the widest of its products."""
    dtypes = [dtype for s in steps if (dtype := kind_of(s).multiplied(s)) is not None]
    return product_types(max(dtypes, key=lambda dtype: dtype.itemsize, default=FLOAT32))


def _group(
    number: int,
    step: Step,
    extents: Mapping[str, int],
    report: StepReport | None,
    measured_s: float | None,
) -> FusedGroup:
    def text(dim: Dim) -> str:
        return str(evaluate(dim, extents) if _bound((dim,), extents) else dim)

    cost = None if report is None else report.cost
    kind = step.kind if report is None or report.kind is None else report.kind
    return FusedGroup(
        number,
        kind.replace("_", "-"),
        step.title,
        step.described(text),
        None if report is None else report.plan,
        None if cost is None else cost.flops,
        None if cost is None else cost.reads_bytes,
        None if cost is None else cost.writes_bytes,
        None if cost is None else cost.estimate.seconds,
        None if cost is None else cost.estimate.bound,
        measured_s,
    )


def _unwritten(steps: Sequence[Step], reports: Sequence[StepReport | None]) -> frozenset[Buffer]:
    """Buffers of which no writer has work, because another step does it."""
    buffers = {buffer for step in steps for buffer in step.writes}
    written = {
        buffer
        for step, report in zip(steps, reports, strict=True)
        if report is None or report.cost.writes_bytes
        for buffer in step.writes
    }
    return frozenset(buffers - written)


def _arenas(
    programs: Sequence[Lowered], extents: Mapping[str, int], unwritten: frozenset[Buffer]
) -> tuple[ArenaMap, ...]:
    firsts = accumulate((len(program.steps) for program in programs), initial=1)
    found = [
        arena_map(program, extents, n, unwritten)
        for program, n in zip(programs, firsts, strict=False)
    ]
    return tuple(arena for arena in found if arena is not None)


def _live_bytes(
    lowered: Lowered, extents: Mapping[str, int], unwritten: frozenset[Buffer]
) -> int | None:
    """The most bytes of the arena's buffers that are alive, from first to last use, at once."""
    spans = {b: span for b, span in lowered.lifetimes().items() if b not in unwritten}
    sizes = _sizes(spans, extents)
    if sizes is None:
        return None
    alive = [0] * (len(lowered.steps) + 1)
    for size, (first, last) in zip(sizes, spans.values(), strict=True):
        alive[first] += size
        alive[last + 1] -= size
    return max(accumulate(alive))


def _sizes(buffers: Collection[Buffer], extents: Mapping[str, int]) -> list[int] | None:
    """The bytes of each; None if extents are missing."""
    if not _bound([b.elements for b in buffers], extents):
        return None
    return [evaluate(b.elements, extents) * b.dtype.itemsize for b in buffers]


def _bound(dims: Sequence[Dim], extents: Mapping[str, int]) -> bool:
    """Whether all symbols of dims have a value."""
    return extents.keys() >= set(symbols_of(dims))


NAMED = 4
"""Most names that a text has one by one."""


def growth_facts(appended: Mapping[str, str], copied: Mapping[str, str]) -> dict[str, str]:
    """`Model.appended` and `Model.copied` by what they are, without those that are empty."""
    facts = {}
    if appended:
        pairs = [f"{output} to {given}" for given, output in appended.items()]
        facts["appended in place"] = _some(pairs)
    by_reason: dict[str, list[str]] = {}
    for given, why in copied.items():
        by_reason.setdefault(why, []).append(given)
    if by_reason:
        parts = (f"{_some(names)} ({why})" for why, names in by_reason.items())
        facts["copied"] = "; ".join(parts)
    return facts


def batch_facts(found: ModelExplanation) -> dict[str, str]:
    """How batches run: the steps that run once for all requests, those that do not by the reason,
    and whether padding is left out."""
    if not found.ragged:
        return {}
    by_reason = Counter(why for _, why in found.ragged)
    once, total = by_reason.pop("", 0), count(len(found.ragged), "step")
    parts = [f"{once} of {total} run once for all requests"]
    if by_reason:
        whys = (f"{why} ({count(n, 'step')})" for why, n in by_reason.most_common())
        parts.append(f"others for one after the other: {', '.join(whys)}")
    kept = f"kept: {found.padding_kept}" if found.padding_kept else "left out"
    return {"in a batch": "; ".join(parts), "padding of a batch": kept}


def _some(names: Sequence[str]) -> str:
    """The first of some names, and the number of the others."""
    left = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {left} more" if left > 0 else "")


@dataclass(frozen=True)
class Place:
    """One intermediate result."""

    offset: int
    """In bytes."""
    size_bytes: int
    first: int
    """The step that writes it, counted from 1."""
    last: int
    """The last step of the stage that reads it last."""


@dataclass(frozen=True)
class ArenaMap:
    """The arena of one program."""

    places: tuple[Place, ...]
    size_bytes: int
    first: int
    """The first step of the program, counted from 1 over all programs of a model."""
    last: int


def arena_map(
    lowered: Lowered, extents: Mapping[str, int], first: int, unwritten: Collection[Buffer] = ()
) -> ArenaMap | None:
    """The arena of a program whose first step has the number `first`; None if extents are missing.
    The places are those of a run on a CPU that keeps no results of invariant steps. `unwritten`:
    buffers that no step has work to write."""
    begins = stages(lowered.steps)
    buffers = [found for found in arena_buffers(lowered, begins) if found[0] not in unwritten]
    sizes = _sizes([buffer for buffer, _, _ in buffers], extents)
    if sizes is None:
        return None
    lifetimes = [Lifetime(begin, end) for _, begin, end in buffers]
    offsets, total = first_fit(lifetimes, [aligned(size + SLACK_BYTES) for size in sizes])
    written = {b: n for n, step in enumerate(lowered.steps) for b in reversed(step.writes)}
    last_of = {begin: number for number, begin in enumerate(begins)}
    found = [
        Place(offset, size, first + written.get(buffer, begin), first + last_of[end])
        for offset, size, (buffer, begin, end) in zip(offsets, sizes, buffers, strict=True)
    ]
    return ArenaMap(tuple(found), total, first, first + len(lowered.steps) - 1)
