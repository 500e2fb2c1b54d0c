"""Machine code of NVIDIA's chips: a cubin as instructions, with what the hardware reads of each.

An instruction has 128 bits (from Volta on). Its upper bits are what the compiler decided about
timing (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv
1804.06826, section 2.1): the cycles until the warp's next instruction, the scoreboards that it
sets when its operands are read and its result is written, and those that it waits for.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import triton

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
SCOREBOARDS = 6
NO_SCOREBOARD = 7
PRODUCTS = ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA")
"""Matrix instructions, whose innermost loop is the main loop."""
VECTOR_PRODUCTS = ("FFMA", "FFMA2")
"""The same without matrix units."""
_LINE = re.compile(
    r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P[0-9T]+)\s+)?"
    r"(?P<name>[A-Z0-9]+)(?P<rest>[^;]*);\s*/\* 0x(?P<low>[0-9a-f]{16}) \*/"
)
_UPPER = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


class Instruction(NamedTuple):
    """One instruction, and its timing."""

    name: str
    """Without modifiers: `HGMMA`."""
    rest: str
    """Modifiers and operands."""
    predicate: str
    target: int
    """The number of the instruction that a branch goes to; -1 for others."""
    stall: int
    """Cycles until the warp's next instruction."""
    sets: tuple[int, int]
    """The scoreboards of its result and of its operands; `NO_SCOREBOARD` for none."""
    waits: tuple[int, ...]


class Loop(NamedTuple):
    """The shortest way through one turn of a loop: branches over code without products are taken,
    those that leave the loop are not."""

    body: tuple[Instruction, ...]

    def count(self, *names: str) -> int:
        return sum(i.name in names for i in self.body)

    @property
    def narrow(self) -> int:
        """Loads and stores of less than four bytes of a thread in global or shared memory."""
        moves = ("LDG", "STG", "LDS", "STS")
        return sum(i.name in moves and bool(re.match(r"\S*\.[US](8|16)\b", i.rest))
                   for i in self.body)  # fmt: skip

    @property
    def spills(self) -> int:
        """Loads and stores of local memory."""
        return self.count("LDL", "STL")


def instructions(cubin: bytes, folder: Path) -> list[Instruction]:
    """Returns the instructions of a cubin with one function, which is written to the folder."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    text = subprocess.run(
        [TOOL, "-c", "-hex", file], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    labels: dict[str, int] = {}
    found: list[tuple[re.Match[str], int]] = []
    pending = None
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _LINE.search(line):
            pending = match
        elif pending and (upper := _UPPER.match(line)):
            found.append((pending, int(upper[1], 16)))
            pending = None
    assert found, "no machine code"
    return [_decoded(match, upper, labels) for match, upper in found]


def _decoded(match: re.Match[str], upper: int, labels: dict[str, int]) -> Instruction:
    target = _TARGET.search(match["rest"])
    return Instruction(
        match["name"], match["rest"], match["predicate"] or "",
        labels[target[1]] if target and match["name"] == "BRA" else -1,
        stall=upper >> 41 & 15,
        sets=(upper >> 46 & 7, upper >> 49 & 7),
        waits=tuple(i for i in range(SCOREBOARDS) if upper >> 52 + i & 1),
    )  # fmt: skip


def main_loops(code: list[Instruction], products: tuple[str, ...]) -> list[Loop]:
    """Returns the innermost loops that multiply, in the order of the code. What follows an exit is
    reached by jumps alone, such as the repeated wait for a barrier: it jumps back into no loop."""
    spans = _spans(code, products)
    inner = [s for s in spans if not any(_within(other, s) for other in spans)]
    return [Loop(tuple(_shortest(code, *span, products))) for span in sorted(inner)]


def tile_loops(code: list[Instruction], products: tuple[str, ...], steps: int) -> list[Loop]:
    """Returns the loops over tiles of `steps` turns of a main loop: all code around that loop, or
    in one turn of it where one loop has the steps of all tiles."""
    spans = _spans(code, products)
    found = []
    for first, last in sorted(s for s in spans if not any(_within(x, s) for x in spans)):
        turn = _shortest(code, first, last, products)
        around = [s for s in spans if _within((first, last), s)]
        if not around:
            found.append(Loop((*turn * (steps - 1), *code[first : last + 1])))
            continue
        begin, end = max(around)
        found.append(Loop((*code[begin:first], *turn * steps, *code[last + 1 : end + 1])))
    return found


def _spans(code: list[Instruction], products: tuple[str, ...]) -> list[tuple[int, int]]:
    """Returns the first and last instruction of each loop that multiplies."""
    spans = [(i.target, at) for at, i in enumerate(code) if 0 <= i.target <= at]
    spans = [s for s in spans if all(i.name != "EXIT" or i.predicate for i in code[slice(*s)])]
    return [s for s in spans if any(i.name in products for i in code[s[0] : s[1] + 1])]


def _within(other: tuple[int, int], span: tuple[int, int]) -> bool:
    return other != span and span[0] <= other[0] and other[1] <= span[1]


def _shortest(
    code: list[Instruction], first: int, last: int, products: tuple[str, ...]
) -> list[Instruction]:
    body, at = [], first
    while at <= last:
        body.append(code[at])
        target = code[at].target
        skipped = code[at + 1 : target]
        if at < target <= last and not any(i.name in products for i in skipped):
            at = target
        else:
            at += 1
    return body
