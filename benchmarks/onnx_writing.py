"""Nodes and constants of a model as they come, and the idioms that exporters write them in."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
OPSET = 17
"""The first with LayerNormalization."""
IR_VERSION = 8
"""That of the opset."""
Dims = list[str | int | None]


class Writer:
    """The nodes and initialisers of a model."""

    def __init__(self) -> None:
        self._initialisers: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._known: dict[tuple[str, bytes], str] = {}

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; the name of its output, or of each."""
        names = [f"{op.lower()}_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """A small tensor within the model, each once."""
        array = np.asarray(value, dtype)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._known:
            self._known[key] = f"constant_{len(self._known)}"
            self._initialisers.append(numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def number(self, value: float) -> str:
        return self.constant(value, np.float32)

    def extent(self, x: str, axis: int) -> str:
        """One extent of a tensor, as a tensor of one element."""
        whole = self.node("Shape", x)
        found = self.node("Gather", whole, self.constant(axis), axis=0)
        return str(self.node("Unsqueeze", found, self.constant([0])))

    def reshaped(self, x: str, *extents: str | int) -> str:
        """In a shape of numbers and of extents that are known by name."""
        parts = [self.constant([n]) if isinstance(n, int) else n for n in extents]
        return str(self.node("Reshape", x, self.node("Concat", *parts, axis=0)))

    def heads(self, x: str, batch: str, length: str, count: int, depth: int) -> str:
        """`(batch, length, count * depth)` as `(batch, count, length, depth)`."""
        apart = self.reshaped(x, batch, length, count, depth)
        return str(self.node("Transpose", apart, perm=[0, 2, 1, 3]))

    def attention(self, q: str, k: str, v: str, depth: int, mask: str | None = None) -> str:
        """Softmax of the scores, with their mask if there is one, by the values."""
        turned = self.node("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.node("MatMul", q, turned)
        scores = self.node("Div", scores, self.number(depth**0.5))
        if mask is not None:
            scores = self.node("Add", scores, mask)
        weights = self.node("Softmax", scores, axis=-1)
        return str(self.node("MatMul", weights, v))

    def model(
        self, inputs: dict[str, tuple[int, Dims]], outputs: dict[str, Dims]
    ) -> onnx.ModelProto:
        """The model so far. `inputs`: element types and dims by name; `outputs`: dims of float32
        values by name."""
        graph = helper.make_graph(
            self._nodes, "model",
            [helper.make_tensor_value_info(n, t, d) for n, (t, d) in inputs.items()],
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d)
             for n, d in outputs.items()],
            self._initialisers,
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
