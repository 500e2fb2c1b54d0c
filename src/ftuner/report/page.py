"""A model's explanation as one page of HTML that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from ftuner.core.product import extents_text
from ftuner.core.units import capacity, count, duration, optional, rate
from ftuner.planner.cpu.plan import Plan
from ftuner.report import html as pages
from ftuner.report.charts import Bar, Work, arena_chart, plan_chart, roofline_chart, timeline
from ftuner.report.html import Html, colour_key, element, html, linked, scrolled
from ftuner.report.model import FusedGroup, ModelExplanation, batch_facts, growth_facts
from ftuner.report.picture import COLOURS

DRAWN_PRODUCTS = 4
"""Plans whose patches are drawn: those of the heaviest products, each plan once."""


def save_page(found: ModelExplanation, path: Path, title: str, facts: Mapping[str, str]) -> None:
    """Write the page; see `model_page`.

    Raises:
        ConfigurationError: as `ftuner.report.html.save`.
    """
    pages.save(model_page(found, title, facts), path)


def model_page(found: ModelExplanation, title: str, facts: Mapping[str, str]) -> Html:
    """A page of `model_sections`."""
    return pages.page(title, model_sections(found, title, facts))


def model_sections(found: ModelExplanation, title: str, facts: Mapping[str, str]) -> list[Html]:
    """The groups of a model with their times, the roofline, the patches of its heaviest products
    and its arena. What is not known is left out. `facts`: what is said above all, by name."""
    colours = _colours(found.groups)
    bars = {g.number: _bar(g, colours) for g in found.groups}
    sections = [
        element("h1", title),
        pages.facts({**facts, **_sums(found)}),
        _times(found, bars, colours),
        _roofline(found, bars),
        _patches(found),
        _memory(found, bars),
        steps_table(found),
    ]
    return [section for section in sections if section is not None]


def seconds_of(group: FusedGroup) -> float | None:
    """The measured time of a group, or else its estimate."""
    return group.estimate_s if group.measured_s is None else group.measured_s


def _colours(groups: Sequence[FusedGroup]) -> dict[str, str]:
    """A colour for each kind, the heaviest kind first."""
    seconds: dict[str, float] = {}
    for group in groups:
        seconds[group.kind] = seconds.get(group.kind, 0.0) + (seconds_of(group) or 0.0)
    kinds = sorted(seconds, key=lambda kind: -seconds[kind])
    return {kind: COLOURS[n % len(COLOURS)] for n, kind in enumerate(kinds)}


def _bar(group: FusedGroup, colours: Mapping[str, str]) -> Bar:
    seconds = seconds_of(group)
    label = f"step {group.number}, {group.kind}: {group.title}"
    if seconds is not None:
        label += f", {duration(seconds)}"
    return Bar(label, _anchor(group.number), seconds or 0.0, colours[group.kind])


def _anchor(number: int) -> str:
    return f"step-{number}"


def _sums(found: ModelExplanation) -> dict[str, str]:
    facts = {"fused groups": str(len(found.groups)), "weights": capacity(found.weight_bytes)}
    if found.estimate_s:
        facts["estimate, all steps"] = duration(found.estimate_s)
    if found.measured_s:
        facts["measured, all steps"] = duration(found.measured_s)
    if found.flops:
        facts["work"] = rate(found.flops, "flop")
    if found.memory is not None:
        facts["memory"] = capacity(found.memory.total_bytes)
    return facts | growth_facts(found.appended, found.copied) | batch_facts(found)


def _times(
    found: ModelExplanation, bars: Mapping[int, Bar], colours: Mapping[str, str]
) -> Html | None:
    total = sum(bar.seconds for bar in bars.values())
    if not total:
        return None
    keys = []
    for kind, colour in colours.items():
        own = [g for g in found.groups if g.kind == kind]
        share = sum(bars[g.number].seconds for g in own) / total
        steps = element("small", f"({count(len(own), 'step')})")
        keys.append(element("span", colour_key(colour), f"{kind} {share:.0%} ", steps))
    timed = "measured" if found.measured_s else "estimated"
    return html(
        element("h2", "Time"),
        element("p", f"The {timed} time of each step, in their order. Point at a step to see "
                "what it is; click to go to its row."),
        scrolled(timeline(list(bars.values()))),
        element("div", *keys, class_="keys"),
    )  # fmt: skip


def _roofline(found: ModelExplanation, bars: Mapping[int, Bar]) -> Html | None:
    roofs = found.roofline
    if roofs is None:
        return None
    works = []
    for group in found.groups:
        seconds, moved = bars[group.number].seconds, group.bytes_moved
        if seconds and group.flops and moved:
            works.append(Work(bars[group.number], group.flops / moved, group.flops / seconds))
    seconds = found.measured_s or found.estimate_s
    said = (
        f"{roofs.flops_per_byte:.3g} flop/byte, bound by {roofs.bound}. A step's bytes are those "
        "of its operands and results, each counted once; steps that find them in a cache may be "
        "above the roof of DRAM. Steps without floating-point work are not drawn."
    )
    drawn = roofline_chart(roofs, works, found.flops / seconds)
    return html(element("h2", "Roofline"), element("p", said), scrolled(drawn))


def _patches(found: ModelExplanation) -> Html | None:
    by_plan: dict[Plan, list[FusedGroup]] = {}
    for group in sorted(found.groups, key=lambda g: -(seconds_of(g) or 0.0)):
        if group.number in found.plans:
            by_plan.setdefault(found.plans[group.number], []).append(group)
    if not by_plan:
        return None
    parts = [
        element("h2", "Patches of the heaviest products"),
        element("p", "The matrix C of one product, cut into patches: each is covered by the tiles "
                "of one uKernel (rows x columns; t: a tail, which stores only the columns asked "
                "for) and computed by the workers named. Thin lines are the edges of tiles, where "
                "there is room for them. Both axes are stretched to fit."),
    ]  # fmt: skip
    for plan, same in islice(by_plan.items(), DRAWN_PRODUCTS):
        links: list[str] = []
        for number in sorted(g.number for g in same):
            links += [", ", linked(_anchor(number), str(number))]
        titles = ", ".join(dict.fromkeys(g.title for g in same))
        steps = ("steps " if len(same) > 1 else "step ", *links[1:], f": {titles}")
        parts.append(element("h3", f"{extents_text(plan.problem)} ", element("small", *steps)))
        parts.append(scrolled(plan_chart(plan)))
    return html(*parts)


def _memory(found: ModelExplanation, bars: Mapping[int, Bar]) -> Html | None:
    drawn, memory = [arena for arena in found.arenas if arena.places], found.memory
    if not drawn and memory is None:
        return None
    said = []
    if drawn:
        said.append(
            "Intermediate results share one arena: results that are alive at the same time have "
            "different places. Each rectangle is a result, from the step that writes it to the "
            "last one that may read it, in the colour of the kind of step that wrote it. At most "
            f"{capacity(found.live_bytes or 0)} are alive at once."
        )
    if memory is not None:
        said.append(
            f"Weights as they are kept {capacity(memory.weights_bytes)}, arena "
            f"{capacity(memory.arena_bytes)}, workspace {capacity(memory.workspace_bytes)}, "
            f"outputs {capacity(memory.outputs_bytes)}, records {capacity(memory.records_bytes)}."
        )
    charts = (scrolled(arena_chart(arena, bars)) for arena in drawn)
    return html(element("h2", "Memory"), *(element("p", s) for s in said), *charts)


def steps_table(found: ModelExplanation) -> Html:
    """A row for each group: its operators, shapes and plan, and its times if these are known."""
    groups, colours = found.groups, _colours(found.groups)
    timed = any(seconds_of(g) is not None for g in groups)
    most = max((max(g.measured_s or 0.0, g.estimate_s or 0.0) for g in groups), default=0) or 1.0
    head = [element("th", "#", class_="number"), element("th", "kind"),
            element("th", "operators; shapes; plan")]  # fmt: skip
    if timed:
        numbers = ("measured", "estimate", "ratio", "flop/byte")
        head += [element("th"), *(element("th", name, class_="number") for name in numbers)]
    rows = []
    for group in groups:
        small: list[str] = []
        for text in (group.shapes, group.plan):
            small += [Html("<br>"), text] if text else []
        cells = [
            element("td", str(group.number), class_="number"),
            element("td", colour_key(colours[group.kind]), group.kind, class_="kind"),
            element("td", group.title, *small[:1], element("small", *small[1:])),
        ]
        if timed:
            cells.append(element("td", _time_bar(group, most, colours[group.kind])))
            cells += [element("td", x, class_="number") for x in _numbers(group)]
        rows.append(element("tr", *cells, id=_anchor(group.number)))
    said = "The bar is the measured time, the mark the estimate." if timed else ""
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return html(element("h2", "Steps"), element("p", said), scrolled(table))


def _time_bar(group: FusedGroup, most: float, colour: str) -> Html:
    def part(name: str, seconds: float | None, style: str = "") -> Html:
        if seconds is None:
            return Html()
        return element(name, style=f"width:{seconds / most:.1%};{style}")

    measured = part("i", group.measured_s, f"background:{colour}")
    return element("div", measured, part("u", group.estimate_s), class_="bar")


def _numbers(group: FusedGroup) -> list[str]:
    moved = group.bytes_moved
    return [
        optional(group.measured_s, duration),
        optional(group.estimate_s, duration),
        optional(group.measured_over_estimate, "{:.2f}".format),
        f"{group.flops / moved:.3g}" if group.flops and moved else "",
    ]
