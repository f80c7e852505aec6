"""Saves models of every family, with noise on every weight, and what they answer.

`python tests/saved_folders.py FOLDER [WORD...]`: a folder for each model of which the name contains
one of the words, for `read_by_transformers.py`, which any version of transformers can run.
"""

import sys
from pathlib import Path

import numpy as np
from compare import to_numpy
from keras_weights import randomize

from keras_tfm import layers, models
from keras_tfm.checkpoints import save_huggingface

SIZES = {"dim": 12, "num_layers": 2, "num_heads": 3, "intermediate_dim": 14}
# Texts of 9 tokens: longer than the lengths that scalings were trained for, and than the windows.
LENGTH, VOCABULARY, LAST = 9, 31, 2
ROTARY = {**SIZES, "num_heads": 2, "head_dim": 8, "num_key_value_heads": 1, "rope_theta": 50.0}
TWO = {**SIZES, "num_decoder_layers": 1, "max_length": 21}
IMAGE = {"image_size": 20, "patch_size": 4}
DINO = {**IMAGE, **SIZES, "intermediate_dim": 24, "layer_scale": 1.0}
GEMMA3 = {"post_norm": True, "query_key_norm": True, "windows": [4, None], "local_rope_theta": 20.0}
BACKBONE = {"stem_dim": 4, "dims": (8, 12), "depths": (1, 2), "bottleneck": False}
TOWERS = {name: {**SIZES, "dim": dim} for name, dim in (("image", 12), ("text", 15))}
SCALINGS = {
    "unscaled": None,
    "linear": layers.LinearScaling(3.0),
    "llama3": layers.Llama3Scaling(4.0, 16),
    "yarn": layers.YaRNScaling(4.0, 8),
    "yarn in full": layers.YaRNScaling(4.0, 8, 16.0, 0.5, attention_factor=1.5, truncate=False),
}
QKV = ["query", "key", "value"]
GPT_NEO = {"attention_bias": ["output"], "scale_scores": False, "windows": [None, 4]}


def encoders():
    heads = {
        "features": lambda model: model,
        "masked": models.masked_language_model,
        "classes": lambda model: models.sequence_classifier(model, 4),
        "tags": lambda model: models.token_classifier(model, 5),
        "answers": models.question_answering,
    }
    more = {
        "bert": {
            "pretraining": lambda model: models.masked_language_model(model, next_sentence=True),
            "next": models.next_sentence,
        },
        "electra": {
            "detector": models.replaced_token_detection,
            "masked": lambda model: models.masked_language_model(model, activation="gelu"),
        },
        "albert": {
            "pretraining": lambda model: models.masked_language_model(model, next_sentence=True)
        },
        "roberta": {"masked": lambda model: models.masked_language_model(model, activation="gelu")},
    }
    families = {
        "bert": models.bert,
        "roberta": lambda *args, **options: models.roberta(*args, pooler=True, **options),
        "distilbert": models.distilbert,
        "electra": lambda *args, **options: models.electra(*args, embedding_dim=7, **options),
        "albert": lambda *args, **options: models.albert(*args, embedding_dim=7, **options),
        "deberta": lambda *args, **options: models.deberta(
            *args, num_buckets=6, max_distance=8, **options
        ),
    }
    for family, build in families.items():
        for name, head in {**heads, **more.get(family, {})}.items():
            yield (
                f"{family}, {name}",
                lambda build=build, head=head: head(build(VOCABULARY, max_length=17, **SIZES)),
            )
    yield (
        "xlm-roberta",
        lambda: models.roberta(VOCABULARY, multilingual=True, pooler=True, **SIZES),
    )
    yield (
        "deberta, other options",
        lambda: models.deberta(
            VOCABULARY, **SIZES, absolute_positions=True, num_buckets=None, max_distance=6,
            max_length=17, position_projections=True, kernel_size=3, num_segments=2,
        ),
    )  # fmt: skip


