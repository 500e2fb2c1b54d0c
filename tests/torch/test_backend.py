"""`torch.compile(module, backend="ftuner")`: right at each shape, from one compilation."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
import torch
from tests.torch.modules import WIDTH, Block, compiled, convolutions, mlp, same
from torch import nn
from torch._dynamo.symbolic_convert import TensorifyState

from ftuner.errors import FTunerError, MismatchError, UnsupportedOperatorError
from ftuner.frontends.torch.registry import ATEN
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Value
from ftuner.graph.passes.word_products import PRECISIONS
from ftuner.runtime.cpu import compilation
from ftuner.runtime.cpu.backend import default_backend
from ftuner.torch import backend, checking, cut, explain
from ftuner.torch.regions import WEIGHTS

SHAPES = ((2, 5), (1, 5), (3, 1), (1, 1), (4, 7))


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    """torch finds back ends by the entry points of what is installed, which need not be this."""
    torch._dynamo.register_backend(backend, name="ftuner_test")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The machine code that is asked for from now on, beyond what the process has."""
    found: list[Any] = []
    original = compilation.Compiler.compile_missing

    def noted(self: Any, bundles: Any, *args: Any) -> Any:
        found.extend(bundles)
        return original(self, bundles, *args)

    monkeypatch.setattr(compilation.Compiler, "compile_missing", noted)
    return found


@pytest.fixture
def traced() -> Any:
    """A function that says how many graphs torch traced."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    return lambda: counters["stats"]["unique_graphs"]


def run_all(module: nn.Module, inputs: list[torch.Tensor], **options: object) -> Any:
    run = compiled(module, **options)
    with torch.no_grad():
        for x in inputs:
            same(run(x), module(x))
    return run


def test_any_shape_after_the_first_one(compilations: list[Any], traced: Any) -> None:
    """An extent of 1 is another graph to torch, and none to ftuner."""
    module = Block()
    run = run_all(module, [torch.randn(*SHAPES[0], WIDTH)])
    assert compilations
    compilations.clear()
    with torch.no_grad():
        for shape in SHAPES:
            x = torch.randn(*shape, WIDTH)
            same(run(x), module(x))
        graphs = traced()
        for shape in ((1, 9), (9, 2), (8, 1), (1, 1)):
            x = torch.randn(*shape, WIDTH)
            same(run(x), module(x))
            found = explain(run, x)
            assert (found.share, found.left, len(found.models)) == (1.0, {}, 1)
    assert compilations == []
    assert traced() == graphs == 4


def test_each_kind_of_module() -> None:
    run_all(mlp(), [torch.randn(n, WIDTH) for n in (3, 1, 7)], fullgraph_or_error=True)
    images = [torch.randn(n, 3, 12, 12) for n in (2, 1, 3)]
    run_all(convolutions(), images, fullgraph_or_error=True, threads=1)


@pytest.mark.parametrize(
    "options", [pytest.param({"norm_first": True}, marks=pytest.mark.full), {"activation": "gelu"}]
)
def test_encoder_layers_of_torch(options: dict[str, Any]) -> None:
    """Their fast path is one operator, which is taken apart."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 24, batch_first=True, **options)
    run_all(layer, [torch.randn(3, 5, WIDTH)], fullgraph_or_error=True)


@pytest.mark.full
def test_attention_of_torch() -> None:
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval()
    run, x = compiled(lambda x: attention(x, x, x, need_weights=False)[0]), torch.randn(2, 3, WIDTH)
    with torch.no_grad():
        same(run(x), attention(x, x, x, need_weights=False)[0])
        assert explain(run, x).left == {}
        run, mask = compiled(attention), torch.tensor([[True, False, False], [False, False, True]])
        same(run(x, x, x, mask), attention(x, x, x, mask))


def test_recurrent_layers() -> None:
    """torch's tracing leaves them out unless it is told not to."""
    module = nn.LSTM(WIDTH, 8, num_layers=2, bidirectional=True, batch_first=True)
    inputs = [torch.randn(*shape, WIDTH) for shape in SHAPES]
    with torch._dynamo.config.patch(allow_rnn=True):
        run = run_all(module, inputs, fullgraph_or_error=True)
        with torch.no_grad():
            assert len(explain(run, inputs[0]).models) == 1


