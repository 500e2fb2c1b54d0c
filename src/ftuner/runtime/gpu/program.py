"""A graph bound to extents: launches, which are recorded where a shape comes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.hardware.model import GpuHardware
from ftuner.runtime.gpu.arrays import Tensor, allocated
from ftuner.runtime.gpu.cuda_graphs import FixedLaunch, Recorder

Launch = Callable[[Sequence[Tensor]], None]
"""What a step does, given the inputs and outputs of the run."""


class _Recorded:
    """Launches on tensors that stay where they are."""

    def __init__(
        self, launches: Sequence[Launch], inputs: Sequence[Tensor], outputs: Sequence[Tensor],
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self._inputs = [torch.empty_like(x) for x in inputs]
        self._outputs = list(outputs)
        given = [*self._inputs, *self._outputs]

        def work() -> None:
            for launch in launches:
                launch(given)

        self._replay: FixedLaunch = recorder.record(work)

    @property
    def memory(self) -> list[Tensor]:
        return [*self._inputs, *self._outputs]

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for kept, x in zip(self._inputs, inputs, strict=True):
            kept.copy_(x)
        self._replay()
        return [y.clone() for y in self._outputs]


class Program:
    """Launches for one set of extents. Runs follow each other, on streams that wait for the one
    before."""

    def __init__(
        self, launches: Sequence[Launch], outputs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        device: torch.device, hardware: GpuHardware,
    ) -> None:  # fmt: skip
        """`outputs`: shapes and dtypes."""
        self._launches = launches
        self._outputs = outputs
        self._device = device
        self._bytes_per_s = hardware.dram_bandwidth_bytes_per_s
        self._tuning = hardware.tuning
        self._recorded: _Recorded | None = None
        self._runs = 0
        self._worth_recording = True

    @property
    def launches(self) -> int:
        """How many there are."""
        return len(self._launches)

    @property
    def memory(self) -> list[Tensor]:
        """What the program keeps on the device for itself: nothing unless it is recorded."""
        return [] if self._recorded is None else self._recorded.memory

    @property
    def kept_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.memory)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, on the current stream."""
        if self._recorded is not None:
            return self._recorded.run(inputs)
        self._runs += 1
        outputs = self._made()
        given = [*map(_aligned, inputs), *outputs]
        for launch in self._launches:
            launch(given)
        return outputs

    def is_due(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the program is to be recorded before it runs again: it has come often enough,
        and its launches take longer than copying inputs and outputs, to and from where recorded
        ones find them."""
        if self._recorded is not None or not self._worth_recording:
            return False
        if self._runs < self._tuning.recorded_run - 1:
            return False
        copies = len(inputs) + len(self._outputs)
        copied_s = 2 * self.bytes_to_keep(inputs) / self._bytes_per_s
        launch_s = self._tuning.host_launch_s
        recorded_s = self._tuning.replay_s + copies * launch_s + copied_s
        self._worth_recording = len(self._launches) * launch_s > recorded_s
        return self._worth_recording

    def bytes_to_keep(self, inputs: Sequence[Tensor]) -> int:
        """Of inputs and outputs of its own, if the program is recorded."""
        elements = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self._outputs]
        return sum(elements) + sum(x.numel() * x.element_size() for x in inputs)

    def record(self, inputs: Sequence[Tensor], recorder: Recorder) -> None:
        """Raises what the recorder raises; the program then stays as it is, and is never due."""
        self._worth_recording = False
        self._recorded = _Recorded(self._launches, inputs, self._made(), recorder)

    def forget(self) -> None:
        """Give back what the program keeps; it may be recorded again when it has come as often."""
        self._recorded = None
        self._runs = 0
        self._worth_recording = True

    def _made(self) -> list[Tensor]:
        try:
            return [torch.empty(s, dtype=t, device=self._device) for s, t in self._outputs]
        except RuntimeError:
            # Which one it is.
            return [allocated(s, t, self._device) for s, t in self._outputs]


def _aligned(x: Tensor) -> Tensor:
    """The tensor, or a copy at an address that kernels take."""
    return x.clone() if x.data_ptr() % ALIGNMENT_BYTES else x
