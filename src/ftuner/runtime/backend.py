"""The contract of a back end: what one device offers to the rest of ftuner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import cached_property
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    SupportsFloat,
    SupportsIndex,
    get_args,
)

from ftuner.core.dtype import DType
from ftuner.core.expr import Expr
from ftuner.core.frozen import dataclass
from ftuner.errors import SavedModelError
from ftuner.hardware.model import CpuHardware
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.ops.layer import Activation, Layer
from ftuner.runtime.ops.operands import Groups
from ftuner.runtime.shown_progress import Progress

if TYPE_CHECKING:
    from ftuner.codegen.llvm.objects.loading import LoadedObject
    from ftuner.graph.appending import Appended
    from ftuner.graph.ir import Array, Graph, Node
    from ftuner.graph.ops.control import Iterations
    from ftuner.graph.ragged import RaggedSteps
    from ftuner.graph.splitting import Compiled, Part
    from ftuner.graph.steps import Lowered
    from ftuner.hardware.constants import Calibration
    from ftuner.hardware.gpu_model import GpuHardware
    from ftuner.runtime.kept_memory import Memory
    from ftuner.runtime.shared_weights import SharedWeights
    from ftuner.ukernels.cpu.library import Library
    from ftuner.ukernels.gpu.library import GpuLibrary

Effort = Literal["default", "thorough", "none"]
"""How long the constants of a device are calibrated: seconds, a minute or so, or not at all."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)

TIMED_ROUNDS = 6
"""Runs of which `Executable.step_seconds` takes the shortest times; the first one binds extents."""


@dataclass(frozen=True)
class Options:
    """How the graphs of one model are compiled and run. `ftuner.load` says more of each."""

    threads: SupportsIndex | None = None
    """CPU threads of a run; by default those of the process. A GPU's run has the caller's alone."""
    held: DType | None = None
    """One of `Backend.held_dtypes`, in which float32 is held; by default float32 itself."""
    precision: str = ""
    """One of `graph.passes.word_products.PRECISIONS`, in which products of float32 by weights are
    computed, and where it says so attention; by default float32."""
    progress: Progress | None = None
    append_in_place: bool = False
    """Whether outputs append to inputs in place, where the graph is one part."""
    unpad: bool = False
    """Whether runs leave out the padding of a batch, where that is proven to be the same."""
    random_seed: SupportsIndex | None = None
    kept: KeptMemory = field(default_factory=KeptMemory)
    """Counts the memory that is kept between runs."""
    shared: SharedWeights | None = None
    """Weights that are shared with other models; by default none are."""
    made_by: Callable[[], object] | None = None
    """Makes the model again from its file; None where there is no file."""
    plans_ahead: bool = True
    """Whether products are planned for ranges of rows before the first run."""
    code: LoadedObject | None = None
    """The machine code of what was compiled before, for the tuning of the back end: it chooses the
    same widths of packed weights."""


class Tuned(NamedTuple):
    """What tuning did, in objects of machine code: bundles of uKernels, or single ones."""

    compiled: int
    cached: int
    """Found in a cache."""


class Joined(Protocol):
    """What runs the requests of a batch together."""

    found: RaggedSteps
    """The steps that run once for all of them."""

    @property
    def room(self) -> int: ...

    def size(self, arrays: Sequence[Any]) -> int: ...

    def run(self, batch: Sequence[Sequence[Any]], exact: bool) -> list[list[Any]]: ...


