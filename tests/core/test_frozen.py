"""Frozen dataclasses are those of `dataclasses`, but for what is compiled when."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest
from tests.child import printed

from ftuner.core.frozen import dataclass


def classes(decorator: Any) -> tuple[Any, ...]:
    """The same classes by a decorator."""

    @decorator(frozen=True)
    class Plain:
        x: int
        y: str = "y"

    @decorator(frozen=True)
    class Nothing:
        kind: ClassVar[str] = "nothing"

    @decorator(frozen=True)
    class Base:
        x: int
        seen: list[int] = field(default_factory=list, compare=False, repr=False)

    @decorator(frozen=True)
    class Derived(Base):
        """It has a field after the defaults, an own one and a check."""

        z: float = 2.0
        line: int = field(default=0, compare=False, repr=False, kw_only=True)
        double: int = field(init=False)
        fixed: bool = field(init=False, default=True)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")
            object.__setattr__(self, "double", 2 * self.x)

    @decorator(frozen=True, eq=False)
    class Same:
        x: int

    @decorator(frozen=True, repr=False)
    class Own:
        x: int
        y: int = field(default=1, hash=False)

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.x == other.x

        def __hash__(self) -> int:
            return self.x

    return Plain, Nothing, Base, Derived, Same, Own


OURS, THEIRS = classes(dataclass), classes(dataclasses.dataclass)
GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}), ((1,), {}), ((2,), {}), ((-1,), {}), ((1, "y"), {}), ((1, [3]), {}), ((1,), {"x": 1}),
    ((), {"x": 1}), ((), {"x": 1, "line": 4}), ((1, [2], 3.0), {}), ((1, [2], 3.0, 4), {}),
    ((1,), {"w": 1}), ((1,), {"y": 7}),
)  # fmt: skip
KINDS = range(len(OURS))


def outcome(run: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raises."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error)


def made(cls: Any) -> list[Any]:
    return [outcome(lambda given=given: cls(*given[0], **given[1])) for given in GIVEN]


def facts(cls: Any) -> list[Any]:
    """What is seen of values of a class."""
    values = made(cls)
    found: list[Any] = [
        v if isinstance(v, tuple) else (repr(v).split(" at 0x")[0], vars(v)) for v in values
    ]
    found += [v == w for v in values for w in values] + [v != w for v in values for w in values]
    kept = [v for v in values if not isinstance(v, tuple)]
    by_identity = cls.__hash__ is object.__hash__
    found += [by_identity] + [outcome(lambda v=v: hash(v)) for v in kept if not by_identity]
    for v in kept:
        for name in ("x", "unknown"):
            found += [outcome(lambda v=v, name=name: setattr(v, name, 3))]
            found += [outcome(lambda v=v, name=name: delattr(v, name))]
        found += [vars(copy.copy(v)), vars(copy.deepcopy(v)), dataclasses.asdict(v)]
        found += [vars(dataclasses.replace(v))]
    found += [(f.name, f.default, f.init, f.kw_only) for f in dataclasses.fields(cls)]
    return [*found, cls.__match_args__]


@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_those_of_dataclasses(kind: int) -> None:
    assert facts(OURS[kind]) == facts(THEIRS[kind])


def test_values_of_other_classes_differ() -> None:
    plain, base = OURS[0], OURS[2]
    assert plain(1).__eq__(base(1)) is NotImplemented
    assert plain(1) != base(1)


def test_a_value_within_itself_is_shown() -> None:
    value = OURS[0](inside := [])
    inside.append(value)
    assert repr(value).count("...") == 1


@dataclass(frozen=True)
class Sent:
    """It is pickled."""

    x: int


def test_values_that_arrive_first_are_equal_and_hashed() -> None:
    """No constructor of the class has run in the process that receives them."""
    sent = pickle.dumps([Sent(3), Sent(3)])
    script = (
        f"import pickle; a, b = pickle.loads({sent!r}); "
        "print(a == b, hash(a) == hash(b) == hash((3,)), a, type(a)(x=4).x)"
    )
    assert printed("-c", script).split("\n")[0] == "True True Sent(x=3) 4"


def test_no_constructor_is_compiled_before_the_first_value() -> None:
    @dataclass(frozen=True)
    class Late:
        x: int

    before = Late.__init__
    assert (Late(1).x, Late(x=2).x) == (1, 2)
    assert Late.__init__ is not before


def base_and_derived(first: Any, second: Any) -> tuple[Any, Any]:
    @first(frozen=True)
    class Base:
        x: int

    @second(frozen=True)
    class Derived(Base):
        y: int = 2

    return Base, Derived


@pytest.mark.parametrize("first", [dataclass, dataclasses.dataclass])
@pytest.mark.parametrize("second", [dataclass, dataclasses.dataclass])
def test_classes_of_both_decorators_may_be_inherited(first: Any, second: Any) -> None:
    base, derived = base_and_derived(first, second)
    value = derived(1)
    assert repr(value).endswith("Derived(x=1, y=2)")
    assert value == derived(1, 2) != base(1)
    for name in ("x", "y", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 3)
    with pytest.raises(TypeError, match="cannot inherit"):
        dataclasses.dataclass(type("Changing", (base,), {}))


def test_parameters_are_those_of_dataclasses() -> None:
    for one, other in zip(OURS, THEIRS, strict=True):
        assert repr(one.__dataclass_params__) == repr(other.__dataclass_params__)


@pytest.mark.parametrize("decorator", [dataclass, dataclasses.dataclass])
def test_a_plain_subclass_has_attributes_of_its_own(decorator: Any) -> None:
    _, derived = base_and_derived(decorator, decorator)
    value = type("Plain", (derived,), {})(1)
    value.own = 5
    del value.own
    value.own = 6
    assert (value.x, value.y, value.own) == (1, 2, 6)
    for name in ("x", "y"):
        with pytest.raises(dataclasses.FrozenInstanceError, match="assign"):
            setattr(value, name, 3)
        with pytest.raises(dataclasses.FrozenInstanceError, match="delete"):
            delattr(value, name)


UNUSUAL: dict[str, dict[str, Any]] = {
    "InitVar": {"__annotations__": {"x": dataclasses.InitVar[int]}},
    "default_factory": {
        "__annotations__": {"x": int}, "x": field(init=False, default_factory=int),
    },
    "__slots__": {"__annotations__": {"x": int}, "__slots__": ("x",)},
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_not_supported_is_refused(what: str) -> None:
    with pytest.raises(TypeError, match=what):
        dataclass(frozen=True)(type("Unusual", (), UNUSUAL[what]))
