"""What inputs of `ftuner.compile`d modules may be, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.frontends.torch_programs import Function
from tests.torch.modules import MEMORY, WIDTH, computed, hooked, in_a_child, in_threads, same

import ftuner


@pytest.fixture(scope="module")
def model() -> Any:
    return ftuner.compile(Function(computed), (torch.randn(5, 7),))


@pytest.mark.parametrize("x", MEMORY.values(), ids=list(MEMORY))
def test_memory_of_inputs(x: torch.Tensor, model: Any) -> None:
    with torch.no_grad():
        before = x.clone()
        same(model(x), computed(x))
        same(x, before)


def test_gradients_are_refused(model: Any) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(ftuner.InputError, match=r"needs a gradient.*no_grad"):
        model(x)
    assert not model(x.detach()).requires_grad


def test_results_and_inputs_are_apart() -> None:
    """An output that repeats an input, or a view of one, may be written."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = computed(x)
        return y, y.t(), y[1:], x.t(), x.expand(2, *x.shape), w, x

    run = ftuner.compile(Function(function), (torch.randn(3, 4), torch.randn(2)))
    for shape in ((5, 2), (1, 1)):
        x, w = torch.randn(shape), torch.randn(3)
        kept = x.clone(), w.clone()
        found = run(x, w)
        same(found, function(x, w))
        for y in found[:3]:
            y.fill_(9)
        same((x, w), kept)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int32", "uint8"])
def test_element_types(dtype: str) -> None:
    function = Function(lambda x: (x + x * 3) * x + 2)
    x = torch.randint(0, 3, (3, 4)).to(getattr(torch, dtype))
    run = ftuner.compile(function.eval(), (x[:2],))
    same(run(x), function(x))
    with pytest.raises(ftuner.InputError, match=f"bool; the model takes {dtype}"):
        run(x.bool())


def test_another_device_is_refused(model: Any) -> None:
    with pytest.raises(ftuner.FTunerError, match="meta"):
        model(torch.ones(3, 4, device="meta"))


def test_hooks_are_part_of_the_program() -> None:
    module = hooked()[0].eval()
    run, x = ftuner.compile(module, (torch.randn(2, WIDTH),)), torch.randn(3, WIDTH)
    with torch.no_grad():
        same(run(x), module(x))


def test_several_threads(model: Any) -> None:
    def call(x: torch.Tensor) -> None:
        for _ in range(5):
            same(model(x), computed(x))

    in_threads(call, [torch.randn(1 + i, 6) for i in range(4)])


def test_a_child_calls(model: Any) -> None:
    x = torch.randn(3, 4)
    wanted = model(x)
    assert in_a_child(lambda: torch.equal(model(x), wanted))
    same(model(x), wanted)
