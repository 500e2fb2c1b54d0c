"""The networks, by name, and the pictures that each is measured with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.vision import convnets, dense, transformers
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
    sides: tuple[int, ...] = (96, 160, 224, 320)
    """Of square pictures, one at a time."""
    batches: tuple[int, ...] = (1,)
    """At 224 x 224."""

    @property
    def pictures(self) -> list[Picture]:
        alone = [Picture(1, side, side) for side in self.sides]
        return alone + [Picture(batch, 224, 224) for batch in self.batches if batch > 1]

    def saved(self, folder: Path, size: Size) -> Path:
        """The path of the ONNX file."""
        path = folder / "model.onnx"
        path.write_bytes(self.write(size).SerializeToString())
        return path


DENSE_SIDES = (160, 320, 640)
"""Of networks that are used on large pictures."""
NETWORKS: Mapping[str, Network] = {
    "resnet18": Network(convnets.resnet18, batches=(1, 4)),
    "resnet50": Network(convnets.resnet50, batches=(1, 4)),
    "mobilenet-v2": Network(convnets.mobilenet_v2, batches=(1, 4)),
    "mobilenet-v3": Network(convnets.mobilenet_v3),
    "efficientnet-b0": Network(convnets.efficientnet_b0),
    "convnext-tiny": Network(convnets.convnext_tiny),
    "unet": Network(dense.unet, (96, 160, 224, 320)),
    "yolo": Network(dense.yolo, DENSE_SIDES),
    "segformer-b0": Network(transformers.segformer_b0, DENSE_SIDES),
    "vit-tiny": Network(transformers.vit_tiny),
    "vit-small": Network(transformers.vit_small, batches=(1, 4)),
    "swin-tiny": Network(transformers.swin_tiny),
}
