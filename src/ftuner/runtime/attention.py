"""What the attention kernel reads, for concrete extents: covers, blocks, tasks."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from ftuner.codegen.llvm.abi import Attention, Segment
from ftuner.core.ukernel import MAX_SEGMENTS
from ftuner.planner.attention import AttentionProblem, attention_blocks
from ftuner.runtime.encode import SLACK_BYTES, aligned
from ftuner.runtime.products import Products
from ftuner.runtime.strided import StridedArray


class AttentionRecord(NamedTuple):
    """The slots of `abi.Attention`, but for the address of the workspace."""

    dims: list[int]
    tasks: int
    worker_bytes: int
    """Of the workspace: what each worker has."""
    workspace_bytes: int


def attention_record(
    products: Products, q: StridedArray, k: StridedArray, v: StridedArray,
    mask: StridedArray | None, out: StridedArray, scale: float, workers: int,
) -> AttentionRecord:  # fmt: skip
    """The record of one attention; all arrays have the same batch axes."""
    library = products.compiled.library
    size, lanes = library.dtype.itemsize, library.lanes
    width = library.widths[0]
    nr = width * lanes
    *batch, rows, depth = q.shape
    steps, columns = v.shape[-2:]
    dims = [0] * (Attention.AXES + len(batch) * Attention.AXIS_SIZE)
    tail_k = -(-(steps % nr) // lanes)
    tail_v = -(-(columns % nr) // lanes)
    padded_steps = steps - steps % nr + tail_k * lanes
    padded_columns = columns - columns % nr + tail_v * lanes

    score_row = padded_steps * size
    elements = math.prod(batch)
    problem = AttentionProblem(elements, rows, depth, steps, columns, workers)
    block, splits = attention_blocks(products.planner, problem)

    dims[Attention.ROWS] = rows
    dims[Attention.DEPTH] = depth
    dims[Attention.STEPS] = steps
    dims[Attention.COLUMNS] = columns
    dims[Attention.SCALE] = struct.unpack("<q", struct.pack("<d", scale))[0]
    dims[Attention.Q_ROW] = q.strides[-2]
    dims[Attention.K_DEPTH], dims[Attention.K_STEP] = k.strides[-2:]
    dims[Attention.V_STEP], dims[Attention.V_COLUMN] = v.strides[-2:]
    dims[Attention.MASK_ROW] = 0 if mask is None else mask.strides[-2]
    dims[Attention.OUT_ROW] = out.strides[-2]
    dims[Attention.SPLITS] = splits
    dims[Attention.BLOCK] = block
    dims[Attention.SCORE_ROW] = score_row
    dims[Attention.PACK] = products.backend.runtime.pack_addresses[library.dtype]
    v_offset = aligned(padded_steps * depth * size + SLACK_BYTES)
    scores_offset = v_offset + aligned(padded_columns * steps * size + SLACK_BYTES)
    sums_offset = scores_offset + aligned(block * score_row + SLACK_BYTES)
    worker_bytes = sums_offset + aligned(block * size)
    dims[Attention.WORKER_BYTES] = worker_bytes
    dims[Attention.V_OFFSET] = v_offset
    dims[Attention.SCORES_OFFSET] = scores_offset
    dims[Attention.SUMS_OFFSET] = sums_offset
    dims[Attention.STEP_PADDED] = tail_k * lanes
    dims[Attention.COLUMN_PADDED] = tail_v * lanes
    dims[Attention.PANEL] = nr
    at = Attention.COVERS
    for height in (block, rows % block):
        for vectors, tail, length in (
            (width, False, depth), (tail_k, True, depth), (tail_v, True, steps)
        ):  # fmt: skip
            if vectors:
                family, table = products.planner.cover(vectors, tail, length)
                segments = table[height].segments
                addresses = products.compiled.kernels[family.name]
                for i, (mr, count) in enumerate(segments):
                    slot = at + i * Segment.SIZE
                    dims[slot + Segment.KERNEL] = addresses[mr - 1]
                    dims[slot + Segment.MR] = mr
                    dims[slot + Segment.TILES] = count
            at += MAX_SEGMENTS * Segment.SIZE
    strides = [a.strides if a is not None else (0,) * len(q.shape) for a in (q, k, v, mask, out)]
    for axis, extent in enumerate(batch):
        base = Attention.AXES + axis * Attention.AXIS_SIZE
        dims[base : base + Attention.AXIS_SIZE] = [extent, *(s[axis] for s in strides)]
    return AttentionRecord(dims, elements * splits, worker_bytes, workers * worker_bytes)
