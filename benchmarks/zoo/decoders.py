"""Decoders of text: each reads a whole text, and most also continue one from keys and values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.zoo.architecture import Architecture, Fields, Input, Size
from benchmarks.zoo.text import POSITIONS, TOKENS, usual

CONTINUED = {
    "input_ids": Input(("batch", "new"), "tokens"),
    "attention_mask": Input(("batch", "past+new"), "mask"),
}

OF_ONE_LENGTH = {name: replace(given, dims=("batch", 20)) for name, given in TOKENS.items()}
"""For networks that loop over their tokens. Exporters unroll that: a file takes texts of the length
that it was exported with."""


def decoder(
    name: str, prefix: str, past: bool = True, shared: bool = True, window: int | None = None,
    config: str = "", inputs: Mapping[str, Input] = TOKENS, **others: Any,
) -> tuple[Architecture, ...]:  # fmt: skip
    """The rows of a decoder: without, and if it has any with keys and values of earlier tokens.
    `shared`: whether several heads share keys and values. `window`: how many tokens are seen.
    `config`: the class of the configuration, if it is called otherwise than the network.
    `inputs`: those of the row without a past."""

    def fields(size: Size, window: int | None = window) -> Fields:
        groups = {"num_key_value_heads": size.shared, "head_dim": size.depth} if shared else {}
        windows = {} if window is None else {"sliding_window": window}
        return usual(size, **groups, **windows, bos_token_id=0, eos_token_id=1, **others)

    def unbroken(size: Size) -> Fields:
        # A cache drops what the window has left, which is a length that the exporter cannot name.
        return fields(size, None if window is None else POSITIONS)

    named = (f"{prefix}ForCausalLM", config or f"{prefix}Config")
    whole = Architecture(name, "decoder", *named, fields, inputs, ("logits",),
                         given={"use_cache": False})  # fmt: skip
    if not past:
        return (whole,)
    continued = Architecture(f"{name}-past", "decoder", *named, unbroken, CONTINUED, ("logits",),
                             past=True)  # fmt: skip
    return (whole, continued)


EXPERTS = {"moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2}


def _of_heads(size: Size) -> Fields:
    """Of a state-space network whose inner width, twice the outer one, is that of all heads."""
    return usual(size, bos_token_id=0, eos_token_id=1, num_heads=2 * size.hidden // 64,
                 head_dim=64, n_groups=1, state_size=32, chunk_size=16)  # fmt: skip


ROWS = (
    Architecture("gpt2", "decoder", "GPT2LMHeadModel", "GPT2Config", usual, TOKENS, ("logits",),
                 given={"use_cache": False}),
    Architecture("gpt2-past", "decoder", "GPT2LMHeadModel", "GPT2Config", usual, CONTINUED,
                 ("logits",), past=True),
    *decoder("gpt-neo", "GPTNeo", shared=False, attention_types=[[["global", "local"], 1]]),
    *decoder("gpt-neox", "GPTNeoX", shared=False),
    *decoder("gptj", "GPTJ", shared=False, rotary_dim=32),
    *decoder("codegen", "CodeGen", shared=False, rotary_dim=16, num_attention_heads=4),
    *decoder("gpt-bigcode", "GPTBigCode", shared=False),
    *decoder("opt", "OPT", shared=False, word_embed_proj_dim=192),
    *decoder("bloom", "Bloom", shared=False),
    *decoder("falcon", "Falcon", shared=False),
    *decoder("mpt", "Mpt", shared=False),
    *decoder("llama", "Llama"),
    *decoder("mistral", "Mistral", window=32),
    *decoder("mixtral", "Mixtral", num_local_experts=4),
    *decoder("qwen2", "Qwen2"),
    *decoder("qwen3", "Qwen3"),
    *decoder("qwen3-moe", "Qwen3Moe", past=False, **EXPERTS),
    *decoder("qwen2-moe", "Qwen2Moe", past=False, shared_expert_intermediate_size=256, **EXPERTS),
    *decoder("gemma", "Gemma"),
    *decoder("gemma2", "Gemma2", window=32),
    *decoder("gemma3", "Gemma3", window=32, config="Gemma3TextConfig"),
    *decoder("phi", "Phi"),
    *decoder("phi3", "Phi3"),
    *decoder("stablelm", "StableLm"),
    *decoder("starcoder2", "Starcoder2"),
    *decoder("olmo", "Olmo", past=False),
    *decoder("olmo2", "Olmo2"),
    *decoder("olmoe", "Olmoe", past=False, num_experts=4, num_experts_per_tok=2),
    *decoder("cohere", "Cohere"),
    *decoder("cohere2", "Cohere2", past=False, window=32),
    *decoder("granite", "Granite"),
    *decoder("smollm3", "SmolLM3", past=False),
    *decoder("glm", "Glm"),
    *decoder("glm4", "Glm4", past=False),
    *decoder("nemotron", "Nemotron"),
    *decoder("helium", "Helium", past=False),
    *decoder("persimmon", "Persimmon", shared=False),
    *decoder("gpt-oss", "GptOss", past=False, num_local_experts=4, window=32),
    *decoder("deepseek-v3", "DeepseekV3", past=False, q_lora_rank=64, kv_lora_rank=64,
             qk_rope_head_dim=32, qk_nope_head_dim=32, v_head_dim=64, n_routed_experts=4,
             n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=256,
             first_k_dense_replace=1, shared=False),
    *decoder("deepseek-v2", "DeepseekV2", past=False, q_lora_rank=64, kv_lora_rank=64,
             qk_rope_head_dim=32, qk_nope_head_dim=32, v_head_dim=64, n_routed_experts=4,
             num_experts_per_tok=2, moe_intermediate_size=256, first_k_dense_replace=1,
             shared=False),
    *decoder("glm4-moe", "Glm4Moe", past=False, n_routed_experts=4, num_experts_per_tok=2,
             moe_intermediate_size=256, first_k_dense_replace=1),
    *decoder("llama4", "Llama4", past=False, config="Llama4TextConfig", num_local_experts=4,
             intermediate_size_mlp=768, attention_chunk_size=32, no_rope_layer_interval=2),
    *decoder("gemma3n", "Gemma3n", past=False, config="Gemma3nTextConfig", window=32,
             vocab_size_per_layer_input=1024, hidden_size_per_layer_input=32, laurel_rank=16,
             num_kv_shared_layers=0, activation_sparsity_pattern=[0.95, 0.0],
             layer_types=["sliding_attention", "full_attention"]),
    *decoder("flex-olmo", "FlexOlmo", past=False, num_experts=4, num_experts_per_tok=2),
    *decoder("doge", "Doge", past=False, keep_window_size=16),
    *decoder("biogpt", "BioGpt", past=False, shared=False),
    *decoder("xglm", "XGLM", past=False, shared=False),
    *decoder("diffllama", "DiffLlama", past=False, num_key_value_heads=2, num_attention_heads=4,
             shared=False),
    *decoder("lfm2", "Lfm2", past=False, layer_types=["conv", "full_attention"]),
    *decoder("lfm2-moe", "Lfm2Moe", past=False, layer_types=["conv", "full_attention"],
             num_dense_layers=1, **EXPERTS),
    *decoder("mamba", "Mamba", past=False, shared=False, inputs=OF_ONE_LENGTH),
    Architecture("mamba2", "decoder", "Mamba2ForCausalLM", "Mamba2Config", _of_heads, TOKENS,
                 ("logits",), given={"use_cache": False}),
    *decoder("falcon-mamba", "FalconMamba", past=False, shared=False, inputs=OF_ONE_LENGTH),
    *decoder("rwkv", "Rwkv", past=False, shared=False, inputs=OF_ONE_LENGTH),
)  # fmt: skip
