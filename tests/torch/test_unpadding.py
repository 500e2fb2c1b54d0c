"""Batches with a mask: padding is left out where nothing depends on it, and computed elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.modules import compiled, same

import ftuner
from ftuner.runtime.cpu.executable import CompiledGraph

LENGTH, WORDS = 6, 50
MASKS = {
    "right": ([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]], [6, 2, 3]),
    "a hole": ([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]], [6, 4]),
    "left": ([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]], []),
    "both": ([[0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0]], [5, 5]),
    "an empty row": ([[1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], []),
    "full": ([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], []),
}
"""By name, a mask and the lengths of the requests that run without padding."""


class Net(torch.nn.Module):
    """An encoder of `transformers`, and the mean of its vectors as a server takes it."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=48, max_position_embeddings=40,
        )  # fmt: skip
        self.encoder = transformers.BertModel(config, add_pooling_layer=False).eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        found = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        column = attention_mask[..., None].to(found.dtype)
        return found, (found * column).sum(1) / column.sum(1).clamp(min=1)


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.fixture(scope="module")
def model(net: Net) -> Any:
    return ftuner.compile(net, arguments(MASKS["full"][0]), unpad="auto")


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the requests that run as a batch from now on."""
    found: list[int] = []
    run = CompiledGraph.run_batch

    def noted(graph: CompiledGraph, batch: Any, exact: bool) -> Any:
        found.extend(arrays[0].shape[1] for arrays in batch)
        return run(graph, batch, exact)

    monkeypatch.setattr(CompiledGraph, "run_batch", noted)
    return found


def arguments(mask: list[list[int]]) -> dict[str, torch.Tensor]:
    given = torch.tensor(mask)
    return {"input_ids": torch.randint(1, WORDS, given.shape), "attention_mask": given}


def check(net: Net, run: Callable[..., Any], name: str, lengths: list[int]) -> None:
    """Hold that results are PyTorch's, or zero where a position was left out."""
    mask, expected = MASKS[name]
    given = arguments(mask)
    lengths.clear()
    with torch.no_grad():
        (tokens, means), (wanted, wanted_means) = run(**given), net(**given)
    assert lengths == expected
    for row, length in enumerate(expected):
        wanted[row, length:] = 0
    if name != "an empty row":  # What attention to nothing is differs between engines.
        same(tokens, wanted)
    same(means, wanted_means)


@pytest.mark.parametrize("name", MASKS)
def test_a_compiled_module(name: str, net: Net, model: Any, lengths: list[int]) -> None:
    assert model.padding_kept == ""
    check(net, model, name, lengths)


def test_torch_compile(net: Net, lengths: list[int], caplog: pytest.LogCaptureFixture) -> None:
    run = compiled(net, unpad="auto")
    with caplog.at_level(logging.WARNING):
        for name in MASKS:
            check(net, run, name, lengths)
    assert "padding" not in caplog.text


def test_what_pytorch_computes_may_read_padding(
    lengths: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    layer = torch.nn.Linear(8, 8)

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(layer(x * mask[..., None])).real

    run, mask = compiled(function, unpad="auto"), torch.tensor(MASKS["right"][0])
    x = torch.randn(*mask.shape, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            same(run(x, mask), function(x, mask))
    assert lengths == []
    assert caplog.text.count("is computed: PyTorch computes a part of it") == 1


def test_no_proof_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Each row reads the last position, which another length has elsewhere."""
    layer = torch.nn.Linear(8, 8)

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return layer(x * mask[..., None]).cumsum(1).flip(1)

    run, x = compiled(function, unpad="auto"), torch.randn(2, 5, 8)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        same(run(x, mask), function(x, mask))
    assert "padding of a graph's batches is computed" in caplog.text


class Interrupted(torch.nn.Module):
    """Two layers of attention with a mask that the first one makes; code of Python between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        added = (1 - attention_mask[:, None].to(x.dtype)) * -1e9
        for layer in self.layers:
            x = torch.softmax(layer(x) @ x.transpose(1, 2) + added, -1) @ x
            torch._dynamo.graph_break()
        return x


def test_parts_of_a_module_keep_padding() -> None:
    """What a part gives to the next one may be a mask, whose padding is not zero."""
    module, mask = Interrupted().eval(), torch.tensor(MASKS["right"][0])
    run, x = compiled(module, options={"unpad": "auto"}), torch.randn(3, LENGTH, 16)
    with torch.no_grad():
        same(run(x, mask)[mask > 0], module(x, mask)[mask > 0])
