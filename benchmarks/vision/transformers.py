"""Transformers on pictures. Widths of heads stay as they are in narrower networks."""

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.vision.writing import PICTURE, Size, VisionWriter

CLASSES = 1000
REGIONS = 150
"""Classes of SegFormer's pixels: those of ADE20K."""
HIDDEN_SCORE = -100.0
"""Addend of the scores between tokens that are no neighbours, as Swin has it."""


def _mlp(w: VisionWriter, x: str) -> str:
    """The second half of a block: four times as wide inside."""
    c = w.channels(x)
    return w.add(x, w.linear(w.gelu(w.linear(w.layer_norm(x), 4 * c)), c))


def _query_key_value(w: VisionWriter, x: str, heads: int) -> list[str]:
    """Each `(batch, heads, length, depth)`, from one product, as timm writes it."""
    c = w.channels(x)
    joined = w.linear(x, 3 * c)
    apart = w.reshaped(joined, w.extent(x, 0), w.extent(x, 1), 3, heads, c // heads)
    turned = w.node("Transpose", apart, perm=[2, 0, 3, 1, 4])
    return [str(w.node("Gather", turned, w.constant(i), axis=0)) for i in range(3)]


def _joined(w: VisionWriter, x: str, like: str) -> str:
    """`(batch, heads, length, depth)` as tokens that are like others, and a product."""
    c = w.channels(like)
    turned = w.node("Transpose", x, perm=[0, 2, 1, 3])
    tokens = w.reshaped(turned, w.extent(like, 0), w.extent(like, 1), c)
    return w.linear(w.carrying(tokens, c), c)


# ViT (Dosovitskiy et al., 2021).


def _vit(size: Size, width: int, heads: int) -> onnx.ModelProto:
    """Patches of 16 x 16; the table of positions is resized to the picture as in DINOv2."""
    w = VisionWriter(size)
    c, patch, side = w.wide(width), 16, 14
    heads = max(1, round(heads * c / width))
    x = w.conv(PICTURE, c, patch, patch, pad=0, gain=1.0)
    height, width_ = w.extent(x, 2), w.extent(x, 3)
    table = w.carrying(w.normal(1, c, side, side, deviation=0.2), c)
    shape = w.node("Concat", w.constant([1, c]), height, width_, axis=0)
    table = w.node("Resize", table, "", "", shape, mode="cubic", cubic_coeff_a=-0.75,
                   coordinate_transformation_mode="half_pixel")  # fmt: skip
    x = w.tokens(x)
    x = w.carrying(w.node("Add", x, w.tokens(w.carrying(table, c))), c)
    batch = w.extent(x, 0)
    first = w.node("Expand", w.normal(1, 1, c),
                   w.node("Concat", batch, w.constant([1, c]), axis=0))  # fmt: skip
    x = w.carrying(w.node("Concat", first, x, axis=1), c)
    for _ in range(w.deep(12)):
        normed = w.layer_norm(x)
        q, k, v = _query_key_value(w, normed, heads)
        x = w.add(x, _joined(w, w.attention(q, k, v, c // heads), normed))
        x = _mlp(w, x)
    pooled = w.node("Gather", w.layer_norm(x), w.constant(0), axis=1)
    logits = w.classifier(w.carrying(pooled, c), w.wide(CLASSES))
    return w.network(logits, ["batch", w.channels(logits)])


def vit_tiny(size: Size) -> onnx.ModelProto:
    return _vit(size, 192, 3)


def vit_small(size: Size) -> onnx.ModelProto:
    return _vit(size, 384, 6)


# SegFormer (Xie et al., 2021).


def segformer_b0(size: Size) -> onnx.ModelProto:
    """Overlapping patches, attention to fewer keys, and a head of products; a quarter of the
    picture's height and width."""
    w = VisionWriter(size)
    stages = []
    x = PICTURE
    for kernel, stride, width, heads, reduction in (
        (7, 4, 32, 1, 8), (3, 2, 64, 2, 4), (3, 2, 160, 5, 2), (3, 2, 256, 8, 1),
    ):  # fmt: skip
        c = w.wide(width)
        heads = max(1, round(heads * c / width))
        picture = w.conv(x, c, kernel, stride, gain=1.0)
        height, width_ = w.extent(picture, 2), w.extent(picture, 3)
        x = w.layer_norm(w.tokens(picture))
        for _ in range(w.deep(2)):
            x = w.add(x, _fewer_keys(w, w.layer_norm(x), heads, reduction, height, width_))
            x = w.add(x, _mix_ffn(w, w.layer_norm(x), height, width_))
        x = w.picture(w.layer_norm(x), height, width_)
        stages.append(x)
    return _segformer_head(w, stages)


def _fewer_keys(
    w: VisionWriter, x: str, heads: int, reduction: int, height: str, width: str
) -> str:
    """Attention whose keys and values come from a smaller picture."""
    c = w.channels(x)
    seen = x
    if reduction > 1:
        small = w.conv(w.picture(x, height, width), c, reduction, reduction, pad=0, gain=1.0)
        seen = w.layer_norm(w.tokens(small))
    batch = w.extent(x, 0)
    q, k, v = (
        w.heads(w.linear(t, c), batch, w.extent(t, 1), heads, c // heads) for t in (x, seen, seen)
    )
    return _joined(w, w.attention(q, k, v, c // heads), x)


def _mix_ffn(w: VisionWriter, x: str, height: str, width: str) -> str:
    c = w.channels(x)
    y = w.picture(w.linear(x, 4 * c), height, width)
    return w.linear(w.gelu(w.tokens(w.conv(y, 4 * c, 3, groups=0, gain=1.0))), c)


def _segformer_head(w: VisionWriter, stages: list[str]) -> onnx.ModelProto:
    c = w.wide(256)
    size = w.node("Slice", w.node("Shape", stages[0]), w.constant([2]), w.constant([4]),
                  w.constant([0]))  # fmt: skip
    scaled = []
    for x in reversed(stages):
        y = w.picture(w.linear(w.tokens(x), c), w.extent(x, 2), w.extent(x, 3))
        wanted = w.node("Concat", w.extent(y, 0), w.constant([c]), size, axis=0)
        y = w.node("Resize", y, "", "", wanted, mode="linear",
                   coordinate_transformation_mode="half_pixel")  # fmt: skip
        scaled.append(w.carrying(y, c))
    fused = w.relu(w.conv_norm(w.concat(*scaled), c, 1))
    result = w.conv(fused, REGIONS, 1, gain=1.0)
    return w.network(result, ["batch", REGIONS, "rows", "columns"])


# Swin (Liu et al., 2021).


class _Swin:
    def __init__(self, w: VisionWriter, window: int) -> None:
        self.w, self.window = w, window

    def padding(self, x: str, axis: int) -> str:
        """By how much an extent falls short of a multiple of the window."""
        w, n = self.w, self.w.constant([self.window])
        short = w.node("Sub", n, w.node("Mod", w.extent(x, axis), n))
        return str(w.node("Mod", short, n))

    def rolled(self, x: str, by: int) -> str:
        """`(batch, height, width, channels)`, height and width begun `by` later, as
        `torch.roll` is exported."""
        w = self.w
        for axis in (1, 2):
            at, of = w.constant([by]), w.constant([axis])
            late = w.node("Slice", x, at, w.constant([2**63 - 1]), of)
            x = w.node("Concat", late, w.node("Slice", x, w.constant([0]), at, of), axis=axis)
        return x

    def windows(self, x: str, height: str, width: str, channels: int) -> str:
        """`(batch, height, width, channels)` as `(windows, window ** 2, channels)`."""
        w, n = self.w, self.window
        down, across = (w.node("Div", extent, w.constant([n])) for extent in (height, width))
        apart = w.reshaped(x, -1, down, n, across, n, channels)
        turned = w.node("Transpose", apart, perm=[0, 1, 3, 2, 4, 5])
        return w.carrying(w.reshaped(turned, -1, n * n, channels), channels)

    def mask(self, height: str, width: str) -> str:
        """Addends of `(windows, 1, window ** 2, window ** 2)`: what was rolled in from the other
        side is hidden."""
        w, n = self.w, self.window

        def regions(extent: str) -> str:
            steps = w.node("Range", w.constant(0), w.node("Squeeze", extent, w.constant([0])),
                           w.constant(1))  # fmt: skip
            late = [
                w.node("Cast", w.node("Not", w.node("Less", steps, w.node(
                    "Sub", extent, w.constant([short])))), to=TensorProto.FLOAT)
                for short in (n, n // 2)
            ]  # fmt: skip
            return str(w.node("Add", *late))

        rows = w.node("Unsqueeze", regions(height), w.constant([1]))
        both = w.node("Add", w.node("Mul", rows, w.number(3.0)), regions(width))
        four = w.node("Unsqueeze", both, w.constant([0, 3]))
        parts = w.node("Squeeze", self.windows(four, height, width, 1), w.constant([2]))
        difference = w.node("Sub", w.node("Unsqueeze", parts, w.constant([1])),
                            w.node("Unsqueeze", parts, w.constant([2])))  # fmt: skip
        same = w.node("Equal", difference, w.number(0.0))
        hidden = w.node("Where", same, w.number(0.0), w.number(HIDDEN_SCORE))
        return str(w.node("Unsqueeze", hidden, w.constant([1])))

    def attention(self, x: str, heads: int, shifted: bool) -> str:
        """Within windows of a picture, channels last, of any height and width."""
        w, n, c = self.w, self.window, self.w.channels(x)
        pads = [self.padding(x, axis) for axis in (1, 2)]
        zeros = w.constant([0, 0, 0, 0, 0])
        widths = w.node("Concat", zeros, *pads, w.constant([0]), axis=0)
        padded = w.node("Pad", x, widths, w.number(0.0), mode="constant")
        height, width = w.extent(padded, 1), w.extent(padded, 2)
        y = self.rolled(padded, n // 2) if shifted else padded
        y = self.windows(y, height, width, c)
        q, k, v = _query_key_value(w, y, heads)
        # The bias of relative positions, gathered from its table while exporting.
        added = w.weight(self.relative_positions(heads))
        scores = w.node("MatMul", w.node("Mul", q, w.number((c // heads) ** -0.5)),
                        w.node("Transpose", k, perm=[0, 1, 3, 2]))  # fmt: skip
        scores = w.node("Add", scores, added)
        if shifted:
            scores = self.masked(scores, self.mask(height, width), heads)
        mixed = w.node("MatMul", w.node("Softmax", scores, axis=-1), v)
        y = _joined(w, mixed, y)
        y = self.together(y, x, height, width, c)
        if shifted:
            y = self.rolled(y, -(n // 2))
        for axis in (1, 2):
            y = w.node("Slice", y, w.constant([0]), w.extent(x, axis), w.constant([axis]))
        return w.carrying(y, c)

    def relative_positions(self, heads: int) -> np.ndarray:
        n = self.window
        table = 0.2 * np.random.default_rng(heads).standard_normal((heads, (2 * n - 1) ** 2))
        row, column = np.divmod(np.arange(n * n), n)
        down = row[:, None] - row + n - 1
        across = column[:, None] - column + n - 1
        return np.asarray(table[:, down * (2 * n - 1) + across][None])

    def masked(self, scores: str, mask: str, heads: int) -> str:
        w, n = self.w, self.window
        apart = w.reshaped(scores, -1, w.extent(mask, 0), heads, n * n, n * n)
        added = w.node("Add", apart, w.node("Unsqueeze", mask, w.constant([0])))
        return w.reshaped(added, -1, heads, n * n, n * n)

    def together(self, x: str, like: str, height: str, width: str, channels: int) -> str:
        """The opposite of `windows`."""
        w, n = self.w, self.window
        down, across = (w.node("Div", extent, w.constant([n])) for extent in (height, width))
        apart = w.reshaped(x, -1, down, across, n, n, channels)
        turned = w.node("Transpose", apart, perm=[0, 1, 3, 2, 4, 5])
        return w.reshaped(turned, w.extent(like, 0), height, width, channels)

    def merged(self, x: str) -> str:
        """Four neighbours as one token of twice the channels. Height and width are even."""
        w, c = self.w, self.w.channels(x)
        parts = []
        for column in (0, 1):
            for row in (0, 1):
                parts.append(
                    w.node("Slice", x, w.constant([row, column]), w.constant([2**63 - 1] * 2),
                           w.constant([1, 2]), w.constant([2, 2]))
                )  # fmt: skip
        joined = w.carrying(w.node("Concat", *parts, axis=-1), 4 * c)
        return w.linear(w.layer_norm(joined), 2 * c)


def swin_tiny(size: Size, window: int = 7) -> onnx.ModelProto:
    """Attention within windows that are moved by half in every other block. Height and width are
    multiples of 32."""
    w = VisionWriter(size)
    swin = _Swin(w, window)
    c = w.wide(96)
    x = w.layer_norm(w.channels_last(w.conv(PICTURE, c, 4, 4, pad=0, gain=1.0)))
    for stage, count in enumerate((2, 2, 6, 2)):
        if stage > 0:
            x = swin.merged(x)
        heads = max(1, 3 * c // 96) << stage
        for number in range(2 * w.deep(count // 2)):
            x = w.add(x, swin.attention(w.layer_norm(x), heads, number % 2 == 1))
            x = _mlp(w, x)
    pooled = w.node("ReduceMean", w.layer_norm(x), axes=[1, 2], keepdims=0)
    logits = w.classifier(w.carrying(pooled, w.channels(x)), w.wide(CLASSES))
    return w.network(logits, ["batch", w.channels(logits)])
