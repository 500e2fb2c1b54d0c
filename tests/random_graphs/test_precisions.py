"""Random graphs in a precision that is asked for: compiled programs give what the references
give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.random_graphs.agreement import graphs_of
from tests.random_graphs.generating import seeded
from tests.random_graphs.reports import nodes_of
from tests.random_graphs.table import named
from tests.random_graphs.tensors import Array

from ftuner.core.dtype import BFLOAT16, UINT8, DType
from ftuner.errors import FTunerError
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.passes.word_products import attention_in_bfloat16, blocks_by_levels
from ftuner.graph.rewrite.rule import Pass
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

SEEDS = range(24)
CLOSE, APART = 0.02, 0.04
"""Shares of the largest element: where rounding changes the reference by more than the first, the
graph magnifies it; last bits, of powers or of rows, which round to one of two neighbours, change it
by less than the second elsewhere."""
CASES = (
    *((row, attention_in_bfloat16, BFLOAT16, "word_attention")
      for row in ("Attention", "attention", "com.microsoft.MultiHeadAttention")),
    ("com.microsoft.MatMulNBits", blocks_by_levels, UINT8, "row_levels"),
)  # fmt: skip
"""A row, what rewrites its graphs, the dtype of rows, and an operator that it leaves."""


def reference(graph: Graph, feeds: Any) -> list[Array]:
    with np.errstate(all="ignore"):
        return run_reference(graph, [feeds[value.name] for value in graph.inputs])


def differs(x: Array, y: Array, share: float) -> bool:
    known = np.isfinite(x) & np.isfinite(y)
    most = np.abs(y[known]).max(initial=1e-3)
    return bool((np.abs(x[known] - y[known]) > share * most).any())


@pytest.mark.parametrize(("row", "rewrite", "rows", "op"), CASES)
def test_programs_agree_with_references(row: str, rewrite: Pass, rows: DType, op: str) -> None:
    device = default_backend()
    found = compared = 0
    for seed in SEEDS:
        try:
            case, graphs = graphs_of(seeded(seed, named(row)).case)
        except FTunerError:
            continue
        if any(graph is not graphs[0] for graph in graphs):
            continue
        plain = optimised(replace(graphs[0]), halves=False)
        graph = rewrite(plain)
        if op not in {node.op for node in nodes_of(graph)}:
            continue
        found += 1
        model = Model(replace(graph), device) if rows in device.narrow_dtypes else None
        for number in range(len(case.runs) - case.wild):
            feeds = case.operands(graph, number)
            try:
                exact, wanted = reference(plain, feeds), reference(graph, feeds)
                got = wanted if model is None else model._run(case.runs[number], case.key(number))
            except (FTunerError, IndexError, ValueError):
                continue
            for x, y, z in zip(exact, wanted, got, strict=True):
                assert y.shape == z.shape
                if y.dtype.kind == "f" and np.isfinite(y).all() and not differs(y, x, CLOSE):
                    assert not differs(z, y, APART), (seed, number)
                    compared += 1
    assert found > 1
    assert compared > 10
