"""Frozen dataclasses that take little time to define.

`dataclasses.dataclass` compiles the text of six methods for each class, which is most of the time
of importing modules of small classes. Here a method is compiled when it is first called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, fields
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, eq: bool = True, repr: bool = True) -> Callable[[type], type]:
        """Returns the decorator that `dataclasses.dataclass` does for these arguments. Classes of
        one decorator may inherit those of the other. A class with an `InitVar`, with `__slots__`,
        or with a factory of a field that is not an argument raises TypeError when it is defined."""
        assert frozen
        return lambda cls: _defined(cls, eq, repr)


def _defined(cls: Any, eq: bool, repr: bool) -> Any:
    # Without a text, `dataclasses` would write one, from the signature of the constructor.
    cls.__doc__ = cls.__doc__ or cls.__name__
    # Finds the fields. A class may only inherit a frozen one if it is frozen itself, for which
    # `dataclasses` compiles two methods.
    derived = any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
    dataclasses.dataclass(init=False, repr=False, eq=False, frozen=derived)(cls)
    _expect_usual(cls)
    own, parameters = vars(cls), cls.__dataclass_params__
    parameters.init, parameters.repr, parameters.eq, parameters.frozen = True, repr, eq, True
    _freeze(cls, frozenset(f.name for f in fields(cls)))
    if "__init__" not in own:
        _compile_later(cls, "__init__", _constructor)
    if repr and "__repr__" not in own:
        _compile_later(cls, "__repr__", _repr)
    if eq and "__eq__" not in own:
        _compile_later(cls, "__eq__", _equality)
    if eq and own.get("__hash__") is None:
        _compile_later(cls, "__hash__", _hash)
    return cls


def _expect_usual(cls: Any) -> None:
    """Raises TypeError for what no class of ours has, and the methods here do not support."""
    unusual = ["__slots__"] if "__slots__" in vars(cls) else []
    for f in cls.__dataclass_fields__.values():
        if repr(f._field_type) == "_FIELD_INITVAR":
            unusual.append(f"{f.name}: InitVar")
        elif not f.init and f.default_factory is not MISSING:
            unusual.append(f"{f.name} = field(init=False, default_factory=...)")
    if unusual:
        raise TypeError(
            f"{cls.__qualname__} has {', '.join(unusual)}; use dataclasses.dataclass instead"
        )


def _freeze(cls: Any, names: frozenset[str]) -> None:
    """Refuse to change the fields `names`, and any attribute of a value of the class itself. A
    subclass that is not a dataclass may set attributes of its own."""

    def setattr_(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delattr_(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = setattr_, delattr_


def _compile_later(cls: Any, name: str, text: Callable[[Any, dict[str, Any]], str]) -> None:
    """Give a class a method that compiles the one which takes its place. `text`: returns the
    definition of that one, and adds what it uses to a mapping."""

    def first(*values: Any, **named: Any) -> Any:
        known: dict[str, Any] = {}
        exec(text(cls, known), known)
        known[name].__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, known[name])
        return known[name](*values, **named)

    setattr(cls, name, first)


def _constructor(cls: Any, known: dict[str, Any]) -> str:
    known |= {"_set": object.__setattr__, "_none": MISSING}
    placed, named, body = ["self"], ["*"], []
    for f in fields(cls):
        value, default = f.name, ""
        if f.default_factory is not MISSING:
            known[f"_of_{f.name}"], default = f.default_factory, "=_none"
            value = f"_of_{f.name}() if {f.name} is _none else {f.name}"
        elif f.default is not MISSING:
            known[f"_of_{f.name}"], default = f.default, f"=_of_{f.name}"
        if f.init:
            (named if f.kw_only else placed).append(f.name + default)
            body.append(f"_set(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = [*placed, *(named if len(named) > 1 else [])]
    return f"def __init__({', '.join(arguments)}): {'; '.join(body) or 'pass'}"


def _repr(cls: Any, known: dict[str, Any]) -> str:
    known["_guarded"] = recursive_repr()
    shown = ", ".join(f"{f.name}={{self.{f.name}!r}}" for f in fields(cls) if f.repr)
    return f"@_guarded\ndef __repr__(self): return f'{{self.__class__.__qualname__}}({shown})'"


def _equality(cls: Any, known: dict[str, Any]) -> str:
    names = [f.name for f in fields(cls) if f.compare]
    ours, others = ("".join(f"{x}.{name}, " for name in names) for x in ("self", "other"))
    same = "other.__class__ is self.__class__"
    return f"def __eq__(self, other): return ({ours}) == ({others}) if {same} else NotImplemented"


def _hash(cls: Any, known: dict[str, Any]) -> str:
    hashed = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self): return hash(({''.join(f'self.{name}, ' for name in hashed)}))"
