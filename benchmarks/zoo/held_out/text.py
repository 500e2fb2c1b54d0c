"""Held-out encoders of text, and networks from one text to another."""

from benchmarks.zoo.architecture import Architecture, Fields, Input, Size
from benchmarks.zoo.text import IDS, TARGETS, TOKENS, encoder, translator, usual


def flaubert(size: Size) -> Fields:
    return {"vocab_size": size.vocabulary, "emb_dim": size.hidden, "n_layers": size.layers,
            "n_heads": size.heads}  # fmt: skip


def prophetnet(size: Size) -> Fields:
    """Its layers have names of their own, and its decoder predicts several tokens at once."""
    return {
        "hidden_size": size.hidden, "vocab_size": size.vocabulary, "max_position_embeddings": 512,
        "num_encoder_layers": size.layers, "num_decoder_layers": size.layers,
        "num_encoder_attention_heads": size.heads, "num_decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.inner, "decoder_ffn_dim": size.inner,
    }  # fmt: skip


def fsmt(size: Size) -> Fields:
    return translator("", "").fields(size) | {
        "langs": ["en", "de"], "src_vocab_size": size.vocabulary,
        "tgt_vocab_size": size.vocabulary,
    }  # fmt: skip


def reformer(size: Size) -> Fields:
    return {
        "hidden_size": size.hidden, "num_attention_heads": size.heads, "vocab_size": 1024,
        "attention_head_size": size.depth, "feed_forward_size": size.inner,
        "attn_layers": ["local", "local"], "axial_pos_embds": False, "local_attn_chunk_length": 16,
        "max_position_embeddings": 512, "is_decoder": False,
    }  # fmt: skip


def perceiver(size: Size) -> Fields:
    return {
        "d_model": size.hidden, "d_latents": size.hidden, "num_latents": 32, "num_blocks": 1,
        "num_self_attends_per_block": size.layers, "num_self_attention_heads": size.heads,
        "num_cross_attention_heads": size.heads, "vocab_size": size.vocabulary,
        "max_position_embeddings": 512,
    }  # fmt: skip


def t5gemma(size: Size) -> Fields:
    part = usual(size, num_key_value_heads=size.shared, head_dim=size.depth, sliding_window=32)
    return {"encoder": part, "decoder": part, "vocab_size": size.vocabulary}


FLOAT_MASK = {"attention_mask": Input(("batch", "length"), "float mask")}
"""Torch's exporter has no difference of a float and a tensor of integers."""
TWICE = dict.fromkeys(("input_shape_ids", "input_pronunciation_ids"), IDS)
ROWS_AND_COLUMNS = {"token_type_ids": Input(("batch", "length", 7), "zeros")}
EXPERTS = {"num_experts": 4, "encoder_sparse_step": 1, "decoder_sparse_step": 1}

ROWS = (
    encoder("luke", "Luke", entity_vocab_size=16, entity_emb_size=64),
    encoder("xmod", "Xmod", languages=["en_XX", "de_DE"], default_language="en_XX"),
    encoder("roc-bert", "RoCBert", inputs=TOKENS | TWICE, shape_vocab_size=1024,
            pronunciation_vocab_size=1024),
    encoder("markuplm", "MarkupLM"),
    encoder("mra", "Mra"),
    encoder("yoso", "Yoso"),
    encoder("tapas", "Tapas", inputs=TOKENS | ROWS_AND_COLUMNS),
    encoder("bert-generation", "BertGeneration", model="Encoder"),
    encoder("jina-embeddings-v3", "JinaEmbeddingsV3"),
    encoder("gte", "Gte"),
    Architecture("flaubert", "encoder", "FlaubertModel", "FlaubertConfig", flaubert, TOKENS,
                 ("last_hidden_state",), given={"use_cache": False}),
    Architecture("reformer", "encoder", "ReformerModel", "ReformerConfig", reformer, TOKENS,
                 ("last_hidden_state",), given={"use_cache": False}),
    Architecture("perceiver", "encoder", "PerceiverForMaskedLM", "PerceiverConfig", perceiver,
                 {"inputs": IDS, "attention_mask": TOKENS["attention_mask"]}, ("logits",)),
    translator("led", "LED", attention_window=16),
    translator("mvp", "Mvp"),
    translator("blenderbot-small", "BlenderbotSmall"),
    translator("bigbird-pegasus", "BigBirdPegasus", attention_type="original_full"),
    translator("pegasus-x", "PegasusX", block_size=16, num_global_tokens=8),
    translator("nllb-moe", "NllbMoe", **EXPERTS),
    Architecture("marian", "encoder-decoder", "MarianMTModel", "MarianConfig",
                 translator("", "").fields, TOKENS | TARGETS, ("logits",),
                 given={"use_cache": False}),
    Architecture("fsmt", "encoder-decoder", "FSMTForConditionalGeneration", "FSMTConfig", fsmt,
                 TOKENS | TARGETS, ("logits",), given={"use_cache": False}),
    Architecture("prophetnet", "encoder-decoder", "ProphetNetForConditionalGeneration",
                 "ProphetNetConfig", prophetnet, TOKENS | TARGETS | FLOAT_MASK, ("logits",),
                 given={"use_cache": False}),
    Architecture("t5gemma", "encoder-decoder", "T5GemmaForConditionalGeneration",
                 "T5GemmaConfig", t5gemma, TOKENS | TARGETS, ("logits",),
                 given={"use_cache": False}),
)  # fmt: skip
