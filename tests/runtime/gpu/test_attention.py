"""Attention of tensors, in the interpreter, against float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.cpu.attention_cases import expected_of
from tests.runtime.gpu.test_matmul import DTYPES

import ftuner
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.errors import (
    ConfigurationError,
    DTypeError,
    HardwareError,
    OperandError,
    ShapeError,
    UnsupportedKernelError,
)
from ftuner.planner.gpu.plan import AttentionPlan
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.attention import Attention
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.schedules.attention import gpu_binding_launches as attentions_room
from ftuner.schedules.attention.gpu_binding_launches import MAX_CALLS, MAX_UPLOADS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
"""NumPy, in the interpreter, says what a GPU does not: that NaN and infinity arose."""
EXTENTS = (
    # Batch, heads, heads of keys, rows, keys, depth, columns.
    ((), 1, 1, 1, 1, 1, 1), ((2,), 4, 2, 5, 9, 8, 16), ((3, 2), 6, 1, 1, 33, 16, 16),
    ((1,), 3, 3, 17, 5, 40, 7), ((2,), 2, 2, 0, 5, 4, 4), ((0,), 2, 2, 3, 5, 4, 4),
    ((1,), 2, 2, 70, 150, 32, 80),
)  # fmt: skip


@pytest.fixture
def attend(backend: GpuBackend) -> Attention:
    return Attention(backend.attentions)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * 2 - 1).to(dtype)


def operands_of(
    batch: tuple[int, ...], heads: int, kv_heads: int, rows: int, keys: int, depth: int,
    columns: int, dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        random(*batch, heads, rows, depth, dtype=dtype, seed=0),
        random(*batch, kv_heads, keys, depth, dtype=dtype, seed=1),
        random(*batch, kv_heads, keys, columns, dtype=dtype, seed=2),
    )


def assert_right(
    found: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None,
    causal: bool = False, scale: float | None = None,
) -> None:  # fmt: skip
    """Within rounding; weights and results of 16 bits are rounded to these, and cut to bfloat16 by
    the interpreter."""
    sharing = q.shape[-3] // k.shape[-3]
    wide = [x.float().numpy() for x in (q, k, v)]
    wide[1:] = [np.repeat(x, sharing, -3) for x in wide[1:]]
    given = None
    if mask is not None:
        given = mask.numpy() if mask.dtype == torch.bool else mask.float().numpy()
    past = k.shape[-2] - q.shape[-2] if causal else None
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    softmax = AttentionSoftmax(scale, past, safe=True)
    expected, allowed = expected_of(wide[0], wide[1].swapaxes(-1, -2), wide[2], given, softmax)
    if q.dtype != torch.float32:
        allowed += 4 * torch.finfo(q.dtype).eps
    assert found.dtype == q.dtype
    assert tuple(found.shape) == expected.shape
    error = np.abs(found.double().numpy() - expected)
    assert np.all(error <= allowed), (q.shape, k.shape, v.shape, error.max(), allowed)


def last_plan(attend: Attention) -> AttentionPlan:
    return list(attend._attentions._calls.values())[-1].plan


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(len(EXTENTS)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extents(attend: Attention, number: int, dtype: torch.dtype) -> None:
    causal = (number + DTYPES.index(dtype)) % 2 > 0
    q, k, v = operands_of(*EXTENTS[number], dtype=dtype)
    assert_right(attend(q, k, v, causal=causal), q, k, v, causal=causal)


def test_values_longer_than_a_kernel_takes(h200: GpuBackend) -> None:
    attend = Attention(h200.attentions)
    q, k, v = operands_of((1,), 8, 2, 3, 300, 24, 300, dtype=torch.float16)
    assert_right(attend(q, k, v, causal=True), q, k, v, causal=True)


MASKS = ((9,), (5, 9), (5, 1), (4, 5, 9), (4, 1, 9), (2, 1, 1, 9), (2, 4, 5, 9), ())


@pytest.mark.each_value
@pytest.mark.parametrize("boolean", [False, True])
def test_masks(attend: Attention, boolean: bool) -> None:
    q, k, v = operands_of(*EXTENTS[1], dtype=torch.float16)
    for number, shape in enumerate(MASKS):
        mask = random(*shape, dtype=torch.float16, seed=3)
        mask = mask > -0.4 if boolean else mask
        causal = number % 2 > 0
        assert_right(attend(q, k, v, mask, causal), q, k, v, mask, causal)
        form = last_plan(attend).kernel.form
        assert form.mask is not None
        # Rows of numbers are read by whole loads, if need be from a copy.
        assert form.mask.spread == "keys" or form.mask.layout == "aligned"


def test_padding_masks_of_any_length_have_one_kernel(h200: GpuBackend) -> None:
    """The number of keys decides where rows of a mask lie, and nothing about its kernel."""
    attend, forms = Attention(h200.attentions), set()
    for keys in (128, 130, 131, 136):
        q, k, v = operands_of((2,), 2, 2, 5, keys, 8, 8, dtype=torch.float16)
        for mask in (random(2, 1, 1, keys, seed=3) > 0, random(2, 1, 1, keys, seed=3).half()):
            assert_right(attend(q, k, v, mask), q, k, v, mask)
            form = last_plan(attend).kernel.form
            assert form.mask is not None
            assert form.mask.spread == "keys"
            forms.add(form)
    assert len(forms) == 2


def test_aligned_masks_are_read_in_place(h200: GpuBackend) -> None:
    attend = Attention(h200.attentions)
    q, k, v = operands_of((2,), 2, 2, 5, 32, 8, 8, dtype=torch.float16)
    mask = random(2, 1, 5, 32, seed=3) > 0
    assert_right(attend(q, k, v, mask), q, k, v, mask)
    key = list(h200.attentions._calls._young)[-1]
    assert any(stride == (160, 0, 0, 32, 1) for _, stride, _ in key[:5])  # type: ignore[misc]


def test_rows_that_see_nothing_give_zeros(attend: Attention) -> None:
    q, k, v = operands_of((), 2, 1, 7, 4, 8, 5)
    found = attend(q, k, v, causal=True)
    assert not found[:, :3].any()
    assert found[:, 3:].any(-1).all()
    mask = torch.ones(7, 4, dtype=torch.bool)
    mask[2] = False
    found = attend(q, k, v, mask)
    assert not found[:, 2].any()
    assert_right(found, q, k, v, mask)
    assert not attend(q, k[:, :0], v[:, :0]).any()


def test_scales(attend: Attention) -> None:
    q, k, v = operands_of(*EXTENTS[1])
    for scale in (0.5, -0.5, 0):
        assert_right(attend(q, k, v, scale=scale), q, k, v, scale=scale)
    nothing = attend(q[..., :0], k[..., :0], v)
    mean = v.mean(-2, keepdim=True).repeat_interleave(2, 1)
    assert torch.allclose(nothing, mean.expand_as(nothing), atol=1e-6)


def test_strides_and_results_anywhere(attend: Attention) -> None:
    for pad in (0, 3):
        store = random(2, 9, 3, 4, 8 + pad, dtype=torch.float16)[..., :8]
        q, k, v = (store[:, :, i].transpose(1, 2) for i in range(3))
        out = torch.empty(2, 4, 8, 9, dtype=torch.float16).mT
        assert attend(q, k, v, out=out) is out
        assert_right(out, q, k, v)
        before = q.clone()
        attend(q, k, v, out=q)
        assert_right(q, before, k, v)


def test_heads_share_copies_too(attend: Attention) -> None:
    """Keys and values that lie apart are copied once, and not once for each head that reads
    them."""
    q, k, v = operands_of((2,), 4, 2, 5, 19, 8, 8, dtype=torch.float16)
    apart = [random(2, 2, 8, 19, dtype=torch.float16, seed=seed).mT for seed in (7, 8)]
    one = random(2, 1, 8, 19, dtype=torch.float16, seed=9).mT.expand(2, 2, 19, 8)
    for keys, values in ((apart[0], v), (k, apart[1]), apart, (one, one)):
        assert_right(attend(q, keys, values), q, keys, values)
        assert last_plan(attend).problem.sharing == (4 if keys is one else 2)


def test_keys_come_by_descriptors_where_they_can(h200: GpuBackend) -> None:
    attend = Attention(h200.attentions)
    q, k, v = operands_of((2,), 4, 2, 5, 19, 72, 24, dtype=torch.float16)
    pad = random(2, 2, 19, 73, dtype=torch.float16)[..., :72]
    loads = []
    for keys in (k, k.flip(-2), pad, k[:, :, :1].expand(2, 2, 19, 72), k[:1].expand(2, -1, -1, -1)):
        assert_right(attend(q, keys, v), q, keys, v)
        loads.append(last_plan(attend).kernel.form.loads)
    # Rows that are not aligned, and those at one address, come by pointers.
    assert loads == ["descriptors", "descriptors", "pointers", "pointers", "descriptors"]
    q, k, v = operands_of((2,), 4, 2, 5, 19, 8, 8)
    assert_right(attend(q, k, v), q, k, v)
    # float32 by parts on the matrix units.
    assert last_plan(attend).kernel.form.loads == "descriptors"


def requests_right(
    attend: Attention, lengths: list[tuple[int, int]], causal: bool, offsets: Any = list,
    heads: tuple[int, int] = (4, 2), dtype: torch.dtype = torch.float16,
) -> None:  # fmt: skip
    rows, keys = ([0, *np.cumsum(each).tolist()] for each in zip(*lengths, strict=True))
    q = random(rows[-1], heads[0], 8, dtype=dtype).transpose(0, 1)
    k = random(keys[-1], heads[1], 8, dtype=dtype, seed=1).transpose(0, 1)
    v = random(keys[-1], heads[1], 24, dtype=dtype, seed=2).transpose(0, 1)
    found = attend(q, k, v, causal=causal, q_offsets=offsets(rows), k_offsets=offsets(keys))
    for (first, last), (begin, end) in zip(pairwise(rows), pairwise(keys), strict=True):
        if end == begin:
            assert not found[:, first:last].any()
        elif last > first:
            own = q[:, first:last], k[:, begin:end], v[:, begin:end]
            assert_right(found[:, first:last], *own, causal=causal)


REQUESTS = [(3, 3), (0, 5), (20, 41), (1, 50), (5, 0), (16, 16), (17, 9), (0, 0)]


@pytest.mark.parametrize("causal", [False, True])
def test_requests(attend: Attention, causal: bool) -> None:
    requests_right(attend, REQUESTS, causal)
    form = last_plan(attend).kernel.form
    assert (form.loads == "descriptors") == attend._attentions._hardware.bulk_copy
    requests_right(attend, REQUESTS, causal, heads=(3, 3), dtype=torch.float32)
    requests_right(attend, [(0, 4), (0, 0)], causal)
    requests_right(attend, [(2, 0), (3, 0)], causal)


def test_long_requests_are_cut(attend: Attention) -> None:
    """One long request beside a short one, on many multiprocessors."""
    requests_right(attend, [(1, 3000), (2, 7)], True, heads=(2, 1))
    assert last_plan(attend).split_keys > 1


@settings(max_examples=20)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4),
    causal=st.booleans(),
    heads=st.sampled_from(((1, 1), (2, 1), (2, 2))),
)
def test_any_requests(
    h200: GpuBackend, lengths: list[tuple[int, int]], causal: bool, heads: tuple[int, int]
) -> None:
    requests_right(Attention(h200.attentions), lengths, causal, heads=heads)


def test_offsets_of_any_kind(h200: GpuBackend) -> None:
    attend = Attention(h200.attentions)
    kinds = (tuple, torch.tensor, np.array, lambda x: torch.tensor(x, dtype=torch.int32))
    for kind in kinds:
        requests_right(attend, [(2, 3), (4, 1)], True, kind)
    q, k, v = operands_of((), 2, 2, 7, 7, 8, 8, dtype=torch.float16)
    found = attend(q, k, v, q_offsets=[0, 3, 7])
    assert_right(found[:, 3:], q[:, 3:], k[:, 3:], v[:, 3:])
    # A result over what other requests read.
    attend(q, k, v, q_offsets=[0, 3, 7], out=k)
    assert torch.equal(k, found)


def test_offsets_that_are_no_integers(h200: GpuBackend) -> None:
    """Also where they are equal to some that a call was made with before."""
    attend = Attention(h200.attentions)
    q, k, v = operands_of((), 2, 2, 4, 4, 8, 8, dtype=torch.float16)
    for _ in range(2):
        attend(q, k, v, q_offsets=(0, 4))
    for wrong in ((0.0, 4.0), (0, 4.0), (0, [2], 4), ([], 4)):
        with pytest.raises(DTypeError, match="integers"):
            attend(q, k, v, q_offsets=wrong)
    found = attend(q, k, v, q_offsets=(np.int64(0), np.int32(4)))
    assert torch.equal(found, attend(q, k, v, q_offsets=(0, 4)))


def test_requests_are_not_captured(h200: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their offsets come from the host, where nothing is when a graph is replayed."""
    q, k, v = operands_of((), 2, 2, 4, 4, 8, 8, dtype=torch.float16)
    attend = Attention(h200.attentions)
    attend(q, k, v, q_offsets=(0, 1, 4))
    monkeypatch.setattr(attentions_room, "is_capturing", lambda device: True)
    # As the first time, and by what is kept of it.
    for offsets in ((0, 2, 4), (0, 1, 4)):
        with pytest.raises(UnsupportedKernelError, match="captured"):
            attend(q, k, v, q_offsets=offsets)


