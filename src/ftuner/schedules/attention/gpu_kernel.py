"""The text of an attention kernel: online softmax over blocks of keys.

A program takes one tile of rows (`core.gpu.attention`). For each row it keeps the largest score so
far, the sum of the powers, and the sum of the values weighted by their powers, all in float32
(Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867; Dao,
"FlashAttention-2", arXiv 2307.08691). Blocks of keys that all rows see come first and need no mask;
those on the edge of the keys that rows see follow. Keys that no row of a tile sees are not read.

The largest score starts at the lowest finite number rather than minus infinity, so that there is no
difference of infinities: only rows whose scores are all minus infinity end with a sum of 0. Powers
are of two. Without a mask, scale and log2(e) are one factor, and a power is a multiply-add and one
more instruction. With a mask, the largest score is subtracted first, because masks contain the
lowest finite number, which must not be multiplied; with a cap, because the scale is within.

A kernel that splits keys is launched with `split_keys` programs for each tile. Each stores its sums
in the workspace, and the last-arriving program adds them up in their order (`split_k`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftuner.codegen.triton.functions import Functions
from ftuner.codegen.triton.product_results import arrival_lines, departure_line, part_load
from ftuner.codegen.triton.product_tiles import PRECISION
from ftuner.codegen.triton.source import LANGUAGE_TYPES, Source, function_source
from ftuner.core.dtype import FLOAT32
from ftuner.core.gpu.attention import AttentionForm, AttentionKernel
from ftuner.schedules.attention.gpu_kernel_operands import (
    SEARCH,
    attention_arguments,
    beyond,
    block_loads,
    both,
    masked,
    pieces,
    place_lines,
    range_lines,
    row_count,
)
from ftuner.schedules.attention.gpu_kernel_specialised import specialised_source

_CONSTANTS = """
BQ = tl.constexpr({bq})
BK = tl.constexpr({bk})
SEARCH = tl.constexpr({search})
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)"""


def attention_source(kernel: AttentionKernel) -> Source:
    """Returns the source of a kernel; its arguments are `attention_arguments`."""
    if kernel.tile.specialised:
        return specialised_source(kernel)
    arguments, tile = attention_arguments(kernel), kernel.tile
    constants = _CONSTANTS.format(bq=tile.bq, bk=tile.bk, search=SEARCH)
    used = Functions()
    body = [
        *place_lines(kernel), *_indices(kernel), *range_lines(kernel), *_rows(kernel),
        *_loops(kernel, used), *_result(kernel),
    ]  # fmt: skip
    return function_source(
        kernel.symbol, constants + used.prelude(), arguments, body, tile.warps, tile.stages
    )


def _indices(kernel: AttentionKernel) -> list[str]:
    """Lines for the rows of the tile."""
    return [
        "index = tile * BQ + tl.arange(0, BQ)",
        f"inside = index < {row_count(kernel)}",
        f"position = index{' // sharing' if kernel.packed else ''}",
        *(["member = index % sharing"] if kernel.packed else []),
    ]


def _rows(kernel: AttentionKernel) -> list[str]:
    """Lines that load the queries and compute the addresses of keys, values and mask."""
    form = kernel.form
    lines = [f"q += {_row_places(form, 'q')}[:, None]"]
    for i, (first, size) in pieces(form.depth_blocks):
        there = both("inside[:, None]", *beyond(form, i, "depth", "[None, :]"))
        lines += [
            f"depth_{i} = {first} + tl.arange(0, {size})",
            f"q_{i} = tl.load(q + depth_{i}[None, :], mask={there}, other=0.0)",
        ]
    lines += ["lane = tl.arange(0, BK)"]
    for i, (first, size) in pieces(form.column_blocks):
        lines += [f"column_{i} = {first} + tl.arange(0, {size})"]
    if form.loads == "pointers":
        for i, _ in pieces(form.depth_blocks):
            lines += [f"k_{i} = lane[None, :] * k_row + depth_{i}[:, None]"]
        for i, _ in pieces(form.column_blocks):
            lines += [f"v_{i} = lane[:, None] * v_row + column_{i}[None, :]"]
        # Only these scalars advance: pointer tiles that live across loops would take two layouts.
        for array in ("k", "v"):
            lines += [f"{array} += {_request_place(form, array)} + head * {array}_head"
                      f" + begin * {array}_row"]  # fmt: skip
    if form.scales_powers:
        lines += ["factor = scale * LOG2_E"]
    if form.mask is not None and form.mask.spread == "keys":
        begin = "request * mask_batch" if form.ragged is None else "k_begin * mask_key"
        lines += [f"mask += {begin} + head * mask_head"]
    elif form.mask is not None:
        lines += [f"mask += {_row_places(form, 'mask')}[:, None]"]
    return [*lines, *_nothing(form), *_sinks(kernel)]


def _sinks(kernel: AttentionKernel) -> list[str]:
    """Lines that begin the sums of rows with scores that have no keys; of split keys, the first
    part has them."""
    form = kernel.form
    if form.sinks is None:
        return []
    place = f"sinks + {_row_places(form, 'sinks')}"
    lines = [f"sink = tl.load({place}, mask=inside, other=0.0).to(tl.float32)"]
    if form.scales_powers:
        lines += ["sink = sink * LOG2_E"]
    if kernel.split:
        lines += ['sink = tl.where(part == 0, sink, float("-inf"))']
    return [
        *lines,
        "largest = tl.maximum(largest, sink)",
        f"total = {_power(form, 'sink', 'largest')}",
    ]


def _request_place(form: AttentionForm, array: str) -> str:
    """The offset of the first row or key of the request in an array."""
    if form.ragged is None or array in ("mask", "sinks"):
        return f"request * {array}_batch"
    return f"{'q_begin' if array in ('q', 'out') else 'k_begin'} * {array}_row"


def _row_places(form: AttentionForm, array: str) -> str:
    """The offsets of a tile's rows in an array."""
    return (
        f"({_request_place(form, array)} + head * {array}_head + position * {array}_row"
        f" + member * {array}_member)"
    )


