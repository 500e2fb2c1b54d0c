"""Imports an FX graph of ATen operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import fx

from ftuner.core.dtype import ELEMENT_DTYPES, DType
from ftuner.errors import FTunerError, GraphError, UnsupportedOperatorError
from ftuner.frontends.torch.dims import Extents
from ftuner.frontends.torch.registry import ATEN, MEANINGLESS, name_of
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Array, Graph, Value
from ftuner.runtime.cpu.arrays import array_of

for _room in ("pointwise", "products", "views"):
    import_module(f"ftuner.frontends.torch.{_room}")


@dataclass(frozen=True)
class Imported:
    """A graph, and what it gives for each output of the FX graph."""

    graph: Graph
    outputs: tuple[Any, ...]
    """Of each leaf: an `Output`, or a dim or constant that is no tensor."""


def dtype_of(dtype: torch.dtype) -> DType:
    """An element type of torch.

    Raises:
        UnsupportedOperatorError: ftuner does not compute in it.
    """
    found = ELEMENT_DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise UnsupportedOperatorError(f"tensors of {dtype}")
    return found


def unsupported(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that have no importer, but for those that compute extents or only check."""
    return [
        n for n in graph.nodes
        if _is_operator(n) and not (_is_check(n) or _is_extent(n) or name_of(n.target) in ATEN)
    ]  # fmt: skip


def import_fx(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], names: Mapping[str, str]
) -> Imported:
    """The graph of a module.

    Args:
        module: its nodes have `meta["val"]`, as `torch.export` and AOTAutograd write it.
        constants: the placeholders that are parameters or buffers, by name, with their values.
        names: of the other placeholders, what the graph calls them.

    Raises:
        UnsupportedOperatorError: operators without an importer; the message lists all of them.
    """
    missing = sorted({name_of(n.target) for n in unsupported(module.graph)})
    if missing:
        raise UnsupportedOperatorError(f"ftuner has no {', '.join(missing)}")
    return _Importer(module, constants, names).imported()


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
        """What each node gives: a value, a list of them, or a dim."""

    def imported(self) -> Imported:
        inputs = self._inputs()
        outputs: list[tuple[str, Value]] = []
        leaves: tuple[Any, ...] = ()
        with self.builder.writing():
            for node in self.module.graph.nodes:
                if node.op == "call_function" and not _is_check(node):
                    self.values[node] = self._called(node)
                elif node.op == "get_attr":
                    self.values[node] = self._stored(_attribute(self.module, node.target))
                elif node.op == "output":
                    leaves = tuple(self._output(leaf, outputs) for leaf in node.args[0])
        return Imported(self.builder.graph(inputs, outputs), leaves)

    def _inputs(self) -> list[Value]:
        found = []
        beyond = []
        for node in self.module.graph.nodes:
            if node.op != "placeholder":
                continue
            if node.name in self.constants:
                self.values[node] = self._stored(self.constants[node.name])
                continue
            given = node.meta["val"]
            if not isinstance(given, torch.Tensor):
                if isinstance(given, (torch.SymFloat, torch.SymBool)):
                    raise UnsupportedOperatorError(f"input {node.name} is a {type(given).__name__}")
                self.values[node] = given
                continue
            name = self.names.get(node.name, node.name)
            shape = [self.extents.bind(n, f"{name}_{i}") for i, n in enumerate(given.shape)]
            beyond += list(zip(shape, given.shape, strict=True))
            value = self.builder.input(name, dtype_of(given.dtype), tuple(shape))
            self.values[node] = value
            found.append(value)
        for dim, extent in beyond:
            self.builder.require(dim, self.extents.dim(extent), "extents of inputs")
        return found

    def _stored(self, tensor: torch.Tensor) -> Value:
        array: Array = array_of(tensor.detach().contiguous(), "a parameter")
        return self.builder.stored(array, dtype_of(tensor.dtype))

    def _called(self, node: fx.Node) -> Any:
        given: Any = node.meta.get("val")
        if _is_extent(node):
            return self.extents.dim(given)
        if not _is_operator(node):
            target = node.target
            assert callable(target)
            return target(*self._arguments(node.args), **self._arguments(node.kwargs))
        self.builder.where = f"{node.name} ({name_of(node.target)})"
        row = ATEN[name_of(node.target)]
        keywords = {k: self._argument(v) for k, v in node.kwargs.items() if k not in MEANINGLESS}
        try:
            found = row(*(self._argument(x) for x in node.args), **keywords)
        except FTunerError as error:
            raise NodeError(f"{self.builder.where}: {error}", node.name) from error
        self._note(given, found)
        return found

    def _note(self, given: Any, found: Any) -> None:
        """Note the data-dependent extents of a result."""
        if isinstance(found, Value) and isinstance(given, torch.Tensor):
            if len(given.shape) != found.rank:
                raise GraphError(f"{self.builder.where}: {found.type} for {tuple(given.shape)}")
            for extent, dim in zip(given.shape, found.shape, strict=True):
                self.extents.note(extent, dim)
        elif isinstance(found, Sequence) and isinstance(given, Sequence):
            for one, other in zip(given, found, strict=False):
                self._note(one, other)

    def _arguments(self, given: Any) -> Any:
        return fx.map_arg(given, self._argument)

    def _argument(self, given: Any) -> Any:
        if isinstance(given, fx.Node):
            # An input that is a number is an extent of other inputs.
            return self._argument(self.values[given])
        if isinstance(given, (list, tuple)):
            return [self._argument(x) for x in given]
        if isinstance(given, torch.dtype):
            return dtype_of(given)
        if isinstance(given, torch.SymInt):
            return self.extents.dim(given)
        return given

    def _output(self, leaf: Any, outputs: list[tuple[str, Value]]) -> Any:
        found = self._argument(leaf)
        if isinstance(found, Value):
            outputs.append((f"output_{len(outputs)}", found))
            return Output(len(outputs) - 1)
        return found


def _is_operator(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def _is_check(node: fx.Node) -> bool:
    """Whether a node has no result: torch checks what it assumes of types and extents, which a
    graph has in its own."""
    target: Any = node.target
    return _is_operator(node) and not target._schema.returns


def _is_extent(node: fx.Node) -> bool:
    found = node.meta.get("val")
    return isinstance(found, (int, torch.SymInt)) and not isinstance(found, bool)


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