def test_what_is_kept_is_bounded(h200: GpuBackend) -> None:
    attend, attentions = Attention(h200.attentions), h200.attentions
    q, k, v = operands_of((), 1, 1, 2, 80, 8, 8, dtype=torch.float16)
    for last in range(1, MAX_UPLOADS + 3):
        attend(q, k, v, q_offsets=[0, 1, 2], k_offsets=[0, last, 80])
    assert MAX_UPLOADS / 2 <= len(attentions._uploads) <= MAX_UPLOADS
    assert len(attentions._calls) <= MAX_CALLS
    # All that plans may choose was there before the first launch.
    kernels = sum(len(each.kernels) for each in attentions._prepared.values())
    assert {call.kernel for call in attentions._calls.values()} <= {
        kernel for each in attentions._prepared.values() for kernel in each.kernels.values()
    }
    attend(q, k, v, q_offsets=[0, 2], k_offsets=[0, 80])
    assert sum(len(each.kernels) for each in attentions._prepared.values()) == kernels


def test_calls_like_some_before(h200: GpuBackend) -> None:
    """With other tensors, and what is refused is refused again."""
    attend = Attention(h200.attentions)
    options: list[dict[str, Any]] = [
        {}, {"causal": True}, {"scale": 0.5}, {"mask": random(1, 1, 1, 9, dtype=torch.float16)},
        {"mask": random(5, 9, seed=4) > 0},
    ]  # fmt: skip
    for seed in range(3):
        q = random(2, 5, 4, 8, dtype=torch.float16, seed=seed).transpose(1, 2)
        k, v = (random(2, 2, 9, 8, dtype=torch.float16, seed=seed + i) for i in (5, 6))
        for each in options:
            assert_right(attend(q, k, v, **each), q, k, v, **each)
    for seed in range(3):
        x = random(7, 2, 8, dtype=torch.float16, seed=seed).transpose(0, 1)
        found = attend(x, x, x, causal=True, q_offsets=(0, 3, 7))
        assert_right(found[:, 3:], x[:, 3:], x[:, 3:], x[:, 3:], causal=True)
    # At addresses that are not aligned.
    q = random(2 * 4 * 5 * 8 + 1, dtype=torch.float16)[1:].view(2, 5, 4, 8).transpose(1, 2)
    assert_right(attend(q, k, v), q, k, v)
    with pytest.raises(OperandError, match="gradient"):
        attend(q.clone().requires_grad_(), k, v)
    with pytest.raises(ShapeError, match="depth"):
        attend(q[..., :7], k, v)
    with pytest.raises(OperandError, match="no mask"):
        attend(x, x, x, torch.ones(7, 7, dtype=torch.bool), q_offsets=(0, 3, 7))
    with torch.no_grad():
        leaf = q.clone().requires_grad_()
        assert torch.equal(attend(leaf, k, v), attend(q, k, v))


