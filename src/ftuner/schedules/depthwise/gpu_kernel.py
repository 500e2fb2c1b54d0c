"""Windows of single channels as Triton text: depthwise convolutions and pooling.

A block is some positions of the result by some channels; adjacent threads have adjacent channels.
Positions are numbered over all images and rows, so that small images fill blocks too. What depends
on the position alone is computed once, by division. Each element of the window is then one load
under a mask: neighbouring windows find in L1 what they share.
"""

from __future__ import annotations

from ftuner.codegen.triton import functions
from ftuner.codegen.triton.expressions import epilogue_prelude, render_epilogue
from ftuner.codegen.triton.functions import Functions
from ftuner.codegen.triton.source import (
    LANGUAGE_TYPES,
    TRITON_TYPES,
    Argument,
    Source,
    function_source,
)
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import ACCUMULATOR, operands
from ftuner.core.functions import neutral
from ftuner.core.gpu.schedule import WINDOW_WARPS, DepthwiseKernel
from ftuner.core.gpu.tile import ALIGNMENT_BYTES

EVEN = 8
"""What even numbers are multiples of: `ALIGNMENT_BYTES` of any dtype are as many elements, or
fewer."""
UNROLLED_ROW, UNROLLED = 8, 16
"""Longest row of a window, and most elements of a window, whose loop is unrolled. Assumed: the
loads of 3 x 3 elements are in flight together, and text stays short."""
DIMS = (
    "height", "width", "channels", "out_height", "out_width", "begin_y", "begin_x",
    "x_offset", "x_image", "x_row", "x_pixel", "out_offset", "out_image", "out_row", "out_pixel",
)  # fmt: skip
"""The numbers of `DepthwiseStep.parameters`, which those of operands follow."""
EVEN_DIMS = frozenset({"channels", *DIMS[7:]})


def depthwise_arguments(kernel: DepthwiseKernel) -> tuple[Argument, ...]:
    """Returns the arguments of a kernel, in their order: x, the weight if there is one, the
    operands of the epilogue, the result; images; `DIMS`; and for each operand its offset and the
    elements between its rows. All numbers fit 32 bits, except offsets and strides."""

    def pointer(name: str, dtype: str) -> Argument:
        return Argument(name, f"*{TRITON_TYPES[dtype]}", ALIGNMENT_BYTES)

    found = [pointer("x", kernel.x.name)]
    if kernel.weight is not None:
        found.append(pointer("weight", kernel.weight.name))
    extra = operands(kernel.epilogue)
    for operand, dtype in zip(extra, kernel.operands, strict=True):
        found.append(pointer(f"operand_{operand.name}", dtype.name))
    found += [pointer("out", kernel.out.name), Argument("images", "i32")]
    names = [(name, "i64" if name in DIMS[7:] else "i32", name in EVEN_DIMS) for name in DIMS]
    for operand in extra:
        names += [(f"offset_{operand.name}", "i64", True), (f"row_{operand.name}", "i64", True)]
    found += [Argument(n, t, EVEN if kernel.even and even else 1) for n, t, even in names]
    return tuple(found)


def depthwise_source(kernel: DepthwiseKernel) -> Source:
    """Returns the source of a kernel; its arguments are `depthwise_arguments`."""
    used = Functions()
    body = [*_head(kernel), *(f"    {line}" for line in _tile(kernel, used))]
    prelude, arguments = epilogue_prelude(kernel.epilogue, used=used), depthwise_arguments(kernel)
    return function_source("depthwise", prelude, arguments, body, WINDOW_WARPS, 1)


def _head(kernel: DepthwiseKernel) -> list[str]:
    positions, channels = kernel.block
    return [
        "rows = images * out_height * out_width",
        f"across = tl.cdiv(channels, {channels})",
        f"tiles = tl.cdiv(rows, {positions}) * across",
        "for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):",
    ]


