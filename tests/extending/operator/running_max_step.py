"""The running maximum along the last axis: y[..., i] = max(x[..., :i + 1])."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ftuner.core.dim import Dim, product
from ftuner.errors import GraphError
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import Attributes, Operator, Require
from ftuner.graph.operators import register_operator
from ftuner.graph.placement import Placement
from ftuner.graph.schedules import Schedule, register_schedule
from ftuner.graph.steps import DimText, ViewStep


@dataclass(frozen=True)
class RunningMaxStep(ViewStep):
    kind: ClassVar[str] = "running_max"
    results: ClassVar[tuple[str, ...]] = ("y",)
    title: str
    x: View
    """Contiguous, but for an offset."""
    y: Buffer
    rows: Dim
    count: Dim
    """Elements of a row."""

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernels read at run time."""
        return (self.count, self.x.layout.offset)

    def described(self, text: DimText) -> str:
        return f"[{text(self.rows)}, {text(self.count)}]"


def infer(
    types: Sequence[TensorType], attributes: Attributes, require: Require
) -> tuple[TensorType]:
    (x,) = types
    if x.rank == 0 or x.dtype.kind != "float":
        raise GraphError(f"running_max of {x}")
    return (x,)


def lower(node: Node, placement: Placement) -> tuple[View]:
    """Add the step, and say where the result is."""
    (x,) = node.inputs
    y = placement.place(node.output)
    operand = placement.contiguous(x, y.layout.dtype)
    rows, count = product(x.shape[:-1]), x.shape[-1]
    placement.add(RunningMaxStep("running_max", operand, y.buffer, rows, count))
    return (y,)


def reference(x: np.ndarray) -> np.ndarray:
    return np.maximum.accumulate(x, axis=-1)


register_operator(Operator("running_max", infer, reference, lower=lower))
register_schedule(Schedule("running_max", prefix="running_max_"))
