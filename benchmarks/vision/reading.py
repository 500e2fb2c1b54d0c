"""PP-OCR's networks, which find and read lines of text, with the weights that packages carry."""

from collections.abc import Callable

import onnx

from benchmarks.vision.writing import PICTURE, Size
from ftuner_tools.demo.page import model_paths


def ppocr(task: str, distribution: str = "rapidocr") -> Callable[[Size], onnx.ModelProto]:
    """A function that reads the network of a task, `det`, `cls` or `rec`, which has one size.
    rapidocr carries version 6, rapidocr-onnxruntime version 4.

    Raises when called:
        ConfigurationError: the package is not installed.
    """

    def read(_: Size) -> onnx.ModelProto:
        model = onnx.load(model_paths(distribution)[task])
        (given,) = model.graph.input
        for node in model.graph.node:
            for number, name in enumerate(node.input):
                if name == given.name:
                    node.input[number] = PICTURE
        given.name = PICTURE
        return model

    return read
