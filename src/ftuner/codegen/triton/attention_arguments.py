"""The run-time arguments of attention kernels and their order."""

from __future__ import annotations

from typing import get_type_hints

from ftuner.codegen.triton.source import TRITON_TYPES, Argument
from ftuner.core.dtype import FLOAT32, INT32
from ftuner.core.gpu.attention import AttentionCall, AttentionKernel
from ftuner.core.gpu.tile import ALIGNMENT_BYTES


def attention_arguments(kernel: AttentionKernel) -> tuple[Argument, ...]:
    """Returns the arguments of a kernel: `kernel.pointers`, then the numbers of `AttentionCall`."""
    form = kernel.form
    element = f"*{TRITON_TYPES[form.dtype.name]}"
    whole = ALIGNMENT_BYTES if form.aligned else 1
    pointers = {name: Argument(name, element, whole) for name in ("q", "k", "v", "out")}
    described = form.loads == "descriptors"
    if described:
        dtype = TRITON_TYPES[form.dtype.name]
        for array, blocks in (("k", form.depth_blocks), ("v", form.column_blocks)):
            for i, size in enumerate(blocks):
                kind = f"tensordesc<{dtype}[1, 1, {kernel.tile.bk}, {size}]>"
                pointers[array_argument(array, i)] = Argument(array_argument(array, i), kind)
    # Divisors of numbers that are counted in elements.
    divisors = dict.fromkeys(("q", "k", "v", "out", "depth", "columns"),
                             max(whole // form.dtype.itemsize, 1))  # fmt: skip
    if form.mask is not None:
        # Booleans are bytes.
        kind = "u8" if form.mask.boolean else TRITON_TYPES[form.mask.dtype.name]
        whole = ALIGNMENT_BYTES if form.mask.layout == "aligned" else 1
        pointers["mask"] = Argument("mask", f"*{kind}", whole)
        divisors["mask"] = max(whole // form.mask.dtype.itemsize, 1)
    if form.sinks is not None:
        pointers["sinks"] = Argument("sinks", f"*{TRITON_TYPES[form.sinks.name]}")
    if form.ragged is not None:
        kind = f"*{TRITON_TYPES[form.ragged.name]}"
        pointers |= {name: Argument(name, kind) for name in ("q_offsets", "k_offsets")}
    floats, counts = TRITON_TYPES[FLOAT32.name], TRITON_TYPES[INT32.name]
    pointers["workspace"] = Argument("workspace", f"*{floats}", ALIGNMENT_BYTES)
    pointers["arrivals"] = Argument("arrivals", f"*{counts}")
    numbers = []
    for name, kind in get_type_hints(AttentionCall).items():
        array, _, axis = name.partition("_")
        is_stride = array in ("q", "k", "v", "out", "mask", "sinks")
        if kind is float:
            numbers.append(Argument(name, floats))
        elif described and array in ("k", "v"):
            # Strides of descriptors are 0 or 1.
            numbers.append(Argument(name, counts))
        elif axis == "key":
            # Only a mask has a stride along keys; it may be any.
            numbers.append(Argument(name, "i64"))
        else:
            numbers.append(Argument(name, "i64" if is_stride else counts, divisors.get(array, 1)))
    return (*(pointers[name] for name in kernel.pointers), *numbers)


def array_argument(name: str, block: int) -> str:
    """Returns the argument that is the descriptor of a block."""
    return f"{name}_rest" if block else name
