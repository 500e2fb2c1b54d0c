"""An instruction set is one row: nothing else in the sources knows one by name, and a row that is
added is probed, enumerated, planned and compiled like the others."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import recorded_cpus
from tests.reference import assert_product, uniform

import ftuner
from ftuner.codegen.llvm.ir.instructions import EMITTERS
from ftuner.codegen.llvm.objects import keys
from ftuner.codegen.llvm.objects.bundle import family_bundle
from ftuner.codegen.llvm.objects.compile import bundle_module
from ftuner.codegen.llvm.objects.jit import Target, compile_assembly, host_target
from ftuner.codegen.llvm.objects.keys import bundle_key
from ftuner.core.cpu.tile import PACKED, ROW, RegisterTile, UKernel
from ftuner.core.dtype import DTYPES, FLOAT16, FLOAT32, INT8
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.product import ProductTypes, product_types
from ftuner.errors import ConfigurationError, HardwareError
from ftuner.hardware import isa
from ftuner.hardware.isa import (
    FIXED,
    INSTRUCTION_SETS,
    SEPARATE,
    InstructionSet,
    instruction_set,
    instruction_sets,
    register_instruction_set,
)
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.system import isas_of, promised_isas, read_system
from ftuner.hardware.tuning import KLoopTuning
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.packed_weights import pack
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.ukernels.cpu.library import Operands, build_library

ROOT = Path(ftuner.__file__).parent
AVX = InstructionSet(
    name="avx",
    architecture="x86_64",
    flags=("avx",),
    features="+avx",
    features_off=("avx2", "avx512", "avx10", "avxvnni", "evex512", "fma", "f16c", "xop"),
    vector_bytes=32,
    vector_registers=16,
    masked=False,
    unrolled=True,
    multiply_adds=SEPARATE,
)
"""Intel Sandy Bridge: eight floats in a vector, but no fused multiply-add."""


NAMES = re.compile(rf"\b({'|'.join(INSTRUCTION_SETS)})\b")


def strings_of(code: str) -> Iterator[str]:
    """The strings in the code of a module, without docstrings and names of LLVM's intrinsics."""
    tree = ast.parse(code)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in strings:
        text = node.value
        if isinstance(text, str) and id(node) not in docstrings and not text.startswith("llvm."):
            yield text


def test_only_the_table_knows_instruction_sets_by_name() -> None:
    found = {}
    for path in set(ROOT.rglob("*.py")) - {Path(isa.__file__)}:
        text = path.read_text(encoding="utf-8")
        if NAMES.search(text):
            found.update({s: path.name for s in strings_of(text) if NAMES.search(s)})
    assert found == {}
    assert list(strings_of("def f(): 'of avx2'\nx = 'avx2', 'llvm.x86.sse2.pause'")) == ["avx2"]


@pytest.mark.parametrize("row", INSTRUCTION_SETS.values(), ids=lambda row: row.name)
def test_rows(row: InstructionSet) -> None:
    assert INSTRUCTION_SETS[row.name] is instruction_set(row.name) is row
    assert {m.emitter for m in row.multiply_adds} <= set(EMITTERS)
    for dtype in DTYPES.values():
        found = row.multiply_add(product_types(dtype))
        assert found.fused == row.fused
        # Weights of 8 bits are widened first.
        assert row.multiply_add(product_types(dtype, INT8)) == found
    with pytest.raises(HardwareError, match=f"{row.name} has no multiply-add for float16"):
        row.multiply_add(product_types(FLOAT16))
    with pytest.raises(HardwareError, match="int8_int8_float32_float32"):
        row.multiply_add(ProductTypes(INT8, INT8, FLOAT32, FLOAT32))


def test_narrow_to_wide() -> None:
    assert [row.name for row in instruction_sets("x86_64")] == ["sse2", "avx2", "avx512"]
    assert [row.name for row in instruction_sets("aarch64")] == ["neon"]
    assert instruction_sets("riscv64") == ()
    with pytest.raises(HardwareError, match="no ISA 'amx'; known are sse2"):
        instruction_set("amx")


def test_models_agree_with_rows(recorded: CpuHardware) -> None:
    for found in recorded.isas:
        row = instruction_set(found.name)
        assert [getattr(found, name) for name in FIXED] == [getattr(row, name) for name in FIXED]
        rate = found.multiply_add(product_types(FLOAT32))
        assert rate == (found.fma_per_cycle, found.fma_latency_cycles, found.fused)


