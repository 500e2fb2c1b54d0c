"""Attention kernels of a GPU: split keys, operands as they lie, unequal requests, text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.triton.attention_running import (
    SCALE,
    SENTINEL,
    Launcher,
    Operands,
    assert_attention,
    check,
    kernel_of,
    operands_of,
    random,
)
from tests.gpu_kernels import SUMS_IN_FLIGHT

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, INT64, DType
from ftuner.core.gpu.attention import (
    AttentionCall,
    AttentionForm,
    AttentionKernel,
    AttentionMask,
    AttentionTile,
)
from ftuner.planner.gpu.plan import AttentionProblem
from ftuner.schedules.attention.gpu_kernel import SEARCH, attention_source

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
"""NumPy, in the interpreter, says what a GPU does not: that NaN and infinity arose."""
PLAIN = AttentionSoftmax(SCALE)


# Parts of keys.


@pytest.mark.each_value
@pytest.mark.parametrize("split_keys", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("causal", [None, 7])
def test_split_keys(split_keys: int, causal: int | None) -> None:
    """No more parts than blocks of keys are used; counters are zero again afterwards."""
    operands = operands_of((2, 1, 3, 21, 83, 8, 24))
    softmax = AttentionSoftmax(SCALE, causal)
    kernel = kernel_of(operands, packed=True, split=True,
                       causal="none" if causal is None else "first")  # fmt: skip
    launcher = Launcher(kernel, split_keys=split_keys)
    found = launcher(operands, softmax)
    assert_attention(found, operands, softmax)
    assert torch.equal(launcher(operands, softmax), found)


def test_parts_of_wide_tiles() -> None:
    """More values than are added up together."""
    operands = operands_of((1, 1, 1, 70, 100, 16, 144), FLOAT16)
    check(operands, tile=AttentionTile(64, 16, 4, 2), split_keys=3)


# Where operands lie.


def test_heads_side_by_side() -> None:
    """q, k and v are slices of one product, the result is what its output takes."""
    b, s, heads, sharing, d = 2, 37, 2, 3, 8
    product = random(0, (b, s, heads * (sharing + 2) * d))
    q, k, v = torch.split(product, [heads * sharing * d, heads * d, heads * d], -1)
    operands = Operands(
        q.view(b, s, heads, sharing, d).permute(0, 2, 3, 1, 4),
        k.view(b, s, heads, d).permute(0, 2, 1, 3),
        v.view(b, s, heads, d).permute(0, 2, 1, 3),
    )
    for packed in (False, True):
        out = torch.full((b, s, heads, sharing, d), SENTINEL).permute(0, 2, 3, 1, 4)
        kernel = kernel_of(operands, packed=packed, causal="first")
        found = Launcher(kernel)(operands, AttentionSoftmax(SCALE, 0), out=out)
        assert_attention(found, operands, AttentionSoftmax(SCALE, 0))


def test_strides_of_any_kind() -> None:
    """Broadcast along requests, backwards along heads, every other key."""
    q = random(0, (2, 3, 2, 9, 8))
    k = random(1, (3, 40, 8))[:, ::2].expand(2, 3, 20, 8)
    v = random(2, (20, 3, 24)).permute(1, 0, 2).expand(2, 3, 20, 24)
    for packed in (False, True):
        check(Operands(q, k, v), packed=packed)


def test_strides_beyond_32_bits() -> None:
    """Memory that is reserved, and touched where operands lie only."""
    far = 2**31 + 40
    store = torch.empty(far + 1000, dtype=torch.float16)
    source = operands_of((2, 2, 2, 2, 2, 8, 8), FLOAT16)
    for axis in range(4):
        strides = list(source.q.stride())
        strides[axis] = far
        q = store.as_strided(source.q.shape, strides)
        q.copy_(source.q)
        for packed in (False, True):
            check(Operands(q, source.k, source.v), packed=packed)
    for axis in range(3):
        strides = list(source.k.stride())
        strides[axis] = far
        moved = store.as_strided(source.k.shape, strides, 1)
        moved.copy_(source.k)
        check(Operands(source.q, moved, source.v))
        check(Operands(source.q, source.k, moved))


@pytest.mark.parametrize("causal", [None, 4])
def test_descriptors(causal: int | None) -> None:
    """Blocks behind the edges are zeros; one of two blocks has a descriptor of its own."""
    options: dict[str, Any] = {"loads": "descriptors", "aligned": True}
    for extents in ((1, 1, 1, 3, 1, 8, 8), (2, 2, 3, 21, 45, 72, 24), (1, 2, 1, 17, 33, 32, 80)):
        operands = operands_of(extents, FLOAT16)
        check(operands, AttentionSoftmax(SCALE, causal), **options)
        check(operands, AttentionSoftmax(SCALE, causal), packed=True, split_keys=2, **options)
    operands = operands_of((1, 2, 1, 17, 33, 32, 80), FLOAT16)
    shared = Operands(operands.q.expand(2, 2, 1, 17, 32), operands.k, operands.v)
    kernel = kernel_of(shared, FLOAT16, **options)
    found = Launcher(kernel)(shared._replace(k=operands.k, v=operands.v), PLAIN)
    assert torch.equal(found[0], found[1])
    assert_attention(found[:1], operands, PLAIN)


# Requests of unequal length.


LENGTHS = (
    # Rows and keys of each request.
    ((3, 3), (0, 5), (20, 41), (1, 50), (5, 0), (16, 16), (17, 17)), ((1, 9), (1, 33), (1, 1)),
    ((0, 0), (0, 0)), ((33, 33),),
)  # fmt: skip


def ragged(
    lengths: tuple[tuple[int, int], ...], causal: str, offsets: DType, past: int = 0,
    split_keys: int = 1, packed: bool = False, heads: int = 1, sharing: int = 2, **form: Any,
) -> None:  # fmt: skip
    """Requests one after the other give what each gives alone."""
    depth, columns = 8, 24
    rows, keys = (sum(each) for each in zip(*lengths, strict=True))
    dtype = FLOAT16 if form.get("loads") == "descriptors" else FLOAT32
    # Behind the last request there is what must not be read.
    q = random(0, (1, rows, heads, sharing, depth), dtype).permute(0, 2, 3, 1, 4)
    k = random(1, (1, keys + 40, heads, depth), dtype).permute(0, 2, 1, 3)
    v = random(2, (1, keys + 40, heads, columns), dtype).permute(0, 2, 1, 3)
    k[:, :, keys:] = math.nan
    v[:, :, keys:] = math.nan
    problem = AttentionProblem(len(lengths), heads, sharing, rows, keys, depth, columns)
    operands = Operands(q, k, v)
    kernel = kernel_of(operands, dtype, packed=packed, split=split_keys > 1, causal=causal,
                       ragged=offsets, **form)  # fmt: skip
    starts = [tuple(map(int, each)) for each in np.cumsum([(0, 0), *lengths], axis=0)]
    given = {
        name: torch.tensor([each[i] for each in starts], dtype=getattr(torch, offsets.name))
        for i, name in enumerate(("q_offsets", "k_offsets"))
    }
    out = torch.full((1, heads, sharing, rows, columns), SENTINEL, dtype=q.dtype)
    launcher = Launcher(kernel, split_keys=split_keys)
    launcher(operands, AttentionSoftmax(SCALE, past), math.nan, problem, out, given)
    again = launcher(operands, AttentionSoftmax(SCALE, past), math.nan, problem, out.clone(), given)
    assert torch.equal(again, out)
    for (first, begin), (last, end) in pairwise(starts):
        limit = None
        if causal != "none":
            limit = past + (end - begin - (last - first) if causal == "last" else 0)
        one = Operands(q[..., first:last, :], k[:, :, begin:end], v[:, :, begin:end])
        assert_attention(out[..., first:last, :], one, AttentionSoftmax(SCALE, limit))


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(len(LENGTHS)))
@pytest.mark.parametrize("causal", ["none", "first", "last"])
def test_requests_of_unequal_length(number: int, causal: str) -> None:
    ragged(LENGTHS[number], causal, INT32, heads=2)
    ragged(LENGTHS[number], causal, INT64, split_keys=3, packed=True)


@pytest.mark.full
def test_many_requests() -> None:
    """More than are looked at together."""
    ragged(((1, 2),) * SEARCH + ((2, 20), (0, 3)), "last", INT32, sharing=1)


def test_requests_of_unequal_length_by_descriptors() -> None:
    """What the next request has does not reach the one before."""
    for causal in ("none", "last"):
        ragged(LENGTHS[0], causal, INT32, loads="descriptors", aligned=True)
        ragged(
            LENGTHS[1], causal, INT32, split_keys=2, packed=True, loads="descriptors", aligned=True
        )


def test_the_next_request_may_hold_anything() -> None:
    for form in ({}, {"loads": "descriptors", "aligned": True}):
        operands = operands_of((1, 1, 1, 20, 50, 8, 8), FLOAT16)
        operands.k[:, :, 25:] = math.nan
        operands.v[:, :, 25:] = math.inf
        kernel = kernel_of(operands, FLOAT16, ragged=INT32, **form)
        given = {
            "q_offsets": torch.tensor([0, 10, 20], dtype=torch.int32),
            "k_offsets": torch.tensor([0, 25, 50], dtype=torch.int32),
        }
        problem = operands.problem._replace(batch=2)
        found = Launcher(kernel)(operands, PLAIN, problem=problem, offsets=given)
        one = Operands(operands.q[..., :10, :], operands.k[:, :, :25], operands.v[:, :, :25])
        assert_attention(found[..., :10, :], one, PLAIN)
        assert torch.isnan(found[..., 10:, :]).all()


@pytest.mark.full
@settings(max_examples=20)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
    causal=st.sampled_from(("none", "first", "last")),
    past=st.integers(-5, 5),
    packed=st.booleans(),
    split_keys=st.integers(1, 3),
)
def test_any_lengths(
    lengths: list[tuple[int, int]], causal: str, past: int, packed: bool, split_keys: int
) -> None:
    ragged(tuple(lengths), causal, INT32, past, split_keys, packed)


# The text.


FORM = AttentionForm.over(BFLOAT16, "bfloat16", 80, 64, causal="first")
KERNEL = AttentionKernel(FORM, AttentionTile(128, 64, 8, 3), sums_in_flight=SUMS_IN_FLIGHT)


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("attention.py.txt", attention_source(KERNEL).text)
    form = replace(FORM, loads="descriptors", ragged=INT32, causal="last")
    decoding = AttentionKernel(
        form, AttentionTile(16, 64, 4, 3), packed=True, split=True, sums_in_flight=SUMS_IN_FLIGHT
    )
    golden("attention-decoding.py.txt", attention_source(decoding).text)


def test_arguments() -> None:
    """Pointers in their order, then the numbers of a call."""
    mask = AttentionMask(BOOL, "keys", "aligned")
    kernel = replace(KERNEL, split=True, form=replace(FORM, mask=mask, ragged=INT64))
    source = attention_source(kernel)
    names = tuple(argument.name for argument in source.arguments)
    assert names == (*kernel.pointers, *AttentionCall._fields)
    assert kernel.pointers == ("q", "k", "v", "mask", "out", "q_offsets", "k_offsets",
                               "workspace", "arrivals")  # fmt: skip
    found = {argument.name: argument for argument in source.arguments}
    assert (found["q"].type, found["q"].divisor) == ("*bf16", 16)
    assert (found["k_row"].type, found["k_row"].divisor) == ("i64", 8)
    assert (found["mask"].type, found["mask"].divisor) == ("*u8", 16)
    assert (found["mask_row"].type, found["mask_row"].divisor) == ("i64", 16)
    assert (found["q_offsets"].type, found["q_offsets"].divisor) == ("*i64", 1)
    assert (found["scale"].type, found["past"].type) == ("fp32", "i32")
    unaligned = attention_source(replace(KERNEL, form=replace(FORM, aligned=False)))
    assert all(argument.divisor == 1 for argument in unaligned.arguments)


def test_symbols_tell_kernels_apart() -> None:
    """A kernel's fields are all in its text or its name."""
    changes = (
        {"dtype": FLOAT16}, {"multiply": "float16"}, {"depth_blocks": (64,)},
        {"column_blocks": (32,)}, {"exact": False}, {"causal": "none"}, {"causal": "last"},
        {"mask": AttentionMask(BOOL)}, {"mask": AttentionMask(FLOAT32)},
        {"mask": AttentionMask(BOOL, "keys")}, {"mask": AttentionMask(BOOL, layout="aligned")},
        {"ragged": INT32}, {"ragged": INT64}, {"aligned": False}, {"loads": "descriptors"},
        {"negative": True},
    )  # fmt: skip
    kernels = [replace(KERNEL, form=replace(FORM, **change)) for change in changes]
    kernels += [replace(KERNEL, packed=True), replace(KERNEL, split=True), KERNEL]
    kernels += [replace(KERNEL, tile=AttentionTile(*numbers)) for numbers in (
        (64, 64, 8, 3), (128, 32, 8, 3), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3, True)
    )]  # fmt: skip
    assert len({kernel.symbol for kernel in kernels}) == len(kernels)
    assert all(kernel.symbol.isidentifier() for kernel in kernels)
