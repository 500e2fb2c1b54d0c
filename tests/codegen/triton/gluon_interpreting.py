"""Kernels in Gluon on tensors of the CPU: Triton's interpreter does not run them.

Each partition is a thread. Loads write to shared memory as soon as they are issued, and products
and stores read it only when they are waited for, so that a buffer that is given back too early
spoils a result. What layouts and registers do is left out, and so are fences.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from ftuner.codegen.triton.source import GLUON_HEADER, Source

MOST_WAITING_S = 60.0
"""A partition that waits longer waits for ever."""


class Interpreted:
    """`Interpreted(source)[(programs,)](*arguments)` runs the programs one after the other."""

    def __init__(self, source: Source) -> None:
        assert source.text.startswith(GLUON_HEADER)
        self._programs = _Programs()
        names = {
            "gluon": SimpleNamespace(jit=lambda f: f),
            **_HOPPER,
            "tl": self._programs.language,
            "triton": triton,
        }
        exec(source.text.removeprefix(GLUON_HEADER), names)
        self._function = names[source.function]

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            given = [_argument(x) for x in arguments]
            self._programs.count = grid[0]
            for self._programs.number in range(grid[0]):
                self._function(*given)

        return run


def _argument(x: Any) -> Any:
    if isinstance(x, TensorDescriptor):
        return _Described(x)
    if isinstance(x, torch.Tensor):
        memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())  # type: ignore[call-overload]
        return _Pointer(memory, x.storage_offset())
    return x


@dataclass
class _Pointer:
    memory: torch.Tensor
    at: Any

    def __add__(self, offset: Any) -> _Pointer:
        return _Pointer(self.memory, self.at + offset)


class _Described:
    layout = None

    def __init__(self, x: TensorDescriptor) -> None:
        self.base, self.block = x.base, x.block_shape
        self.nbytes_per_cta = x.base.element_size() * int(torch.tensor(x.block_shape).prod())


class _Shared:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def index(self, i: int) -> _Shared:
        return _Shared(self.x[i])

    def reshape(self, shape: list[int]) -> _Shared:
        return _Shared(self.x.view(shape))

    def permute(self, order: list[int]) -> _Shared:
        return _Shared(self.x.permute(order))

    def store(self, x: torch.Tensor) -> None:
        self.x.copy_(x)

    def load(self, layout: Any) -> torch.Tensor:
        return self.x.clone()


class _Barrier:
    """An mbarrier: a phase is over when all have arrived and all bytes have come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = self._pending = self._bytes = self._phases = 0

    def begin(self, count: int) -> None:
        self._count = self._pending = count

    def change(self, arrivals: int, bytes_: int) -> None:
        with self._changed:
            self._pending -= arrivals
            self._bytes += bytes_
            assert self._pending >= 0
            if not self._pending and not self._bytes:
                self._phases += 1
                self._pending = self._count
                self._changed.notify_all()

    def wait(self, parity: int) -> None:
        with self._changed:
            over = self._changed.wait_for(lambda: self._phases % 2 != parity, MOST_WAITING_S)
            assert over, "deadlock"


class _Barriers(list[_Barrier]):
    def index(self, i: int) -> _Barrier:  # type: ignore[override]
        return self[i]


class _Product:
    """An asynchronous product, which is computed when it is waited for."""

    def __init__(self, a: Any, b: _Shared, accumulator: Any) -> None:
        self._operands = a, b, accumulator
        self.result: torch.Tensor | None = None

    def finish(self) -> None:
        a, b, accumulator = self._operands
        left = a.x if isinstance(a, _Shared) else a
        if isinstance(accumulator, _Product):
            accumulator = accumulator.result
        found = left.float() @ b.x.float()
        self.result = found if accumulator is None else found + accumulator


_in_flight = threading.local()


def _multiply(
    a: Any, b: _Shared, accumulator: Any, use_acc: bool = True, is_async: bool = False
) -> _Product:
    assert is_async
    found = _Product(a, b, accumulator if use_acc else None)
    _in_flight.products = [*getattr(_in_flight, "products", []), found]
    return found


def _wait(outstanding: int, given: Sequence[Any]) -> Any:
    products = _in_flight.products
    done = products[: len(products) - outstanding]
    _in_flight.products = products[len(done) :]
    for product in done:
        product.finish()
    # What is still in flight can only be added to.
    found = [x.result if isinstance(x, _Product) and x.result is not None else x for x in given]
    return found[0] if len(found) == 1 else tuple(found)


