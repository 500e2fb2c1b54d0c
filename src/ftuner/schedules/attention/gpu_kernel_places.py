"""Lines of an attention kernel's text that find the rows and keys of a program."""

from __future__ import annotations

from ftuner.core.gpu.attention import AttentionKernel

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
