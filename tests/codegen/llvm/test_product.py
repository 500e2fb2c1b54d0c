"""uKernels: what the compiler makes of them on recorded machines, and what they compute here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import llvmlite.ir as ir
import numpy as np
import pytest
from tests.codegen.llvm.objects import loaded, target_of
from tests.conftest import HOST_ISAS, recorded_cpus
from tests.reference import Array, assert_product, lie, uniform

from ftuner.codegen.llvm.kernels import k_loop
from ftuner.codegen.llvm.kernels.dot import emit_dot
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions, steps_of_round
from ftuner.codegen.llvm.kernels.product import emit_ukernel
from ftuner.codegen.llvm.native.records import Context
from ftuner.codegen.llvm.objects.jit import Target, compile_assembly
from ftuner.core.cpu.tile import COLUMN, DOT, PACKED, ROW, STRIDED, RegisterTile, UKernel
from ftuner.core.dtype import BFLOAT16, DTYPES, FLOAT32, FLOAT64, INT8, UINT8, DType
from ftuner.core.product import WORD_PRODUCTS, product_types
from ftuner.hardware.constants import constants
from ftuner.hardware.isa import (
    FUSED,
    OF_BFLOAT16,
    OF_BYTES,
    SEPARATE,
    InstructionSet,
    instruction_set,
)
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.hardware.tuning import KLoopTuning
from ftuner.ukernels.cpu.library import build_library

FLOATS, DOUBLES = product_types(FLOAT32), product_types(FLOAT64)
CPUS = {
    "epyc-milan-2": "znver3",
    "xeon-8375c": "icelake-server",
    "core-i7-8700": "skylake",
    "graviton2": "neoverse-n1",
}
"""LLVM's names for the recorded machines."""


def recorded_target(machine: CpuHardware, isa: Isa) -> Target:
    off = ",-avx" if isa.name == "sse2" else ",-avx512f" if isa.name == "avx2" else ""
    model = instruction_set(isa.name).scheduling_model or CPUS[machine.name]
    target = target_of(isa.name, cpu=model)
    return replace(target, features=target.features + off)


def row_of(isa: str, fused: bool, masked: bool = False) -> InstructionSet:
    """The row of an ISA, with another kind of multiply-add and masks or without."""
    row = instruction_set(isa if isa != "any" else "sse2")
    of_floats = FUSED if fused else SEPARATE
    return replace(row, multiply_adds=(*of_floats, OF_BYTES, OF_BFLOAT16), masked=masked)


def module_of(kernel: UKernel, fused: bool, triple: str, masked: bool = False) -> ir.Module:
    module, row = ir.Module("kernel"), row_of(kernel.isa, fused, masked)
    module.triple = triple
    if kernel.b_layout == DOT:
        emit_dot(module, kernel, row)
    else:
        emit_ukernel(module, kernel, CodeOptions(row, KLoopTuning(), 64))
    return module


@pytest.mark.parametrize("line_bytes", [32, 128])
@pytest.mark.parametrize("name", [n for n, known in constants(KLoopTuning).items() if known.most])
def test_code_is_written_at_the_limits_of_each_constant(name: str, line_bytes: int) -> None:
    kernel = UKernel(RegisterTile(6, 2, 1), FLOATS, "avx2", 8)
    most = constants(KLoopTuning)[name].most
    kind = type(getattr(KLoopTuning(), name))
    for value in (kind(1), kind(most)):
        module = ir.Module("kernel")
        tuning = replace(KLoopTuning(), **{name: value})
        emit_ukernel(module, kernel, CodeOptions(instruction_set("avx2"), tuning, line_bytes))
        assert "fma" in str(module)


MULTIPLY_ADD = {
    ("x86_64", True): r"\tvfn?madd\d+p[sd]\t",
    ("x86_64", False): r"\tmulp[sd]\t",
    ("aarch64", True): r"\tfmla\t",
}
STACK = {"x86_64": r"\(%rsp", "aarch64": r"\[sp"}
VECTOR = {"x86_64": r"%[xyz]mm\d+", "aarch64": r"\b[qdsv]\d+"}
MOVE = {"x86_64": r"\tv?mov[au]p[sd]\t%[xyz]mm\d+, %[xyz]mm\d+", "aarch64": r"\tmov\tv\d+\S*, v\d+"}


