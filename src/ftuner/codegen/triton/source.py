"""The text of one Triton kernel with everything that decides its machine code.

Tile sizes, orders and dtypes are literals in the text. The arguments are pointers and numbers that
change from call to call; they never decide what is compiled.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Sequence
from functools import lru_cache
from textwrap import indent
from typing import Any

from ftuner.core.caching import cached_attribute
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass

TRITON_TYPES = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
}  # fmt: skip
"""The name of a dtype in Triton's signatures."""
LANGUAGE_TYPES = {name: f"tl.{name}" for name in TRITON_TYPES} | {"bool": "tl.int1"}
"""The name of a dtype in a kernel's text."""
HEADER = "import triton\nimport triton.language as tl\n"
"""The first lines of a text in Triton. Only `load` needs triton to be installed."""
GLUON_HEADER = """\
import triton
import triton.experimental.gluon.language as tl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)
"""
"""The same in Gluon, in which a text says how values are laid out and what each warp does."""


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel. `type`: Triton's, such as `*bf16`, `i32` or `fp32`. `divisor`: a
    promise that the address or number is a multiple of it."""

    name: str
    type: str
    divisor: int = 1


def descriptor_type(dtype: DType, block: Sequence[int], gluon: bool) -> str:
    """Returns the type of a descriptor of blocks of 2-byte elements, or any without `gluon`: Gluon
    is told the layout in which the copy engine leaves a block, and Triton chooses it by itself."""
    layout = f"swizzle_byte_width=128, element_bitwidth=16, rank={len(block)}"
    shared = f",NVMMASharedLayout({layout})" if gluon else ""
    return f"tensordesc<{TRITON_TYPES[dtype.name]}{[*block]}{shared}>"


@dataclass(frozen=True)
class Source:
    """A kernel that can be compiled."""

    function: str
    """The name of the function in `text` that is decorated with `triton.jit` or `gluon.jit`."""
    text: str
    arguments: tuple[Argument, ...]
    warps: int
    stages: int
    start_registers: int | None = None
    """Registers of a thread of a kernel in Gluon, before its warps redistribute them."""

    @property
    def options(self) -> dict[str, Any]:
        """Triton's options for compiling the source. Multiply-adds are fused only where the text
        says so."""
        found = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}
        return found if self.start_registers is None else {**found, "maxnreg": self.start_registers}

    @cached_attribute
    def key(self) -> str:
        """A hash of everything that decides the machine code, except the target and Triton."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


def function_source(
    name: str, prelude: str, arguments: Sequence[Argument], body: Sequence[str], warps: int,
    stages: int, start_registers: int | None = None,
) -> Source:  # fmt: skip
    """Returns the source of a kernel. `prelude`: functions before it; `body`: its lines;
    `start_registers`: as in `Source`."""
    language, header = ("triton", HEADER) if start_registers is None else ("gluon", GLUON_HEADER)
    head = f"def {name}({', '.join(argument.name for argument in arguments)}):"
    lines = indent("\n".join(body), "    ")
    text = f"{header}{prelude}\n\n@{language}.jit\n{head}\n{lines}\n"
    return Source(name, text, tuple(arguments), warps, stages, start_registers)


@lru_cache(maxsize=4096)
def load(source: Source) -> Any:
    """Returns the function of a source. Triton compiles it, or interprets it where
    `TRITON_INTERPRET` was set before triton was imported."""
    name = f"<ftuner {source.function} {source.key}>"
    # Triton reads the text of a function through `inspect`, which reads this cache.
    lines = source.text.splitlines(keepends=True)
    linecache.cache[name] = (len(source.text), None, lines, name)
    module: dict[str, Any] = {"__name__": f"ftuner_kernel_{source.key}"}
    exec(compile(source.text, name, "exec"), module)
    return module[source.function]
