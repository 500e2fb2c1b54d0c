"""Where an operand is."""

from __future__ import annotations


def on_gpu(value: object) -> bool:
    """Whether a value is a torch tensor on a GPU; asked without importing torch."""
    return bool(getattr(value, "is_cuda", False))
