"""All rows of the zoo by name."""

from __future__ import annotations

from benchmarks.zoo import decoders, senses, text
from benchmarks.zoo.architecture import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row for row in (*text.ROWS, *decoders.ROWS, *senses.ROWS)
}
assert len(ARCHITECTURES) == len(text.ROWS) + len(decoders.ROWS) + len(senses.ROWS)
"""Names are unique."""
