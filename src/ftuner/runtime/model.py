"""Models: a graph compiled for one device, run at any extents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar, overload

import numpy.typing as npt

from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import give_back_freed
from ftuner.core.shown import Shown, short_repr
from ftuner.core.units import count
from ftuner.errors import GraphError, PickleError, ShapeError
from ftuner.graph.appending import Appended, Copied
from ftuner.graph.ir import RANDOM_KEY, Array, Graph, RandomKey, Value
from ftuner.graph.splitting import SplitGraph, divided
from ftuner.graph.steps import Lowered, Step
from ftuner.runtime.backend import Backend, Executable, Options
from ftuner.runtime.batches import Batches
from ftuner.runtime.chain import Chain, Note
from ftuner.runtime.kept_memory import Memory, together
from ftuner.runtime.ops.operands import AnyTensor, Foreign
from ftuner.runtime.preparing import Extents, Prepared, known_extents, shape_of
from ftuner.runtime.random_keys import RandomKeys
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.variants import Variants

T = TypeVar("T")
Measure = Callable[[Executable, list[Any]], T]
ANY_RANK = ("...",)


@dataclass(frozen=True, repr=False)
class TensorSpec:
    """A name, element type and shape of a model's input or output; extents are numbers, or the
    names of symbols. `ANY_RANK` is the shape of what has no number of axes in the file."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __repr__(self) -> str:
        return short_repr(self, str(self))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class Model(Batches, Shown):
    """A graph compiled for one device. Safe to use from several threads."""

    def __init__(
        self, graph: Graph, backend: Backend, options: Options | None = None,
        variants: Variants[Model] | None = None,
    ) -> None:  # fmt: skip
        """Compile a graph; the parts of a `SplitGraph` lose their nodes. `variants`: models for
        extents that contradict the names of dims in the file; None without such names.

        Raises:
            UnsupportedOperatorError: steps that the device has no kernel for.
            ConfigurationError: a number of threads or a seed out of range.
            HardwareError: an element type that the device does not multiply.
        """
        self._backend = backend
        self.variants = variants
        options = self._options = options or Options()
        self._names = [name for name, _ in graph.outputs]
        self._keys = RandomKeys(options.random_seed)
        graph = divided(graph, options.unpad)
        given = tuple(v for v in graph.inputs if not isinstance(v, RandomKey))
        self._draws = len(given) < len(graph.inputs)
        """Whether a run draws random numbers."""
        in_parts = len(graph.parts) > 1
        self._grown = graph.grown
        self._padding = graph.padding
        self._graph = Graph(given, graph.outputs, (), graph.constraints)
        self._not_in_place = ""
        if not options.append_in_place:
            where = "only a model on a CPU appends in place"
            asked = "append_in_place=True was not given"
            self._not_in_place = asked if backend.appends_in_place else where
        elif in_parts:
            self._not_in_place = f"the model runs in {len(graph.parts)} parts"
        self._appended = () if self._not_in_place else tuple(
            found for found in self._grown if isinstance(found, Appended)
        )  # fmt: skip
        self._boundary = backend.boundary(self._graph, in_parts, self._appended)
        self._chain = Chain(graph, backend, self._boundary, options, self._appended)
        self.parts = self._chain.executables
        """Executables that run one after the other: several where an extent depends on data, or
        around a loop. The graphs within loops have others."""

    @property
    def made_by(self) -> Callable[[], object] | None:
        """Makes the model again from its file; None where there is no file."""
        return self._options.made_by

    @property
    def append_in_place(self) -> bool:
        """Whether outputs were to append to inputs in place."""
        return self._options.append_in_place

    def __copy__(self) -> Model:
        """The model itself, which nothing changes."""
        return self

    def __deepcopy__(self, memo: object) -> Model:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A model is pickled as the path of its file and the arguments it was loaded with, and is
        loaded again from there."""
        if self.made_by is None:
            raise PickleError(
                "a model that was not loaded from a path cannot be pickled: send the path, bytes "
                "or graph, and have the other process load or compile the model"
            )
        return self.made_by, ()

    @property
    def inputs(self) -> list[TensorSpec]:
        return [spec_of(v.name, v) for v in self._graph.inputs]

    @property
    def outputs(self) -> list[TensorSpec]:
        return [spec_of(name, v) for name, v in self._graph.outputs]

    def summary(self) -> str:
        given, made = (", ".join(map(str, tensors)) for tensors in (self.inputs, self.outputs))
        return f"{given} -> {made}; {count(len(self.steps), 'step')}"

    @property
    def appended(self) -> dict[str, str]:
        """The outputs that append to an input in place, or are written into it, by the name of the
        input."""
        inputs, outputs = self._graph.inputs, self._graph.outputs
        return {inputs[pair.input].name: outputs[pair.output][0] for pair in self._appended}

    @property
    def copied(self) -> dict[str, str]:
        """Why a run copies an input to an output that begins with it, by the name of the input.
        Those of `appended` are copied as well if they are no output of an earlier run."""
        reasons: dict[str, str] = {}
        for found in self._grown:
            why = found.why if isinstance(found, Copied) else self._not_in_place
            if why:
                reasons.setdefault(self._graph.inputs[found.input].name, why)
        return reasons

    @property
    def threads(self) -> int:
        """CPU threads that a run uses, the caller's own included: on a GPU, that alone."""
        return self.parts[0].threads

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of a run, in order, without those within loops."""
        return tuple(step for program in self.programs for step in program.steps)

    @property
    def programs(self) -> tuple[Lowered, ...]:
        """The lowered graphs of `parts`, without the arrays of packed weights."""
        return tuple(part.lowered for part in self.parts)

    def split_graph(self) -> SplitGraph:
        """What was compiled, to be saved.

        Raises:
            SavedModelError: a model that cannot be saved.
        """
        return self._chain.split_graph()

    def all_executables(self) -> Iterator[Executable]:
        """`parts`, and those of the graphs within loops."""
        return self._chain.all_executables()

    @property
    def weights_bytes(self) -> int:
        """Bytes of constants as they are kept; see `Memory`."""
        return sum(part.weights_bytes for part in self.parts)

    @overload
    def __call__(self, **inputs: Foreign) -> dict[str, npt.NDArray[Any]]: ...
    @overload
    def __call__(self, **inputs: AnyTensor) -> dict[str, AnyTensor]: ...
    def __call__(self, **inputs: object) -> dict[str, Any]:
        """Run the model on arrays given by name; returns the outputs by name."""
        return dict(zip(self._names, self._ran(inputs), strict=True))

    @overload
    def run(self, feeds: Mapping[str, Foreign]) -> list[npt.NDArray[Any]]: ...
    @overload
    def run(self, feeds: Mapping[str, AnyTensor]) -> list[AnyTensor]: ...
    def run(self, feeds: Mapping[str, object]) -> list[Any]:
        """Run the model, on a GPU on its current stream; returns the outputs in order.

        Args:
            feeds: for each input, by name, an array or tensor in the CPU's memory or, for a model
                on a GPU, an array or a tensor on that GPU.

        Returns:
            NumPy arrays, of which those of `appended` are read-only; tensors if any input was one.
            On a GPU, tensors also if there is no input and an output is bfloat16.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes; only arrays
                are given, and an output is bfloat16, which NumPy does not have.
            ShapeError: extents that contradict the model.
            AllocationError: the device does not have the memory for them.
            IndexRangeError: an index in the data that is out of range.
            IterationLimitError: a loop does not end; see `FTUNER_MAX_TRIPS`.
            UnsupportedKernelError: a CUDA graph is being captured, and the run would wait for the
                GPU: inputs are arrays, an extent depends on data, or there is a loop.
        """
        return self._ran(feeds)

    def run_noted(self, feeds: Mapping[str, object], note: Note) -> list[Any]:
        """Like `run`, with the same bits; `note` gets the steps and host nodes of the run with
        their times. Steps are launched one by one, which takes longer; those that a CUDA graph
        captures have one time for all. Raises what `run` raises."""
        return self._ran(feeds, note)

    def _ran(self, feeds: Mapping[str, object], note: Note | None = None) -> list[Any]:
        """Like `run`, by a variant where extents contradict the names of dims in the file."""
        key = self._keys.next() if self._draws else None
        if self.variants is None or not self.variants.used:
            try:
                return self._run(feeds, key, note)
            except ShapeError as error:
                fitting = self._fitting(feeds, error)
                if fitting is self:
                    raise
        else:
            fitting = self._fitting(feeds)
        return fitting._run(feeds, key, note)

    def _fitting(self, feeds: Mapping[str, object], refused: ShapeError | None = None) -> Model:
        """The variant for some arrays, or this model. `refused`: why it cannot run on them.

        Raises:
            ShapeError: they contradict that, too, or it cannot be made.
        """
        if self.variants is None or not isinstance(feeds, Mapping):
            return self
        try:
            return self.variants.model(feeds) or self
        except (GraphError, ShapeError) as error:
            texts = [error] if refused is None else [refused, error]
            raise ShapeError("; ".join(map(str, texts))) from error

    def _run(
        self, feeds: Mapping[str, object], key: Array | None, note: Note | None = None
    ) -> list[Any]:
        """Like `run`. `key`: of the random numbers that the run draws. `note`: as of
        `run_noted`."""
        if self._unpads and note is None:
            found = self._without_padding(feeds)
            if found is not None:
                return found
        return self._boundary.delivered(self._chain.run(self._operands(feeds, key), note), feeds)

    def remembered(self, calls: Any, arrays: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """`Executable.remembered` of a model of one part that draws no random numbers; the given
        cache for another one."""
        alone = self._chain.alone
        if alone is None or self._draws:
            return calls
        return alone.remembered(calls, arrays, outputs)

    def _coming_key(self) -> Array | None:
        """The key of what is measured, which the next run has, too; None if it draws no random
        numbers."""
        return self._keys.coming() if self._draws else None

    def _operands(self, feeds: Mapping[str, object], key: Array | None) -> list[Any]:
        operands = self._boundary.admitted(feeds)
        if self._draws:
            assert key is not None
            operands.append(self._boundary.moved(key, RANDOM_KEY.dtype))
        return operands

    @property
    def kept_bytes(self) -> int:
        """Bytes that the model keeps between runs, or that runs use now, beside weights, code and
        the outputs that callers have: arenas, programs of shapes and freed outputs."""
        return self._options.kept.bytes

    def trim(self) -> None:
        """Free what the model keeps between runs, except for what runs of other threads use now,
        and return freed pages to the system. Later runs make it again: the first one of each shape
        takes as long as if the model was new. Outputs keep their memory. On a GPU, recorded CUDA
        graphs go as well, and torch keeps the memory for later tensors."""
        self._options.kept.trim()
        give_back_freed()

    def prepare(
        self, given: Mapping[str, Extents] | None = None, /, **by_name: Extents
    ) -> Prepared:
        """Make the first run of each of some shapes as short as later ones, without running the
        model. On a CPU, programs are bound, with their plans. The system allocates the memory of
        intermediate results and of large outputs, for the largest shapes, and threads are started.
        This is done for one caller at a time; others have memory of their own. On a GPU, each shape
        is run on zeros until it is recorded as a CUDA graph, or once without `record`.

        Args:
            given, by_name: each dim by the name that `inputs` shows, as a value, or as `(lo, hi)`
                or `(lo, hi, step)` for the values from lo to hi, which is one of them. All
                combinations are prepared, the largest last. Dims of an input may also be given as
                its shape, or an array of this shape, by its name.

        Returns:
            The number of shapes that are ready, and what was skipped: shapes that contradict the
            model, and parts whose shapes depend on data. A graph keeps a bounded number of
            programs: of more shapes, the first ones are forgotten.

        Raises:
            InputError: a dim without an extent, unknown names, more than 65,536 shapes, or what is
                no extent.
            ShapeError: shapes of inputs that contradict the model.
            AllocationError: the system does not have the memory.
            MemoryLimitError: a run on such shapes needs more than the `memory_limit`.
            UnsupportedKernelError: a CUDA graph is being captured.
        """
        extents = {**(given or {}), **by_name}
        return self._of_shapes(extents, self.variants)._ready(extents)

    def _of_shapes(self, given: Mapping[str, Extents], variants: Variants[Model] | None) -> Model:
        """The variant for the shapes of all inputs, or this model if some are not given."""
        shapes = {v.name: shape_of(v.name, given[v.name]) for v in self.inputs if v.name in given}
        if variants is None or len(shapes) < len(self.inputs):
            return self
        return variants.of(shapes) or self

    def _ready(self, given: Mapping[str, Extents]) -> Prepared:
        known = known_extents(self._graph, given)
        check, fitting, skipped = Binding(self._graph), [], []
        for extents in known:
            shapes = [[evaluate(d, extents) for d in v.shape] for v in self._graph.inputs]
            try:
                check(shapes)
            except ShapeError as error:
                skipped.append(str(error))
            else:
                fitting.append(extents)
        refused = self._chain.prepare(fitting)
        return Prepared(len(fitting), (*skipped, *refused))

    def record(self, wanted: bool) -> None:
        """Whether shapes that come again are recorded as CUDA graphs, as they are by default on a
        GPU. Recordings hold memory for inputs and outputs of their own. On a CPU there is nothing
        to record."""
        for part in self.parts:
            part.recording = wanted

    def step_seconds(self, feeds: Mapping[str, object]) -> list[float]:
        """The measured time of each of `steps`; see `Executable.step_seconds`.

        Raises:
            InputError, ShapeError, IndexRangeError: as `run`.
            UnsupportedKernelError: a CUDA graph is being captured.
        """
        fitting, key = self._fitting(feeds), self._coming_key()
        times = fitting._measured(feeds, key, lambda part, x: part.step_seconds(x))
        return [*chain.from_iterable(times)]

    def memory(self, feeds: Mapping[str, object]) -> Memory:
        """The bytes that a run on such arrays takes, without what is within loops; see `run`. Where
        an extent depends on data, all parts of the model but the last are run to know it.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes.
            ShapeError: extents that contradict the model.
            IndexRangeError: an index in the data that is out of range.
            UnsupportedKernelError: a CUDA graph is being captured.
        """
        fitting, key = self._fitting(feeds), self._coming_key()
        return together(fitting._measured(feeds, key, lambda part, x: part.memory(x)))

    def _measured(
        self, feeds: Mapping[str, object], key: Array | None, measure: Measure[T]
    ) -> list[T]:
        """What `measure` gives for each of `parts` and its operands."""
        found: list[T] = []

        def run(part: Executable, operands: list[Any]) -> list[Any] | None:
            found.append(measure(part, operands))
            return part.run(operands) if part is not self.parts[-1] else None

        self._chain.through(self._operands(feeds, key), run)
        return found


def spec_of(name: str, value: Value) -> TensorSpec:
    """The description of an input or output of a graph."""
    shape = tuple(d if isinstance(d, int) else str(d) for d in value.shape)
    return TensorSpec(name, value.dtype.name, shape)