def k_loops(assembly: str, multiply_add: str, multiply_adds: int) -> list[list[str]]:
    """The instructions of the innermost loops with so many multiply-adds, each from a label to the
    first jump that goes back to it: code that is rarely run comes last, and may enter a loop."""
    ends: dict[int, int] = {}
    labels: dict[str, int] = {}
    lines = assembly.splitlines()
    for number, line in enumerate(lines):
        if found := re.match(r"(\.LBB\d+_\d+):", line):
            labels[found.group(1)] = number
        jump = re.search(r"\t(?:j\w+|b\.\w+|cbn?z\s.*)\s.*?(\.LBB\d+_\d+)$", line)
        if jump and jump.group(1) in labels:
            ends.setdefault(labels[jump.group(1)], number)
    counts = [bool(re.search(multiply_add, line)) for line in lines]
    found: dict[tuple[int, ...], list[str]] = {}
    for i, j in ends.items():
        # Of loops around the same ones, the innermost.
        inside = tuple(number for number in range(i, j) if counts[number])
        if len(inside) == multiply_adds and j - i < len(found.get(inside, lines)):
            found[inside] = lines[i:j]
    return list(found.values())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_the_k_loop_stays_in_registers(recorded: CpuHardware, dtype: DType) -> None:
    """The tallest tile of each full width, in one part and in several: inside the k loop no vector
    goes to the stack or from one register to another, and of arithmetic there are the multiply-adds
    alone."""
    architecture = recorded.architecture
    for isa in recorded.isas:
        library = build_library(recorded, isa.name, product_types(dtype))
        target = recorded_target(recorded, isa)
        pattern = MULTIPLY_ADD[architecture, isa.fused]
        for width in library.widths:
            families = [
                library.family(width, False, a_layout, b_layout)
                for a_layout, b_layout in ((ROW, PACKED), (COLUMN, PACKED), (ROW, STRIDED))
            ]
            tallest = [{k.tile.parts: k for k in family.kernels} for family in families]
            for kernel in (kernel for found in tallest for kernel in found.values()):
                module = module_of(kernel, isa.fused, target.triple)
                assembly = compile_assembly(module, target)
                tile = kernel.mr * kernel.tile.vectors
                # Whole rounds; a turn of places, where B may have to come; the steps left over.
                steps = steps_of_round(kernel, instruction_set(isa.name), KLoopTuning())
                rounds = Counter([steps])
                if kernel.b_layout == PACKED:
                    rounds.update([kernel.tile.chains, 1])
                elif steps > 1:
                    rounds.update([1])
                loops = [k_loops(assembly, pattern, tile * count) for count in rounds]
                assert [len(found) for found in loops] == list(rounds.values()), kernel.symbol
                loop = [line for found in loops for body in found for line in body]
                on_stack = [line for line in loop if re.search(STACK[architecture], line)]
                spills = [line for line in on_stack if re.search(VECTOR[architecture], line)]
                assert spills == [], kernel.symbol
                if isa.fused:
                    assert [line for line in loop if re.search(MOVE[architecture], line)] == []
                else:
                    # A multiplication in place costs a copy of one operand, or a load.
                    adds = [line for line in loop if re.search(r"\taddp[sd]\t", line)]
                    assert len(adds) == sum(rounds.elements()) * tile, kernel.symbol


@pytest.mark.parametrize(
    ("machine", "register"), [("xeon-8375c", "zmm"), ("core-i7-8700", "ymm"), ("graviton2", "v")]
)
def test_the_k_loop_uses_whole_vectors(machine: str, register: str) -> None:
    hardware = next(m for m in recorded_cpus() if m.name == machine)
    isa = hardware.widest
    library = build_library(hardware, isa.name, FLOATS)
    kernel = library.family(library.widths[0], False, COLUMN, PACKED).kernels[-1]
    target = recorded_target(hardware, isa)
    pattern = MULTIPLY_ADD[hardware.architecture, True]
    assembly = compile_assembly(module_of(kernel, True, target.triple), target)
    loops = k_loops(assembly, pattern, kernel.mr * kernel.tile.vectors)
    used = [line for body in loops for line in body if re.search(pattern, line)]
    assert used
    assert all(re.search(rf"\b{register}\d+", line) for line in used)


@pytest.mark.parametrize("rows", WORD_PRODUCTS, ids=str)
def test_words_are_multiplied_by_one_instruction_of_arm(rows: DType) -> None:
    """Without a CPU that has it: one in each of the tile's vectors and steps of a round."""
    row = instruction_set("neon")
    types, tile = WORD_PRODUCTS[rows], RegisterTile(4, 2, 1)
    target = target_of(row.name, "i8mm", "bf16", cpu=row.scheduling_model)
    kernel = UKernel(tile, types, row.name, 4)
    module = ir.Module("kernel")
    module.triple = target.triple
    emit_ukernel(module, kernel, CodeOptions(row, KLoopTuning(), 64))
    name = {UINT8: "usdot", BFLOAT16: "bfdot"}[rows]
    loops = k_loops(compile_assembly(module, target), rf"\t{name}\t", kernel.mr * tile.vectors)
    assert loops
    assert not any(re.search(r"\tf?mla|\tmul", line) for body in loops for line in body)


