"""A small model of every family: each model type of the registry, and each builder without one.

The contract, saved folders and the comparisons with transformers run on these models. Most families
need no line here: a builder gets the entries of `SMALL` for which it has arguments, and the
arguments of its model type.
"""

import functools
import inspect
import json
import tempfile
from pathlib import Path

from keras_tfm import layers, models
from keras_tfm.model_types import MODEL_TYPES

TYPES = {x.name: x for x in MODEL_TYPES}
# By the name of a builder's argument; not for ids whose default is None.
SMALL = {
    "dim": 12, "num_layers": 2, "num_heads": 2, "intermediate_dim": 13, "dropout": 0.0,
    "head_dim": 8, "num_key_value_heads": 1, "embedding_dim": 6, "projection_dim": 9,
    "vocabulary_size": 31, "max_length": 17, "pad_id": 0, "end_id": 3,
    "image_size": 12, "patch_size": 4, "window": 4, "rotary_dim": 4,
}  # fmt: skip
BACKBONE = {"stem_dim": 6, "dims": (8, 7), "depths": (1, 2), "bottleneck": False}


def own_options():
    """What some families need besides: sizes of parts, and options that their paper has."""
    sizes = {x: SMALL[x] for x in ("dim", "num_layers", "num_heads", "intermediate_dim", "dropout")}
    dim = sizes["dim"]
    gemma2 = {"windows": [4, None], "query_pre_attention_scalar": 3, "final_logit_soft_cap": 4.0}
    granite = {
        "embedding_multiplier": 3.0, "attention_multiplier": 0.7, "residual_multiplier": 0.6,
        "logits_scaling": 2.5,
    }  # fmt: skip
    dinov2 = {"intermediate_dim": 2 * dim, "patch_size": (4, 6), "layer_scale": 0.7}
    images_in_texts = {
        "image": {**{x: y for x, y in sizes.items() if x != "dropout"}, "dim": 8},
        "patch_size": 2, "image_id": 30, "num_images": 2,
    }  # fmt: skip
    tiles = {**images_in_texts, "scale_factor": 3}
    routing = layers.Routing(5, 2)
    speech_encoder = {
        "feature_dims": [7, 5, 6], "feature_kernels": [10, 3, 2], "feature_strides": [5, 2, 3],
        "position_kernel": 4, "position_groups": 4, "classifier_dim": 8,
    }  # fmt: skip
    return {
        "deberta-v2": {"num_buckets": 4, "kernel_size": 3},
        "mobilebert": {"bottleneck_dim": 8, "num_feed_forward": 3, "attention_dropout": 0.0},
        "modernbert": {"dim": 2 * dim},
        "modernbert-decoder": {"num_layers": 3, "windows": [None, 4, 4], "local_rope_theta": 50.0},
        "mpnet": {"pad_id": 1},
        "gte": {"activation": "gelu", "activation_dropout": 0.0},
        "eurobert": {"pad_id": 0, "attention_bias": True},
        "gpt2": {"embedding_dim": None},
        # n_inner is unknown to transformers.
        "openai-gpt": {"embedding_dim": None, "intermediate_dim": 4 * dim},
        "opt": {"embedding_dim": 2 * dim},
        "gpt_neo": {"embedding_dim": None, "windows": [None, 4]},
        "mistral": {"windows": 4},
        "mixtral": {
            "experts": models.Experts(layers.Routing(3, 2), 16), "windows": 4,
        },
        "qwen2_moe": {
            "experts": models.Experts(
                layers.Routing(5, 2, normalize=False), 8, [False, True], 10, shared_gate=True
            ),
            "attention_bias": ["query", "key", "value"],
        },
        "qwen3_moe": {"experts": models.Experts(routing, 8)},
        "ministral": {"windows": [None, 4]},
        "arcee": {"activation": layers.squared_relu},
        "helium": {"head_dim": None},
        "ministral3": {"rope_scaling": layers.YaRNScaling(4.0, 3)},
        "gemma2": {**gemma2, "attention_logit_soft_cap": 2.0},
        "gemma3_text": {**gemma2, "local_rope_theta": 50.0},
        "gemma3_text, bidirectional": {"causal": False, "pad_id": 0},
        "gemma4_text": {
            "num_layers": 5, "windows": [4, None, 4, 4, None], "num_shared_layers": 3,
            "global_head_dim": 12, "global_num_key_value_heads": 2, "tied_values": True,
            "shared_intermediate_dim": 26, "layer_input_dim": 6, "rope_theta": 99.0,
            "local_rope_theta": 50.0, "final_logit_soft_cap": 4.0,
        },
        "granite": granite,
        "granitemoe": {"experts": models.Experts(routing, 8), **granite},
        "granitemoehybrid, experts": {"experts": models.Experts(routing, 8, shared_dim=10)},
        "granitemoehybrid": {
            "attends": [False, True], "mamba_heads": 6, "mamba_head_dim": 4, "state_dim": 5,
            "num_groups": 2, "kernel_size": 3, "rotary": True, **granite,
        },
        "falcon_h1": {
            "mamba_heads": 6, "mamba_head_dim": 5, "state_dim": 5, "num_groups": 2,
            "kernel_size": 3, "mamba_norm": "after_gate", "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.4, "key_multiplier": 0.7, "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8, "ssm_in_multiplier": 0.9, "ssm_out_multiplier": 1.1,
            "ssm_multipliers": [0.6, 1.3, 0.7, 1.2, 0.8], "mlp_multipliers": [0.5, 0.6],
        },
        "phi": {"head_dim": None},
        "gpt_neox": {"head_dim": None, "num_key_value_heads": None},
        "falcon": {"head_dim": None, "rotary_dim": 6, "tie_output": True},
        "bloom": {
            "num_heads": 4, "num_key_value_heads": None, "intermediate_dim": 4 * dim,
            "activation": layers.gelu_tanh, "max_length": 2048, "rotary_dim": None,
            "head_dim": None,
        },
        "gptj": {"head_dim": None, "num_key_value_heads": None},
        "codegen": {"head_dim": None, "num_key_value_heads": None},
        "stablelm": {"head_dim": None}, "olmo": {"head_dim": None, "rotary_dim": 6},
        "nemotron": {"activation": layers.squared_relu},
        "starcoder2": {"head_dim": None, "num_key_value_heads": 1, "rotary_dim": 6, "windows": 4},
        "mamba2": {
            "num_heads": 6, "head_dim": 4, "state_dim": 5, "num_groups": 2, "kernel_size": 3,
        },
        "cohere2": {"windows": [4, None]},
        "exaone4": {"windows": [4, None], "global_rotary": False},
        "olmo2": {"head_dim": None},
        "olmo3": {"head_dim": None, "windows": [4, None], "local_rope_theta": 500000.0},
        "lfm2": {"attends": [False, True], "head_dim": None},
        "lfm2_moe": {
            "attends": [False, True], "head_dim": None,
            "experts": models.Experts(
                layers.Routing(5, 2, "sigmoid", scale=1.7, selection_bias=True), 8, [False, True]
            ),
        },
        "lfm3": {
            "num_layers": 3, "attends": [False, True, True], "windows": [None, 4, None],
            "kernel_size": 7, "local_rope_theta": 50.0,
            "rope_scaling": layers.ProportionalScaling(part=0.5),
        },
        "qwen3_5_text": {
            "attends": [False, True], "delta_heads": 4, "delta_key_heads": 2, "delta_head_dim": 5,
            "delta_value_dim": 7,
        },
        "smollm3": {"rotary": [True, False], "windows": [None, 4]},
        "t5": {"gated": True, "num_buckets": 8},
        "mt5": {"gated": True, "num_buckets": 8, "tie_output": False},
        "umt5": {"gated": True, "num_buckets": 8, "tie_output": False},
        "t5gemma": {
            "windows": [4, None, 4], "num_layers": 3, "decoder_num_layers": 2, "start_id": 1,
            "decoder_windows": [None, 4], "query_pre_attention_scalar": 3, "decoder_dim": 16,
            "decoder_num_heads": 4, "attention_logit_soft_cap": 2.0, "final_logit_soft_cap": 4.0,
            "decoder_intermediate_dim": 14, "decoder_num_key_value_heads": 2,
        },
        "t5gemma2": {
            "windows": [4, None, 4], "num_layers": 3, "decoder_num_layers": 2, "start_id": 1,
            "decoder_windows": [None, 4], "query_pre_attention_scalar": 3, "rope_theta": 99.0,
            "decoder_num_heads": 4, "final_logit_soft_cap": 4.0, "local_rope_theta": 50.0,
            "decoder_intermediate_dim": 14, "decoder_num_key_value_heads": 2,
        },
        "marian": {"pad_id": 0},
        "transformer": {"source_vocabulary_size": 31, "target_vocabulary_size": 11},
        "whisper": {"num_mels": 6, "max_source_length": 5, "pad_id": 0, "start_id": 1},
        "moonshine_streaming": {
            "num_layers": 2, "windows": [(4, 3), (3, 1)], "decoder_dim": 12, "num_decoder_heads": 2,
            "decoder_intermediate_dim": 14, "num_key_value_heads": 1, "max_features": 60,
        },
        "whisper, features": {"audio": False},
        "wav2vec2": speech_encoder,
        "hubert": {
            **speech_encoder, "feature_norm": "layer", "feature_bias": True, "position_kernel": 5,
            "normalize_first": True,
        },
        "vision-encoder-decoder": {
            "image": {**{x: y for x, y in sizes.items() if x != "dropout"}, "dim": 8},
            "image_size": (8, 12), "max_length": 12,
        },
        "vit": {"image_size": (8, 12)},
        "dinov2": {"intermediate_dim": 2 * dim},
        "dinov3_vit": {"dim": 2 * dim, "patch_size": (4, 3), "max_wavelength": 50.0},
        "dinov2_with_registers": {**dinov2, "gated": True, "activation": "silu"},
        "depth_anything": {
            "position_size": 12, "intermediate_dim": 2 * dim,
            "num_layers": 5, "features_of": [0, 1, 3, 4], "reassemble_dims": [5, 4, 7, 6],
            "fusion_dim": 8, "head_dim": 3, "layer_scale": 0.7,
        },
        "resnet": {"image_size": (9, 12), "stem_dim": 6, "dims": (40, 48), "depths": (1, 2)},
        "detr": {
            "image_size": (33, 64), "num_classes": 3, "num_queries": 5, "backbone": BACKBONE,
            "frozen_batch_norm": False, "auxiliary_outputs": True,
        },
        "clip": {"image": sizes, "text": {**sizes, "dim": 2 * dim}},
        # transformers pads no texts: `LENGTH` of saved_folders.py.
        "siglip": {"image": sizes, "text": {**sizes, "dim": 2 * dim}, "max_length": 9},
        "siglip2": {
            "image": {**sizes, "naflex": True}, "text": {**sizes, "dim": 2 * dim},
            "max_length": 9,
        },
        "siglip_text_model": {"max_length": 9},
        "idefics3": tiles, "smolvlm": tiles,
        "lfm2_vl": {
            **images_in_texts, "downsample_factor": 3, "position_size": 8, "projector_dim": 10,
            "attends": [False, True],
        },
        # A window that hides a part of a picture from its last token.
        "gemma3": {
            **images_in_texts, "pool_size": 3, "windows": [3, None], "local_rope_theta": 50.0,
            "query_pre_attention_scalar": 3,
        },
        "dalle": {
            "text_vocabulary_size": 11, "image_vocabulary_size": 4, "text_length": 2,
            "grid": (2, 3), "kernel_size": 3, "masks": ["row", "convolution"],
        },
        "dvae": {
            "image_size": (8, 12), "dim": 24, "num_groups": 3, "num_blocks": 1, "code_dim": 5,
        },
        "flava_image_codebook": {
            "image_size": (16, 24), "dim": 24, "num_groups": 4, "num_blocks": 1,
        },
        "dvae_decoder": {
            "image_size": (8, 12), "dim": 10, "num_groups": 3, "num_blocks": 1, "code_dim": 5,
        },
        "lxmert": {
            "num_layers": 1, "num_visual_layers": 1, "num_cross_layers": 1, "region_dim": 11,
            "num_regions": 4, "region_mask": True,
        },
        "vilbert": {
            "num_layers": 1, "visual_dim": 2 * dim, "num_visual_layers": 1, "num_visual_heads": 4,
            "visual_intermediate_dim": 14, "co_attention_dim": 12, "num_co_attention_heads": 3,
            "text_schedule": (1,), "visual_schedule": (0,), "region_dim": 11, "num_regions": 4,
            "region_mask": True,
        },
        "evoformer": {
            "num_layers": 1, "pair_dim": 2 * dim, "num_pair_heads": 4, "outer_dim": 3,
            "pair_dropout": 0.0, "single_dim": 7, "num_sequences": 3, "num_residues": 5,
        },
        "evoformer, recycled": {
            "transition_factor": 2, "max_distance": 3, "num_recycles": 1, "num_extra_layers": 1,
            "extra_dim": dim, "num_extra_heads": 2, "num_extra_sequences": 2,
        },
        "evoformer, features": {"feature_dim": 2, "residue_index": True},
    }  # fmt: skip


