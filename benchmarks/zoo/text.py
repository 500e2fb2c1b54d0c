"""Encoders of text, and networks from one text to another."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.zoo.architecture import Architecture, Fields, Input, Size

IDS, MASK = Input(("batch", "length"), "tokens"), Input(("batch", "length"), "mask")
TOKENS = {"input_ids": IDS, "attention_mask": MASK}
BOXES = {"bbox": Input(("batch", "length", 4), "boxes")}
TARGETS = {"decoder_input_ids": Input(("batch", "target"), "tokens")}
POSITIONS = 512


def usual(size: Size, **others: Any) -> Fields:
    """The fields of most configurations of text, and others."""
    return {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 1,
        **others,
    }


def encoder(
    name: str, prefix: str, inputs: Mapping[str, Input] = TOKENS, model: str = "Model",
    outputs: tuple[str, ...] = ("last_hidden_state",), least: int = 1,
    fields: Callable[[Size], Fields] = usual, given: Fields | None = None, **others: Any,
) -> Architecture:  # fmt: skip
    """An encoder whose class and configuration begin with `prefix`."""
    return Architecture(name, "encoder", f"{prefix}{model}", f"{prefix}Config",
                        lambda size: {**fields(size), **others}, inputs, outputs, given=given or {},
                        least={"length": least})  # fmt: skip


def between_texts(name: str, prefix: str, fields: Callable[[Size], Fields]) -> Architecture:
    """An encoder and a decoder."""
    return Architecture(name, "encoder-decoder", f"{prefix}ForConditionalGeneration",
                        f"{prefix}Config", fields, TOKENS | TARGETS, ("logits",),
                        given={"use_cache": False})  # fmt: skip


def translator(name: str, prefix: str, **others: Any) -> Architecture:
    """An encoder and a decoder with the fields of BART."""

    def fields(size: Size) -> Fields:
        return {
            "d_model": size.hidden,
            **dict.fromkeys(("encoder_layers", "decoder_layers"), size.layers),
            **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), size.heads),
            **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), size.inner),
            "vocab_size": size.vocabulary,
            "max_position_embeddings": POSITIONS,
            "pad_token_id": 1,
            **others,
        }

    return between_texts(name, prefix, fields)


def t5(name: str, prefix: str, **others: Any) -> Architecture:
    """An encoder and a decoder with the fields of T5."""

    def fields(size: Size) -> Fields:
        return {
            "d_model": size.hidden, "d_kv": size.depth, "d_ff": size.inner,
            "num_layers": size.layers, "num_decoder_layers": size.layers, "num_heads": size.heads,
            "vocab_size": size.vocabulary, "decoder_start_token_id": 0, "pad_token_id": 0,
            **others,
        }  # fmt: skip

    return between_texts(name, prefix, fields)


def distilbert(size: Size) -> Fields:
    return {"dim": size.hidden, "n_layers": size.layers, "n_heads": size.heads,
            "hidden_dim": size.inner, "vocab_size": size.vocabulary}  # fmt: skip


def mobilebert(size: Size) -> Fields:
    return usual(size, embedding_size=size.depth, intra_bottleneck_size=size.depth,
                 true_hidden_size=size.depth, num_attention_heads=4)  # fmt: skip


def funnel(size: Size) -> Fields:
    return {"vocab_size": size.vocabulary, "block_sizes": [1, 1], "d_model": size.hidden,
            "n_head": size.heads, "d_head": size.depth, "d_inner": size.inner}  # fmt: skip


def xlnet(size: Size) -> Fields:
    return {"vocab_size": size.vocabulary, "d_model": size.hidden, "n_layer": size.layers,
            "n_head": size.heads, "d_inner": size.inner}  # fmt: skip


def xlm(size: Size) -> Fields:
    return {"vocab_size": size.vocabulary, "emb_dim": size.hidden, "n_layers": size.layers,
            "n_heads": size.heads}  # fmt: skip


ROWS = (
    encoder("bert", "Bert"),
    encoder("bert-masked", "Bert", model="ForMaskedLM", outputs=("logits",)),
    encoder("roberta", "Roberta"),
    encoder("xlm-roberta-xl", "XLMRobertaXL"),
    encoder("roberta-prelayernorm", "RobertaPreLayerNorm"),
    encoder("electra", "Electra", embedding_size=128),
    encoder("albert", "Albert", embedding_size=128),
    encoder("mpnet", "MPNet"),
    encoder("deberta", "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    encoder("deberta-v2", "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"],
            position_buckets=64, share_att_key=True, norm_rel_ebd="layer_norm"),
    encoder("modernbert", "ModernBert", global_attn_every_n_layers=2, local_attention=32),
    encoder("eurobert", "EuroBert", num_key_value_heads=1),
    encoder("nomic-bert", "NomicBert"),
    encoder("roformer", "RoFormer", embedding_size=128),
    encoder("rembert", "RemBert", input_embedding_size=128),
    encoder("megatron-bert", "MegatronBert"),
    encoder("ernie", "Ernie"),
    encoder("convbert", "ConvBert", embedding_size=128),
    encoder("squeezebert", "SqueezeBert", embedding_size=192),
    encoder("fnet", "FNet", inputs={"input_ids": IDS}),
    encoder("nystromformer", "Nystromformer", segment_means_seq_len=64, num_landmarks=8),
    encoder("longformer", "Longformer", attention_window=16),
    encoder("big-bird", "BigBird", attention_type="original_full"),
    encoder("esm", "Esm", mask_token_id=2, position_embedding_type="rotary"),
    encoder("ibert", "IBert"),
    encoder("data2vec-text", "Data2VecText"),
    encoder("layoutlm", "LayoutLM", inputs=TOKENS | BOXES),
    encoder("lilt", "Lilt", inputs=TOKENS | BOXES),
    encoder("bros", "Bros", inputs=TOKENS | {"bbox": Input(("batch", "length", 8), "normal")}),
    encoder("splinter", "Splinter"),
    encoder("canine", "Canine", local_transformer_stride=16, num_hash_buckets=1024,
            least=16),
    encoder("distilbert", "DistilBert", fields=distilbert),
    encoder("mobilebert", "MobileBert", fields=mobilebert),
    encoder("funnel", "Funnel", fields=funnel),
    encoder("xlnet", "XLNet", fields=xlnet, given={"use_mems": False}),
    encoder("xlm", "XLM", fields=xlm),
    translator("bart", "Bart"),
    translator("mbart", "MBart"),
    translator("pegasus", "Pegasus"),
    translator("blenderbot", "Blenderbot"),
    translator("m2m-100", "M2M100"),
    translator("plbart", "PLBart"),
    t5("t5", "T5"),
    t5("t5-gated", "T5", feed_forward_proj="gated-gelu"),
    t5("umt5", "UMT5"),
    t5("longt5", "LongT5", local_radius=8),
    t5("switch-transformers", "SwitchTransformers", num_experts=4),
)  # fmt: skip
