"""Modules and exported programs of PyTorch, compiled and called as they are."""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.errors import (
    ExportError,
    InputError,
    MissingFileError,
    ShapeError,
    UnsupportedOperatorError,
)

torch = pytest.importorskip("torch")

from tests.frontends.torch_programs import Function  # noqa: E402
from torch.nn.utils.parametrizations import weight_norm  # noqa: E402

from ftuner.frontends.torch import exported  # noqa: E402

nn = torch.nn
pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning")]


@dataclasses.dataclass
class Pair:
    first: Any
    count: int


class Structures(nn.Module):  # type: ignore[name-defined, misc]
    """Takes and returns nested structures, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: Any, pair: Pair, scale: float = 1.0, mask: Any = None, **more: Any) -> Any:
        self.calls.add_(1)
        y = self.layer(x) * scale + pair.first
        if mask is not None:
            y = y * mask
        for extra in more["extras"]:
            y = y + extra
        rows = x.shape[0]
        return {"y": y, "pair": Pair(y + self.calls, rows * 2), "rest": (None, 3, rows)}


class Updating(nn.Module):  # type: ignore[name-defined, misc]
    def forward(self, x: Any, total: Any) -> Any:
        total.add_(x)
        return x + 1, total * 2


class Decoder(nn.Module):  # type: ignore[name-defined, misc]
    """Attends to the rows of all calls so far."""

    def forward(self, x: Any, past: dict[str, Any]) -> Any:
        past = {name: torch.cat((rows, x * 2), dim=2) for name, rows in past.items()}
        y = nn.functional.scaled_dot_product_attention(x, past["keys"], past["values"])
        return {"y": y, "past": past}


class SomeCache:
    """A container that torch does not know."""

    def __init__(self, x: Any) -> None:
        self.x = x


def close(found: Any, wanted: Any) -> bool:
    return bool(torch.allclose(found, wanted, rtol=1e-4, atol=1e-5))


def test_arguments_and_results_as_the_module_has_them() -> None:
    torch.manual_seed(0)
    module, eager = Structures().eval(), Structures().eval()
    eager.load_state_dict(module.state_dict())
    example = {
        "x": torch.randn(1, 8), "pair": Pair(torch.randn(1, 8), 4), "scale": 2.0,
        "extras": [torch.randn(1, 8), np.zeros((1, 8), np.float32)],
    }  # fmt: skip
    model = ftuner.compile(module, example)
    names = [spec.name for spec in model.inputs]
    assert names == ["calls", "x", "pair.first", "more.extras.0", "more.extras.1"]
    assert [spec.name for spec in model.outputs] == ["calls", "y", "pair.first"]
    with torch.no_grad():
        for rows in (1, 4, 7):
            x, first, extra = torch.randn(3, rows, 8)
            given = ((x, Pair(first, 4)), {"extras": [extra, extra]})
            found = model(*given[0], **given[1])
            wanted = eager(*given[0], scale=2.0, **given[1])
            assert close(found["y"], wanted["y"])
            assert close(found["pair"].first, wanted["pair"].first)
            assert found["pair"].count == 2 * rows
            assert found["rest"] == (None, 3, rows)
            assert close(module.calls, eager.calls)
    with pytest.raises(InputError, match="arity mismatch"):
        model(x, Pair(first, 4), extras=[extra])
    with pytest.raises(InputError, match="missing a required argument: 'pair'"):
        model(x)
    with pytest.raises(
        InputError, match=r"arguments are \(scale, x, pair, mask, more\); the module"
    ):
        model(x, Pair(first, 4), mask=x, extras=[extra, extra])
    with pytest.raises(InputError, match=r"an argument is 3.0, and the program is for 2.0"):
        model(x, Pair(first, 4), 3.0, extras=[extra, extra])


def test_positions_and_keywords() -> None:
    """Calls with tensors alone, whose order is known after the first."""

    class Module(nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any, y: Any) -> Any:
            return x - y

    model = ftuner.compile(Module(), (torch.ones(2, 3), torch.ones(2, 3)))
    x, y = torch.randn(2, 4, 3)
    for _ in range(2):
        for found in (model(x, y), model(x, y=y), model(y=y, x=x), model(y, x).neg()):
            assert torch.equal(found, x - y)
        assert torch.equal(model(x, x), torch.zeros(4, 3))
    (array,) = model.run({"x": x.numpy(), "y": y.numpy()})
    assert np.array_equal(array, (x - y).numpy())
    assert isinstance(model(x.numpy(), y.numpy()), np.ndarray)


def test_extents_of_one_are_dynamic(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.GELU()).train()
    with caplog.at_level(logging.WARNING, "ftuner"):
        model = ftuner.compile(module, torch.ones(1, 1, 8))
    assert module.training
    assert module[0].training
    assert "training mode" in caplog.text
    assert "input axis 2 is 8" in caplog.text
    assert "axis 0" not in caplog.text
    with torch.no_grad():
        for shape in ((1, 1, 8), (2, 5, 8), (0, 3, 8)):
            x = torch.randn(shape)
            assert close(model(x), module(x))


def test_named_dims() -> None:
    rows = torch.export.Dim("rows", min=1)
    model = ftuner.compile(
        nn.Linear(8, 4), {"input": torch.ones(1, 8)}, dynamic_shapes={"input": {0: rows}}
    )
    assert model(torch.ones(5, 8)).shape == (5, 4)
    fixed = ftuner.compile(nn.Linear(8, 4), (torch.ones(3, 8),), dynamic_shapes=(None,))
    assert fixed.inputs[0].shape == (3, 8)


def test_extents_of_ranges_and_of_steps() -> None:
    """A range from a fraction, and a recurrent layer of any number of steps."""

    class Module(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3, batch_first=True)

        def forward(self, x: Any) -> Any:
            found, _ = self.layer(x)
            return found + torch.arange(0.5, found.shape[1])[:, None]

    module = Module().eval()
    model = ftuner.compile(module, (torch.ones(1, 2, 4),))
    with torch.no_grad():
        for shape in ((1, 1, 4), (3, 7, 4)):
            x = torch.randn(shape)
            assert close(model(x), module(x))


@pytest.mark.parametrize("factor", [1.0, 0.75, 2.0])
def test_an_extent_times_a_float_is_rounded_up(factor: float) -> None:
    """As the capacity of experts is computed."""

    def function(x: Any) -> Any:
        return x + math.ceil(factor * x.shape[0]), x < math.ceil(factor * x.shape[0]) + 1

    module = Function(function)
    model = ftuner.compile(module, (torch.ones(5, 2),))
    for rows in (1, 4, 7):
        x = torch.randn(rows, 2)
        assert all(map(torch.equal, model(x), module(x)))


def test_an_extent_times_a_float_that_rounds_is_refused() -> None:
    module = Function(lambda x: x + math.ceil(1.1 * x.shape[0]))
    with pytest.raises(UnsupportedOperatorError):
        ftuner.compile(module, (torch.ones(5, 2),))


class Padded(nn.Module):  # type: ignore[name-defined, misc]
    """Computes paddings from buffers, as codecs of sounds do, and counts its calls in a buffer of
    one integer where it is told so."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        for name, value in {"stride": 2, "total": 3, "calls": 0}.items():
            self.register_buffer(name, torch.tensor(value))
        self.counts = counts

    def forward(self, x: Any) -> Any:
        length = x.shape[-1]
        frames = torch.ceil((length - self.total + 1) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.stride - length
        most = max(self.total, extra)
        if length <= most:
            x = nn.functional.pad(x, (0, most - length + 1))
        if self.counts:
            self.calls.add_(1)
            x = x + self.calls
        return nn.functional.pad(x, (self.total, extra), "reflect")


def test_paddings_of_buffers_are_extents() -> None:
    """Also where a branch depends on them: shorter sounds have a program of their own."""
    module = Padded().eval()
    model = ftuner.compile(module, (torch.ones(2, 4, 21),))
    for shape in ((1, 4, 40), (3, 4, 7), (2, 4, 3), (1, 4, 1)):
        x = torch.randn(shape)
        assert close(model(x), module(x))


def test_an_integer_that_a_module_counts_is_no_constant() -> None:
    module, other = Padded(counts=True).eval(), Padded(counts=True).eval()
    model = ftuner.compile(module, (torch.ones(2, 4, 21),))
    for length in (21, 8, 9):
        x = torch.randn(2, 4, length)
        assert close(model(x), other(x))


class Residual(nn.Module):  # type: ignore[name-defined, misc]
    """Updates what nothing else reads, as networks of torchvision do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.first = nn.utils.parametrizations.weight_norm(self.first, dim=1)

    def forward(self, x: Any) -> Any:
        found = self.norm(self.second(self.relu(self.first(x))))
        found += x
        rows = self.relu(found).flatten(2)
        rows = (rows * 2).view(rows.shape).transpose(1, 2).mul_(0.5)
        best, _ = torch.topk(rows, 2, dim=-1)
        best /= best.sum(-1, keepdim=True) + 1
        rows = torch.diff(rows, prepend=best, dim=-1)
        return (rows + 1).masked_fill_(rows > 1, 1.0)


def shared(x: Any, y: Any) -> Any:
    """Updates what is read elsewhere."""
    first = x * 2
    view = first[1:]
    first.add_(1)
    second = (x + 1).relu_()
    third = torch.dropout(y * 1, 0.5, False)
    whole = third + 0
    third.mul_(3)
    last, _ = torch.topk(y, 2, dim=-1)
    part = last[1:]
    last /= last.sum(-1, keepdim=True)
    return part, last, view, first, second.mul_(second), whole, third, (x * 1).lt_(0.5)


def test_updates_of_what_nothing_else_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch traces a program again only for other updates."""
    made = []
    original = exported.decomposed
    monkeypatch.setattr(exported, "decomposed", lambda *a: [made.append(a), original(*a)][1])
    x = torch.randn(2, 3, 4, 5)
    for module, given, times in ((Residual(), (x,), 0), (Function(shared), (x, x + 1), 1)):
        made.clear()
        model = ftuner.compile(module.eval(), given)
        assert len(made) == times
        given = tuple(y[:, :, :3].repeat(2, 1, 1, 1) for y in given)
        with torch.no_grad():
            wanted = module(*(y.clone() for y in given))
        torch.testing.assert_close(model(*given), wanted)


def changing(x: Any) -> Any:
    """Updates whose operator has another dtype, another signature, or whose result shares memory
    with what is read later."""
    whole = (x * 9).int()
    sums = (whole + 1).cumsum_(0)
    powers = (x + 2).pow_(2)
    kept = x * 2
    relu = nn.functional.relu_(nn.functional.dropout(kept, training=False))
    lifted = x + 1
    torch.ops.aten.lift(lifted).neg_()
    later = x + 3
    later[0].add_(1)
    return sums, powers, kept, relu, lifted, later


def test_updates_by_operators_of_another_kind() -> None:
    model = ftuner.compile(Function(changing), (torch.randn(4, 3),))
    x = torch.randn(5, 3)
    with torch.no_grad():
        wanted = changing(x.clone())
    for got, other in zip(model(x), wanted, strict=True):
        torch.testing.assert_close(got, other)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (lambda: weight_norm(nn.Conv1d(3, 4, 5), dim=-2), (2, 3, 9)),
        (lambda: weight_norm(nn.Conv1d(3, 4, 5), dim=None), (2, 3, 9)),
        (lambda: weight_norm(nn.LayerNorm(6)), (2, 6)),
    ],
)  # fmt: skip
def test_norms_of_weights(module: Any, shape: tuple[int, ...]) -> None:
    made, x = module().eval(), torch.randn(shape)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape))
        torch.testing.assert_close(ftuner.compile(made, (x,))(x), made(x))