def decoders():
    def gpt(**options):
        return models.gpt(VOCABULARY, **{**SIZES, **options}, max_length=17)

    def llama(**options):
        return models.llama(VOCABULARY, **{**ROTARY, **options}, max_length=32)

    def gemma(**options):
        return models.gemma(VOCABULARY, **{**ROTARY, **options}, max_length=32)

    yield "gpt2", gpt
    yield "gpt2, scaled by layer", lambda: gpt(scale_scores_by_layer=True, tie_output=False)
    yield "openai-gpt", lambda: gpt(normalize_first=False, intermediate_dim=48)
    yield "gpt_neo", lambda: gpt(**GPT_NEO)
    kinds = {
        "llama": lambda **options: llama(**options),
        "mistral": lambda **options: llama(windows=4, **options),
        "qwen2": lambda **options: llama(attention_bias=QKV, windows=[None, 4], **options),
        "qwen3": lambda **options: llama(query_key_norm=True, tie_output=True, **options),
        "olmo2": lambda **options: models.olmo2(
            VOCABULARY, **{**SIZES, "num_heads": 2, "num_key_value_heads": 1}, rope_theta=50.0,
            max_length=32, **options
        ),
        "gemma": lambda **options: gemma(**options),
        "gemma2": lambda **options: gemma(
            post_norm=True, windows=[4, None], attention_logit_soft_cap=2.0,
            final_logit_soft_cap=4.0, query_pre_attention_scalar=3, **options,
        ),
        "gemma3": lambda **options: gemma(**GEMMA3, **options),
    }  # fmt: skip
    for family, build in kinds.items():
        for name, scaling in SCALINGS.items():
            # transformers reads `truncate` in no configuration by layer type.
            if (family, name) != ("gemma3", "yarn in full"):
                yield (
                    f"{family}, {name}",
                    lambda build=build, scaling=scaling: build(rope_scaling=scaling),
                )
        yield f"{family}, features", lambda build=build: models.backbone(build())
        yield (
            f"{family}, classes",
            lambda build=build: models.sequence_classifier(build(pad_id=0), 4),
        )
    yield "llama, biases", lambda: llama(attention_bias=True, feed_forward_bias=True)
    yield "gemma3, no windows", lambda: gemma(**{**GEMMA3, "windows": None})


def encoder_decoders():
    def t5(**options):
        return models.t5(VOCABULARY, **SIZES, head_dim=5, **options)

    yield "t5", t5
    yield "t5, gated, untied", lambda: t5(gated=True, tie_output=False, activation="gelu")
    yield "t5, features", lambda: models.backbone(t5(num_decoder_layers=1))
    yield "t5, encoder", lambda: models.encoder(t5())
    for family in ("bart", "mbart", "pegasus", "marian"):
        build = getattr(models, family)
        yield family, lambda build=build: build(VOCABULARY, **TWO)
        yield f"{family}, features", lambda build=build: models.backbone(build(VOCABULARY, **TWO))
    for family in ("bart", "mbart"):
        build = getattr(models, family)
        yield (
            f"{family}, classes",
            lambda build=build: models.sequence_classifier(build(VOCABULARY, **TWO), 4),
        )
        yield (
            f"{family}, answers",
            lambda build=build: models.question_answering(build(VOCABULARY, **TWO)),
        )
    for name, size in (("two vocabularies", VOCABULARY), ("two sizes, version 5", 37)):
        yield (
            f"marian, {name}",
            lambda size=size: models.marian(VOCABULARY, target_vocabulary_size=size, **TWO),
        )
    speech = {"num_mels": 5, "max_source_length": 11, "audio": False, "max_length": 13}
    yield "whisper", lambda: models.whisper(VOCABULARY, **SIZES, **speech)


