"""What the planner may choose is compiled: both follow `Library.b_reads`."""

from itertools import product

import pytest
from tests.conftest import recorded_cpus

from ftuner.core.cpu.tile import COLUMN, ROW
from ftuner.core.dtype import DTYPES, INT8, DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.product import product_types
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import planner_for
from ftuner.runtime.ops.layer import layer_epilogue
from ftuner.ukernels.cpu.library import (
    ANY_MATRICES,
    LAYERS,
    BSource,
    Family,
    Library,
    Operands,
    build_library,
    families_of_calls,
)

LAYOUTS = ((ROW, False), (COLUMN, False), (COLUMN, True))
"""Of A, and whether it has to be packed."""
SOURCES: tuple[tuple[BSource, bool], ...] = (
    ("panels", False), ("panels", True), ("rows", False), ("columns", False), ("other", False),
)  # fmt: skip
"""Of B, and whether it holds 8-bit integers."""
ISAS = tuple(dict.fromkeys((m, isa.name) for m in recorded_cpus() for isa in m.isas))
EPILOGUES = (ACCUMULATOR, layer_epilogue(True, "gelu", True))


def columns(library: Library, width: int) -> tuple[int, ...]:
    """With every tail, and with full panels."""
    lanes = library.lanes
    nr = width * lanes
    return (1, lanes, *range(lanes - 1, nr, lanes), nr, 5 * nr + 1)


def chosen(library: Library, problem: Problem) -> set[Family]:
    """The families of all candidates for a problem, whatever their prices are."""
    planner = planner_for(library)
    found: set[Family] = set()
    for candidate in planner.candidates(problem):
        found |= {candidate.family} if candidate.full else set()
        found |= {candidate.tail_family} if candidate.tail_family is not None else set()
    assert {band.family for band in planner.plan(problem).bands()} <= found
    return found


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES, ids=["product", "layer"])
@pytest.mark.parametrize(("machine", "isa"), ISAS, ids=lambda x: getattr(x, "name", x))
def test_every_choice_is_compiled(
    machine: CpuHardware, isa: str, epilogue: Expr, dtype: DType
) -> None:
    """Of every epilogue, layout and width, at columns that are known and at any."""
    floats = build_library(machine, isa, product_types(dtype), epilogue)
    integers = build_library(machine, isa, product_types(dtype, INT8), epilogue)
    used: set[Family] = set()
    for (a_layout, must_pack), (source, int8) in product(LAYOUTS, SOURCES):
        if int8 and a_layout != ROW:
            # Such weights are read by products of contiguous rows alone.
            continue
        library = integers if int8 else floats
        operands = Operands((a_layout,), (source,))
        for width in library.widths if source == "panels" else (0,):
            whatever = set(library.families(operands, None, width))
            for n in columns(library, width or max(library.widths)):
                known = set(library.families(operands, n, width))
                assert known <= whatever
                for m, k, batch, workers in ((1, 1, 1, 1), (3, 70, 4, 2), (77, 900, 1, 8)):
                    problem = Problem(
                        m, n, k, batch, a_layout, must_pack, source, width, 4 * n, workers
                    )
                    found = chosen(library, problem)
                    assert found <= known, problem
                    used |= found
    calls = ANY_MATRICES if epilogue == ACCUMULATOR else LAYERS
    assert families_of_calls(floats) == floats.families(calls)
    # Nothing is compiled in vain.
    assert set(families_of_calls(floats)) <= used


def test_layers_and_products_share_families(recorded: CpuHardware) -> None:
    """Whoever multiplies matrices has what layers without an epilogue need."""
    for dtype in DTYPES.values():
        library = build_library(recorded, recorded.widest.name, product_types(dtype))
        assert set(library.families(LAYERS)) <= set(library.families(ANY_MATRICES))
