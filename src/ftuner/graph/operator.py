"""What an operator is: its shape rule, its NumPy reference, and its definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache, partial
from inspect import Parameter, Signature
from typing import Any, Protocol

import numpy as np

from ftuner.core.dim import Dim, Shape, least_value, minimum, product, row_major_strides
from ftuner.core.dtype import HALF_DTYPES, INT64, DType
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Index, Nest, Stage, Store, Writer
from ftuner.core.index_expr import Operand as NestOperand
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.arrays import converted, held_in, widened
from ftuner.graph.ir import Array, Node, TensorType
from ftuner.graph.placement import Form, Placement

Attributes = Mapping[str, Any]
Types = Sequence[TensorType]
Define = Callable[[Types, Attributes, Types], Nest]
Infer = Callable[[Types, Attributes, "Require"], tuple[TensorType, ...]]


class Require(Protocol):
    """Require that two dims are equal, or (`or_one`) that one of them is 1. Raises ShapeError if
    they are known to differ."""

    def __call__(self, x: Dim, y: Dim, what: str, or_one: bool = False) -> None: ...


class Numerics(Enum):
    """What an operator does to magnitudes and to rounding errors; see `graph.precision`."""

    PLAIN = auto()
    """Results are about as large as the operands, and as exact."""
    PERIODIC = auto()
    """Results depend on the operand's remainder modulo a full turn, not on its magnitude."""
    LIMIT = auto()
    """The same, but a large bound among the operands does not make the results large."""
    LOOK_UP = auto()
    """Results are elements of the first operand, which may be a table."""
    PRODUCT = auto()
    """Sums of products, in float32 if half precision is multiplied."""
    NORMALISATION = auto()
    """A reduction whose results have the shape of the operand and do not grow with it."""
    REDUCTION = auto()
    """Results, such as sums of squares, may be much larger than the operands."""


@dataclass(frozen=True)
class Operator:
    """An entry of the table of operators.

    `infer(types, attributes, require)` returns the types of the results, or raises ShapeError or
    GraphError. `reference(*arrays, **attributes)` computes the results with NumPy. `define(types,
    attributes, results)` returns the definition, from which loops are generated and fused.

    `lower(node, placement)` is the operator's own lowering: it adds steps, and returns a form for
    each result, or None to have the node lowered by its definition. An operator has a definition, a
    lowering or both; one without either, whose results have data-dependent extents, that runs
    graphs or that a library of the host computes, is computed by its reference between two programs
    (`graph.splitting`).

    The attributes `count`, a name, and `counts`, names, are of data-dependent extents of the
    results.

    `work(types, attributes, results)` is the time of the reference beyond reading the operands and
    writing the results, in the elements that NumPy reads or writes in that time. All extents are
    known.
    """

    name: str
    infer: Infer
    reference: Callable[..., Any]
    define: Define | None = None
    lower: Callable[[Node, Placement], Sequence[Form] | None] | None = None
    work: Callable[[Types, Attributes, Types], int] | None = None
    numerics: Numerics | Callable[[Attributes], Numerics] = Numerics.PLAIN
    """For all nodes, or by the attributes of a node."""
    exact_from: int | None = None
    """The first of the operands, the last ones, that rounding to half precision would spoil."""
    widened: int | None = None
    """The operand, of 8-bit integers, that a GPU's memory holds in the dtype of the result."""
    plain: bool = False
    """Whether the reference gives row-major arrays of the inferred dtypes, and computes nothing
    that NumPy warns of."""
    moves: bool = False
    """Whether the reference only moves elements, so that it also takes arrays of dims."""

    @property
    def on_host(self) -> bool:
        """Whether nodes are computed by the reference, between two programs."""
        return self.define is None and self.lower is None

    def numerics_of(self, attributes: Attributes) -> Numerics:
        """The numerics of a node with these attributes."""
        found = self.numerics
        return found if isinstance(found, Numerics) else found(attributes)


@lru_cache(maxsize=1024)
def misfit(reference: Callable[..., Any], operands: int, attributes: tuple[str, ...]) -> str:
    """Why a reference does not take this number of operands and attributes of these names; empty if
    it does. Its signature is that of the operator."""
    if isinstance(reference, np.ufunc):
        names = [f"x{number}" for number in range(1, reference.nin + 1)]
        signature = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])
    else:
        signature = Signature.from_callable(reference)
    try:
        signature.bind(*range(operands), **dict.fromkeys(attributes))
    except TypeError as error:
        return f"{error}; it takes {', '.join(signature.parameters) or 'nothing'}"
    return ""


def elements_of(shape: Shape) -> int:
    """The elements of a tensor whose extents are known."""
    return math.prod(n for n in shape if isinstance(n, int))


def contiguous(types: Types) -> tuple[NestOperand, ...]:
    return tuple(NestOperand(t.dtype, t.shape, row_major_strides(t.shape)) for t in types)


class NestWriter(Writer):
    """Writes the definition of an operator, for operands of some types."""

    def __init__(self, types: Types, attributes: Attributes) -> None:
        super().__init__()
        self.types, self.attributes = types, attributes

    def load(self, operand: int, index: Index) -> int:
        """The element of an operand at an index."""
        assert len(index) == self.types[operand].rank
        return self.step("load", self.types[operand].dtype, *index, payload=operand)

    def checked(self, index: int, extent: int) -> int:
        """An index that is data, which must be within an extent at run time."""
        node = self.attributes.get("node", "")
        return self.step("checked", INT64, self.cast(index, INT64), extent, payload=node)

    def nest(self, kept: Shape, reduced: Shape, stages: Sequence[Stage], *stores: Store) -> Nest:
        steps = tuple(self.steps)
        return Nest(kept, reduced, contiguous(self.types), steps, tuple(stages), stores)


