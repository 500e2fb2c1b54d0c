"""Modules of PyTorch as users have them, at their published sizes, with random weights, and the
inputs that they are measured with."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]
Arguments = Mapping[str, Any]
TEXTS: Sequence[Shape] = ((1, 1), (1, 7), (1, 16), (2, 33), (1, 64), (4, 25), (1, 128))
"""Batch and length."""
PICTURES: Sequence[Shape] = ((1, 224, 224), (2, 224, 224), (1, 160, 256), (1, 96, 96))
"""Batch, height and width."""
PASTS: Sequence[Shape] = ((1, 1), (1, 16), (1, 100), (2, 64), (1, 255))
"""Batch and length of the past."""


@dataclass(frozen=True)
class Case:
    """A module and its inputs."""

    kind: str
    """`text`, `vision`, `audio` or `decode`."""
    make: Callable[[], nn.Module]
    inputs: Callable[[nn.Module, Shape], Arguments]
    shapes: Sequence[Shape]
    example: Shape
    """That it is compiled with: extents that differ, and none is 1."""
    dynamic_shapes: Mapping[str, Any] | None = None
    """Which extents are dynamic; by default all. torch traces a Swin with dynamic height and width
    for many minutes, and the network takes pictures of one size."""

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().eval().requires_grad_(False)


class UNet(nn.Module):
    """Ronneberger et al., 2015, with padding and norms, four levels deep."""

    def __init__(self, width: int = 64, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        pairs = zip([3, *widths], widths, strict=False)
        self.down = nn.ModuleList([self._block(n, m) for n, m in pairs])
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * n, n, 2, 2) for n in reversed(widths[:-1])])
        self.joined = nn.ModuleList([self._block(2 * n, n) for n in reversed(widths[:-1])])
        self.out = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Module:
        def half(inputs: int) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, after, 3, padding=1, bias=False)
            return [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

        return nn.Sequential(*half(before), *half(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for block in self.down:
            x = block(nn.functional.max_pool2d(x, 2) if levels else x)
            levels.append(x)
        for up, block, level in zip(self.up, self.joined, levels[-2::-1], strict=True):
            x = block(torch.cat([level, up(x)], 1))
        found: torch.Tensor = self.out(x)
        return found


class Tagger(nn.Module):
    """Words to tags: two bidirectional LSTMs."""

    def __init__(self, words: int = 20_000, width: int = 256, tags: int = 17) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * width, tags)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tags(self.lstm(self.words(tokens))[0]).log_softmax(-1)
        return found


def _transformer(kind: str, config: str = "", **fields: Any) -> Callable[[], nn.Module]:
    """Makes a network of `transformers`; its fields are those of its configuration."""

    def make() -> nn.Module:
        transformers = importlib.import_module("transformers")
        name = config or kind.replace("Model", "Config")
        found: nn.Module = getattr(transformers, kind)(getattr(transformers, name)(**fields))
        return found

    return make


def _tokens(module: nn.Module, shape: Shape) -> Arguments:
    return {
        "input_ids": torch.randint(4, 1000, shape),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
    }


def _unmasked(module: nn.Module, shape: Shape) -> Arguments:
    return {"input_ids": torch.randint(4, 1000, shape), "use_cache": False}


def _continued(module: Any, shape: Shape) -> Arguments:
    """One token more, after a past."""
    config = module.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    depth = config.hidden_size // config.num_attention_heads
    past = (shape[0], heads, shape[1], depth)
    pairs = [(torch.randn(past), torch.randn(past)) for _ in range(config.num_hidden_layers)]
    cache = importlib.import_module("transformers").DynamicCache
    return {
        "input_ids": torch.randint(4, 1000, (shape[0], 1)),
        "attention_mask": torch.ones(shape[0], shape[1] + 1, dtype=torch.int64),
        "past_key_values": cache(pairs, config=config), "use_cache": True,
    }  # fmt: skip


def _pixels(name: str = "pixel_values") -> Callable[[nn.Module, Shape], Arguments]:
    return lambda _, shape: {name: torch.randn(shape[0], 3, *shape[1:])}


def _words(module: nn.Module, shape: Shape) -> Arguments:
    return {"tokens": torch.randint(4, 1000, shape)}


def _spectrum(module: nn.Module, shape: Shape) -> Arguments:
    return {"input_features": torch.randn(shape[0], 80, 3000)}


def _encoder_of_whisper() -> nn.Module:
    found: nn.Module = _transformer("WhisperModel")().encoder
    return found


LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2,
         "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8192}  # fmt: skip
BATCH = {"pixel_values": {0: torch.export.Dim.AUTO}}
SQUARE: Sequence[Shape] = ((1, 224, 224), (2, 224, 224), (5, 224, 224))
RESNET_18 = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
          "intermediate_size": 1536}  # fmt: skip

CASES: Mapping[str, Case] = {
    "bert-base": Case("text", _transformer("BertModel"), _tokens, TEXTS, (2, 20)),
    "minilm": Case("text", _transformer("BertModel", **MINILM), _tokens, TEXTS, (2, 20)),
    "gpt2": Case("text", _transformer("GPT2LMHeadModel", "GPT2Config"), _unmasked, TEXTS, (2, 20)),
    "gpt2-decode": Case("decode", _transformer("GPT2LMHeadModel", "GPT2Config"), _continued, PASTS,
                        (2, 20)),
    "llama-block": Case("text", _transformer("LlamaModel", **LLAMA), _unmasked, TEXTS, (2, 20)),
    "llama-decode": Case("decode", _transformer("LlamaModel", **LLAMA), _continued, PASTS, (2, 20)),
    "mixture": Case("text", _transformer("MixtralModel", **LLAMA, num_local_experts=4), _unmasked,
                    TEXTS, (2, 20)),
    "lstm-tagger": Case("text", Tagger, _words, TEXTS, (2, 20)),
    "vit-base-16": Case("vision", _transformer("ViTModel"), _pixels(), SQUARE, (2, 224, 224)),
    "swin-tiny": Case("vision", _transformer("SwinModel"), _pixels(), SQUARE, (2, 224, 224),
                      BATCH),
    "resnet-18": Case("vision", _transformer("ResNetModel", **RESNET_18), _pixels(), PICTURES,
                      (2, 224, 192)),
    "resnet-50": Case("vision", _transformer("ResNetModel"), _pixels(), PICTURES, (2, 224, 192)),
    "mobilenet-v2": Case("vision", _transformer("MobileNetV2Model", tf_padding=False), _pixels(),
                         PICTURES, (2, 224, 192)),
    "unet": Case("vision", UNet, _pixels("x"), ((1, 96, 128), (2, 64, 64), (1, 160, 96)),
                 (2, 96, 64)),
    "whisper-encoder": Case("audio", _encoder_of_whisper, _spectrum, ((1,), (2,)), (2,)),
}  # fmt: skip
