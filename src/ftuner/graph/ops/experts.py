"""Products by weights that are chosen at run time: those of a mixture of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.index_expr import Nest, Stage, Store
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    NestWriter,
    Numerics,
    Operator,
    Require,
    Types,
    elements_of,
    expect_elements,
    same_dtype,
)
from ftuner.graph.ops.indexing import expect_indices


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    """x (tokens, k), weight (experts, k, n), or (experts, n, k) if `transposed`; index (tokens,
    slots); and perhaps a bias (experts, n). The result is (tokens, slots, n). A token may have the
    same expert several times."""
    x, weight, index, *bias = types
    what = f"expert_matmul of {', '.join(map(str, types))}"
    same_dtype((x, weight, *bias), what)
    expect_indices(index.dtype, what)
    if x.dtype.kind != "float":
        raise GraphError(f"{what}: expected floats")
    if [t.rank for t in types] != [2, 3, 2, 2][: len(types)]:
        raise ShapeError(f"{what}: expected x, weight, index and bias of 2, 3, 2 and 2 axes")
    experts, k, n = weight.shape
    if attributes["transposed"]:
        k, n = n, k
    require(x.shape[1], k, what)
    require(x.shape[0], index.shape[0], what)
    for given in bias:
        require(given.shape[0], experts, what)
        require(given.shape[1], n, what)
    expect_elements(require, index.shape, experts, f"{what}: no expert")
    return (TensorType(x.dtype, (*index.shape, n)),)


def _define(types: Types, attributes: Attributes, results: Types) -> Nest:
    x, weight, _, *bias = types
    writer = NestWriter(types, attributes)
    token, slot, column, step = (writer.index(axis) for axis in range(4))
    expert = writer.checked(writer.load(2, [token, slot]), writer.integer(weight.shape[0]))
    at = [expert, column, step] if attributes["transposed"] else [expert, step, column]
    a, b = writer.load(0, [token, step]), writer.load(1, at)
    value = writer.step("multiply", x.dtype, a, b)
    total = writer.step("stage", x.dtype, payload=0)
    if bias:
        total = writer.step("add", x.dtype, total, writer.load(3, [expert, column]))
    store = Store(total, (0, 1, 2))
    return writer.nest(results[0].shape, x.shape[1:], [Stage("sum", value)], store)


def _reference(
    x: Any, weight: Any, index: Any, bias: Any = None, *, transposed: bool, node: str = ""
) -> Any:
    experts, k, n = weight.shape
    if transposed:
        weight, n = np.swapaxes(weight, 1, 2), k
    if np.any((index < -experts) | (index >= experts)):
        raise IndexError(f"{node or 'expert_matmul'}: an index is out of range")
    found = np.empty((*index.shape, n), x.dtype)
    for expert in range(experts):
        token, slot = np.nonzero(index % experts == expert)
        found[token, slot] = x[token] @ weight[expert]
        if bias is not None:
            found[token, slot] += bias[expert]
    return found


EXPERTS = (
    Operator("expert_matmul", _infer, _reference, _define,
             work=lambda types, _, results: elements_of((*results[0].shape, types[0].shape[1])),
             numerics=Numerics.PRODUCT),
)  # fmt: skip
"""`transposed` says whether the weight is (experts, n, k)."""
