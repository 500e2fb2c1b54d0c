"""All rows of the zoo by name."""

from dataclasses import replace

from benchmarks.zoo import decoders, held_out, senses, text
from benchmarks.zoo.architecture import Architecture

_ROWS = (
    *text.ROWS,
    *decoders.ROWS,
    *senses.ROWS,
    *(replace(row, held_out=True) for row in held_out.ROWS),
)
ARCHITECTURES: dict[str, Architecture] = {row.name: row for row in _ROWS}
assert len(ARCHITECTURES) == len(_ROWS)
"""Names are unique."""
