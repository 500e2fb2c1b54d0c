"""The graph: operators on tensors whose shapes may hold symbols.

A `Value` is a tensor: a graph input, a constant, or the result of one `Node`. A graph is a list of
nodes in an order in which each comes after those it reads. Passes make new graphs.

Values have Python's operators, which add nodes to the builder that is being written to; the
functions of `graph.algebra` do as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from types import EllipsisType
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from ftuner.core.dim import Dim, Shape, Symbolic, UsedSymbols, maximum, product
from ftuner.core.dtype import BOOL, FLOAT32, FLOAT64, HALF_DTYPES, UINT64, DType
from ftuner.core.frozen import dataclass
from ftuner.core.symbolic import Symbol
from ftuner.errors import GraphError

Array = npt.NDArray[Any]
MAX_RANK = 64
"""Most axes of a tensor: NumPy's own limit."""


@dataclass(frozen=True)
class TensorType:
    """An element type and a shape."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Building(Protocol):
    """What operators on values add nodes to: a `Builder`."""

    where: str

    def add(self, op: str, /, *inputs: Value, **attributes: Any) -> Value: ...
    def add_many(self, op: str, /, *inputs: Value, **attributes: Any) -> tuple[Value, ...]: ...
    def scalar(self, value: float, dtype: DType, /) -> Value: ...
    def dims(self, values: Sequence[Dim], shape: Shape, /) -> Value: ...
    def constant(self, array: Any, dtype: DType | None = None, /) -> Value: ...
    def require(self, x: Dim, y: Dim, what: str, or_one: bool = False) -> None: ...


BUILDING: ContextVar[Building] = ContextVar("BUILDING")
"""Set by `writing_to`. Values have no builder of their own: the graph within a node reads
values around it."""


def building() -> Building:
    """The builder that is being written to.

    Raises:
        GraphError: there is none.
    """
    try:
        return BUILDING.get()
    except LookupError:
        raise GraphError(
            "operators on values add nodes to a builder; write them within `builder.writing()`"
        ) from None


@contextmanager
def writing_to(to: Building) -> Iterator[None]:
    """Have operators on values, and the functions of `graph.algebra`, add nodes to a builder
    meanwhile, in this thread."""
    token = BUILDING.set(to)
    try:
        yield
    finally:
        BUILDING.reset(token)


def _with_operand(op: str) -> Callable[[Value, Operand], Value]:
    """The method that applies an operator to a value and an operand."""
    return lambda x, other: building().add(op, x, x.like(other))


def _exchanged(op: str) -> Callable[[Value, Operand], Value]:
    return lambda x, other: building().add(op, x.like(other), x)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor. Equal only to itself: `algebra.equal` compares elements.

    The other operand of an operator may be a number or a dim, which takes the value's dtype. `/` of
    integers rounds towards zero, as in ONNX.
    """

    name: str
    type: TensorType
    constant: Array | None = None
    """The elements, if they are known. Never written to."""
    dims: tuple[Dim, ...] | None = None
    """The elements of a small integer tensor in row-major order, if each is known as a dim."""

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"

    __array_ufunc__ = None  # NumPy's numbers leave operators to values.

    def like(self, other: Operand) -> Value:
        """An operand as a value: a number or a dim as a scalar of this value's dtype."""
        if isinstance(other, Value):
            return other
        if isinstance(other, Symbolic):
            return building().dims([other], ()).cast(self.dtype)
        return building().scalar(other, self.dtype)

    __add__ = __radd__ = _with_operand("add")
    __sub__, __rsub__ = _with_operand("subtract"), _exchanged("subtract")
    __truediv__, __rtruediv__ = _with_operand("divide"), _exchanged("divide")
    __mod__, __pow__ = _with_operand("remainder"), _with_operand("power")
    __lt__, __gt__ = _with_operand("less"), _exchanged("less")
    __le__, __ge__ = _with_operand("less_equal"), _exchanged("less_equal")
    at_least, at_most = _with_operand("maximum"), _with_operand("minimum")

    def __mul__(self, other: Operand) -> Value:
        same = not isinstance(other, Value) and other == 1
        return self if same else building().add("multiply", self, self.like(other))

    __rmul__ = __mul__

    def __and__(self, other: Value) -> Value:
        return building().add(f"{self._kind}_and", self, other)

    def __or__(self, other: Value) -> Value:
        return building().add(f"{self._kind}_or", self, other)

    def __invert__(self) -> Value:
        return building().add(f"{self._kind}_not", self)

    @property
    def _kind(self) -> str:
        return "logical" if self.dtype == BOOL else "bitwise"

    def __neg__(self) -> Value:
        return building().add("negative", self)

    def __abs__(self) -> Value:
        return building().add("absolute", self)

    def __matmul__(self, other: Value) -> Value:
        """The product as `numpy.matmul` defines it: a vector is a row or a column."""
        if self.rank == 0 or other.rank == 0:
            raise GraphError(f"{building().where}: product of {self.type} and {other.type}")
        left = self.unsqueeze([0]) if self.rank == 1 else self
        right = other.unsqueeze([1]) if other.rank == 1 else other
        result = building().add("matmul", left, right)
        if other.rank == 1:
            result = result.squeeze([result.rank - 1])
        return result.squeeze([result.rank - min(other.rank, 2)]) if self.rank == 1 else result

    def cast(self, dtype: DType) -> Value:
        return self if self.dtype == dtype else building().add("cast", self, to=dtype)

    def cast_explicitly(self, dtype: DType) -> Value:
        """A conversion that the model asks for: it rounds to half precision on every device.
        Integers are float32 first, as in onnxruntime."""
        if dtype.name not in HALF_DTYPES or self.dtype in (dtype, BOOL):
            return self.cast(dtype)
        return building().add("cast", self.cast(FLOAT32), to=dtype, explicit=True)

    def computed(self) -> Value:
        """The tensor in a floating dtype: its own, or float64 for integers."""
        return self if self.dtype.kind == "float" else self.cast(FLOAT64)

    def wide(self) -> Value:
        """The tensor in float32 if it is of half precision, which can hold no long sum."""
        return self.cast(FLOAT32) if self.dtype.name in HALF_DTYPES else self

    # Layout.

    def reshape(self, shape: Shape) -> Value:
        return self if self.shape == shape else building().add("reshape", self, shape=shape)

    def transpose(self, perm: Sequence[int]) -> Value:
        same = tuple(perm) == tuple(range(self.rank))
        return self if same else building().add("transpose", self, perm=tuple(perm))

    def swapped(self) -> Value:
        """The last two axes exchanged."""
        return self.transpose((*range(self.rank - 2), self.rank - 1, self.rank - 2))

    def moved(self, axis: int, to: int) -> Value:
        """The tensor with one axis at another place among the others."""
        order = [i for i in range(self.rank) if i != axis]
        order.insert(to, axis)
        return self.transpose(order)

    def unsqueeze(self, axes: Iterable[int]) -> Value:
        """The tensor with new axes of extent 1, whose numbers count in the result."""
        shape: list[Dim] = list(self.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.reshape(tuple(shape))

    def squeeze(self, axes: Sequence[int]) -> Value:
        """The tensor without some axes of extent 1."""
        for axis in axes:
            building().require(self.shape[axis], 1, f"squeeze axis {axis} of {self.type}")
        return self.reshape(tuple(n for i, n in enumerate(self.shape) if i not in axes))

    def broadcast(self, shape: Shape) -> Value:
        return self if self.shape == shape else building().add("broadcast", self, shape=shape)

    def slice(self, axis: int, start: Dim, extent: Dim, step: int = 1) -> Value:
        """The elements `start`, `start + step`, ... along an axis, `extent` of them."""
        if (start, step) == (0, 1) and extent == self.shape[axis]:
            return self
        starts: list[Dim] = [0] * self.rank
        steps, shape = [1] * self.rank, list(self.shape)
        starts[axis], steps[axis], shape[axis] = start, step, extent
        return building().add(
            "slice", self, starts=tuple(starts), steps=tuple(steps), shape=tuple(shape)
        )

    def pieces(self, axis: int, extents: Sequence[Dim]) -> list[Value]:
        """The tensor split along an axis into pieces of the given extents."""
        found: list[Value] = []
        start: Dim = 0
        for extent in extents:
            found.append(self.slice(axis, start, extent))
            start = start + extent
        return found

    def __getitem__(self, index: Index) -> Value:
        """The elements at an index as of NumPy: of dims and slices, `None` and `...`. Positions
        count from the front, and steps are 1."""
        entries = index if isinstance(index, tuple) else (index,)
        if ... not in entries:
            entries = (*entries, ...)
        left = self.rank - sum(e is not None and e is not ... for e in entries)
        found, shape, axis = self, list[Dim](), 0
        for entry in entries:
            if entry is ...:
                shape += found.shape[axis : axis + left]
                axis += left
            elif entry is None:
                shape.append(1)
            elif isinstance(entry, slice):
                start: Dim = 0 if entry.start is None else entry.start
                stop: Dim = found.shape[axis] if entry.stop is None else entry.stop
                found = found.slice(axis, start, stop - start)
                shape.append(found.shape[axis])
                axis += 1
            else:
                found, axis = found.slice(axis, entry, 1), axis + 1
        return found.reshape(tuple(shape))

    __iter__ = None  # Rows are not iterated over: their number may be a symbol.

    # Reductions.

    def reduce(self, kind: str, axes: Sequence[int], keep: bool = True) -> Value:
        axes = tuple(sorted(axes))
        result = building().add("reduce", self, kind=kind, axes=axes) if axes else self
        return result.unsqueeze(axes) if keep and axes else result

    def mean(self, axes: Sequence[int], keep: bool = True) -> Value:
        """The mean over axes; of no element it is zero, as in onnxruntime."""
        wide = self.wide()
        count = maximum(product(self.shape[a] for a in axes), 1)
        elements = building().dims([count], ()).cast(wide.dtype)
        return (wide.reduce("sum", axes, keep) / elements).cast(self.dtype)


Operand = Value | Symbolic | float
Entry = Symbolic | int | slice | None | EllipsisType
Index = Entry | tuple[Entry, ...]

RANDOM_KEY = TensorType(UINT64, (2,))
"""A key of random numbers: where they come from, and the number of the run."""


@dataclass(frozen=True, eq=False)
class RandomKey(Value):
    """The last input of a graph that draws random numbers: each run of a model has a new one, which
    callers do not give; see `graph.ops.random_numbers`."""


@dataclass(frozen=True, eq=False)
class Node:
    """The application of an operator of the table `graph.operators.OPERATORS`."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def binds(self) -> tuple[str, ...]:
        """The symbols that the node binds at run time: the data-dependent extents of its results,
        which the attributes `count`, one, and `counts`, several, name."""
        one, several = self.attributes.get("count"), self.attributes.get("counts", ())
        return several if one is None else (one,)

    @property
    def output(self) -> Value:
        """The one output."""
        assert len(self.outputs) == 1
        return self.outputs[0]

    def __str__(self) -> str:
        attributes = "".join(f", {k}={v}" for k, v in self.attributes.items())
        inputs = ", ".join(v.name for v in self.inputs)
        outputs = ", ".join(map(str, self.outputs))
        return f"{outputs} = {self.op}({inputs}{attributes})"


class Application(NamedTuple):
    """An operator applied to values: a node without results, which have these types."""

    op: str
    inputs: Sequence[Value]
    attributes: Mapping[str, Any]
    types: Sequence[TensorType]


@dataclass(frozen=True)
class Constraint:
    """A condition on dims, checked when they are bound: x equals y, or (`or_one`) one of them is
    1. `what` describes it in error messages."""

    x: Dim
    y: Dim
    or_one: bool
    what: str
    operands: tuple[Shape, ...] = ()
    """The shapes of the operands of the node that it is of, for error messages."""

    def holds(self, x: int, y: int) -> bool:
        return x == y or (self.or_one and 1 in (x, y))


def equal_symbols(constraints: Iterable[Constraint]) -> dict[str, str]:
    """For symbols that some constraints demand to be equal to others, which name all of them may
    have: the layers of a decoder may each have a symbol for the length of the text."""
    earlier: dict[str, str] = {}

    def first(name: str) -> str:
        while (known := earlier.get(name, name)) != name:
            earlier[name] = name = earlier.get(known, known)
        return name

    for constraint in constraints:
        difference = constraint.x - constraint.y
        if constraint.or_one or isinstance(difference, int):
            continue
        factors = sorted(factor for _, factor in difference.terms)
        atoms = [atom for monomial, _ in difference.terms for atom in monomial]
        names = [atom.name for atom in atoms if isinstance(atom, Symbol)]
        if factors == [-1, 1] and len(atoms) == len(names) == 2:
            one, other = map(first, names)
            if one != other:
                earlier[other] = one
    return {name: first(name) for name in earlier}


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, with the inputs that they read and the outputs that they give."""

    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, Value], ...]
    """(name in the model, value)."""
    nodes: tuple[Node, ...]
    constraints: tuple[Constraint, ...] = ()

    def moved(self) -> Graph:
        """The graph; this one has no nodes any more, so that whoever still has it keeps none of the
        constants. Only for a graph with one reader."""
        found = Graph(self.inputs, self.outputs, self.nodes, self.constraints)
        object.__setattr__(self, "nodes", ())
        return found

    def __str__(self) -> str:
        lines = [f"input {v}" for v in self.inputs]
        lines += [str(n) for n in self.nodes]
        lines += [f"output {name} = {v.name}" for name, v in self.outputs]
        return "\n".join(lines)