class ElementWriter(NestWriter):
    """Writes the element of a result at an index, `at`."""

    def __init__(self, types: Types, attributes: Attributes, result: TensorType) -> None:
        super().__init__(types, attributes)
        self.result, self.at = result, [self.index(axis) for axis in range(result.rank)]


def elementwise(write: Callable[[ElementWriter], int]) -> Define:
    """The definition of an operator without reductions, each element of which `write` writes."""

    def define(types: Types, attributes: Attributes, results: Types) -> Nest:
        (result,) = results
        writer = ElementWriter(types, attributes, result)
        value = write(writer)
        assert writer.steps[value].dtype == result.dtype, (writer.steps[value], result)
        return writer.nest(result.shape, (), (), Store(value, tuple(range(result.rank))))

    return define


def reduction(
    types: Types,
    kept: Sequence[Dim],
    reduced: Sequence[Dim],
    kind: str,
    body: Callable[[NestWriter, Index, Index], int],
    last: bool = False,
) -> Nest:
    """The definition of one reduction; `body` writes the element at a kept and a reduced index."""
    writer = NestWriter(types, {})
    index = [writer.index(axis) for axis in range(len(kept) + len(reduced))]
    value = body(writer, index[: len(kept)], index[len(kept) :])
    dtype = writer.steps[value].dtype
    if kind in ("argmax", "argmin"):
        from_index = writer.integer(0)
        dtype = writer.steps[from_index].dtype
    total = writer.step("stage", dtype, payload=0)
    store = Store(total, tuple(range(len(kept))))
    return writer.nest(tuple(kept), tuple(reduced), [Stage(kind, value, last)], store)


def axis_of(axis: int, rank: int, what: str) -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"{what}: axis {axis} of a tensor of {rank} axes")
    return axis % rank


def expect_axis(type_: TensorType, axis: int, what: str) -> None:
    """Raise ShapeError unless a tensor has the axis, counted from the front."""
    if not 0 <= axis < type_.rank:
        raise ShapeError(f"{what} along axis {axis} of {type_}")


def expect_within(require: Require, extent: Dim, bound: Dim, what: str) -> None:
    """Require that an extent is at most `bound`."""
    require(minimum(extent, bound), extent, what)


def expect_elements(require: Require, count: Shape, extent: Dim, what: str) -> None:
    """Require that an axis of `extent` has an element, unless `count`, the shape of the elements
    taken from it, is empty."""
    least = least_value(extent)
    if least is not None and least > 0:
        return
    some = minimum(product(count), 1)
    require(minimum(some, extent), some, what)


def same_dtype(types: Types, what: str) -> None:
    if any(t.dtype != types[0].dtype for t in types):
        raise GraphError(f"{what} of {', '.join(str(t.dtype) for t in types)}: expected one dtype")


def prepared_reference(
    operator: Operator, operands: Sequence[DType], attributes: Attributes,
    types: Types,
) -> Callable[[Sequence[Array]], list[Array]]:  # fmt: skip
    """A function from operands of these dtypes to the results of an operator by its reference, as
    arrays of the inferred dtypes.

    A reference may compute in another dtype, such as NumPy's default. What runs next reads memory
    of the inferred one, so all callers of references go through here.
    """
    run = partial(operator.reference, **attributes)
    if operator.plain:
        several = len(types) > 1
        return lambda arrays: [*run(*arrays)] if several else [run(*arrays)]
    halves = any(dtype.name in HALF_DTYPES for dtype in operands)
    forms = [(type_, held_in(type_.dtype), type_.rank) for type_ in types]
    # What moves elements, or gives strings, computes nothing that NumPy warns of.
    quiet = operator.moves or all(type_.dtype.on_host for type_ in types)
    if quiet and not halves and len(types) == 1:
        (dtype, held) = types[0].dtype, forms[0][1]
        return lambda arrays: [converted(run(*arrays), dtype, held)]

    def results(arrays: Sequence[Array]) -> list[Array]:
        if halves:
            arrays = [widened(x, dtype) for x, dtype in zip(arrays, operands, strict=True)]
        if quiet:
            given = run(*arrays)
        else:
            with np.errstate(all="ignore"):
                given = run(*arrays)
        found = []
        pairs = zip(given if len(forms) > 1 else (given,), forms, strict=True)
        for result, (type_, held, rank) in pairs:
            array = converted(result, type_.dtype, held)
            assert array.ndim == rank, f"{operator.name} gives {array.shape}, not {type_}"
            found.append(array)
        return found

    return results


def reference_results(
    operator: Operator, operands: Sequence[tuple[Array, TensorType]], attributes: Attributes,
    types: Types,
) -> list[Array]:  # fmt: skip
    """The results of an operator by its reference; see `prepared_reference`."""
    dtypes = [type_.dtype for _, type_ in operands]
    return prepared_reference(operator, dtypes, attributes, types)([x for x, _ in operands])
