"""The arguments of importers: the node to import, and what is known of the model around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

import numpy as np

from ftuner.core.dim import Dim, Names, product
from ftuner.core.dtype import BOOL
from ftuner.core.frozen import dataclass
from ftuner.errors import GraphError, UnsupportedOperatorError
from ftuner.frontends.onnx.records import GraphRecord, NodeRecord, TensorRecord
from ftuner.graph.algebra import apply, apply_many, constant
from ftuner.graph.builder import Builder
from ftuner.graph.checks import malformed
from ftuner.graph.ir import Array, Value
from ftuner.graph.operator import axis_of
from ftuner.graph.specialization import RunTimeNumberError

MAX_REPEATED = 1 << 16
"""Most nodes, in all, of graphs that are imported again."""
T = TypeVar("T")


class CarriedNumberError(UnsupportedOperatorError):
    """Numbers that must be known depend on what a loop carries."""


class CarriedTypeError(GraphError):
    """An iteration changes the element type or the number of axes of what a loop carries."""


@dataclass(frozen=True)
class Items:
    """A sequence of tensors whose length is known."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Pieces:
    """A sequence of the pieces of a tensor along an axis. Their number may be a symbol."""

    x: Value
    axis: int
    step: int
    """Extent of each piece; the last one may be shorter."""
    keepdims: bool
    """Whether pieces of extent 1 keep the axis."""


@dataclass(frozen=True)
class Growing:
    """A sequence that a loop carries, within the loop: it may only be appended to."""

    before: object
    """Stands for the sequence before the iteration."""
    appended: tuple[Value, ...] = ()
    """By the iteration so far."""


@dataclass(frozen=True)
class Nothing:
    """An optional without an element. One with an element is the element itself."""


Operand = Value | Items | Pieces | Growing | Nothing
Inner = Callable[["Context", GraphRecord, Sequence[Operand]], list[Operand]]
"""Imports a graph that a node has as an attribute, for some inputs; returns its outputs."""


