"""Attention with keys and values of earlier tokens as ONNX files, in one node each."""

from typing import Any

import numpy as np
from tests.frontends.onnx_models import parsed

HEADS, GROUPS, SIZE = 4, 2, 16
WIDTH = HEADS * SIZE
CACHES = "past_key", "past_value"


def tensors(dtype: str, shape: Any, *names: str) -> str:
    """Inputs or outputs of one type, as ONNX's text form has them."""
    element = {"float32": "float"}.get(dtype, dtype)
    extents = f"[{', '.join(map(str, shape))}]" if shape else ""
    return ", ".join(f"{element}{extents} {name}" for name in names)


def file_of(nodes: str, inputs: list[str], outputs: list[str]) -> bytes:
    text = f"({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {nodes} }}"
    return parsed(text, 24).SerializeToString()


def grouped(
    dtype: str = "float32", rows: Any = "past", rank: int = 4, positions: int = 0,
    masked: bool = False,
) -> bytes:  # fmt: skip
    """onnxruntime's GroupQueryAttention. `positions`: of tables of rotary angles; 0 for none.
    `masked`: the numbers of keys are those of a mask of all tokens, as onnxruntime-genai's builder
    writes it; else they are inputs."""
    nodes, rotary, names = "", "", ["q", "k", "v", *CACHES, "last", "total"]
    numbers = [tensors("int32", ["batch"], "last"), tensors("int32", [], "total")]
    if masked:
        numbers = [tensors("int64", ["batch", "all"], "mask")]
        nodes = """one = Constant<value_ints = [1]>()
            count = ReduceSum<keepdims = 0>(mask, one)
            wide_last = Sub(count, one)
            last = Cast<to = 6>(wide_last)
            shape = Shape(mask)
            wide_total = Gather(shape, one)
            total = Cast<to = 6>(wide_total)
        """
    if positions:
        rotary, names = ", do_rotary = 1", [*names, "cosines", "sines"]
        numbers.append(tensors(dtype, [positions, SIZE // 2], *names[-2:]))
    attributes = f"<num_heads = {HEADS}, kv_num_heads = {GROUPS}{rotary}>"
    nodes += f"y, key, value = com.microsoft.GroupQueryAttention{attributes}({', '.join(names)})"
    inputs = [
        tensors(dtype, ["batch", "new", WIDTH], "q"),
        tensors(dtype, ["batch", "new", GROUPS * SIZE], "k", "v"),
        tensors(dtype, ["batch", GROUPS, rows, SIZE][:rank], *CACHES), *numbers,
    ]  # fmt: skip
    cache = tensors(dtype, ["batch", GROUPS, "kept", SIZE], "key", "value")
    return file_of(nodes, inputs, [tensors(dtype, ["batch", "new", WIDTH], "y"), cache])


def scattered(dtype: str = "float32", rows: Any = "rows", mode: str = "linear") -> bytes:
    """ONNX's TensorScatter into caches of a fixed length, which its Attention reads."""
    nodes = f"""key = TensorScatter<axis = 2, mode = "{mode}">(past_key, k, at)
        value = TensorScatter<axis = 2, mode = "{mode}">(past_value, v, at)
        y = Attention(q, key, value, "", "", "", valid)"""
    cache = ["batch", GROUPS, rows, SIZE]
    inputs = [*_heads(dtype), tensors(dtype, cache, *CACHES)]
    inputs.append(tensors("int64", ["batch"], "at", "valid"))
    y = tensors(dtype, ["batch", HEADS, "new", SIZE], "y")
    return file_of(nodes, inputs, [y, tensors(dtype, cache, "key", "value")])


def stacked(dtype: str = "float32") -> bytes:
    """onnxruntime's Attention, whose past is keys and values in one tensor."""
    attributes = f"<num_heads = {HEADS}, unidirectional = 1>"
    node = f'y, present = com.microsoft.Attention{attributes}(x, weight, bias, "", past)'
    inputs = [
        tensors(dtype, ["batch", "new", WIDTH], "x"),
        tensors(dtype, [WIDTH, 3 * WIDTH], "weight"), tensors(dtype, [3 * WIDTH], "bias"),
        tensors(dtype, [2, "batch", HEADS, "past", SIZE], "past"),
    ]  # fmt: skip
    present = tensors(dtype, [2, "batch", HEADS, "all", SIZE], "present")
    return file_of(node, inputs, [tensors(dtype, ["batch", "new", WIDTH], "y"), present])


def given_apart(dtype: str = "float32") -> bytes:
    """ONNX's Attention with a past of its own."""
    node = 'y, key, value = Attention<is_causal = 1>(q, k, v, "", past_key, past_value)'
    past, kept = (["batch", GROUPS, rows, SIZE] for rows in ("past", "all"))
    y = tensors(dtype, ["batch", HEADS, "new", SIZE], "y")
    inputs = [*_heads(dtype), tensors(dtype, past, *CACHES)]
    return file_of(node, inputs, [y, tensors(dtype, kept, "key", "value")])


def _heads(dtype: str) -> list[str]:
    q, k = (["batch", heads, "new", SIZE] for heads in (HEADS, GROUPS))
    return [tensors(dtype, q, "q"), tensors(dtype, k, "k", "v")]


def floats(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)
