"""Programs of PyTorch as graphs: every length and batch, and what is refused by name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.aten_samples import by_reference  # noqa: E402
from tests.frontends.torch_programs import Function, agrees, imported  # noqa: E402
from torch import nn  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional  # noqa: E402

import ftuner  # noqa: E402
from ftuner.core.dim import Symbolic  # noqa: E402
from ftuner.errors import ShapeError, UnsupportedOperatorError  # noqa: E402
from ftuner.frontends.torch.importer import Output, import_fx  # noqa: E402


class Decoder(nn.Module):
    """A layer of a language model: RMS norm, rotated grouped heads, a mask, a gated product."""

    def __init__(self, size: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.depth = heads, groups, size // heads
        self.table = nn.Embedding(11, size)
        self.norm = nn.RMSNorm(size)
        self.queries = nn.Linear(size, size, bias=False)
        self.keys, self.values = (nn.Linear(size, groups * self.depth) for _ in range(2))
        self.gate, self.up = nn.Linear(size, 32), nn.Linear(size, 32)
        self.down = nn.Linear(32, size)
        self.head = nn.Linear(size, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens)
        batch, length = tokens.shape
        y = self.norm(x)
        shape = (batch, length, -1, self.depth)
        q, k, v = (p(y).view(shape).transpose(1, 2) for p in (self.queries, self.keys, self.values))
        angle = torch.arange(length)[:, None] / 10.0 ** torch.arange(0, self.depth, 2)
        turn = torch.cat([angle, angle], -1)
        q, k = (t * turn.cos() + self._half(t) * turn.sin() for t in (q, k))
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + a.transpose(1, 2).reshape(batch, length, -1)
        x = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.head(x[:, -1:])

    def _half(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 4)
        self.rnn = nn.RNN(4, 3, nonlinearity="relu", bias=False)

    def forward(self, x: Any) -> Any:
        y, (h, c) = self.lstm(x)
        y, g = self.gru(y.transpose(0, 1))
        return self.rnn(y), h, c, g


def image_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding="same", groups=8), nn.GroupNorm(2, 8), nn.Hardswish(),
        nn.MaxPool2d(3, 2, 1), nn.ConvTranspose2d(8, 4, 2, 2),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d((2, 3)),
        nn.Flatten(), nn.Linear(24, 5), nn.LogSoftmax(-1),
    )  # fmt: skip


class Case(NamedTuple):
    module: Callable[[], nn.Module]
    operands: Callable[..., Sequence[Any]]
    """Of extents."""
    dynamic: Sequence[Sequence[int]]
    extents: Sequence[Sequence[int]]
    """The first ones are exported."""


CASES = {
    "encoder": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda b, t: [torch.randn(b, t, 8)], [(0, 1)], [(2, 5), (1, 1), (3, 7), (0, 4)],
    ),
    "decoder": Case(
        Decoder, lambda b, t: [torch.randint(0, 11, (b, t))], [(0, 1)], [(2, 5), (1, 1), (3, 9)]
    ),
    "recurrent": Case(
        Recurrent, lambda b, t: [torch.randn(b, t, 6)], [(0, 1)], [(2, 5), (1, 1), (3, 2)]
    ),
    "images": Case(
        image_net, lambda b, h, w: [torch.randn(b, 3, h, w)], [(0, 2, 3)],
        [(2, 16, 20), (1, 33, 17), (0, 16, 16)],
    ),
    "scaled": Case(
        lambda: Function(
            lambda x: functional.interpolate(x, scale_factor=(1.5, 0.7), mode="bilinear")
        ),
        lambda h, w: [torch.randn(1, 2, h, w)], [(2, 3)], [(6, 8), (9, 10), (1, 21)],
    ),
    "positions": Case(
        lambda: Function(lambda x, i: x[:, i].flip(1).roll(1, 0).tril()[..., :-1, :].sum(0)),
        lambda n: [torch.randn(n, 4, 4), torch.tensor([0, -1, 2])], [(0,), ()], [(3,), (1,), (5,)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_programs_give_what_torch_gives_for_every_extent(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    module = case.module().eval()
    found = imported(module, case.operands(*case.extents[0]), case.dynamic)
    for extents in case.extents:
        agrees(found, module, case.operands(*extents))


def test_a_program_is_compiled() -> None:
    torch.manual_seed(0)
    case = CASES["decoder"]
    module = case.module().eval()
    model = ftuner.compile(imported(module, case.operands(2, 5), case.dynamic).graph)
    for extents in case.extents:
        (tokens,) = case.operands(*extents)
        with torch.no_grad():
            found = model(tokens=tokens)["output_0"]
            torch.testing.assert_close(found, module(tokens), rtol=1e-4, atol=1e-5)


def test_tensors_that_share_memory_are_stored_once() -> None:
    table = nn.Parameter(torch.randn(4, 4))
    module = Function(lambda x: x @ module.first @ module.second)
    module.first, module.second = table, nn.Parameter(table.detach())
    found = imported(module, [torch.randn(2, 4)], [(0,)])
    weights = {v.name for node in found.graph.nodes for v in node.inputs if v.constant is not None}
    assert len(weights) == 1


def test_an_extent_may_be_an_expression_of_others() -> None:
    module = Function(lambda x, y: x.repeat(2, 1) + y)
    found = imported(module, [torch.randn(3, 4), torch.randn(6, 4)], [(0,), (0,)])
    agrees(found, module, [torch.randn(5, 4), torch.randn(10, 4)])
    with pytest.raises(ShapeError):
        by_reference(found, [torch.randn(5, 4), torch.randn(11, 4)])


def _traced(function: Callable[..., Any], *operands: Any) -> Any:
    return make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*operands)


def test_an_extent_of_which_no_input_has_the_symbol_alone_is_solved() -> None:
    module = _traced(lambda x: [x.reshape(2, -1).sum(0)], torch.randn(6))
    (place,) = (n for n in module.graph.nodes if n.op == "placeholder")
    symbol = place.meta["val"].shape[0].node.expr
    assert symbol.is_Symbol
    fake = place.meta["val"]
    place.meta["val"] = torch.cat([fake, fake])
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not torch.ops.aten.sym_size.int:
            node.meta["val"] = node.target(*_values(node.args))
    agrees(
        import_fx(module, {}, {}), Function(lambda x: [x.reshape(2, -1).sum(0)]), [torch.randn(8)]
    )


def _values(arguments: Any) -> Any:
    return torch.fx.map_arg(arguments, lambda n: n.meta["val"])


def test_data_decides_extents() -> None:
    module = Function(lambda x: (x[x > 0], x.nonzero(), x.masked_select(x < 0)))
    found = imported(module, [torch.randn(4, 5)], [(0,)])
    for rows in (4, 1, 6):
        agrees(found, module, [torch.randn(rows, 5)])


def test_an_element_of_a_tensor_is_an_extent() -> None:
    def function(x: Any, n: Any) -> Any:
        count = n.item()
        torch._check(count >= 0)
        return torch.ones(count, 2) * x

    module = Function(function)
    found = imported(module, [torch.randn(2), torch.tensor(3)], [(), ()])
    for count in (3, 0, 7):
        agrees(found, module, [torch.randn(2), torch.tensor(count)])


def test_integers_that_were_made_of_extents_are_dims() -> None:
    """Tensors of such integers, as networks have them, are no data."""

    def function(x: Any, table: Any) -> Any:
        span = torch.tensor(min(x.size(0), 5)) * 2 - 1
        rows = torch.div(x.size(1), 4, rounding_mode="trunc")
        return table[16 - span : 16 + span], x.reshape(x.size(0), rows, 4)

    module, table = Function(function), torch.randn(32, 3)
    found = imported(module, [torch.randn(3, 8), table], [(0, 1), ()])
    for extents in ((3, 8), (1, 4), (7, 12)):
        agrees(found, module, [torch.randn(extents), table])


def test_corners_of_numbers() -> None:
    def function(x: Any, n: Any) -> Any:
        return torch.searchsorted(x.sort()[0], x), torch.hypot(x, x.flip(0)), n // 3, n // -3

    module, least = Function(function), torch.iinfo(torch.int32).min
    x, n = torch.tensor([2.0, torch.nan, torch.inf, -1]), torch.tensor([least, -least - 1, -7])
    agrees(imported(module, [x, n.int()], [(0,), (0,)]), module, [x, n.int()])


def test_numbers_are_dims_where_a_tensor_has_them() -> None:
    found = import_fx(_traced(lambda n, x: [x * n, n + 1], 4, torch.randn(4, 3)), {}, {})
    assert len(found.graph.inputs) in (1, 2)
    dims = [leaf for leaf in found.outputs if isinstance(leaf, Symbolic)]
    assert [isinstance(leaf, Output) for leaf in found.outputs] == [True, not dims]


def test_outputs_that_are_no_tensors() -> None:
    module = make_fx(lambda x: [x + 1, None, 3])(torch.randn(2))
    found = import_fx(module, {}, {})
    assert found.outputs == (Output(0), None, 3)


@pytest.mark.parametrize(
    ("function", "operands", "what"),
    [
        (lambda x: torch.lgamma(x) + torch.i0(x), [torch.randn(3)], "i0.default, lgamma.default"),
        (lambda x: x.abs(), [torch.randn(3, dtype=torch.complex64)], "complex"),
        (lambda x: functional.dropout(x, 0.5, True), [torch.randn(3)], "while training"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(function: Any, operands: Sequence[Any], what: str) -> None:
    module = make_fx(function, pre_dispatch=True)(*operands)
    with pytest.raises(UnsupportedOperatorError, match=what):
        import_fx(module, {}, {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats(dtype: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Softmax(-1)).to(dtype)
    x = torch.randn(3, 4, dtype=dtype)
    found = imported(module, [x], [(0,)])
    (got,) = by_reference(found, [x])
    assert str(found.graph.outputs[0][1].dtype) == str(dtype).removeprefix("torch.")
    with torch.no_grad():
        torch.testing.assert_close(got.to(dtype), module(x), rtol=2e-2, atol=2e-2)