def test_ir_of_a_small_kernel(golden: Callable[[str, str], None]) -> None:
    kernel = UKernel(RegisterTile(1, 1, 1), FLOATS, "sse2", 4, ROW, PACKED)
    golden("kernel-1x4.ll", str(module_of(kernel, False, "x86_64-unknown-linux-gnu")))


class Loaded:
    """A uKernel in this process, whatever ISA it was made for: compiled for `isa`."""

    def __init__(self, kernel: UKernel, fused: bool, isa: str, masked: bool) -> None:
        self.kernel = kernel
        (self._call,) = loaded(module_of(kernel, fused, "", masked), isa, [kernel.symbol], 4, 4)

    def __call__(
        self, a: Array, b: Array, c: Array, tiles: int = 1, accumulate: bool = False
    ) -> None:
        """`a` of `tiles * mr` rows; a packed `b` is given as `(k, nr)`. Several tiles fetch it once
        more, as if it were the next panel."""
        size, (a_row, a_k) = a.itemsize, a.strides
        context = np.zeros(int(Context.SIZE), np.int64)
        context[Context.A_STRIDE] = a_row if self.kernel.a_layout == ROW else a_k
        context[Context.A_TILE_STRIDE] = self.kernel.mr * a_row
        context[Context.B_K_STRIDE] = b.strides[1 if self.kernel.b_layout == DOT else 0]
        context[Context.C_ROW_STRIDE] = c.strides[0]
        context[Context.VALID_COLUMNS] = c.shape[1]
        context[Context.ACCUMULATE] = int(accumulate)
        context[Context.FINISH] = 1
        context[Context.NEXT_B] = b.ctypes.data
        context[Context.NEXT_B_STEP] = b.strides[0] // tiles if tiles > 1 else 0
        assert (a_k if self.kernel.a_layout == ROW else a_row) == size
        places = [x.ctypes.data for x in (context, a, b, c)]
        self._call(*places, 0, 0, a.shape[1], tiles)


