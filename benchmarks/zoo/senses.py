"""Networks that see and hear, and those that also read."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.zoo.architecture import Architecture, Fields, Input, Size
from benchmarks.zoo.text import BOXES, TARGETS, TOKENS, translator, usual

PICTURE = {"pixel_values": Input(("batch", 3, "height", "width"), "normal")}
SOUND = {"input_values": Input(("batch", "samples"), "normal")}
HIDDEN = ("last_hidden_state",)
LOGITS = ("logits",)


def square(side: int) -> Mapping[str, Input]:
    """Pictures of one side, for networks whose positions are of one size."""
    return {"pixel_values": Input(("batch", 3, side, side), "normal")}


def patches(size: Size, **others: Any) -> Fields:
    """The fields of most configurations of vision transformers, and others."""
    return {
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "image_size": 96,
        "patch_size": 16,
        **others,
    }


def pyramid(size: Size) -> dict[str, list[int]]:
    """Widths and depths of networks in four stages, the widest as wide as others are."""
    return {"widths": [size.hidden // 4, size.hidden // 2, size.hidden, size.hidden],
            "depths": [1, 1, 2, 1]}  # fmt: skip


def seen(
    name: str, prefix: str, fields: Callable[[Size], Fields] = patches, model: str = "Model",
    inputs: Mapping[str, Input] = PICTURE, outputs: tuple[str, ...] = HIDDEN, kind: str = "vision",
    **given: Any,
) -> Architecture:  # fmt: skip
    return Architecture(name, kind, f"{prefix}{model}", f"{prefix}Config", fields, inputs, outputs,
                        given=given)  # fmt: skip


def heard(name: str, prefix: str, **others: Any) -> Architecture:
    """A network with the fields of wav2vec 2."""

    def fields(size: Size) -> Fields:
        return usual(size) | {
            "conv_dim": (128,) * 7, "num_conv_pos_embeddings": 32,
            "num_conv_pos_embedding_groups": 4, **others,
        }  # fmt: skip

    return Architecture(name, "audio", f"{prefix}Model", f"{prefix}Config", fields, SOUND, HIDDEN)


def convnext(size: Size) -> Fields:
    found = pyramid(size)
    return {"hidden_sizes": found["widths"], "depths": found["depths"]}


def stages(size: Size) -> Fields:
    return convnext(size) | {"embedding_size": size.hidden // 4}


def swin(size: Size) -> Fields:
    return {"image_size": 224, "embed_dim": size.hidden // 2, "depths": [2, 2],
            "num_heads": [size.heads, 2 * size.heads], "window_size": 7}  # fmt: skip


def segformer(size: Size) -> Fields:
    found = pyramid(size)
    return {"hidden_sizes": found["widths"], "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 3, 3], "decoder_hidden_size": size.hidden}  # fmt: skip


def pvt(size: Size) -> Fields:
    found = pyramid(size)
    return {"hidden_sizes": found["widths"], "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 3]}  # fmt: skip


def detr(size: Size) -> Fields:
    backbone = {"model_type": "resnet", "embedding_size": 32, "hidden_sizes": [32, 64, 96, 128],
                "depths": [1, 1, 1, 1], "out_features": ["stage4"]}  # fmt: skip
    return {
        "backbone_config": backbone, "use_timm_backbone": False, "use_pretrained_backbone": False,
        "backbone": None, "d_model": size.hidden, "num_queries": 20,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), size.layers),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), size.heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), size.inner),
    }  # fmt: skip


def vitpose(size: Size) -> Fields:
    backbone = patches(size, model_type="vitpose_backbone", image_size=[96, 96],
                       patch_size=[16, 16], out_features=["stage2"])  # fmt: skip
    return {"backbone_config": backbone, "num_labels": 17}


def dpt(size: Size) -> Fields:
    return patches(size, num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[
        size.hidden // 4, size.hidden // 2, size.hidden, size.hidden], fusion_hidden_size=64,
        readout_type="project")  # fmt: skip


def depth_anything(size: Size) -> Fields:
    backbone = patches(size, model_type="dinov2", patch_size=14, image_size=98,
                       out_features=["stage1", "stage2"], reshape_hidden_states=False)  # fmt: skip
    return {"backbone_config": backbone, "reassemble_hidden_size": size.hidden, "patch_size": 14,
            "neck_hidden_sizes": [48, 96], "reassemble_factors": [2, 1],
            "fusion_hidden_size": 64}  # fmt: skip


def whisper(size: Size) -> Fields:
    return translator("", "").fields(size) | {
        "num_mel_bins": 80, "max_source_positions": 128, "max_target_positions": 128,
        "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1,
    }  # fmt: skip


def spectrogram(size: Size) -> Fields:
    return patches(size, max_length=128, num_mel_bins=64)


def two_towers(size: Size) -> Fields:
    text = usual(size, projection_dim=size.hidden, pad_token_id=1, eos_token_id=2)
    return {"text_config": text, "vision_config": patches(size), "projection_dim": size.hidden}


def llava(size: Size) -> Fields:
    text = usual(size, model_type="llama", num_key_value_heads=size.shared)
    return {"text_config": text, "vision_config": patches(size, model_type="clip_vision_model"),
            "image_token_index": 3}  # fmt: skip


def vilt(size: Size) -> Fields:
    return usual(size, image_size=96, patch_size=16)


def layoutlmv3(size: Size) -> Fields:
    return usual(size, input_size=96, coordinate_size=size.hidden // 6, shape_size=size.hidden // 6)


def sentences(size: Size) -> Fields:
    return usual(size) | {"max_position_embeddings": 128}


CLIPPED = TOKENS | square(96)
FRAMES = Input(("batch", "frames", 80), "normal")

ROWS = (
    seen("vit", "ViT", inputs=square(96)),
    seen("vit-interpolated", "ViT", interpolate_pos_encoding=True),
    seen("vit-classified", "ViT", inputs=square(96), model="ForImageClassification",
         outputs=LOGITS),
    seen("deit", "DeiT", inputs=square(96)),
    seen("beit", "Beit", lambda s: patches(s, use_relative_position_bias=True), inputs=square(96)),
    seen("data2vec-vision", "Data2VecVision", inputs=square(96)),
    seen("dinov2", "Dinov2", lambda s: patches(s, patch_size=14, image_size=98),
         inputs=square(98)),
    seen("dinov2-registers", "Dinov2WithRegisters",
         lambda s: patches(s, patch_size=14, image_size=98), inputs=square(98)),
    seen("dinov3", "DINOv3ViT"),
    seen("ijepa", "IJepa", inputs=square(96)),
    seen("swin", "Swin", swin, inputs=square(224)),
    seen("swinv2", "Swinv2", swin, inputs=square(224)),
    seen("hiera", "Hiera", lambda s: {"embed_dim": s.hidden // 2, "image_size": [224, 224],
         "depths": [1, 1], "num_heads": [1, 2], "num_query_pool": 1}, inputs=square(224)),
    seen("convnext", "ConvNext", convnext),
    seen("convnextv2", "ConvNextV2", convnext),
    seen("resnet", "ResNet", stages),
    seen("regnet", "RegNet", lambda s: stages(s) | {"groups_width": 16}),
    seen("bit", "Bit", lambda s: stages(s) | {"num_groups": 8}),
    seen("mobilenet-v1", "MobileNetV1", lambda s: {"depth_multiplier": s.hidden / 768}),
    seen("mobilenet-v2", "MobileNetV2", lambda s: {"depth_multiplier": s.hidden / 768}),
    seen("mobilevit", "MobileViT", lambda s: {"hidden_sizes": [96, 120, 144]},
         inputs=square(128)),
    seen("mobilevitv2", "MobileViTV2", lambda s: {"width_multiplier": s.hidden / 768},
         inputs=square(96)),
    seen("efficientnet", "EfficientNet", lambda s: {
         "width_coefficient": s.hidden / 384, "depth_coefficient": 0.5,
         "hidden_dim": 640 * s.hidden // 192}),
    seen("segformer", "Segformer", segformer, model="ForSemanticSegmentation", outputs=LOGITS),
    seen("poolformer", "PoolFormer", convnext),
    seen("pvt", "Pvt", pvt, inputs=square(224)),
    seen("pvt-v2", "PvtV2", pvt),
    seen("cvt", "Cvt", lambda s: {"embed_dim": [s.hidden // 2, s.hidden], "num_heads": [1, 3],
         "depth": [1, 2], **{k: v[:2] for k, v in {
             "patch_sizes": [7, 3], "patch_stride": [4, 2], "patch_padding": [2, 1],
             "mlp_ratio": [4.0, 4.0], "attention_drop_rate": [0.0, 0.0], "drop_rate": [0.0, 0.0],
             "drop_path_rate": [0.0, 0.1], "qkv_bias": [True, True], "cls_token": [False, True],
             "qkv_projection_method": ["dw_bn", "dw_bn"], "kernel_qkv": [3, 3],
             "padding_kv": [1, 1], "stride_kv": [2, 2], "padding_q": [1, 1], "stride_q": [1, 1],
         }.items()}}),
    seen("levit", "Levit", lambda s: {"hidden_sizes": [s.hidden // 2, s.hidden, s.hidden],
         "depths": [1, 1, 1]}, inputs=square(224)),
    seen("focalnet", "FocalNet", lambda s: {"embed_dim": s.hidden // 2, "depths": [1, 1, 1, 1],
         "image_size": 224}),
    seen("swiftformer", "SwiftFormer", lambda s: {"embed_dims": pyramid(s)["widths"],
         "depths": [1, 1, 2, 1]}, inputs=square(224)),
    seen("dpt", "DPT", dpt, inputs=square(96), model="ForDepthEstimation",
         outputs=("predicted_depth",)),
    seen("depth-anything", "DepthAnything", depth_anything, inputs=square(98),
         model="ForDepthEstimation", outputs=("predicted_depth",)),
    seen("detr", "Detr", detr, model="ForObjectDetection", outputs=("logits", "pred_boxes")),
    seen("conditional-detr", "ConditionalDetr", detr, model="ForObjectDetection",
         outputs=("logits", "pred_boxes")),
    seen("vitpose", "VitPose", vitpose, model="ForPoseEstimation", outputs=("heatmaps",),
         inputs=square(96)),
    seen("yolos", "Yolos", lambda s: patches(s, image_size=[96, 96], num_detection_tokens=10),
         model="ForObjectDetection", outputs=("logits", "pred_boxes"), inputs=square(96)),
    seen("clip-vision", "CLIPVision", inputs=square(96)),
    seen("siglip-vision", "SiglipVision", inputs=square(96)),
    seen("videomae", "VideoMAE", lambda s: patches(s, num_frames=4),
         inputs={"pixel_values": Input(("batch", 4, 3, 96, 96), "normal")}),
    heard("wav2vec2", "Wav2Vec2"),
    heard("wav2vec2-stable", "Wav2Vec2", do_stable_layer_norm=True, feat_extract_norm="layer"),
    heard("wav2vec2-conformer", "Wav2Vec2Conformer", position_embeddings_type="rotary"),
    heard("hubert", "Hubert"),
    heard("wavlm", "WavLM"),
    heard("unispeech", "UniSpeech"),
    heard("data2vec-audio", "Data2VecAudio", conv_pos_kernel_size=9),
    heard("sew", "SEW", squeeze_factor=2, conv_dim=(64,) * 13),
    seen("wav2vec2-bert", "Wav2Vec2Bert", usual, kind="audio",
         inputs={"input_features": Input(("batch", "frames", 160), "normal")}),
    seen("whisper", "Whisper", whisper, model="ForConditionalGeneration", kind="audio",
         outputs=LOGITS, use_cache=False,
         inputs={"input_features": Input(("batch", 80, 256), "normal")} | TARGETS),
    seen("speech-to-text", "Speech2Text", lambda s: whisper(s) | {"input_feat_per_channel": 80},
         model="ForConditionalGeneration", kind="audio", outputs=LOGITS, use_cache=False,
         inputs={"input_features": FRAMES} | TARGETS),
    seen("audio-spectrogram", "AST", spectrogram, kind="audio",
         inputs={"input_values": Input(("batch", 128, 64), "normal")}),
    seen("moonshine", "Moonshine", lambda s: usual(s, encoder_num_hidden_layers=2,
         decoder_num_hidden_layers=2, encoder_num_attention_heads=s.heads,
         decoder_num_attention_heads=s.heads), model="ForConditionalGeneration", kind="audio",
         outputs=LOGITS, inputs=SOUND | TARGETS, use_cache=False),
    seen("clip", "CLIP", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("logits_per_image", "text_embeds", "image_embeds")),
    seen("siglip", "Siglip", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("logits_per_image", "text_embeds", "image_embeds")),
    seen("chinese-clip", "ChineseCLIP", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("text_embeds", "image_embeds")),
    seen("blip", "Blip", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("text_embeds", "image_embeds")),
    seen("vilt", "Vilt", vilt, inputs=CLIPPED, kind="multimodal"),
    seen("layoutlmv3", "LayoutLMv3", layoutlmv3, inputs=CLIPPED | BOXES, kind="multimodal"),
    seen("git", "Git", lambda s: usual(s, vision_config=patches(s)), model="ForCausalLM",
         inputs=CLIPPED, kind="multimodal", outputs=LOGITS, use_cache=False),
    seen("visual-bert", "VisualBert", lambda s: usual(s, visual_embedding_dim=64),
         inputs=TOKENS | {"visual_embeds": Input(("batch", "frames", 64), "normal")},
         kind="multimodal"),
)  # fmt: skip
