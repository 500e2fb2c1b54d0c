"""Triton's interpreter, where it falls short of the language, and where it is needlessly slow.

It holds bfloat16 as the integers of its bits, converts them for arithmetic, but multiplies those
integers in `tl.dot`, and cuts float32 to bfloat16 where a GPU rounds. A BLAS may sum a row by its
place in a tile. `complete` mends the products; tests allow for the cut.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return interpreter.interpreter_builder.cast_impl(handle, tl.float32)


def complete() -> None:
    """Make products of bfloat16 those of their values, sum all rows alike, and leave out work that
    has no effect: two thirds of the time. Does nothing the second time."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder.create_dot, "widens", False):
        return
    original = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        a, b = _widened(a), _widened(b)
        if not all(np.issubdtype(x.data.dtype, np.floating) for x in (a, b)):
            return original(self, a, b, d, *rest)
        # Each row by itself.
        rows = np.matmul(a.data[..., None, :], b.data[..., None, :, :], dtype=d.data.dtype)
        return interpreter.TensorHandle(rows[..., 0, :] + d.data, d.dtype.scalar)

    create_dot.widens = True  # type: ignore[attr-defined]
    builder.create_dot = create_dot
    # Conditions that integers overflow are asserted when debugging alone.
    options = interpreter.interpreter_builder.options
    assert not options.debug
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    # A table of all dtypes is made for each one that is looked up.
    known: dict[str, Any] = {}
    look_up = interpreter._get_np_dtype

    def of_numpy(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name not in known:
            known[scalar.name] = look_up(scalar)
        return known[scalar.name]

    interpreter._get_np_dtype = of_numpy
    interpreter.InterpretedFunction.__call__ = _call


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that a kernel calls. The launch has replaced what it calls of the language, unless
    it has the language by the name `core`, whose replacements stay for good."""
    languages = [x for x in self.fn.__globals__.values() if x is tl or x is tl.core]
    if any(tl.core.is_builtin(language.where) for language in languages):
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)
