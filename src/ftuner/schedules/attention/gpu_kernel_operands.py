"""What the texts of attention kernels share: run-time arguments and their order, the rows and keys
of a program, and loads.

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


SEARCH = 128
"""Offsets that are compared at once to find the request of a tile: one per thread of four warps."""


def place_lines(kernel: AttentionKernel) -> list[str]:
    """Returns lines for the tile, head and request of a program, and the lengths of the request.

    The tiles of `l2_heads` heads, whose keys and values L2 holds together, are interleaved. The
    last tiles of causal attention, which see the most keys, come first, so that short tiles fill
    the gaps at the end.
    """
    form = kernel.form
    lines = ["number = tl.program_id(0)"]
    if kernel.split:
        lines += ["part = number % split_keys", "number = number // split_keys"]
    if not kernel.packed:
        lines += ["heads = heads * sharing"]
    lines += [
        "together = heads" + ("" if form.ragged is not None else " * batch"),
        "element = number // (l2_heads * tiles) * l2_heads",
        "together = tl.minimum(together - element, l2_heads)",
        "tile = (number - element * tiles) // together",
        "element += (number - element * tiles) % together",
    ]
    if form.causal != "none":
        lines += ["tile = tiles - 1 - tile"]
    if form.ragged is not None:
        lines += ["head = element", *_request(kernel)]
    else:
        lines += ["request = element // heads", "head = element % heads"]
    if not kernel.packed:
        lines += ["member = head % sharing", "head = head // sharing"]
    return lines


def _request(kernel: AttentionKernel) -> list[str]:
    """Lines for the request of a tile, where requests are concatenated. The tiles of request i
    begin at `i + (its first row) // BQ`, which leaves each request at least as many as it needs; so
    the request of a tile is the last one that begins at the tile or before it."""
    row, first = ("begun * sharing", "q_begin * sharing") if kernel.packed else ("begun", "q_begin")
    # Descriptors take indices of 32 bits.
    kind = "tl.int32" if kernel.form.loads == "descriptors" else "tl.int64"
    return [
        "lane = tl.arange(0, SEARCH)",
        "request = -1",
        "for start in range(0, batch, SEARCH):",
        "    there = start + lane < batch",
        "    begun = tl.load(q_offsets + start + lane, mask=there, other=0).to(tl.int64)",
        f"    begun = {row} // BQ + start + lane",
        "    request += tl.sum((there & (begun <= tile)).to(tl.int32))",
        "q_begin = tl.load(q_offsets + request).to(tl.int64)",
        f"k_begin = tl.load(k_offsets + request).to({kind})",
        "rows = (tl.load(q_offsets + request + 1) - q_begin).to(tl.int32)",
        "keys = (tl.load(k_offsets + request + 1) - k_begin).to(tl.int32)",
        f"tile = tile - ({first} // BQ).to(tl.int32) - request",
        f"if tile * BQ >= {row_count(kernel)}:",
        "    return",
    ]


def row_count(kernel: AttentionKernel) -> str:
    """Returns the rows of a request, including those of packed heads."""
    return "rows * sharing" if kernel.packed else "rows"


def range_lines(kernel: AttentionKernel) -> list[str]:
    """Returns lines for the keys of the program: whole blocks that all rows see from `begin` to
    `middle`, and the others up to `end`."""
    count, of_row = row_count(kernel), " // sharing" if kernel.packed else ""
    if kernel.form.causal == "none":
        lines = ["common = keys", "end = keys"]
    else:
        lines = [
            "limit = " + ("past" if kernel.form.causal == "first" else "keys - rows + past"),
            f"common = tile * BQ{of_row} + limit + 1",
            f"end = (tl.minimum(tile * BQ + BQ, {count}) - 1){of_row} + limit + 1",
            "common = tl.minimum(tl.maximum(common, 0), keys)",
            "end = tl.minimum(tl.maximum(end, 0), keys)",
        ]
    if kernel.split:
        lines += [
            "blocks = (end + BK - 1) // BK",
            "used = tl.maximum(tl.minimum(split_keys, blocks), 1)",
            "if part >= used:",
            "    return",
            "begin = part * blocks // used * BK",
            "end = tl.minimum((part + 1) * blocks // used * BK, end)",
        ]
    else:
        lines += ["begin = 0"]
    return [*lines, "middle = tl.maximum(tl.minimum(common // BK * BK, end), begin)"]


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
