"""Element types of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from ftuner.core.frozen import dataclass


@dataclass(frozen=True)
class DType:
    """An element type: its NumPy name and its size in bytes."""

    name: str
    itemsize: int
    significand_bits: int = 0
    """Of a floating type: bits of the significand, the hidden one included;
    `2 ** -significand_bits` is the unit roundoff."""
    kind: str = "float"
    """`float`, `int`, `uint`, `bool`, `string`, `map`, `word` or `block`."""
    numbers: int = 1
    """Side by side in an element."""

    @property
    def unit_roundoff(self) -> float:
        return float(2.0**-self.significand_bits)

    @property
    def on_host(self) -> bool:
        """Whether elements are Python's objects, which no compiled code reads."""
        return self.kind in ("string", "map")

    @property
    def bits(self) -> int:
        return 8 * self.itemsize

    def __hash__(self) -> int:
        # Dtypes are in the keys of calls; the name alone distinguishes them.
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


ADDRESSABLE_BYTES = 1 << 48
"""No process has more addresses: they have 47 bits on x86-64, up to 48 on AArch64."""
FLOAT16 = DType("float16", 2, 11)
BFLOAT16 = DType("bfloat16", 2, 8)
FLOAT32 = DType("float32", 4, 24)
FLOAT64 = DType("float64", 8, 53)
DTYPES: dict[str, DType] = {t.name: t for t in (FLOAT32, FLOAT64)}
"""What matrix products are made for on a CPU."""
GPU_DTYPES: dict[str, DType] = {t.name: t for t in (FLOAT16, BFLOAT16, FLOAT32)}
"""What matrix products are made for on a GPU."""
INT8, INT16, INT32, INT64 = (DType(f"int{8 * s}", s, kind="int") for s in (1, 2, 4, 8))
UINT8, UINT16, UINT32, UINT64 = (DType(f"uint{8 * s}", s, kind="uint") for s in (1, 2, 4, 8))
UINT8X4, INT8X4 = (DType(name, 4, kind="word", numbers=4) for name in ("uint8x4", "int8x4"))
BFLOAT16X2 = DType("bfloat16x2", 4, 8, kind="word", numbers=2)
"""Narrow numbers side by side: what one step of k of some products multiplies."""
BOOL = DType("bool", 1, kind="bool")
TENSOR_DTYPES: dict[str, DType] = {
    t.name: t
    for t in (FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, BOOL)
}
"""What tensors are computed in on a CPU."""
HALF_DTYPES: dict[str, DType] = {t.name: t for t in (FLOAT16, BFLOAT16)}
NARROW_DTYPES: tuple[DType, ...] = (INT8, FLOAT16, BFLOAT16)
"""What weights are kept in that uKernels of a CPU widen."""
STRING = DType("string", 8, kind="string")
ELEMENT_DTYPES: dict[str, DType] = {**TENSOR_DTYPES, **HALF_DTYPES, STRING.name: STRING}
"""What tensors of a graph may hold; a CPU computes half precision in float32. Strings are computed
by references alone."""


def moved_as(dtype: DType) -> DType:
    """The dtype as which elements are copied, and whose drivers run products of them."""
    return FLOAT32 if dtype.kind in ("word", "block") else dtype


@lru_cache(maxsize=64)
def block_of_levels(bits: int, numbers: int, zeros: bool) -> DType:
    """`numbers` consecutive steps of k of one column of a weight: unsigned levels of `bits` bits,
    the lowest bits first, in words of 32 bits; then the scale in float32; with `zeros` also the
    zero point, which is otherwise half of the range. An element of the weight is
    `(level - zero) * scale`."""
    words = numbers * bits // 32 + 1 + int(zeros)
    return DType(f"{'uint' if zeros else 'int'}{bits}x{numbers}", 4 * words, 0, "block", numbers)


_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
CODES: Mapping[str, tuple[float, ...]] = {
    "fp4": (*_FP4, *(-x for x in _FP4)),
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
}  # fmt: skip
"""What four bits stand for, by the names that bitsandbytes gives. Those of nf4 are quantiles of the
normal distribution (QLoRA, arXiv 2305.14314)."""


@lru_cache(maxsize=64)
def block_of_codes(codes: str, numbers: int) -> DType:
    """Return the dtype of a block like those of `block_of_levels`, without zero point, whose levels
    are four bits that stand for a number of `CODES`."""
    return DType(f"{codes}x{numbers}", 4 * (numbers // 8 + 1), 0, "block", numbers)


def codes_of(block: DType) -> tuple[float, ...]:
    """Return the number for each level of a block; nothing if levels are numbers themselves."""
    return CODES.get(block.name.partition("x")[0], ())


@lru_cache(maxsize=64)
def block_of_floats(numbers: int) -> DType:
    """`numbers` consecutive steps of k in float32."""
    return DType(f"float32x{numbers}", 4 * numbers, 24, "block", numbers)


@lru_cache(maxsize=64)
def block_of_bytes(numbers: int) -> DType:
    """Return the dtype of `numbers` consecutive steps of k of a row in uint8."""
    return DType(f"bytes{numbers}", numbers, 0, "block", numbers)


_SIGNED = "s"


@lru_cache(maxsize=64)
def block_of_signed_levels(bits: int, numbers: int, zeros: bool) -> DType:
    """Return the dtype of a block like those of `block_of_levels`, in the form that rows of bytes
    are multiplied by (`graph.blocks.as_signed`)."""
    block = block_of_levels(bits, numbers, zeros)
    return replace(block, name=block.name + _SIGNED)


def has_signed_levels(block: DType) -> bool:
    """Whether a block is one of `block_of_signed_levels`."""
    return block.name.endswith(_SIGNED)


def levels_of(block: DType) -> tuple[int, bool]:
    """The bits and `zeros` of a block of levels."""
    zeros = block.name.startswith("u")
    words = block.itemsize // 4 - 1 - int(zeros)
    return 32 * words // block.numbers, zeros


def converted_through(target: DType) -> DType:
    """The signed integers that floats become before they become `target`, as onnxruntime on x86
    converts them: what these cannot represent, and NaN, is the least of them. Narrower integers
    keep the low bits. From 2^63 on, uint64 converts what exceeds 2^63."""
    return INT32 if target.bits < 32 or target == INT32 else INT64


def map_dtype(key: DType, value: DType) -> DType:
    """The element type of maps from keys to numbers."""
    return DType(f"map({key},{value})", 8, kind="map")
