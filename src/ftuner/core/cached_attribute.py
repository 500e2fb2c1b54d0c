"""Attributes that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class cached_attribute(Generic[_T]):  # noqa: N801, a decorator
    """As `functools.cached_property`, without its lock. Up to Python 3.11 that is one lock for all
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
