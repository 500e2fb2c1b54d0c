"""Held-out decoders of text."""

from __future__ import annotations

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.decoders import EXPERTS, OF_ONE_LENGTH, decoder
from benchmarks.zoo.text import TOKENS, usual

ONE_OF_EACH = {"mamba_n_heads": 6, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 32,
               "mamba_chunk_size": 16}  # fmt: skip
"""Layers with a state space beside those with attention."""

ROWS = (
    Architecture("openai-gpt", "decoder", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", usual, TOKENS,
                 ("logits",)),
    Architecture("ctrl", "decoder", "CTRLLMHeadModel", "CTRLConfig",
                 lambda size: usual(size, dff=size.inner), TOKENS, ("logits",),
                 given={"use_cache": False}),
    *decoder("exaone4", "Exaone4", window=32),
    *decoder("ernie4-5", "Ernie4_5"),
    *decoder("hunyuan", "HunYuanDenseV1"),
    *decoder("seed-oss", "SeedOss"),
    *decoder("arcee", "Arcee"),
    *decoder("apertus", "Apertus"),
    *decoder("olmo3", "Olmo3", window=32),
    *decoder("ministral", "Ministral", window=32),
    *decoder("bitnet", "BitNet"),
    *decoder("vaultgemma", "VaultGemma", window=32),
    *decoder("nanochat", "NanoChat"),
    *decoder("minimax", "MiniMax", past=False, num_local_experts=4, block_size=16,
             layer_types=["linear_attention", "full_attention"], inputs=OF_ONE_LENGTH),
    *decoder("dbrx", "Dbrx", past=False, shared=False, d_model=192, n_heads=3, n_layers=2,
             max_seq_len=512,
             attn_config={"kv_n_heads": 1, "rope_theta": 10000.0, "clip_qkv": 8.0},
             ffn_config={"moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 384,
                         "hidden_size": 192}),
    *decoder("jetmoe", "JetMoe", past=False, shared=False, num_key_value_heads=2, kv_channels=64,
             num_local_experts=4),
    *decoder("granitemoe", "GraniteMoe", past=False, num_local_experts=4, num_experts_per_tok=2),
    *decoder("granitemoe-hybrid", "GraniteMoeHybrid", past=False, num_local_experts=4,
             num_experts_per_tok=2, layer_types=["mamba", "attention"],
             shared_intermediate_size=256, **ONE_OF_EACH),
    *decoder("phimoe", "Phimoe", past=False, num_local_experts=4),
    *decoder("dots1", "Dots1", past=False, n_routed_experts=4, num_experts_per_tok=2,
             moe_intermediate_size=256, n_shared_experts=1, n_group=1, topk_group=1,
             first_k_dense_replace=1),
    *decoder("ernie4-5-moe", "Ernie4_5_Moe", past=False, moe_num_experts=4, moe_k=2,
             moe_intermediate_size=256),
    *decoder("jamba", "Jamba", past=False, num_experts=4, attn_layer_period=2, attn_layer_offset=1,
             expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False,
             mamba_d_state=16, mamba_d_conv=4, inputs=OF_ONE_LENGTH),
    *decoder("bamba", "Bamba", past=False, attn_layer_indices=[1], **ONE_OF_EACH),
    *decoder("zamba2", "Zamba2", past=False, shared=False, layers_block_type=["mamba", "hybrid"],
             mamba_ngroups=1, mamba_d_state=32, chunk_size=16, num_mem_blocks=1,
             n_mamba_heads=6, mamba_headdim=64),
    *decoder("recurrent-gemma", "RecurrentGemma", past=False,
             block_types=["recurrent", "attention"], attention_window_size=32, lru_width=192,
             inputs=OF_ONE_LENGTH),
    *decoder("qwen3-next", "Qwen3Next", past=False,
             layer_types=["linear_attention", "full_attention"], linear_key_head_dim=32,
             linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
             shared_expert_intermediate_size=256, **EXPERTS),
    *decoder("xlstm", "xLSTM", past=False, shared=False, num_heads=3, inputs=OF_ONE_LENGTH),
)  # fmt: skip
