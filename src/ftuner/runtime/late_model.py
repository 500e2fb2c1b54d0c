"""Models that depend on numbers which are known only when inputs are: each run computes these
first, then runs the model that they make."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from ftuner.core.dim import product
from ftuner.core.dtype import BOOL
from ftuner.core.forks import fork_safe_lock
from ftuner.core.recently_used import RecentlyUsed
from ftuner.errors import FTunerError, UnsupportedOperatorError
from ftuner.graph.answers import Answer, RunTimeNumberError, answered, input_name, key_of, sized
from ftuner.graph.ir import Graph
from ftuner.runtime.chain import Note
from ftuner.runtime.chosen_model import ChosenModel, Feeds
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.tensors import array_of, is_tensor
from ftuner.runtime.model import Model, TensorSpec
from ftuner.runtime.preparing import Extents, Prepared
from ftuner.runtime.reference import outputs_of_extents

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


class _Question:
    """Numbers that are needed, the model that computes them, and what follows for each answer."""

    def __init__(self, need: RunTimeNumberError, model: Model, before: tuple[Answer, ...]) -> None:
        self.name, self.exact, self.what = need.value.name, need.exact, str(need)
        self.model, self.before = model, before
        graph = need.computed()
        read = {v for node in graph.nodes for v in node.inputs} | {v for _, v in graph.outputs}
        self.reads = frozenset(v.name for v in graph.inputs if v in read)
        """The inputs of whose elements the answer depends, beside the extents of all."""
        self.next: RecentlyUsed[object, Model | _Question] = RecentlyUsed(MAX_MODELS)


class LateModel(ChosenModel):
    """A model whose graph depends on numbers that are known only at run time. It has the interface
    of `Model`. The models for both values of a condition, and the one for likely extents, are
    compiled when it is loaded; the model for other numbers is compiled in the call that brings
    them, and kept."""

    def __init__(
        self, imported: Import, compiled: Compile, need: RunTimeNumberError,
        outputs: Sequence[TensorSpec], random_seed: SupportsIndex | None = None,
    ) -> None:  # fmt: skip
        """`need`: the first one. `outputs`, `random_seed`: as of `ChosenModel`."""
        super().__init__(outputs, random_seed)
        self._import, self._compile = imported, compiled
        self._lock = fork_safe_lock()
        self._reads: frozenset[str] = frozenset()
        """Those of all questions so far."""
        self._random = False
        """Whether the answer to a question so far depends on random numbers."""
        self._known: RecentlyUsed[object, tuple[Model, Feeds]] = RecentlyUsed(MAX_KNOWN)
        self._left = MAX_PREPARED
        """Models that may still be compiled before a call needs them."""
        self._first = self._question(need, ())
        self._left = 0
        self._initial = self._first.model
        """Computes what is needed first."""
        self._kept = self._initial._kept

    def _ready(self, given: Mapping[str, Extents]) -> Prepared:
        return Prepared(0, (f"the model depends on data: {self._first.what}",))

    def _question(self, need: RunTimeNumberError, before: tuple[Answer, ...]) -> _Question:
        found = _Question(need, self._compile(need.computed()), before)
        self._reads |= found.reads
        self._random |= found.model._draws
        self._prepare(found, _likely(need, found))
        return found

    def _prepare(self, question: _Question, likely: Sequence[Array]) -> None:
        """Compile what follows for likely elements, as long as models are left."""
        for elements in likely:
            if self._left == 0:
                return
            self._left -= 1
            answer, _ = answered(question.name, question.exact, elements)
            try:
                question.next.add(key_of(answer), self._after(question, answer))
            except FTunerError as error:
                # Only a call that takes this branch is refused.
                _LOG.info("%s: not compiled for %s: %s", question.what, elements, error)

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
        """The same, of which all numbers are computed; the sizes alone."""
        sizes: dict[str, Array] = {}
        at: Model | _Question = self._first
        while isinstance(at, _Question):
            (found,) = at.model._run({**feeds, **sizes}, key, note)
            elements = _on_host(found)
            if elements.size > MOST_EXACT:
                raise UnsupportedOperatorError(
                    f"{at.what}, and has {elements.size} elements; at most {MOST_EXACT}"
                )
            answer, found_sizes = answered(at.name, at.exact, elements)
            sizes.update((input_name(at.name, i), sized(n)) for i, n in enumerate(found_sizes))
            decided = key_of(answer)
            after = at.next.get(decided)
            if after is None:
                with self._lock:
                    after = at.next.get(decided)
                    if after is None:
                        after = self._after(at, answer)
                        at.next.add(decided, after)
            at = after
        return at, sizes

    def _after(self, question: _Question, answer: Answer) -> Model | _Question:
        answers = (*question.before, answer)
        try:
            graph = self._import(answers)
        except RunTimeNumberError as need:
            return self._question(need, answers)
        _LOG.info("%s: compiled for a new one", question.what)
        return self._compile(graph)


def _likely(need: RunTimeNumberError, question: _Question) -> list[Array]:
    """What a call may find: both values of a condition; or the extents that inputs with likely ones
    lead to, if these decide and little is computed of them; or else extents of two or more."""
    value = need.value
    shape = tuple(n for n in value.shape if isinstance(n, int))
    if len(shape) < value.rank:
        return []
    if question.exact:
        single = value.dtype == BOOL and math.prod(shape) == 1
        return [np.full(shape, element) for element in (True, False)] if single else []
    if math.prod(shape) > 1 and not question.reads and not question.model._draws:
        found = _of_likely_extents(need.computed(), question.what)
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


def _on_host(x: Any) -> Array:
    """An array, or a tensor on a GPU, as an array."""
    found: Array = np.asarray(x.cpu() if hasattr(x, "cpu") else x)
    return found
