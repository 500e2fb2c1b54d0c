"""Explaining a model: the groups that its nodes were fused into, their shapes, their memory.

What it says comes from the lowered graphs alone. Nothing is compiled or run here; the estimates
are the planner's, for the hardware model that is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from ftuner.core.dim import Dim, Shape, evaluate, product, symbols_of
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.steps import (
    AttentionStep,
    Lowered,
    NestStep,
    ProductStep,
    Step,
    TopKStep,
)
from ftuner.hardware.model import CpuHardware
from ftuner.report.explain import explain
from ftuner.report.units import duration

KINDS = {NestStep: "nest", ProductStep: "product", AttentionStep: "attention", TopKStep: "top-k"}


@dataclass(frozen=True)
class Target:
    """What estimates are for."""

    hardware: CpuHardware
    isa: str
    workers: int


@dataclass(frozen=True)
class FusedGroup:
    """One step of a program: nodes that run as one."""

    number: int
    """Counted from 1, in the order in which steps run."""
    kind: str
    """One of the values of `KINDS`."""
    title: str
    """The operators fused into it, in their order."""
    shapes: str
    """Of a product `a @ b -> c`, of an attention its operands and result, of a nest its loops:
    axes of the result, and those that are reduced; of a top-k its rows."""
    reads_bytes: int | None
    """Of all that it reads, each buffer once; None while extents are not known."""
    writes_bytes: int | None
    estimate_s: float | None
    """The planner's, of the product by its packed weight alone; None of other steps."""
    measured_s: float | None
    """Of the step run by itself, if it was."""


@dataclass(frozen=True)
class ModelExplanation:
    """What became of a model."""

    groups: tuple[FusedGroup, ...]
    extents: Mapping[str, int]
    """The symbols that were bound."""
    live_bytes: int | None
    """The most bytes of intermediate results alive at one time, which is the least that an arena
    can do with; of several programs, all of theirs. None while extents are not known."""
    weight_bytes: int

    @property
    def estimate_s(self) -> float:
        """Of all products that have an estimate."""
        return sum(group.estimate_s or 0.0 for group in self.groups)

    def to_document(self) -> dict[str, Any]:
        """The explanation as nested dicts and lists, which JSON can hold."""
        return {
            "extents": dict(self.extents),
            "live_bytes": self.live_bytes,
            "weight_bytes": self.weight_bytes,
            "groups": [
                {
                    "number": group.number,
                    "kind": group.kind,
                    "title": group.title,
                    "shapes": group.shapes,
                    "reads_bytes": group.reads_bytes,
                    "writes_bytes": group.writes_bytes,
                    "estimate_s": group.estimate_s,
                    "measured_s": group.measured_s,
                }
                for group in self.groups
            ],
        }


def explain_model(
    programs: Sequence[Lowered],
    extents: Mapping[str, int],
    target: Target | None = None,
    step_seconds: Sequence[float] | None = None,
) -> ModelExplanation:
    """Describe the steps of lowered graphs.

    Args:
        programs: what runs, one after the other.
        extents: values of symbols; those that are missing stay symbols.
        target: what products are estimated for; none are without it, or where extents are missing.
        step_seconds: a measured time for each step.
    """
    steps = [step for program in programs for step in program.steps]
    times = [None] * len(steps) if step_seconds is None else step_seconds
    groups = tuple(
        _group(number, step, extents, target, seconds)
        for number, (step, seconds) in enumerate(zip(steps, times, strict=True), 1)
    )
    weights = {b for step in steps for b in step.reads if b.array is not None}
    live = [_live_bytes(program, extents) for program in programs]
    return ModelExplanation(
        groups,
        extents,
        None if None in live else sum(size for size in live if size is not None),
        sum(b.array.nbytes for b in weights if b.array is not None),
    )