def pictures():
    def vit(**options):
        return models.vit(**{**IMAGE, **SIZES, **options})

    def classifier(model, pooling):
        return models.image_classifier(model, 4, pooling, dropout=0.0)

    yield "vit", lambda: vit(pooler=True)
    yield "vit, classes", lambda: classifier(vit(attention_bias=False), "first")
    yield "deit", lambda: vit(distillation_token=True, pooler=True)
    yield "deit, classes", lambda: classifier(vit(distillation_token=True), "distilled")
    yield "dinov2", lambda: vit(**DINO)
    yield "dinov2, classes", lambda: classifier(vit(**DINO), "first_and_mean")
    yield "dinov2_with_registers", lambda: vit(**DINO, num_registers=2, antialias=True)
    yield "resnet", lambda: models.resnet(64, **BACKBONE)
    yield "resnet, classes", lambda: classifier(models.resnet(64, **BACKBONE), "mean")
    detr = {"num_classes": 5, "num_queries": 7, "backbone": BACKBONE, "image_size": 64}
    yield "detr", lambda: models.detr(**SIZES, **detr)
    yield (
        "flava_image_codebook",
        lambda: models.dvae_encoder(32, VOCABULARY, dim=5, num_blocks=1),
    )
    yield "imagegpt", lambda: models.image_gpt(VOCABULARY, **SIZES, max_length=17)
    texts = {"vocabulary_size": VOCABULARY, "max_length": 17, "end_id": 29, "projection_dim": 9}
    yield "clip_text_model", lambda: models.clip_text(**SIZES, **texts)
    yield "clip_vision_model", lambda: models.clip_image(**IMAGE, **SIZES, projection_dim=9)
    yield "clip", lambda: models.clip(**IMAGE, **texts, **TOWERS)
    yield (
        "lxmert",
        lambda: models.lxmert(
            VOCABULARY, **SIZES, num_visual_layers=1, num_cross_layers=2, region_dim=5,
            num_regions=7,
        ),
    )  # fmt: skip


def inputs_of(model):
    """Random inputs of a model, by their names."""
    rng, given = np.random.default_rng(1), model.arguments
    ids = rng.integers(4, VOCABULARY - 2, (3, LENGTH)).astype("int32")
    ids[:, -1] = 29 if "end_id" in given and "projection_dim" in given else LAST
    target = rng.integers(4, VOCABULARY - 2, (3, 6)).astype("int32")
    size = given.get("image_size") or 32
    arrays = {
        "tokens": ids,
        "segments": (np.arange(LENGTH) > 4).astype("int32")[None].repeat(3, 0),
        "source": ids,
        "target": target,
        "features": rng.normal(size=(3, 22, given.get("num_mels", 1))).astype("float32"),
        "region_features": rng.normal(size=(3, 7, given.get("region_dim", 1))).astype("float32"),
        "region_boxes": rng.uniform(size=(3, 7, 4)).astype("float32"),
        "pixels": rng.integers(0, 256, (3, size, size, 3)).astype("float32"),
    }
    return {x.name: arrays[x.name] for x in model.inputs}


def to_theirs(model, inputs):
    """The inputs as transformers takes them."""
    names = {
        "tokens": "input_ids",
        "source": "input_ids",
        "segments": "token_type_ids",
        "target": "decoder_input_ids",
        "region_features": "visual_feats",
        "region_boxes": "visual_pos",
    }
    result = {}
    for name, x in inputs.items():
        if name == "pixels":
            mean, std = (np.array(model.arguments[f"image_{key}"]) for key in ("mean", "std"))
            result["pixel_values"] = ((x / 255 - mean) / std).transpose(0, 3, 1, 2)
        elif name == "features":
            result["input_features"] = x.transpose(0, 2, 1)
        else:
            result[names[name]] = x
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
    elif kind == "embedding":
        alone = "image_embeds" if family == "clip_image" else "text_embeds"
    names = {
        "features": "language_output" if family == "lxmert" else "last_hidden_state",
        "visual_features": "vision_output",
        "pooled": "pooled_output" if family == "lxmert" else "pooler_output",
        "tokens": "prediction_logits",
        "next_sentence": "seq_relationship_logits" if family == "bert" else "sop_logits",
        "start": "start_logits",
        "end": "end_logits",
        "boxes": "pred_boxes",
        "logits": "logits",
        "image_embedding": "image_embeds",
        "text_embedding": "text_embeds",
    }
    found = found if isinstance(found, dict) else {alone: found}
    arrays = {names.get(name, name): to_numpy(x) for name, x in found.items() if name != "scale"}
    if family in ("resnet", "dvae_encoder"):  # a grid, with channels last
        arrays = {name: x.transpose(0, 3, 1, 2) if x.ndim == 4 else x for name, x in arrays.items()}
    return arrays


CASES = dict((*encoders(), *decoders(), *encoder_decoders(), *pictures()))


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
