"""The code of uKernels by blocks of few bits, on instruction sets that this machine may lack."""

import re

import llvmlite.ir as ir
import pytest
from tests.codegen.llvm.objects import target_of

from ftuner.codegen.llvm.kernels import family, widen
from ftuner.codegen.llvm.objects.jit import compile_assembly
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import (
    DType,
    block_of_bytes,
    block_of_codes,
    block_of_floats,
    block_of_levels,
    block_of_signed_levels,
)
from ftuner.core.product import product_types
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import KLoopTuning


def instructions_of(isa: str, block: DType) -> list[str]:
    """The instructions of a uKernel of two rows and two vectors by blocks, and of the function that
    widens these. Neither calls any but the function of an epilogue, by its address."""
    row = instruction_set(isa)
    types = product_types(block_of_floats(block.numbers), block)
    kernel = UKernel(RegisterTile(2, 2, 1), types, isa, row.vector_bytes // 4)
    module = ir.Module()
    family.emit(module, (kernel,), row, KLoopTuning(), 64)
    widen.emit(module, types.a, types.b, kernel.lanes, row)
    assembly = compile_assembly(module, target_of(isa))
    instructions = re.findall(r"^\t([a-z]\w*)", assembly, re.MULTILINE)
    assert not re.findall(r"^\t(?:callq?\s+[^*\s]|bl\s)", assembly, re.MULTILINE)
    assert not [name for name in instructions if "cvt" in name]
    return instructions


@pytest.mark.parametrize("isa", ["sse2", "avx2", "avx512", "neon"])
@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (8, True), (2, False)])
def test_levels_become_floats_without_conversions(isa: str, bits: int, zeros: bool) -> None:
    instructions = instructions_of(isa, block_of_levels(bits, 32, zeros))
    # One for each level of a word, row and vector.
    products = [name for name in instructions if re.match("v?fmadd|fmla|mulps", name)]
    assert len(products) >= 32 // bits * 4


@pytest.mark.parametrize(("isa", "lookups"), [("sse2", 0), ("avx2", 2), ("avx512", 1), ("neon", 0)])
def test_codes_are_looked_up_in_registers(isa: str, lookups: int) -> None:
    """Where an instruction looks lanes up, each of the eight levels of a word needs one for each
    part of the table: of two vectors in the uKernel, of one in the other function."""
    instructions = instructions_of(isa, block_of_codes("nf4", 32))
    found = [name for name in instructions if name in ("vpermps", "vpermd")]
    assert len(found) == lookups * 8 * 3


@pytest.mark.parametrize(
    ("isa", "extension", "name"),
    [("avx2", "avxvnni", "vpdpbusd"), ("avx512", "avx512vnni", "vpdpbusd"),
     ("neon", "i8mm", "usdot")],
)  # fmt: skip
@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (8, True), (2, False)])
def test_four_levels_are_multiplied_by_one_instruction(
    isa: str, extension: str, name: str, bits: int, zeros: bool
) -> None:
    """Of a block, in each row and vector; zero points take the sum of each row, too. There are at
    most a shift and a mask for each vector of levels, and no spills."""
    row = instruction_set(isa)
    types = product_types(block_of_bytes(32), block_of_signed_levels(bits, 32, zeros))
    kernel = UKernel(RegisterTile(2, 2, 1), types, isa, row.vector_bytes // 4)
    module = ir.Module()
    family.emit(module, (kernel,), row, KLoopTuning(), 64)
    assembly = compile_assembly(module, target_of(isa, extension))
    names = re.findall(r"^\t(?:\{vex\}\s)?([a-z]\w*)", assembly, re.MULTILINE)
    unrolled = min(bits, 4) * 8 // bits
    assert names.count(name) == unrolled * (6 if zeros else 4)
    shifts = [x for x in names if re.match("vpslld|shl$", x)]
    assert len(shifts) <= unrolled * 2
