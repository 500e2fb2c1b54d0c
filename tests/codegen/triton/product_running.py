"""Runs the product kernels of a plan, as a launcher would, on CPU tensors."""

import mmap
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.codegen.triton.gluon_interpreting import Interpreted
from triton.tools.tensor_descriptor import TensorDescriptor

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.product_arguments import (
    a_block,
    b_block,
    c_block,
    gemm_arguments,
    operand_argument,
    workspace_elements,
)
from ftuner.codegen.triton.source import load
from ftuner.core.expr import operands
from ftuner.core.gpu.tile import ProductKernel
from ftuner.runtime.gpu.operands import BoundWindow

TORCH_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def run(
    kernel: ProductKernel,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    extra: Mapping[str, torch.Tensor] | None = None,
    *,
    rows: int | None = None,
    swizzle: int = 2,
    programs: int = 3,
    split_k: int = 1,
    counters: torch.Tensor | None = None,
    bases: Mapping[str, torch.Tensor] | None = None,
    window: BoundWindow | None = None,
) -> None:
    """Fill `c` (batch, m, n) with the product of `a` (batch, m, k) and `b` (batch, n, k), whose
    strides say how they are stored; an extent of one along the batch is shared. `bases` are passed
    instead of the tensors, where these are too large to be. Through a `window`, `a` is what
    `matrix_of` gives."""
    batch, m, n = c.shape
    k = a.shape[2]
    a_stored = a if kernel.a_order == "k" else a.transpose(1, 2)
    b_stored = b if kernel.b_order == "k" else b.transpose(1, 2)
    values: dict[str, Any] = {
        "m": m, "n": n, "k": k, "batch": batch, "swizzle": swizzle, "split_k": split_k,
        "rows": m if rows is None else rows,
        "a_stride": a_stored.stride(1), "b_stride": b_stored.stride(1),
        "c_row": c.stride(1), "c_batch": c.stride(0),
    }  # fmt: skip
    described = kernel.loads == "descriptors"
    for name, stored, block in (
        ("a", a_stored, a_block(kernel, kernel.main)),
        ("b", b_stored, b_block(kernel)),
    ):
        moves = 0 if stored.shape[0] == 1 else 1
        values[f"{name}_batch"] = moves if described else moves * stored.stride(0)
        values[name] = stored
        if described:
            values[name] = described_by(stored, *block)
    stored_c = kernel.stores_by_descriptor
    values["c"] = described_by(c, *c_block(kernel, kernel.main)) if stored_c else c
    if len(kernel.tiles) > 1:
        rest = kernel.tiles[1]
        values["a_rest"] = described and described_by(a_stored, *a_block(kernel, rest))
        values["c_rest"] = stored_c and described_by(c, *c_block(kernel, rest))
    if kernel.split:
        elements = workspace_elements(kernel, m, n, batch, values["rows"], split_k)
        values["workspace"] = torch.full((elements,), float("nan"))
        values["counters"] = counters
    for operand in operands(kernel.epilogue):
        tensor = (extra or {})[operand.name]
        name = operand_argument(operand.name)
        values[name] = tensor
        if operand.kind == "matrix":
            values[f"{name}_row"] = tensor.stride(1)
            values[f"{name}_batch"] = 0 if tensor.shape[0] == 1 else tensor.stride(0)
        else:
            values[f"{name}_batch"] = 0 if batch == 1 else n
    values.update(window.arguments if window is not None else ())
    values.update(bases or {})
    source = gemm_source(kernel)
    assert source.arguments == gemm_arguments(kernel)
    function = Interpreted(source) if kernel.warpgroups > 1 else load(source)
    function[(programs,)](*(values[argument.name] for argument in source.arguments))


def described_by(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    strides = list(tensor.stride())
    if tensor.shape[0] == 1:
        # Never walked, and any multiple of 16 bytes will do.
        strides[0] = strides[1]
    return TensorDescriptor(tensor, list(tensor.shape), strides, [1, rows, columns])


def address_space(size: int) -> mmap.mmap:
    """Bytes of which only those that are touched take memory."""
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        return mmap.mmap(-1, size, flags=flags)
    except (OSError, AttributeError):
        pytest.skip("the system does not lend address space that it may not have")


class Sparse:
    """Address space for float16 matrices of which few pages are ever touched."""

    def __init__(self, elements: int) -> None:
        self.memory = address_space(2 * elements)

    def matrix(self, shape: tuple[int, int, int], strides: tuple[int, int, int]) -> torch.Tensor:
        everything = torch.frombuffer(self.memory, dtype=torch.float16)
        return torch.as_strided(everything, shape, strides)

    def base(self) -> torch.Tensor:
        """The first elements: the interpreter copies what a tensor it is given holds."""
        return torch.frombuffer(self.memory, dtype=torch.float16, count=8)