Q, K, V = operands_of((2,), 4, 2, 5, 9, 8, 3)
SCALES = (1e300, -1e39, 10**400, (), ([],))
# Keys at one address.
MANY = torch.zeros(8).expand(1, 2**31, 8)
BAD: tuple[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]], ...] = (
    (OperandError, "ndarray", (Q.numpy(), K, V), {}),
    (OperandError, "meta", (Q, K.to("meta"), V), {}),
    (OperandError, "gradient", (Q, K.clone().requires_grad_(), V), {}),
    (DTypeError, "int32", (Q.int(), K, V), {}),
    (DTypeError, "v has dtype", (Q, K, V.half()), {}),
    (DTypeError, "mask", (Q, K, V, torch.ones(5, 9, dtype=torch.float16)), {}),
    (ShapeError, "broadcast", (Q, K, V, torch.ones(4, 9, dtype=torch.bool)), {}),
    (OperandError, "one address", (Q, K, V), {"out": torch.empty(1, 4, 5, 3).expand(2, 4, 5, 3)}),
    (ShapeError, "out is", (Q, K, V), {"out": torch.empty(2, 4, 5, 4)}),
    (DTypeError, "out has", (Q, K, V), {"out": torch.empty(2, 4, 5, 3, dtype=torch.float16)}),
    (ShapeError, "0 to 256", (random(1, 2, 300), random(1, 3, 300), random(1, 3, 4)), {}),
    (ShapeError, "from 0 to 5", (Q[0], K[0], V[0]), {"q_offsets": [0, 5]}),
    *((ConfigurationError, "scale", (Q, K, V), {"scale": scale}) for scale in SCALES),
    (ShapeError, "2147483648 keys", (random(1, 2, 8), MANY, MANY), {}),
)


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input(h200: GpuBackend, number: int) -> None:
    error, words, operands, options = BAD[number]
    attend = Attention(h200.attentions)
    with pytest.raises(error, match=words):
        attend(*operands, **options)
    assert attend(Q, K, V).isfinite().all()


def test_chips_that_cannot_multiply_so() -> None:
    from tests.runtime.gpu.backends import interpreted

    attend = Attention(interpreted("v100").attentions)
    q, k, v = operands_of((), 1, 1, 2, 3, 8, 8, dtype=torch.bfloat16)
    with pytest.raises(HardwareError, match="bfloat16"):
        attend(q, k, v)
    assert_right(attend(q.half(), k.half(), v.half()), q.half(), k.half(), v.half())


def test_without_a_gpu_there_is_nothing_to_run_on() -> None:
    class Elsewhere(torch.Tensor):
        is_cuda = True

    given = torch.zeros(1, 2, 3).as_subclass(Elsewhere)
    with pytest.raises(HardwareError, match="CUDA"):
        ftuner.attention(given, given, given)
