"""The operators that `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call outside of
training, as what they are made of. With a mask they are left to PyTorch, which reads masks of any
element type as Boolean ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


def _attention(
    x: Tensor, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor,
) -> Tensor:  # fmt: skip
    batch, length, _ = x.shape
    parts = functional.linear(x, qkv_weight, qkv_bias).chunk(3, dim=-1)
    q, k, v = (t.reshape(batch, length, num_heads, -1).transpose(1, 2) for t in parts)
    mixed = functional.scaled_dot_product_attention(q, k, v)
    return functional.linear(mixed.transpose(1, 2).reshape(x.shape), proj_weight, proj_bias)


def _encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    if mask is not None or src.dim() != 3:
        return NotImplemented

    def first_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def last_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def mixed(x: Tensor) -> Tensor:
        return _attention(x, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)

    def hidden(x: Tensor) -> Tensor:
        y = functional.linear(x, ffn_weight_1, ffn_bias_1)
        y = functional.gelu(y) if use_gelu else functional.relu(y)
        return functional.linear(y, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + mixed(first_norm(src))
        return x + hidden(last_norm(x))
    x = first_norm(src + mixed(src))
    return last_norm(x + hidden(x))


def _self_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None,
    need_weights: bool = True, average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    if mask is not None or need_weights or key is not query or value is not query:
        return NotImplemented
    return _attention(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias), None


FAST_PATHS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    torch.ops.aten._native_multi_head_attention.default: _self_attention,
}
