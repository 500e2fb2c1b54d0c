"""Attention on a GPU against PyTorch's: over lengths, one position at a time, and requests of
unequal length.

Requests of one length are given to `scaled_dot_product_attention` as it chooses its kernels, and
with cuDNN's and FlashAttention's alone. Those of unequal length are given to it padded, and one by
one; and as they lie to `varlen_attn`, in versions of PyTorch that have it.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise, product
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from benchmarks.gpu_bench import (
    CONFIDENCE,
    INPUT_ROUNDOFF,
    ONE_BY_ONE,
    SPECIALISED,
    SUBJECT,
    VENDOR,
    Attempt,
    Bench,
    attempts,
    finite,
    multiplying,
    ordered,
)
from benchmarks.gpu_cases import ITEMSIZE
from benchmarks.gpu_timing import Call
from ftuner.runtime.gpu.attention import Attention as Operator
from ftuner.schedules.attention.gpu_binding_launches import Attentions

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # Versions before it came.
    varlen_attn = None

BACKENDS = {
    "torch, cuDNN": SDPBackend.CUDNN_ATTENTION,
    "torch, FlashAttention": SDPBackend.FLASH_ATTENTION,
}
"""Engines of one kernel, beside what PyTorch chooses."""
DRY_BACKENDS = ("torch, FlashAttention",)
"""Those that PyTorch has on a CPU, too."""
VARLEN = "torch, varlen_attn"
LLAMA, BERT = (32, 8, 128), (12, 12, 64)
"""Heads, heads of keys and values, and elements of a head: of Llama 3 8B and of BERT-base."""
LENGTHS = (1, 7, 33, 77, 128, 197, 333, 512, 777, 1024, 1531, 2048, 3000, 4096, 6001, 8192)
BATCHES = (1, 8)
DECODE_LENGTHS = (17, 333, 1024, 3000, 8192)
SPECIALISED_LENGTHS = (777, 2048, 8192)
CHUNKS = ((64, 1111), (512, 4096), (300, 8192))
"""Rows that are new, and keys with those from a cache."""
REQUESTS = (
    (5, 1024, 33, 333, 77, 2048, 7, 512), (128,) * 7 + (4096,),
    (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597),
)  # fmt: skip
CHECKED_ROWS = 16
CHECKED_LONG, CHECKED_THIN = (2, 4, 2, 333, 777, 64), (1, 8, 2, 3, 5000, 128)
CHECKED_SPECIALISED = ((8, 32, 8, 777, 1500, 128), (8, 32, 32, 1500, 777, 64))
CHECKED_ODD, CHECKED_DRY = (3, 2, 2, 70, 133, 37), (2, 4, 2, 5, 19, 8)
"""Batch, heads, heads of keys, rows, keys, elements: many tiles, keys in parts, nothing aligned."""


@dataclass(frozen=True)
class Attention:
    """One attention. Requests have as many rows and keys as `rows` and `keys` say, one after the
    other where they differ in length."""

    set: str
    multiply: str
    heads: int
    kv_heads: int
    depth: int
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    causal: bool

    @property
    def ragged(self) -> bool:
        return len(set(self.rows)) > 1 or len(set(self.keys)) > 1

    @property
    def label(self) -> str:
        many = "+".join(map(str, self.rows)) if self.ragged else f"{len(self.rows)}*{self.rows[0]}"
        causal = " causal" if self.causal else ""
        return (
            f"{self.set} {self.multiply}{causal} {self.heads}/{self.kv_heads}x{self.depth} "
            f"{many}x{max(self.keys)}"
        )

    @property
    def flops(self) -> int:
        """Of the scores that are seen."""
        pairs = 0
        for rows, keys in zip(self.rows, self.keys, strict=True):
            seen = min(rows, keys)
            pairs += seen * (2 * keys - seen + 1) // 2 if self.causal else rows * keys
        return 4 * self.heads * self.depth * pairs

    @property
    def bytes(self) -> int:
        """Of all operands and the result."""
        elements = 2 * self.heads * sum(self.rows) + 2 * self.kv_heads * sum(self.keys)
        return elements * self.depth * ITEMSIZE[self.multiply]


def attention_cases() -> Iterator[Attention]:
    """bfloat16 of all kinds, and a few of the other element types."""
    for heads, causal in ((LLAMA, True), (BERT, False)):
        for batch in BATCHES:
            for n in LENGTHS:
                lengths = (n,) * batch
                yield Attention("lengths", "bfloat16", *heads, lengths, lengths, causal)
    for batch in (1, 8, 32):
        for n in DECODE_LENGTHS:
            yield Attention("decode", "bfloat16", *LLAMA, (1,) * batch, (n,) * batch, False)
    for rows, keys in CHUNKS:
        yield Attention("chunk", "bfloat16", *LLAMA, (rows,), (keys,), True)
    for lengths in REQUESTS:
        for heads, causal in ((LLAMA, True), (BERT, False)):
            yield Attention("ragged", "bfloat16", *heads, lengths, lengths, causal)
    for heads, causal in ((LLAMA, True), (LLAMA, False), (BERT, False)):
        for n in SPECIALISED_LENGTHS:
            yield Attention("specialised", "bfloat16", *heads, (n,), (n,), causal)
    for multiply in ("float16", "tf32", "float32"):
        for n in (77, 1024):
            yield Attention("lengths", multiply, *BERT, (n,), (n,), False)


def dry_cases() -> Iterator[Attention]:
    """Some that the interpreter runs in no time."""
    for multiply in ("float16", "float32"):
        yield Attention("dry", multiply, 2, 1, 16, (20, 20), (20, 20), True)
        yield Attention("dry", multiply, 2, 2, 8, (1,), (33,), False)
    yield Attention("dry", "float16", 2, 1, 16, (3,), (9,), True)
    yield Attention("dry", "float16", 2, 1, 16, (5, 17, 1), (5, 17, 1), True)


def specialised(bench: Bench) -> Attentions:
    """Attention as planned with specialised warps."""
    own = bench.backend
    return Attentions(bench.device, own.kernels, own.scratch, bench.specialising)


class Operands:
    """Copies of the operands of an attention, and calls of engines on them."""

    def __init__(self, bench: Bench, case: Attention) -> None:
        self.case, self.count, self._dry = case, bench.rotated(case), bench.dry
        ends = [(0, *accumulate(each)) for each in (case.rows, case.keys)]
        self.offsets = ends
        q_heads, kv_heads, depth, multiply = case.heads, case.kv_heads, case.depth, case.multiply

        def made(heads: int, lengths: Sequence[int]) -> list[torch.Tensor]:
            # As projections leave them: heads side by side.
            found = bench.copies(self.count, (sum(lengths), heads, depth), multiply)
            if case.ragged:
                return [x.transpose(0, 1) for x in found]
            return [x.view(len(lengths), -1, heads, depth).transpose(1, 2) for x in found]

        self.q = made(q_heads, case.rows)
        self.k, self.v = made(kv_heads, case.keys), made(kv_heads, case.keys)

    def ours(self, attentions: Attentions) -> list[Call]:
        attend = Operator(attentions)
        options: dict[str, Any] = {"causal": self.case.causal}
        if self.case.ragged:
            options |= {"q_offsets": self.offsets[0], "k_offsets": self.offsets[1]}
        operands = zip(self.q, self.k, self.v, strict=True)
        return [lambda x=x: attend(*x, **options) for x in operands]

    def vendor(self) -> dict[str, list[Call]]:
        """By engine. What an engine has no kernel for it refuses when it is called."""
        every = list(zip(self.q, self.k, self.v, strict=True))
        if self.case.ragged:
            found = {
                VENDOR: [self._padded(*x) for x in every],
                ONE_BY_ONE: [self._one_by_one(*x) for x in every],
            }
            # Its kernel is of CUDA alone.
            if varlen_attn is not None and not self._dry:
                found[VARLEN] = self.varlen(varlen_attn)
            return found
        found = {VENDOR: [self._whole(*x) for x in every]}
        for name, backend in BACKENDS.items():
            if not self._dry or name in DRY_BACKENDS:
                found[name] = [_limited(self._whole(*x), backend) for x in every]
        return found

    def varlen(self, function: Callable[..., Any]) -> list[Call]:
        """Requests of unequal length as they lie. `function`: `varlen_attn`, which has been told
        of causal masks and of heads that share keys in several ways; before it was told of the
        latter it took them, if its kernel did."""
        case, known = self.case, inspect.signature(function).parameters
        options: dict[str, Any] = {}
        if case.causal:
            options |= {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
        if case.heads != case.kv_heads and "enable_gqa" in known:
            options["enable_gqa"] = True
        q_ends, k_ends = (
            torch.tensor(ends, dtype=torch.int32, device=self.q[0].device) for ends in self.offsets
        )
        bounds = q_ends, k_ends, max(case.rows), max(case.keys)

        def bind(*operands: torch.Tensor) -> Call:
            lying = [x.transpose(0, 1) for x in operands]
            return lambda: function(*lying, *bounds, **options).transpose(0, 1)

        return [bind(*x) for x in zip(self.q, self.k, self.v, strict=True)]

    def _whole(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        rows, keys = q.shape[-2], k.shape[-2]
        options: dict[str, Any] = {"enable_gqa": q.shape[-3] != k.shape[-3]}
        if self.case.causal and rows == keys:
            options["is_causal"] = True
        elif self.case.causal:
            options["attn_mask"] = causal_lower_right(rows, keys)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    def _padded(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        """All requests as long as the longest, as who serves them without knowing of offsets lays
        them out; padding them is not in the time. What lies behind a request is seen by rows
        behind it alone, if it is causal; else a mask hides it."""
        case = self.case
        q, k, v = (self._pad(x, ends) for x, ends in zip((q, k, v), (0, 1, 1), strict=True))
        options: dict[str, Any] = {"enable_gqa": case.heads != case.kv_heads}
        if case.causal:
            options["is_causal"] = True
        else:
            lengths = torch.tensor(case.keys, device=q.device)
            shown = torch.arange(k.shape[-2], device=q.device) < lengths[:, None]
            options["attn_mask"] = shown[:, None, None]
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    def _pad(self, x: torch.Tensor, which: int) -> torch.Tensor:
        ends = self.offsets[which]
        longest = max(end - begin for begin, end in pairwise(ends))
        found = x.new_zeros((len(ends) - 1, x.shape[0], longest, x.shape[-1]))
        for row, (begin, end) in zip(found, pairwise(ends), strict=True):
            row[:, : end - begin] = x[:, begin:end]
        return found

    def _one_by_one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        bounds = zip(pairwise(self.offsets[0]), pairwise(self.offsets[1]), strict=True)
        parts = [
            self._whole(q[None, :, first:last], k[None, :, begin:end], v[None, :, begin:end])
            for (first, last), (begin, end) in bounds
        ]
        return lambda: [part() for part in parts]

    def error(self, call: Call, number: int) -> float:
        """Of a call on the operands of this number, over what rounding explains."""
        y: Any = call()
        q, k, v = self.q[number], self.k[number], self.v[number]
        if not self.case.ragged:
            return max(
                error_of(y[i], q[i], k[i], v[i], self.case.multiply, self.case.causal)
                for i in {0, len(self.case.rows) - 1}
            )
        worst = 0.0
        bounds = zip(pairwise(self.offsets[0]), pairwise(self.offsets[1]), strict=True)
        for i, ((first, last), (begin, end)) in enumerate(bounds):
            if isinstance(y, list):
                own = y[i][0]
            else:
                # Padded, or as they lie.
                own = y[i, :, : last - first] if y.dim() == 4 else y[:, first:last]
            part = q[:, first:last], k[:, begin:end], v[:, begin:end]
            error = error_of(own, *part, self.case.multiply, self.case.causal)
            worst = max(worst, error)
        return worst


def _limited(call: Call, backend: SDPBackend) -> Call:
    """A call for which PyTorch may choose one kernel only; raises where that does not take it."""

    def limited() -> object:
        with sdpa_kernel(backend):
            return call()

    return limited


def error_of(
    y: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, multiply: str,
    causal: bool, mask: torch.Tensor | None = None,
) -> float:  # fmt: skip
    """The largest error of one request over what rounding explains, from some rows of its first
    and last head, in float64; above one it is wrong. Weights are rounded to the operands' type, and
    are off by what their scores are. `mask`: (heads, rows, keys)."""
    heads, rows, depth = q.shape
    kv_heads, keys = k.shape[:2]
    step = max(1, -(-rows // CHECKED_ROWS)) | 1
    chosen = torch.arange(rows - 1, -1, -step, device=q.device)
    worst = 0.0
    for head in {0, heads - 1}:
        shared = head // (heads // kv_heads)
        q64, k64, v64 = q[head, chosen].double(), k[shared].double(), v[shared].double()
        scores = q64 @ k64.mT / math.sqrt(depth)
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask[head, chosen], -math.inf)
        elif mask is not None:
            scores = scores + mask[head, chosen].double()
        if causal:
            hidden = torch.arange(keys, device=q.device) > chosen[:, None] + keys - rows
            scores = scores.masked_fill(hidden, -math.inf)
        # Rows that see nothing are zeros.
        weights = scores.softmax(-1).nan_to_num(0.0)
        expected = weights @ v64
        eps = torch.finfo(y.dtype).eps
        sums = math.sqrt(depth) * torch.finfo(torch.float32).eps
        lifted = 2 * INPUT_ROUNDOFF[multiply] + sums
        off = lifted * ((q64 * q64) @ (k64 * k64).mT / depth).sqrt()
        spread = ((weights * (eps + lifted + off)).square() @ v64.square()).sqrt()
        bound = 2 * eps * expected.abs() + CONFIDENCE * spread
        error = (y[head, chosen].double() - expected).abs() / bound.clamp_min(1e-30)
        worst = max(worst, finite(error.max()))
    return worst


def checks(bench: Bench, multiplies: Sequence[str]) -> Iterator[tuple[str, Callable[[], float]]]:
    """Attention in all the ways that kernels differ in, by label."""
    every = [(CHECKED_LONG, False), (CHECKED_THIN, True), (CHECKED_ODD, True)]
    for multiply in multiplies:
        for extents, causal in every if not bench.dry else [(CHECKED_DRY, True)]:
            for mask in (None, "booleans", "numbers", "a number for each key"):
                label = "x".join(map(str, extents))
                yield (
                    f"attention, {multiply} {label}{' causal' * causal}, mask: {mask}",
                    lambda e=extents, m=multiply, c=causal, k=mask: _checked(
                        bench, bench.backend.attentions, e, m, c, k
                    ),
                )
    for extents, causal in product(CHECKED_SPECIALISED if not bench.dry else (), (False, True)):
        label = "x".join(map(str, extents))
        yield (
            f"attention, specialised warps, {label}{' causal' * causal}",
            lambda e=extents, c=causal: _checked(bench, specialised(bench), e, "bfloat16", c, None),
        )


def _checked(
    bench: Bench, attentions: Attentions, extents: tuple[int, ...], multiply: str, causal: bool,
    mask: str | None,
) -> float:  # fmt: skip
    batch, heads, kv_heads, rows, keys, depth = extents
    (q,) = bench.copies(1, (batch, heads, rows, depth), multiply)
    k, v = bench.copies(2, (batch, kv_heads, keys, depth), multiply)
    given = None
    if mask is not None:
        shape = (batch, 1, 1 if mask == "a number for each key" else rows, keys)
        (given,) = bench.copies(1, shape, multiply)
        given = given > -1.0 if mask == "booleans" else given
    with multiplying(multiply), torch.inference_mode():
        y = Operator(attentions)(q, k, v, given, causal)
        spread = None if given is None else given.expand(batch, heads, rows, keys)
        return max(
            error_of(
                y[i], q[i], k[i], v[i], multiply, causal, spread if spread is None else spread[i]
            )
            for i in {0, batch - 1}
        )


def run_case(bench: Bench, case: Attention) -> dict[str, Any]:
    """Check and time one attention; the result as JSON."""
    with multiplying(case.multiply), torch.inference_mode():
        operands = Operands(bench, case)
        calls = {SUBJECT: operands.ours(bench.backend.attentions), **operands.vendor()}
        if case.set == "specialised":
            calls[SPECIALISED] = operands.ours(specialised(bench))
        return bench.result(case, operands, calls, asdict(case))


def attention(bench: Bench) -> Iterator[Attempt]:
    """Layers' attention, decoding, chunks and requests of unequal length."""
    return attempts(bench, dry_cases() if bench.dry else ordered(attention_cases()), run_case)
