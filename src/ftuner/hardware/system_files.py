"""Files of `/proc` and `/sys`, any of which may be hidden."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """The text of a file without surrounding space; None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """A number, `K`/`M`/`G` understood as the kernel writes cache sizes; None if it is not one."""
    text = read_text(path)
    if not text:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper(), 1)
    digits = text[:-1] if scale > 1 else text
    return int(digits) * scale if digits.isdecimal() else None