@dataclass(frozen=True)
class NodeView:
    """A node with its operands."""

    record: NodeRecord
    opset: int
    """The version of the operators of the node's domain."""
    inputs: tuple[Operand | None, ...]
    """None for an input that is left out."""
    inner: Inner

    def input(self, number: int) -> Value:
        """A required tensor."""
        found = self.optional(number)
        if found is None:
            raise GraphError(f"{self.record.label}: input {number} is missing")
        return found

    def optional(self, number: int) -> Value | None:
        found = self.operand(number)
        if found is not None and not isinstance(found, Value):
            raise GraphError(f"{self.record.label}: input {number} is no tensor")
        return found

    def operand(self, number: int) -> Operand | None:
        """An input of any kind."""
        return self.inputs[number] if number < len(self.inputs) else None

    def sequence(self, number: int) -> Items | Pieces:
        """A required sequence, to be read.

        Raises:
            CarriedNumberError: a loop appends to it.
        """
        found = self.operand(number)
        if isinstance(found, Growing):
            raise CarriedNumberError(f"{self.record.label}: a sequence that a loop appends to")
        if not isinstance(found, (Items, Pieces)):
            raise GraphError(f"{self.record.label}: input {number} is not a sequence")
        return found

    def present(self) -> list[Value]:
        """All inputs of an operator that takes one or more."""
        return [self.input(i) for i in range(max(len(self.inputs), 1))]

    def gives(self, number: int) -> bool:
        """Whether the node has an output of this number."""
        return number < len(self.record.outputs) and self.record.outputs[number] != ""

    def has(self, name: str) -> bool:
        return name in self.record.attributes

    def integer(self, name: str, default: int | None = None) -> int:
        return self._attribute(name, int, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """An integer attribute that is a boolean."""
        found = self.integer(name, int(default))
        if found not in (0, 1):
            raise GraphError(f"{self.record.label}: attribute {name} is {found}; expected 0 or 1")
        return bool(found)

    def positive(self, name: str, default: int | None = None) -> int:
        """An integer attribute of one or more."""
        found = self.integer(name, default)
        if found < 1:
            raise GraphError(f"{self.record.label}: {name} is {found}; expected 1 or more")
        return found

    def one_of(self, name: str, known: Iterable[str], default: str | None = None) -> str:
        """A text attribute with few values."""
        found = self._attribute(name, str, default)
        if found not in known:
            choice = ", ".join(known)
            raise GraphError(f"{self.record.label}: {name} {found!r}; expected one of {choice}")
        return found

    def number(self, name: str, default: float | None = None, finite: bool = True) -> float:
        """A float attribute; with `finite`, neither infinity nor NaN."""
        found = self._attribute(name, float, default)
        if finite and not math.isfinite(found):
            raise GraphError(f"{self.record.label}: attribute {name} is {found}")
        return found

    def text(self, name: str, default: str | None = None) -> str:
        return self._attribute(name, str, default)

    def graph(self, name: str) -> GraphRecord:
        return self._attribute(name, GraphRecord, None)

    def tensor(self, name: str) -> TensorRecord:
        return self._attribute(name, TensorRecord, None)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        found = self._attribute(name, tuple, default)
        if not all(isinstance(x, int) for x in found):
            raise GraphError(f"{self.record.label}: attribute {name} is not a list of integers")
        return found

    def numbers(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        return self._attribute(name, tuple, default)

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._attribute(name, tuple, None)
        if not all(isinstance(x, str) for x in found):
            raise GraphError(f"{self.record.label}: attribute {name} is not a list of texts")
        return found

    def _attribute(self, name: str, kind: type[T], default: T | None) -> T:
        found = self.record.attributes.get(name, default)
        if found is None:
            raise GraphError(f"{self.record.label}: attribute {name} is missing")
        if not isinstance(found, kind):
            raise GraphError(f"{self.record.label}: attribute {name} is {found!r:.80}")
        return found


class Repeats:
    """Counts the nodes of graphs that are imported more than once: for other extents, or for each
    iteration of a loop. Nested loops could ask for any number."""

    def __init__(self) -> None:
        self._left = MAX_REPEATED

    def take(self, graph: GraphRecord) -> bool:
        """Count one more import of a graph; False if there were too many."""
        self._left -= 1 + node_count(graph)
        return self._left >= 0


def node_count(graph: GraphRecord) -> int:
    """The nodes of a graph, and of graphs within them."""
    inner = (x for n in graph.nodes for x in n.attributes.values() if isinstance(x, GraphRecord))
    return len(graph.nodes) + sum(map(node_count, inner))


@dataclass(frozen=True)
class Context:
    """The context of an importer: the model's facts, and the builder that it writes to."""

    builder: Builder = field(default_factory=Builder)
    answers: Mapping[str, Array] = field(default_factory=dict)
    """The elements that are known by now of tensors which come at run time, by their names; of
    those that are extents the builder has the dims."""
    names: Names = field(default_factory=Names)
    repeats: Repeats = field(default_factory=Repeats)
    nested: bool = False
    """Whether this is of a graph that a node runs."""
    counted: bool = False
    """Whether extents that data decides are bound when they are known, rather than asked for. So
    they are in a loop whose iterations have other ones."""
    block: int = 0
    """Channels of a block of weights, where onnxruntime has saved some; see `blocked`."""
    presumes_ones: bool = False
    """Whether slices that end one after their start are taken to have one element, as where they
    stand for an index. That they are within their axis is then checked at run time."""

    def within(self) -> Context:
        """The context of a graph within a node."""
        return Context(
            self.builder.within(), self.answers, names=self.names, repeats=self.repeats,
            nested=True, counted=self.counted, block=self.block, presumes_ones=self.presumes_ones,
        )  # fmt: skip

    def needed(self, value: Value, what: str, exact: bool) -> RunTimeNumberError:
        """The error that elements of a tensor must be known first; see `graph.specialization`."""
        message = f"{self.builder.where}: {what} is known only at run time (data-dependent shape)"
        return RunTimeNumberError(value, exact, message)

    # Known elements of tensors.

    def has_dims(self, value: Value) -> bool:
        """Whether the elements of a tensor of integers are numbers or dims, or presumed to be."""
        known = value.dims is not None or value.constant is not None
        return known or self.builder.known.presumed(value) is not None

    def dims_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        """The elements of a vector of integers, as numbers or as dims.

        Raises:
            RunTimeNumberError: they are neither.
            GraphError: it has another number of axes.
        """
        return self._dims_of(_vector(value, what), what)

    def _dims_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        """In a graph that nothing runs, numbers that only running it would tell are symbols."""
        if value.dtype.kind not in ("int", "uint"):
            raise malformed(f"{what} is {value.type}; expected integers")
        if value.constant is not None:
            return tuple(map(int, value.constant.ravel()))
        found = self.builder.known.presumed(value) if value.dims is None else value.dims
        if found is None:
            count, unknown = product(value.shape), self.builder.unknown
            if unknown is None or not isinstance(count, int):
                raise self.needed(value, what, exact=False)
            found = tuple(self.names.fresh("unknown") for _ in range(count))
            unknown.update(map(str, found))
        return found

    def dim_of(self, value: Value, what: str) -> Dim:
        """The element of an integer scalar, or of a vector of one element."""
        return _only(self._dims_of(value, what), value, what)

    def integers_of(self, value: Value, what: str) -> tuple[int, ...]:
        """The elements of a vector of integers, all known now.

        Raises:
            RunTimeNumberError: they are not.
            GraphError: it has another number of axes.
        """
        return self._integers_of(_vector(value, what), what)

    def _integers_of(self, value: Value, what: str) -> tuple[int, ...]:
        if value.dtype.kind not in ("int", "uint"):
            raise malformed(f"{what} is {value.type}; expected integers")
        dims = value.dims if value.constant is None else self._dims_of(value, what)
        if dims is not None:
            integers = tuple(n for n in dims if isinstance(n, int))
            if len(integers) == len(dims):
                return integers
        return tuple(map(int, self._answer(value, what).ravel()))

    def known(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Dims that must be known now.

        Raises:
            RunTimeNumberError: they depend on the extents of inputs.
        """
        return self._integers_of(self.builder.dims(dims), what)

    def integer_of(self, value: Value, what: str) -> int:
        """The element, known now, of an integer scalar or of a vector of one element."""
        return _only(self._integers_of(value, what), value, what)

    def array_of(self, value: Value, what: str) -> Array:
        """The elements of a constant."""
        return self._answer(value, what) if value.constant is None else value.constant

    def _answer(self, value: Value, what: str) -> Array:
        if value.name not in self.answers:
            raise self.needed(value, what, exact=True)
        return self.answers[value.name]

    def axis(self, axis: int, rank: int) -> int:
        return axis_of(axis, rank, self.builder.where)

    def axes(self, axes: Iterable[int], rank: int, ordered: bool = True) -> tuple[int, ...]:
        """Axes counted from the front, in order unless each has a parameter of its own.

        Raises:
            GraphError: an axis is repeated.
        """
        found = [self.axis(axis, rank) for axis in axes]
        if len(set(found)) != len(found):
            raise malformed(f"axes {found} are not different")
        return tuple(sorted(found) if ordered else found)

    def non_zero(self, x: Value, name: str) -> Value:
        """The position of each element that is not zero, one in each column. A node that gives
        them already is used again; the number of a new one has a symbol that begins with `name`."""
        for node in self.builder.nodes:
            if node.op == "non_zero" and node.inputs[0] is x:
                return node.output
        return apply("non_zero", x, count=str(self.names.fresh(f"{name}_count")))

    def decided_by_data(self, value: Value) -> bool:
        """Whether a value is a vector of some integers that are known only at run time."""
        count = value.shape[0] if value.rank == 1 else 0
        some = isinstance(count, int) and count >= 1 and value.dtype.kind == "int"
        return some and not self.has_dims(value)

    def follows_a_loop(self, value: Value) -> bool:
        """Whether a loop computes what a value depends on. Asking for such numbers would run it
        once more for each question."""
        return any(node.op == "loop" for node in self.builder.graph((), [("", value)]).nodes)

    def extents_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        """The elements of a vector of integers as extents. Those that data decides have symbols of
        their own, which are bound when they are known.

        Raises:
            RunTimeNumberError: their number is not known now.
            GraphError: the value has another number of axes.
        """
        if not self.decided_by_data(value):
            return self.dims_of(value, what)
        made = self.builder.producer(value)
        if made is not None and made.op == "concat":
            # Those that are known stay so, such as the batch of a resized image.
            return tuple(n for part in made.inputs for n in self.extents_of(part, what))
        (count,) = value.shape
        assert isinstance(count, int)
        for node in self.builder.nodes:
            if node.op == "extents" and node.inputs[0] is value:
                return tuple(found.shape[0] for found in node.outputs)
        counts = tuple(str(self.names.fresh(f"{value.name}_{i}")) for i in range(count))
        return tuple(x.shape[0] for x in apply_many("extents", value, counts=counts))

    def shape_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        """The elements of a vector of integers, none of which may be negative, as dims; see
        `dims_of` for errors."""
        return self.extents_of(value, what) if self.counted else self.dims_of(value, what)

    def count_between(self, first: Value, stop: Value, steps: Sequence[int]) -> Value:
        """For vectors of int64 numbers, how many numbers are from `first` to before `stop` by each
        step, as data."""
        if all(step == 1 for step in steps):
            return (stop - first).at_least(0)
        signs, sizes = (
            constant(np.array(numbers, np.int64))
            for numbers in ([1 if n > 0 else -1 for n in steps], [abs(n) for n in steps])
        )
        whole = (stop - first) * signs + (sizes + -1)
        # Rounded towards zero, which does not matter below it.
        return (whole / sizes).at_least(0)

    def condition_of(self, value: Value) -> Value | None:
        """The boolean tensor whose elements a tensor has as zeros and ones, in any shape; None if
        it is not known to be of such."""
        boolean = None
        while (node := self.builder.producer(value)) is not None:
            integer = node.op == "cast" and node.output.dtype.kind in ("int", "uint", "bool")
            if not integer and node.op != "reshape":
                break
            (value,) = node.inputs
            if value.dtype == BOOL:
                boolean = value
        return boolean


def _vector(value: Value, what: str) -> Value:
    """The value, which must have one axis."""
    if value.rank != 1:
        raise malformed(f"{what} is {value.type}; expected one axis")
    return value


def _only(found: Sequence[T], value: Value, what: str) -> T:
    """The element of a scalar, or of a vector of one element."""
    if len(found) != 1 or value.rank > 1:
        raise malformed(f"{what} is {value.type}; expected one element")
    return found[0]
