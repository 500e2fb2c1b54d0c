"""What modules and their inputs may be: right, or left to PyTorch."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.torch.modules import (
    MEMORY,
    WIDTH,
    compiled,
    computed,
    hooked,
    in_a_child,
    in_threads,
    mlp,
    same,
)
from torch import nn

from ftuner.frontends.torch.registry import ATEN
from ftuner.frontends.torch.weights import Fingerprint
from ftuner.graph.ir import Value
from ftuner.torch import explain


def compare(function: Callable[..., Any], *inputs: Any, regions: int | None = 1) -> Any:
    """Run a function compiled and not, on equal inputs, and compare results and inputs."""
    mine = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    with torch.no_grad():
        run = compiled(function)
        wanted = function(*inputs)
        found = run(*mine)
        same(found, wanted)
        same(mine, list(inputs))
        if regions is not None:
            assert len(explain(run, *mine).models) == regions
    return found


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_random_numbers_are_those_of_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return computed(computed(x) + torch.randn_like(x)) + torch.rand(x.shape[0], 1)

    run, x = compiled(function), torch.randn(3, 4)
    with torch.no_grad():
        found, wanted = ((torch.manual_seed(5), f(x))[1] for f in (run, function))
        same(found, wanted)
        left = [text for text in explain(run, x).left if "torch's generator" in text]
        assert [text.split(".")[0] for text in left] == ["randn_like", "rand"]


def test_control_flow_that_depends_on_data() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = computed(x)
        return computed(y + 1) if y.sum() > 0 else computed(y - 1)

    for sign in (1, -1):
        compare(function, sign * torch.ones(3, 4), regions=2)


def test_an_input_that_is_updated() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y = computed(x)
        x[0] = 7
        return y

    with torch.no_grad():
        run = compiled(function)
        for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(6, 8)[::2, ::2]):
            mine, theirs = x.clone(memory_format=torch.preserve_format), x
            same(run(mine), function(theirs))
            same(mine, theirs)


def test_a_buffer_that_is_updated() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(WIDTH))
            self.inner = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += x.sum(0)
            return self.inner(x) + computed(self.count)

    first, second = Counting(), Counting()
    second.load_state_dict(first.state_dict())
    run = compiled(first)
    with torch.no_grad():
        for n in (3, 1, 5):
            x = torch.randn(n, WIDTH)
            same(run(x), second(x))
            same(first.count, second.count)


def test_outputs_that_share_memory() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = computed(x)
        return y, y.t(), y[1:], y.view(-1), y

    y, *views, last = compare(function, torch.randn(3, 4))
    assert all(shares(y, view) for view in views)
    assert last is y
    y.fill_(5)
    assert all(bool((view == 5).all()) for view in views)


def test_outputs_that_are_views_of_inputs() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return computed(x), x.t(), x[1:, None], x.expand(2, 3, 4), w, x

    with torch.no_grad():
        x, w = torch.randn(4, 3).t(), torch.randn(2)
        y, *views, first, second = compiled(function)(x, w)
        same((y, *views, first, second), function(x, w))
        assert all(shares(view, x) for view in views)
        assert not shares(y, x)
        assert first is w
        assert second is x


def test_results_are_new_memory() -> None:
    """An output that repeats an input or a parameter is a copy of it, as in the module."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return computed(x), x.clone(), w.clone(), torch.zeros(4) + 1

    with torch.no_grad():
        run, x, w = compiled(function), torch.randn(3, 4), nn.Parameter(torch.randn(5))
        wanted = function(x, w)
        for _ in range(2):
            found = run(x, w)
            same(found, wanted)
            for y in found:
                y.fill_(9)