def check(
    kernel: UKernel,
    fused: bool,
    columns: tuple[int, ...],
    isa: str = HOST_ISAS[-1],
    masked: bool = False,
) -> None:
    """One kernel at several lengths of k, over one and several tiles, with and without C."""
    run = Loaded(kernel, fused, isa, masked)
    dtype, mr, nr = kernel.types.c.name, kernel.mr, kernel.nr
    for k in (0, 1, 2, 3, 7, 64, 101):
        for tiles in (1, 3):
            for n in columns:
                for accumulate in (False, True):
                    a = uniform(k, (tiles * mr, k), dtype)
                    if kernel.a_layout == COLUMN:
                        a = np.asfortranarray(a)
                    b = uniform(k + 1, (k, nr), dtype)
                    if kernel.b_layout == STRIDED:
                        b, _ = lie("padded", b)
                    if kernel.b_layout == DOT:
                        b = lie("padded", np.ascontiguousarray(b.T))[0].T
                    before = uniform(2, (tiles * mr, n), dtype)
                    c, memory = lie("padded", before, guard=99.0)
                    if k == 0 and min(a.strides) == 0:
                        a = np.empty((tiles * mr, 1), dtype, order="F")[:, :0]
                    if 0 in a.strides or a.strides[kernel.a_layout == ROW] != a.itemsize:
                        continue
                    run(a, b, c, tiles, accumulate)
                    assert_product(
                        c, a, b[:, :n], added_to=before if accumulate else None,
                        message=f"{kernel.symbol} k={k} tiles={tiles} n={n}",
                    )  # fmt: skip
                    assert np.count_nonzero(memory == 99.0) == memory.size - c.size


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("tile", ["1x1/4", "1x5/2", "5x5/1", "6x4/1", "14x2/1"])
def test_avx512_shapes(dtype: DType, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on machines whose registers are narrower: the same IR, compiled for them."""
    if "avx512" not in HOST_ISAS:
        # No register has one of these vectors; the order of instructions changes no result.
        monkeypatch.setattr(k_loop, "in_order", lambda builder, vectors: None)
    mr, vectors, chains = map(int, re.findall(r"\d+", tile))
    lanes = 64 // dtype.itemsize
    for a_layout, b_layout in ((ROW, PACKED), (COLUMN, STRIDED)):
        tile = RegisterTile(mr, vectors, chains)
        kernel = UKernel(tile, product_types(dtype), "avx512", lanes, a_layout, b_layout)
        check(kernel, HOST_ISAS[-1] != "sse2", (kernel.nr,))


@pytest.mark.parametrize(
    ("isa", "lanes"),
    [
        pytest.param(isa, lanes, marks=pytest.mark.isa(isa))
        for isa, lanes in (("sse2", 4), ("avx2", 8), ("avx512", 16), ("neon", 4))
    ],
)
def test_on_its_own_isa(isa: str, lanes: int) -> None:
    """Compiled for an ISA and no wider one, where this machine has it."""
    for tile in (RegisterTile(1, 2, 2), RegisterTile(4, 2, 1)):
        kernel = UKernel(tile, FLOATS, isa, lanes)
        check(kernel, isa != "sse2", (kernel.nr,), isa)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("vectors", [1, 3])
def test_tails(lanes: int, vectors: int) -> None:
    """Every number of columns that a tail may have: nothing beside them is touched."""
    for mr, chains in ((1, 3), (3, 1)):
        kernel = UKernel(
            RegisterTile(mr, vectors, chains), FLOATS, "any", lanes, ROW, PACKED, tail=True
        )
        fused, columns = HOST_ISAS[-1] != "sse2", range(1, kernel.nr + 1)
        check(kernel, fused, tuple(columns))
        # Under a mask, only the last vector may be cut off.
        check(kernel, fused, tuple(columns[-lanes:]), masked=True)


@pytest.mark.each_value
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("a_layout", [ROW, COLUMN])
@pytest.mark.parametrize("b_layout", [PACKED, STRIDED])
@pytest.mark.parametrize("chains", [1, 2, 3, 8])
def test_layouts_and_chains(fused: bool, a_layout: str, b_layout: str, chains: int) -> None:
    tile = RegisterTile(2, 2, chains)
    check(UKernel(tile, DOUBLES, "any", 2, a_layout, b_layout), fused, (4,))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("b_layout", [PACKED, STRIDED])
def test_parts(dtype: DType, vector_bytes: int, b_layout: str) -> None:
    """Tiles side by side, each with columns of its own."""
    for tile in (RegisterTile(1, 1, 3, parts=2), RegisterTile(7, 2, 1, parts=2)):
        lanes = vector_bytes // dtype.itemsize
        kernel = UKernel(tile, product_types(dtype), "any", lanes, ROW, b_layout)
        assert kernel.nr == 2 * tile.vectors * lanes
        check(kernel, HOST_ISAS[-1] != "sse2", (kernel.nr,))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("masked", [False, True])
def test_dot_tiles(dtype: DType, vector_bytes: int, masked: bool) -> None:
    """Vectors along k: whole rounds, single vectors and what is left of one."""
    for tile in (RegisterTile(1, 1, 4), RegisterTile(1, 4, 2), RegisterTile(4, 3, 1)):
        kernel = UKernel(
            tile, product_types(dtype), "any", vector_bytes // dtype.itemsize, ROW, DOT
        )
        check(kernel, HOST_ISAS[-1] != "sse2", (kernel.nr,), masked=masked)


def test_symbols_tell_kernels_apart() -> None:
    base = UKernel(RegisterTile(2, 2, 1), FLOATS, "avx2", 8)
    others = [
        UKernel(RegisterTile(3, 2, 1), FLOATS, "avx2", 8),
        UKernel(RegisterTile(2, 1, 1), FLOATS, "avx2", 8),
        UKernel(RegisterTile(2, 2, 2), FLOATS, "avx2", 8),
        UKernel(RegisterTile(2, 2, 1, parts=2), FLOATS, "avx2", 8),
        UKernel(RegisterTile(2, 1, 1, parts=2), FLOATS, "avx2", 8),
        UKernel(RegisterTile(2, 2, 1), DOUBLES, "avx2", 8),
        UKernel(RegisterTile(2, 2, 1), product_types(FLOAT32, INT8), "avx2", 8),
        UKernel(RegisterTile(2, 2, 1), FLOATS, "sse2", 8),
        UKernel(RegisterTile(2, 2, 1), FLOATS, "avx2", 8, COLUMN),
        UKernel(RegisterTile(2, 2, 1), FLOATS, "avx2", 8, ROW, STRIDED),
        UKernel(RegisterTile(2, 2, 1), FLOATS, "avx2", 8, ROW, PACKED, True),
        UKernel(RegisterTile(2, 2, 1), FLOATS, "avx2", 8, ROW, DOT),
    ]
    assert len({kernel.symbol for kernel in (base, *others)}) == len(others) + 1
