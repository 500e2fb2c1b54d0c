"""The run-time arguments of attention kernels and their order.

Keys and values are loaded by pointers or by descriptors. In a block on the edge, those beyond the
last key are zeros; with pointers, also those that no row of the tile sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_type_hints

from ftuner.codegen.triton.source import TRITON_TYPES, Argument, descriptor_type
from ftuner.core.dtype import FLOAT32, INT32
from ftuner.core.gpu.attention import AttentionCall, AttentionForm, AttentionKernel
from ftuner.core.gpu.tile import ALIGNMENT_BYTES


def attention_arguments(kernel: AttentionKernel) -> tuple[Argument, ...]:
    """Returns the arguments of a kernel: `kernel.pointers`, then the numbers of `AttentionCall`."""
    form = kernel.form
    element = f"*{TRITON_TYPES[form.dtype.name]}"
    whole = ALIGNMENT_BYTES if form.aligned else 1
    pointers = {name: Argument(name, element, whole) for name in ("q", "k", "v", "out")}
    described = form.loads == "descriptors"
    if described:
        for array, blocks in (("k", form.depth_blocks), ("v", form.column_blocks)):
            for i, size in enumerate(blocks):
                block = (1, 1, kernel.tile.bk, size)
                kind = descriptor_type(form.dtype, block, kernel.tile.specialised)
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


LEAST_COPY_BYTES = 4
"""Bytes of the smallest asynchronous copy to shared memory (PTX ISA, cp.async)."""


def pieces(blocks: Sequence[int]) -> Iterable[tuple[int, tuple[int, int]]]:
    """Returns the number, first element and size of each block."""
    return ((i, (sum(blocks[:i]), size)) for i, size in enumerate(blocks))


def beyond(form: AttentionForm, block: int, axis: str, spread: str) -> tuple[str, ...]:
    """Returns the condition that elements of a block exist, if some may not: only the last block
    may be partly filled."""
    blocks = form.depth_blocks if axis == "depth" else form.column_blocks
    if form.exact or block < len(blocks) - 1:
        return ()
    extent = "depth" if axis == "depth" else "columns"
    return (f"({axis}_{block} < {extent}){spread}",)


def both(*conditions: str) -> str:
    return " & ".join(conditions)


def _load(place: str, condition: str) -> str:
    return f"tl.load({place}" + (f", mask={condition}, other=0.0)" if condition else ")")


def block_loads(form: AttentionForm, edge: bool) -> tuple[list[str], list[str], list[str]]:
    """Returns lines that come before the products of a block of keys, and the operands of these
    products: the blocks of keys, and those of values.

    Elements that are copied to shared memory asynchronously have buffers of their own there, and
    are loaded where they are used. Smaller ones pass through registers. They are all loaded before
    the first product, so that their latencies overlap and none reuses the shared memory of another:
    where two operands of wgmma with different swizzles have one address, ptxas 12.8 computes
    descriptors from a register that it does not set.
    """
    key_blocks = [_keys(form, i, edge) for i, _ in pieces(form.depth_blocks)]
    value_blocks = [_values(form, i, edge) for i, _ in pieces(form.column_blocks)]
    if form.aligned or form.dtype.itemsize >= LEAST_COPY_BYTES:
        return [], key_blocks, value_blocks
    loads = {f"key_block_{i}": load for i, load in enumerate(key_blocks)}
    loads |= {f"value_block_{i}": load for i, load in enumerate(value_blocks)}
    names = list(loads)
    lines = [f"{name} = {load}" for name, load in loads.items()]
    return lines, names[: len(key_blocks)], names[len(key_blocks) :]


def _keys(form: AttentionForm, block: int, edge: bool) -> str:
    """Returns the load of a block of keys, transposed for the product."""
    if form.loads == "descriptors":
        return f"{_described(form, 'k', block)}.T"
    there = ["(key < end)[None, :]"] if edge else []
    return _load(f"k + k_{block}", both(*there, *beyond(form, block, "depth", "[:, None]")))


def _values(form: AttentionForm, block: int, edge: bool) -> str:
    """Returns the load of a block of values, with zeros where there are no keys: a power of 0 times
    NaN would be NaN."""
    there = ["(key < end)[:, None]"] if edge else []
    if form.loads == "descriptors":
        loaded = _described(form, "v", block)
        # Beyond the last key a descriptor gives zeros, unless another request follows.
        hides = edge and form.ragged is not None
        return f"tl.where({there[0]}, {loaded}, 0.0)" if hides else loaded
    return _load(f"v + v_{block}", both(*there, *beyond(form, block, "column", "[None, :]")))


def _described(form: AttentionForm, array: str, block: int) -> str:
    """Returns the load of a block by its descriptor, which gives zeros beyond all ends."""
    first, size = dict(pieces(form.depth_blocks if array == "k" else form.column_blocks))[block]
    place = f"request * {array}_batch, head * {array}_head, start"
    if form.ragged is not None:
        place = f"0, head * {array}_head, k_begin + start"
    return f"{array_argument(array, block)}.load([{place}, {first}]).reshape(BK, {size})"


def masked(form: AttentionForm, edge: bool) -> list[str]:
    """Lines that add a mask of numbers to scores, or replace the scores that booleans hide."""
    mask = form.mask
    assert mask is not None
    keys = "key * mask_key" if mask.layout == "strided" else "key"
    if mask.spread == "keys":
        given = f"{_load(f'mask + {keys}', 'key < end' if edge else '')}[None, :]"
    else:
        there = both("inside[:, None]", *["(key < end)[None, :]"] * edge)
        given = _load(f"mask + ({keys})[None, :]", there)
    if form.capped:
        # The scale is within the hyperbolic tangent.
        chosen = f"tl.where({given} != 0, scores, hidden)"
        return [f"scores = {chosen if mask.boolean else f'scores + {given}.to(tl.float32)'}"]
    if mask.boolean:
        return [f"scores = tl.where({given} != 0, scores * scale, hidden)"]
    return [f"scores = tl.fma(scores, scale, {given}.to(tl.float32))"]