class Executable(ABC):
    """A compiled graph that runs at any extents, none of which depends on data. Its operands are
    those of the device: NumPy arrays, or tensors on a GPU. Safe to use from several threads."""

    lowered: Lowered
    """The steps of a run."""
    weights_bytes: int
    """Bytes of constants as they are kept: packed as products read them, others as they came."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """CPU threads that a run uses, the caller's own included."""

    @property
    def isa(self) -> str:
        """The CPU's ISA that the machine code is for; empty on another device."""
        return ""

    @abstractmethod
    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs, for an operand for each input, as `Boundary.admitted` returns them.

        Raises:
            ShapeError: extents that contradict the graph.
            AllocationError: the device does not have the memory for them.
            IndexRangeError: an index in the data that is out of range.
        """

    def remembered(self, calls: Any, arrays: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """A call cache that runs later calls with such arrays without Python, if they are simple;
        `calls`: the one so far, None at first. None on another device."""
        return None

    @abstractmethod
    def _batches_by(self, found: RaggedSteps | None) -> Joined | None:
        """What runs requests of which these steps run once; None if nothing does."""

    def _ragged_steps(self, exact: bool) -> RaggedSteps | None:
        # Imported by name: a process that only multiplies has no graphs.
        room = import_module("ftuner.graph.ragged")
        found: RaggedSteps | None = room.ragged_steps(self.lowered, exact)
        return found

    @cached_property
    def _batches(self) -> Joined | None:
        """What runs the requests of a batch together, with the bits of each."""
        return self._batches_by(self._ragged_steps(exact=True))

    @cached_property
    def _roughly(self) -> Joined | None:
        """What runs the requests of a batch together, up to rounding: products by fewer rows of
        each request run together, too."""
        found = self._ragged_steps(exact=False)
        return self._batches if found == self.ragged else self._batches_by(found)

    @property
    def _joining(self) -> Joined | None:
        return self._batches

    @property
    def ragged(self) -> RaggedSteps | None:
        """The steps that run once for all requests of a batch; None if there are none."""
        return None if self._batches is None else self._batches.found

    leaves_out_padding = False
    """Whether the requests of a padded batch may run together without it."""

    @property
    def rows_together(self) -> int:
        """The rows of several requests that run together at most; 0 if none do. Where they share
        weights alone, the bytes of their largest results."""
        return 0 if self._joining is None else self._joining.room

    def rows(self, arrays: Sequence[Any]) -> int:
        """The rows of a request; 0 if none run together.

        Raises:
            ShapeError: extents that contradict the graph.
        """
        return 0 if self._joining is None else self._joining.size(arrays)

    def run_batch(self, batch: Sequence[Sequence[Any]], exact: bool) -> list[list[Any]]:
        """The outputs of each of several requests, with the bits that `run` gives for it if
        `exact`; else products may sum in another order.

        Raises:
            ShapeError, AllocationError, IndexRangeError: as `run`, of any of them.
        """
        found = self._joined(batch, exact)
        return [*map(self.run, batch)] if found is None else found.run(batch, exact)

    def _joined(self, batch: Sequence[Sequence[Any]], exact: bool) -> Joined | None:
        """What runs a batch; None if each request runs alone."""
        found = self._joining if len(batch) > 1 else None
        if found is not None and not exact and self._batches is not None:
            found = self._roughly or found
        return found

    def repeat(
        self, arrays: Sequence[Any], carried: int, conditional: bool, most: int
    ) -> Iterations | None:
        """Iterations of a loop of which this is the graph, as `graph.ops.control.Repeat`; None if
        each is better a run.

        Raises:
            ShapeError, AllocationError, IndexRangeError: as `run`.
        """
        return None

    @abstractmethod
    def timed(self, arrays: Sequence[Any]) -> tuple[list[Any], list[float]]:
        """Like `run`, with steps that are launched one by one; returns the outputs, of the same
        bits, and the seconds of each step. On a GPU the time is the device's.

        Raises:
            ShapeError, AllocationError, IndexRangeError: as `run`.
            UnsupportedKernelError: the caller captures a CUDA graph.
        """

    def step_seconds(self, arrays: Sequence[Any]) -> list[float]:
        """The measured time of each step: the shortest of several `timed` runs."""
        rounds = [self.timed(arrays)[1] for _ in range(TIMED_ROUNDS)]
        return [min(times) for times in zip(*rounds, strict=True)]

    @abstractmethod
    def memory(self, arrays: Sequence[Any]) -> Memory:
        """The bytes that a run on such operands takes.

        Raises:
            ShapeError: extents that contradict the graph.
            UnsupportedKernelError: the caller captures a CUDA graph.
        """

    @abstractmethod
    def prepare(self, cases: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """Make everything ready for runs on shapes of the inputs, the largest shapes last; returns
        why some of them are not possible.

        Raises:
            AllocationError: the device does not have the memory.
            UnsupportedKernelError: the caller captures a CUDA graph.
        """

    recording = True
    """Whether shapes that come again are recorded, where the device can record launches."""

    def compiled(self) -> Compiled:
        """The steps with their packed weights, to be saved.

        Raises:
            SavedModelError: the device has no machine code that can be saved.
        """
        raise SavedModelError("only a model on a CPU can be saved; load it with device='cpu'")


class Boundary(ABC):
    """How the inputs and outputs of one model enter and leave the device."""

    @abstractmethod
    def admitted(self, feeds: Mapping[str, object]) -> list[Any]:
        """The operands of executables, one for each input of the model, in order.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes.
        """

    @abstractmethod
    def delivered(self, results: list[Any], feeds: Mapping[str, object]) -> list[Any]:
        """What the caller gets for the outputs of a run."""

    @abstractmethod
    def evaluation(self, node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """A function from operands to the results of a node that is computed by its NumPy reference
        between two executables."""

    @abstractmethod
    def moved(self, array: Array, dtype: DType) -> Any:
        """An array of the host, as `graph.arrays` holds a dtype, as an operand of executables.

        Raises:
            UnsupportedKernelError: a CUDA graph is being captured.
        """

    @abstractmethod
    def joined(self, operands: Sequence[Any]) -> Any:
        """Operands concatenated along the first axis."""


class Backend(ABC):
    """One device: what it can run, its hardware, its uKernels and its operators. The operators
    return results on the device, and check what depends on it; `ftuner.ops` documents them."""

    product_dtypes: Mapping[str, DType]
    """Element types that are multiplied, by name."""
    multiplies_halves: bool
    """Whether half precision is computed as it is; otherwise it is computed in float32."""
    appends_in_place: bool
    """Whether outputs can append to inputs in place."""
    limits_memory: bool
    """Whether what a model keeps between runs can be limited."""
    held_dtypes: Mapping[str, DType]
    """Element types that the float32 of a model may be held in, by name."""

    matmul: Callable[[object, object, object | None, bool], Any]
    """`matmul(a, b, out, accumulate)`. An object rather than a method: it keeps the plans of calls
    that come again."""
    grouped_matmul: Callable[[Groups], list[Any]]

    calibration: Calibration | None = None
    """What this process measured of the device, if it did."""

    @property
    @abstractmethod
    def hardware(self) -> CpuHardware | GpuHardware:
        """The device's hardware model."""

    @abstractmethod
    def probe(self) -> CpuHardware | GpuHardware:
        """Measure the device again and keep the model in the cache, for processes that follow.

        Raises:
            HardwareError: a device that kernels cannot run on.
        """

    def calibrated(self, effort: Effort, progress: Progress | None = None) -> Backend:
        """The back end of the same device whose constants are calibrated on it: this one if it is,
        or if nothing is calibrated on such a device. `thorough` calibrates again.

        Raises:
            HardwareError: a device that kernels cannot run on.
        """
        return self

    @property
    def narrow_dtypes(self) -> Collection[DType]:
        """The dtypes of rows whose products by narrower weights have code of their own: narrow ones
        whose instruction pays, and float32 by blocks of few bits."""
        return ()

    @property
    @abstractmethod
    def target(self) -> str:
        """What code is generated for: the name of an ISA, or of a chip's architecture."""

    @abstractmethod
    def library(self, dtype: DType, epilogue: Expr) -> Library | GpuLibrary:
        """The uKernels kept for this device, dtype and epilogue: enumerated, not compiled.

        Raises:
            DTypeError: elements of this dtype are not multiplied on the device.
        """

    @abstractmethod
    def tune(self, dtype: DType, epilogue: Expr, progress: Progress | None = None) -> Tuned:
        """Make every uKernel of a library ready to run: compile what no cache holds."""

    @abstractmethod
    def dense(
        self, weight: object, bias: object | None, activation: Activation, residual: bool,
        width: SupportsIndex | None,
    ) -> Layer:  # fmt: skip
        """A layer with its weight on the device; see `ftuner.Dense`."""

    @abstractmethod
    def attention(
        self, q: object, k: object, v: object, *, mask: object | None, causal: bool,
        scale: SupportsFloat | None, q_offsets: object | None, k_offsets: object | None,
        out: object | None,
    ) -> Any:  # fmt: skip
        """`softmax(q k' * scale + mask) v`; see `ftuner.attention`."""

    def probed_ahead(self) -> AbstractContextManager[None]:
        """The block compiles a model: if the device has to be probed for it, what any model needs
        may be compiled meanwhile."""
        return nullcontext()

    def compiled_ahead(self) -> AbstractContextManager[None]:
        """While the block finds out what to compile, what any model needs may be compiled."""
        return nullcontext()

    @abstractmethod
    def compile(
        self, part: Part, options: Options, appended: Sequence[Appended] = ()
    ) -> Executable:
        """Compile the graph of a part. It loses its nodes, so that weights are freed while others
        are still packed. `appended`: the outputs that append to an input in place.

        Raises:
            UnsupportedOperatorError: steps that the device has no kernel for; all are listed.
            ConfigurationError: a number of threads out of range.
        """

    @abstractmethod
    def boundary(self, graph: Graph, in_parts: bool, appended: Sequence[Appended] = ()) -> Boundary:
        """How the inputs and outputs of a graph enter and leave the device. `in_parts`: whether it
        is several executables, between which the host reads data. `appended`: as of `compile`."""
