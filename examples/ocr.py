"""Reads a photographed page with rapidocr's models, on ftuner and on ONNX Runtime, and compares.

Install what it needs with `pip install 'ftuner-tools[demo]' onnxruntime`, then run
`python examples/ocr.py`. The size of the page, and the lines that are found on it, decide the
shapes of the models' inputs; nothing is compiled for any of them.
"""

import statistics
import time
from types import ModuleType

import cv2
import numpy as np
import onnxruntime
import rapidocr.inference_engine.onnxruntime.main as engine
from rapidocr import RapidOCR
from skimage import data

import ftuner.ort

ENLARGED = 3
"""Times. The photograph has 191 x 384 pixels."""
SETTINGS = {"Global.log_level": "error"}
ROUNDS = 5


def main() -> None:
    """Print the text of the page and how long either library takes to read it."""
    page = cv2.resize(data.page(), None, fx=ENLARGED, fy=ENLARGED)
    own, other = (read(page, library) for library in (ftuner.ort, onnxruntime))
    print("\n".join(own))
    if own != other:
        raise SystemExit("onnxruntime reads:\n" + "\n".join(other))
    print(f"the same {len(own)} lines with both")


def read(page: np.ndarray, library: ModuleType) -> tuple[str, ...]:
    """The lines of a page, read by the sessions of `library`."""
    # rapidocr's engine imports these from onnxruntime; ftuner's take their place.
    for name in ("GraphOptimizationLevel", "InferenceSession", "SessionOptions"):
        setattr(engine, name, getattr(library, name))
    reader = RapidOCR(params=SETTINGS)
    seconds = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        lines = reader(page).txts
        seconds.append(time.perf_counter() - began)
    print(
        f"{library.__name__}: a page of {page.shape[0]} x {page.shape[1]} pixels in "
        f"{statistics.median(seconds[1:]):.2f} s; {seconds[0]:.2f} s with loading the models"
    )
    return lines


if __name__ == "__main__":
    main()
