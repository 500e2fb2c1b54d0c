"""Machines that hide features of their CPU: the CPU's name brings none of them back."""

import platform
import re
from collections.abc import Mapping
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from ftuner.codegen.llvm.objects.bundle import family_bundle, kernel_bundle
from ftuner.codegen.llvm.objects.compile import bundle_module
from ftuner.codegen.llvm.objects.jit import compile_assembly, host_features, host_target
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.hardware.isa import MATRIX_UNIT, instruction_set
from ftuner.hardware.system import read_system
from ftuner.hardware.tuning import KLoopTuning

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="names of x86 CPUs"
)
NAMES = (
    "skylake-avx512", "cascadelake", "icelake-server", "sapphirerapids", "graniterapids",
    "diamondrapids", "znver4", "znver5",
)  # fmt: skip
BASE = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
"""What every x86-64 has."""
WIDE = re.compile(r"%zmm\d|%k[0-7]\b|%[xy]mm(?:1[6-9]|2\d|3[01])\b")
"""Registers that only AVX-512 and AVX10 have."""
VECTORS = re.compile(r"%[yz]mm\d|\tv[a-z]\w+\t")
"""Registers and instructions that only AVX and its successors have."""
WORK = """
declare <64 x i8> @llvm.ctpop.v64i8(<64 x i8>)
declare <16 x i32> @llvm.ctpop.v16i32(<16 x i32>)
declare <64 x i8> @llvm.bitreverse.v64i8(<64 x i8>)
declare <32 x i16> @llvm.fshl.v32i16(<32 x i16>, <32 x i16>, <32 x i16>)
declare <8 x i64> @llvm.ctlz.v8i64(<8 x i64>, i1)
declare i32 @llvm.vector.reduce.add.v64i32(<64 x i32>)
declare i64 @llvm.ctpop.i64(i64)

define void @work(ptr %x, ptr %y, ptr %out) {{
  %bytes = load <64 x i8>, ptr %x
  %others = load <64 x i8>, ptr %y
  %counted = call <64 x i8> @llvm.ctpop.v64i8(<64 x i8> %bytes)
  %turned = call <64 x i8> @llvm.bitreverse.v64i8(<64 x i8> %counted)
  %mixed = shufflevector <64 x i8> %turned, <64 x i8> %others, <64 x i32> <{mixed}>
  store <64 x i8> %mixed, ptr %out
  %words = load <32 x i16>, ptr %x
  %shifted = call <32 x i16> @llvm.fshl.v32i16(<32 x i16> %words, <32 x i16> %words,
                                               <32 x i16> %words)
  store <32 x i16> %shifted, ptr %y
  %integers = load <16 x i32>, ptr %out
  %bits = call <16 x i32> @llvm.ctpop.v16i32(<16 x i32> %integers)
  store <16 x i32> %bits, ptr %x
  %longs = load <8 x i64>, ptr %y
  %zeros = call <8 x i64> @llvm.ctlz.v8i64(<8 x i64> %longs, i1 false)
  store <8 x i64> %zeros, ptr %out
  %halves = load <32 x half>, ptr %x
  %doubled = fadd <32 x half> %halves, %halves
  store <32 x half> %doubled, ptr %y
  %floats = load <16 x float>, ptr %out
  %short = fptrunc <16 x float> %floats to <16 x bfloat>
  store <16 x bfloat> %short, ptr %x
  ret void
}}

define i32 @products(ptr %x, ptr %y) {{
  %a = load <64 x i8>, ptr %x
  %b = load <64 x i8>, ptr %y
  %unsigned = zext <64 x i8> %a to <64 x i32>
  %signed = sext <64 x i8> %b to <64 x i32>
  %terms = mul <64 x i32> %unsigned, %signed
  %sum = call i32 @llvm.vector.reduce.add.v64i32(<64 x i32> %terms)
  ret i32 %sum
}}

define i64 @scalar(i64 %x, i64 %y) {{
  %bits = call i64 @llvm.ctpop.i64(i64 %x)
  %not = xor i64 %x, -1
  %and = and i64 %not, %y
  %shifted = shl i64 %and, %bits
  ret i64 %shifted
}}
""".format(mixed=", ".join(f"i32 {(37 * i + i // 5) % 128}" for i in range(64)))
"""IR in which LLVM finds work for the extensions below."""
EXTENSIONS: Mapping[str, str] = {
    "avx512vnni": r"\tvpdpbusd",
    "avx512vbmi": r"\tvperm(b|[it]2b)\t",
    "avx512vbmi2": r"\tvpshldvw\t",
    "avx512bitalg": r"\tvpopcntb\t",
    "avx512vpopcntdq": r"\tvpopcnt[dq]\t",
    "avx512cd": r"\tvplzcntq\t",
    "avx512fp16": r"\tvaddph\t",
    "avx512bf16": r"\tvcvtneps2bf16",
    "gfni": r"\tvgf2p8affineqb\t",
    "popcnt": r"\tpopcntq\t",
}
"""By LLVM's name: instructions of it."""