@pytest.mark.parametrize("x", MEMORY.values(), ids=list(MEMORY))
def test_memory_of_inputs(x: torch.Tensor) -> None:
    with torch.no_grad():
        run = compiled(computed)
        same(run(x), computed(x))
        assert len(explain(run, x).models) == 1


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
)
def test_element_types(dtype: str) -> None:
    kind = getattr(torch, dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + x * 3
        return (y * x + 2) * y

    x = torch.randint(0, 3, (3, 4)).to(kind)
    compare(function, x, regions=None)


def test_complex_elements_are_left_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return computed(torch.fft.fft(x).abs())

    with caplog.at_level(logging.WARNING):
        compare(function, torch.randn(3, 4))
    assert "_fft_r2c" in caplog.text
    compare(lambda x: (x * x + 1) * (x - 1) + x, torch.randn(3, dtype=torch.complex64), regions=0)


def test_complex_tensors_within_a_graph_are_left_to_pytorch() -> None:
    def function(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        turns = torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(torch.view_as_complex(computed(x)) * turns) + 1

    compare(function, torch.randn(3, 4, 2), torch.randn(3, 4))


def test_other_devices_are_left_to_pytorch() -> None:
    with torch.no_grad():
        run = compiled(computed)
        found = run(torch.ones(3, 4, device="meta"))
        assert (found.device.type, found.shape) == ("meta", (3, 4))
        x = torch.ones(3, 4)
        same(run(x), computed(x))


def arranged(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    return computed(torch.cat([x, x.new_zeros(abs(n), 4)])), computed(x[n:]), computed(x[n])


def scaled(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    moved = x.roll(n, 0), x.tril(n), nn.functional.pad(x, (n + 5, 2))
    return computed(x) * n + n // 3 - n / 3, torch.arange(n, 9) * 2, *map(computed, moved)


@pytest.mark.parametrize("function", [arranged, scaled])
@pytest.mark.parametrize("numbers", [(5, -3, 0), (-2, 3)])
def test_integers_that_may_be_negative(
    function: Callable[..., Any], numbers: Sequence[int]
) -> None:
    run, x = compiled(function), torch.randn(8, 4)
    with torch.no_grad():
        for n in numbers:
            same(run(x, n), function(x, n))
            assert explain(run, x, n).share == 1


def test_an_element_that_may_be_negative() -> None:
    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        n = count.item()
        return computed(x * n) - n / 3

    run, x = compiled(function), torch.randn(8, 4)
    with torch.no_grad(), torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in (3, -4, 0, 1 << 62, -(1 << 62)):
            same(run(x, torch.tensor(n)), function(x, torch.tensor(n)))
        assert explain(run, x, torch.tensor(-1)).share == 1


def test_parameters_that_change() -> None:
    module = mlp()
    run, x = compiled(module), torch.randn(3, WIDTH)
    with torch.no_grad():
        same(run(x), module(x))
        module[0].weight.mul_(2)
        same(run(x), module(x))
        module[0].weight = nn.Parameter(torch.randn(24, WIDTH))
        same(run(x), module(x))
        module[2].bias.data = torch.randn(WIDTH)
        same(run(x), module(x))
        module.load_state_dict(mlp().state_dict())
        same(run(x), module(x))
        for _ in range(4):
            module[0].bias.add_(1)
            same(run(x), module(x))


def _added(x: torch.Tensor) -> None:
    x.data += 0.5


def _copied(x: torch.Tensor) -> None:
    x.data.copy_(torch.randn(x.shape))


def _replaced(x: torch.Tensor) -> None:
    x.data = torch.randn(x.shape)


def _replaced_twice(x: torch.Tensor) -> None:
    """The second may be where the elements were before the first."""
    x.data = x.data * 2
    x.data = x.data * 2


def _written_by_numpy(x: torch.Tensor) -> None:
    x.detach().numpy()[...] += 0.5


def _negated(x: torch.Tensor) -> None:
    x.data.neg_()


@pytest.mark.parametrize(
    "write", [_added, _copied, _replaced, _replaced_twice, _written_by_numpy, _negated]
)
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "scale"])
def test_parameters_written_without_a_new_version(
    write: Callable[[torch.Tensor], None], name: str
) -> None:
    module = mlp()
    module.register_parameter("scale", nn.Parameter(torch.tensor(1.5)))
    run, x = compiled(lambda x: module(x) * module.scale), torch.randn(3, WIDTH)
    parameter = dict(module.named_parameters())[name]
    with torch.no_grad():
        for _ in range(2):
            same(run(x), module(x) * module.scale)
            version = parameter._version
            write(parameter)
            assert parameter._version == version
            same(run(x), module(x) * module.scale)
            assert parameter._version == version


class _Adapted(nn.Linear):
    """A layer that an adapter of low rank is merged into, as the package peft does it."""

    def __init__(self) -> None:
        super().__init__(256, 256)
        self.down, self.up = torch.randn(2, 256), torch.randn(256, 2)

    def merge(self, sign: int) -> None:
        self.weight.data += sign * (self.up @ self.down)


def test_an_adapter_is_merged() -> None:
    """Also where a second graph shares the packed weights of the first."""
    layers = [_Adapted() for _ in range(3)]
    module = nn.Sequential(*layers)
    first, second = compiled(module), compiled(lambda x: module(x) + 1)
    x = torch.randn(5, 256)
    with torch.no_grad():
        for sign in (1, -1, 1):
            same(first(x), module(x))
            for layer in layers:
                layer.merge(sign)
            same(second(x), module(x) + 1)
            same(first(x), module(x))


def test_other_parameters_are_packed_again_with_one_that_was_written() -> None:
    """A write of one element may not be seen; with one that is, it is."""
    module = nn.Linear(512, 512)
    run, x = compiled(module), torch.randn(5, 512)
    with torch.no_grad():
        run(x)
        module.weight.data[7, 5] = 100
        module.bias.data += 1
        same(run(x), module(x))
        module.weight.data[9, 5] = 100
        torch.autograd.graph.increment_version(module.parameters())
        same(run(x), module(x))


def test_gradients_of_before_survive_a_write() -> None:
    """No version changes of what nobody wrote."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    run, x = compiled(module), torch.randn(3, 4)
    with torch.no_grad():
        run(x)
    loss = module(x).square().sum()
    module[0].weight.data.mul_(2)
    with torch.no_grad():
        same(run(x), module(x))
    loss.backward()


def test_neighbours_in_memory_are_no_parameters() -> None:
    base = torch.randn(4)
    module = nn.Linear(5, 3)
    module.bias = nn.Parameter(base[:3])
    run, x = compiled(module), torch.randn(2, 5)
    with torch.no_grad():
        run(x)
        states = fingerprint_of(module.bias)
        base[3] = 7
        assert fingerprint_of(module.bias) == states
        same(run(x), module(x))


def fingerprint_of(x: torch.Tensor) -> bytes:
    return Fingerprint([x]).words


def test_modules_of_one_class() -> None:
    modules = [mlp().eval() for _ in range(3)]
    run = compiled(lambda module, x: module(x))
    x = torch.randn(3, WIDTH)
    with torch.no_grad():
        for module in 2 * modules:
            same(run(module, x), module(x))


def test_hooks() -> None:
    module, seen = hooked()
    run, x = compiled(module), torch.randn(3, WIDTH)
    with torch.no_grad():
        same(run(x), module(x))
    assert seen == 2 * [(3, WIDTH)]


def test_gradients_are_left_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    module = mlp()
    run, x = compiled(module), torch.randn(3, WIDTH)
    with caplog.at_level(logging.WARNING):
        run(x).sum().backward()
    assert "a graph computes gradients" in caplog.text
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    module(x).sum().backward()
    same(found, [p.grad for p in module.parameters()])
    with torch.no_grad():
        same(run(x), module(x))
        assert len(explain(run, x).models) == 1
    with torch.inference_mode():
        same(run(x), module(x))
        assert len(explain(run, x).models) == 1


def test_gradients_that_nothing_needs() -> None:
    module = mlp().requires_grad_(False)
    run, x = compiled(module), torch.randn(3, WIDTH)
    same(run(x), module(x))
    assert len(explain(run, x).models) == 1


def test_several_threads() -> None:
    module = mlp()
    run = compiled(module)

    def call(x: torch.Tensor) -> None:
        with torch.no_grad():
            wanted = module(x)
            for _ in range(5):
                same(run(x), wanted)

    in_threads(call, [torch.randn(1 + i, WIDTH) for i in range(4)])


def test_a_child_calls() -> None:
    module = mlp()
    run, x = compiled(module), torch.randn(3, WIDTH)
    with torch.no_grad():
        wanted = run(x)
        assert in_a_child(lambda: torch.equal(run(x), wanted))
        same(run(x), wanted)


def test_pickles() -> None:
    """torch leaves out what is compiled."""
    module = mlp()
    run, x = compiled(module), torch.randn(3, WIDTH)
    with torch.no_grad():
        wanted = run(x)
        same(pickle.loads(pickle.dumps(run))(x), wanted)


def test_results_lie_in_memory_as_in_pytorch() -> None:
    """What reads them by strides, in the module or after it, finds the same elements."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = computed(x)
        return y, y.as_strided((3,), (1,)), computed(y).permute(0, 2, 1)

    last = torch.channels_last
    for x in (torch.randn(2, 4, 3).mT, torch.randn(3, 4, 2).permute(2, 0, 1), torch.randn(2, 3, 4)):
        found = compare(function, x, regions=None)
        assert [y.stride() for y in found] == [y.stride() for y in function(x)]
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=last)
    assert compare(computed, x).is_contiguous(memory_format=last)


@pytest.mark.parametrize("cut_up", [torch.unsafe_chunk, torch.unsafe_split])
def test_pieces_lie_in_memory_as_in_pytorch(cut_up: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = cut_up(computed(x), 2, 1)
        return first, second, computed(first) + computed(second)

    x = torch.randn(3, 4)
    found = compare(function, x)
    assert [y.stride() for y in found] == [y.stride() for y in function(x)]


def test_an_operator_that_its_importer_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dim where it needs a number, say; the rest stays ours."""

    def refused(x: Value) -> Value:
        return x if x.shape[0] < 1 else x * 2  # type: ignore[operator]

    monkeypatch.setitem(ATEN, "tanh.default", refused)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x.sigmoid() * x.exp() + 1) * 2 - x
        return (y.tanh().exp() + 1) * 2 - y.exp()

    with torch.no_grad():
        run, x = compiled(function), torch.randn(3, 4)
        same(run(x), function(x))
        found = explain(run, x)
    assert len(found.models) == 2
    assert [text.split(":")[0] for text in found.left] == ["tanh.default"]
