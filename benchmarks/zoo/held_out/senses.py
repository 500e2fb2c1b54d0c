"""Held-out networks that see, hear, read beside these, or forecast series."""

from benchmarks.zoo.architecture import Architecture, Fields, Input, Size
from benchmarks.zoo.senses import (
    CLIPPED,
    LOGITS,
    SOUND,
    heard,
    patches,
    pyramid,
    seen,
    square,
    swin,
    two_towers,
)
from benchmarks.zoo.text import TARGETS, TOKENS, translator, usual

PIECES = ("pred_boxes", "logits")
TWO_PICTURES = {"pixel_values": Input((2, 3, "height", "width"), "normal")}
"""For networks that loop over their pictures. Exporters unroll that: a file takes as many pictures
as it was exported with."""
VIDEO = {"pixel_values": Input(("batch", 4, 3, 96, 96), "normal")}


def clipseg(size: Size) -> Fields:
    return two_towers(size) | {"extract_layers": [0, 1], "reduce_dim": size.depth}


def groupvit(size: Size) -> Fields:
    vision = patches(size, depths=[1, 1], num_group_tokens=[8, 0], num_output_groups=[8, 8])
    return two_towers(size) | {"vision_config": vision, "projection_intermediate_dim": size.hidden}


def glpn(size: Size) -> Fields:
    return {"hidden_sizes": pyramid(size)["widths"], "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 3, 3], "decoder_hidden_size": size.depth}  # fmt: skip


def hgnet(size: Size) -> Fields:
    widths = pyramid(size)["widths"]
    return {
        "embedding_size": 32, "hidden_sizes": widths, "depths": [1, 1, 1, 1],
        "stem_channels": [3, 16, 32], "stage_in_channels": [32, *widths[:-1]],
        "stage_mid_channels": [16, 32, 48, 64], "stage_out_channels": widths,
        "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2],
    }  # fmt: skip


def rt_detr(size: Size) -> Fields:
    """Few queries: with random weights the scores that choose them are otherwise so close that
    rounding decides their order."""
    backbone = {"model_type": "rt_detr_resnet", "embedding_size": 32, "layer_type": "basic",
                "hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1],
                "out_features": ["stage2", "stage3", "stage4"]}  # fmt: skip
    return {
        "backbone_config": backbone, "use_timm_backbone": False, "backbone": None,
        "encoder_in_channels": [64, 96, 128], "encoder_hidden_dim": size.hidden,
        "d_model": size.hidden, "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads, "encoder_ffn_dim": size.inner,
        "decoder_ffn_dim": size.inner, "decoder_layers": size.layers, "num_queries": 4,
        "num_denoising": 0, "decoder_in_channels": [size.hidden] * 3, "num_labels": 11,
    }  # fmt: skip


def sam_vision(size: Size) -> Fields:
    return patches(size, image_size=128, output_channels=64, window_size=3,
                   global_attn_indexes=[1])  # fmt: skip


def zoedepth(size: Size) -> Fields:
    backbone = patches(size, model_type="beit", num_hidden_layers=4, reshape_hidden_states=False,
                       out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
    return {"backbone_config": backbone, "neck_hidden_sizes": pyramid(size)["widths"],
            "fusion_hidden_size": 64, "bottleneck_features": 64,
            "num_relative_features": 16}  # fmt: skip


def trocr(size: Size) -> Fields:
    return translator("", "").fields(size) | {"cross_attention_hidden_size": size.hidden}


def vits(size: Size) -> Fields:
    return usual(size) | {"ffn_dim": size.inner, "flow_size": size.hidden,
                          "spectrogram_bins": 65, "upsample_initial_channel": 64,
                          "use_stochastic_duration_prediction": False, "noise_scale": 0.0,
                          "noise_scale_duration": 0.0}  # fmt: skip


def clap(size: Size) -> Fields:
    return {"spec_size": 128, "num_mel_bins": 32, "patch_embeds_hidden_size": 48, "depths": [1, 1],
            "num_attention_heads": [2, 4], "hidden_size": 96, "window_size": 4,
            "projection_dim": 64}  # fmt: skip


def bark(size: Size) -> Fields:
    return {"block_size": 256, "input_vocab_size": 1024, "output_vocab_size": 1024,
            "num_layers": size.layers, "num_heads": size.heads,
            "hidden_size": size.hidden}  # fmt: skip


def series(size: Size, **others: object) -> Fields:
    return {
        "num_input_channels": 5, "context_length": 64, "prediction_length": 16, "patch_length": 8,
        "patch_stride": 8, "d_model": size.hidden, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "ffn_dim": size.inner, **others,
    }  # fmt: skip


PAST_VALUES = {"past_values": Input(("batch", 64, 5), "normal")}
ROWS = (
    seen("timesformer", "Timesformer", lambda s: patches(s, num_frames=4), inputs=VIDEO),
    seen("vivit", "Vivit", lambda s: patches(s, num_frames=4, tubelet_size=[2, 16, 16]),
         inputs=VIDEO),
    seen("vit-msn", "ViTMSN", inputs=square(96)),
    seen("vitdet", "VitDet", lambda s: patches(s, window_size=3, window_block_indices=[0]),
         inputs=square(96)),
    seen("mgp-str", "Mgpstr", lambda s: patches(s, image_size=[32, 128], patch_size=4),
         inputs={"pixel_values": Input(("batch", 3, 32, 128), "normal")}),
    seen("donut-swin", "DonutSwin", swin, inputs=square(224)),
    seen("swin2sr", "Swin2SR", lambda s: {"image_size": 64, "embed_dim": 96, "depths": [1, 1],
         "num_heads": [3, 3], "window_size": 8}, model="ForImageSuperResolution",
         outputs=("reconstruction",), inputs=square(64)),
    seen("textnet", "TextNet"),
    seen("hgnet-v2", "HGNetV2", hgnet, model="ForImageClassification", outputs=LOGITS),
    seen("dinov3-convnext", "DINOv3ConvNext", lambda s: {
         "hidden_sizes": pyramid(s)["widths"], "depths": [1, 1, 1, 1]}),
    seen("aimv2-vision", "Aimv2Vision", inputs=square(96)),
    seen("pixtral-vision", "PixtralVision", inputs=TWO_PICTURES),
    seen("glpn", "GLPN", glpn, model="ForDepthEstimation", outputs=("predicted_depth",)),
    seen("zoedepth", "ZoeDepth", zoedepth, model="ForDepthEstimation",
         outputs=("predicted_depth",), inputs=square(96)),
    seen("rt-detr", "RTDetr", rt_detr, model="ForObjectDetection", outputs=PIECES,
         inputs=square(128)),
    seen("sam-vision", "SamVision", sam_vision, inputs=square(128)),
    seen("superpoint", "SuperPoint", model="ForKeypointDetection", outputs=("keypoints",),
         inputs=TWO_PICTURES),
    Architecture("imagegpt", "vision", "ImageGPTForCausalImageModeling", "ImageGPTConfig", usual,
                 {"input_ids": TOKENS["input_ids"]}, LOGITS, given={"use_cache": False}),
    Architecture("trocr", "decoder", "TrOCRForCausalLM", "TrOCRConfig", trocr,
                 TOKENS | {"encoder_hidden_states": Input(("batch", "target", 192), "normal")},
                 LOGITS, given={"use_cache": False}),
    heard("unispeech-sat", "UniSpeechSat"),
    heard("sew-d", "SEWD", squeeze_factor=2, conv_dim=(64,) * 13),
    seen("univnet", "UnivNet", lambda s: {"model_hidden_channels": 16, "model_in_channels": 64,
         "num_mel_bins": 20}, kind="audio", outputs=("waveforms",), inputs={
         "input_features": Input(("batch", "frames", 20), "normal"),
         "noise_sequence": Input(("batch", "frames", 64), "normal")}),
    seen("encodec", "Encodec", lambda s: {"num_filters": 8, "hidden_size": 32, "codebook_size": 64,
         "codebook_dim": 32, "upsampling_ratios": [4, 2], "target_bandwidths": [24.0]},
         kind="audio", outputs=("audio_values",), inputs={
         "input_values": Input(("batch", 1, "samples"), "normal")}),
    seen("dac", "Dac", lambda s: {"encoder_hidden_size": 16, "decoder_hidden_size": 64,
         "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2], "n_codebooks": 3,
         "codebook_size": 64}, kind="audio", outputs=("audio_values",), inputs={
         "input_values": Input(("batch", 1, "samples"), "normal")}),
    seen("mimi", "Mimi", lambda s: usual(s, num_filters=16, codebook_size=64, num_quantizers=4,
         sliding_window=16, codebook_dim=64, vector_quantization_hidden_dimension=64,
         upsampling_ratios=[4, 2], head_dim=s.depth, upsample_groups=s.hidden,
         num_key_value_heads=s.heads), kind="audio", outputs=("audio_values",),
         inputs={"input_values": Input(("batch", 1, "samples"), "normal")}),
    seen("vits", "Vits", vits, kind="audio", outputs=("waveform",), inputs=TOKENS),
    seen("speecht5", "SpeechT5", lambda s: translator("", "").fields(s) | {
         "hidden_size": s.hidden, "max_text_positions": 512, "conv_dim": (64,) * 7,
         "max_speech_positions": 512}, model="ForSpeechToText", kind="audio", outputs=LOGITS,
         inputs=SOUND | TARGETS, use_cache=False),
    seen("clap-audio", "ClapAudio", clap, model="ModelWithProjection", kind="audio",
         outputs=("audio_embeds",), inputs={
         "input_features": Input(("batch", 1, 128, 32), "normal")}),
    seen("bark-semantic", "BarkSemantic", bark, kind="audio", outputs=LOGITS, inputs=TOKENS,
         use_cache=False),
    seen("fastspeech2-conformer", "FastSpeech2Conformer", lambda s: {"hidden_size": s.hidden,
         "vocab_size": s.vocabulary, "encoder_layers": 2, "decoder_layers": 2,
         "num_mel_bins": 20}, kind="audio", outputs=("spectrogram",), inputs=TOKENS),
    seen("clipseg", "CLIPSeg", clipseg, model="ForImageSegmentation", inputs=CLIPPED,
         kind="multimodal", outputs=LOGITS),
    seen("groupvit", "GroupViT", groupvit, inputs=CLIPPED, kind="multimodal",
         outputs=("text_embeds", "image_embeds")),
    seen("owlvit", "OwlViT", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("text_embeds", "image_embeds")),
    seen("altclip", "AltCLIP", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("text_embeds", "image_embeds")),
    seen("metaclip-2", "MetaClip2", two_towers, inputs=CLIPPED, kind="multimodal",
         outputs=("text_embeds", "image_embeds")),
    seen("patchtst", "PatchTST", series, model="ForPrediction", kind="series",
         outputs=("prediction_outputs",), inputs=PAST_VALUES),
    seen("patchtsmixer", "PatchTSMixer", series, model="ForPrediction", kind="series",
         outputs=("prediction_outputs",), inputs=PAST_VALUES),
    seen("timesfm", "TimesFm", lambda s: usual(s, patch_length=8, context_length=64,
         horizon_length=16, head_dim=s.depth), kind="series", inputs={
         "past_values": Input(("batch", 64), "normal"),
         "past_values_padding": Input(("batch", 64), "float zeros"),
         "freq": Input(("batch", 1), "zeros")}),
    seen("decision-transformer", "DecisionTransformer", lambda s: usual(s, state_dim=17,
         act_dim=4, max_ep_len=512), kind="series", outputs=("action_preds", "state_preds"),
         inputs={"states": Input(("batch", "length", 17), "normal"),
                 "actions": Input(("batch", "length", 4), "normal"),
                 "rewards": Input(("batch", "length", 1), "normal"),
                 "returns_to_go": Input(("batch", "length", 1), "normal"),
                 "timesteps": Input(("batch", "length"), "tokens", below=500),
                 "attention_mask": TOKENS["attention_mask"]}),
)  # fmt: skip
