"""Models that run one of several: which one, the inputs of each run decide."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ftuner.errors import SavedModelError
from ftuner.graph.splitting import SplitGraph
from ftuner.graph.steps import Lowered, Step
from ftuner.runtime.backend import Options
from ftuner.runtime.chain import Note
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.model import Measure, Model, T, TensorSpec
from ftuner.runtime.ops.operands import check_names
from ftuner.runtime.preparing import Extents, Prepared
from ftuner.runtime.random_keys import RandomKeys
from ftuner.runtime.variants import Variants

Feeds = Mapping[str, object]


class ChosenModel(Model):
    """A model that chooses one of several for each run. It has the interface of `Model`, and
    describes the one of the last run."""

    _initial: Model
    """What is described before any run."""

    def __init__(
        self, outputs: Sequence[TensorSpec], options: Options,
        variants: Variants[Model] | None = None,
    ) -> None:  # fmt: skip
        """`outputs`: as the file declares them. `options`, `variants`: as of `Model`."""
        self._options, self.variants = options, variants
        self._outputs = list(outputs)
        self._names = [spec.name for spec in self._outputs]
        self._keys = RandomKeys(options.random_seed)
        self._draws = True
        self._recorded = True
        self._last: Model | None = None
        """That of the last run."""

    @abstractmethod
    def _resolved(self, feeds: Feeds, key: Array | None, note: Note | None) -> tuple[Model, Feeds]:
        """The model for some feeds, and what it is given. `key`: of the run's random numbers.
        `note`: as of `Model.run_noted`."""

    def _chosen(
        self, feeds: Feeds, key: Array | None, note: Note | None = None
    ) -> tuple[Model, Feeds]:
        if not hasattr(feeds, "items"):
            check_names(feeds, [spec.name for spec in self.inputs])
        model, given = self._resolved(feeds, key, note)
        if model is not self._last:
            model.record(self._recorded)
            self._last = model
        return model, given

    @property
    def inputs(self) -> list[TensorSpec]:
        return self._initial.inputs

    @property
    def outputs(self) -> list[TensorSpec]:
        return self._outputs

    @property
    def appended(self) -> dict[str, str]:
        """The appended outputs of the last run."""
        return {} if self._last is None else self._last.appended

    @property
    def copied(self) -> dict[str, str]:
        """The copied outputs of the last run."""
        return {} if self._last is None else self._last.copied

    @property
    def threads(self) -> int:
        return self._initial.threads

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the last run; before any, those that are known."""
        return self._current.steps

    @property
    def programs(self) -> tuple[Lowered, ...]:
        return self._current.programs

    @property
    def weights_bytes(self) -> int:
        return self._current.weights_bytes

    @property
    def _current(self) -> Model:
        return self._last or self._initial

    def _run(self, feeds: Feeds, key: Array | None, note: Note | None = None) -> list[Any]:
        """Like `Model.run`.

        Raises:
            UnsupportedOperatorError, GraphError: what the file computes of such inputs.
        """
        model, given = self._chosen(feeds, key, note)
        return model._run(given, key, note)

    @property
    def _joining(self) -> None:
        """Requests may need different models."""

    @property
    def ragged(self) -> list[tuple[str, str]]:
        why = "requests may need different models"
        return [(step.title, why) for step in self.steps]

    @property
    def padding_kept(self) -> str:
        """`Model.padding_kept` of the model of the last run."""
        return self._current.padding_kept

    def _ready(self, given: Mapping[str, Extents]) -> Prepared:
        return Prepared(0, ("the shapes of all inputs decide which model runs",))

    def split_graph(self) -> SplitGraph:
        raise SavedModelError(
            "the model is compiled for the number of axes of its inputs, which the file does not "
            "say: it cannot be saved"
        )

    def record(self, wanted: bool) -> None:
        self._recorded = wanted
        if self._last is not None:
            self._last.record(wanted)

    def _measured(self, feeds: Feeds, key: Array | None, measure: Measure[T]) -> list[T]:
        model, given = self._chosen(feeds, key)
        return model._measured(given, key, measure)


class UnrankedModel(ChosenModel):
    """A model with inputs whose number of axes the file does not say. The model for each number is
    compiled in the first call with it, and kept."""

    def __init__(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec],
        ranked: Variants[Model], initial: Model, options: Options,
    ) -> None:  # fmt: skip
        """`ranked`: the models for each number. `initial`: a model of no steps."""
        super().__init__(outputs, options)
        self._inputs, self._ranked, self._initial = list(inputs), ranked, initial

    @property
    def inputs(self) -> list[TensorSpec]:
        return self._inputs

    def _ready(self, given: Mapping[str, Extents]) -> Prepared:
        found = self._of_shapes(given, self._ranked)
        return super()._ready(given) if found is self else found._ready(given)

    def _resolved(self, feeds: Feeds, key: Array | None, note: Note | None) -> tuple[Model, Feeds]:
        check_names(feeds, [spec.name for spec in self._inputs])
        found = self._ranked.model(feeds)
        assert found is not None
        return found, feeds
