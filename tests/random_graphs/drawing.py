"""Choices that are drawn at random and written down, so that they can be made again, and changed.

Each step of a generator draws from a list of its own: what is drawn in one step does not move when
another step is left out. Of every choice, 0 is the simplest: a shrinker lowers numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

T = TypeVar("T")


class DeclinedError(Exception):
    """A step that cannot be made from what there is, or that would be too much work."""


@dataclass
class Draws:
    """The choices of one step.

    Args:
        random: what choices are made by after those given; without it they are 0.
        given: choices made before.
    """

    random: Random | None
    given: Sequence[int] = ()
    made: list[int] = field(default_factory=list)
    """All choices so far."""

    def below(self, n: int) -> int:
        """A number of `range(n)`."""
        assert n > 0
        if n == 1:
            return 0
        if len(self.made) < len(self.given):
            found = min(self.given[len(self.made)], n - 1)
        else:
            found = 0 if self.random is None else self.random.randrange(n)
        self.made.append(found)
        return found

    def chance(self, share: float) -> bool:
        """True for a share of the draws."""
        if len(self.made) < len(self.given):
            found = bool(self.given[len(self.made)])
        else:
            found = self.random is not None and self.random.random() < share
        self.made.append(int(found))
        return found

    def pick(self, options: Sequence[T]) -> T:
        """One of some options, the simplest of which comes first."""
        if not options:
            raise DeclinedError("nothing to pick from")
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        """One of some options, the simplest of which comes first."""
        assert len(options) == len(weights) > 0
        if len(self.made) < len(self.given):
            number = min(self.given[len(self.made)], len(options) - 1)
        elif self.random is None:
            number = 0
        else:
            (number,) = self.random.choices(range(len(options)), weights)
        self.made.append(number)
        return options[number]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """The options in some order; all zeros keep it."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def some(self, options: Sequence[T], least: int = 0) -> list[T]:
        """Some of the options, in their order; at least so many of them."""
        kept = [self.chance(0.5) for _ in options]
        for number in range(len(options)):
            if sum(kept) >= least:
                break
            kept[number] = True
        return [option for option, keep in zip(options, kept, strict=True) if keep]


@dataclass(frozen=True)
class Script:
    """All choices of a case: how many extents and inputs it begins with, then step by step."""

    seed: int
    """Of the data, which is no choice."""
    head: tuple[int, ...] = ()
    steps: tuple[tuple[int, ...], ...] = ()
    tail: tuple[int, ...] = ()

    @property
    def size(self) -> tuple[int, int, int]:
        """Which of two scripts is simpler: fewer steps, fewer choices, lower ones."""
        lists = (self.head, *self.steps, self.tail)
        return len(self.steps), sum(map(len, lists)), sum(map(sum, lists))
