"""What is computed once: attributes, and tables of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class cached_attribute(Generic[_T]):  # noqa: N801, a decorator
    """`functools.cached_property` without its lock. Up to Python 3.11 that is one lock for all
    instances, which a forked child may find locked for ever. Two threads may compute a value twice:
    it has to be the same."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_attribute[_T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_attribute[_T] | _T:
        if instance is None:
            return self
        # From now on the attribute is found there, and this is not called.
        value = vars(instance)[self._name] = self._compute(instance)
        return value


K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """A table of at most `limit` entries, or of entries of at most so much together, that forgets
    those not used for longest.

    Entries are of two generations. What is added, or found in the older one, belongs to the younger
    one; when that has half of the limit it becomes the older one, and what was left there is
    forgotten. So whatever is used again before half of the limit has been used stays, and finding
    an entry takes one look-up. Several threads may use a table at once: entries that two of them
    add meanwhile may be forgotten early.
    """

    def __init__(
        self, limit: int, size: Callable[[V], int] | None = None,
        forgotten: Callable[[V], None] | None = None,
    ) -> None:  # fmt: skip
        """`size`: of an entry, by default 1; `forgotten`: called with what is."""
        self.limit = limit
        self._size, self._forgotten = size, forgotten
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._filled = self._left = 0
        """The sizes of both generations."""

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.add(key, found)
        return found

    def add(self, key: K, value: V) -> None:
        """Keep a value, in place of the one before."""
        size = self._size_of(value)
        before, older = self._young.pop(key, None), self._old.pop(key, None)
        self._filled -= 0 if before is None else self._size_of(before)
        self._left -= 0 if older is None else self._size_of(older)
        if 2 * (self._filled + size) > self.limit and self._young:
            self.age(key)
        self._filled += size
        self._young[key] = value

    def _size_of(self, value: V) -> int:
        return 1 if self._size is None else self._size(value)

    @property
    def size(self) -> int:
        """The size of all entries."""
        return self._filled + self._left

    def age(self, but: K | None = None) -> None:
        """Forget the older generation, except for the key `but`; the younger one is then older."""
        left, self._old, self._young = self._old, self._young, {}
        self._left, self._filled = self._filled, 0
        if self._forgotten is not None:
            for other, entry in list(left.items()):
                if other not in self._old and other != but:
                    self._forgotten(entry)

    def values(self) -> Iterator[V]:
        """All entries, those of the older generation first."""
        young = dict(self._young)
        yield from (value for key, value in list(self._old.items()) if key not in young)
        yield from young.values()

    def clear(self) -> None:
        """Forget everything."""
        entries = list(self.values()) if self._forgotten is not None else []
        self._old, self._young, self._filled, self._left = {}, {}, 0, 0
        for entry in entries:
            assert self._forgotten is not None
            self._forgotten(entry)

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