@pytest.fixture
def avx() -> Iterator[InstructionSet]:
    """A row from outside, known to one test alone."""
    register_instruction_set(AVX)
    yield AVX
    del isa._TABLE[AVX.name]


def test_registration(avx: InstructionSet) -> None:
    register_instruction_set(avx)
    with pytest.raises(ConfigurationError, match="another ISA is called 'avx'"):
        register_instruction_set(replace(avx, masked=True))
    # Narrow to wide, and of two alike the one with fused multiply-add is wider.
    assert [row.name for row in instruction_sets("x86_64")] == ["sse2", "avx", "avx2", "avx512"]
    listed = replace(read_system(), architecture="x86_64", features=frozenset({"avx"}))
    assert isas_of(listed) == ("sse2", "avx")
    hidden = replace(listed, features=frozenset())
    assert isas_of(hidden) == ("sse2",)
    assert promised_isas(hidden) == ("sse2", "avx", "avx2", "avx512")


@pytest.mark.isa("avx2")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_all_it_takes(avx: InstructionSet, cache_folder: Path, dtype: str) -> None:
    """The machine is probed with the new row, tiles are enumerated for it, and every candidate of a
    product is right."""
    types, n, k = product_types(DTYPES[dtype]), 50, 70
    backend = CpuBackend(Cache(cache_folder), isa=avx.name)
    assert avx.name in [found.name for found in backend.hardware.isas]
    assert backend.hardware.widest.name != avx.name
    library = backend.kernels.library(types, ACCUMULATOR)
    assert library.lanes == 32 // DTYPES[dtype].itemsize
    width = library.widths[0]
    families = library.families(Operands((ROW,), ("panels",)), n, width)
    products = backend.products(types, families=families)
    weight = uniform(1, (n, k), dtype)
    panels = pack(products, weight, width)
    for rows in (1, 2, 7, 30):
        x = uniform(rows, (rows, k), dtype)
        problem = panel_problem(n, k, width, rows, 1)
        for candidate in products.planner.candidates(problem):
            if candidate.fits(rows):
                y = np.empty((rows, n), dtype)
                strides = Strides(x.strides[0], x.itemsize, 0, 0, y.strides[0], (), (), False)
                encoded = products.encode(products.planner.lay_out(problem, candidate), strides)
                products.alone(encoded, x, panels.packed, y, None)
                assert_product(y, x, weight.T)


@pytest.mark.isa("avx2")
def test_code_is_of_the_row(avx: InstructionSet) -> None:
    """Vectors of 32 bytes, multiplied and added apart."""
    machine = next(m for m in recorded_cpus() if m.name == "core-i7-8700")
    model = replace(machine.isa("avx2"), name=avx.name, fused=False)
    machine = replace(machine, isas=(model,))
    library = build_library(machine, avx.name, product_types(FLOAT32))
    kernel = library.family(library.widths[0], False, ROW, PACKED).kernels[-1]
    target = host_target(avx.name)
    bundle = family_bundle((kernel,), avx, KLoopTuning(), 64)
    text = compile_assembly(bundle_module(bundle, target), target)
    assert re.search(r"\tvmulps\t.*%ymm", text)
    assert re.search(r"\tvaddps\t.*%ymm", text)
    assert not re.search(r"\tvfn?madd|%zmm", text)


def test_an_emitter_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its source is part of the key of what it is compiled into."""
    row = replace(
        AVX, multiply_adds=(replace(AVX.multiply_adds[0], emitter="apart", llvm="isa_outside"),)
    )
    kernel = UKernel(RegisterTile(1, 1, 1), product_types(FLOAT32), row.name, 8)
    bundle = family_bundle((kernel,), row, KLoopTuning(), 64)
    target = Target("x86_64-unknown-linux-gnu", "x86-64", row.features)
    bundle_key(bundle, target)
    assert "no source of isa_outside" in caplog.text
    keys.generator_digest.cache_clear()
    (tmp_path / "isa_outside.py").write_text(
        "def apart(builder, a, b, sums):\n"
        "    return builder.fadd(sums, builder.fmul(b, a), name='outside')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(keys, "_installed", lambda: keys.Sources(ROOT))
    assert bundle_key(bundle, target)
    assert '%"outside" = fadd' in str(bundle_module(bundle, target))
