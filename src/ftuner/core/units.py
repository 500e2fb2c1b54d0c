"""Numbers with units, for people."""

from __future__ import annotations

from collections.abc import Callable

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_FRACTIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def rate(per_second: float, unit: str) -> str:
    """A rate with a decimal prefix: `rate(3.2e9, "Hz")` is `3.2 GHz`."""
    for factor, prefix in _DECIMAL:
        if per_second >= factor:
            return f"{per_second / factor:.4g} {prefix}{unit}"
    return f"{per_second:.4g} {unit}"


def capacity(size_bytes: int) -> str:
    """Bytes with a binary prefix: `capacity(32768)` is `32 KiB`."""
    for factor, prefix in _BINARY:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {prefix}B"
    return f"{size_bytes} B"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: `duration(2e-6)` is `2 us`."""
    for factor, unit in _FRACTIONS:
        if seconds >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns" if seconds else "0"


def optional(number: float | None, text: Callable[[float], str], absent: str = "") -> str:
    """The text of a number, or of none."""
    return absent if number is None else text(number)


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: `count(1, "tile")` is `1 tile`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
