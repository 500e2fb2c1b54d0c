"""The models of `benchmarks.onnx_models` as PyTorch modules, written as they are used: with its own
attention, norms and activations."""

import torch
from torch import nn
from torch.nn import functional

from benchmarks.onnx_models import EPSILON, Decoder, Encoder, Weights, rotary_tables

SEED = 0
SPREAD = 0.1
"""Of biases, and of the scales of norms about one."""


class _EncoderLayer(nn.Module):
    def __init__(self, shape: Encoder) -> None:
        super().__init__()
        width = shape.width
        self.shape = shape
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mixed_norm, self.norm = (nn.LayerNorm(width, EPSILON) for _ in range(2))
        self.up, self.down = nn.Linear(width, shape.inner), nn.Linear(shape.inner, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (_heads(f(x), self.shape.heads) for f in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        x = self.mixed_norm(self.out(_merged(mixed)) + x)
        return self.norm(self.down(functional.gelu(self.up(x))) + x)


class EncoderModule(nn.Module):
    """A BERT: token ids and a mask to the last hidden states; without a mask all is seen."""

    def __init__(self, shape: Encoder) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.kind = nn.Parameter(torch.empty(shape.width))
        self.norm = nn.LayerNorm(shape.width, EPSILON)
        self.layers = nn.ModuleList([_EncoderLayer(shape) for _ in range(shape.layers)])

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.norm(self.words(tokens) + self.kind + self.positions.weight[:length])
        added = None
        if mask is not None:
            hidden = 1.0 - mask[:, None, None, :].to(x.dtype)
            added = (hidden * torch.finfo(x.dtype).min).expand(-1, -1, length, -1)
        for layer in self.layers:
            x = layer(x, added)
        return x


class _DecoderLayer(nn.Module):
    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        width, shared = shape.width, shape.groups * shape.depth
        self.shape = shape
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, shared, bias=False) for _ in range(2))
        self.mixed_norm, self.norm = (nn.RMSNorm(width, EPSILON) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, shape.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.inner, width, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        normed = self.mixed_norm(x)
        q = _turned(_heads(self.query(normed), shape.heads), cosines, sines)
        k = _turned(_heads(self.key(normed), shape.groups), cosines, sines)
        v = _heads(self.value(normed), shape.groups)
        # PyTorch's kernel for heads that share keys takes halves only; floats would be multiplied
        # by products whose scores are written to memory.
        shared = x.dtype != torch.float32
        if not shared:
            k, v = (each.repeat_interleave(shape.heads // shape.groups, 1) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=shared
        )  # fmt: skip
        x = x + self.out(_merged(mixed))
        normed = self.norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class DecoderModule(nn.Module):
    """Blocks of a Llama: hidden states, of the weights' element type, to those behind them."""

    def __init__(self, shape: Decoder) -> None:
        super().__init__()
        for name, table in zip(("cosines", "sines"), rotary_tables(shape), strict=True):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        self.layers = nn.ModuleList([_DecoderLayer(shape) for _ in range(shape.layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        for layer in self.layers:
            x = layer(x, self.cosines[:length], self.sines[:length])
        return x


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """`(batch, length, count * depth)` as `(batch, count, length, depth)`."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _merged(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def _turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


def made(shape: Encoder | Decoder, device: torch.device) -> EncoderModule | DecoderModule:
    """A module of random weights, the same each time, such that activations keep their size."""
    with torch.device(device):
        module = EncoderModule(shape) if isinstance(shape, Encoder) else DecoderModule(shape)
    generator = torch.Generator(device).manual_seed(SEED)
    for name, weight in module.named_parameters():
        weight.requires_grad_(False)
        weight.normal_(generator=generator)
        if weight.dim() == 1:
            weight.mul_(SPREAD).add_(1.0 if name.endswith("norm.weight") else 0.0)
        elif not name.startswith(("words", "positions")):
            weight.div_(weight.shape[1] ** 0.5)
    return module.eval().to(device)


def weights_of(module: nn.Module) -> Weights:
    """The parameters by name, in the CPU's memory, and those of products as `(inputs, outputs)`."""
    products = {f"{n}.weight" for n, part in module.named_modules() if isinstance(part, nn.Linear)}
    return {
        name: (weight.mT.contiguous() if name in products else weight).detach().cpu().numpy()
        for name, weight in module.named_parameters()
    }
