"""Convolutions and transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, Shape, quotient
from ftuner.frontends.torch.registry import aten
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.compositions.transposed import transposed as transposed_convolution
from ftuner.graph.compositions.windows import (
    channels_first,
    channels_last,
    convolved,
    placed,
    with_bias,
)
from ftuner.graph.ir import Value

Ints = int | Sequence[int]


def each(given: Ints, rank: int) -> tuple[int, ...]:
    """One number for each spatial axis, of which torch may give one for all."""
    found = (given,) if isinstance(given, int) else tuple(given)
    if len(found) not in (1, rank):
        raise malformed(f"{list(found)} for {rank} spatial axes")
    return found * rank if len(found) == 1 else found


def batched(x: Value, rank: int) -> tuple[Value, bool]:
    """x with an axis of batches, and whether it had none."""
    return (x.unsqueeze([0]), True) if x.rank == rank + 1 else (x, False)


def _alone(x: Value, alone: bool) -> Value:
    return x.squeeze([0]) if alone else x


def _convolution(
    x: Value, weight: Value, bias: Value | None, strides: Ints, before: Shape, after: Shape,
    dilations: Ints, groups: int,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    if x.dtype.kind != "float":
        raise unsupported(f"a convolution of {x.type}")
    if any(isinstance(n, int) and n < 1 for n in weight.shape[2:]):
        raise malformed(f"an empty window: the weight is {weight.type}")
    x, alone = batched(x, rank)
    window = placed(x, weight.shape[2:], each(strides, rank), each(dilations, rank), before, after)
    turned = weight.transpose((*range(2, weight.rank), 1, 0))
    found = with_bias(convolved(channels_last(x), turned, window, groups), bias)
    return _alone(channels_first(found), alone)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution_padded(
    input: Value, weight: Value, bias: Value | None = None, stride: Ints = 1,
    padding: str = "valid", dilation: Ints = 1, groups: int = 1,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    before: tuple[Dim, ...] = (0,) * rank
    after = before
    if padding == "same":
        pairs = zip(weight.shape[2:], each(dilation, rank), strict=True)
        total = [d * (k - 1) for k, d in pairs]
        before = tuple(quotient(n, 2) for n in total)
        after = tuple(n - b for n, b in zip(total, before, strict=True))
    return _convolution(input, weight, bias, stride, before, after, dilation, groups)


def _transposed(
    x: Value, weight: Value, bias: Value | None, stride: Ints, padding: Ints, output_padding: Ints,
    groups: int, dilation: Ints,
) -> Value:  # fmt: skip
    rank = weight.rank - 2
    if x.dtype.kind != "float":
        raise unsupported(f"a convolution of {x.type}")
    kernel = [n for n in weight.shape[2:] if isinstance(n, int)]
    if len(kernel) < rank:
        raise unsupported(f"a transposed convolution by {weight.type}, a window that varies")
    x, alone = batched(x, rank)
    require(x.shape[1], weight.shape[0], f"convolution of {x.type} by {weight.type}")
    strides, dilations, begin = (each(n, rank) for n in (stride, dilation, padding))
    extents = tuple(
        (n - 1) * s + (k - 1) * d + 1 + more - 2 * pad
        for n, k, s, d, pad, more in zip(
            x.shape[2:], kernel, strides, dilations, begin, each(output_padding, rank), strict=True
        )
    )
    found = transposed_convolution(
        x, weight, bias, groups, kernel, strides, dilations, begin, extents
    )
    return _alone(found, alone)


@aten("convolution", "conv1d", "conv2d", "conv3d")
@aten("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", transposed=True)
def _any_convolution(
    input: Value, weight: Value, bias: Value | None = None, stride: Ints = 1, padding: Ints = 0,
    dilation: Ints = 1, groups: int = 1, output_padding: Ints = 0, transposed: bool = False,
) -> Value:  # fmt: skip
    """A convolution, zeros around it, or a transposed one."""
    if transposed:
        return _transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)
    pads = each(padding, weight.rank - 2)
    return _convolution(input, weight, bias, stride, pads, pads, dilation, groups)
