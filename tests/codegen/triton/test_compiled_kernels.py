"""Product kernels compiled ahead of time, without a GPU: what they take, what they are made of."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from tests.codegen.triton.compiling import compile_all
from tests.codegen.triton.resource_model import disagreements
from tests.gpu_kernels import product_kernel

from ftuner.codegen.triton.microbenchmarks import reads_source
from ftuner.codegen.triton.product import gemm_source, grouped_source
from ftuner.codegen.triton.source import HEADER, Argument, Source
from ftuner.codegen.triton.targets import TARGETS, Compiled, Resources, nvidia_resources
from ftuner.codegen.triton.vector_math import FUNCTIONS, call, prelude
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from ftuner.core.expr import ACCUMULATOR, Operand, applied, relu
from ftuner.core.gpu.tile import BlockTile, Multiply, Order, ProductKernel
from ftuner.errors import ObjectFileError

BIAS, RESIDUAL = Operand("bias", "column"), Operand("res", "matrix")
GELU, SUM = applied("gelu", ACCUMULATOR + BIAS), ACCUMULATOR + RESIDUAL


@dataclass(frozen=True)
class Case:
    """A kernel for a chip, and instructions that it must have."""

    target: str
    kernel: ProductKernel
    patterns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.target}-{self.kernel.symbol[6:-13]}"


def kernel(
    *sizes: tuple[int, int, int, int, int],
    dtype: DType = BFLOAT16,
    orders: tuple[Order, Order] = ("k", "k"),
    multiply: Multiply | None = None,
    **options: Any,
) -> ProductKernel:
    tiles = tuple(BlockTile(*size) for size in sizes)
    if multiply is None:
        multiply = "bfloat16" if dtype is BFLOAT16 else "float16"
    return product_kernel(tiles, dtype, multiply, *orders, **options)


COPY, COPY_BACK = (
    r"cp\.async\.bulk\.tensor\.3d\.\S*global\.mbarrier",
    r"cp\.async\.bulk\.tensor\.3d\.global\.shared",
)
WGMMA, MMA, TCGEN05 = r"wgmma\.mma_async\S*bf16", r"mma\.sync\S*m16n8k16", r"tcgen05\.mma"
ASYNC = r"cp\.async\.cg\.shared\.global \[[^\]]*\], \[[^\]]*\], 0x10"
VECTOR_STORE, COUNT = r"st\.global\.v4\.b32", r"atom\.global\.gpu\.acq_rel\.add"
TURNED: tuple[Order, Order] = ("k", "spatial")
COPIED = {"loads": "descriptors"}
CASES = [
    Case("sm_90", kernel((128, 256, 64, 8, 4), **COPIED), (COPY, WGMMA, COPY_BACK)),
    Case("sm_90", kernel((128, 256, 64, 8, 3), (64, 256, 64, 8, 3), orders=TURNED, epilogue=GELU,
                         vectors=FLOAT32, **COPIED), (COPY, WGMMA, COPY_BACK)),
    Case("sm_90", kernel((16, 128, 128, 4, 4), split=True, epilogue=SUM, **COPIED),
         (COPY, MMA, COUNT)),
    Case("sm_90", kernel((64, 128, 64, 4, 4), c_aligned=False, **COPIED), (COPY, WGMMA)),
    Case("sm_90", kernel((128, 128, 64, 8, 3), orders=("spatial", "spatial")),
         (ASYNC, WGMMA, VECTOR_STORE)),
    Case("sm_90", kernel((64, 64, 32, 4, 3), alignment=2, c_aligned=False), (WGMMA,)),
    Case("sm_90", kernel((128, 128, 32, 8, 3), dtype=FLOAT32, multiply="tf32", **COPIED),
         (COPY, r"wgmma\.mma_async\S*tf32")),
    Case("sm_80", kernel((128, 128, 32, 4, 4), dtype=FLOAT16, epilogue=GELU),
         (ASYNC, MMA, VECTOR_STORE)),
    Case("sm_80", kernel((128, 128, 32, 8, 3), (64, 128, 32, 8, 3), orders=TURNED, split=True),
         (ASYNC, MMA, COUNT)),
    Case("sm_80", kernel((64, 64, 16, 4, 3), dtype=FLOAT32, multiply="float32"),
         (r"cp\.async\.cg", r"fma\.rn\.f32")),
    Case("sm_100", kernel((128, 256, 64, 8, 3), specialised=True, **COPIED),
         (COPY, TCGEN05, r"setmaxnreg")),
    Case("sm_100", kernel((128, 128, 64, 4, 4), **COPIED), (COPY, TCGEN05)),
    Case("gfx942", kernel((128, 128, 32, 8, 2), orders=TURNED), (r"v_mfma_f32_\S*bf16",)),
    Case("sm_90", kernel((128, 256, 64, 8, 3), grouped=True), (ASYNC, WGMMA, VECTOR_STORE)),
    Case("sm_80", kernel((64, 64, 64, 4, 3), dtype=FLOAT16, orders=TURNED, grouped=True),
         (ASYNC, MMA, VECTOR_STORE)),
    Case("sm_80", kernel((64, 64, 16, 4, 3), dtype=FLOAT32, multiply="float32", alignment=4,
                         grouped=True), (r"fma\.rn\.f32",)),
    Case("sm_100", kernel((128, 128, 64, 4, 4), grouped=True), (TCGEN05, VECTOR_STORE)),
    Case("gfx942", kernel((128, 128, 32, 8, 2), grouped=True), (r"v_mfma_f32_\S*bf16",)),
    Case("sm_90", kernel((128, 256, 64, 8, 3), window=2, epilogue=relu(ACCUMULATOR + BIAS)),
         (ASYNC, WGMMA)),
    Case("sm_90", kernel((128, 128, 32, 8, 3), dtype=FLOAT32, multiply="tf32", window=3),
         (ASYNC, r"wgmma\.mma_async\S*tf32")),
    Case("sm_80", kernel((128, 128, 32, 8, 3), (64, 128, 32, 8, 3), window=2, split=True),
         (ASYNC, MMA, COUNT)),
    Case("sm_80", kernel((64, 64, 16, 4, 3), dtype=FLOAT32, multiply="float32", window=1),
         (r"cp\.async\.cg", r"fma\.rn\.f32")),
    Case("sm_100", kernel((128, 128, 64, 4, 4), window=2), (TCGEN05, VECTOR_STORE)),
    Case("gfx942", kernel((128, 128, 32, 8, 2), window=2), (r"v_mfma_f32_\S*bf16",)),
]  # fmt: skip


@cache
def results() -> dict[Case, Compiled]:
    pairs = [
        (
            grouped_source(case.kernel) if case.kernel.grouped else gemm_source(case.kernel),
            TARGETS[case.target],
        )
        for case in CASES
    ]
    return dict(zip(CASES, compile_all(pairs), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_takes_what_its_model_says(case: Case) -> None:
    compiled = results()[case]
    assert compiled.error == ""
    assert compiled.resources is not None
    threads = TARGETS[case.target].warp_threads
    assert disagreements(case.kernel, case.target, threads, compiled.resources) == ()
    if case.target in ("sm_80", "sm_90") and case.kernel.epilogue != SUM:
        # The chips that the model was fitted on, and no matrix that passes piece by piece.
        assert compiled.resources.shared_bytes >= case.kernel.shared_bytes(case.target)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_has_the_instructions_of_its_chip(case: Case) -> None:
    assembly = results()[case].assembly
    for pattern in case.patterns:
        assert re.search(pattern, assembly), pattern
    assert results()[case].binary[:4] == b"\x7fELF"


def test_loads_and_products_of_one_loop_overlap() -> None:
    """On sm_90 the loop waits for all but one product: the one just begun."""
    for case, compiled in results().items():
        if (
            case.target == "sm_90"
            and any("wgmma" in p for p in case.patterns)
            and case.kernel.alignment == 16
        ):
            assert re.search(r"wgmma\.wait_group\.sync\.aligned 1", compiled.assembly), case


def test_elementary_functions_compile_everywhere() -> None:
    sources = []
    for dtype, type_ in (("float32", "fp32"), ("float64", "fp64")):
        lines = []
        for name in FUNCTIONS:
            two = name in ("divide", "maximum", "minimum", "power", "swish")
            lines.append(f"    x += {call(name, *('x', 'y')[: 1 + two], dtype=dtype)}\n")
        # Epilogues are in float32, and have a number for a slope.
        lines += ["    x += swish_float32(x, 1.702)\n"] if dtype == "float32" else []
        text = (
            f"{HEADER}{prelude(FUNCTIONS, dtype)}\n\n@triton.jit\ndef apply(at):\n"
            "    place = at + tl.arange(0, 128)\n    x, y = tl.load(place), tl.load(place + 128)\n"
            f"{''.join(lines)}    tl.store(place, x)\n"
        )
        sources.append(Source("apply", text, (Argument("at", f"*{type_}"),), 4, 1))
    sources.append(reads_source())
    pairs = [(source, TARGETS[name]) for source in sources for name in ("sm_80", "gfx942")]
    for (source, target), compiled in zip(pairs, compile_all(pairs), strict=True):
        assert compiled.error == "", (source.arguments, target.name)


def test_errors_of_the_compiler_are_told_and_the_next_source_is_compiled() -> None:
    wrong = Source("f", f"{HEADER}\n\n@triton.jit\ndef f(at):\n    tl.store(at, nothing)\n",
                   (Argument("at", "*fp32"),), 4, 1)  # fmt: skip
    right = Source("f", wrong.text.replace("nothing", "1.0"), wrong.arguments, 4, 1)
    target = TARGETS["sm_80"]
    pairs = [(wrong, target), (wrong, target), (right, target), (right, target)]
    first, _, third, _ = compile_all(pairs)
    assert "nothing" in first.error
    assert first.resources is None
    assert third.error == ""
    assert third.resources is not None
    assert third.resources.threads == 128


def test_damaged_cubins_are_refused() -> None:
    cubin = next(c for case, c in results().items() if case.target == "sm_90").binary
    for damaged in (b"", b"nothing", cubin[:40], cubin[: len(cubin) // 2]):
        with pytest.raises(ObjectFileError):
            nvidia_resources(damaged, "", 0, 128)


def test_disagreements_say_what_is_wrong() -> None:
    kernel = CASES[0].kernel
    shared = kernel.shared_bytes("sm_90")
    assert disagreements(kernel, "sm_90", 32, Resources(256, 200, 0, shared + 100)) == ()
    found = disagreements(kernel, "sm_90", 32, Resources(256, 100, 40, shared + 4096))
    assert len(found) == 3
    assert found[0] == "spills 40 bytes of a thread's registers"
