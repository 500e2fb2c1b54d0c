"""Importers whose schema is their Python signature.

    @onnx("Elu")
    def _elu(x: Value, alpha: float = 1.0) -> Value:
        return where(x < 0, expm1(x.at_most(0)) * alpha, x)

Parameters that are values are the inputs, in order: `Value` is required, `Value | None` may be left
out, `*xs: Value` is one or more. `Integer`, `Integers`, `Number`, `Dims`, `Sizes` and `Extents` are
the elements of an input that are known while the graph is made. The others are attributes, by name
and type, with a default unless they are required; `| None = None` stands for an attribute that is
not there. Before these, a function may take the `context`; the `node`, whose other attributes it
then reads itself; and `gives`, which says whether the node has an output of a number.
"""

from __future__ import annotations

import math
import re
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import Parameter, formatannotation, signature
from typing import NamedTuple, TypeVar, cast

from ftuner.core.dim import Dim
from ftuner.core.dtype import DType
from ftuner.core.extensions import note_extension
from ftuner.errors import ConfigurationError, GraphError
from ftuner.frontends.onnx.context import Context, NodeView, Operand
from ftuner.frontends.onnx.reading import dtype_of
from ftuner.graph.ir import Value
from ftuner.graph.operator import axis_of

Axis = int
"""An axis of the first input, negative from the back; functions get it counted from the front."""
Positive = int
"""One or more."""
Unbounded = float
"""An attribute that may be infinite or NaN."""
Epsilon = float
"""A number that is added to a mean square or variance before the square root: zero or more."""
FloatDType = DType
"""A floating dtype."""
AnyDType = DType
"""A dtype, or 0 for none."""
Integers = tuple[int, ...]
Integer = int
"""An input whose elements are known now; in versions that have it as an `attribute`, that."""
Number = Dim
"""An input of one element; see `Context.dim_of`."""
Dims = tuple[Dim, ...]
"""An input of any integers; see `Context.dims_of`."""
Sizes = tuple[Dim, ...]
"""An input of integers of zero or more; see `Context.shape_of`."""
Extents = tuple[Dim, ...]
"""An input of extents that may be known only at run time; see `Context.extents_of`."""


def _axis(node: NodeView, name: str, default: int | None = None) -> int:
    return axis_of(node.integer(name, default), node.input(0).rank, node.record.label)


_READERS: Mapping[str, tuple[str, Callable[[NodeView, str], object]]] = {
    "int": ("INT", NodeView.integer),
    "bool": ("INT", NodeView.flag),
    "Axis": ("INT", _axis),
    "Positive": ("INT", NodeView.positive),
    "DType": ("INT", lambda node, name: _dtype(node, name)),
    "AnyDType": ("INT", lambda node, name: _dtype(node, name) if node.integer(name) else None),
    "FloatDType": ("INT", lambda node, name: _floating(node, name)),
    "float": ("FLOAT", NodeView.number),
    "Epsilon": ("FLOAT", lambda node, name: _not_negative(node, name)),
    "Unbounded": ("FLOAT", lambda node, name: node.number(name, finite=False)),
    "str": ("STRING", NodeView.text),
    "Integers": ("INTS", NodeView.integers),
    "Extents": ("INTS", NodeView.integers),
    "tuple[int, ...]": ("INTS", NodeView.integers),
    "tuple[float, ...]": ("FLOATS", NodeView.numbers),
    "tuple[str, ...]": ("STRINGS", NodeView.texts),
    "GraphRecord": ("GRAPH", NodeView.graph),
    "TensorRecord": ("TENSOR", NodeView.tensor),
}
"""ONNX's name of the type of attributes, and how they are read, by the annotation of their
parameter. `Literal` is a text with few values."""


def _reader(kind: str) -> tuple[str, Callable[[NodeView, str], object]] | None:
    if kind.startswith("Literal["):
        known = literal_eval(kind.removeprefix("Literal"))
        return "STRING", lambda node, name: node.one_of(name, known)
    return _READERS.get(kind)


