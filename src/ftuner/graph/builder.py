"""Builds a graph node by node and folds constants on the way.

A node whose operands are constants is not made: its result is a constant. Small integer tensors are
followed element by element as dims, so that the arithmetic on shapes in model files becomes dims
and leaves no nodes. The shapes of later nodes depend on these dims, so folding cannot wait for a
pass.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from ftuner.core import dim as dims_of
from ftuner.core.dim import Dim, Shape, least_value, product, static
from ftuner.core.dtype import ADDRESSABLE_BYTES, ELEMENT_DTYPES, INT32, INT64, DType
from ftuner.errors import GraphError, IndexRangeError, ShapeError, UnsupportedOperatorError
from ftuner.graph.arrays import converted
from ftuner.graph.folding import Folding
from ftuner.graph.ir import (
    MAX_RANK,
    RANDOM_KEY,
    Application,
    Array,
    Constraint,
    Graph,
    Node,
    RandomKey,
    TensorType,
    Value,
    live_nodes,
    writing_to,
)
from ftuner.graph.known_values import MAX_FOLLOWED, KnownValues
from ftuner.graph.operator import Operator, misfit
from ftuner.graph.operators import OPERATORS

COMMUTATIVE = ("add", "multiply", "equal", "logical_and", "logical_or")
"""Operators of two operands that may be exchanged, with the same bits in the result."""
MIN_NARROW_BYTES = 1 << 10
"""Constants of 8-bit integers of this size or more are not widened while the graph is built,
because they may be weights. Assumed: smaller products do not take long."""


class Builder:
    """The nodes and constraints of a graph so far."""

    def __init__(self, answered: Mapping[str, tuple[Dim, ...]] | None = None) -> None:
        """`answered`: the elements, as dims, of computed tensors, by their names; see `answers`."""
        self._answered = {} if answered is None else answered
        self.nodes: list[Node] = []
        self.constraints: dict[tuple[Dim, Dim, bool], Constraint] = {}
        self.where = ""
        """Origin of the next nodes, for error messages."""
        self.operands: tuple[Shape, ...] = ()
        """The shapes that the origin reads, for error messages."""
        self.unknown: set[str] | None = None
        """For a graph that nothing runs, which is built for its types: the symbols of extents that
        running it would tell. Nothing is required of its dims and indices."""
        self._numbers = itertools.count(1)
        self._inputs: set[str] = set()
        self._made: dict[object, tuple[Value, ...]] = {}
        self._scalars: dict[tuple[str, DType], Value] = {}
        # Weak: in a cycle, weights would be kept until the next collection.
        this = weakref.proxy(self)
        self.known = KnownValues(this)
        self.folding = Folding()
        # Nodes have their random numbers from a key, which is made for the first one.
        self._key: Callable[[], Value] = cache(lambda: RandomKey(this.name(), RANDOM_KEY))
        self._streams = itertools.count()

    def within(self) -> Builder:
        """A builder of a graph within this one, which may read the values of this one."""
        found = Builder(self._answered)
        found._numbers, found._inputs, found.folding = self._numbers, self._inputs, self.folding
        found._key, found._streams, found.unknown = self._key, self._streams, self.unknown
        found.known = self.known.within(weakref.proxy(found))
        found.where = self.where
        return found

    @contextmanager
    def writing(self) -> Iterator[Builder]:
        """Have operators on values, and the functions of `graph.algebra`, add nodes to this builder
        meanwhile, in this thread."""
        with writing_to(self):
            yield self

    def random_stream(self, seed: int | None = None) -> Value:
        """A stream of random numbers, for operators that draw them: of all nodes its own or, with a
        seed, that of the seed. Graphs that are built alike have the same streams."""
        number = 0 if seed is not None else self.random_number()
        return self.add("random_stream", self._key(), number=number, seed=seed)

    def random_number(self) -> int:
        """A number that no other stream, and no other loop, has."""
        return next(self._streams)

    @contextmanager
    def iteration(self, loop: int, number: Value) -> Iterator[None]:
        """Have nodes draw the random numbers of an iteration of a loop: the same, with and without
        a seed, whether the graph is of all iterations or of one. `loop`: its `random_number`.
        `number`: that of the iteration."""
        outer = key, _ = self._key, self._streams
        self._key = cache(lambda: self.add("random_key", key(), number, number=loop))
        self._streams = itertools.count()
        try:
            yield
        finally:
            self._key, self._streams = outer

    def name(self) -> str:
        names = (f"v{number}" for number in self._numbers)
        return next(name for name in names if name not in self._inputs)

    def input(self, name: str, dtype: DType, shape: Shape) -> Value:
        self._inputs.add(name)
        return Value(name, TensorType(dtype, shape))

    def constant(self, array: Any, dtype: DType | None = None) -> Value:
        """A constant of dtype `dtype`, or else of the array's own."""
        if dtype is None:
            array = np.asarray(array)
            # Other libraries add a bfloat16 to NumPy.
            found = ELEMENT_DTYPES.get(array.dtype.name)
            if found is None:
                raise GraphError(f"constant of dtype {array.dtype}")
        else:
            found = dtype
        array = converted(array, found)
        dims = None
        if found in (INT32, INT64) and array.size <= MAX_FOLLOWED:
            dims = tuple(int(x) for x in array.ravel())
        return Value(self.name(), TensorType(found, array.shape), array, dims)

    def scalar(self, value: float, dtype: DType) -> Value:
        """A constant without axes.

        Raises:
            GraphError: the dtype has no such number.
        """
        key = (str(value), dtype)
        if key not in self._scalars:
            try:
                if dtype.kind in ("int", "uint") and value != int(value):
                    raise ValueError
                self._scalars[key] = self.constant(value, dtype)
            except (OverflowError, ValueError):
                raise GraphError(f"{self.where}: no {dtype} is {value}") from None
        return self._scalars[key]

    def stored(self, array: Any, dtype: DType) -> Value:
        """A constant of the model file. The bytes that may be folded grow with these."""
        self.folding.allow(array.nbytes)
        return self.constant(array, dtype)

    def dims(self, values: Sequence[Dim], shape: Shape | None = None) -> Value:
        """An int64 tensor with the given elements: a vector unless `shape` is given."""
        shape = (len(values),) if shape is None else shape
        if all(isinstance(v, int) for v in values):
            try:
                return self.constant(_int64s(values).reshape(shape))
            except ShapeError as error:
                raise ShapeError(self._placed(error)) from None
        return Value(self.name(), TensorType(INT64, shape), None, tuple(values))

    def require(self, x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
        """Require x == y, or (`or_one`) that one of them is 1. What is not known now becomes a
        constraint, checked at run time. Nothing is required of a graph that is not run.

        Raises:
            ShapeError: it is known not to hold.
        """
        if x == y or (or_one and 1 in (x, y)) or self.unknown is not None:
            return
        text = f"{self.where}: {what}" if self.where else what
        if isinstance(x, int) and isinstance(y, int):
            raise ShapeError(f"{text}: {x} and {y}")
        constraint = Constraint(x, y, or_one, text, self.operands)
        self.constraints.setdefault((x, y, or_one), constraint)

    def add(self, op: str, /, *inputs: Value, **attributes: Any) -> Value:
        """The result of an operator with one result."""
        (result,) = self.add_many(op, *inputs, **attributes)
        return result

    def add_many(self, op: str, /, *inputs: Value, **attributes: Any) -> tuple[Value, ...]:
        """The results of an operator.

        Raises:
            UnsupportedOperatorError: no operator has this name.
            GraphError: the operator takes other operands or attributes.
            ShapeError, GraphError, IndexRangeError: the operands break the operator's shape rule,
                or their known elements are invalid.
        """
        operator = OPERATORS.get(op)
        if operator is None:
            raise UnsupportedOperatorError(self._placed(f"ftuner has no operator {op!r}"))
        try:
            types = self._inferred(operator, inputs, attributes)
            self._expect_possible(op, types)
            made = Application(op, inputs, attributes, types)
            known = self._folded(made)
        except (ShapeError, GraphError) as error:
            raise type(error)(self._placed(error)) from None
        except IndexError as error:
            if self.unknown is None:
                raise IndexRangeError(self._placed(error)) from None
            known = None
        except ValueError as error:
            raise GraphError(self._placed(error)) from None
        if known is not None:
            return known
        uniform = self._uniform(made)
        if uniform is not None:
            return (uniform,)
        inputs = tuple(self.materialised(v) for v in inputs)
        operands = tuple(sorted(inputs, key=lambda v: v.name)) if op in COMMUTATIVE else inputs
        key = (op, operands, tuple(sorted(attributes.items())))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = tuple(Value(self.name(), type_) for type_ in types)
            self.nodes.append(Node(op, inputs, found, attributes))
            self.known.note(made, found[0])
            for value in found:
                if value.name in self._answered:
                    self.known.presume(value, self._answered[value.name])
        return found

    def _inferred(
        self, operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Any]
    ) -> tuple[TensorType, ...]:
        """The types of the results. Raises GraphError also for other operands or attributes than
        an operator has."""
        wrong = misfit(operator.reference, len(inputs), tuple(attributes))
        types: tuple[TensorType, ...] = ()
        try:
            types = operator.infer([v.type for v in inputs], attributes, self.require)
        except (LookupError, TypeError, ValueError):
            if not wrong:
                raise
        if wrong:
            raise GraphError(f"operator {operator.name!r}: {wrong}")
        return types

    def _uniform(self, made: Application) -> Value | None:
        """A result of which all elements are equal to a constant, or that a condition which is the
        same everywhere chooses: a broadcast."""
        (op, inputs, *_), shape = made, made.types[0].shape
        if op == "where" and (holds := self.known.element(inputs[0])) is not None:
            chosen = inputs[1 if bool(holds.constant) else 2]
            return chosen if chosen.shape == shape else self.add("broadcast", chosen, shape=shape)
        element = self.known.element_of(made)
        if element is None or (op == "broadcast" and inputs[0] is element):
            return None
        return self.add("broadcast", element, shape=shape)

    def producer(self, value: Value) -> Node | None:
        """The node that gives a value, if it is one of this builder's."""
        return next((node for node in reversed(self.nodes) if value in node.outputs), None)

    def _expect_possible(self, op: str, types: Sequence[TensorType]) -> None:
        """Demand that extents are zero or more, and that tensors are not too large for memory."""
        for type_ in types:
            if type_.rank > MAX_RANK:
                raise ShapeError(f"{op} would give {type_.rank} axes; at most {MAX_RANK}")
            elements = product(type_.shape)
            if isinstance(elements, int) and elements * type_.dtype.itemsize > ADDRESSABLE_BYTES:
                raise ShapeError(f"{op} would give {type_}; more than an address space holds")
        for n in (n for type_ in types for n in type_.shape):
            least = least_value(n)
            if least is None or least < 0:
                what = f"{op} would give {', '.join(map(str, types))}"
                if isinstance(n, int):
                    raise ShapeError(what)
                self.require(dims_of.maximum(-n, 0), 0, what)

    def _placed(self, error: Exception | str) -> str:
        text = str(error)
        return f"{self.where}: {text}" if self.where and not text.startswith(self.where) else text

    def materialised(self, value: Value) -> Value:
        """The value as one that exists at run time: dims become a node."""
        if value.dims is None or value.constant is not None:
            return value
        found = self._made.get(("dims", value.dims))
        if found is None:
            found = (Value(self.name(), TensorType(INT64, (len(value.dims),))),)
            self.nodes.append(Node("dims", (), found, {"dims": value.dims}))
            self._made["dims", value.dims] = found
            self.known.presume(found[0], value.dims)
        (flat,) = found
        if value.dtype != INT64:
            flat = self.add("cast", flat, to=value.dtype)
        return flat if value.shape == flat.shape else self.add("reshape", flat, shape=value.shape)

    def _folded(self, made: Application) -> tuple[Value, ...] | None:
        results = None if _may_stay_narrow(made) else self.folding.folded(made)
        if results is not None:
            rows = zip(results, made.types, strict=True)
            return tuple(self.constant(result, type_.dtype) for result, type_ in rows)
        type_, followed = made.types[0], self.known.dims(made)
        if followed is None:
            return None
        if type_.dtype.kind == "int":
            followed = [_wrapped(d, type_.dtype.bits) for d in followed]
        if all(isinstance(d, int) for d in followed):
            array = _int64s(followed).astype(type_.dtype.name)
            return (self.constant(array.reshape(static(type_.shape))),)
        return (Value(self.name(), type_, None, tuple(followed)),)

    def graph(self, inputs: Sequence[Value], outputs: Sequence[tuple[str, Value]]) -> Graph:
        """The graph of what the outputs depend on. If random numbers are among that, their key is
        the last input."""
        made = tuple((name, self.materialised(value)) for name, value in outputs)
        nodes = live_nodes(self.nodes, [value for _, value in made])
        keys = {v for node in nodes for v in node.inputs if isinstance(v, RandomKey)}
        return Graph((*inputs, *keys), made, nodes, tuple(self.constraints.values()))


def _wrapped(value: Dim, bits: int) -> Dim:
    """A number as a signed integer of some bits has it."""
    if not isinstance(value, int):
        return value
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _int64s(values: Sequence[Dim]) -> Array:
    """Integers as an array.

    Raises:
        ShapeError: one of them has more than 64 bits.
    """
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise ShapeError(f"extents of more than 64 bits: {list(values)}") from None


def _may_stay_narrow(made: Application) -> bool:
    """Whether a node widens a matrix that products may read as it is."""
    array = made.inputs[0].constant if made.op == "cast" else None
    if array is None or made.types[0].dtype.kind != "float":
        return False
    return array.ndim >= 2 and array.itemsize == 1 and array.nbytes >= MIN_NARROW_BYTES
