"""Instruction sets: one row for each, with all that ftuner knows of it.

To add one, add a row to the table here; if its multiply-add is new, also an emitter to
`codegen/llvm/ir/instructions.py`. From outside the package, `register_instruction_set` adds a row.
What a core does in a cycle is not here but measured (`runtime/cpu/probe.py`) or recorded
(`machines/*.toml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ftuner.core.dtype import BFLOAT16, FLOAT32, FLOAT64, UINT8, DType
from ftuner.core.frozen import dataclass
from ftuner.core.product import WORD_PRODUCTS, ProductTypes, product_types
from ftuner.errors import ConfigurationError, HardwareError

MATRIX_UNIT = "amx"
"""Prefix of x86's features of a matrix unit, after which Linux has `_` where LLVM has `-`."""
LISTED_FEATURES = (MATRIX_UNIT, "avx", "f16c", "fma", "gfni", "vaes", "vpclmul", "xop")
"""Prefixes of x86 vector features, which LLVM and Linux spell alike except for `_`."""
FIXED = ("vector_bytes", "vector_registers", "fused", "masked")
"""The fields of a row that the model of a machine repeats."""


@dataclass(frozen=True)
class MultiplyAdd:
    """How vectors of A and B are multiplied and added to accumulators."""

    a: DType
    b: DType
    accumulator: DType
    emitter: str
    """Its name in `codegen.llvm.ir.instructions.EMITTERS`; of one from outside ftuner, a function
    of the module `llvm`."""
    fused: bool
    """Whether it is one instruction; if not, it is a multiply and an add."""
    llvm: str | None = None
    """The full name of a module outside ftuner that has the emitter."""
    flag: str = ""
    """What the operating system lists of a CPU that has it; empty if its instruction set does."""


@dataclass(frozen=True)
class MatrixUnit:
    """What the manual of a matrix unit fixes: registers of tiles, and instructions that add the
    product of two tiles to a third. A tile of A has `rows` rows of `steps` elements of k, one of B
    `steps` rows of a vector, one of sums `rows` rows of a vector."""

    rows: int
    """At most; a tile may have fewer."""
    steps: int
    registers: int
    latency_cycles: float
    """From one tile's sums to the next multiply-add that needs them."""
    multiply_adds: tuple[MultiplyAdd, ...]
    """`emitter` names what `codegen.llvm.ir.instructions.TILE_MULTIPLY_ADDS` lists."""

    def multiply_add(self, types: ProductTypes) -> MultiplyAdd | None:
        """The multiply-add of a product, if there is one."""
        wanted = types.a, types.b, types.accumulator
        rows = (r for r in self.multiply_adds if (r.a, r.b, r.accumulator) == wanted)
        return next(rows, None)


@dataclass(frozen=True)
class InstructionSet:
    """What the manual of a vector instruction set fixes, and how LLVM is asked for it."""

    name: str
    architecture: str
    """`x86_64` or `aarch64`."""
    flags: tuple[str, ...]
    """What the operating system lists of a CPU that has it, beyond its architecture."""
    features: str
    """LLVM features to turn on: `+avx,+avx2`."""
    features_off: tuple[str, ...]
    """Prefixes of LLVM features to turn off, which the name of a wider CPU brings along."""
    vector_bytes: int
    vector_registers: int
    masked: bool
    """Whether loads and stores take a mask per lane at full speed."""
    unrolled: bool
    """Whether the k loop takes several k steps a round. Its code then pins vectors to registers of
    x86."""
    multiply_adds: tuple[MultiplyAdd, ...]
    matrix: MatrixUnit | None = None
    converts_float16: bool = False
    """Whether one instruction makes a vector of float32 of one of float16."""
    permute: str = ""
    """LLVM's intrinsic that looks elements up in a vector of float32, by the low bits of integers;
    empty if the instruction set has none."""
    scheduling_model: str = ""
    """LLVM's name of the CPU whose scheduling model is used; empty for the host's."""

    @property
    def fused(self) -> bool:
        """Whether multiply-add of floats is one instruction."""
        return self.multiply_add(product_types(FLOAT32)).fused

    def multiply_add(self, types: ProductTypes) -> MultiplyAdd:
        """The multiply-add of a product.

        Raises:
            HardwareError: the instruction set has none for these dtypes.
        """
        of = types.multiplied
        for row in self.multiply_adds:
            if (row.a, row.b, row.accumulator) == (of.a, of.b, of.accumulator):
                return row
        raise HardwareError(f"{self.name} has no multiply-add for {types}")


def float_multiply_adds(emitter: str, fused: bool) -> tuple[MultiplyAdd, ...]:
    """One multiply-add for float32 and for float64."""
    return tuple(MultiplyAdd(t, t, t, emitter, fused) for t in (FLOAT32, FLOAT64))


