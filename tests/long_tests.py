"""Tests that take longest, which the core leaves out: `python -m tests.long_tests REPORT` writes
their names from a report of `pytest --junitxml`, measured on two idle cores."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

LISTED = Path(__file__).parent / "long_tests.txt"
ROOT = f"{LISTED.parent.parent}/"
LONGEST_S = 0.5
"""Of a test of the core."""
_ISA = re.compile(r"\b(sse2|avx2|avx512|neon)\b")


def name_of(node: str) -> str:
    """The name of a test by pytest's identifier, the same for each ISA and in each folder."""
    file, _, test = node.replace(ROOT, "").partition("::")
    return f"{file.removesuffix('.py').replace('/', '.')}::{_ISA.sub('ISA', test)}"


def listed() -> frozenset[str]:
    return frozenset(LISTED.read_text(encoding="utf-8").splitlines())


def main(report: str) -> None:
    cases = ElementTree.parse(report).iter("testcase")
    names = {
        name_of(f"{case.get('classname')}::{case.get('name')}")
        for case in cases
        if float(case.get("time", 0.0)) > LONGEST_S
    }
    LISTED.write_text("\n".join(sorted(listed() | names)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
