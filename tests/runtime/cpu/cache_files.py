"""Attention with keys and values of earlier tokens as ONNX files, in one node each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
HEADS, GROUPS, SIZE = 4, 2, 16
TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}  # fmt: skip
Spec = tuple[str, str, Sequence[Any]]


def file_of(nodes: Sequence[Any], inputs: Sequence[Spec], outputs: Sequence[Spec]) -> bytes:
    given, made = (
        [helper.make_tensor_value_info(name, TYPES[dtype], shape) for name, dtype, shape in specs]
        for specs in (inputs, outputs)
    )
    graph = helper.make_graph(list(nodes), "caches", given, made)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(MICROSOFT, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString())


def grouped(
    dtype: str = "float32", rows: Any = "past", rank: int = 4, positions: int = 0,
    masked: bool = False,
) -> bytes:  # fmt: skip
    """onnxruntime's GroupQueryAttention. `positions`: of tables of rotary angles; 0 for none.
    `masked`: the numbers of keys are those of a mask of all tokens, as onnxruntime-genai's builder
    writes it; else they are inputs."""
    names = ["q", "k", "v", "past_key", "past_value", "last", "total"]
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    numbers: list[Spec] = [("last", "int32", ("batch",)), ("total", "int32", ())]
    nodes = []
    if masked:
        numbers = [("mask", "int64", ("batch", "all"))]
        nodes = [
            helper.make_node("Constant", [], ["one"], value_ints=[1]),
            helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
            helper.make_node("Sub", ["count", "one"], ["last.wide"]),
            helper.make_node("Cast", ["last.wide"], ["last"], to=TensorProto.INT32),
            helper.make_node("Shape", ["mask"], ["shape"]),
            helper.make_node("Gather", ["shape", "one"], ["total.wide"]),
            helper.make_node("Cast", ["total.wide"], ["total"], to=TensorProto.INT32),
        ]
    tables: list[Spec] = []
    if positions:
        attributes["do_rotary"] = 1
        tables = [(name, dtype, (positions, SIZE // 2)) for name in ("cosines", "sines")]
        names += ["cosines", "sines"]
    nodes.append(helper.make_node(
        "GroupQueryAttention", names, ["y", "key", "value"], domain=MICROSOFT, **attributes
    ))  # fmt: skip
    cache = ("batch", GROUPS, rows, SIZE)[:rank]
    return file_of(
        nodes,
        [
            ("q", dtype, ("batch", "new", HEADS * SIZE)),
            *((name, dtype, ("batch", "new", GROUPS * SIZE)) for name in "kv"),
            *((name, dtype, cache) for name in ("past_key", "past_value")), *numbers, *tables,
        ],
        [
            ("y", dtype, ("batch", "new", HEADS * SIZE)),
            *((name, dtype, ("batch", GROUPS, "kept", SIZE)) for name in ("key", "value")),
        ],
    )  # fmt: skip


def scattered(dtype: str = "float32", rows: Any = "rows", mode: str = "linear") -> bytes:
    """ONNX's TensorScatter into caches of a fixed length, which its Attention reads."""
    nodes = [
        helper.make_node("TensorScatter", [f"past_{n}", n[0], "at"], [n], axis=2, mode=mode)
        for n in ("key", "value")
    ]
    names = ["q", "key", "value", "", "", "", "valid"]
    nodes.append(helper.make_node("Attention", names, ["y"]))
    cache = ("batch", GROUPS, rows, SIZE)
    return file_of(
        nodes,
        [
            ("q", dtype, ("batch", HEADS, "new", SIZE)),
            *((name, dtype, ("batch", GROUPS, "new", SIZE)) for name in "kv"),
            *((name, dtype, cache) for name in ("past_key", "past_value")),
            ("at", "int64", ("batch",)), ("valid", "int64", ("batch",)),
        ],
        [
            ("y", dtype, ("batch", HEADS, "new", SIZE)),
            *((name, dtype, cache) for name in ("key", "value")),
        ],
    )  # fmt: skip


def stacked(dtype: str = "float32") -> bytes:
    """onnxruntime's Attention, whose past is keys and values in one tensor."""
    width = HEADS * SIZE
    node = helper.make_node(
        "Attention", ["x", "weight", "bias", "", "past"], ["y", "present"], domain=MICROSOFT,
        num_heads=HEADS, unidirectional=1,
    )  # fmt: skip
    return file_of(
        [node],
        [
            ("x", dtype, ("batch", "new", width)), ("weight", dtype, (width, 3 * width)),
            ("bias", dtype, (3 * width,)), ("past", dtype, (2, "batch", HEADS, "past", SIZE)),
        ],
        [
            ("y", dtype, ("batch", "new", width)),
            ("present", dtype, (2, "batch", HEADS, "all", SIZE)),
        ],
    )  # fmt: skip


def given_apart(dtype: str = "float32") -> bytes:
    """ONNX's Attention with a past of its own."""
    names = ["q", "k", "v", "", "past_key", "past_value"]
    node = helper.make_node("Attention", names, ["y", "key", "value"], is_causal=1)
    return file_of(
        [node],
        [
            ("q", dtype, ("batch", HEADS, "new", SIZE)),
            *((name, dtype, ("batch", GROUPS, "new", SIZE)) for name in "kv"),
            *((n, dtype, ("batch", GROUPS, "past", SIZE)) for n in ("past_key", "past_value")),
        ],
        [
            ("y", dtype, ("batch", HEADS, "new", SIZE)),
            *((name, dtype, ("batch", GROUPS, "all", SIZE)) for name in ("key", "value")),
        ],
    )


def floats(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)
