"""Inputs and outputs of a model on the CPU: NumPy arrays, or torch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.dtype import STRING, DType
from ftuner.errors import DTypeError, InputError, OperandError
from ftuner.graph.appending import Appended
from ftuner.graph.arrays import texts
from ftuner.graph.ir import Graph, Node
from ftuner.runtime.backend import Boundary
from ftuner.runtime.cpu.arrays import Array, as_array
from ftuner.runtime.cpu.memory import NO_MEMORY, not_allocated
from ftuner.runtime.cpu.numpy_types import numpy_dtype
from ftuner.runtime.cpu.tensors import any_tensor, tensor_of
from ftuner.runtime.ops.feeds import check_names
from ftuner.runtime.reference import node_results


class CpuBoundary(Boundary):
    """Check arrays, and copy those that are not aligned and contiguous, but for those that outputs
    append to. Outputs are tensors where an input is one."""

    def __init__(self, graph: Graph, appended: Sequence[Appended]) -> None:
        self._inputs = graph.inputs
        as_given = {pair.input for pair in appended}
        self._as_given = [number in as_given for number in range(len(graph.inputs))]
        self._names = [v.name for v in graph.inputs]
        self._dtypes = [numpy_dtype(v.dtype) for v in graph.inputs]
        self._maps = [i for i, (_, v) in enumerate(graph.outputs) if v.dtype.kind == "map"]
        """The outputs that are lists of maps."""

    def admitted(self, feeds: Mapping[str, object]) -> list[Any]:
        check_names(feeds, self._names)
        arrays = []
        for name, dtype, value, as_given in zip(
            self._names, self._dtypes, self._inputs, self._as_given, strict=True
        ):
            try:
                x = as_array(feeds[name], name)
            except (OperandError, DTypeError) as error:
                raise InputError(str(error)) from None
            if value.dtype == STRING and x.dtype.kind in "OSUT":
                x = texts(x)
            if x.dtype != dtype:
                raise InputError(f"input {name} has dtype {x.dtype}; the model takes {dtype}")
            if value.rank == 0 and x.size == 1:
                x = x.reshape(())
            if x.ndim != value.rank:
                raise InputError(f"input {name} is {x.shape}; the model takes {value.type}")
            # NumPy's `require` takes a microsecond to find that nothing is to be done.
            if as_given or x.flags.carray:
                arrays.append(x)
                continue
            try:
                arrays.append(np.require(x, requirements=["C", "A"]))
            except NO_MEMORY as error:
                raise not_allocated(x.shape, dtype, error) from error
        return arrays

    def delivered(self, results: list[Any], feeds: Mapping[str, object]) -> list[Any]:
        if any_tensor(*feeds.values()):
            results = [x if x.dtype.hasobject else tensor_of(x) for x in results]
        for number in self._maps:
            results[number] = results[number].tolist()
        return results

    def evaluated(self, node: Node, operands: Sequence[Array]) -> list[Array]:
        results = node_results(node, operands)
        return [
            np.asarray(x, numpy_dtype(v.dtype)) for x, v in zip(results, node.outputs, strict=True)
        ]

    def moved(self, array: Array, dtype: DType) -> Array:
        return np.asarray(array, numpy_dtype(dtype), order="C")

    def joined(self, operands: Sequence[Array]) -> Array:
        return operands[0] if len(operands) == 1 else np.concatenate(operands)
