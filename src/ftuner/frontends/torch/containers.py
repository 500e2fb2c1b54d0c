"""Containers of tensors, such as dataclasses and the caches of `transformers`, as pytrees."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ftuner.errors import ExportError

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
        pytree.register_pytree_node(
            kind,
            lambda cache: ([cache.self_attention_cache, cache.cross_attention_cache], None),
            lambda caches, _: kind(*caches),
            serialized_type_name=f"{kind.__module__}.{kind.__name__}",
            flatten_with_keys_fn=lambda cache: (
                [
                    (pytree.GetAttrKey(name), getattr(cache, name))
                    for name in ("self_attention_cache", "cross_attention_cache")
                ],
                None,
            ),
        )
    elif dataclasses.is_dataclass(kind):
        torch.export.register_dataclass(kind)
    else:
        raise ExportError(
            f"{kind.__module__}.{kind.__qualname__} holds tensors, and torch does not know how; "
            "register it with torch.utils._pytree.register_pytree_node, or leave it out, as by "
            "use_cache=False"
        )
