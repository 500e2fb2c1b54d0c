"""The files that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ftuner

ROOT = Path(__file__).parent.parent
SOURCES = Path(ftuner.__file__).parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md"))]
MAX_COLUMNS = 100


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:tests|benchmarks|scripts|examples)/[\w/.]+)`", text)
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    missing = [n for n in named if not (ROOT / n).exists()]
    missing += [n for n in linked if not ((ROOT / page).parent / n).exists()]
    assert not missing


def test_promises_name_their_tests_by_path() -> None:
    """A promise names whole paths, which the test above looks up, and each section has one."""
    text = (ROOT / "docs" / "promises.md").read_text()
    assert not re.findall(r"`test_\w+", text)
    sections = text.split("\n## ")[1:-1]
    assert [s.splitlines()[0] for s in sections if "`tests/" not in s] == []
