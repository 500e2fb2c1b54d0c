"""torch's decompositions of the operators that have no importer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export import ExportedProgram, default_decompositions

from ftuner.frontends.torch import importer  # noqa: F401  (which fills the table of importers)
from ftuner.frontends.torch.complex_numbers import COMPLEX
from ftuner.frontends.torch.registry import ATEN, name_of
from ftuner.frontends.torch.tracing import extents_kept


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A function for each operator that has no importer and that torch decomposes. Parts of what
    draws random numbers would draw others than it does."""
    whole = {**decomposition_table, **default_decompositions()}
    known = {*ATEN, *COMPLEX}
    return {
        op: function
        for op, function in whole.items()
        if isinstance(op, torch._ops.OpOverload)
        and name_of(op) not in known
        and torch.Tag.nondeterministic_seeded not in op.tags
    }


def decomposed(exported: ExportedProgram) -> ExportedProgram:
    """A program whose operators have importers, as far as torch can decompose the others. It is
    functional: nothing is updated in place."""
    with extents_kept():
        found: ExportedProgram = exported.run_decompositions(decompositions())
    return found
