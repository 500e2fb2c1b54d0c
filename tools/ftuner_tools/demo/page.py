"""The part of `ftuner demo` that reads a photographed page: text detection, the angle of each line,
and recognition, each at the sizes that the page and its lines have.

The models (PP-OCR) and what comes before and after them are rapidocr's, the page is scikit-image's;
both come from PyPI with the extra `demo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ftuner.cli.output import shown_progress
from ftuner.errors import ConfigurationError
from ftuner_tools.demo.latencies import Latency, Timed, latencies, timed_call

INSTALL = "pip install 'ftuner-tools[demo]'"
TASKS = {"det": "detection", "cls": "angle", "rec": "recognition"}
"""What rapidocr calls its models, and what the tables call them."""
ENLARGED = 3
"""Factor that the photograph of 191 x 384 pixels is enlarged by."""
BATCHES = (6, 1)
"""Lines that are recognised at once: rapidocr's default, padded to the widest line, and then each
line at its own width."""
ROUNDS = 3
"""Times that the page is read with each."""

if TYPE_CHECKING:
    from rich.console import Console

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Reading:
    """What was found on a page."""

    size: tuple[int, int]
    """Height and width of the page in pixels."""
    lines: tuple[str, ...]
    latencies: tuple[Latency, ...]


class Engine:
    """One of rapidocr's models, with the interface of its engines."""

    def __init__(self, path: Path, threads: int | None) -> None:
        from ftuner.ort import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = threads or 0
        self._session = InferenceSession(path, options)
        (self._input,) = self._session.get_inputs()
        self.timed: Timed = {}

    def __call__(self, x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        result: npt.NDArray[Any]
        (result,) = timed_call(
            self.timed, x.shape, lambda: self._session.run(None, {self._input.name: x})
        )
        return result

    def have_key(self, key: str = "character") -> bool:
        return key in self._session.get_modelmeta().custom_metadata_map

    def get_character_list(self, key: str = "character") -> list[str]:
        return self._session.get_modelmeta().custom_metadata_map[key].splitlines()


def model_paths(distribution: str = "rapidocr", install: str = INSTALL) -> dict[str, Path]:
    """The ONNX files inside a distribution that carries PP-OCR, by task. `install`: the command
    that installs it.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        models = [f for f in files(distribution) or () if f.suffix == ".onnx"]
    except PackageNotFoundError:
        models = []
    found = {task: [f for f in models if f"_{task}_" in f.name] for task in TASKS}
    if not all(found.values()):
        raise ConfigurationError(
            f"PP-OCR is read from the package {distribution}; install it with: {install}"
        )
    return {task: Path(model.locate()) for task, (model, *_) in found.items()}


def photograph() -> Image:
    """A page of a book, enlarged.

    Raises:
        ConfigurationError: the extra `demo` is not installed, or its libraries do not load.
    """
    try:
        data, cv2 = import_module("skimage.data"), import_module("cv2")
    except ImportError as error:
        raise ConfigurationError(
            f"the demo needs scikit-image and OpenCV ({error}); install them with: {INSTALL}"
        ) from None
    page: Image = cv2.resize(data.page(), None, fx=ENLARGED, fy=ENLARGED)
    return page


def read(page: Image, paths: Mapping[str, Path], threads: int | None) -> Reading:
    """The text of a page, and the latency of each model at each shape of its input."""
    engines = {}
    with shown_progress("compile") as show:
        for number, (task, name) in enumerate(TASKS.items()):
            show(f"compile {name}", number, len(TASKS))
            engines[task] = Engine(paths[task], threads)
    with _in_place_of_theirs(engines):
        for batch in BATCHES:
            settings = {"Global.log_level": "error", "Rec.rec_batch_num": batch}
            reader = import_module("rapidocr").RapidOCR(params=settings)
            lines = [reader(page).txts for _ in range(ROUNDS)][-1]
    height, width = page.shape[:2]
    rows = [row for task, name in TASKS.items() for row in latencies(name, engines[task].timed)]
    return Reading((height, width), tuple(lines or ()), tuple(rows))


def show_reading(out: Console, found: Reading) -> None:
    """Print the text of the page."""
    height, width = found.size
    out.print(f"\na photographed page of {height} x {width} pixels", style="bold")
    for line in found.lines:
        out.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _in_place_of_theirs(engines: Mapping[str, Engine]) -> Iterator[None]:
    """Within it, rapidocr runs its models by `engines`.

    rapidocr chooses among the engines that it knows by `get_engine`, and a part of it loads its
    model when it is first called.
    """
    parts = [import_module(f"rapidocr.ch_ppocr_{task}.main") for task in TASKS]
    theirs = [part.get_engine for part in parts]

    def get_engine(_: object) -> Any:
        return lambda settings: engines[settings.task_type.value]

    try:
        for part in parts:
            vars(part)["get_engine"] = get_engine
        yield
    finally:
        for part, get in zip(parts, theirs, strict=True):
            vars(part)["get_engine"] = get
