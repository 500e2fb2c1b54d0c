"""Values as texts for a terminal and as HTML for a notebook: what `ftuner.core.shown` asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import singledispatch
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from ftuner.core.units import capacity, count, duration, optional
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.tuning import CpuTuning
from ftuner.planner.cpu.plan import Plan
from ftuner.planner.gpu.plan import ProductPlan
from ftuner.report import html as pages
from ftuner.report.charts import plan_chart
from ftuner.report.explain import BlockExplanation, Explanation
from ftuner.report.hardware import hardware_values, tuned_values
from ftuner.report.html import Html, element
from ftuner.report.model import ModelExplanation, batch_facts, explain_model, growth_facts
from ftuner.report.page import model_sections, save_page, steps_table
from ftuner.report.picture import plan_picture
from ftuner.report.plots import save_picture
from ftuner.report.tables import table
from ftuner.report.tuned import TuneReport
from ftuner.report.tuning import filter_rows
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.model import Model
from ftuner.ukernels.funnel import Funnel

WIDTH = 100
"""Columns of a text."""
PICTURE_LINES = 16
"""Most lines of the picture of a plan in a text."""
ROWS = (1, 16, 128)
"""Rows of x for which the plans of a layer are shown."""
LISTED = 12
"""Most inputs and outputs, groups or constants that a text lists."""


@singledispatch
def text(value: Any) -> str:
    """A value as a text of a few lines."""
    return repr(value)


@singledispatch
def html(value: Any) -> str:
    """A value as a fragment of HTML, with its own style."""
    return pages.fragment([element("p", repr(value))])


@singledispatch
def save(value: Any, path: str | PathLike[str]) -> None:
    """Draw a value to a file.

    Raises:
        ConfigurationError: an unsuitable name, or the file cannot be written.
    """
    title = value.summary()
    pages.save(pages.page(title, [Html(html(value))]), Path(path))


def _printed(*parts: RenderableType) -> str:
    """Tables and texts without colours."""
    out = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
    with out.capture() as found:
        for part in parts:
            out.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in found.get().splitlines())


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    more = [(f"... {len(rows) - LISTED} more",)] if len(rows) > LISTED else []
    return table(title, head, [*rows[:LISTED], *more])


def _fragment(title: str, *parts: Html) -> str:
    return pages.fragment([element("h3", title), *parts])


@text.register
def _(value: CpuHardware) -> str:
    isas = [(isa.name, isa.summary().partition(": ")[2]) for isa in value.isas]
    levels = [(level.name, level.summary().partition(": ")[2]) for level in value.levels]
    return _printed(
        value.summary(), _table("instruction sets", ("name", "a core"), isas),
        _table("memory", ("level", ""), levels), f"tuning: {value.tuning.summary()}",
    )  # fmt: skip


@text.register
def _(value: GpuHardware) -> str:
    found = [(i.name, i.summary().partition(": ")[2]) for i in value.matrix_instructions]
    return _printed(
        value.summary(), _table("matrix instructions", ("name", ""), found),
        f"tuning: {value.tuning.summary()}",
    )  # fmt: skip


@html.register(CpuHardware)
@html.register(GpuHardware)
def _(value: CpuHardware | GpuHardware) -> str:
    values = [tuple(row) for row in hardware_values(value)]
    return _fragment(
        value.summary(), pages.table(("part", "quantity", "value", "provenance"), values),
        element("details", element("summary", f"Tuning: {value.tuning.summary()}"),
                _constants(value.tuning)),
    )  # fmt: skip


@text.register(CpuTuning)
@text.register(GpuTuning)
def _(value: CpuTuning | GpuTuning) -> str:
    tuned = sorted(tuned_values(value), key=lambda t: not t.own)
    rows = [(t.name, t.value, t.origin if t.own else "default") for t in tuned]
    return _printed(_table(value.summary(), ("constant", "value", "provenance"), rows))


@html.register(CpuTuning)
@html.register(GpuTuning)
def _(value: CpuTuning | GpuTuning) -> str:
    return _fragment(value.summary(), _constants(value))


def _constants(tuning: CpuTuning | GpuTuning) -> Html:
    rows = [(t.name, t.value, t.default, t.origin, t.meaning) for t in tuned_values(tuning)]
    return pages.table(("constant", "value", "default", "provenance", "meaning"), rows)


@text.register
def _(value: Funnel) -> str:  # type: ignore[type-arg]
    return _printed(_table(value.summary(), _FILTERS, filter_rows(value)))


@html.register
def _(value: Funnel) -> str:  # type: ignore[type-arg]
    return _fragment("Tiles", _funnel(value))


@text.register
def _(value: TuneReport) -> str:
    return _printed(
        value.summary(), *_measured(value), _table("tiles", _FILTERS, filter_rows(value.funnel))
    )


@html.register
def _(value: TuneReport) -> str:
    said = (element("p", line) for line in _measured(value))
    return _fragment(value.summary(), *said, _funnel(value.funnel))


_FILTERS = ("step", "pruned", "left", "reason")


def _funnel(funnel: Funnel[Any]) -> Html:
    return pages.table(_FILTERS, filter_rows(funnel), _FILTERS[1:3])


def _measured(value: TuneReport) -> list[str]:
    """What is known of the machine since this tuning, a sentence each."""
    found = []
    if value.prior is not None:
        taken = count(len(value.prior.constants), "constant")
        found.append(f"taken over from {value.prior.machine}: {taken}")
    if value.calibration is not None:
        measured = count(len(value.calibration.found), "constant")
        found.append(f"measured on this machine: {measured}")
    if value.learned is not None:
        found.append(f"learned from {count(value.learned.samples, 'sample')}: {value.learned.why}")
    return found


@text.register(Plan)
@text.register(ProductPlan)
def _(value: Plan | ProductPlan) -> str:
    return _printed(value.summary(), plan_picture(value, PICTURE_LINES))


@html.register(Plan)
@html.register(ProductPlan)
def _(value: Plan | ProductPlan) -> str:
    return _fragment(value.summary(), plan_chart(value))


@text.register(Explanation)
@text.register(BlockExplanation)
def _(value: Explanation | BlockExplanation) -> str:
    said = (f"{k}: {v}" for k, v in _said(value).items())
    return _printed(value.summary(), plan_picture(value.plan, PICTURE_LINES), *said)


@html.register(Explanation)
@html.register(BlockExplanation)
def _(value: Explanation | BlockExplanation) -> str:
    drawn = plan_chart(value.plan)
    return _fragment(value.summary(), drawn, pages.table(("", ""), list(_said(value).items())))


def _said(value: Explanation | BlockExplanation) -> dict[str, str]:
    """The estimate by terms, the roofline, and what is computed in vain."""
    terms = value.estimate.terms().items()
    return {
        "estimate": ", ".join(f"{n.removesuffix('_s')} {duration(s)}" for n, s in terms if s),
        "roofline": value.roofline.summary(),
        "computed and not stored": f"{value.wasted_fraction:.1%}",
    }


@save.register(Explanation)
@save.register(BlockExplanation)
def _(value: Explanation | BlockExplanation, path: str | PathLike[str]) -> None:
    if Path(path).suffix.lower() in pages.SUFFIXES:
        pages.save(pages.page(value.summary(), [Html(html(value))]), Path(path))
    else:
        save_picture(value, Path(path))


@text.register
def _(value: Dense) -> str:
    rows = [(str(m), str(plan.summary().partition(": ")[2]), t) for m, plan, t in _plans(value)]
    return _printed(
        value.summary(), _weight(value), _table("plans", ("rows", "plan", "estimate"), rows)
    )


@html.register
def _(value: Dense) -> str:
    parts = []
    for m, plan, seconds in _plans(value):
        parts += [element("h3", f"{count(m, 'row')}, estimated {seconds}"), plan_chart(plan)]
    return _fragment(value.summary(), element("p", _weight(value)), *parts)


def _weight(layer: Dense) -> str:
    columns = layer.panels.width * layer.products.compiled.library.lanes
    return f"weight: {capacity(layer.panels.packed.nbytes)} in panels of {columns} columns"


def _plans(layer: Dense) -> list[tuple[int, Plan, str]]:
    """For some numbers of rows, the plan and its estimate."""
    planner, found = layer.products.planner, []
    for m in ROWS:
        plan = planner.plan(layer.problem(m))
        found.append((m, plan, duration(planner.estimate(plan).seconds)))
    return found


@text.register
def _(value: Model) -> str:
    kinds = Counter(step.kind.replace("_", "-") for step in value.steps)
    steps = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return _printed(
        f"{count(len(value.steps), 'step')} of a run: {steps}; {count(value.threads, 'thread')}; "
        f"weights {capacity(value.weights_bytes)}",
        *_growth(value),
        _table("inputs and outputs", _TENSORS, _tensors(value)),
    )


@html.register
def _(value: Model) -> str:
    found = explain_model(value.programs, {}, weight_bytes=value.weights_bytes)
    facts = {
        "steps of a run": str(len(value.steps)),
        "threads": str(value.threads),
        "weights": capacity(value.weights_bytes),
        **growth_facts(value.appended, value.copied),
    }
    return pages.fragment(
        [pages.facts(facts), pages.table(_TENSORS, _tensors(value)), steps_table(found)]
    )


_TENSORS = ("", "name", "dtype", "shape")


def _tensors(model: Model) -> list[tuple[str, str, str, str]]:
    return [
        (where, pages.name_text(t.name), t.dtype, f"[{', '.join(map(str, t.shape))}]")
        for where, tensors in (("input", model.inputs), ("output", model.outputs))
        for t in tensors
    ]


@text.register
def _(value: ModelExplanation) -> str:
    heaviest = sorted(value.groups, key=lambda g: -(g.measured_s or g.estimate_s or 0.0))[:LISTED]
    shown = [g for g in value.groups if g in heaviest]
    title = f"the {count(len(shown), 'step')} that take longest" if shown else "steps"
    rows = [
        (
            str(g.number),
            g.kind,
            pages.name_text(g.title),
            optional(g.estimate_s, duration),
            optional(g.measured_s, duration),
        )
        for g in shown
    ]
    return _printed(
        value.summary(), *_growth(value), *map(": ".join, batch_facts(value).items()),
        _table(title, ("#", "kind", "operators", "estimate", "measured"), rows),
    )  # fmt: skip


def _growth(value: Model | ModelExplanation) -> list[str]:
    facts = growth_facts(value.appended, value.copied)
    return [f"{name}: {names}" for name, names in facts.items()]


@html.register
def _(value: ModelExplanation) -> str:
    return pages.fragment(model_sections(value, value.title, {}))


@save.register
def _(value: ModelExplanation, path: str | PathLike[str]) -> None:
    save_page(value, Path(path), value.title, {})