def _nothing(form: AttentionForm) -> list[str]:
    """Lines for the state of rows before their first key."""
    return [
        "largest = tl.full((BQ,), LOWEST, tl.float32)",
        "total = tl.zeros((BQ,), tl.float32)",
        *(
            f"value_{i} = tl.zeros((BQ, {size}), tl.float32)"
            for i, (_, size) in pieces(form.column_blocks)
        ),
    ]


def _loops(kernel: AttentionKernel, used: Functions) -> list[str]:
    return [
        "for start in range(begin, middle, BK):",
        *_indented(_block(kernel.form, False, used)),
        "for start in range(middle, end, BK):",
        *_indented(_block(kernel.form, True, used)),
    ]


def _block(form: AttentionForm, edge: bool, used: Functions) -> list[str]:
    """Lines for one block of keys; `edge`: some keys may not exist, or not be seen by all rows."""
    precision = PRECISION.get(form.multiply, "")
    lines = ["key = start + lane"] if edge or form.mask is not None else []
    loads, key_blocks, value_blocks = block_loads(form, edge)
    lines += loads
    product = ""
    for i, block in enumerate(key_blocks):
        lines += [f"scores = tl.dot(q_{i}, {block}{product}{precision})"]
        product = ", scores"
    if form.capped:
        bent = used.apply("tanh", ["scores"], FLOAT32)
        lines += ["scores = scores * scale", f"scores = {bent} * cap"]
    if form.mask is not None:
        lines += masked(form, edge)
    elif edge and not form.capped:
        lines += ["scores = scores * factor"]
    if edge:
        seen = "(key < end)[None, :]"
        if form.causal != "none":
            seen += " & (key[None, :] <= position[:, None] + limit)"
        lines += [f'scores = tl.where({seen}, scores, float("-inf"))']
    if form.scales_powers and not edge:
        extreme = "tl.min" if form.negative else "tl.max"
        lines += [
            f"after = tl.maximum(largest, {extreme}(scores, 1) * factor)",
            "powers = tl.exp2(tl.fma(scores, factor, -after[:, None]))",
        ]
    else:
        lines += [
            "after = tl.maximum(largest, tl.max(scores, 1))",
            f"powers = {_power(form, 'scores', 'after[:, None]')}",
        ]
    lines += [
        f"fades = {_power(form, 'largest', 'after')}",
        "total = total * fades + tl.sum(powers, 1)",
        "largest = after",
        f"powers = powers.to({LANGUAGE_TYPES[form.dtype.name]})",
    ]
    for i, block in enumerate(value_blocks):
        value = f"value_{i} * fades[:, None]"
        lines += [f"value_{i} = tl.dot(powers, {block}, {value}{precision})"]
    if form.loads == "pointers":
        lines += ["k += BK * k_row", "v += BK * v_row"]
    return lines