def model_table(found: ModelExplanation, title: str) -> Table:
    """One row a group."""
    table = Table(title=title, title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("kind")
    table.add_column("operators", overflow="fold")
    table.add_column("shapes", overflow="fold")
    rows = [(group.estimate_s, group.measured_s) for group in found.groups]
    shown = [i for i in range(2) if any(row[i] is not None for row in rows)]
    for i in shown:
        table.add_column(("estimate", "measured")[i], justify="right")
    for group, row in zip(found.groups, rows, strict=True):
        times = [row[i] for i in shown]
        # Brackets are markup to rich unless they are escaped.
        cells = (str(group.number), group.kind, group.title, group.shapes.replace("[", r"\["))
        table.add_row(*cells, *("" if s is None else duration(s) for s in times))
    return table


def _group(
    number: int,
    step: Step,
    extents: Mapping[str, int],
    target: Target | None,
    measured_s: float | None,
) -> FusedGroup:
    shapes, estimate_s = "", None
    if isinstance(step, NestStep):
        shapes = _shape(step.kernel.kept, extents)
        if step.kernel.reduced:
            shapes += f" over {_shape(step.kernel.reduced, extents)}"
    elif isinstance(step, ProductStep):
        a, b, c = (_shape(v.shape, extents) for v in (step.a, step.b, step.c))
        shapes = f"{a} @ {b} -> {c}"
        estimate_s = _estimate_s(step, extents, target)
    elif isinstance(step, AttentionStep):
        named = [("q", step.q), ("k", step.k), ("v", step.v)]
        named += [("mask", step.mask)] if step.mask is not None else []
        operands = ", ".join(f"{name} {_shape(v.shape, extents)}" for name, v in named)
        shapes = f"{operands} -> {_shape(step.out.shape, extents)}"
        limit = step.weighting.causal
        if limit is not None:
            known = _known(limit, extents)
            shapes += f", keys j <= i + {limit if known is None else known}"
    else:
        rows, best = _shape((step.rows, step.count), extents), (step.rows, step.wanted)
        shapes = f"{rows} -> {_shape(best, extents)}"
    return FusedGroup(
        number, KINDS[type(step)], step.title, shapes,
        _bytes(step.reads, extents), _bytes(step.writes, extents), estimate_s, measured_s,
    )  # fmt: skip


def _estimate_s(
    step: ProductStep, extents: Mapping[str, int], target: Target | None
) -> float | None:
    if target is None or not _is_weight(step.b):
        return None
    k, n = (_known(d, extents) for d in step.b.shape)
    m = _known(product(step.c.shape[:-1]), extents)
    if not (m and n and k):
        return None
    dtype = step.c.layout.dtype.name
    found = explain(m, n, k, 1, dtype, target.workers, target.hardware, target.isa)
    return found.estimate.seconds


def _is_weight(view: View) -> bool:
    """Whether a model packs it once, as `Dense` does."""
    return view.buffer.array is not None and len(view.shape) == 2 and view.contiguous


def _live_bytes(lowered: Lowered, extents: Mapping[str, int]) -> int | None:
    """The most bytes of the arena's buffers that are between their first and last use at once."""
    spans: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(lowered.steps):
        for buffer in (*step.writes, *step.reads):
            if buffer.kind == "arena":
                first, _ = spans.get(buffer, (number, number))
                spans[buffer] = first, number
    most = 0
    for number in range(len(lowered.steps)):
        alive = tuple(b for b, (first, last) in spans.items() if first <= number <= last)
        size = _bytes(alive, extents)
        if size is None:
            return None
        most = max(most, size)
    return most


def _bytes(buffers: tuple[Buffer, ...], extents: Mapping[str, int]) -> int | None:
    total = 0
    for buffer in dict.fromkeys(buffers):
        elements = _known(buffer.elements, extents)
        if elements is None:
            return None
        total += elements * buffer.dtype.itemsize
    return total


def _known(dim: Dim, extents: Mapping[str, int]) -> int | None:
    """A dim's value; None if it has symbols that are not bound."""
    return evaluate(dim, extents) if extents.keys() >= set(symbols_of((dim,))) else None


def _shape(shape: Shape, extents: Mapping[str, int]) -> str:
    dims = []
    for dim in shape:
        value = _known(dim, extents)
        dims.append(str(dim if value is None else value))
    return f"[{', '.join(dims)}]"
