"""Saves models of every family, with noise on every weight, and what they answer.

`python tests/saved_folders.py FOLDER [WORD...]`: a folder for each model of which the name contains
one of the words, for `read_by_transformers.py`, which any version of transformers can run.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from compare import to_numpy
from families import SMALL, TYPES, arguments_of, with_head
from keras_weights import randomize

from keras_tfm import layers, models
from keras_tfm.checkpoints import save_huggingface
from keras_tfm.checkpoints.huggingface import FAMILIES

# Texts of 9 tokens: longer than the lengths that scalings were trained for, and than the windows.
LENGTH, VOCABULARY, LAST = 9, SMALL["vocabulary_size"], SMALL["end_id"]
SCALINGS = {
    "linear": layers.LinearScaling(3.0),
    "llama3": layers.Llama3Scaling(4.0, 16),
    "yarn": layers.YaRNScaling(4.0, 8),
    "yarn in full": layers.YaRNScaling(4.0, 8, 16.0, 0.5, attention_factor=1.5, truncate=False),
}
# What transformers computes: of features, with boxes of the last block alone, of all regions.
READ = {
    "whisper": {"audio": False},
    "detr": {"auxiliary_outputs": False},
    "lxmert": {"region_mask": False},
}
# Of images and texts: an encoder, and decoders other than TrOCR's.
IMAGES = {"dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 13}
GPT2 = {"normalize_first": True, "embedding_norm": False, "position_offset": 0}
BERT = {
    "position_offset": 0, "num_segments": 2, "activation": "relu", "head_activation": "relu",
    "layer_norm_epsilon": 1e-3,
}  # fmt: skip
# More options of some families, by the name of the model.
OPTIONS = {
    "deberta-v2, other options": {
        "absolute_positions": True, "num_buckets": None, "max_distance": 6,
        "position_projections": True, "num_segments": 2,
    },
    "mobilebert, queries of the bottleneck, layer norms": {
        "query_key_bottleneck": False, "layer_norm": True, "num_feed_forward": 1, "trigram": False,
    },
    "mobilebert, no bottleneck, pooler or projection": {
        "bottleneck_dim": None, "trigram": False, "embedding_dim": 12, "pooler_dense": False,
        "architecture": "MobileBertForSequenceClassification",
    },
    "gpt2, scaled by layer": {"scale_scores_by_layer": True, "tie_output": False},
    "opt, post-norm, untied": {
        "normalize_first": False, "tie_output": False, "activation": "gelu",
    },
    "opt, one width, no biases": {
        "embedding_dim": None, "attention_bias": False, "feed_forward_bias": False,
    },
    "qwen2, windows": {"windows": [None, 4]},
    "qwen2, bidirectional, version 5": {"causal": False, "pad_id": 0, "windows": [None, 4]},
    "qwen3, tied": {"tie_output": True},
    "ernie4_5, biases, untied": {
        "attention_bias": True, "feed_forward_bias": True, "tie_output": False,
    },
    "ministral3, windows, no factor of queries, tied": {
        "windows": 4, "query_beta": 0.0, "tie_output": True,
    },
    "hunyuan_v1_dense, alpha, biases, tied": {
        "attention_bias": True, "tie_output": True, "rope_scaling": layers.NTKScaling(50.0),
    },
    "helium, biases, tied": {
        "attention_bias": ["query", "key", "value"], "feed_forward_bias": True, "tie_output": True,
    },
    "arcee, biases, tied": {
        "attention_bias": True, "feed_forward_bias": True, "tie_output": True,
    },
    "ministral, all windows": {"windows": [4, 4]},
    "llama, biases": {"attention_bias": True, "feed_forward_bias": True},
    "lfm2, biases, untied": {"convolution_bias": True, "kernel_size": 4, "tie_output": False},
    "lfm3, biases, untied, plain": {
        "convolution_bias": True, "attention_bias": True, "tie_output": False, "post_norm": False,
        "attention_gate": False, "rope_scaling": None, "local_rope_theta": None, "kernel_size": 4,
        "windows": 3,
    },
    "lfm3, no windows": {"windows": None, "attention_bias": True},
    "granitemoehybrid, biases, limits, no positions": {
        "rotary": False, "attention_bias": True, "mamba_bias": True, "convolution_bias": False,
        "time_step_limit": (0.3, 0.9), "tie_output": True, "mamba_heads": 3, "mamba_head_dim": 8,
        "num_groups": 1, "activation": "gelu",
    },
    "falcon_h1, biases, limits, norm before the gate, tied": {
        "attention_bias": True, "mamba_bias": True, "convolution_bias": False,
        "feed_forward_bias": True, "time_step_limit": (0.3, 0.9), "tie_output": True,
        "mamba_norm": "before_gate", "mamba_heads": 3, "num_groups": 1, "activation": "gelu",
    },
    "falcon_h1, no norm, a bias of the output, negative and integer factors": {
        "mamba_norm": None, "mamba_bias": ["output_projection"], "embedding_multiplier": 3,
        "lm_head_multiplier": 1, "key_multiplier": -0.7, "attention_in_multiplier": -1,
        "ssm_out_multiplier": -0.5, "ssm_multipliers": [1, -2, 0, 1, 1], "mlp_multipliers": [2, -1],
        "time_step_limit": (0, 1),
    },
    "glm, whole heads, no biases, tied": {
        "rotary_dim": None, "attention_bias": False, "tie_output": True,
    },
    "mamba2, biases, limits, tied": {
        "use_bias": True, "convolution_bias": False, "time_step_limit": (0.3, 0.9),
        "tie_output": True, "num_heads": 3, "head_dim": 8, "num_groups": 1,
    },
    "gemma3_text, no windows": {"windows": None},
    "gemma3_text, bidirectional": {"causal": False, "pad_id": 0, "windows": [4, None]},
    "llama, longrope": {
        "rope_scaling": layers.LongRoPEScaling(4.0, 16, [1.0, 1.1, 1.4, 2.0], [8.0] * 4),
    },
    "phi3, longrope": {"rope_scaling": layers.LongRoPEScaling(17 / 16, 16, [1.1, 2.0], [8.0] * 2)},
    "phi3, whole heads, long texts": {
        "rotary_dim": None, "long_texts": True, "rope_scaling": layers.LongRoPEScaling(
            4.0, 8, [1.0] * 3, [1.1, 9.0, 40.0], attention_factor=1.5,
        ),
    },
    "gemma4_text, plain": {
        "num_layers": 2, "windows": [4, None], "num_shared_layers": 0, "tied_values": False,
        "layer_input_dim": None, "shared_intermediate_dim": None, "final_logit_soft_cap": None,
        "global_num_key_value_heads": None, "attention_bias": True, "rope_scaling": None,
        "tie_output": False,
    },
    "gpt_neox, one after the other": {"parallel": False, "attention_bias": False},
    "gpt_neox, whole heads, tied": {"rotary_dim": 6, "tie_output": True},
    "phi, whole heads, tied": {
        "rotary_dim": 6, "tie_output": True, "num_key_value_heads": None,
    },
    "falcon, two norms, untied": {
        "parallel": True, "num_heads": 4, "num_key_value_heads": 2, "rotary_dim": 4,
        "tie_output": False, "dim": 16,
    },
    "falcon, one norm, grouped": {
        "num_heads": 4, "num_key_value_heads": 2, "dim": 16, "rotary_dim": 4,
    },
    "falcon, as many keys": {"num_key_value_heads": None},
    "ministral, no windows": {"windows": [None, None]},
    "bloom, untied, three heads": {"tie_output": False, "num_heads": 3},
    "gptj, whole heads, tied": {"rotary_dim": 6, "tie_output": True},
    "codegen, tied": {"tie_output": True},
    "stablelm, parallel, biases, norms of heads, tied": {
        "parallel": "one_residual", "attention_bias": ["query", "key", "value"], "num_heads": 6,
        "head_norm": True, "num_key_value_heads": 2, "tie_output": True, "rotary_dim": 2,
    },
    "nemotron, biases, tied": {
        "attention_bias": True, "feed_forward_bias": True, "tie_output": True,
    },
    "olmo, biases, tied": {"attention_bias": True, "tie_output": True},
    "starcoder2, no windows or biases, tied": {
        "windows": None, "attention_bias": False, "feed_forward_bias": False, "tie_output": True,
    },
    "modernbert-decoder, no windows, untied": {
        "windows": None, "tie_output": False, "output_bias": False,
    },
    "olmo3, two wavelengths, version 5": {"local_rope_theta": 50.0},
    "exaone4, no windows, tied": {"windows": None, "global_rotary": True, "tie_output": True},
    "exaone4, no positions": {"windows": None},
    "cohere2, no windows, untied": {"windows": None, "tie_output": False},
    "t5, plain, untied": {"gated": False, "tie_output": False, "activation": "gelu"},
    "umt5, plain, tied": {"gated": False, "tie_output": True, "end_id": 5},
    "t5gemma2, no windows, scaled": {
        "windows": 5, "decoder_windows": None, "rope_scaling": layers.LinearScaling(3.0),
        "attention_bias": True,
    },
    "marian, two vocabularies": {"target_vocabulary_size": VOCABULARY},
    "marian, two sizes, version 5": {"target_vocabulary_size": 37},
    "vit, without biases": {"attention_bias": False},
    "dinov3_vit, gated, with all biases": {
        "gated": True, "activation": "silu", "attention_bias": True, "num_registers": 0,
        "image_size": (8, 15),
    },
    "dinov3_vit, without biases": {"attention_bias": False, "drop_path": 0.2},
    "detr, frozen": {"frozen_batch_norm": True},
    "depth_anything, metric": {"metric": True, "max_depth": 20.0},
    "resnet, bottleneck": {"bottleneck": True},
    "vision-encoder-decoder, TrOCR of sinusoids and a projection, DeiT": {
        "learned_positions": False, "position_offset": 1, "embedding_norm": False,
        "scale_embedding": True, "tie_output": False, "activation": "relu",
        "image_projection": True, "image": {**IMAGES, "distillation_token": True},
    },
    "vision-encoder-decoder, TrOCR of one width": {
        "image": {**IMAGES, "dim": 12, "attention_bias": False, "activation": "relu"},
    },
    "vision-encoder-decoder, GPT-2": {**GPT2, "image_projection": True},
    "vision-encoder-decoder, GPT-2 of one width, untied": {
        **GPT2, "tie_output": False, "image": {**IMAGES, "dim": 12},
    },
    "vision-encoder-decoder, BERT": {**BERT, "image_projection": True},
    "vision-encoder-decoder, RoBERTa": {
        **BERT, "position_offset": 1, "num_segments": 1, "head_activation": "gelu",
        "image": {**IMAGES, "dim": 12},
    },
    "smolvlm, one image": {"num_images": None, "tie_output": True, "attention_bias": True},
    "lfm2_vl, another shape, one image, biases, untied": {
        "image_size": (12, 6), "num_images": None, "projector_norm": False, "projector_bias": False,
        "convolution_bias": True, "tie_output": False, "projector_activation": "relu",
    },
    "gemma3, one image, biases, untied, no windows": {
        "num_images": None, "tie_output": False, "attention_bias": True, "windows": None,
    },
    "wav2vec2, layer norms": {
        "feature_norm": "layer", "feature_bias": True, "position_kernel": 5,
        "normalize_first": True,
    },
    "wav2vec2, pre-norm, plain samples": {
        "normalize_first": True, "normalize_audio": False, "feature_activation": "relu",
    },
    "hubert, group norm": {
        "feature_norm": "group", "feature_bias": False, "position_kernel": 4,
        "normalize_first": False,
    },
    "siglip2, another shape": {
        "image": {
            **{x: SMALL[x] for x in ("dim", "num_layers", "num_heads", "intermediate_dim")},
            "naflex": True, "position_size": 12,
        },
        "image_size": (8, 16),
    },
    "siglip2_vision_model, another shape": {"position_size": 12, "image_size": (8, 16)},
    "siglip2_vision_model, other options": {"architecture": "Siglip2VisionModel"},
    "siglip_vision_model, other options": {
        "pooling": False, "architecture": "SiglipVisionModel", "image_size": 13,
    },
}  # fmt: skip


def architecture_of(model_type):
    """The class with the most heads and fields; of a model that generates, the one that does."""
    known = FAMILIES[model_type].architectures
    if TYPES[model_type].kind in ("decoder", "encoder-decoder"):
        return next(iter(known))
    return max(known, key=lambda name: len(known[name].prefixes))


def small(model_type, architecture=None, **options):
    """The small model of a type with the head of a class, which transformers can read."""
    architecture = architecture or architecture_of(model_type)
    pooled = "pooler" in arguments_of(model_type) and not model_type.startswith("dino")
    if pooled and architecture == FAMILIES[model_type].base:
        options = {"pooler": True, **options}
    return with_head(model_type, architecture, **{**READ.get(model_type, {}), **options})


# Types whose configuration has no scaling of positions, with a builder that takes one.
UNSCALED = ("bloom", "gptj", "codegen")


def scalings_of(model_type):
    """The names of the scalings that a builder takes, if it takes any."""
    if model_type in UNSCALED:
        return {}
    scaling = arguments_of(model_type).get("rope_scaling")
    return SCALINGS if scaling is not None and scaling.annotation is Any else {}


def version_of(name, scaling):
    """Version 4 of transformers knows no scaling of OLMo 2's positions but the linear one."""
    return ", version 5" if name == "olmo2" and scaling != "linear" else ""


