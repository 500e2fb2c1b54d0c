"""Launches of calls seen before: which are kept, and for which tensors they are repeated."""

from collections.abc import Sequence
from typing import Any

import torch

from ftuner.runtime.gpu.arrays import tf32_set
from ftuner.runtime.gpu.call_cache import CallCache, call_key
from ftuner.runtime.gpu.kernels import LATE, BoundKernel, Kernel
from ftuner.runtime.gpu.launching import FixedLaunch

BLOCK = [1, 16, 16]


class Compiled(Kernel):
    """A kernel that notes what it is launched with."""

    def __init__(self) -> None:
        self._function = None
        self.launched: list[list[Any]] = []
        self.bound = 0

    def fixed(self, programs: int, arguments: Sequence[Any]) -> FixedLaunch:
        self.bound += 1
        found = [x if isinstance(x, int) else x.base.address for x in arguments]
        return lambda: self.launched.append(found)


def launch(kernel: Compiled, *tensors: torch.Tensor) -> BoundKernel:
    """With an address and a descriptor of each, and a number that no tensor moves."""
    described = [kernel.argument(x, ([1, 4, 4], [16, 4, 1], BLOCK)) for x in tensors]
    return BoundKernel(kernel, 1, [*map(kernel.argument, tensors), *described, 7])


def test_a_call_is_repeated_for_tensors_elsewhere() -> None:
    cache, kernel = CallCache(), Compiled()
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)
    first = torch.zeros(4, 4)
    key = call_key((), (a, b))
    assert cache.again(key) is None
    cache.keep(key, (a, b), first, [launch(kernel, a, b[1:], first)])
    other = torch.zeros(4, 4)
    results = [cache.again(call_key((), (a, x))) for x in (b, other, other)]
    for x, result, launched in zip((b, other, other), results, kernel.launched, strict=True):
        assert result is not None
        places = [a.data_ptr(), x[1:].data_ptr(), result.data_ptr()]
        assert launched == [*places, *places, 7]


def test_overlapping_tensors_take_the_way_that_was_kept_for_them() -> None:
    """A result over an operand is computed elsewhere and copied: it has other launches."""
    cache, kernel = CallCache(), Compiled()
    a, b, y = (torch.zeros(4, 4) for _ in range(3))
    cache.keep(call_key((), (a, b, y)), (a, b, y), y, [launch(kernel, a, b, y)])
    assert cache.again(call_key((), (a, y, y)), y) is None
    assert cache.again(call_key((), (b, a, y)), y) is y
    # An operand twice is kept where it is, and no model for others.
    cache.keep(call_key((1,), (a, a, y)), (a, a, y), y, [launch(kernel, a, a, y)])
    assert cache.again(call_key((1,), (a, a, y)), y) is y
    assert cache.again(call_key((1,), (a, b, y)), y) is None
    cache.keep(call_key((1,), (a, b, y)), (a, b, y), y, [launch(kernel, a, b, y)])
    assert cache.again(call_key((1,), (b, a, y)), y) is y


def test_what_cannot_be_repeated_is_not_kept() -> None:
    cache, x = CallCache(), torch.zeros(4, 4)
    key = call_key((), (x,))
    cache.keep(key, (x,), x, None)
    interpreted = Compiled()
    interpreted._function = print
    cache.keep(key, (x,), x, [BoundKernel(interpreted, 1, [])])
    assert cache.again(key) is None


def test_keys_have_all_that_decides() -> None:
    x = torch.zeros(9, 8)
    alike = [x, x[1:], x[:8].mT, x[:8, :4], x.flatten()[1:65].view(8, 8), x[:8].double()]
    with tf32_set(False):
        layouts = [call_key((), (y,)).layout for y in (*alike, x[:8])]  # type: ignore[union-attr]
    with tf32_set(True):
        layouts.append(call_key((), (x[:8],)).layout)  # type: ignore[union-attr]
    # The eighth row begins at an aligned address, as the first does.
    assert layouts[1] == layouts[6]
    assert len(set(layouts)) == len(layouts) - 1
    grown = torch.zeros(2, 2, requires_grad=True)
    assert call_key((), (grown,)) is None
    with torch.no_grad():
        assert call_key((), (grown,)) is not None
    negated = torch.zeros(2, dtype=torch.complex64).conj().imag
    for odd in (None, [1.0], negated, x.to_sparse()):
        assert call_key((), (x, odd)) is None


def test_memory_of_a_launch_is_asked_for_each_time() -> None:
    """It is another one on another stream, and arguments are bound to it once."""
    kernel, rooms = Compiled(), [torch.zeros(4), torch.zeros(4)]
    given = iter([0, 0, 1, 1, 0])
    bound = BoundKernel(kernel, 1, [5, LATE], lambda: [rooms[next(given)]], (4, 0))
    for _ in range(5):
        bound.launch()
    assert kernel.launched == [[5, rooms[n].data_ptr()] for n in (0, 0, 1, 1, 0)]
    assert kernel.bound == 3
