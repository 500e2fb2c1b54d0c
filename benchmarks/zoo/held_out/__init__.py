"""Architectures that were taken when ftuner was done, and that no pass was written or tuned for."""

from benchmarks.zoo.held_out import decoders, senses, text

ROWS = (*text.ROWS, *decoders.ROWS, *senses.ROWS)
