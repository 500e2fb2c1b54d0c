"""Nests cost what their loops and their bytes take, on recorded machines."""

from collections.abc import Mapping

import llvmlite.ir as ir
import pytest
from tests.codegen.llvm.nest_cases import CASES
from tests.codegen.llvm.nest_running import A, B, C, Case
from tests.conftest import recorded_cpus

from ftuner.codegen.llvm.ir.accumulators import accumulator_of
from ftuner.codegen.llvm.ir.builder import IRBuilder
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.dim import product
from ftuner.core.dtype import DTYPES, DType
from ftuner.core.evaluation import evaluate
from ftuner.cost.step import Machine, StepCost
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.tuning import CpuTuning
from ftuner.schedules.nest.cpu_cost import SCALED_PRODUCT_INSTRUCTIONS, NestCost, Operand

TUNING = CpuTuning()
CLOCK = 3.22e9
"""Of the recorded AMD Zen 3: two loads, two vector operations and one store a cycle."""


def milan(workers: int = 1) -> Machine:
    machine = next(m for m in recorded_cpus() if m.name == "epyc-milan-2")
    return Machine(machine, machine.isa("avx2"), workers)


def cost_of(
    case: Case, extents: Mapping[str, int], machine: Machine, resident_bytes: int = 0
) -> StepCost:
    """With operands that lie in one piece each."""
    kernel = case.kernel()
    types = [case.types[n] for n in operand_numbers(kernel)]
    reads, writes = (
        [Operand(t.dtype.itemsize * evaluate(product(t.shape), extents), resident) for t in found]
        for found, resident in ((types, resident_bytes), (case.results(), 0))
    )
    return NestCost(kernel, extents, machine).total(reads, writes)


def floats(op: str, *shapes: tuple[object, ...], **attributes: object) -> Case:
    return Case(op, tuple(("float32", shape) for shape in shapes), attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "extents", "cycles", "flops", "moved"),
    [
        # 128 vectors: two loads, an addition, a store. Two blocks are tasks.
        (floats("add", (A, C), (A, C)), (2, 1, 512), 128 * 2.5 + 2 * TUNING.loop_cycles, 1024,
         12 * 1024),
        # The row is read for each of three, but once from memory.
        (floats("add", (A, C), (C,)), (3, 1, 80), 3 * (10 * 2.5 + TUNING.loop_cycles), 240,
         4 * (240 + 80 + 240)),
        (floats("exp", (C,)), (1, 1, 8), 14 + TUNING.call_cycles + TUNING.loop_cycles, 8, 64),
        # A vector that is not full costs as much as one that is.
        (floats("exp", (C,)), (1, 1, 1), 14 + TUNING.call_cycles + TUNING.loop_cycles, 1, 8),
        # Two squares of eight: for each vector a load, a store and three shuffles.
        (floats("transpose", (A, C), perm=(1, 0)), (8, 1, 16),
         2 * (8 * (1.5 + 3) + TUNING.loop_cycles), 0, 2 * 4 * 128),
        # Of four chains of additions, one begins in a cycle; three halvings and a store each row.
        (floats("reduce", (B, C), kind="sum", axes=(1,)), (1, 5, 800),
         5 * (100 * 1 + 3 * 5 + TUNING.loop_cycles + 1), 4000, 4 * 4005),
        # Twenty instructions a vector, of which two begin in a cycle; nine cycles from one mantissa
        # to the next are fewer. A halving waits for one, and for a shuffle.
        (floats("reduce", (B, C), kind="product", axes=(1,)), (1, 5, 800),
         5 * (100 * (0.5 + 10) + 3 * 10 + TUNING.loop_cycles + 1), 4000, 4 * 4005),
    ],
)  # fmt: skip
def test_known_nests(
    case: Case, extents: tuple[int, int, int], cycles: float, flops: int, moved: int
) -> None:
    cost = cost_of(case, dict(zip("ABC", extents, strict=True)), milan())
    assert cost.estimate.seconds * CLOCK == pytest.approx(cycles, rel=1e-6)
    assert cost.estimate.bound == "compute"
    assert (cost.flops, cost.bytes_moved) == (flops, moved)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_products_of_floats_cost_what_their_code_has_instructions(dtype: DType) -> None:
    module = ir.Module()
    accumulator = accumulator_of("product", dtype, 32 // dtype.itemsize)
    types = [part.type for part in (*accumulator.start(), accumulator.neutral_element())]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), "gathered")
    builder = IRBuilder(function.append_basic_block())
    *parts, element = function.args
    accumulator.gathered(builder, parts, element)
    count = sum(i.opname != "bitcast" for i in builder.block.instructions)
    assert count == SCALED_PRODUCT_INSTRUCTIONS[dtype.itemsize]


