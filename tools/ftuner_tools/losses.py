"""What less precision costs: errors of layers relative to those of a model in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.errors import ConfigurationError
from ftuner.frontends.onnx.reading import whole
from ftuner_tools.agreement import Agreement, agreement

Array = npt.NDArray[Any]
LAYERS = ("MatMul", "Gemm", "Conv")


class SquareErrors:
    """The norm of the differences of arrays, relative to that of the expected ones."""

    def __init__(self) -> None:
        self._error = self._size = 0.0

    def add(self, x: Array, y: Array) -> None:
        """Compare an array with the expected one. What has another shape is off by all of it."""
        wanted = y.astype(np.float64)
        error = x - wanted if x.shape == y.shape else wanted
        self._size += float(np.vdot(wanted, wanted))
        self._error += float(np.vdot(error, error))

    @property
    def relative(self) -> float:
        """0 if all agree, even where nothing is expected but zeros."""
        return float(np.sqrt(self._error / (self._size or 1.0)))


class Compared:
    """An output of several runs beside the expected one."""

    def __init__(self) -> None:
        self._errors = SquareErrors()
        self._entry: dict[str, Any] = {}

    def add(self, x: Array, y: Array, rtol: float, atol: float) -> None:
        """Compare the output of a run."""
        found = agreement(x, y, rtol, atol)
        before = self._entry
        if found.absolute is not None:
            self._errors.add(x, y)
        if before and not before["why"] and not found.why:
            found = Agreement(
                found.within and before["within"], max(found.absolute, before["absolute"]),
                max(found.relative, before["relative"]), "",
            )  # fmt: skip
        if not before or not before["why"]:
            self._entry = {"dtype": x.dtype.name, "shape": list(x.shape), **asdict(found)}

    def as_dict(self) -> dict[str, Any]:
        """Its dtype and shape, the greatest errors, and what differs, of the first run that does in
        more than numbers."""
        norm = None if self._entry["why"] else self._errors.relative
        return {**self._entry, "norm": norm}


@dataclass(frozen=True)
class Loss:
    """Relative errors at a layer."""

    name: str
    """Of its output."""
    before: float
    """The greatest error of what it reads."""
    after: float
    """The error of what it gives."""


class Layers:
    """The products and convolutions that two files have by the same names of values."""

    def __init__(self, path: Path, reference: Path) -> None:
        """Raises:
        ConfigurationError: the files have other outputs.
        """
        self._models = {file: whole(file) for file in (path, reference)}
        graphs = [self._models[file].graph for file in (path, reference)]
        self.outputs, others = ([x.name for x in graph.output] for graph in graphs)
        if self.outputs != others:
            raise ConfigurationError(
                f"{path} has the outputs {', '.join(self.outputs)}; {reference} {', '.join(others)}"
            )
        known = set.intersection(*({o for n in g.node for o in n.output} for g in graphs))
        self._read = {
            node.output[0]: [name for name in node.input if name in known]
            for node in graphs[1].node
            if node.op_type in LAYERS and node.output[0] in known
        }
        names = (name for y, read in self._read.items() for name in (*read, y))
        self._errors = {name: SquareErrors() for name in names}

    def observed(self, path: Path, folder: Path) -> Path:
        """A file in a folder that is one of the two with these values as further outputs."""
        onnx = import_module("onnx")
        model, target = self._models[path], folder / f"{len([*folder.iterdir()])}.onnx"
        known = {x.name for x in model.graph.output}
        further = [name for name in self._errors if name not in known]
        model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, further))
        onnx.save(model, target)
        return target

    def add(self, results: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
        """The outputs by name of a run of each file."""
        for name, errors in self._errors.items():
            errors.add(results[name], expected[name])

    def losses(self) -> list[Loss]:
        """Those whose errors grow most come first."""
        errors = {name: x.relative for name, x in self._errors.items()}
        found = [
            Loss(y, max((errors[x] for x in read), default=0.0), errors[y])
            for y, read in self._read.items()
        ]
        return sorted(found, key=lambda loss: loss.before - loss.after)
