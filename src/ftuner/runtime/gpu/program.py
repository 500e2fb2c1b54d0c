"""A graph bound to extents: launches, which are recorded if the shape repeats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial

import torch

from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.runtime.gpu.arrays import Tensor, allocated
from ftuner.runtime.gpu.kernels import BoundKernel
from ftuner.runtime.gpu.launching import FixedLaunch, Recorder, device_seconds
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.kept_memory import Memory

HELD_MARGIN = 5.0
"""Times `GpuTuning.host_launch_s` for which the device is held for each launch that is timed.
Assumed: an event and the step's own Python come on top of a launch."""

MAX_PLACES = 16
"""Addresses of inputs and outputs for which a step keeps its launches. An allocator gives few in
turns."""


class Launch(ABC):
    """A step at known extents. Calling it launches the step on the current stream; `arrays` are the
    inputs and outputs of the run."""

    count: int = 1
    """How many kernels a call launches, about: what recording saves is by this."""

    @abstractmethod
    def __call__(self, arrays: Sequence[Tensor]) -> None: ...

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        """Bytes of the device that a call needs meanwhile: copies of operands, partial sums."""
        return 0

    @property
    def scratch(self) -> tuple[int, int]:
        """Returns the float32 values and the counters that a call takes of a `Scratch`; none before
        the first call."""
        return 0, 0


class KernelLaunch(Launch):
    """A step of kernels alone, which it binds to its arguments once for each place of the run's
    arrays."""

    def __init__(self, memories: Sequence[Tensor | int]) -> None:
        """`memories`: of operands: tensors that stay, or numbers of arrays of the run."""
        self._moving = [x for x in memories if isinstance(x, int)]
        self._bound: dict[tuple[int, ...], Sequence[BoundKernel]] = {}

    @abstractmethod
    def launched(self, arrays: Sequence[Tensor]) -> Sequence[BoundKernel] | None:
        """Launches the step; returns the launches, or None if they cannot be repeated."""

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        moving = self._moving
        places = tuple([arrays[number].data_ptr() for number in moving]) if moving else ()
        bound = self._bound.get(places)
        if bound is not None:
            for each in bound:
                each.launch()
            return
        bound = self.launched(arrays)
        # Interpreted kernels would keep the arrays of the run.
        if bound is not None and not (places and any(x.kernel.interpreted for x in bound)):
            if len(self._bound) >= MAX_PLACES:
                self._bound.clear()
            self._bound[places] = bound

    @property
    def scratch(self) -> tuple[int, int]:
        taken = [x.scratch for bound in self._bound.values() for x in bound]
        return largest(taken)


