"""Triton's interpreter, where it falls short of the language.

It holds bfloat16 as the integers of its bits, converts them for arithmetic, but multiplies those
integers in `tl.dot`, and cuts float32 to bfloat16 where a GPU rounds. `complete` mends the first;
tests allow for the second.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.interpreter_builder.cast_impl(handle, tl.float32)


def complete() -> None:
    """Make products of bfloat16 those of their values. Does nothing the second time."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder.create_dot, "widens", False):
        return
    original = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return original(self, _widened(a), _widened(b), d, *rest)

    create_dot.widens = True  # type: ignore[attr-defined]
    builder.create_dot = create_dot
