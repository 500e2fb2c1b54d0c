"""AVX without FMA, as CPUs had it before Haswell and Piledriver."""

from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.hardware.isa import InstructionSet, MultiplyAdd, register_instruction_set

AVX = InstructionSet(
    name="avx",
    architecture="x86_64",
    flags=("avx",),
    features="+avx",
    features_off=("avx2", "avx512", "avx10", "avxvnni", "evex512", "fma", "f16c", "vaes", "xop"),
    vector_bytes=32,
    vector_registers=16,
    masked=False,
    unrolled=False,
    multiply_adds=tuple(
        MultiplyAdd(t, t, t, "multiply_add", fused=False, llvm="avx_multiply_add")
        for t in (FLOAT32, FLOAT64)
    ),
)
register_instruction_set(AVX)
