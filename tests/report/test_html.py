"""Elements escape what is not markup; pages are replaced whole."""

from pathlib import Path

import pytest

from ftuner.errors import ConfigurationError
from ftuner.report.html import MAX_NAME, Html, element, facts, html, name_text, page, save, table


def test_element() -> None:
    assert element("a", "x", href="#b", class_="c", stroke_width=1.5) == (
        '<a href="#b" class="c" stroke-width="1.5">x</a>'
    )
    assert element("p", title='<"') == '<p title="&lt;&quot;"></p>'


def test_only_markup_is_not_escaped() -> None:
    inner = element("b", "<script>")
    assert inner == "<b>&lt;script&gt;</b>"
    assert html("a & ", inner) == f"a &amp; {inner}"
    assert element("p", f"{inner}") == "<p>&lt;b&gt;&amp;lt;script&amp;gt;&lt;/b&gt;</p>"
    assert element("p", Html("<br>"), "<") == "<p><br>&lt;</p>"


@pytest.mark.parametrize("shown", [
    facts({"<name>": "<value>"}), table(["<name>"], [["<value>"]]), page("<name>", [])
])  # fmt: skip
def test_text_is_escaped(shown: str) -> None:
    assert "&lt;name&gt;" in shown
    assert "<name>" not in shown
    assert "<value>" not in shown


def test_names_of_files_are_cut() -> None:
    assert name_text("a\x00\n<") == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}<"
    assert len(name_text("x" * 1000)) == MAX_NAME


def test_save(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for text in ("first", "second"):
        save(Html(text), path)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder.html"
    folder.mkdir()
    long = tmp_path / ("x" * 300 + ".html")
    for path, said in (
        (tmp_path / "page.svg", r"ends in \.html"),
        (folder, "is a directory"),
        (tmp_path / "missing" / "page.html", "cannot write"),
        (long, "cannot write"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            save(Html("text"), path)
    assert list(tmp_path.iterdir()) == [folder]
