"""Attention on a GPU: which kernel, and how its tiles are cut and ordered."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.gpu.attention import AttentionKernel


class AttentionProblem(NamedTuple):
    """Extents; where requests are of unequal length, `rows` and `keys` are those of all together,
    and `RequestLengths` says how they are divided."""

    batch: int
    """Requests."""
    heads: int
    """Of keys and values."""
    sharing: int
    """Heads of queries that share a head of keys and values."""
    rows: int
    keys: int
    depth: int
    columns: int
    past: int = 0
    """As in `core.gpu.attention.Causal`."""


class RequestLengths(NamedTuple):
    """Of requests that lie one after the other."""

    rows: tuple[int, ...]
    keys: tuple[int, ...]


class AttentionPlan(NamedTuple):
    """One launch: `parts` programs for each tile of each head, or group of heads."""

    problem: AttentionProblem
    kernel: AttentionKernel
    group: int
    """Heads whose tiles are taken side by side, so that L2 holds their keys and values."""
    parts: int
    """Parts that the keys of a tile are cut into; 1 unless the kernel splits."""

    @property
    def elements(self) -> int:
        """Heads, or groups of heads, whose tiles are counted apart: those of one request, if
        requests are of unequal length, else of all."""
        problem, kernel = self.problem, self.kernel
        heads = problem.heads * (1 if kernel.packed else problem.sharing)
        return heads if kernel.form.ragged is not None else heads * problem.batch

    @property
    def packed_rows(self) -> int:
        """Of one element, those of all heads that share keys where they are rows of one tile."""
        return self.problem.rows * (self.problem.sharing if self.kernel.packed else 1)

    @property
    def tiles(self) -> int:
        """Of one element. Requests that lie one after the other have at most one tile each more
        than their rows together, wherever they begin."""
        problem, kernel, rows = self.problem, self.kernel, self.packed_rows
        if kernel.form.ragged is not None:
            return rows // kernel.tile.bq + problem.batch
        return -(-rows // kernel.tile.bq)

    @property
    def blocks(self) -> int:
        """Of keys, that a tile which sees all of them takes one after the other, its parts
        together."""
        return -(-self.problem.keys // self.kernel.tile.bk)

    @property
    def programs(self) -> int:
        """Launched; 0 if there is nothing to compute."""
        return self.elements * self.tiles * self.parts

    @property
    def workspace_floats(self) -> int:
        return self.programs * self.kernel.partial_floats if self.kernel.split else 0

    @property
    def arrivals(self) -> int:
        """Counters."""
        return self.elements * self.tiles if self.kernel.split else 0
