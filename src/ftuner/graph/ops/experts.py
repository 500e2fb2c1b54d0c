"""Products by weights that are chosen at run time: those of a mixture of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.index_expr import Nest, Stage, Store, Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import (
    Attributes,
    Numerics,
    Operator,
    Require,
    Types,
    contiguous,
    elements_of,
    expect_elements,
    load,
    same_dtype,
)
from ftuner.graph.ops.indexing import checked, expect_indices


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
    writer = Writer()
    token, slot, column, step = (writer.index(axis) for axis in range(4))
    chosen = load(writer, types, 2, [token, slot])
    expert = checked(writer, chosen, writer.integer(weight.shape[0]), attributes)
    at = [expert, column, step] if attributes["transposed"] else [expert, step, column]
    a, b = load(writer, types, 0, [token, step]), load(writer, types, 1, at)
    value = writer.step("multiply", x.dtype, a, b)
    total = writer.step("stage", x.dtype, payload=0)
    if bias:
        total = writer.step("add", x.dtype, total, load(writer, types, 3, [expert, column]))
    return Nest(
        results[0].shape, x.shape[1:], contiguous(types), tuple(writer.steps),
        (Stage("sum", value, False),), (Store(total, (0, 1, 2)),),
    )  # fmt: skip


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


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    return elements_of((*results[0].shape, types[0].shape[1]))


EXPERTS = (
    Operator("expert_matmul", _infer, _reference, _define, work=_work,
             numerics=Numerics.PRODUCT),
)  # fmt: skip
"""`transposed` says whether the weight is (experts, n, k)."""
