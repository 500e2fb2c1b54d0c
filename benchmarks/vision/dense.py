"""Networks whose result is as large as the picture: segmentation and detection."""

import numpy as np
import onnx

from benchmarks.vision.writing import PICTURE, Size, VisionWriter

MASKS = 21
"""Classes of a U-Net's pixels: those of Pascal VOC."""
THINGS = 80
"""Classes of a detector: those of COCO."""
BINS = 16
"""Of the distribution over which a detector predicts each side of a box (Li et al., 2020)."""


def unet(size: Size) -> onnx.ModelProto:
    """Ronneberger et al., 2015, with half of the channels, padding and batch norms. Height and
    width are multiples of 16."""
    w = VisionWriter(size)

    def twice(x: str, channels: int) -> str:
        return w.relu(w.conv_norm(w.relu(w.conv_norm(x, channels)), channels))

    x = twice(PICTURE, w.wide(32))
    passed = []
    for level in range(1, 5):
        passed.append(x)
        x = twice(w.max_pool(x, 2, 2), w.wide(32 << level))
    for skipped in reversed(passed):
        c = w.channels(skipped)
        x = twice(w.concat(skipped, w.up_conv(x, c)), c)
    return w.network(w.conv(x, MASKS, 1, gain=1.0), ["batch", MASKS, "height", "width"])


class _Yolo:
    """Blocks of YOLOv8 (Ultralytics), of which the smallest is written. Height and width are
    multiples of 32."""

    def __init__(self, w: VisionWriter) -> None:
        self.w = w

    def conv(self, x: str, channels: int, kernel: int = 3, stride: int = 1) -> str:
        return self.w.silu(self.w.conv_norm(x, channels, kernel, stride))

    def c2f(self, x: str, channels: int, count: int, adds: bool = True) -> str:
        """Bottlenecks on half of the channels, all of whose results are joined."""
        parts = self.w.halves(self.conv(x, channels, 1))
        for _ in range(count):
            y = self.conv(self.conv(parts[-1], channels // 2), channels // 2)
            parts.append(self.w.add(parts[-1], y) if adds else y)
        return self.conv(self.w.concat(*parts), channels, 1)

    def sppf(self, x: str, channels: int) -> str:
        """Maxima over three sizes of windows."""
        parts = [self.conv(x, channels // 2, 1)]
        for _ in range(3):
            parts.append(self.w.max_pool(parts[-1], 5, 1))
        return self.conv(self.w.concat(*parts), channels, 1)

    def head(self, x: str, hidden: int, channels: int) -> str:
        return self.w.conv(self.conv(self.conv(x, hidden), hidden), channels, 1, gain=1.0)

    def boxes(self, x: str) -> str:
        """Expected sides from `(batch, 4 * BINS, anchors)`: `(batch, 4, anchors)`."""
        w = self.w
        apart = w.node("Reshape", x, w.constant([0, 4, BINS, -1]))
        share = w.node("Softmax", w.node("Transpose", apart, perm=[0, 2, 1, 3]), axis=1)
        bins = w.weight(np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
        sides = w.node("Conv", share, bins, kernel_shape=[1, 1])
        return str(w.node("Reshape", sides, w.constant([0, 4, -1])))


def yolo(size: Size) -> onnx.ModelProto:
    """Sides of boxes and scores of classes: `(batch, 4 + THINGS, anchors)`."""
    w = VisionWriter(size)
    y = _Yolo(w)
    c2, c3, c4, c5 = (w.wide(c) for c in (32, 64, 128, 256))
    x = y.conv(y.conv(PICTURE, w.wide(16), 3, 2), c2, 3, 2)
    x = y.c2f(x, c2, w.deep(1))
    third = y.c2f(y.conv(x, c3, 3, 2), c3, w.deep(2))
    fourth = y.c2f(y.conv(third, c4, 3, 2), c4, w.deep(2))
    last = y.sppf(y.c2f(y.conv(fourth, c5, 3, 2), c5, w.deep(1)), c5)
    # The neck: down from the coarsest level, and up again.
    middle = y.c2f(w.concat(w.resized(last, 2.0, "nearest"), fourth), c4, w.deep(1), False)
    fine = y.c2f(w.concat(w.resized(middle, 2.0, "nearest"), third), c3, w.deep(1), False)
    middle = y.c2f(w.concat(y.conv(fine, c3, 3, 2), middle), c4, w.deep(1), False)
    coarse = y.c2f(w.concat(y.conv(middle, c4, 3, 2), last), c5, w.deep(1), False)
    levels = []
    for level in (fine, middle, coarse):
        both = w.concat(y.head(level, max(BINS, c3), 4 * BINS), y.head(level, w.wide(80), THINGS))
        levels.append(w.node("Reshape", both, w.constant([0, 4 * BINS + THINGS, -1])))
    joined = w.node("Concat", *levels, axis=2)
    sides, scores = w.node("Split", joined, w.constant([4 * BINS, THINGS]), outputs=2, axis=1)
    found = w.node("Concat", y.boxes(sides), w.node("Sigmoid", scores), axis=1)
    return w.network(found, ["batch", 4 + THINGS, "anchors"])