def _not_negative(node: NodeView, name: str) -> float:
    found = node.number(name)
    if found < 0:
        raise GraphError(f"{node.record.label}: {name} is {found}; expected zero or more")
    return found


def _dtype(node: NodeView, name: str) -> DType:
    return dtype_of(node.integer(name), f"{node.record.label}: attribute {name}")


def _floating(node: NodeView, name: str) -> DType:
    found = _dtype(node, name)
    if found.kind != "float":
        raise GraphError(f"{node.record.label}: {name} is {found}; expected floats")
    return found


Reader = Callable[[Context, NodeView, int, str], object]


def _of(take: Callable[[NodeView, int], Operand | None]) -> Reader:
    return lambda context, node, number, name: take(node, number)


def _numbers(
    take: Callable[[NodeView, int], Value | None], read: Callable[[Context, Value, str], object]
) -> Reader:
    def reader(context: Context, node: NodeView, number: int, name: str) -> object:
        found = take(node, number)
        return found and read(context, found, f"the {name.replace('_', ' ')}")

    return reader


_KNOWN = {
    "Integers": Context.integers_of, "Integer": Context.integer_of, "Dims": Context.dims_of,
    "Number": Context.dim_of, "Sizes": Context.shape_of, "Extents": Context.extents_of,
}  # fmt: skip
_INPUTS: Mapping[str, Reader] = {
    "Value": _of(NodeView.input), "Value | None": _of(NodeView.optional),
    "Items | Pieces": _of(NodeView.sequence), "Operand | None": _of(NodeView.operand),
    **{kind: _numbers(NodeView.input, read) for kind, read in _KNOWN.items()},
    **{f"{kind} | None": _numbers(NodeView.optional, read) for kind, read in _KNOWN.items()},
}  # fmt: skip
"""How inputs are read, by the annotation of their parameter."""


_GIVEN: Mapping[str, Callable[[Context, NodeView], object]] = {
    "context": lambda context, node: context,
    "node": lambda context, node: node,
    "gives": lambda context, node: node.gives,
}
"""What a function is given before inputs and attributes, by the name of its parameter."""
Gives = Callable[[int], bool]
Function = Callable[..., Operand | Sequence[Operand]]


def _kind(p: Parameter) -> str:
    """The annotation of a parameter, without names of modules."""
    found = p.annotation
    return re.sub(r"\w+\.(?=\w)", "", found if isinstance(found, str) else formatannotation(found))


class _Attribute(NamedTuple):
    name: str
    kind: str
    """Its type by ONNX's name."""
    read: Callable[[NodeView, str], object]
    default: object
    """`Parameter.empty` if it is required."""


