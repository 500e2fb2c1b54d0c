"""Definitions: what an operator computes, as an index expression; nothing of how.

A `Nest` says what each element of its results is, given the index of the element. It has *kept*
axes, one for each axis of a result, and possibly *reduced* ones. Its `stages` are reductions over
the reduced axes, each of which may use those before it; its `stores` are the results, for each
kept index or for each kept and reduced one. Softmax has two stages and stores all elements, a sum
has one stage and stores one for each kept index, a transposition has no stage.

Expressions are sequences of typed `Step`s whose arguments are earlier steps: equal steps are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import BOOL, INT64, DType
from ftuner.core.frozen import dataclass

Payload = int | float | bool | str | Dim | None


ABSENT = "absent"
"""Payload of a `where`."""
POSITIONAL = frozenset({"argmax", "argmin", "scan"})
"""Reductions in which the order of the elements counts."""


class Step(NamedTuple):
    """One operation. What `payload` is depends on `op`:

    - `constant`: the number; `index`: the number of an axis, kept axes first; `dim`: the dim;
    - `load`: the number of an operand, arguments are the index along each of its axes;
    - `stage`: the number of a reduction;
    - `checked`: a text that names the check; arguments are an index that is data, which counts
      from the back if it is negative, and the extent it must be within: if it is not, the program
      fails with that text;
    - `where`: `ABSENT` if its second argument may read outside operands where the condition does
      not hold, so that nothing may be read there; otherwise nothing;
    - otherwise nothing: arithmetic as NumPy's function of the same name, `cast`, or `bit_cast`,
      the number that memory would hold in the same bits; `philox`, of a counter and a key, and
      `normal`, of two words of random bits, are those of `core.random_numbers`.
    """

    op: str
    dtype: DType
    arguments: tuple[int, ...] = ()
    payload: Payload = None

    @property
    def number(self) -> int:
        """The payload of an `index`, a `load` or a `stage`."""
        assert isinstance(self.payload, int)
        return self.payload

    @property
    def dim(self) -> Dim | None:
        """The dim that an int64 step stands for, if it is one."""
        known = self.op in ("constant", "dim") and self.dtype == INT64
        return self.payload if known else None  # type: ignore[return-value]


@dataclass(frozen=True)
class Operand:
    """An array that a nest reads: `strides` are in elements."""

    dtype: DType
    shape: Shape
    strides: Shape
    offset: Dim = 0
    """Elements from the beginning of its buffer to the first of the array."""


@dataclass(frozen=True)
class Stage:
    """The reduction of a step over all reduced axes: `sum`, `product`, `maximum`, `minimum`, or
    `argmax`, `argmin` (the first such index along the one reduced axis, as int64). A `scan` is the
    reduction so far, which the store of each reduced index sees."""

    kind: str
    value: int
    last: bool = False
    """For `argmax` and `argmin`: the last such index. For `scan`: the index itself counts."""
    combine: str = "sum"
    """For `scan`: the reduction, `sum` or `product`."""
    count: int | None = None
    """The step that is the number of the first indices along the one reduced axis that are
    reduced; None for all. It is computed once for each kept index."""

    @property
    def needed(self) -> tuple[int, ...]:
        """The steps that it is computed from."""
        return (self.value,) if self.count is None else (self.value, self.count)

    @property
    def positional(self) -> bool:
        """Whether it depends on the positions of elements along the reduced axis."""
        return self.kind in POSITIONAL or self.count is not None

    def moved(self, went: Sequence[int] | Mapping[int, int]) -> Stage:
        """The stage after steps moved: step `i` is now `went[i]`."""
        count = None if self.count is None else went[self.count]
        return replace(self, value=went[self.value], count=count)


@dataclass(frozen=True)
class Store:
    """A result: the value of a step, at each index along `axes` of the nest, in the order of the
    result's own axes. They are the kept axes, or all of them."""

    value: int
    axes: tuple[int, ...]
    at: tuple[int, ...] = ()
    """Of a store whose place is data: the steps that are the index along each axis of the result.
    `axes` is then empty, and all axes of the nest are walked one after the other."""
    combine: str = ""
    """What becomes of the element that is there: a reduction, or nothing if it is replaced."""


