"""PP-OCR's networks, which find and read lines of text, with the weights that packages carry."""

from collections.abc import Callable, Mapping

import onnx

from benchmarks.vision.writing import PICTURE, Size
from ftuner_tools.demo.page import INSTALL, model_paths

PACKAGES: Mapping[int, tuple[str, str]] = {
    4: ("rapidocr-onnxruntime", "pip install 'ftuner[bench]', on Python before 3.13"),
    6: ("rapidocr", INSTALL),
}
"""By version of PP-OCR, the package that carries it, and how that is installed."""


def ppocr(task: str, version: int = 6) -> Callable[[Size], onnx.ModelProto]:
    """A function that reads the network of a task, `det`, `cls` or `rec`, which has one size, in a
    version of `PACKAGES`.

    Raises when called:
        ConfigurationError: the package is not installed.
    """

    def read(_: Size) -> onnx.ModelProto:
        model = onnx.load(model_paths(*PACKAGES[version])[task])
        (given,) = model.graph.input
        for node in model.graph.node:
            for number, name in enumerate(node.input):
                if name == given.name:
                    node.input[number] = PICTURE
        given.name = PICTURE
        return model

    return read