def encoder_classifier(model_type, head):
    """A classifier on the encoder alone."""
    model = models.encoder(small(model_type))
    return getattr(models, head)(model, 4, labels=[f"class {i}" for i in range(4)])


CASES = {
    **{
        f"t5gemma, {head}, encoder": partial(encoder_classifier, "t5gemma", head)
        for head in ("sequence_classifier", "token_classifier")
    },
    **{
        f"{name}, {architecture}": partial(small, name, architecture)
        for name, family in FAMILIES.items()
        for architecture in family.architectures
    },
    **{
        f"{name}, {scaling}{version_of(name, scaling)}": partial(
            small, name, rope_scaling=SCALINGS[scaling]
        )
        for name in FAMILIES
        for scaling in scalings_of(name)
        # transformers reads `truncate` in no configuration by layer type.
        if scaling != "yarn in full" or name not in ("gemma3_text", "lfm3", "olmo3", "t5gemma2")
        if scaling != "linear" or name != "ministral3"  # which scales queries by a length
    },
    **{name: partial(small, name.partition(",")[0], **x) for name, x in OPTIONS.items()},
}


def inputs_of(model):
    """Random inputs of a model, by their names."""
    rng, given = np.random.default_rng(1), model.arguments
    ids = rng.integers(4, VOCABULARY - 2, (3, LENGTH)).astype("int32")
    ids[:, -1] = LAST
    target = rng.integers(4, VOCABULARY - 2, (3, 6)).astype("int32")
    frames = 2 * given.get("max_source_length", 1)
    samples = 3200 if model.family == "moonshine_streaming" else 3001  # whole frames
    sizes = next((x.shape[1:] for x in model.inputs if x.name == "pixels"), ())
    if "image_id" in given:
        return with_images(model, rng)
    arrays = {
        "tokens": ids,
        "segments": (np.arange(LENGTH) > 4).astype("int32")[None].repeat(3, 0),
        "source": ids,
        "target": target,
        "features": rng.normal(size=(3, frames, given.get("num_mels", 1))).astype("float32"),
        "audio": rng.uniform(-0.5, 0.5, (3, samples)).astype("float32"),
        "region_features": rng.normal(size=(3, 4, given.get("region_dim", 1))).astype("float32"),
        "region_boxes": rng.uniform(size=(3, 4, 4)).astype("float32"),
        "pixels": rng.integers(0, 256, (3, *sizes)).astype("float32"),
    }
    return {x.name: arrays[x.name] for x in model.inputs}


