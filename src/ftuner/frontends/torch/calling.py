"""How a compiled module is called: its arguments and results, and the inputs and outputs of its
graph. Containers of tensors, such as dataclasses and the caches of `transformers`, are pytrees."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ftuner.core.dim import Symbolic
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.errors import ExportError, InputError
from ftuner.frontends.torch.importer import Output
from ftuner.graph.ir import Graph
from ftuner.runtime.cpu.arrays import tensor_of
from ftuner.runtime.shapes.binding import bind

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Input:
    """Stands for a tensor among the leaves of arguments."""

    name: str


@dataclass(frozen=True)
class Calling:
    """The arguments and results of a module, and the inputs and outputs of its graph."""

    signature: inspect.Signature
    defaults: Arguments
    """Arguments without tensors that the program was traced with."""
    arguments: pytree.TreeSpec
    """A dict of arguments by name."""
    leaves: tuple[Any, ...]
    """Each leaf of the arguments: an `Input`, or a constant that the program was traced with."""
    states: Mapping[str, torch.Tensor]
    """Buffers that the module writes, which are inputs."""
    written: tuple[str, ...]
    """The inputs that the first outputs are written to."""
    results: tuple[Any, ...]
    """Each leaf of the result: an `Output`, a dim or a constant."""
    result: pytree.TreeSpec
    bound: Graph
    """The inputs and constraints, which give dims their values."""
    _direct: dict[object, tuple[str, ...]] = field(default_factory=dict)
    """For calls with nothing but tensors, by their number and keywords, the names of inputs."""

    def feeds(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of the graph by name.

        Raises:
            InputError: other arguments than the program was traced with.
        """
        given = (*args, *keywords.values())
        if all(isinstance(x, torch.Tensor) for x in given):
            key = (len(args), *keywords)
            names = self._direct.get(key)
            if names is None:
                feeds = self._feeds(args, keywords)
                by_identity = {id(x): name for name, x in feeds.items()}
                if len(by_identity) == len(feeds) == len(given) + len(self.states):
                    self._direct[key] = tuple(by_identity[id(x)] for x in given)
                return feeds
            return {**dict(zip(names, given, strict=True)), **self.states}
        return self._feeds(args, keywords)

    def _feeds(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        compiled = self.arguments.context
        arguments: Arguments = {}
        try:
            arguments = {**self.defaults, **named_arguments(self.signature, args, keywords)}
            given = self.arguments.flatten_up_to(arguments)
        except (TypeError, ValueError) as error:
            same = not arguments or arguments.keys() == set(compiled)
            why = str(error) if same else f"the arguments are ({', '.join(arguments)})"
            what = f"{why}; the module was compiled for ({', '.join(compiled)})"
            hint = "call it with these, or compile it with example inputs like those of this call"
            raise InputError(f"{what}: {hint}") from None
        feeds: dict[str, Any] = dict(self.states)
        for leaf, x in zip(self.leaves, given, strict=True):
            if isinstance(leaf, Input):
                if not isinstance(x, (torch.Tensor, np.ndarray)):
                    raise InputError(f"{leaf.name} is a {type(x).__name__}; expected a tensor")
                feeds[leaf.name] = x
            elif isinstance(x, torch.Tensor) or x != leaf:
                what = f"an argument is {x!r}, and the program is for {leaf!r}"
                raise InputError(f"{what}; compile it with such example inputs")
        return feeds

    def returned(self, outputs: Sequence[Any], feeds: Mapping[str, Any]) -> Any:
        """Return the result of the module, in its structure, from the outputs of the graph."""
        for name, found in zip(self.written, outputs, strict=False):
            feeds[name].copy_(found)
        if not feeds:
            outputs = [tensor_of(x) for x in outputs]
        if self.result.is_leaf() and isinstance(self.results[0], Output):
            return outputs[self.results[0].number]
        extents: dict[str, int] | None = None
        leaves = []
        for leaf in self.results:
            if isinstance(leaf, Output):
                leaf = outputs[leaf.number]
            elif isinstance(leaf, Symbolic):
                if extents is None:
                    shapes = [tuple(feeds[v.name].shape) for v in self.bound.inputs]
                    extents = bind(self.bound, shapes)
                leaf = evaluate(leaf, extents)
            leaves.append(leaf)
        return pytree.tree_unflatten(leaves, self.result)


def named_arguments(
    signature: inspect.Signature, args: Sequence[Any], keywords: Mapping[str, Any]
) -> Arguments:
    """The arguments of a call by name, without those that are the default.

    Raises:
        TypeError: the function does not take them.
    """
    bound = signature.bind(*args, **keywords)
    return {
        name: x for name, x in bound.arguments.items()
        if x is not signature.parameters[name].default
    }  # fmt: skip


Path = tuple[Any, ...]


def flattened(tree: Any) -> tuple[list[tuple[Path, Any]], pytree.TreeSpec]:
    """The leaves of a structure with their paths, and the structure. Dataclasses in it, and caches
    of `transformers`, are registered with torch's pytrees if they are not yet.

    Raises:
        ExportError: an object of a class that torch's pytrees do not know.
    """
    found, spec = pytree.tree_flatten_with_path(tree)
    unknown = {type(leaf) for _, leaf in found if not _is_leaf(leaf)}
    if not unknown:
        return found, spec
    for kind in unknown:
        _register(kind)
    return flattened(tree)


def name_of(path: Path, root: str) -> str:
    """The name of a leaf: `root`, unless a key of a mapping or of a field comes first."""
    keys = [getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path]
    named = keys and not isinstance(path[0], pytree.SequenceKey)
    return ".".join(map(str, keys if named else [root, *keys]))


def _is_leaf(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or not (
        dataclasses.is_dataclass(leaf) or type(leaf).__name__.endswith("Cache")
    )


def _register(kind: type) -> None:
    if kind.__name__ == "DynamicCache":
        import_module(
            "transformers.integrations.executorch"
        ).register_dynamic_cache_export_support()
    elif kind.__name__ == "EncoderDecoderCache":
        names = ("self_attention_cache", "cross_attention_cache")
        pytree.register_pytree_node(
            kind,
            lambda cache: ([getattr(cache, n) for n in names], None),
            lambda caches, _: kind(*caches),
            serialized_type_name=f"{kind.__module__}.{kind.__name__}",
            flatten_with_keys_fn=lambda cache: (
                [(pytree.GetAttrKey(n), getattr(cache, n)) for n in names], None,
            ),
        )  # fmt: skip
    elif dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(kind)
    else:
        what = f"{kind.__module__}.{kind.__qualname__} holds tensors, and torch does not know how"
        hint = "register it with torch.utils._pytree.register_pytree_node, or leave it out"
        raise ExportError(f"{what}; {hint}, as by use_cache=False")