def of_two_sides(x: Any) -> Any:
    """Another computation where the length is a multiple of four, or long."""
    if x.shape[1] % 4:
        x = x.cumsum(1)
    return x if x.shape[1] <= 100 else x * 2


def test_calls_that_take_other_branches_have_programs_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A program is compiled in the first call that takes another branch, as long as the module is
    there and as it was."""
    module = Function(of_two_sides)
    model = ftuner.compile(module, (torch.randn(3, 30, 2),))
    for length in (1, 5, 99):
        x = torch.randn(2, length, 2)
        torch.testing.assert_close(model(x), module(x))
    for length in (32, 64, 101, 103, 104):
        x = torch.randn(2, length, 2)
        torch.testing.assert_close(model(x), module(x))
    assert caplog.text.count("another program is compiled") == 3
    with pytest.raises(InputError, match="model takes"):
        model(torch.randn(2, 3))


class Gated(nn.Module):  # type: ignore[name-defined, misc]
    """A layer, with another computation of many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y if x.shape[0] <= 100 else y.add_(1)


def test_autocast_around_the_compilation_is_part_of_the_program() -> None:
    """Also of the program that a later call compiles, whatever is around that."""
    module, few, many = Gated(), torch.randn(3, 8), torch.randn(120, 8)
    with torch.autocast("cpu", torch.bfloat16):
        model, wanted = ftuner.compile(module, (few,)), [module(few), module(many)]
    plain = ftuner.compile(module, (few,))
    for x, y in zip((few, many), wanted, strict=True):
        torch.testing.assert_close(model(x), y, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16):
        found = plain(many)
    torch.testing.assert_close(found, module(many))


