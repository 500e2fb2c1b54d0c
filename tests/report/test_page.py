"""The page of a model: well-formed, whole, and without references to anything outside."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.report.test_explain_model import program, target

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.errors import ConfigurationError
from ftuner.graph.builder import Builder
from ftuner.graph.lowering import lower
from ftuner.graph.steps import Lowered
from ftuner.report.model import ModelExplanation, explain_model
from ftuner.report.page import model_page, save_page
from ftuner.runtime.kept_memory import Memory

EMPTY = ("meta", "br")
"""Elements that have no end."""


class Parsed(HTMLParser):
    """Elements of a page: all that begin must end, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def values(self, attribute: str) -> list[str]:
        return [value for _, found in self.found if (value := found.get(attribute)) is not None]


def expect_complete(page: str, found: ModelExplanation) -> Parsed:
    """Parses a page; it has a row for each step and refers to nothing outside."""
    parsed = Parsed(page)
    rows = [values["id"] for tag, values in parsed.found if tag == "tr" and "id" in values]
    assert rows == [f"step-{g.number}" for g in found.groups]
    for group in found.groups:
        assert group.title in unescape(page)
        assert group.shapes in unescape(page)
    assert {link.lstrip("#") for link in parsed.values("href")} <= set(rows)
    assert all(link.startswith("#") for link in parsed.values("href"))
    assert not parsed.values("src")
    assert not re.search(r"https?:|url\(|@import|<script|<link", page)
    return parsed


def explained(lowered: Lowered, measured: bool = True) -> ModelExplanation:
    seconds = [1e-5 * (1 + i) for i in range(len(lowered.steps))]
    memory = Memory(1024, 2048, 3, 4, 5, 6)
    return explain_model(
        [lowered, lowered], {"n": 50}, target(2), 2 * seconds if measured else None, memory
    )


@pytest.mark.parametrize("measured", [True, False])
def test_whole_page(measured: bool) -> None:
    found = explained(program(), measured)
    page = model_page(found, "a title", {"a run": "3 ms"})
    parsed = expect_complete(page, found)
    for part in ("a title", "3 ms", "Time", "Roofline", "Patches", "Memory", "Steps", "2 KiB",
                 "50 x 6 x 8", "DRAM"):  # fmt: skip
        assert part in page
    # The time, the roofline, the plans of two products, and the arena of each program.
    assert len(parsed.values("role")) == 6
    linked = set(parsed.values("href"))
    assert linked == {f"#step-{g.number}" for g in found.groups}


def test_page_without_extents() -> None:
    found = explain_model([program()], {})
    page = model_page(found, "title", {})
    expect_complete(page, found)
    assert "<svg" not in page
    assert "Roofline" not in page


def test_page_with_measured_times_alone() -> None:
    """As of a GPU, whose steps have no estimates."""
    found = explain_model([program()], {"n": 5}, None, [1e-6] * len(program().steps))
    page = model_page(found, "title", {})
    expect_complete(page, found)
    assert "Roofline" not in page
    assert page.count('role="img"') == 1


def test_names_are_escaped() -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("<script>"), 8))
    y = builder.add("matmul", x, builder.constant(np.ones((8, 6), np.float32)))
    found = explain_model([lower(builder.graph([x], [("y", y)]))], {})
    page = model_page(found, "<b>", {"<i>": "&"})
    expect_complete(page, found)
    for part in ("&lt;b&gt;", "&lt;i&gt;", "&amp;", "&lt;script&gt;"):
        assert part in page


def test_no_elements() -> None:
    found = explain_model([program()], {"n": 0}, target())
    expect_complete(model_page(found, "title", {}), found)


def test_save(tmp_path: Path) -> None:
    found = explain_model([program()], {})
    save_page(found, tmp_path / "plan.html", "title", {})
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == model_page(found, "title", {})
    with pytest.raises(ConfigurationError, match=r"ends in \.html"):
        save_page(found, tmp_path / "plan.svg", "title", {})
    with pytest.raises(ConfigurationError, match="cannot write"):
        save_page(found, tmp_path / "missing" / "plan.html", "title", {})
