"""Pages of HTML that refer to nothing outside: elements, the style of all pages, and saving.

Text that comes from files and models is escaped where an element takes it in: only a value of
`Html` is markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from ftuner.core.files import write_whole
from ftuner.errors import ConfigurationError

SUFFIXES = (".html", ".htm")
MAX_NAME = 80
"""Characters of a name from a file that are shown."""
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d1f22; --soft: #5a5e66; --faint: #dcdfe3;
  --mark: #fff3c4; --s0: #2563a8; --s1: #b85400; --s2: #2c7a34; --s3: #b3262b; --s4: #7d3f92;
  --s5: #00727a }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e6e8eb; --soft: #a3a9b3;
  --faint: #363b43; --mark: #4a4320; --s0: #7fb4ea; --s1: #ffae66; --s2: #82d188; --s3: #ff8d88;
  --s4: #d3a3e3; --s5: #62d2da } }
* { box-sizing: border-box }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); max-width: 1100px;
  margin: 2em auto; padding: 0 1.5em; background: var(--paper); overflow-wrap: break-word }
h1 { font-size: 1.5em; margin-bottom: .2em } h2 { font-size: 1.15em; margin: 2em 0 .3em }
h3 { font-size: 1em; margin: 1.2em 0 .3em } h3 small { font-weight: normal }
p { margin: .3em 0; max-width: 62em } a { color: var(--s0) }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif }
svg text { fill: var(--ink) } svg .on-colour { fill: #111 } svg a { color: inherit }
ul { list-style: none; padding: 0; margin: 1em 0; display: flex; flex-wrap: wrap; gap: .6em 2.2em }
li b { display: block; font-size: 1.35em }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: left; position: sticky; top: 0; background: var(--paper);
  border-bottom: 2px solid var(--ink) }
th, td { padding: 3px 8px; vertical-align: top; border-bottom: 1px solid var(--faint) }
.number { text-align: right } .number, .kind { white-space: nowrap } small { color: var(--soft) }
tr:target { background: var(--mark) }
.bar { position: relative; height: 9px; width: 120px; margin-top: 5px }
.bar i, .bar u { position: absolute; left: 0; top: 0; bottom: 0; display: block }
.bar u { border-right: 2px solid var(--ink) }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px }
.keys { display: flex; flex-wrap: wrap; gap: .1em 1.3em } .keys svg { display: inline-block;
  width: 28px; height: 12px; margin-right: .35em; vertical-align: -1px }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr));
  gap: .4em 2em } .panels > div { min-width: 0 }
.missing { color: var(--soft); border-left: 3px solid var(--faint); padding-left: .7em }
code { font: 12.5px ui-monospace, monospace; overflow-wrap: anywhere }
.tiles { width: auto } .tiles td, .tiles th { text-align: right; border: 1px solid var(--paper) }
details { margin: .5em 0 } summary { cursor: pointer; color: var(--s0) }
@media (max-width: 700px) { body { padding: 0 .8em; margin: 1em auto }
  .scroll { overflow-x: auto } .scroll > svg { min-width: 640px } .scroll > table { width: auto }
  .panels > div > svg { font-size: 14px } }
"""


class Html(str):
    """Markup. Any other string is text, which is escaped."""

    __slots__ = ()


def html(*parts: str) -> Html:
    """Markup and texts one after the other."""
    return Html("".join(p if isinstance(p, Html) else escape(p) for p in parts))


def element(name: str, /, *content: str, **attributes: object) -> Html:
    """An element of HTML or SVG. Underscores in names of attributes stand for hyphens."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{html(*content)}</{name}>")


def _value(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value))
    )


def linked(anchor: str, content: str) -> Html:
    """A link to an element of the same page."""
    return element("a", content, href=f"#{anchor}")


def name_text(name: str) -> str:
    """A name from a file, at most `MAX_NAME` characters, without those that are not printable."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return shown if len(shown) <= MAX_NAME else f"{shown[: MAX_NAME - 1]}…"


def facts(entries: Mapping[str, str]) -> Html:
    """What a page says above all: a large value over each name."""
    return element(
        "ul", *(element("li", element("b", value), name) for name, value in entries.items())
    )


def colour_key(colour: str) -> Html:
    """A small square, which stands before what has the colour."""
    return element("span", class_="key", style=f"background:{colour}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> Html:
    """A table, which scrolls sideways on narrow screens. Columns named in `numbers` are aligned
    right."""
    kinds = [{"class_": "number"} if name in numbers else {} for name in head]
    names = (element("th", name, **kind) for name, kind in zip(head, kinds, strict=True))
    body = (
        element("tr", *(element("td", x, **kind) for x, kind in zip(row, kinds, strict=True)))
        for row in rows
    )
    return scrolled(
        element("table", element("thead", element("tr", *names)), element("tbody", *body))
    )


def scrolled(content: Html) -> Html:
    """A table or chart that scrolls sideways where the screen is narrower than it."""
    return element("div", content, class_="scroll")


def fragment(sections: Iterable[Html]) -> str:
    """A part of another page, such as a notebook, which has its own style: rules are nested in
    the one element, and colours are set for it."""
    rules = STYLE.replace(":root", "&")
    style = f".ftuner {{{rules}color: var(--ink); background: var(--paper); padding: .3em .8em}}"
    return str(element("div", element("style", Html(style)), *sections, class_="ftuner"))


def page(title: str, sections: Iterable[Html]) -> Html:
    """A whole page."""
    head = html(
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", title), element("style", Html(STYLE)),
    )  # fmt: skip
    body = "\n".join(sections)
    return Html(
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
    )


def save(content: Html, path: Path) -> None:
    """Write a page. A reader of the file sees the old page or the new one.

    Raises:
        ConfigurationError: a name that does not end in .html, something other than a file is
            there, or the file cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(
            f"cannot save a page as {path.name!r}; expected a name that ends in .html"
        )
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error
