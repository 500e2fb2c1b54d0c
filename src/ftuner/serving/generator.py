"""Texts of a decoder, generated together: continuous batching.

In each step a worker thread runs one request of `Model.run_batch` for each text: its prompt at
first, then its last token, with the cache of keys and values that the step before has returned.
Products run once for the rows of all texts; attention reads the cache of each, to which a model
with `append_in_place` appends the new rows in place. Texts join and leave between steps, and each
has its own length, so that nothing is padded. A model that writes its rows into the cache that it
is given (GroupQueryAttention with `append_in_place`) runs one text after the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from ftuner.core.frozen import dataclass
from ftuner.errors import ClosedError, ConfigurationError, InputError, QueueFullError
from ftuner.graph.ir import Array
from ftuner.runtime.model import Model, TensorSpec
from ftuner.serving.worker import Closing, Worker, answers

TOKENS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
"""Inputs that are made of the tokens of a text; all others are caches."""
Choose = Callable[[Array], int]
"""The next token, for the logits of all tokens."""


@dataclass(frozen=True)
class GeneratorStatistics:
    """What a generator has done since it was made, and does now."""

    texts: int
    """Texts that have ended, also by an error or because they were cancelled."""
    tokens: int
    steps: int
    running: int
    waiting: int


class _Link:
    """A place of a text: a future of the token, or of None after the last."""

    def __init__(self) -> None:
        self.token: Future[int | None] = Future()
        self.next: _Link | None = None


class _Text:
    """A text that is generated."""

    def __init__(
        self, prompt: Array, past: dict[str, Array], tokens: int, end: Collection[int],
        choose: Choose,
    ) -> None:  # fmt: skip
        self.given, self.past, self.left, self.end, self.choose = prompt, past, tokens, end, choose
        self.seen = 0
        """Tokens of which the cache has the keys and values."""
        self.cancelled = False
        self.first = self.last = _Link()
        """The places of the first token and of the next one."""

    def add(self, token: int) -> bool:
        """Tell a token; whether the text goes on."""
        link, self.last = self.last, _Link()
        link.next = self.last
        # A coroutine that waits for the token may have been cancelled.
        if not link.token.set_running_or_notify_cancel():
            return False
        link.token.set_result(token)
        self.left -= 1
        return self.left > 0 and token not in self.end

    def finish(self, error: BaseException | None = None) -> None:
        """Tell that there are no more tokens."""
        future = self.last.token
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class Generator(Closing):
    """Generates the texts of many threads and coroutines at once. Safe to use from all of them."""

    def __init__(
        self, model: Model, *, max_texts: int = 16, max_queue: int = 1024, exact: bool = False
    ) -> None:
        """Make a generator; its thread starts with the first text.

        Args:
            model: a decoder, which takes `input_ids` (int64, one row), perhaps `attention_mask` and
                `position_ids`, and the keys and values of earlier tokens. It returns logits first
                (one row for each token, or one for the last), then the keys and values with those
                of the tokens, in the order in which it takes them. With `append_in_place`, a step
                writes the new ones alone; without it, it copies all.
            max_texts: texts that are generated at once.
            max_queue: texts that wait at most.
            exact: whether each text has the bits that it has alone, at the cost of some speed. Else
                products may sum in another order, so logits agree up to rounding.

        Raises:
            InputError: a model with other inputs or outputs.
            ConfigurationError: a limit that is not positive.
        """
        if max_texts < 1 or max_queue < 1:
            raise ConfigurationError(
                f"max_texts is {max_texts} and max_queue {max_queue}; expected 1 or more"
            )
        self._past = _empty_past(model)
        self._texts = _Texts(self, model, max_texts, max_queue, exact)

    def generate(
        self, prompt: Sequence[int], *, max_tokens: int, end: Collection[int] = (),
        choose: Choose | None = None,
    ) -> Iterator[int]:  # fmt: skip
        """The tokens after a prompt, one by one while they are generated. A text whose iterator is
        closed ends.

        Args:
            prompt: one token at least.
            max_tokens: the number of tokens, if the text does not end before.
            end: tokens after which the text ends; they are returned, too.
            choose: takes the logits of all tokens (float32, one axis) and returns the next token,
                in the generator's thread; by default the most probable one.

        Raises:
            InputError: an empty prompt, tokens that are no integers, or no tokens to generate.
            QueueFullError: `max_queue` texts wait already.
            ClosedError: the generator has been closed.
            Exception: what `Model.run` or `choose` raises, from the iterator, for this text alone.
        """
        return _tokens(self._added(prompt, max_tokens, end, choose))

    def stream(
        self, prompt: Sequence[int], *, max_tokens: int, end: Collection[int] = (),
        choose: Choose | None = None,
    ) -> AsyncIterator[int]:  # fmt: skip
        """Like `generate`, for `async for`."""
        return _stream(self._added(prompt, max_tokens, end, choose))

    def _added(
        self, prompt: Sequence[int], tokens: int, end: Collection[int], choose: Choose | None
    ) -> _Text:
        given = np.array(prompt)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu" or tokens < 1:
            raise InputError(
                f"the prompt has dtype {given.dtype} and shape {given.shape}, and {tokens} tokens "
                "are to follow; expected integers along one axis, and one token or more"
            )
        text = _Text(given.astype(np.int64)[None], self._past, tokens, end, choose or _likeliest)
        self._texts.add(text)
        return text

    @property
    def statistics(self) -> GeneratorStatistics:
        """What the generator has done."""
        return self._texts.statistics()

    def close(self, *, drain: bool = True) -> None:
        """Take no more texts, and wait for the thread to end. `drain`: whether the texts are
        finished; else they end after the step that runs, with a ClosedError."""
        self._texts.close(drain)


class _Texts(Worker):
    """The texts of a generator, and the thread that generates them."""

    def __init__(
        self, owner: Generator, model: Model, most: int, max_queue: int, exact: bool
    ) -> None:
        self._model, self._most, self._max_queue, self._exact = model, most, max_queue, exact
        self._names = {spec.name for spec in model.inputs}
        super().__init__(owner)

    def forget(self) -> None:
        self._waiting: deque[_Text] = deque()
        self._running: list[_Text] = []
        self._ended = self._tokens = self._steps = 0

    def add(self, text: _Text) -> None:
        with self.changed:
            if len(self._waiting) >= self._max_queue:
                raise QueueFullError(f"{self._max_queue} texts wait already")
            self.begin()
            self._waiting.append(text)
            self.changed.notify_all()

    def close(self, drain: bool, patience_s: float | None = None) -> None:
        with self.changed:
            self.closed = True
            for text in () if drain else (*self._running, *self._waiting):
                text.cancelled = True
            self.changed.notify_all()
        self.join(patience_s)

    def statistics(self) -> GeneratorStatistics:
        with self.changed:
            running, waiting = len(self._running), len(self._waiting)
            return GeneratorStatistics(self._ended, self._tokens, self._steps, running, waiting)

    def ran_one(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self._running or self._waiting or self.closed)
            while self._waiting and len(self._running) < self._most:
                self._running.append(self._waiting.popleft())
            texts = [*self._running]
        if not texts:
            return False
        cancelled = [text for text in texts if text.cancelled]
        going = [text for text in texts if not text.cancelled]
        for text in cancelled:
            text.finish(ClosedError("the generator has been closed"))
        found = answers(self._model, [self._feeds(text) for text in going], self._exact)
        goes_on = [_took(text, x) for text, x in zip(going, found, strict=True)]
        with self.changed:
            self._running = [text for text, more in zip(going, goes_on, strict=True) if more]
            self._ended += len(texts) - len(self._running)
            self._tokens += sum([not isinstance(x, BaseException) for x in found])
            self._steps += bool(going)
        return True

    def _feeds(self, text: _Text) -> dict[str, Array]:
        feeds, count = {TOKENS: text.given, **text.past}, text.given.shape[1]
        if MASK in self._names:
            feeds[MASK] = np.ones((1, text.seen + count), np.int64)
        if POSITIONS in self._names:
            feeds[POSITIONS] = np.arange(text.seen, text.seen + count)[None]
        return feeds


def _took(text: _Text, answer: list[Array] | BaseException) -> bool:
    """Give a text its next token; whether it goes on."""
    try:
        if isinstance(answer, BaseException):
            raise answer
        logits, *past = answer
        text.seen += text.given.shape[1]
        text.past = dict(zip(text.past, past, strict=True))
        token = int(text.choose(logits[0, -1]))
        text.given = np.array([[token]])
        going = text.add(token)
    except BaseException as error:
        text.finish(error)
        return False
    if not going:
        text.finish()
    return going


def _likeliest(logits: Array) -> int:
    return int(logits.argmax())


def _tokens(text: _Text) -> Iterator[int]:
    link: _Link | None = text.first
    try:
        while link is not None and (token := link.token.result()) is not None:
            yield token
            link = link.next
    finally:
        text.cancelled = True


async def _stream(text: _Text) -> AsyncIterator[int]:
    link: _Link | None = text.first
    try:
        while link is not None:
            token = await asyncio.wrap_future(link.token)
            if token is None:
                return
            yield token
            link = link.next
    finally:
        text.cancelled = True


def _empty_past(model: Model) -> dict[str, Array]:
    """The caches of a text without tokens, by the names of the inputs.

    Raises:
        InputError: the model is no decoder of this form.
    """
    specs = {spec.name: spec for spec in model.inputs}
    caches = [spec for name, spec in specs.items() if name not in (TOKENS, MASK, POSITIONS)]
    made = len(model.outputs) - 1
    if TOKENS not in specs or not caches or made != len(caches) or not all(map(_grows, caches)):
        given, outputs = (", ".join(map(str, x)) for x in (model.inputs, model.outputs))
        raise InputError(
            "expected a decoder of input_ids, attention_mask, position_ids and caches, with logits "
            f"and the caches as outputs; it takes {given} and returns {outputs}"
        )
    return {
        spec.name: np.zeros([1, *(n if isinstance(n, int) else 0 for n in spec.shape[1:])],
                            np.dtype(spec.dtype))
        for spec in caches
    }  # fmt: skip


def _grows(spec: TensorSpec) -> bool:
    """Whether an input has one extent of tokens, besides the first one of texts."""
    return sum([isinstance(n, str) for n in spec.shape[1:]]) == 1