def test_what_is_compiled_again_has_the_elements_of_now() -> None:
    class Product(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(256, 256))

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    module, x = Product().requires_grad_(False), torch.randn(3, 256)
    before = ftuner.compile(module, (x,))
    wanted = before(x)
    module.weight.data.mul_(2)
    torch.testing.assert_close(ftuner.compile(module, (x,))(x), 2 * wanted)


def test_other_branches_need_the_module_as_it_was() -> None:
    x = torch.randn(2, 32, 2)
    branch = rf"branch on extents, {Path(__file__).name}.*if x.shape\[1\] % 4"
    for case in ("changed", "changed through data", "gone"):
        wrong = case.split()[0]
        module = nn.Sequential(nn.Linear(2, 2), Function(of_two_sides)).requires_grad_(False)
        model = ftuner.compile(module, (x[:, :30],))
        if case == "changed":
            module[0].weight += 1
        elif case == "changed through data":
            module[0].weight.data += 1
        else:
            del module
            gc.collect()
        with pytest.raises(ShapeError, match=f"(?s){branch}.*{wrong}"):
            model(x)
    shapes = (({0: torch.export.Dim.AUTO},),)
    model = ftuner.compile(Function(of_two_sides), (x,), dynamic_shapes=shapes)
    with pytest.raises(ShapeError, match=r"given .*; no program .*compiled as"):
        model(x[:, 1:])


