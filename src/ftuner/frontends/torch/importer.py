"""Imports an FX graph of ATen operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import fx

from ftuner.core.dim import Dim
from ftuner.core.dtype import ELEMENT_DTYPES, INT64, DType
from ftuner.core.frozen import dataclass
from ftuner.errors import (
    FTunerError,
    GraphError,
    IndexRangeError,
    ShapeError,
    UnsupportedOperatorError,
)
from ftuner.frontends.torch import nodes
from ftuner.frontends.torch.complex_numbers import PARTS, Complex, applied, is_complex
from ftuner.frontends.torch.dims import Branch, Extents, equality, extent_of
from ftuner.frontends.torch.promotion import Real
from ftuner.frontends.torch.registry import ATEN, MEANINGLESS, imported
from ftuner.graph.builder import Builder
from ftuner.graph.inner import choose
from ftuner.graph.ir import Array, Graph, TensorType, Value
from ftuner.runtime.cpu.arrays import array_of

for _room in (
    "activations", "creation", "indexing", "normalisation", "pointwise", "products", "rearranging",
    "recurrent", "reductions", "views", "windows",
):  # fmt: skip
    import_module(f"ftuner.frontends.torch.{_room}")


@dataclass(frozen=True)
class Imported:
    """A graph, and what it gives for each output of the FX graph."""

    graph: Graph
    outputs: tuple[Any, ...]
    """For each leaf of the output node: an `Output`, or a dim or constant that is not a tensor."""


def dtype_of(dtype: torch.dtype) -> DType:
    """An element type of torch.

    Raises:
        UnsupportedOperatorError: ftuner does not compute in it.
    """
    found = ELEMENT_DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise UnsupportedOperatorError(f"tensors of {dtype}")
    return found


def import_fx(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], names: Mapping[str, str],
    branches: Sequence[Branch] = (),
) -> Imported:  # fmt: skip
    """The graph of a module.

    Args:
        module: its nodes have `meta["val"]`, as `torch.export` and AOTAutograd write it.
        constants: the placeholders that are parameters or buffers, by name, with their values.
        names: of the other placeholders, what the graph calls them.
        branches: that the module has been traced along: conditions on extents of inputs.

    A placeholder that is an integer is an input only if no tensor has it as an extent: then a
    scalar of int64. One that is a float is a scalar of float64.

    Raises:
        UnsupportedOperatorError: operators without an importer; the message lists all of them.
        NodeError: an operator of complex tensors, with arguments that its importer does not know,
            or whose importer is wrong about its result.
    """
    missing = sorted({nodes.called(n) for n in nodes.unsupported(module.graph)})
    if missing:
        raise UnsupportedOperatorError(f"ftuner has no {', '.join(missing)}")
    return _Importer(module, constants, names).imported(branches)


class NodeError(UnsupportedOperatorError):
    """An operator that its importer refuses. `node`: the name of its node."""

    def __init__(self, text: str, node: str) -> None:
        super().__init__(text)
        self.node = node


@dataclass(frozen=True)
class Output:
    """Stands for an output of the graph, by its number."""

    number: int


class _Importer:
    def __init__(
        self, module: fx.GraphModule, constants: Mapping[str, torch.Tensor],
        names: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.module, self.constants, self.names = module, constants, names
        self.builder, self.extents = Builder(), Extents()
        self.values: dict[fx.Node, Any] = {}
        """What each node gives: a value, a list of them, or a number."""
        self.inputs: list[Value] = []
        self._stored_by_place: dict[object, Value] = {}

    def imported(self, branches: Sequence[Branch]) -> Imported:
        outputs: list[tuple[str, Value]] = []
        with self.builder.writing():
            self._read_placeholders()
            self._require(branches)
            leaves = self._run(self.module)
            found = tuple(self._output(leaf, outputs) for leaf in leaves)
        return Imported(self.builder.graph(self.inputs, outputs), found)

    def _require(self, branches: Sequence[Branch]) -> None:
        """Require the conditions on what inputs have as extents, as far as dims can say them."""
        for condition, what in branches:
            if condition.free_symbols <= self.extents.known.keys():
                with suppress(UnsupportedOperatorError):
                    sides = equality(condition, self.extents.translated)
                    if sides is not None:
                        self.builder.require(*sides, what)

    # Inputs.

    def _read_placeholders(self) -> None:
        numbers: list[fx.Node] = []
        noted: list[tuple[int | torch.SymInt, Dim]] = []
        for node in self.module.graph.find_nodes(op="placeholder"):
            given = node.meta.get("val")
            if node.name in self.constants:
                self.values[node] = self._constant(self.constants[node.name])
            elif isinstance(given, torch.Tensor):
                name = self.names.get(node.name, node.name)
                shape = [self.extents.bind(n, f"{name}_{i}") for i, n in enumerate(given.shape)]
                noted += zip(given.shape, shape, strict=True)
                self._add_input(node, dtype_of(given.dtype), shape)
            elif nodes.is_symbolic(given):
                numbers.append(node)
            else:
                self.values[node] = given
        for extent, dim in noted:
            self.extents.note(extent, dim)
        for node in numbers:
            self._read_number(node)
        for extent, dim in noted:
            self.builder.require(dim, self.extents.dim(extent), "extents of inputs")

    def _add_input(self, node: fx.Node, dtype: DType, shape: Sequence[Dim]) -> Value:
        value = self.builder.input(self.names.get(node.name, node.name), dtype, tuple(shape))
        self.values[node] = value
        self.inputs.append(value)
        return value

    def _read_number(self, node: fx.Node) -> None:
        given = node.meta["val"]
        if isinstance(given, torch.SymBool):
            raise UnsupportedOperatorError(f"input {node.name} is a SymBool")
        if self.extents.knows(given):
            return  # It is translated when it is used.
        dtype = INT64 if isinstance(given, torch.SymInt) else dtype_of(torch.float64)
        self._number(node, self._add_input(node, dtype, ()))

    def _number(self, node: fx.Node, x: Value) -> None:
        """Take the one element of a tensor as a number. Integers become extents, of zero or
        more."""
        given = node.meta["val"]
        if isinstance(given, torch.SymFloat):
            found = self.values[node] = Real(x.reshape(()).cast(dtype_of(torch.float64)))
            self.extents.reals[given.node.expr] = found.value
        elif isinstance(given, torch.SymInt):
            dim = extent_of(x)
            self.extents.note(given, dim)
            self.values[node] = dim
        else:
            what = f"{node.name}: a {type(given).__name__} that is an element of a tensor"
            raise UnsupportedOperatorError(what)

    def _constant(self, tensor: torch.Tensor) -> Value | Complex:
        if tensor.is_complex():
            whole = tensor.resolve_conj()
            return Complex(self._stored(whole.real), self._stored(whole.imag))
        return self._stored(tensor)

    def _stored(self, tensor: torch.Tensor) -> Value:
        """A constant; tensors that share memory are stored once."""
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        found = self._stored_by_place.get(place)
        if found is None or not tensor.numel():
            dtype = dtype_of(tensor.dtype)
            array: Array = array_of(tensor.detach().contiguous(), "a parameter")
            found = self._stored_by_place[place] = self.builder.stored(array, dtype)
        return found

    # Nodes.

    def _run(self, module: fx.GraphModule) -> Sequence[Any]:
        """The leaves of the outputs of a module whose placeholders have values."""
        for node in module.graph.nodes:
            if node.op == "call_function" and not nodes.is_computed_number(node):
                try:
                    self.values[node] = self._called(module, node)
                except FTunerError as error:
                    raise NodeError(str(error), node.name) from error
                except TypeError as error:
                    # A dim where an importer needs a number.
                    raise NodeError(f"{self.builder.where}: {error}", node.name) from error
            elif node.op == "get_attr":
                found = operator.attrgetter(node.target)(module)
                if isinstance(found, torch.Tensor):
                    self.values[node] = self._constant(found)
            elif node.op == "output":
                given = node.args[0]
                leaves = given if isinstance(given, (list, tuple)) else [given]
                return [*map(self._argument, leaves)]
        raise GraphError("a module without an output")

    def _called(self, module: fx.GraphModule, node: fx.Node) -> Any:
        self.builder.where = f"{node.name} ({nodes.called(node)})"
        given = node.meta.get("val")
        inner = nodes.inner_modules(node)
        if nodes.called(node) == nodes.CHOICE:
            return self._chosen(inner, node)
        if inner:
            return self._run_inner(inner[0], node)
        if node.target is operator.getitem:
            whole, index = node.args
            return self._argument(whole)[index]
        if nodes.called(node) in nodes.NUMBERS:
            if not node.users:
                return None  # What it gives was known while tracing.
            if not isinstance(given, torch.SymInt) or not self.extents.knows(given):
                self._number(node, self._argument(node.args[0]))
                return self.values[node]
            return self.extents.dim(given)
        assert isinstance(node.target, torch._ops.OpOverload)
        if nodes.called(node) in nodes.CHECKS:
            return None
        kept, named = self._kept(node), self._named(node)
        try:
            if is_complex([given, *kept]):
                found = applied(node.target, kept, named)
            elif given is not None and "pieces" in signature(ATEN[nodes.called(node)]).parameters:
                found = imported(node.target, kept, named, pieces=len(given))
            else:
                found = imported(node.target, kept, named)
        except (GraphError, ShapeError, IndexRangeError) as error:
            # torch has run the node: what is wrong for us, ftuner cannot compute.
            raise UnsupportedOperatorError(str(error)) from error
        return self._checked(given, found)

    def _run_inner(self, inner: fx.GraphModule, node: fx.Node) -> Any:
        first = next(i for i, x in enumerate(node.args) if nodes.module_of(x) is not None) + 1
        if nodes.called(node) == "invoke_subgraph":
            first += 1  # Its name.
        return self._run_on(inner, node.args[first:])

    def _run_on(self, inner: fx.GraphModule, operands: Any) -> Sequence[Any]:
        places = inner.graph.find_nodes(op="placeholder")
        for place, operand in zip(places, operands, strict=True):
            self.values[place] = self._argument(operand)
        return self._run(inner)

    def _chosen(self, branches: Sequence[fx.GraphModule], node: fx.Node) -> Sequence[Value]:
        """What one of two modules gives."""
        condition, given = self._argument(node.args[0]), node.meta["val"]
        if not isinstance(condition, Value):
            raise UnsupportedOperatorError("a condition on extents")
        if is_complex(given) or not all(
            isinstance(x, torch.Tensor) and all(map(self.extents.knows, x.shape)) for x in given
        ):
            what = "branches whose results are not tensors of known extents"
            raise UnsupportedOperatorError(what)
        types = [
            TensorType(dtype_of(x.dtype), tuple(map(self.extents.dim, x.shape))) for x in given
        ]
        outer, inners, results = self.builder, [], []
        for module in branches:
            self.builder = outer.within()
            try:
                with self.builder.writing():
                    found = self._run_on(module, node.args[3])
                    results.append([x.reshape(t.shape) for x, t in zip(found, types, strict=True)])
            finally:
                inner, self.builder = self.builder, outer
            inners.append(inner)
        return choose(outer, condition.reshape(()), inners, results, types)

    def _number_of(self, given: Any) -> Any:
        """A number of the graph: a dim, a `Real`, or what it is known to be."""
        if isinstance(given, torch.SymInt):
            return self.extents.dim(given)
        if isinstance(given, torch.SymFloat):
            return Real(self.extents.real(given))
        return given

    def _kept(self, node: fx.Node) -> list[Any]:
        """The positional arguments that importers take."""
        assert isinstance(node.target, torch._ops.OpOverload)
        pairs = zip(node.target._schema.arguments, node.args, strict=False)
        return [self._argument(x) for a, x in pairs if a.name not in MEANINGLESS]

    def _named(self, node: fx.Node) -> dict[str, Any]:
        return {k: self._argument(v) for k, v in node.kwargs.items() if k not in MEANINGLESS}

    def _checked(self, given: Any, found: Any) -> Any:
        """The result of a node, of which torch says what it is. Its extents are torch's where these
        are simpler, and are required to be the same.

        Raises:
            GraphError: it has another dtype, or another number of axes.
        """
        if isinstance(given, torch.Tensor) and given.is_complex():
            if not isinstance(found, Complex):
                raise GraphError(f"{self.builder.where}: {found} for {given.dtype}")
            real, imag = (given.real, found.real), (given.imag, found.imag)
            return Complex(self._checked(*real), self._checked(*imag), found.is_real)
        if isinstance(given, torch.Tensor) and found is not None:
            if not isinstance(found, Value) or found.rank != given.dim() or (
                found.dtype != dtype_of(given.dtype)
            ):  # fmt: skip
                what = f"{given.dtype}{list(given.shape)}"
                raise GraphError(f"{self.builder.where}: {found} for {what}")
            return self._with_extents(found, given.shape)
        if isinstance(given, (list, tuple)) and isinstance(found, Sequence):
            return [self._checked(one, other) for one, other in zip(given, found, strict=False)]
        return found

    def _with_extents(self, x: Value, extents: Sequence[int | torch.SymInt]) -> Value:
        shape = list(x.shape)
        for axis, (extent, dim) in enumerate(zip(extents, x.shape, strict=True)):
            self.extents.note(extent, dim)
            if not self.extents.knows(extent):
                continue
            wanted = self.extents.dim(extent)
            if wanted != dim and _length(wanted) < _length(dim):
                what = f"axis {axis} of {x.type}, which torch takes to be {wanted}"
                self.builder.require(dim, wanted, what)
                shape[axis] = wanted
        return x.reshape(tuple(shape))

    def _argument(self, given: Any) -> Any:
        if isinstance(given, fx.Node):
            if given not in self.values and nodes.is_computed_number(given):
                self.values[given] = self._number_of(given.meta["val"])
            return self.values[given]
        if isinstance(given, (list, tuple)):
            return [self._argument(x) for x in given]
        if isinstance(given, torch.dtype):
            return PARTS.get(given) or dtype_of(given)
        return self._number_of(given)

    def _output(self, found: Any, outputs: list[tuple[str, Value]]) -> Any:
        if isinstance(found, Value):
            outputs.append((f"output_{len(outputs)}", found))
            return Output(len(outputs) - 1)
        if isinstance(found, Complex):
            what = "a complex output: have the module return torch.view_as_real of it"
            raise UnsupportedOperatorError(what)
        if isinstance(found, Real):
            raise UnsupportedOperatorError("an output that is a float computed from extents")
        return found


def _length(dim: Dim) -> int:
    return 0 if isinstance(dim, int) else len(dim.text)
