"""Inputs and outputs of a model on one GPU: tensors there, or NumPy arrays that are copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ftuner.core.dtype import BFLOAT16, DType
from ftuner.errors import InputError, OperandError, UnsupportedKernelError
from ftuner.graph.ir import Array, Graph, Node, Value
from ftuner.runtime.backend import Boundary
from ftuner.runtime.cpu.arrays import as_array
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor, as_tensor
from ftuner.runtime.gpu.launching import is_capturing
from ftuner.runtime.ops.operands import check_names
from ftuner.runtime.reference import prepared


class GpuBoundary(Boundary):
    """Tensors stay on the device; outputs are tensors where an input is one, else arrays."""

    def __init__(self, graph: Graph, in_parts: bool, device: torch.device) -> None:
        self._inputs = graph.inputs
        self._names = [v.name for v in graph.inputs]
        self._device = device
        self._in_parts = in_parts
        self._only_tensors = ", ".join(n for n, v in graph.outputs if v.dtype == BFLOAT16)
        """Names of bfloat16 outputs, which NumPy arrays cannot hold."""

    def admitted(self, feeds: Mapping[str, object]) -> list[Any]:
        """The operands, on the device; see `runtime.backend.Boundary`.

        Raises:
            UnsupportedKernelError: a CUDA graph is being captured, and the run would wait for the
                device.
        """
        check_names(feeds, self._names)
        if is_capturing(self._device):
            host = [name for name, x in feeds.items() if not isinstance(x, torch.Tensor)]
            if host or self._in_parts:
                why = (
                    f"{', '.join(host)} lie in the CPU's memory" if host else "the host reads data"
                )
                raise UnsupportedKernelError(f"cannot be captured in a CUDA graph: {why}")
        if feeds and self._only_tensors and not _any_tensor(feeds):
            raise InputError(
                f"NumPy has no bfloat16, which the model gives as {self._only_tensors}; give "
                "an input as a torch tensor on the device, then outputs are tensors too"
            )
        return [self._tensor(v, feeds[v.name]) for v in self._inputs]

    def delivered(self, results: list[Any], feeds: Mapping[str, object]) -> list[Any]:
        if self._only_tensors or _any_tensor(feeds):
            return results
        return [x.cpu().numpy() for x in results]

    def evaluation(self, node: Node) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        run = prepared(node)

        def evaluate(operands: Sequence[Tensor]) -> list[Tensor]:
            known = [x.float() if x.dtype == torch.bfloat16 else x for x in operands]
            results = run([x.cpu().numpy() for x in known])
            return [self.moved(x, v.dtype) for x, v in zip(results, node.outputs, strict=True)]

        return evaluate

    def joined(self, operands: Sequence[Tensor]) -> Tensor:
        return torch.cat(tuple(operands))

    def moved(self, array: Array, dtype: DType) -> Tensor:
        if is_capturing(self._device):
            raise UnsupportedKernelError(
                "cannot be captured in a CUDA graph: each run has new numbers from the host"
            )
        # A copy: the array may be read-only, which torch warns of.
        found = torch.as_tensor(np.array(array), device=self._device)
        return found.to(TORCH_DTYPES[dtype.name])

    def _tensor(self, value: Value, given: object) -> Tensor:
        if value.dtype == BFLOAT16 and not isinstance(given, torch.Tensor):
            raise InputError(
                f"input {value.name} is bfloat16, which NumPy has not; give a torch tensor on "
                f"{self._device}"
            )
        try:
            if isinstance(given, torch.Tensor):
                x = as_tensor(given, value.name, self._device)
            else:
                x = torch.as_tensor(as_array(given, value.name).copy(), device=self._device)
        except OperandError as error:
            raise InputError(str(error)) from None
        expected = TORCH_DTYPES[value.dtype.name]
        if x.dtype != expected:
            raise InputError(f"input {value.name} has dtype {x.dtype}; the model takes {expected}")
        if x.dim() != value.rank:
            if value.rank == 0 and x.numel() == 1:
                return x.reshape(())
            raise InputError(
                f"input {value.name} is {tuple(x.shape)}; the model takes {value.type}"
            )
        return x.contiguous()


def _any_tensor(feeds: Mapping[str, object]) -> bool:
    return any(isinstance(x, torch.Tensor) for x in feeds.values())
