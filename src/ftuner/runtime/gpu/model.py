"""Models on one GPU: what is loaded from a file, run at any extents on tensors or NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ftuner.core.dtype import BFLOAT16, DType
from ftuner.errors import InputError, OperandError, UnsupportedKernelError
from ftuner.graph.ir import Graph, Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.splitting import split
from ftuner.graph.steps import Step
from ftuner.runtime.backend import Progress
from ftuner.runtime.cpu.arrays import as_array
from ftuner.runtime.cpu.model import Loaded, check_names
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor, as_tensor
from ftuner.runtime.gpu.backend import GpuSession
from ftuner.runtime.gpu.cuda_graphs import is_capturing
from ftuner.runtime.gpu.executable import GpuGraph


class GpuModel(Loaded):
    """A graph compiled for one GPU. Safe to use from several threads."""

    def __init__(
        self, graph: Graph, session: GpuSession, progress: Progress | None = None,
        dtype: DType | None = None,
    ) -> None:  # fmt: skip
        """Compile a graph. `dtype`: what float32 is held in, if not as it is.

        Raises:
            UnsupportedOperatorError: steps that have no kernel on a GPU.
            HardwareError: an element type that the chip does not multiply.
        """
        parts = split(graph)
        super().__init__(graph, parts)
        self._device = session.device
        self._only_tensors = ", ".join(n for n, v in graph.outputs if v.dtype == BFLOAT16)
        """Outputs that no NumPy array holds."""
        self.parts = [GpuGraph(part.graph, session, progress, dtype) for part in parts]
        """Compiled graphs that run one after the other: several where an extent depends on data."""

    @property
    def threads(self) -> int:
        """Of the CPU, that a run uses: the caller's."""
        return 1

    def record(self, wanted: bool) -> None:
        """Whether shapes that come again are recorded as CUDA graphs, as they are by default;
        recordings hold memory for inputs and outputs of their own."""
        for part in self.parts:
            part.recording = wanted

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of a run, in order."""
        return tuple(step for part in self.parts for step in part.lowered.steps)

    def run(self, feeds: Mapping[str, object]) -> list[Any]:
        """Run the model on the current stream; returns the outputs in order.

        Args:
            feeds: for each input, by name, a tensor on the GPU or an array in the CPU's memory.

        Returns:
            Tensors on the GPU if any input was one, or there is none and an output is bfloat16;
            else NumPy arrays.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes; only arrays
                are given, and an output is bfloat16, which NumPy has not.
            ShapeError: extents that contradict the model.
            IndexRangeError: an index in the data that is out of range.
            UnsupportedKernelError: what waits for the device while a CUDA graph is captured:
                arrays, or an extent that depends on data.
        """
        check_names(feeds, [v.name for v in self._graph.inputs])
        on_device = any(isinstance(x, torch.Tensor) for x in feeds.values())
        if is_capturing(self._device):
            host = [name for name, x in feeds.items() if not isinstance(x, torch.Tensor)]
            if host or len(self.parts) > 1:
                why = (
                    f"{', '.join(host)} lie in the CPU's memory" if host else "extents are in data"
                )
                raise UnsupportedKernelError(f"cannot be captured in a CUDA graph: {why}")
        if not on_device and self._only_tensors:
            if feeds:
                raise InputError(
                    f"NumPy has no bfloat16, which the model gives as {self._only_tensors}; give "
                    "an input as a torch tensor on the device, and outputs are tensors too"
                )
            on_device = True
        arrays = [self._tensor(v, feeds[v.name]) for v in self._graph.inputs]
        results = self._through(arrays)
        if on_device:
            return results
        return [x.cpu().numpy() for x in results]

    def _through(self, arrays: list[Tensor]) -> list[Tensor]:
        if len(self.parts) == 1:
            return self.parts[0].run(arrays)
        known: dict[Value, Tensor] = dict(zip(self._graph.inputs, arrays, strict=True))
        results: list[Tensor] = []
        for part, node in zip(self.parts, self._nodes, strict=True):
            results = part.run([known[v] for v in part.graph.inputs])
            if node is not None:
                known.update(zip((v for _, v in part.graph.outputs), results, strict=True))
                # Between two programs, NumPy finds what decides the extents of the second.
                data = results[0].float() if node.inputs[0].dtype == BFLOAT16 else results[0]
                found = OPERATORS[node.op].reference(data.cpu().numpy(), **node.attributes)
                known[node.output] = torch.as_tensor(found.copy(), device=self._device)
        return results

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
            raise InputError(
                f"input {value.name} is {tuple(x.shape)}; the model takes {value.type}"
            )
        return x.contiguous()
