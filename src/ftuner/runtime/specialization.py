"""Models that depend on numbers which are known only when inputs are: each run computes these
first, then runs the model that they make."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.caching import RecentlyUsed
from ftuner.core.dim import product
from ftuner.core.dtype import BOOL
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.errors import FTunerError, SavedModelError, UnsupportedOperatorError
from ftuner.graph.ir import Graph
from ftuner.graph.specialization import (
    Answer,
    RunTimeNumberError,
    answer_of,
    answered,
    input_name,
    key_of,
    sized,
)
from ftuner.graph.splitting import SplitGraph
from ftuner.runtime.backend import Executable, Options
from ftuner.runtime.chain import Note
from ftuner.runtime.chosen_model import ChosenModel, Feeds
from ftuner.runtime.cpu.arrays import Array, array_of, is_tensor
from ftuner.runtime.model import Model, TensorSpec
from ftuner.runtime.preparing import Extents, Prepared
from ftuner.runtime.reference import outputs_of_extents
from ftuner.runtime.variants import Variants

_LOG = logging.getLogger(__name__)

MAX_MODELS = 32
"""Models that are kept for other answers to one question."""
MAX_KNOWN = 256
"""Inputs of which it is kept which model they lead to."""
MAX_PREPARED = 8
"""Models that are compiled when a model is loaded, for the values of its conditions and extents."""
MOST_EXTENTS = 8
"""Elements of a shape for which a model is compiled when it is loaded: axes that tensors have."""
MOST_EXACT = 4096
"""Elements that a graph may be made for: axes, scales, positions, but no weights."""
MOST_READ = 64
"""Elements of an input that are compared with those of earlier runs."""
LIKELY_EXTENT = 672
"""Stands for all extents of inputs where these decide an answer that is expected: a multiple of
many strides and patches, of which quotients are above one, and whose square is no large number."""

Import = Callable[[Sequence[Answer]], Graph]
"""Makes the graph for some answers, or raises `RunTimeNumberError`."""
Compile = Callable[[Graph], Model]
MAX_NOTED = 8
"""Calls that compile a model of which one is told, so that a cache is not written without end."""


class NewModels(NamedTuple):
    """Makes the models for new answers."""

    imported: Import
    compiled: Compile


class Asked(NamedTuple):
    """Numbers that are needed."""

    name: str
    exact: bool
    what: str
    reads: tuple[str, ...]
    """The inputs of whose elements the answer depends, beside the extents of all."""


class SavedQuestion(NamedTuple):
    """A question, with what was compiled for it and for the answers so far."""

    asked: Asked
    graph: SplitGraph
    """Computes the numbers."""
    next: tuple[tuple[object, SavedQuestion | SplitGraph], ...]
    """What follows, by the keys of answers."""


class SavedSpecialization(NamedTuple):
    """A late model as it is saved."""

    first: SavedQuestion
    outputs: tuple[TensorSpec, ...]


class _Question:
    """Numbers that are needed, the model that computes them, and what follows for each answer."""

    def __init__(self, asked: Asked, model: Model, before: tuple[Answer, ...]) -> None:
        self.asked, self.model, self.before = asked, model, before
        self.next: RecentlyUsed[object, tuple[object, Model | _Question]] = RecentlyUsed(MAX_MODELS)
        """By the key of the answer; with the key."""

    def follows(self, key: object, model: Model | _Question) -> tuple[object, Model | _Question]:
        """Add what follows for an answer; returns the entry of `next`."""
        self.next.add(key, (key, model))
        return key, model

    def models(self) -> Iterator[Model]:
        """All models so far."""
        yield self.model
        for _, after in self.next.values():
            yield from after.models() if isinstance(after, _Question) else (after,)

    def saved(self) -> SavedQuestion:
        after = [
            (key, x.saved() if isinstance(x, _Question) else x.split_graph())
            for key, x in self.next.values()
        ]
        return SavedQuestion(self.asked, self.model.split_graph(), tuple(after))


def _asked(need: RunTimeNumberError) -> Asked:
    graph = need.computed()
    read = {v for node in graph.nodes for v in node.inputs} | {v for _, v in graph.outputs}
    reads = tuple(v.name for v in graph.inputs if v in read)
    return Asked(need.value.name, need.exact, str(need), reads)


class SpecializedModel(ChosenModel):
    """A model whose graph depends on numbers that are known only at run time. It has the interface
    of `Model`. The models for both values of a condition, and the one for likely extents, are
    compiled when it is loaded; the model for other numbers is compiled in the call that brings
    them, and kept."""

    def __init__(
        self, first: RunTimeNumberError | SavedQuestion, outputs: Sequence[TensorSpec],
        options: Options, new: NewModels | None = None, variants: Variants[Model] | None = None,
        loaded: Callable[[SplitGraph], Model] | None = None,
    ) -> None:  # fmt: skip
        """`first`: what is needed first, or was saved with what followed for the answers so far, of
        which `loaded` makes the models. `new`: makes those for other answers, which are refused by
        default. `outputs`, `options`, `variants`: as of `ChosenModel`."""
        super().__init__(outputs, options, variants)
        self._import, self._compile = new or NewModels(_not_saved, _not_compiled)
        self._lock = fork_safe_lock()
        self._reads: frozenset[str] = frozenset()
        """The inputs that the questions so far depend on."""
        self._random = False
        """Whether the answer to a question so far depends on random numbers."""
        self._known: RecentlyUsed[object, tuple[Model, Feeds]] = RecentlyUsed(MAX_KNOWN)
        self._left = MAX_PREPARED
        """Models that may still be compiled before a call needs them."""
        self.note_new: Callable[[], object] | None = None
        """Called after a call that compiled a model."""
        self._noted = 0
        if isinstance(first, RunTimeNumberError):
            self._first = self._question(first, ())
        else:
            assert loaded is not None
            self._first = self._loaded(first, (), loaded)
        self._left = 0
        self._initial = self._first.model
        """Computes what is needed first."""

    def _loaded(
        self, saved: SavedQuestion, before: tuple[Answer, ...],
        loaded: Callable[[SplitGraph], Model],
    ) -> _Question:  # fmt: skip
        found = self._noticed(_Question(saved.asked, loaded(saved.graph), before))
        for key, after in saved.next:
            if isinstance(after, SavedQuestion):
                answers = (*before, answer_of(saved.asked.name, saved.asked.exact, key))
                found.follows(key, self._loaded(after, answers, loaded))
            else:
                found.follows(key, loaded(after))
        return found

    def _noticed(self, question: _Question) -> _Question:
        """The question, of which it is known from now on what its answers depend on."""
        self._reads |= frozenset(question.asked.reads)
        self._random |= question.model._draws
        return question

    def saved(self) -> SavedSpecialization:
        return SavedSpecialization(self._first.saved(), tuple(self._outputs))

    def all_executables(self) -> Iterator[Executable]:
        for model in self._first.models():
            yield from model.all_executables()

    def _ready(self, given: Mapping[str, Extents]) -> Prepared:
        return Prepared(0, (f"the model depends on data: {self._first.asked.what}",))

    def _question(self, need: RunTimeNumberError, before: tuple[Answer, ...]) -> _Question:
        found = self._noticed(_Question(_asked(need), self._compile(need.computed()), before))
        self._prepare(found, _likely(need, found))
        return found

    def _prepare(self, question: _Question, likely: Sequence[Array]) -> None:
        """Compile what follows for likely elements, as long as models are left."""
        for elements in likely:
            if self._left == 0:
                return
            self._left -= 1
            answer, _ = answered(question.asked.name, question.asked.exact, elements)
            try:
                question.follows(key_of(answer), self._after(question, answer))
            except FTunerError as error:
                # Only a call that takes this branch is refused.
                _LOG.info("%s: not compiled for %s: %s", question.asked.what, elements, error)

    def _resolved(self, feeds: Feeds, key: Array | None, note: Note | None) -> tuple[Model, Feeds]:
        """The model for the numbers in some feeds, and the feeds with the sizes of its symbols.
        `key`: of the random numbers on which these may depend."""
        decides = self._decided_by(feeds)
        known = None if decides is None else self._known.get(decides)
        if known is None:
            known = self._asked(feeds, key, note)
            decides = self._decided_by(feeds)
            if decides is not None:
                self._known.add(decides, known)
        model, sizes = known
        return model, {**feeds, **sizes}

    def _decided_by(self, feeds: Feeds) -> object | None:
        """What decides all answers to some feeds; None if that is much, or random."""
        return None if self._random else _key_of(feeds, self._reads)

    def _asked(self, feeds: Feeds, key: Array | None, note: Note | None) -> tuple[Model, Feeds]:
        """The model for some feeds, all of whose numbers are computed, and the sizes found."""
        sizes: dict[str, Array] = {}
        at: Model | _Question = self._first
        is_new = False
        while isinstance(at, _Question):
            name, exact, what, _ = at.asked
            (found,) = at.model._run({**feeds, **sizes}, key, note)
            # A tensor may be on a GPU.
            elements: Array = np.asarray(found.cpu() if hasattr(found, "cpu") else found)
            if elements.size > MOST_EXACT:
                raise UnsupportedOperatorError(
                    f"{what}, and has {elements.size} elements; at most {MOST_EXACT}"
                )
            answer, found_sizes = answered(name, exact, elements)
            sizes.update((input_name(name, i), sized(n)) for i, n in enumerate(found_sizes))
            decided = key_of(answer)
            after = at.next.get(decided)
            if after is None:
                with self._lock:
                    after = at.next.get(decided)
                    if after is None:
                        after = at.follows(decided, self._after(at, answer))
                        is_new = True
            at = after[1]
        if is_new and self.note_new is not None and self._noted < MAX_NOTED:
            self._noted += 1
            self.note_new()
        return at, sizes

    def _after(self, question: _Question, answer: Answer) -> Model | _Question:
        answers = (*question.before, answer)
        try:
            graph = self._import(answers)
        except SavedModelError as error:
            raise SavedModelError(f"{question.asked.what}: {error}") from None
        except RunTimeNumberError as need:
            return self._question(need, answers)
        _LOG.info("%s: compiled for a new one", question.asked.what)
        return self._compile(graph)


def _not_saved(answers: Sequence[Answer]) -> Graph:
    raise SavedModelError(
        "the saved model has no machine code for these ones; run the ONNX model with such inputs "
        "once before it is saved"
    )


def _not_compiled(graph: Graph) -> Model:
    raise AssertionError("nothing is compiled for a saved model")


def _likely(need: RunTimeNumberError, question: _Question) -> list[Array]:
    """What a call may find: both values of a condition; or the extents that inputs with likely ones
    lead to, if these decide and little is computed of them; or else extents of two or more."""
    value = need.value
    shape = tuple(n for n in value.shape if isinstance(n, int))
    if len(shape) < value.rank:
        return []
    if question.asked.exact:
        single = value.dtype == BOOL and math.prod(shape) == 1
        return [np.full(shape, element) for element in (True, False)] if single else []
    if math.prod(shape) > 1 and not question.asked.reads and not question.model._draws:
        found = _of_likely_extents(need.computed(), question.asked.what)
        if found is not None:
            return [found]
    return [np.full(shape, 2)] if math.prod(shape) <= MOST_EXTENTS else []


def _of_likely_extents(graph: Graph, what: str) -> Array | None:
    """The output of a graph that reads extents of its inputs alone, for likely ones; None if much
    is computed of them."""
    sizes = [product(v.shape) for node in graph.nodes for v in node.outputs]
    if any(not isinstance(n, int) or n > MOST_EXACT for n in sizes):
        return None
    shapes = [[n if isinstance(n, int) else LIKELY_EXTENT for n in v.shape] for v in graph.inputs]
    try:
        (found,) = outputs_of_extents(graph, shapes)
    except (FTunerError, ArithmeticError, LookupError, ValueError) as error:
        _LOG.info("%s: no likely ones: %s", what, error)
        return None
    return found


def _key_of(feeds: Feeds, reads: frozenset[str]) -> object | None:
    """What decides all answers: the types of arrays and tensors, and the elements of those that are
    read. None if these are many, or not in the memory of the CPU."""
    parts: list[object] = []
    for name, fed in feeds.items():
        x: Any = fed
        if not (isinstance(x, (np.ndarray, np.generic)) or is_tensor(x)):
            return None
        parts += (name, tuple(x.shape), str(x.dtype))
        if name in reads:
            if math.prod(x.shape) > MOST_READ or (is_tensor(x) and x.device.type != "cpu"):
                return None
            parts.append((array_of(x.detach(), name) if is_tensor(x) else x).tobytes())
    return tuple(parts)