def consumers(graph: Graph) -> dict[Value, list[Node]]:
    """The nodes that read each value, in order; a node that reads it twice is there twice."""
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            found.setdefault(value, []).append(node)
    return found


def producers(graph: Graph) -> dict[Value, Node]:
    """The node that gives each value."""
    return {value: node for node in graph.nodes for value in node.outputs}


def used_dims(node: Node) -> list[Dim]:
    """The dims in the shapes and attributes of a node."""
    shapes = (n for value in (*node.inputs, *node.outputs) for n in value.shape)
    return [*shapes, *attribute_dims(node)]


def attribute_dims(node: Node) -> list[Symbolic]:
    """The dims in the attributes of a node that are known only at run time."""
    found: list[Symbolic] = []
    for attribute in node.attributes.values():
        entries = attribute if isinstance(attribute, tuple) else (attribute,)
        found += [entry for entry in entries if isinstance(entry, Symbolic)]
    return found


def live_nodes(nodes: Sequence[Node], outputs: Iterable[Value]) -> tuple[Node, ...]:
    """The nodes that outputs depend on, through values or through symbols that nodes bind, in
    order."""
    wanted = set(outputs)
    binding = any(node.binds for node in nodes)
    symbols = UsedSymbols()
    if binding:
        symbols.add(n for value in wanted for n in value.shape)
    kept: list[Node] = []
    for node in reversed(nodes):
        read = any(value in wanted for value in node.outputs)
        if read or any(name in symbols.names for name in node.binds):
            kept.append(node)
            wanted.update(node.inputs)
            if binding:
                symbols.add(used_dims(node))
    return tuple(reversed(kept))