class Signature:
    """The importer that calls a function by its signature."""

    def __init__(
        self, function: Function, bound: Mapping[str, object], attribute: str = ""
    ) -> None:
        """`bound`: arguments that are no attributes of the operator. `attribute`: the parameter
        that is one, though it is an input by its annotation."""
        self._function, self._bound, self._attribute = function, bound, attribute

    @cached_property
    def parameters(self) -> list[Parameter]:
        """Read when the first node of the operator is imported: most never are."""
        found = signature(self._function).parameters
        return [p for name, p in found.items() if name not in self._bound]

    @cached_property
    def attributes(self) -> list[_Attribute]:
        """The attributes that the function takes.

        Raises:
            ConfigurationError: a parameter has no annotation that says what it is.
        """
        found = []
        for p in self.parameters:
            kind = _kind(p).removesuffix(" | None")
            if p in self.inputs or p.name in _GIVEN:
                continue
            if (reader := _reader(kind)) is None:
                raise ConfigurationError(
                    f"parameter {p.name} of {self._function.__qualname__} is {p.annotation}; "
                    f"expected {', '.join((*_INPUTS, *_READERS))}"
                )
            found.append(_Attribute(p.name, *reader, p.default))
        return found

    @cached_property
    def inputs(self) -> list[Parameter]:
        return [p for p in self.parameters if _kind(p) in _INPUTS and p.name != self._attribute]

    @property
    def is_whole(self) -> bool:
        """Whether the signature has all attributes."""
        return all(p.name != "node" for p in self.parameters)

    @property
    def most_inputs(self) -> float:
        several = any(p.kind is Parameter.VAR_POSITIONAL for p in self.inputs)
        return math.inf if several else len(self.inputs)

    @property
    def required_inputs(self) -> list[bool]:
        """Whether each input is required; of several that are one parameter, the first one is."""
        return [not _kind(p).endswith("| None") for p in self.inputs]

    @cached_property
    def _first(self) -> list[Callable[[Context, NodeView], object]]:
        return [_GIVEN[p.name] for p in self.parameters if p.name in _GIVEN]

    @cached_property
    def _operands(self) -> list[tuple[Reader, bool, str]]:
        """How each input is read, whether it stands for all that follow, and its name."""
        several = Parameter.VAR_POSITIONAL
        return [(_INPUTS[_kind(p)], p.kind is several, p.name) for p in self.inputs]

    def __call__(self, context: Context, node: NodeView) -> Sequence[Operand]:
        operands = [first(context, node) for first in self._first]
        present, given = node.record.attributes, dict(self._bound)
        for name, _, read, default in self.attributes:
            if name in present or default is Parameter.empty:
                given[name] = read(node, name)
            elif isinstance(default, int) and read is _axis:
                given[name] = _axis(node, name, default)
        for number, (read_input, several, name) in enumerate(self._operands):
            last = max(len(node.inputs), number + 1) if several else number + 1
            operands += [read_input(context, node, i, name) for i in range(number, last)]
        found = self._function(*operands, **given)
        return found if isinstance(found, (list, tuple)) else [cast(Operand, found)]


class Versions:
    """The importer of an operator, by the version of the operators since which each is right."""

    def __init__(self, module: str) -> None:
        """`module`: that has all versions."""
        self.since: dict[int, Signature] = {}
        self.module = module

    def at(self, opset: int) -> Signature:
        """The signature of a version: the last one that is not later, or else the first."""
        known = [version for version in self.since if version <= opset]
        return self.since[max(known, default=min(self.since))]

    def __call__(self, context: Context, node: NodeView) -> Sequence[Operand]:
        return self.at(node.opset)(context, node)


REGISTERED: dict[tuple[str, str], Versions] = {}
"""The importers that functions are decorated as, by domain and type of operator."""

F = TypeVar("F", bound=Function)


def onnx(
    *ops: str, domain: str = "", since: int = 1, replace: bool = False, attribute: str = "",
    **bound: object,
) -> Callable[[F], F]:  # fmt: skip
    """Make a function the importer of operators, from a version of the domain's operators on.
    `replace`: whether another one of the version, from outside ftuner, is replaced. `attribute`:
    the parameter that is an attribute in this version, and an input in later ones. `bound`:
    arguments of the function that are the same for all nodes.

    Raises:
        ConfigurationError: the operator has another importer of this version, or one of another
            module.
    """

    def register(function: F) -> F:
        made, module = Signature(function, bound, attribute), function.__module__
        if not module.startswith("ftuner.frontends."):
            # Those of ftuner are registered first, whatever is imported first.
            import_module(f"{__package__}.importer")
        note_extension(module)
        for op in ops:
            found = REGISTERED.get((domain, op))
            if found is None or (replace and not found.module.startswith("ftuner.")):
                found = REGISTERED[domain, op] = Versions(module)
            if found.module != module or since in found.since:
                what = f"operator {op!r} of the domain {domain!r}"
                raise ConfigurationError(f"{what} has an importer; choose a domain of your own")
            found.since[since] = made
        return function

    return register


GROUP = "ftuner_operators"
"""The entry points of operators that other distributions define: `domain.name`."""


def importer_of(domain: str, op: str) -> Versions | None:
    """The importer of an operator, if there is one: of ftuner, registered, or of an entry point,
    which is loaded when a file first has its operator."""
    if (domain, op) not in REGISTERED and domain:
        for point in _points(f"{domain}.{op}"):
            onnx(op, domain=domain)(point.load().importer)
    return REGISTERED.get((domain, op))


@cache
def _points(name: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP, name=name))