@pytest.mark.parametrize(
    ("elements", "bound", "seconds"),
    [
        # Three streams from L3, then from DRAM, at what one core gets of them.
        (1 << 20, "l3", 12 * (1 << 20) / 7.4e10),
        (1 << 26, "dram", 12 * (1 << 26) / 2.3e10),
    ],
)
def test_levels(elements: int, bound: str, seconds: float) -> None:
    cost = cost_of(floats("add", (C,), (C,)), {"C": elements}, milan())
    assert cost.estimate.bound == bound
    assert cost.estimate.seconds == pytest.approx(seconds)


def test_both_cores_share_memory_and_wait_for_each_other() -> None:
    case, extents = floats("add", (C,), (C,)), {"C": 1 << 26}
    cost = cost_of(case, extents, milan(workers=2))
    assert cost.estimate.dram_s == pytest.approx(12 * (1 << 26) / 3.8e10)
    assert cost.estimate.synchronise_s == 5e-6
    alone = cost_of(case, {"C": 512}, milan(workers=2)).estimate
    assert alone.issue_s == cost_of(case, {"C": 512}, milan()).estimate.issue_s


def test_constants_come_from_where_the_program_leaves_them() -> None:
    """What a table is read from depends on all that passes by between two runs."""
    case = Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 0})
    extents = {"A": 30_000, "B": 64, "C": 768}
    small, large = (cost_of(case, extents, milan(), size) for size in (0, 100 << 20))
    assert small.estimate.dram_s == 0 < large.estimate.dram_s
    assert small.reads_bytes == 64 * 768 * 4 + 64 * 8, "not the whole table"
    few = cost_of(case, {**extents, "A": 2}, milan())
    assert few.reads_bytes == 2 * 768 * 4 + 64 * 8, "nothing but the table"


@pytest.mark.parametrize("op", CASES)
def test_terms(op: str, recorded: CpuHardware) -> None:
    """All cases of all operators have estimates, of terms that are not negative."""
    machine = Machine(recorded, recorded.widest, min(2, recorded.cores))
    for case in CASES[op][::4]:
        for extents in case.extents:
            cost = cost_of(case, extents, machine)
            assert all(seconds >= 0 for seconds in cost.estimate.terms().values())
            assert min(cost.flops, cost.reads_bytes, cost.writes_bytes) >= 0


ROWS = (
    floats("add", (A, B, C), (C,)),
    floats("gelu", (A, C)),
    floats("softmax", (A, C), axis=1, log=False),
    floats("norm", (A, C), (C,), axis=1, epsilon=1e-5, rms=False),
    floats("reduce", (A, C), kind="sum", axes=(1,)),
    floats("reduce", (A, C), kind="maximum", axes=(0,)),
    floats("transpose", (A, B, C), perm=(2, 0, 1)),
    floats("cumulative_sum", (A, C), axis=1, exclusive=False, reverse=False),
    floats("arg_reduce", (A, C), kind="argmax", axis=1, last=False),
    Case("gather", (("float32", (B, C)), ("int64", (A,))), {"axis": 0}),
)


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_more_rows_are_never_cheaper(number: int, recorded: CpuHardware) -> None:
    for workers in {1, min(4, recorded.cores)}:
        machine = Machine(recorded, recorded.widest, workers)
        before = 0.0
        for rows in (*range(1, 70), *range(70, 5000, 311), 10_000, 100_000, 1_000_000):
            extents = {"A": rows, "B": 3, "C": 77}
            seconds = cost_of(ROWS[number], extents, machine).estimate.seconds
            assert seconds >= before * (1 - 1e-12), f"{rows} rows, {workers} workers"
            before = seconds