def test_experts_of_transformers() -> None:
    """By default their rows are sorted by expert, and multiplied in groups."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    module = transformers.MixtralModel(config)
    run = compiled(lambda ids: module(ids, use_cache=False)[0])
    with torch.no_grad():
        for shape in SHAPES:
            ids = torch.randint(32, shape)
            same(run(ids), module(ids, use_cache=False)[0])
            found = explain(run, ids)
            assert (found.share, found.left) == (1.0, {})
    (model,) = found.models
    assert [step.kind for step in model.steps].count("experts") == 2


def test_groups_of_other_products_are_left_to_pytorch() -> None:
    """A matrix that is no constant would be copied for each row."""
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.grouped_mm(x, weight, offs=ends)

    run = compiled(function)
    x, weight = torch.randn(8, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    with torch.no_grad():
        same(run(x, weight), function(x, weight), 1e-2)
        (left,) = explain(run, x, weight).left
    assert "constant matrices" in left
    node = torch.fx.Graph().call_function(torch.ops.aten._grouped_mm.default, ())
    assert cut.reason(node, torch.device("cuda")) == "would copy a matrix for each row"


@pytest.mark.full
def test_shapes_that_are_known() -> None:
    module = mlp().eval()
    for dynamic in (False, None):
        torch._dynamo.reset()
        run = compiled(module, dynamic)
        with torch.no_grad():
            for n in (3, 1, 5, 6):
                x = torch.randn(n, WIDTH)
                same(run(x), module(x))


def test_weights_are_packed_once() -> None:
    module = mlp()
    gc.collect()
    before = len(WEIGHTS._made)
    run = compiled(module)
    other = compiled(lambda x: module(x).relu() + x)
    with torch.no_grad():
        for x in (torch.randn(3, WIDTH), torch.randn(1, WIDTH)):
            same(run(x), module(x))
            same(other(x), module(x).relu() + x)
        assert len(WEIGHTS._made) - before == 2
        module[0].weight.add_(1)
        same(run(x), module(x))
        assert len(WEIGHTS._made) - before == 3
    del run, other
    torch._dynamo.reset()
    gc.collect()
    assert len(WEIGHTS._made) == before


@pytest.mark.full
def test_a_module_that_is_deleted_frees_its_weights() -> None:
    gc.collect()
    before = len(WEIGHTS._made)
    run = compiled(lambda module, x: module(x))
    with torch.no_grad():
        for _ in range(3):
            module, x = mlp(), torch.randn(3, WIDTH)
            same(run(module, x), module(x))
            del module
            gc.collect()
    assert len(WEIGHTS._made) == before


def test_an_operator_in_the_middle(caplog: pytest.LogCaptureFixture) -> None:
    first, last = mlp(), mlp()

    def function(x: torch.Tensor) -> torch.Tensor:
        return last(torch.fft.ifft(torch.fft.fft(first(x))).real) + first(x).t().t()

    run = compiled(function)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for n in (3, 1, 5):
            x = torch.randn(n, WIDTH)
            same(run(x), function(x))
        found = explain(run, x)
    told = [r.message for r in caplog.records if r.name.startswith("ftuner")]
    assert len(told) == 1
    assert "_fft_c2c.default (no importer)" in told[0]
    assert len(found.models) == 2
    assert found.left["_fft_r2c.default: no importer"] == 1
    assert 0.5 < found.share < 1
    assert "PyTorch: 1 x _fft_r2c.default: no importer" in str(found)


@pytest.mark.full
def test_regions_do_not_wait_in_a_cycle() -> None:
    """A path through PyTorch, and one around it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        first = x @ x.t()
        apart = torch.fft.fft(first).real
        second = first @ x
        return (apart @ second) @ (second.t() @ first) + torch.fft.fft(second @ x.t()).real

    run_all(function, [torch.randn(n, 4) for n in (3, 5)])  # type: ignore[arg-type]


def test_a_few_operators_stay_in_pytorch() -> None:
    run, x = compiled(lambda x: (x + 1).relu()), torch.randn(3)
    same(run(x), (x + 1).relu())
    found = explain(run, x)
    assert found.models == ()
    assert set(found.left.values()) == {1}