def with_images(model, rng):
    """Rows with two images, with one and with none; images of padding are noise."""
    given, length = model.arguments, model.get_layer("connector").output.shape[1]
    pixels = rng.integers(0, 256, (3, *model.input["pixels"].shape[1:]))
    target = rng.integers(4, VOCABULARY - 2, (3, 2 * length + 5)).astype("int32")
    target[0, 1 : length + 1] = target[1, 3 : length + 3] = given["image_id"]
    if given["num_images"] is not None:
        target[0, length + 2 : -3] = given["image_id"]
    return {"pixels": pixels.astype("float32"), "target": target}


def patches_of(pixels, size, more=0):
    """The inputs of NaFlex for pixels (B, C, H, W): patches, `more` of padding, mask and shapes."""
    count, channels, height, width = pixels.shape
    rows, columns = height // size, width // size
    x = pixels.reshape(count, channels, rows, size, columns, size).transpose(0, 2, 4, 3, 5, 1)
    x = x.reshape(count, rows * columns, -1)
    return {
        "pixel_values": np.pad(x, ((0, 0), (0, more), (0, 0))),
        "pixel_attention_mask": np.pad(np.ones(x.shape[:2], "int32"), ((0, 0), (0, more))),
        "spatial_shapes": np.tile(np.array([[rows, columns]], "int32"), (count, 1)),
    }