def _tile(kernel: DepthwiseKernel, used: Functions) -> list[str]:
    """Lines of the body of the loop over tiles."""
    positions, channels = kernel.block
    (stride_y, stride_x), extra = kernel.strides, operands(kernel.epilogue)
    kind = kernel.reduction or "sum"
    nothing = functions.literal(neutral(kind, FLOAT32), FLOAT32)
    lines = [
        f"row = tile // across * {positions} + tl.arange(0, {positions})",
        f"channel = tile % across * {channels} + tl.arange(0, {channels})",
        "some = (channel < channels)[None, :]",
        "place = tl.minimum(row, rows - 1)",
        "out_x = place % out_width",
        "rest = place // out_width",
        "out_y = rest % out_height",
        "image = (rest // out_height).to(tl.int64)",
        f"first_y = out_y * {stride_y} - begin_y",
        f"first_x = out_x * {stride_x} - begin_x",
        "x_at = x_offset + image * x_image + first_y.to(tl.int64) * x_row"
        " + first_x.to(tl.int64) * x_pixel",
        f"value = tl.full(({positions}, {channels}), {nothing}, tl.float32)",
    ]
    lines += _loops(kernel, nothing, used)
    lines += [
        "out_at = out_offset + image * out_image + out_y.to(tl.int64) * out_row"
        " + out_x.to(tl.int64) * out_pixel",
        "stored = (row < rows)[:, None] & some",
    ]
    values = {ACCUMULATOR.name: "value"}
    for operand in extra:
        name = operand.name
        values[name] = f"value_{name}"
        at = f"operand_{name} + offset_{name} + channel[None, :]"
        if operand.kind == "matrix":
            at += f" + place.to(tl.int64)[:, None] * row_{name}"
        lines.append(f"value_{name} = tl.load({at}, mask=some, other=0.0).to(tl.float32)")
    rendered = render_epilogue(kernel.epilogue, values, "e")
    lines += [
        *rendered.lines,
        f"result = tl.broadcast_to({rendered.value}, ({positions}, {channels}))",
        "tl.store(out + out_at[:, None] + channel[None, :],"
        f" result.to({LANGUAGE_TYPES[kernel.out.name]}), mask=stored)",
    ]
    return lines


def _loops(kernel: DepthwiseKernel, nothing: str, used: Functions) -> list[str]:
    """Lines of the loops over the elements of a window."""
    height, width = kernel.window
    dilation_y, dilation_x = kernel.dilations
    row = "tl.static_range" if width <= UNROLLED_ROW else "range"
    whole = "tl.static_range" if height * width <= UNROLLED and row != "range" else "range"
    inside = [
        f"at_x = tap_x * {dilation_x}",
        "index_x = first_x + at_x",
        "inside = inside_y & (index_x >= 0) & (index_x < width)",
        "element_at = x + x_at + (at_y * x_row + at_x * x_pixel)",
    ]
    inside += _element(kernel, nothing, used)
    return [
        f"for tap_y in {whole}({height}):",
        f"    at_y = tap_y * {dilation_y}",
        "    index_y = first_y + at_y",
        "    inside_y = (index_y >= 0) & (index_y < height)",
        f"    for tap_x in {row}({width}):",
        *(f"        {line}" for line in inside),
    ]


def _element(kernel: DepthwiseKernel, nothing: str, used: Functions) -> list[str]:
    """Lines that take one element of all windows into `value`."""
    mask = "inside[:, None] & some"
    if kernel.weight is None:
        kind = kernel.reduction or "sum"
        step = used.combine(kind, "value", "element", FLOAT32)
        lines = [
            "element = tl.load(element_at[:, None] + channel[None, :],"
            f" mask={mask}, other=0.0).to(tl.float32)"
        ]
        if kind != "sum":
            lines.append(f"element = tl.where(inside[:, None], element, {nothing})")
        return [*lines, f"value = {step}"]
    group = kernel.group
    read = "channel" if group == 1 else f"channel // {group} * {group} + member"
    lines = [
        f"element = tl.load(element_at[:, None] + ({read})[None, :],"
        f" mask={mask}, other=0.0).to(tl.float32)",
        f"number = (tap_y * {kernel.window[1]} + tap_x) * {group} + member",
        "factor = tl.load(weight + number * channels + channel[None, :], mask=some, other=0.0)",
        "value = tl.fma(element, tl.broadcast_to(factor.to(tl.float32), element.shape), value)",
    ]
    if group == 1:
        return ["member = 0", *lines]
    return [f"for member in tl.static_range({group}):", *(f"    {line}" for line in lines)]
