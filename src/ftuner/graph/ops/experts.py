"""Products by weights that are chosen at run time: those of a mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.dtype import INT64
from ftuner.core.index_expr import Nest, Stage, Store, Writer
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.buffers import View, as_rows
from ftuner.graph.expert_step import ExpertsStep
from ftuner.graph.ir import Node, TensorType
from ftuner.graph.operator import (
    Attributes,
    Numerics,
    Operator,
    Require,
    contiguous,
    elements_of,
    expect_elements,
    load,
    same_dtype,
)
from ftuner.graph.ops.indexing import checked, expect_indices
from ftuner.graph.placement import Placement

Types = Sequence[TensorType]


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


def _lower(node: Node, placement: Placement) -> tuple[View] | None:
    x, weight, index, *bias = node.inputs
    dtype = placement.type_of(node.output).dtype
    known = weight.constant is not None and 0 not in weight.shape
    if not known or not placement.runs(ExpertsStep.kind, dtype):
        return None
    chosen = placement.contiguous(index)
    if index.dtype != INT64:
        chosen = placement.converted(chosen, INT64)
    rows = placement.rows(x, dtype)
    of_experts = placement.contiguous(weight, dtype)
    biases = placement.contiguous(bias[0], dtype) if bias else None
    place = placement.place(node.output)
    out = as_rows(place) if place.layout.strides[-1] == 1 else None
    if out is None:
        place = placement.alone(node.output)
        out = as_rows(place)
    assert out is not None
    placement.add(
        ExpertsStep(
            node.op, rows, of_experts, node.attributes["transposed"], chosen, biases, out,
            node.attributes.get("node", ""),
        )
    )  # fmt: skip
    return (place,)


EXPERTS = (
    Operator("expert_matmul", _infer, _reference, _define, _lower, work=_work,
             numerics=Numerics.PRODUCT),
)  # fmt: skip
"""`transposed` says whether the weight is (experts, n, k)."""