def to_theirs(model, inputs):
    """The inputs as transformers takes them."""
    names = {
        "tokens": "input_ids",
        "source": "input_ids",
        "segments": "token_type_ids",
        "target": "decoder_input_ids",
        "audio": "input_values",
        "region_features": "visual_feats",
        "region_boxes": "visual_pos",
    }
    result, given = {}, model.arguments
    for name, x in inputs.items():
        if name == "pixels":
            mean, std = (np.array(given[f"image_{key}"]) for key in ("mean", "std"))
            pixels = np.moveaxis((x / 255 - mean) / std, -1, -3)
            if "image_id" in given:
                pixels = pixels if x.ndim == 5 else pixels[:, None]
                length = model.get_layer("connector").output.shape[1]
                count = np.sum(inputs["target"] == given["image_id"], axis=1)
                used = np.arange(pixels.shape[1]) < count[:, None] // length
                if model.family == "smolvlm":  # transformers leaves out images of zeros
                    pixels[~used] = 0
                else:
                    pixels = pixels[used]
            result["pixel_values"] = pixels
            if (
                model.family == "lfm2_vl"
                or given.get("naflex")
                or (given.get("image") or {}).get("naflex")
            ):
                result |= patches_of(result["pixel_values"], given["patch_size"])
        elif name == "target" and "image_id" in given:
            result["input_ids"] = x
            if model.family == "gemma3":
                result["token_type_ids"] = (x == given["image_id"]).astype("int32")
        elif name == "features":
            result["input_features"] = x.transpose(0, 2, 1)
        elif name == "audio" and given.get("normalize_audio"):
            x = x.astype("float64")
            mean, variance = (f(axis=1, keepdims=True) for f in (x.mean, x.var))
            result["input_values"] = (x - mean) / np.sqrt(variance + 1e-7)
        else:
            result[names[name]] = x
    if model.family == "moonshine_streaming":  # without a mask, transformers has no windows
        result["attention_mask"] = np.ones(inputs["audio"].shape, "int32")
    if model.head is not None and model.head.kind == "multiple_choice":
        result = {name: x[None] for name, x in result.items()}  # one question, a choice a row
    return {
        name: x.astype("int64" if x.dtype == "int32" else "float32") for name, x in result.items()
    }