def hide(monkeypatch: pytest.MonkeyPatch, name: str, *hidden: str) -> None:
    """Have LLVM find a CPU that has all there is, but for features whose names begin so."""
    found = {
        feature: feature in BASE or not feature.startswith(hidden)
        for feature in llvm.get_host_cpu_features()
    }
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: name)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: found)
    listed = frozenset(feature.replace("-", "_") for feature, on in found.items() if on)
    facts = replace(read_system(), features=listed)
    monkeypatch.setattr("ftuner.codegen.llvm.objects.jit.read_system", lambda: facts)


def assembly(isa: str) -> str:
    """The work above and kernels of ours, in the assembly of this machine's target."""
    target, row = host_target(isa), instruction_set(isa)
    lanes = row.vector_bytes // FLOAT32.itemsize
    kernel = UKernel(RegisterTile(4, 2, 1), product_types(FLOAT32), isa, lanes)
    bundles = (
        family_bundle((kernel,), row, KLoopTuning(), 64),
        kernel_bundle("ftuner.schedules.top_k.cpu_kernel", "top_k", FLOAT32, True, True, 64, 100),
    )
    modules = [WORK, *(str(bundle_module(bundle, target)) for bundle in bundles)]
    return "\n".join(compile_assembly(module, target) for module in modules)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_vectors_stay_hidden(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hide(monkeypatch, name)
    assert WIDE.search(assembly("avx512"))
    hide(monkeypatch, name, "avx512", "avx10")
    text = assembly("avx2")
    assert VECTORS.search(text)
    assert not WIDE.search(text)
    hide(monkeypatch, name, "avx", "fma", "f16c", "gfni", "vaes", "vpclmul")
    assert not VECTORS.search(assembly("sse2"))


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_each_hidden_extension_stays_hidden(
    monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    # AVX10 has all of AVX-512 in it, and AVX-VNNI the same instructions for narrower vectors.
    others = "avx10", "avxvnni"
    hide(monkeypatch, "sapphirerapids", *others)
    assert re.search(EXTENSIONS[extension], compile_assembly(WORK, host_target("avx512")))
    monkeypatch.undo()
    hide(monkeypatch, "sapphirerapids", *others, extension)
    assert not re.search(EXTENSIONS[extension], compile_assembly(WORK, host_target("avx512")))


def test_what_the_system_does_not_list_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system may leave out what the CPU itself reports; `targets` are kept by what it lists."""
    hide(monkeypatch, "sapphirerapids")
    listed = {
        {"avx512vbmi2": "avx512_vbmi2"}.get(feature, feature.replace("-", "_"))
        for feature, on in host_features().items()
        if on and feature not in ("avx512vnni", "avxvnni", "popcnt")
    }
    facts = replace(read_system(), features=frozenset(listed))
    monkeypatch.setattr("ftuner.codegen.llvm.objects.jit.read_system", lambda: facts)
    off = {name for name, on in host_features().items() if not on}
    assert off == {"avx512vnni", "avxvnni"}
    text = compile_assembly(WORK, host_target("avx512"))
    assert not re.search(EXTENSIONS["avx512vnni"], text)
    assert re.search(EXTENSIONS["avx512vbmi2"], text)
    # A system that hides all leaves it to LLVM, but for what it has to permit.
    facts = replace(read_system(), features=frozenset())
    monkeypatch.setattr("ftuner.codegen.llvm.objects.jit.read_system", lambda: facts)
    assert {name for name, on in host_features().items() if not on} == {
        name for name in llvm.get_host_cpu_features() if name.startswith(MATRIX_UNIT)
    }


def test_this_machine_lists_what_llvm_finds() -> None:
    """Names are compared rightly: AVX2 and its like are not lost."""
    found, usable = llvm.get_host_cpu_features(), host_features()
    common = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512_vnni", "avx512_vbmi2")
    for name in read_system().features.intersection(common):
        assert usable[name.replace("_", "")] is found[name.replace("_", "")]
