"""What kernels for a GPU of this machine are compiled for."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from ftuner.codegen.triton.compile import compile_kernel
from ftuner.codegen.triton.source import Source, load
from ftuner.codegen.triton.targets import Compiled, Resources, Target
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.frozen import dataclass
from ftuner.errors import HardwareError
from ftuner.runtime.backend import Tuned
from ftuner.runtime.compile_processes import Request, answers, worthwhile_processes
from ftuner.runtime.gpu.launching import FixedLaunch, native_launch
from ftuner.runtime.shown_progress import Progress, shown


def target_of(device: torch.device) -> Target:
    """Returns the target of a CUDA device, as its driver describes it."""
    with torch.cuda.device(device):
        found = triton.runtime.driver.active.get_current_target()
    return Target(found.backend, found.arch, found.warp_size)


COMPILER_MODULE = "ftuner.codegen.triton.compile"
WORD_BYTES = 4
"""Triton counts spills in registers."""
INTERPRETER_VARIABLE = "TRITON_INTERPRET"
INTERPRETED = os.environ.get(INTERPRETER_VARIABLE, "0") not in ("", "0")
"""Whether Triton's interpreter runs kernels, on tensors in the CPU's memory."""

Geometry = tuple[list[int], list[int], list[int]]
"""Extents, strides and block of a tensor descriptor."""
LATE = object()
"""In the place of an argument that depends on the launch, such as the memory of partial sums."""


class _Address(int):
    """A pointer among the arguments of a launch."""


@dataclass(frozen=True)
class _Memory:
    """The memory of a tensor, which a descriptor refers to without keeping the tensor."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


class _Described(TensorDescriptor):  # type: ignore[misc]
    """A descriptor of aligned memory. Plans settle what Triton would check for each."""

    def __post_init__(self) -> None:
        pass


