"""uKernels of a matrix unit: their code anywhere, and what they compute where there is one."""

import re

import llvmlite.ir as ir
import numpy as np
import pytest
from tests.codegen.llvm.objects import target_of
from tests.codegen.llvm.test_product import Loaded
from tests.reference import Array, lie

from ftuner.codegen.llvm.kernels.k_loop import CodeOptions
from ftuner.codegen.llvm.kernels.product import emit_ukernel
from ftuner.codegen.llvm.objects.jit import compile_assembly
from ftuner.core.cpu.tile import ROW, WINDOW, RegisterTile, UKernel
from ftuner.core.dtype import BFLOAT16, UINT8, DType
from ftuner.core.product import WORD_PRODUCTS
from ftuner.graph.arrays import converted
from ftuner.graph.arrays import words as bits_of
from ftuner.hardware.isa import MATRIX_UNIT, instruction_set
from ftuner.hardware.system import read_system
from ftuner.hardware.tuning import KLoopTuning

LANES = 16
STEPS = (1, 2, 3, 15, 16, 17, 64, 101)
DTYPES = [UINT8, BFLOAT16]
has_unit = pytest.mark.skipif(
    not any(name.startswith(MATRIX_UNIT) for name in read_system().features),
    reason="this machine has no matrix unit, or does not permit its use",
)


def kernel_of(
    rows: DType, mr: int, vectors: int, tail: bool = False, a_layout: str = ROW, parts: int = 1
) -> UKernel:
    tile = RegisterTile(mr, vectors, 1, parts, matrix=True)
    return UKernel(tile, WORD_PRODUCTS[rows], "avx512", LANES, a_layout, tail=tail)


def tile_instructions(kernel: UKernel) -> list[str]:
    module = ir.Module("kernel")
    emit_ukernel(module, kernel, CodeOptions(instruction_set("avx512"), KLoopTuning(), 64))
    target = target_of("avx512", "amx-tile", "amx-int8", "amx-bf16", cpu="sapphirerapids")
    return re.findall(r"\t(ldtilecfg|tile\w+|tdp\w+)\t?", compile_assembly(module, target))


@pytest.mark.parametrize("a_layout", [ROW, WINDOW])
@pytest.mark.parametrize("rows", DTYPES, ids=str)
def test_code(rows: DType, a_layout: str) -> None:
    """The unit is configured before all tiles and released after them; whole steps and those that
    are left over read A once for all vectors of B."""
    for mr, vectors in ((1, 1), (13, 4), (16, 4)):
        found = tile_instructions(kernel_of(rows, mr, vectors, a_layout=a_layout))
        name = "tdpbusd" if rows == UINT8 else "tdpbf16ps"
        assert (found[0], found[-1]) == ("ldtilecfg", "tilerelease")
        assert found.count("ldtilecfg") == 1
        assert found.count(name) == 2 * vectors
        assert found.count("tileloadd") == 2 * (1 + vectors)
        assert found.count("tilestored") == vectors


@pytest.mark.parametrize("rows", DTYPES, ids=str)
def test_code_of_several_tiles_of_rows(rows: DType) -> None:
    """What is loaded is multiplied by all tiles of the other operand."""
    found = tile_instructions(kernel_of(rows, 32, 2, parts=2))
    counts = {name: found.count(name) for name in ("tileloadd", "tilestored", "tilezero")}
    assert counts == {"tileloadd": 2 * 4, "tilestored": 4, "tilezero": 4}
    assert found.count("tdpbusd" if rows == UINT8 else "tdpbf16ps") == 2 * 4


def words(rows: DType, shape: tuple[int, int], signed: bool) -> tuple[Array, Array]:
    """Random words, and their numbers in float64: of each word a row of them."""
    rng = np.random.default_rng(sum(shape))
    if rows == UINT8:
        narrow = rng.integers(0, 256, (*shape, 4), np.uint8)
        numbers = narrow.view(np.int8) if signed else narrow
        return narrow.view(np.int32)[..., 0], numbers.astype(np.float64)
    floats = converted(rng.uniform(-1, 1, (*shape, 2)), BFLOAT16)
    return bits_of(floats, BFLOAT16).view(np.int32)[..., 0], floats.astype(np.float64)


@has_unit
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize(
    ("heights", "vectors", "parts"),
    [((1, 7, 16), 1, 1), ((1, 7, 16), 4, 1), ((17, 32), 2, 1), ((17, 32), 2, 2)],
)
@pytest.mark.parametrize("rows", DTYPES, ids=str)
def test_sums(rows: DType, heights: tuple[int, ...], vectors: int, parts: int, tail: bool) -> None:
    """Every length of what is left over, several tiles, columns that are missing; nothing beside
    the result is touched, and a row does not depend on those beside it."""
    if tail and parts > 1:
        pytest.skip("tails have one part")
    alone = Loaded(kernel_of(rows, 1, vectors * parts, tail), True, "avx512", True)
    for mr in heights:
        kernel = kernel_of(rows, mr, vectors, tail, parts=parts)
        run = Loaded(kernel, True, "avx512", True)
        columns = (kernel.nr,) if not tail else (kernel.nr - 15, kernel.nr - 3, kernel.nr)
        for k in STEPS:
            for n in columns:
                a, of_a = words(rows, (3 * mr, k), False)
                b, of_b = words(rows, (k, kernel.nr), True)
                c, memory = lie("padded", np.zeros((3 * mr, n), np.float32), guard=99.5)
                run(a, b, c, 3)
                wanted = np.einsum("mki,kni->mn", of_a, of_b[:, :n])
                if rows == UINT8:
                    np.testing.assert_array_equal(c, wanted)
                else:
                    most = np.einsum("mki,kni->mn", np.abs(of_a), np.abs(of_b[:, :n]))
                    assert (np.abs(c - wanted) <= 2.0**-23 * (2 * k + 1) * most).all()
                assert np.count_nonzero(memory == 99.5) == memory.size - c.size
                single, _ = lie("padded", np.zeros((1, n), np.float32))
                alone(a[-1:], b, single)
                np.testing.assert_array_equal(single, c[-1:])