def _power(form: AttentionForm, score: str, largest: str) -> str:
    if form.scales_powers:
        return f"tl.exp2({score} - {largest})"
    return f"tl.exp2(({score} - {largest}) * LOG2_E)"


def _result(kernel: AttentionKernel) -> list[str]:
    """Lines that divide values by their totals and store them; a row that sees no key gives 0."""
    form = kernel.form
    seeing = "inside" if form.causal == "none" else "(position + limit >= 0)"
    lines = [
        *(_combined(kernel) if kernel.split else []),
        "broken = total != total",
        "blank = (total == 0) | broken",
        "share = 1.0 / tl.where(blank, 1.0, total)",
        f"instead = tl.where({seeing} & (keys > 0), blind, 0.0)",
        "instead = tl.where(broken, undefined, instead)",
        f"out += {_row_places(form, 'out')}[:, None]",
    ]
    for i, _ in pieces(form.column_blocks):
        there = both("inside[:, None]", *beyond(form, i, "column", "[None, :]"))
        lines += [
            f"value_{i} = tl.where(blank[:, None], instead[:, None], value_{i} * share[:, None])",
            f"value_{i} = value_{i}.to({LANGUAGE_TYPES[form.dtype.name]})",
            f"tl.store(out + column_{i}[None, :], value_{i}, mask={there})",
        ]
    return lines


def _combined(kernel: AttentionKernel) -> list[str]:
    """With split keys: stores this program's sums in the workspace. Only the last-arriving program
    adds up the sums of all and stores the tile (`split_k`)."""
    form, width, counter = kernel.form, kernel.form.columns, "arrivals + number"
    places = [
        f"sums + (row[:, None] * {width} + column_{i}[None, :])"
        for i, _ in pieces(form.column_blocks)
    ]
    of_row = [f"sums + (BQ * {width} + row)", f"sums + (BQ * {width + 1} + row)"]
    size = kernel.partial_floats
    limits = kernel.sums_in_flight
    loads = max(min(limits.values // (kernel.tile.bq * width), limits.loads), 1)

    return [
        "if used > 1:",
        "    row = tl.arange(0, BQ)",
        f"    all_sums = workspace + number.to(tl.int64) * split_keys * {size}",
        f"    sums = all_sums + part * {size}",
        *(f"    tl.store({place}, value_{i})" for i, place in enumerate(places)),
        f"    tl.store({of_row[0]}, largest)",
        f"    tl.store({of_row[1]}, total)",
        *_indented(arrival_lines(counter)),
        "    last = arrived == used - 1",
        *_indented(_nothing(form)),
        f"    for first in range(0, tl.where(last, used, 0), {loads}):",
        f"        for i in tl.static_range({loads}):",
        "            there = row < tl.where(first + i < used, BQ, 0)",
        f"            sums = all_sums + (first + i) * {size}",
        f"            before = {part_load(of_row[0], 'there')}",
        "            before = tl.where(there, before, LOWEST)",
        "            after = tl.maximum(largest, before)",
        f"            fades = {_power(form, 'largest', 'after')}",
        f"            weight = {_power(form, 'before', 'after')}",
        f"            total = total * fades + weight * {part_load(of_row[1], 'there')}",
        *(
            f"            value_{i} = value_{i} * fades[:, None]"
            f" + weight[:, None] * {part_load(place, 'there[:, None]')}"
            for i, place in enumerate(places)
        ),
        "            largest = after",
        "    if last:",
        f"        {departure_line(counter)}",
        f"    inside = index < tl.where(last, {row_count(kernel)}, 0)",
    ]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