def test_numbers_as_arguments() -> None:
    def function(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        y = x.sigmoid() * scale + x.tanh() - x.exp()
        return y.reshape(n, -1) * n + n

    run = compiled(function)
    with torch.no_grad():
        for n, scale in ((2, 0.5), (3, 0.25), (1, 2.0), (6, -1.0)):
            x = torch.randn(6, 4)
            same(run(x, n, scale), function(x, n, scale))
        run = compiled(lambda x, n: (x.sigmoid() + x.exp()) * n - x + n)
        for n in (3, -2, 0, 1):
            same(run(x, n), (x.sigmoid() + x.exp()) * n - x + n)


def test_constant_floats_do_not_trace_twice() -> None:
    """torch guards the scale of an attention, an embedding does not read its `norm_type`, and the
    addend is passed."""

    class Scaled(nn.Module):
        scale, addend = 0.25, 0.5

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            mixed = nn.functional.scaled_dot_product_attention(x, x, x, scale=self.scale)
            return mixed + self.addend

    given = []

    def noted(graph: Any, inputs: Any) -> Any:
        given.append(graph)
        return backend(graph, inputs)

    module = Scaled()
    run = torch.compile(module, backend=noted, dynamic=True)
    before = set(TensorifyState.force_specializations)
    with torch.no_grad():
        for graphs, addend, scale in ((1, 0.5, 0.25), (1, 1.5, 0.25), (2, 1.5, 4.0)):
            module.addend, module.scale = addend, scale
            for n in (5, 3):
                ids = torch.randint(9, (2, 2, n))
                same(run(ids), module(ids))
            assert len(given) == graphs
    assert before == TensorifyState.force_specializations


def test_regions_add_no_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for numbers that only extents of what PyTorch computes depend on."""
    original = cut.module_of
    guards = []

    def noted(region: cut.Region, root: torch.fx.GraphModule) -> torch.fx.GraphModule:
        values = [n.meta.get("val") for n in root.graph.nodes]
        known = next(x.node.shape_env for x in values if isinstance(x, torch.SymInt)).guards
        before = len(known)
        found = original(region, root)
        guards.append((len(region.symbols), len(known) - before))
        return found

    monkeypatch.setattr(cut, "module_of", noted)

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        apart = torch.lgamma(x.new_ones(x.shape[0] + n) * 3)
        return ((apart.sigmoid() + apart.exp()).tanh() - apart)[:, None] @ x[:1]

    run = compiled(function)
    with torch.no_grad():
        for rows, n in ((3, 2), (1, 0), (1, 3), (4, 0)):
            x = torch.randn(rows, 4)
            same(run(x, n), function(x, n), 1e-4)
    assert any(symbols for symbols, _ in guards)
    assert not any(added for _, added in guards)


def test_floats_that_modules_have() -> None:
    """torch traces a number first as a constant, then as a symbol."""

    class Capped(nn.Module):
        cap = 30.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sigmoid() / self.cap).tanh() * self.cap + x.new_full((1, 1), self.cap)

    module = Capped()
    run = compiled(module)
    with torch.no_grad():
        for cap in (30.5, 2.5, 7.25):
            module.cap = cap
            for rows in (6, 1, 3):
                x = torch.randn(rows, 4)
                same(run(x), module(x))


@pytest.mark.full
def test_data_dependent_extents() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        found = x[x[:, 0] > 0]
        return (found @ w).relu() + found.sum()

    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run, w = compiled(function), torch.randn(4, 4)
        for n in (5, 9, 1):
            x = torch.randn(n, 4)
            same(run(x, w), function(x, w))
        found = explain(run, x, w)
        assert len(found.models) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fast": True}, "no option 'fast'; there are threads"),
        ({"threads": "two"}, "option threads is 'two'; expected int"),
        ({"check": 1}, "option check is 1; expected bool"),
        ({"unpad": True}, "option unpad is True; expected str"),
        ({"unpad": "yes"}, "unpad is 'yes'; expected None or 'auto'"),
        ({"unpad": "auto", "check": True}, "check and unpad exclude each other"),
        ({"precision": "int4"}, "expected one of float32, bfloat16, int8-dynamic"),
        ({"threads": 0}, "thread count is 0"),
        ({"fullgraph_or_error": True}, "left to PyTorch: _fft_r2c.default"),
    ],
)
def test_options(options: dict[str, object], text: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x @ x).real

    with pytest.raises(Exception, match=text) as caught:
        compiled(function, **options)(torch.randn(3, 3))
    inner = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(inner, FTunerError)
    assert isinstance(inner, UnsupportedOperatorError) == ("fullgraph_or_error" in options)


def test_precision() -> None:
    module, x = mlp(), torch.randn(5, 3, WIDTH)
    rows = PRECISIONS["int8-dynamic"].rows
    if rows not in default_backend().narrow_dtypes:
        pytest.skip("this CPU has no such instruction")
    with torch.no_grad():
        got, expected = compiled(module, precision="int8-dynamic")(x), module(x)
    assert not torch.equal(got, expected)
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


def test_modes_are_refused() -> None:
    run = torch.compile(lambda x: x + 1, backend="ftuner_test", mode="max-autotune")
    with pytest.raises(Exception, match="ftuner has options alone"):
        run(torch.ones(2))


def test_checked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = mlp(), torch.randn(2, 3, WIDTH)
    run_all(module, [x, x, torch.randn(1, 3, WIDTH)], check=True)

    def wrong(x: Value) -> Value:
        return apply("tanh", x) * 1.25

    monkeypatch.setitem(ATEN, "tanh.default", wrong)
    run = compiled(lambda x, w: ((x @ w).sigmoid() + 1).tanh() * 3, check=True)
    with pytest.raises(MismatchError, match=r"^tanh \(aten.tanh.default\) is the first operator"):
        run(x[0], torch.randn(WIDTH, 4))


def test_a_rewriting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operator by operator the results are right; joined they are not."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    graph.output((graph.call_function(torch.ops.aten.relu.default, (x,)),))
    module = torch.fx.GraphModule(nn.Module(), graph)
    monkeypatch.setattr(checking, "runner", lambda *_: lambda x: [x.relu()])
    run = checking.checked(module, {}, lambda x: [x + 1], lambda _: None, torch.device("cpu"))
    with pytest.raises(MismatchError, match=r"a rewriting of aten.relu.default$"):
        run(torch.ones(3))
