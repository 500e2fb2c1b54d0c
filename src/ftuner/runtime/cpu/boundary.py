"""Inputs and outputs of a model on the CPU: NumPy arrays, or torch's tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dtype import BFLOAT16, STRING, DType
from ftuner.errors import DTypeError, InputError, OperandError
from ftuner.graph.appending import Appended
from ftuner.graph.arrays import texts
from ftuner.graph.ir import Graph, Node, TensorType
from ftuner.runtime.backend import Boundary
from ftuner.runtime.cpu.arrays import DATA_WORD, Array, any_tensor, as_array, numpy_dtype, tensor_of
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.memory import NO_MEMORY, not_allocated
from ftuner.runtime.ops.operands import check_names
from ftuner.runtime.reference import prepared

OBJECTS = np.dtype(object)
Evaluation = Callable[[Sequence[Array]], list[Array]]
"""What computes the results of a node."""


class CpuBoundary(Boundary):
    """Check arrays, and copy those that are not aligned and contiguous, but for those that outputs
    append to. Outputs are tensors where an input is one."""

    def __init__(self, graph: Graph, appended: Sequence[Appended], kernels: Kernels) -> None:
        self._kernels = kernels
        self._names = [v.name for v in graph.inputs]
        self._set_of_names = frozenset(self._names)
        any_strides = {pair.input for pair in appended}
        self._forms = [
            _Form(
                v.name, None if v.dtype == STRING else numpy_dtype(v.dtype), v.rank,
                number in any_strides, v.type,
            )
            for number, v in enumerate(graph.inputs)
        ]  # fmt: skip
        strings = [v for v in graph.inputs if v.dtype == STRING]
        self._are_texts = kernels.runtime.are_texts if strings else None
        self._gives_strings = any(v.dtype == STRING for _, v in graph.outputs)
        """Whether an output may show the memory of an input, which is then copied."""
        self._maps = [i for i, (_, v) in enumerate(graph.outputs) if v.dtype.kind == "map"]
        """The outputs that are lists of maps."""

    def admitted(self, feeds: Mapping[str, object]) -> list[Any]:
        # Comparing sets takes a third of the time of looking for each name.
        if type(feeds) is not dict or feeds.keys() != self._set_of_names:
            check_names(feeds, self._names)
        arrays = []
        for form in self._forms:
            name, quick, rank, any_strides, _ = form
            x = feeds[name]
            # Most inputs are as they should be, and a call may have hundreds.
            if (
                type(x) is np.ndarray
                and x.dtype is quick
                and x.ndim == rank
                and (any_strides or x.flags.carray)
            ):
                arrays.append(x)
            elif quick is None and type(x) is np.ndarray and self._is_admitted(x, rank):
                arrays.append(x.copy() if self._gives_strings else x)
            else:
                arrays.append(_admitted(x, form))
        return arrays

    def _is_admitted(self, x: Array, rank: int) -> bool:
        """Whether an array is of strings in row-major order."""
        assert self._are_texts is not None
        if x.dtype != OBJECTS or x.ndim != rank or not x.flags.carray:
            return False
        return bool(self._are_texts(id(x) + DATA_WORD, x.size, id(str)))

    def delivered(self, results: list[Any], feeds: Mapping[str, object]) -> list[Any]:
        if "torch" in sys.modules and any_tensor(*feeds.values()):
            results = [x if x.dtype.hasobject else tensor_of(x) for x in results]
        for number in self._maps:
            results[number] = results[number].tolist()
        return results

    def evaluation(self, node: Node) -> Evaluation:
        run = prepared(node)
        if "words" in node.attributes:
            # Imported by name: few models look up strings.
            words = import_module("ftuner.runtime.cpu.words")
            found: Evaluation | None = words.evaluation(node, run, self._kernels.runtime.find_words)
            return found or run
        if all(v.dtype != BFLOAT16 for v in node.outputs):
            return run
        dtypes = [numpy_dtype(v.dtype) for v in node.outputs]
        return lambda operands: list(map(np.asarray, run(operands), dtypes))

    def moved(self, array: Array, dtype: DType) -> Array:
        return np.asarray(array, numpy_dtype(dtype), order="C")

    def joined(self, operands: Sequence[Array]) -> Array:
        return operands[0] if len(operands) == 1 else np.concatenate(operands)


class _Form(NamedTuple):
    """What is admitted as an input."""

    name: str
    dtype: np.dtype[Any] | None
    """None for strings, which are converted."""
    rank: int
    any_strides: bool
    type: TensorType


def _admitted(given: object, form: _Form) -> Array:
    """An input as programs read it, copied if it is not aligned and contiguous.

    Raises:
        InputError: it is not an array, or has another dtype or number of axes.
        AllocationError: the system does not have the memory for a copy.
    """
    name, dtype, rank, any_strides, type_ = form
    try:
        x = as_array(given, name)
    except (OperandError, DTypeError) as error:
        raise InputError(str(error)) from None
    if dtype is None:
        x, dtype = texts(x) if x.dtype.kind in "OSUT" else x, OBJECTS
    if x.dtype != dtype:
        raise InputError(f"input {name} has dtype {x.dtype}; the model takes {dtype}")
    if rank == 0 and x.size == 1:
        x = x.reshape(())
    if x.ndim != rank:
        raise InputError(f"input {name} is {x.shape}; the model takes {type_}")
    # NumPy's `require` takes a microsecond to find that nothing is to be done.
    if any_strides or x.flags.carray:
        return x
    try:
        return np.require(x, requirements=["C", "A"])
    except NO_MEMORY as error:
        raise not_allocated(x.shape, dtype, error) from error