def outputs_of(model, inputs):
    """A model's outputs by their names in transformers."""
    family = model.family
    found = model(inputs if isinstance(model.input, dict) else next(iter(inputs.values())))
    kind = None if model.head is None else model.head.kind
    alone = "last_hidden_state" if kind in (None, "encoder") else "logits"
    if family == "dvae_encoder":
        alone = "logits"
    elif kind == "depth_estimator":
        alone = "predicted_depth"
    elif kind == "visual_question_answering":
        alone = "question_answering_score"
    elif kind == "embedding":
        alone = "image_embeds" if family == "clip_image" else "text_embeds"
    names = {
        "features": "language_output" if family == "lxmert" else "last_hidden_state",
        "visual_features": "vision_output",
        "pooled": "pooled_output" if family == "lxmert" else "pooler_output",
        "tokens": "prediction_logits",
        "next_sentence": "sop_logits" if family == "albert" else "seq_relationship_logits",
        "start": "start_logits",
        "end": "end_logits",
        "boxes": "pred_boxes",
        "logits": "logits",
        "answers": "question_answering_score",
        "matching": "cross_relationship_score",
        "image_embedding": "image_embeds",
        "text_embedding": "text_embeds",
    }
    found = found if isinstance(found, dict) else {alone: found}
    # transformers' outputs have neither scale and bias nor what LXMERT says of regions.
    unknown = {"scale", "bias", "regions", "attributes", "region_features"}
    arrays = {names.get(x, x): to_numpy(y) for x, y in found.items() if x not in unknown}
    if "image_embeds" in arrays and "text_embeds" in arrays:
        logits = to_numpy(found["scale"]) * (arrays["image_embeds"] @ arrays["text_embeds"].T)
        arrays["logits_per_image"] = logits + to_numpy(found.get("bias", np.zeros(1)))
    if kind == "multiple_choice":
        arrays = {name: x.T for name, x in arrays.items()}
    if family in ("resnet", "dvae_encoder"):  # a grid, with channels last
        arrays = {name: x.transpose(0, 3, 1, 2) if x.ndim == 4 else x for name, x in arrays.items()}
    return arrays


def save(name, folder):
    """Saves a case with its inputs and outputs; returns the model."""
    model = randomize(CASES[name]())
    save_huggingface(model, folder, end_id=None)
    save_outputs(model, inputs_of(model), folder)
    return model


def save_outputs(model, inputs, folder):
    given = {f"in/{key}": x for key, x in to_theirs(model, inputs).items()}
    expected = {f"out/{key}": x for key, x in outputs_of(model, inputs).items()}
    np.savez(folder / "expected.npz", **given, **expected)


def main(folder, *words):
    for name in CASES:
        if not words or any(word in name for word in words):
            save(name, Path(folder) / name)
    print(f"{len(list(Path(folder).iterdir()))} folders in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