@dataclass(frozen=True)
class Nest:
    """A definition, closed: everything that code generation needs."""

    kept: Shape
    reduced: Shape
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    stages: tuple[Stage, ...]
    stores: tuple[Store, ...]

    @property
    def axes(self) -> Shape:
        return self.kept + self.reduced


Value = int
"""The number of a step."""
Index = Sequence[Value]
Body = Callable[["Writer", Index], Value]
"""The element at an index: what an injective operator is, or an operand's load."""


class Writer:
    """Writes steps; equal ones once. Index arithmetic is simplified as it is written."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._known: dict[Step, Value] = {}

    def step(self, op: str, dtype: DType, *arguments: Value, payload: Payload = None) -> Value:
        step = Step(op, dtype, arguments, payload)
        # A payload of 1, 1.0 and True are equal in Python, but dtypes tell them apart.
        found = self._known.get(step)
        if found is None:
            found = self._known[step] = len(self.steps)
            self.steps.append(step)
        return found

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        return self.step("constant", dtype, payload=value if dtype.kind == "float" else int(value))

    def integer(self, value: Dim) -> Value:
        """A dim as an int64."""
        if isinstance(value, int):
            return self.constant(value, INT64)
        return self.step("dim", INT64, payload=value)

    def index(self, axis: int) -> Value:
        return self.step("index", INT64, payload=axis)

    def add(self, x: Value, y: Value) -> Value:
        """The sum of two indices."""
        return self._arithmetic("add", x, y, lambda a, b: a + b, neutral=0)

    def multiply(self, x: Value, y: Value) -> Value:
        """The product of two indices."""
        if 0 in (self.steps[x].dim, self.steps[y].dim):
            return self.integer(0)
        return self._arithmetic("multiply", x, y, lambda a, b: a * b, neutral=1)

    def _arithmetic(
        self, op: str, x: Value, y: Value, fold: Callable[[Dim, Dim], Dim], neutral: int
    ) -> Value:
        a, b = self.steps[x].dim, self.steps[y].dim
        if a is not None and b is not None:
            return self.integer(fold(a, b))
        if b == neutral:
            return x
        if a == neutral:
            return y
        return self.step(op, INT64, x, y)

    def subtract(self, x: Value, y: Value) -> Value:
        a, b = self.steps[x].dim, self.steps[y].dim
        if a is not None and b is not None:
            return self.integer(a - b)
        return x if b == 0 else self.step("subtract", INT64, x, y)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        return self.step(op, BOOL, x, y)

    def within(self, position: Value, extent: Value, also: Value | None = None) -> Value:
        """Whether a position is within an extent, and a further condition holds."""
        low = self.compare("less_equal", self.integer(0), position)
        both = self.step("logical_and", BOOL, low, self.compare("less", position, extent))
        return both if also is None else self.step("logical_and", BOOL, also, both)

    def where(self, condition: Value, x: Value, y: Value, absent: bool = False) -> Value:
        """`absent`: elsewhere, x may read outside operands."""
        payload = ABSENT if absent else None
        return self.step("where", self.steps[x].dtype, condition, x, y, payload=payload)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if self.steps[x].dtype == dtype else self.step("cast", dtype, x)

    def copy(
        self, steps: Sequence[Step], replace: Mapping[tuple[str, object], Body], at: Index
    ) -> list[Value]:
        """Write steps of another definition for the index `at`.

        `replace` gives, for the `load` of an operand or a `stage`, what takes its place: a body
        that is called with the arguments of the step. Returns where each step went.
        """
        went: list[Value] = []
        for step in steps:
            arguments = [went[a] for a in step.arguments]
            other = replace.get((step.op, step.payload))
            if other is not None:
                went.append(other(self, arguments))
            elif step.op == "index":
                went.append(at[step.number])
            elif step.op in ("add", "multiply", "subtract") and step.dtype == INT64:
                went.append(getattr(self, step.op)(*arguments))
            else:
                went.append(self.step(step.op, step.dtype, *arguments, payload=step.payload))
        return went
