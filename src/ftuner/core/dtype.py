"""Element types of tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type: its NumPy name and its size in bytes."""

    name: str
    itemsize: int
    significand_bits: int
    """Bits of the significand, the hidden one included; `2 ** -significand_bits` is the unit
    roundoff."""

    @property
    def unit_roundoff(self) -> float:
        return float(2.0**-self.significand_bits)

    def __str__(self) -> str:
        return self.name


FLOAT32 = DType("float32", 4, 24)
FLOAT64 = DType("float64", 8, 53)
DTYPES: dict[str, DType] = {t.name: t for t in (FLOAT32, FLOAT64)}
