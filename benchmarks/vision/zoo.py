"""The networks, by name, and the pictures that each is measured with."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.vision import convnets, dense, transformers
from benchmarks.vision.reading import ppocr
from benchmarks.vision.writing import PICTURE, PICTURE_CHANNELS, Size

Feeds = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Picture:
    """The extents of one call."""

    batch: int
    height: int
    width: int

    @property
    def label(self) -> str:
        return f"{self.batch}x{self.height}x{self.width}"

    def feeds(self, rng: np.random.Generator) -> Feeds:
        """Pixels that are normalised, as networks expect them."""
        shape = (self.batch, PICTURE_CHANNELS, self.height, self.width)
        return {PICTURE: rng.standard_normal(shape, np.float32)}


@dataclass(frozen=True)
class Network:
    """A network, and the resolutions and batches that it is measured at."""

    write: Callable[[Size], onnx.ModelProto]
    sides: tuple[int, ...] = (96, 160, 224, 320, 640)
    """Of square pictures, one at a time."""
    batches: tuple[int, ...] = (1,)
    """At 224 x 224."""
    multiple: int = 1
    """What heights and widths must be multiples of."""
    others: tuple[Picture, ...] = ()
    """Pictures that are not square, in place of those of `sides` and `batches`."""

    @property
    def pictures(self) -> list[Picture]:
        if self.others:
            return list(self.others)
        alone = [Picture(1, side, side) for side in self.sides]
        return alone + [Picture(batch, 224, 224) for batch in self.batches if batch > 1]


PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def counted(model: onnx.ModelProto, session: Callable[[bytes], Any]) -> Callable[[Feeds], int]:
    """The multiplications and additions of all convolutions and products of a call. `session`: of
    ONNX Runtime, which gives the shapes, because some are computed by the model."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    constants = (node for node in model.graph.node if node.op_type == "Constant")
    weights |= {node.output[0]: list(node.attribute[0].t.dims) for node in constants}
    nodes = [node for node in model.graph.node if node.op_type in PRODUCTS]
    del shown.graph.output[:]
    for number, node in enumerate(nodes):
        for side, name in (("x", node.input[0]), ("y", node.output[0])):
            wanted = f"{side}_{number}"
            shown.graph.node.append(onnx.helper.make_node("Shape", [name], [wanted]))
            info = onnx.helper.make_tensor_value_info(wanted, onnx.TensorProto.INT64, [None])
            shown.graph.output.append(info)
    runs = session(shown.SerializeToString())

    def count(feeds: Feeds) -> int:
        shapes = [shape.tolist() for shape in runs.run(None, feeds)]
        total = 0
        for node, x, y in zip(nodes, shapes[::2], shapes[1::2], strict=True):
            if node.op_type.startswith("Conv"):
                placed = x if node.op_type == "ConvTranspose" else y
                total += 2 * math.prod(placed) * math.prod(weights[node.input[1]][1:])
            else:
                total += 2 * math.prod(y) * x[-1]
        return total

    return count


DENSE_SIDES = (160, 320, 640)
"""Of networks that are used on large pictures."""
NETWORKS: Mapping[str, Network] = {
    "resnet18": Network(convnets.resnet18, batches=(1, 4)),
    "resnet50": Network(convnets.resnet50, batches=(1, 4)),
    "mobilenet-v2": Network(convnets.mobilenet_v2, batches=(1, 4)),
    "mobilenet-v3": Network(convnets.mobilenet_v3),
    "efficientnet-b0": Network(convnets.efficientnet_b0),
    "convnext-tiny": Network(convnets.convnext_tiny),
    "unet": Network(dense.unet, multiple=16),
    "yolo": Network(dense.yolo, DENSE_SIDES, multiple=32),
    "segformer-b0": Network(transformers.segformer_b0, DENSE_SIDES),
    "vit-tiny": Network(transformers.vit_tiny),
    "vit-small": Network(transformers.vit_small, batches=(1, 4)),
    "swin-tiny": Network(transformers.swin_tiny, multiple=32),
    "ppocr-det": Network(
        ppocr("det"), multiple=32,
        others=(Picture(1, 32, 32), Picture(1, 160, 320), Picture(1, 480, 640),
                Picture(1, 736, 1280)),
    ),
    "ppocr-cls": Network(
        ppocr("cls"), others=(Picture(1, 80, 160), Picture(6, 80, 160), Picture(1, 48, 192))
    ),
    "ppocr-rec": Network(
        ppocr("rec"),
        others=(Picture(1, 48, 32), Picture(1, 48, 320), Picture(1, 48, 800), Picture(1, 48, 1600),
                Picture(6, 48, 320), Picture(6, 48, 1600)),
    ),
}  # fmt: skip
WRITTEN = tuple(name for name in NETWORKS if not name.startswith("ppocr"))
"""Networks that are written here, in any size."""