class Choosing(nn.Module):  # type: ignore[name-defined, misc]
    """Branches on data, one in another, with parameters and extents."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, y: Any) -> Any:
        def above(x: Any, y: Any) -> Any:
            return self.layer(x) + y.sum(), y.clone()

        def below(x: Any, y: Any) -> Any:
            inner = torch.cond(y.sum() > 0, lambda x: x * 2, lambda x: x.sin(), (x,))
            return inner, y + x.shape[1]

        return torch.cond(x.mean() > 0, above, below, (x, y))


def test_branches_on_data() -> None:
    module = Choosing()
    model = ftuner.compile(module, (torch.randn(2, 5, 4), torch.randn(2, 5)))
    with torch.no_grad():
        for x, y in ((1, 1), (-1, 1), (-1, -1)):
            given = torch.full((3, 7, 4), 0.5 * x), torch.full((3, 7), 0.25 * y)
            assert all(map(close, model(*given), module(*given)))


def test_an_extent_that_is_a_constant_is_that_of_the_example() -> None:
    """A loop of Python is traced for its number of steps, also for one."""

    def steps(x: Any) -> Any:
        total = torch.zeros(len(x))
        for step in range(x.shape[1]):
            total = (total + x[:, step]).sin()
        return total

    module = Function(steps)
    model = ftuner.compile(module, (torch.randn(1, 1),))
    for shape in ((1, 1), (4, 1), (4, 3), (2, 3)):
        x = torch.randn(shape)
        assert close(model(x), module(x))


def shared_heads(x: Any, mask: Any) -> Any:
    """Repeats keys and values for the heads of queries that share them."""
    q, *rest = x.split([6, 2, 2], 1)
    k, v = (x[:, :, None].expand(-1, -1, 3, -1, -1).flatten(1, 2) for x in rest)
    return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3)


@pytest.mark.parametrize("heads", [1, 6])
def test_repeated_heads_are_read_where_they_are(heads: int) -> None:
    def given(batch: int, length: int) -> tuple[Any, ...]:
        mask = torch.rand(1, heads, length, length) < 0.8
        return torch.randn(batch, 10, length, 8), mask

    torch.manual_seed(0)
    module = Function(shared_heads)
    model = ftuner.compile(module, given(2, 4))
    assert [step.title for step in model.steps] == ["attention"]
    for shape in ((1, 1), (3, 7), (2, 33)):
        assert close(model(*(x := given(*shape))), module(*x))


def test_an_example_that_grows_keeps_its_branches() -> None:
    """A mask as long as a cache and its one query is longer for more queries."""

    def masked(x: Any, past: Any, mask: Any) -> Any:
        whole = torch.cat([past, x], 1)
        missing = whole.shape[1] - mask.shape[1]
        return whole * (nn.functional.pad(mask, (0, missing)) if missing > 0 else mask)

    module = Function(masked)
    for tokens in ((1, 1, 6), (3, 4, 9)):
        model = ftuner.compile(module, _masked(1, 1, 5))
        given = _masked(*tokens)
        assert close(model(*given), module(*given))
        assert not model.variants.used


def _masked(batch: int, tokens: int, past: int) -> tuple[Any, ...]:
    parts = [(batch, tokens), (batch, past), (batch, past + tokens)]
    return tuple(torch.randn(shape) for shape in parts)


def test_arguments_that_are_updated() -> None:
    model = ftuner.compile(Updating(), (torch.ones(3), torch.ones(3)))
    x, total = torch.randn(2, 5)
    wanted = total + x
    found, doubled = model(x, total)
    assert close(found, x + 1)
    assert close(total, wanted)
    assert close(doubled, 2 * wanted)


def test_a_decoder_appends_in_place() -> None:
    """From nothing, several rows and then one at a time; results have the names of arguments."""
    module, rows = Decoder(), torch.randn(2, 3, 4, 8)
    model = ftuner.compile(
        module, {"x": rows, "past": {"keys": rows, "values": rows}}, append_in_place=True
    )
    names = [spec.name for spec in model.inputs[1:]]
    assert model.appended == {name: name for name in ("past.keys", "past.values")}
    past = {name: np.zeros((2, 3, 0, 8), np.float32) for name in names}
    wanted = {"past": {name: torch.zeros(2, 3, 0, 8) for name in ("keys", "values")}}
    for count in (3, 1, 1):
        x = torch.randn(2, 3, count, 8)
        before = past
        y, *grown = model.run({"x": x.numpy(), **past})
        past = dict(zip(names, grown, strict=True))
        wanted = module(x, wanted["past"])
        assert close(torch.from_numpy(y), wanted["y"])
        for name in names:
            assert close(torch.tensor(past[name]), wanted["past"][name.removeprefix("past.")])
            assert np.shares_memory(past[name], before[name]) == (count == 1)


def test_exported_programs(tmp_path: Path) -> None:
    module = nn.Linear(8, 4).eval()
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (torch.ones(2, 8),), dynamic_shapes=({0: rows},))
    path = tmp_path / "linear.pt2"
    torch.export.save(program, path)
    x = torch.randn(3, 8)
    for model in (ftuner.compile(program), ftuner.load(program), ftuner.load(path)):
        with torch.no_grad():
            assert close(model(x), module(x))
            assert close(model(input=x), module(x))
    assert close(pickle.loads(pickle.dumps(model))(x), model(x))
    with pytest.raises(MissingFileError):
        ftuner.load(tmp_path / "none.pt2")
    path.write_bytes(b"nothing")
    with pytest.raises(ExportError, match=r"torch\.export\.load"):
        ftuner.compile(path)


def test_saved_by_names(tmp_path: Path) -> None:
    """A saved model needs no torch, so that it goes by the names of tensors."""
    model = ftuner.compile(nn.Linear(8, 4), (torch.ones(2, 8),))
    path = tmp_path / "linear.ftuner"
    ftuner.save(model, path)
    x = torch.randn(3, 8)
    assert torch.equal(ftuner.load(path)(input=x)["output"], model(x))


def test_what_is_no_program() -> None:
    branching = Function(lambda x: x + 1 if x.sum() > 0 else x - 1)
    for wrong in (ftuner.load, ftuner.compile):
        with pytest.raises(ExportError, match="compiled with example inputs"):
            wrong(branching)
    with pytest.raises(ExportError, match="data-dependent"):
        ftuner.compile(branching, (torch.ones(2, 3),))
    with pytest.raises(ExportError, match="same reduction dim"):
        ftuner.compile(nn.Linear(8, 4), (torch.ones(2, 3),))
    with pytest.raises(ExportError, match="missing a required argument"):
        ftuner.compile(Updating(), (torch.ones(2),))
    with pytest.raises(ExportError, match="SomeCache holds tensors"):
        ftuner.compile(Function(SomeCache), (torch.ones(2),))
    with pytest.raises(UnsupportedOperatorError, match="linalg"):
        ftuner.compile(Function(torch.linalg.eigvalsh), (torch.ones(3, 3),))


def drawing(x: Any) -> Any:
    """Draws random numbers of several types."""
    rows = x.shape[0]
    normal, half = torch.randn_like(x), torch.rand_like(x, dtype=torch.bfloat16)
    return normal, half, torch.rand(rows, 3), torch.randn(2, rows, dtype=torch.float64)


def test_random_numbers_are_those_of_the_seed() -> None:
    x = torch.ones(200, 50)
    first, second = (ftuner.compile(Function(drawing), (x[:5],), random_seed=3) for _ in range(2))
    found, again = first(x), first(x)
    assert all(map(torch.equal, found, second(x)))
    assert not any(map(torch.equal, found, again))
    for y, wanted in zip(found, drawing(x), strict=True):
        assert (y.shape, y.dtype) == (wanted.shape, wanted.dtype)
        torch.testing.assert_close(y.double().mean(), wanted.double().mean(), atol=0.2, rtol=0)
        torch.testing.assert_close(y.double().std(), wanted.double().std(), atol=0.2, rtol=0)


def counting(x: Any, weights: Any) -> Any:
    counted = torch.bincount(x), torch.bincount(x, minlength=9)
    return *counted, torch.bincount(x, weights), torch.bincount(x, weights.to(torch.int32))


def test_integers_are_counted() -> None:
    model = ftuner.compile(Function(counting), (torch.arange(4), torch.ones(4)))
    for x in (torch.tensor([3, 3, 0, 11, 3]), torch.tensor([2]), torch.zeros(0, dtype=torch.int64)):
        weights = torch.randn(x.shape)
        for y, wanted in zip(model(x, weights), counting(x, weights), strict=True):
            # Of nothing, PyTorch gives integers also with weights.
            torch.testing.assert_close(y, wanted, check_dtype=bool(x.numel()))
    with pytest.raises(ftuner.errors.ShapeError, match=r"extents of \[-2\]"):
        model(torch.tensor([1, -2, 3]), torch.ones(3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript() -> None:
    traced = torch.jit.trace(nn.Linear(8, 4), torch.ones(2, 8))
    with pytest.raises(ExportError, match="TorchScript"):
        ftuner.compile(traced, (torch.ones(2, 8),))