class Kernel:
    """A compiled kernel. `kernel(programs, *arguments)` launches it on the current stream."""

    def __init__(self, source: Source, device: torch.device, target: Target | None) -> None:
        """Compiles a source, or takes it from Triton's cache; without a target it is interpreted.

        Raises:
            HardwareError: Triton cannot compile it, or it exceeds the device's resources.
        """
        self.device = device
        self.cached = False
        """Whether Triton's cache had it."""
        self._function: Any = None
        self._compiled: Any = None
        if target is None:
            self._function = load(source)
            return
        try:
            with torch.cuda.device(device):
                self._compiled, self.cached = compile_kernel(source, target)
                # Loads the machine code now rather than at the first launch.
                self._compiled._init_handles()
        except Exception as error:  # Triton raises whatever its passes, LLVM and ptxas raise.
            raise HardwareError(f"{source.function} cannot run on {device}: {error}") from error

    def __call__(self, programs: int, *arguments: Any) -> None:
        if self._function is not None:
            self._function[(programs,)](*arguments)
        elif torch.cuda.current_device() == self.device.index:
            self._compiled[(programs, 1, 1)](*arguments)
        else:
            with torch.cuda.device(self.device):
                self._compiled[(programs, 1, 1)](*arguments)

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs it. Arguments are then tensors, else addresses."""
        return self._function is not None

    def argument(self, x: torch.Tensor, geometry: Geometry | None = None) -> Any:
        """Returns what a launch is given for a tensor, or for a descriptor of it. The caller keeps
        the tensor until the launch."""
        if geometry is not None:
            if self.interpreted:
                return TensorDescriptor(x, *geometry)
            return _Described(_Memory(x.data_ptr(), x.dtype), *geometry)
        return x if self.interpreted else _Address(x.data_ptr())

    def fixed(self, programs: int, arguments: Sequence[Any]) -> FixedLaunch:
        """Returns the launch with these arguments."""
        found = None
        if not self.interpreted:
            found = native_launch(self._compiled, self.device, programs, arguments)
        return partial(self, programs, *arguments) if found is None else found

    @property
    def resources(self) -> Resources | None:
        """The resources that the driver reports; None if the kernel is interpreted."""
        if self._compiled is None:
            return None
        found, registers = self._compiled, self._compiled.n_regs
        threads = found.metadata.num_warps * found.metadata.target.warp_size
        return Resources(threads, registers, WORD_BYTES * found.n_spills, found.metadata.shared)


class BoundKernel:
    """A kernel with its arguments."""

    launch: FixedLaunch
    """Launches the kernel on the current stream."""

    def __init__(
        self, kernel: Kernel, programs: int, arguments: Sequence[Any],
        late: Callable[[], Sequence[torch.Tensor]] | None = None,
        scratch: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """`arguments`: of `Kernel.argument`, numbers, and `LATE` in the place of each tensor that
        `late` returns for a launch. `scratch`: what `late` takes of a `Scratch`."""
        self.kernel = kernel
        self.scratch = scratch
        self._programs = programs
        self._arguments = arguments
        self._late = late
        self._bound: tuple[list[int], FixedLaunch] | None = None
        self.launch = kernel.fixed(programs, arguments) if late is None else self._launch

    def moved(self, place: Callable[[int], int]) -> BoundKernel:
        """Returns the launch of the compiled kernel with `place(address)` for each address."""

        def argument(x: Any) -> Any:
            if isinstance(x, _Address):
                return _Address(place(x))
            if isinstance(x, _Described):
                memory = _Memory(place(x.base.address), x.base.dtype)
                return _Described(memory, x.shape, x.strides, x.block_shape)
            return x

        arguments = [*map(argument, self._arguments)]
        return BoundKernel(self.kernel, self._programs, arguments, self._late, self.scratch)

    def _launch(self) -> None:
        assert self._late is not None
        # They are referenced here until the launch; then the stream orders their reuse.
        tensors = self._late()
        places = [x.data_ptr() for x in tensors]
        bound = self._bound
        if bound is None or bound[0] != places:
            given = map(self.kernel.argument, tensors)
            arguments = [next(given) if x is LATE else x for x in self._arguments]
            bound = places, self.kernel.fixed(self._programs, arguments)
            if not self.kernel.interpreted:
                # One value, because another thread may launch on another stream meanwhile.
                self._bound = bound
        bound[1]()


class Kernels:
    """All kernels of one device. Safe to use from several threads."""

    def __init__(
        self, device: torch.device, target: Target | None, sources_per_process: int
    ) -> None:
        """`target`: None to interpret kernels. `sources_per_process`: as in `GpuTuning`."""
        self._sources_per_process = sources_per_process
        self.device = device
        self._target = target
        self._kernels: dict[Source, Kernel] = {}
        self._lock = fork_safe_lock()

    def __len__(self) -> int:
        """The number of kernels so far."""
        return len(self._kernels)

    def kernel(self, source: Source) -> Kernel:
        """Returns a kernel; compiles it if it was not prepared."""
        found = self._kernels.get(source)
        if found is None:
            with self._lock:
                found = self._kernels.get(source)
                if found is None:
                    found = Kernel(source, self.device, self._target)
                    self._kernels[source] = found
        return found

    def prepare(self, sources: Sequence[Source], progress: Progress | None = None) -> Tuned:
        """Compiles the sources that have no kernel yet, in parallel processes."""
        wanted = list(dict.fromkeys(sources))
        compiled = 0
        with self._lock:
            missing = [source for source in wanted if source not in self._kernels]
            if missing and self._target is not None:
                compiled = _fill_cache(missing, self._target, self._sources_per_process, progress)
            compiled += sum(not self.kernel(source).cached for source in missing)
        return Tuned(compiled, len(wanted) - compiled)


def _fill_cache(
    sources: Sequence[Source], target: Target, sources_per_process: int, progress: Progress | None
) -> int:
    """Compiles sources in child processes, which fills Triton's cache; returns the number that it
    did not have."""
    processes = worthwhile_processes(len(sources), sources_per_process)
    if processes < 2:
        return 0
    requests = [Request(source.function, (source, target)) for source in sources]
    environment = {k: v for k, v in os.environ.items() if k != INTERPRETER_VARIABLE}
    done = compiled = 0
    found = answers(COMPILER_MODULE, requests, processes, environment)
    with shown(progress) as show, closing(found):
        for _, answer in found:
            # Errors are raised when this process compiles the source.
            one: Compiled = pickle.loads(answer)
            done += 1
            compiled += not (one.cached or one.error)
            show("compile", done, len(sources))
    return compiled