def _copy(x: _Described, at: list[int], barrier: _Barrier, to: _Shared) -> None:
    """Zeros are beyond the ends."""
    to.x.zero_()
    there = tuple(slice(i, i + n) for i, n in zip(at, x.block, strict=True))
    found = x.base[there]
    to.x[tuple(slice(n) for n in found.shape)] = found
    barrier.change(0, -x.nbytes_per_cta)


def _copy_back(x: _Described, at: list[int], of: _Shared) -> None:
    _in_flight.stores = [*getattr(_in_flight, "stores", []), (x, at, of)]


def _wait_for_stores(outstanding: int) -> None:
    stores = getattr(_in_flight, "stores", [])
    done = stores[: len(stores) - outstanding]
    _in_flight.stores = stores[len(done) :]
    for x, at, of in done:
        there = x.base[tuple(slice(i, i + n) for i, n in zip(at, x.block, strict=True))]
        there.copy_(of.x[tuple(slice(n) for n in there.shape)])


_HOPPER = {
    "fence_async_shared": lambda: None,
    "mbarrier": SimpleNamespace(
        allocate_mbarrier=lambda n: _Barriers(_Barrier() for _ in range(n)),
        init=_Barrier.begin,
        arrive=lambda barrier, pred=True: barrier.change(int(pred), 0),
        expect=lambda barrier, bytes_: barrier.change(1, bytes_),
        wait=_Barrier.wait,
    ),
    "tma": SimpleNamespace(
        async_load=_copy, async_store=_copy_back, store_wait=_wait_for_stores
    ),
    "warpgroup_mma": _multiply,
    "warpgroup_mma_wait": _wait,
}  # fmt: skip


def _where(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, bool):
        return x if condition else y
    return torch.where(condition, x, y)


def _load(pointer: _Pointer, mask: torch.Tensor, other: float) -> torch.Tensor:
    found = pointer.memory[torch.where(mask, pointer.at, 0)]
    return torch.where(mask, found, other).to(pointer.memory.dtype)


def _store(pointer: _Pointer, x: torch.Tensor, mask: torch.Tensor) -> None:
    mask = mask.expand(x.shape)
    pointer.memory[pointer.at[mask]] = x[mask]


def _extreme(best: Callable[..., Any], of_tensors: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, propagate_nan=None: (
        of_tensors(x, torch.as_tensor(y, dtype=x.dtype))
        if isinstance(x, torch.Tensor)
        else best(x, y)
    )


def _specialise(parts: list[Any], warps: list[int], registers: list[int]) -> None:
    with ThreadPoolExecutor(len(parts)) as pool:
        for done in [pool.submit(function, *given) for function, given in parts]:
            done.result()


class _Layout:
    def __init__(self, *given: Any) -> None:
        self.value = self


class _Programs:
    """The number of the program that runs, how many there are, and the language."""

    number = 0
    count = 0

    def __init__(self) -> None:
        layouts = ("NVMMADistributedLayout", "DotOperandLayout", "SliceLayout", "BlockedLayout",
                   "NVMMASharedLayout")  # fmt: skip
        self.language = SimpleNamespace(
            **dict.fromkeys(layouts, _Layout),
            **{name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "exp2")},
            constexpr=lambda x: x,
            program_id=lambda axis: self.number,
            num_programs=lambda axis: self.count,
            cdiv=lambda x, y: -(-x // y),
            split=lambda x: x.unbind(-1),
            static_range=range,
            minimum=_extreme(min, torch.minimum),
            maximum=_extreme(max, torch.maximum),
            max=lambda x, axis: x.amax(axis),
            sum=lambda x, axis: x.sum(axis),
            abs=torch.abs,
            fma=lambda x, y, z: x * y + z,
            where=_where,
            load=_load,
            store=_store,
            full=lambda shape, x, dtype, layout: torch.full(shape, x, dtype=dtype),
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            arange=lambda begin, end, layout: torch.arange(begin, end),
            convert_layout=lambda x, layout, assert_trivial=False: x,
            allocate_shared_memory=lambda dtype, shape, layout: _Shared(
                torch.full(shape, torch.nan, dtype=dtype)
            ),
            warp_specialize=_specialise,
        )
