"""Convolutional classifiers: from a picture to logits of `CLASSES`."""

import onnx

from benchmarks.vision.writing import BRANCH_SCALE, PICTURE, Size, VisionWriter

CLASSES = 1000


def _logits(w: VisionWriter, x: str) -> onnx.ModelProto:
    logits = w.classifier(x, w.wide(CLASSES))
    return w.network(logits, ["batch", w.channels(logits)])


# Residual networks (He et al., 2016), as torchvision has them.


def _resnet(size: Size, blocks: tuple[int, ...], bottleneck: bool) -> onnx.ModelProto:
    w = VisionWriter(size)
    x = w.max_pool(w.relu(w.conv_norm(PICTURE, w.wide(64), 7, 2)), 3, 2)
    for stage, count in enumerate(blocks):
        inner = w.wide(64 << stage)
        outer = 4 * inner if bottleneck else inner
        for number in range(w.deep(count)):
            stride = 2 if stage > 0 and number == 0 else 1
            if bottleneck:
                y = w.relu(w.conv_norm(x, inner, 1))
                y = w.relu(w.conv_norm(y, inner, 3, stride))
                y = w.conv_norm(y, outer, 1, scale=BRANCH_SCALE)
            else:
                y = w.relu(w.conv_norm(x, inner, 3, stride))
                y = w.conv_norm(y, outer, 3, scale=BRANCH_SCALE)
            if stride > 1 or w.channels(x) != outer:
                x = w.conv_norm(x, outer, 1, stride)
            x = w.relu(w.add(y, x))
    return _logits(w, w.flat(w.pooled(x)))


def resnet18(size: Size) -> onnx.ModelProto:
    return _resnet(size, (2, 2, 2, 2), bottleneck=False)


def resnet50(size: Size) -> onnx.ModelProto:
    return _resnet(size, (3, 4, 6, 3), bottleneck=True)


# Inverted residuals.


def mobilenet_v2(size: Size) -> onnx.ModelProto:
    """Sandler et al., 2018: table 2."""
    w = VisionWriter(size)

    def clipped(x: str) -> str:
        return w.carrying(w.node("Clip", x, w.number(0.0), w.number(6.0)), x)

    x = clipped(w.conv_norm(PICTURE, w.wide(32), 3, 2))
    for expansion, channels, count, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(w.deep(count)):
            stride = first_stride if number == 0 else 1
            y, inner = x, expansion * w.channels(x)
            if expansion > 1:
                y = clipped(w.conv_norm(y, inner, 1))
            y = clipped(w.conv_norm(y, inner, 3, stride, groups=0))
            adds = stride == 1 and w.channels(x) == w.wide(channels)
            y = w.conv_norm(y, w.wide(channels), 1, scale=BRANCH_SCALE if adds else 1.0)
            x = w.add(x, y) if adds else y
    return _logits(w, w.flat(w.pooled(clipped(w.conv_norm(x, w.wide(1280), 1)))))


def mobilenet_v3(size: Size) -> onnx.ModelProto:
    """The large one of Howard et al., 2019: table 1."""
    w = VisionWriter(size)

    def activated(x: str, hard_swish: bool) -> str:
        return w.unary("HardSwish", x) if hard_swish else w.relu(x)

    def squeezed(x: str) -> str:
        """Squeeze and excitation with a hard sigmoid."""
        y = w.relu(w.conv(w.pooled(x), max(8, w.channels(x) // 4 // 8 * 8), 1))
        gate = w.node("HardSigmoid", w.conv(y, w.channels(x), 1, gain=1.0), alpha=1 / 6)
        return w.carrying(w.node("Mul", gate, x), x)

    x = activated(w.conv_norm(PICTURE, w.wide(16), 3, 2), True)
    for kernel, inner, channels, squeezes, hard, stride in (
        (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
        (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
        (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
        (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
        (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
    ):  # fmt: skip
        y = x
        if inner != channels:
            y = activated(w.conv_norm(y, w.wide(inner), 1), hard)
        y = activated(w.conv_norm(y, w.channels(y), kernel, stride, groups=0), hard)
        if squeezes:
            y = squeezed(y)
        adds = stride == 1 and w.channels(x) == w.wide(channels)
        y = w.conv_norm(y, w.wide(channels), 1, scale=BRANCH_SCALE if adds else 1.0)
        x = w.add(x, y) if adds else y
    x = activated(w.conv_norm(x, w.wide(960), 1), True)
    hidden = w.classifier(w.flat(w.pooled(x)), w.wide(1280))
    return _logits(w, activated(hidden, True))


def efficientnet_b0(size: Size) -> onnx.ModelProto:
    """Tan and Le, 2019: table 1."""
    w = VisionWriter(size)
    x = w.silu(w.conv_norm(PICTURE, w.wide(32), 3, 2))
    for expansion, channels, count, first_stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ):  # fmt: skip
        for number in range(w.deep(count)):
            stride = first_stride if number == 0 else 1
            squeezed = max(1, w.channels(x) // 4)
            y = x
            if expansion > 1:
                y = w.silu(w.conv_norm(y, expansion * w.channels(x), 1))
            y = w.silu(w.conv_norm(y, w.channels(y), kernel, stride, groups=0))
            gate = w.conv(w.silu(w.conv(w.pooled(y), squeezed, 1)), w.channels(y), 1, gain=1.0)
            y = w.carrying(w.node("Mul", w.node("Sigmoid", gate), y), y)
            adds = stride == 1 and w.channels(x) == w.wide(channels)
            y = w.conv_norm(y, w.wide(channels), 1, scale=BRANCH_SCALE if adds else 1.0)
            x = w.add(y, x) if adds else y
    return _logits(w, w.flat(w.pooled(w.silu(w.conv_norm(x, w.wide(1280), 1)))))


def convnext_tiny(size: Size) -> onnx.ModelProto:
    """Liu et al., 2022: windows of 7 x 7 of each channel, then products as of a transformer."""
    w = VisionWriter(size)

    def norm(x: str) -> str:
        return w.channels_first(w.layer_norm(w.channels_last(x)))

    x = norm(w.conv(PICTURE, w.wide(96), 4, 4, pad=0, gain=1.0))
    for stage, count in enumerate((3, 3, 9, 3)):
        c = w.wide(96 << stage)
        if stage > 0:
            x = w.conv(norm(x), c, 2, 2, pad=0, gain=1.0)
        for _ in range(w.deep(count)):
            y = w.layer_norm(w.channels_last(w.conv(x, c, 7, groups=0)))
            y = w.linear(w.gelu(w.linear(y, 4 * c)), c)
            scaled = w.node("Mul", y, w.uniform(0.5 * BRANCH_SCALE, 1.5 * BRANCH_SCALE, c))
            x = w.add(w.channels_first(w.carrying(scaled, c)), x)
    return _logits(w, w.flat(norm(w.pooled(x))))