def largest(taken: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Returns what suffices for each of some launches that follow each other."""
    floats, counters = zip((0, 0), *taken, strict=True)
    return max(floats), max(counters)


class _Recorded:
    """Recorded launches, on inputs and outputs of their own."""

    def __init__(
        self, launches: Sequence[Launch], inputs: Sequence[Tensor], outputs: Sequence[Tensor],
        recorder: Recorder, scratch: Scratch,
    ) -> None:  # fmt: skip
        # A capture allocates and clears nothing: the launches share memory of this program.
        self._scratch = scratch.made(*largest(launch.scratch for launch in launches))
        self._inputs = [torch.empty_like(x) for x in inputs]
        self._outputs = list(outputs)
        given = [*self._inputs, *self._outputs]

        def work() -> None:
            for launch in launches:
                launch(given)

        with scratch.used(self._scratch):
            self._replay: FixedLaunch = recorder.record(work)

    @property
    def memory(self) -> list[Tensor]:
        return [*self._inputs, *self._outputs, *self._scratch]

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for kept, x in zip(self._inputs, inputs, strict=True):
            kept.copy_(x)
        self._replay()
        return [y.clone() for y in self._outputs]


class Program:
    """Launches for one set of extents. Runs follow each other: the caller orders streams."""

    def __init__(
        self, steps: Sequence[Launch | None],
        outputs: Sequence[tuple[tuple[int, ...], torch.dtype]], device: torch.device,
        hardware: GpuHardware, scratch: Scratch, arena_bytes: int = 0,
    ) -> None:  # fmt: skip
        """`steps`: a launch for each step, None where a step has nothing to do. `outputs`: shapes
        and dtypes. `arena_bytes`: what the buffers of the program take of the arena."""
        self._steps = steps
        self._launches = [launch for launch in steps if launch is not None]
        self._outputs = outputs
        self._arena_bytes = arena_bytes
        self._device = device
        self._bytes_per_s = hardware.dram_bandwidth_bytes_per_s
        queueing_s = HELD_MARGIN * hardware.tuning.host_launch_s * max(len(steps), self.launches)
        self._held_cycles = int(queueing_s * hardware.clock_hz)
        self._tuning = hardware.tuning
        self._scratch = scratch
        self._recorded: _Recorded | None = None
        self._runs = 0
        self._worth_recording = True

    @property
    def launches(self) -> int:
        """The number of launches."""
        return sum(launch.count for launch in self._launches)

    @property
    def memory(self) -> list[Tensor]:
        """The program's own tensors on the device; none unless it is recorded."""
        return [] if self._recorded is None else self._recorded.memory

    @property
    def kept_bytes(self) -> int:
        return sum(x.nbytes for x in self.memory)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Launches the program on the current stream; returns the outputs."""
        if self._recorded is not None:
            return self._recorded.run(inputs)
        self._runs += 1
        outputs = self._made()
        given = [*map(aligned_copy, inputs), *outputs]
        for launch in self._launches:
            launch(given)
        return outputs

    def timed(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[float]]:
        """Launches the steps and waits for them; returns the outputs, and the device's time for
        each step."""
        outputs = self._made()
        given = [*map(aligned_copy, inputs), *outputs]
        launches = [partial(step, given) if step else lambda: None for step in self._steps]
        return outputs, device_seconds(self._device, launches, self._held_cycles)

    def memory_use(self, inputs: Sequence[Tensor], weights_bytes: int) -> Memory:
        """Returns the bytes that a run takes, and that recording the program takes."""
        given = [*map(aligned_copy, inputs), *self._made()]
        workspaces = [launch.workspace_bytes(given) for launch in self._launches]
        return Memory(
            weights_bytes=weights_bytes,
            arena_bytes=self._arena_bytes,
            workspace_bytes=max(workspaces, default=0),
            attention_worker_bytes=0,
            outputs_bytes=sum(x.nbytes for x in given[len(inputs) :]),
            records_bytes=self.kept_bytes,
        )

    def is_due(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the program should be recorded now: it has run often enough, and its launches
        take longer than a replay with copies of inputs and outputs."""
        if self._recorded is not None or not self._worth_recording:
            return False
        if self._runs < self._tuning.recorded_run - 1:
            return False
        copies = len(inputs) + len(self._outputs)
        copied_s = 2 * self.bytes_to_keep(inputs) / self._bytes_per_s
        launch_s = self._tuning.host_launch_s
        recorded_s = self._tuning.replay_s + copies * launch_s + copied_s
        self._worth_recording = self.launches * launch_s > recorded_s
        return self._worth_recording

    def bytes_to_keep(self, inputs: Sequence[Tensor]) -> int:
        """Returns the bytes of inputs and outputs that recording would keep."""
        elements = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self._outputs]
        return sum(elements) + sum(x.nbytes for x in inputs)

    def record(self, inputs: Sequence[Tensor], recorder: Recorder) -> None:
        """Records the program. Raises what the recorder raises; the program is then never due."""
        self._worth_recording = False
        self._recorded = _Recorded(self._launches, inputs, self._made(), recorder, self._scratch)

    def forget(self) -> None:
        """Drops the recording. The program may be recorded again after as many runs."""
        self._recorded = None
        self._runs = 0
        self._worth_recording = True

    def _made(self) -> list[Tensor]:
        try:
            return [torch.empty(s, dtype=t, device=self._device) for s, t in self._outputs]
        except RuntimeError:
            # The error names the tensor.
            return [allocated(s, t, self._device) for s, t in self._outputs]


def aligned_copy(x: Tensor) -> Tensor:
    """Returns the tensor, or a copy at an aligned address."""
    return x.clone() if x.data_ptr() % ALIGNMENT_BYTES else x