SEPARATE = float_multiply_adds("separate", fused=False)
FUSED = float_multiply_adds("fused", fused=True)


def _of_words(rows: DType, emitter: str, flag: str) -> MultiplyAdd:
    types = WORD_PRODUCTS[rows]
    return MultiplyAdd(types.a, types.b, types.accumulator, emitter, fused=True, flag=flag)


OF_BYTES = _of_words(UINT8, "of_bytes", "avx512_vnni")
"""VPDPBUSD: four products of unsigned and signed bytes are added to each int32."""
OF_BFLOAT16 = _of_words(BFLOAT16, "of_bfloat16", "avx512_bf16")
"""VDPBF16PS: two products are added to each float32, rounded to nearest, subnormals as zeros."""
AMX = MatrixUnit(
    rows=16,
    steps=16,
    registers=8,
    # Intel's optimisation manual.
    latency_cycles=52.0,
    multiply_adds=(
        _of_words(UINT8, "tiles_of_bytes", "amx_int8"),
        _of_words(BFLOAT16, "tiles_of_bfloat16", "amx_bf16"),
    ),
)
"""TDPBUSD and TDPBF16PS: what VPDPBUSD and VDPBF16PS do, on tiles."""
OF_NARROW = (OF_BYTES, OF_BFLOAT16, *AMX.multiply_adds)

_TABLE: dict[str, InstructionSet] = {
    row.name: row
    for row in (
        InstructionSet(
            name="sse2",
            architecture="x86_64",
            flags=(),
            features="+sse2",
            features_off=("avx", "fma", "f16c", "xop", "vaes", "vpclmul"),
            vector_bytes=16,
            vector_registers=16,
            masked=False,
            # LLVM 22 spills with more than one step a round; loads advance their addresses anyway.
            unrolled=False,
            multiply_adds=SEPARATE,
        ),
        InstructionSet(
            name="avx2",
            architecture="x86_64",
            flags=("avx2", "fma", "f16c"),
            features="+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
            features_off=("avx512", "avx10", "evex512"),
            vector_bytes=32,
            vector_registers=16,
            # vmaskmov exists, but its stores are microcode on AMD (uops.info): not full speed.
            masked=False,
            unrolled=True,
            multiply_adds=(*FUSED, replace(OF_BYTES, flag="avx_vnni")),
            converts_float16=True,
            permute="llvm.x86.avx2.permps",
        ),
        InstructionSet(
            name="avx512",
            architecture="x86_64",
            flags=("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bw", "avx512dq"),
            features="+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+avx512f,+avx512vl,+avx512bw,+avx512dq",
            features_off=(),
            vector_bytes=64,
            vector_registers=32,
            masked=True,
            unrolled=True,
            multiply_adds=(*FUSED, OF_BYTES, OF_BFLOAT16),
            matrix=AMX,
            converts_float16=True,
            permute="llvm.x86.avx512.permvar.sf.512",
        ),
        InstructionSet(
            name="neon",
            architecture="aarch64",
            flags=(),
            features="+neon",
            features_off=(),
            vector_bytes=16,
            vector_registers=32,
            masked=False,
            # As on SSE2.
            unrolled=False,
            # USDOT and BFDOT. The second may round otherwise than VDPBF16PS does.
            multiply_adds=(
                *FUSED,
                replace(OF_BYTES, flag="i8mm"),
                replace(OF_BFLOAT16, flag="bf16"),
            ),
            # LLVM 22's model of Neoverse N1 loads elements of A so early that the k loop of a 5x20
            # tile spills accumulators; the generic model keeps every tile in registers.
            scheduling_model="generic",
        ),
    )
}
INSTRUCTION_SETS: Mapping[str, InstructionSet] = _TABLE
"""By name; from the Intel SDM, the AMD APM and the Arm ARM."""


def register_instruction_set(row: InstructionSet) -> None:
    """Add an instruction set from outside ftuner, before the machine is probed or loaded from the
    cache.

    Raises:
        ConfigurationError: another instruction set has the name.
    """
    if _TABLE.setdefault(row.name, row) != row:
        raise ConfigurationError(f"another ISA is called {row.name!r}; choose a name")


def instruction_set(name: str) -> InstructionSet:
    """The row of an instruction set.

    Raises:
        HardwareError: there is none of this name.
    """
    if name not in INSTRUCTION_SETS:
        raise HardwareError(f"no ISA {name!r}; known are {', '.join(INSTRUCTION_SETS)}")
    return INSTRUCTION_SETS[name]


def instruction_sets(architecture: str) -> tuple[InstructionSet, ...]:
    """The instruction sets of an architecture, narrow to wide; of two alike the one with fused
    multiply-add is last, then the one that was added last."""
    rows = (row for row in INSTRUCTION_SETS.values() if row.architecture == architecture)
    return tuple(sorted(rows, key=lambda row: (row.vector_bytes, row.fused)))
