"""What kernels, which count with 32 bits, are not given: more than they can count.

Operands are tensors without data, as large as one likes; nothing is launched.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.gpu.tile import MOST_COUNTED
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.operands import Product
from ftuner.runtime.ops.attention_operands import Requests
from ftuner.schedules.attention.gpu_binding_launches import How, Operands

OVERFLOWING = 2**31


def given(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Of no data."""
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture
def launched(backend: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a back end launches; nothing is."""
    found: list[Any] = []
    interpreted = SimpleNamespace(interpreted=True)

    def bound(call: Any, *_: object) -> SimpleNamespace:
        return SimpleNamespace(kernel=interpreted, launch=lambda: found.append(call))

    monkeypatch.setattr(backend.products, "_bound", bound)
    attentions = backend.attentions
    monkeypatch.setattr(attentions, "_bound", lambda *given: [bound(attentions._call(*given))])
    monkeypatch.setattr(backend.grouped_matmul, "_launch", lambda call, *_: found.append(call))
    return found


def test_what_is_left_is_enough() -> None:
    """For the last tile, and for the one that the last program would do next."""
    for name in GPUS:
        hardware = gpu(name)
        threads = hardware.multiprocessors * hardware.threads_per_multiprocessor
        assert MOST_COUNTED + threads // hardware.warp_threads < OVERFLOWING


PRODUCTS = (
    # Batch, m, n, k: as many as can be counted.
    (1, MOST_COUNTED, 8, 8), (1, 8, MOST_COUNTED, 8), (1, 8, 8, MOST_COUNTED),
    (MOST_COUNTED, 8, 8, 8),
    (1, MOST_COUNTED, 4000, 8), (1, 3000, MOST_COUNTED, 8), (2**13, 2**15, 2**15, 8),
)  # fmt: skip
LARGER_PRODUCTS = (
    (1, MOST_COUNTED + 1, 8, 8), (1, 8, MOST_COUNTED + 1, 8), (1, 8, 8, MOST_COUNTED + 1),
    (MOST_COUNTED + 1, 8, 8, 8), (MOST_COUNTED, 8, 1000, 8), (MOST_COUNTED, 1000, 8, 8),
    (2**20, 2**15, 2**15, 8),
)  # fmt: skip


def multiply(
    backend: GpuBackend, batch: int, m: int, n: int, k: int, dtype: torch.dtype = torch.float16
) -> None:
    shapes = (batch, m, k), (batch, k, n), (batch, m, n)
    backend.products.launch(Product(*(given(*shape, dtype=dtype) for shape in shapes)))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("extents", PRODUCTS, ids=str)
def test_products(
    backend: GpuBackend, launched: list[Any], extents: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    multiply(backend, *extents, dtype=dtype)
    plan = launched[-1].plan
    batch, _, n, k = extents
    for tile, first, last in plan.bands:
        rows = -(-(last - first) // tile.bm)
        assert first + rows * tile.bm < OVERFLOWING
        assert batch * rows * plan.columns * plan.split_k + plan.programs < OVERFLOWING
    assert plan.columns * plan.kernel.main.bn < OVERFLOWING
    assert plan.swizzle * plan.columns < OVERFLOWING
    assert -(-k // plan.kernel.main.bk) * plan.split_k < OVERFLOWING
    assert n + plan.kernel.main.bn < OVERFLOWING


@pytest.mark.parametrize("extents", LARGER_PRODUCTS, ids=str)
def test_larger_products(
    backend: GpuBackend, launched: list[Any], extents: tuple[int, int, int, int]
) -> None:
    with pytest.raises(ShapeError, match=str(MOST_COUNTED)):
        multiply(backend, *extents)
    assert not launched


@pytest.mark.parametrize(
    "sizes",
    [[(MOST_COUNTED + 1, 8, 8)], [(8, MOST_COUNTED + 1, 8)], [(8, 8, MOST_COUNTED + 1)],
     [(2**30, 2**20, 8)], [(MOST_COUNTED, 8, 8)] * 300],
    ids=lambda sizes: f"{len(sizes)} times {sizes[0]}",
)  # fmt: skip
def test_larger_groups(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int, int]]
) -> None:
    uploaded: list[object] = []
    monkeypatch.setattr(
        backend.grouped_matmul, "_uploaded", lambda *numbers: uploaded.append(numbers)
    )
    with pytest.raises(ShapeError, match=str(MOST_COUNTED)):
        backend.grouped_matmul.run([(given(m, k), given(k, n), given(m, n)) for m, n, k in sizes])
    assert not uploaded


ATTENTIONS = (
    # Batch, heads, heads that share keys, rows, keys, whether rows see what lies before them.
    (1, 1, 1, MOST_COUNTED, 8, False), (1, 1, 1, 8, MOST_COUNTED, True),
    (1, 1, 1, MOST_COUNTED, MOST_COUNTED, True), (MOST_COUNTED, 1, 1, 1, 8, False),
    (1, MOST_COUNTED, 1, 1, 8, True), (1, 1, MOST_COUNTED, 1, 8, True),
)  # fmt: skip
LARGER_ATTENTIONS = (
    (1, 1, 1, MOST_COUNTED + 1, 8, False), (1, 1, 1, 8, MOST_COUNTED + 1, False),
    (MOST_COUNTED + 1, 1, 1, 1, 8, False), (1, 1, MOST_COUNTED + 1, 1, 8, False),
    (MOST_COUNTED, 8, 1, 1, 8, True), (2**16, 2**16, 1, 1, 8, True),
)  # fmt: skip


def attend(
    backend: GpuBackend, batch: int, heads: int, sharing: int, rows: int, keys: int, causal: bool,
    depth: int = 16, dtype: torch.dtype = torch.float16,
) -> None:  # fmt: skip
    q, out = (given(batch, heads, sharing, rows, depth, dtype=dtype) for _ in range(2))
    k, v = (
        given(batch, heads, 1, keys, depth, dtype=dtype).expand(-1, -1, sharing, -1, -1)
        for _ in range(2)
    )
    past = keys - rows if causal else None
    backend.attentions.run(Operands(q, k.mT, v, out), How.of(AttentionSoftmax(0.25), past))


@pytest.mark.parametrize("extents", ATTENTIONS, ids=str)
def test_attention(
    backend: GpuBackend, launched: list[Any], extents: tuple[int, int, int, int, int, bool]
) -> None:
    attend(backend, *extents)
    plan, numbers = launched[-1].plan, launched[-1].numbers
    tile = plan.kernel.tile
    assert plan.tiles * tile.bq < OVERFLOWING
    assert plan.l2_heads * plan.tiles < OVERFLOWING
    assert numbers.keys + tile.bk < OVERFLOWING
    assert numbers.rows + tile.bq + numbers.past < OVERFLOWING
    assert -(-numbers.keys // tile.bk) * plan.split_keys < OVERFLOWING


@pytest.mark.parametrize("extents", LARGER_ATTENTIONS, ids=str)
def test_larger_attention(
    backend: GpuBackend, launched: list[Any], extents: tuple[int, int, int, int, int, bool]
) -> None:
    with pytest.raises(ShapeError, match=str(MOST_COUNTED)):
        attend(backend, *extents)
    assert not launched


def test_parts_of_keys(backend: GpuBackend, launched: list[Any]) -> None:
    """Blocks of long vectors are short, and a kernel counts them as often as there are parts."""
    with pytest.raises(ShapeError, match=str(MOST_COUNTED)):
        attend(backend, 1, 1, 1, 8, 2**30, False, 256, torch.float32)
    assert not launched


def test_limits_far_from_all_keys(backend: GpuBackend, launched: list[Any]) -> None:
    """Whatever a model counts, rows see all keys or none."""
    for past, counted in ((2**40, 9), (-(2**40), -5), (3, 3), (-2, -2)):
        q, k = given(1, 5, 16), given(1, 9, 16)
        backend.attentions.run(Operands(q, k.mT, k, q), How.of(AttentionSoftmax(0.25), past))
        assert launched[-1].numbers.past == counted


def test_requests_together(backend: GpuBackend, launched: list[Any]) -> None:
    for rows, keys in ((MOST_COUNTED + 1, 8), (8, MOST_COUNTED + 1)):
        q, k = given(1, 1, rows, 16), given(1, 1, keys, 16)
        how = How(AttentionSoftmax(0.25), "last", 0, False, Requests((0, rows), (0, keys)))
        with pytest.raises(ShapeError, match=str(MOST_COUNTED)):
            backend.attentions.run(Operands(q, k.mT, k, q), how)
    assert not launched