def is_builder(function):
    """Of the functions in `keras_tfm.models`: the others change a model or add a head to it."""
    return inspect.isfunction(function) and next(iter(inspect.signature(function).parameters)) != (
        "model"
    )


BUILDERS = [name for name in models.__all__ if is_builder(getattr(models, name))]
NAMES = [
    *TYPES,
    *sorted(set(BUILDERS) - {x.builder for x in MODEL_TYPES} - {"evoformer"}),
    *(name for name in own_options() if "," in name),
]


def builder_of(name):
    """The name of the builder of one of `NAMES`."""
    family = name.partition(",")[0]
    return TYPES[family].builder if family in TYPES else family


def arguments_of(name):
    """The arguments of the builder of one of `NAMES`: an `inspect.Parameter` by name."""
    return inspect.signature(getattr(models, builder_of(name))).parameters


def small_model(name, **options):
    """The model of one of `NAMES`; `options` go to its builder."""
    family = name.partition(",")[0]
    known, own = arguments_of(name), own_options()
    small = {
        key: x
        for key, x in SMALL.items()
        if key in known and not (key.endswith("_id") and known[key].default is None)
    }
    arguments = TYPES[family].arguments if family in TYPES else {}
    build = getattr(models, builder_of(name))
    return build(**{**small, **arguments, **own.get(family, {}), **own.get(name, {}), **options})


@functools.cache
def head_config():
    """A `config.json` of heads alone."""
    from keras_tfm.checkpoints.config import Config

    with tempfile.TemporaryDirectory() as folder:
        labels = {str(i): f"class {i}" for i in range(4)}
        (Path(folder) / "config.json").write_text(json.dumps({"id2label": labels}))
        return Config(Path(folder))


def with_head(model_type, architecture, **options):
    """The small model of a model type with the head of a class of transformers."""
    from keras_tfm.checkpoints.huggingface import FAMILIES

    decoder = TYPES[model_type].kind == "decoder"
    if decoder and architecture.endswith("ForSequenceClassification"):
        options = {"pad_id": 0, **options}
    make = FAMILIES[model_type].architectures[architecture].make
    return make(small_model(model_type, **options), head_config())
